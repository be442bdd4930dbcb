"""The samples of a real run: which rows of data, along which axis, belong to which micro-batch.

What no operator of a followed tensor made is data: it is met when it first enters a calculation with a parameter, and
its rows are the samples. The rows of one fetch of a data loader, or of one forward pass, belong to one micro-batch.

A run reads rows before a micro-batch takes them, as labels are that are counted for a whole window. Which micro-batch
takes a row shows only then. Until then it is a sample of its own; once a micro-batch meets the same place of the same
storage, it is that micro-batch's sample, in every term that was made of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.engine import Engine
from gradproof.shadow.follow.facts import PassedLimit
from gradproof.shadow.follow.interpreter import within
from gradproof.shadow.follow.memory import Meetings, geometry_of
from gradproof.shadow.follow.rows import MOST, NOWHERE, Movement, Rows, along, apart, in_parts, moves
from gradproof.shadow.follow.terms import Shape, Terms, TimeLimit, exact
from gradproof.shadow.follow.unseen import call_site, digest
from gradproof.shadow.follow.values import Value, shape_with, shared
from gradproof.shadow.locations import Location, stated
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.tape.calls import Nested
from gradproof.shadow.tape.checksums import plain

MICRO = 1 << 20
"""Samples are numbered by micro-batch: `MICRO` times its number, plus the row."""
AHEAD = 1 << 30
"""From this number on micro-batches are rows, one each, that no other has taken yet."""
UNITS = 32
"""A micro-batch of more rows is followed in this many blocks of rows, where it has as many."""
TAKES = frozenset({"slice", "select", "index", "index_select"})
"""Operators that take a part out of a table."""
ROWS_OUTSIDE = "for one sample each: the rows of data that no operator of torch made:"
ROWS_APART = "for one sample each: rows that lie in their table otherwise than others of the micro-batch in theirs:"
Span = tuple[int, int]
"""Where a row lies: its least place and its largest."""


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose failure ends the following, and not the user's script."""

    @functools.wraps(method)
    def call(self: Samples, *args: Any, **kwargs: Any) -> Any:
        clock = self.terms.clock
        try:
            with clock:
                clock.look()
                return method(self, *args, **kwargs)
        except TimeLimit as error:
            if clock.depth:  # of a call within another
                raise
            self.late = self.late or PassedLimit(str(error), self.passed(), self.location())
            self.close()
            return {}
        except Exception as error:
            self._leave(stated(error))
            return {}

    return call


class Samples(Engine):  # type: ignore[no-untyped-call]
    """An engine that names the samples of a real run, and leaves the user's script alone where it fails.

    `fetch`: the number of the present micro-batch; `begun`: a forward pass took it; `taking`: something was computed
    with it; `ran`: a backward pass has ended since, or a data loader was read. `trained_on`: anything was.
    """

    def __init__(self) -> None:
        super().__init__(Terms(), MICRO, 0)
        self.awake = self.closed = self.begun = self.ran = self.by_pass = False
        self.trained_on = self.taking = self.first_axis = False
        self.fetch = 0
        self.used: dict[int, Location] = {}
        self.rows: dict[int, int | None] = {}
        self.grains = dict[int, int]()  # rows of a micro-batch that are followed as one sample
        self.axes = dict[int, int]()  # along which axis of data a module showed that samples lie
        self.met = dict[int, set[int]]()  # the rows of a batch of a data loader that met anything
        self.unsure: Location | None = None  # no axis of samples was shown: windows try one after another
        self.said: tuple[Shape, int] | None = None  # the first data of samples, and along which axis these lie
        self.taken: dict[tuple[str, Location], Shape] = {}  # rows taken for one sample each: why, where, of what
        self._lie: dict[tuple[int, int, int], list[Fraction]] = {}  # where in a table of so many a micro-batch lies
        self.shuffled: Location | None = None  # rows of a micro-batch were met in another order than its own
        self.turns: Counter[tuple[str, int]] = Counter()
        self.marked = set[int]()  # by a forward pass
        self.given = dict[int, tuple[Any, Location]]()  # by a data loader with gradients on: its iteration, and where
        self.meetings = Meetings()
        self.modes: dict[int, bool] = {}  # whether a forward pass in training mode took a micro-batch
        self.training = True
        self.late: PassedLimit | None = None
        self.passed: Callable[[], int] = lambda: len(self.facts.updates)
        """Takes note of the time limit, and gives the number of the window in which it passed."""
        self._last = (-1, 0)
        self.origins, self._ahead = Rows(), dict[Span, int]()
        self._since: list[tuple[torch.Tensor, str, list[Span]]] = []
        self._copies: list[tuple[torch.Tensor, Value]] = []  # of what was read since the last micro-batch began
        self._before_training: dict[int, Any] = {}
        self._taken, self._first_ahead = 0, 1 << 62
        self.loading = Nested()  # calls of what makes a batch
        self._parts: dict[tuple[int, Location, int], list[Movement]] = {}  # by window, line and table
        self._sizes = dict[str, int]()
        self._sites: dict[tuple[int, Any], tuple[Any, str, bool]] = {}

    def _leave(self, why: str) -> None:
        """Follow nothing more, and prove nothing."""
        self.lose(why)
        self.close()

    def close(self) -> None:
        """Nothing more is followed."""
        self.closed = True
        self.seen.clear()

    @guarded
    def _copied(self, func: Any, spec: Spec, args: Any, kwargs: Any, out: Any) -> None:
        """An operator moved data that were not followed, or that were only read."""
        given = tensors_in((args, kwargs))
        if not all(map(plain, given)):
            return
        data = (not self.knows(t) or self.memory.of(t).data for t in given)
        if moves(spec, given) and all(data):
            self.origins.moved(func, spec, args, kwargs, out)
            if spec.function in TAKES and not self.loading:
                self._takes(out)
            if spec.function in ("clone", "cat", "_to_copy") and any(map(self._just_read, given)):
                value = self.memory.read(out)
                self._copies += [] if value is None else [(out, value)]
        elif spec.written:
            for target in spec.targets(args, kwargs):
                self.origins.written(target)

    def _takes(self, out: Any) -> None:
        """A line took a part out of a table."""
        if isinstance(out, torch.Tensor) and out.numel() and torch.is_grad_enabled():
            node = self.origins.node(out)
            if node.taken is not None or node.chosen:
                at = len(self.facts.updates), self.location(), id(self.origins.home(node))
                self._parts.setdefault(at, []).append(node)

    def unused(self) -> Iterator[Location]:
        """Lines that took rows of a table that nothing met, and rows that something met afterwards, in one window."""
        for (_, line, _), own in self._parts.items():
            last = max((at for at, node in enumerate(own) if node.used), default=0)
            if not all(node.used for node in own[:last]):
                yield line

    def _fetch_of(self, tensor: torch.Tensor) -> int | None:
        """The batch of a data loader that a tensor is made of; the last of several."""
        return max(self.origins.node(tensor).fetches, default=None)

    def _data(self, tensor: torch.Tensor) -> Value:
        """What is met now: a number, rows of samples, or a table."""
        plain, number = self._number(tensor), self._fetch_of(tensor)
        self.origins.uses(tensor)
        if plain is not None:
            return plain
        if number is None and self._reads_ahead(tensor):
            return self._read_ahead(tensor)
        with self.own_work():
            made = self.source(tensor, within(tensor))  # rows of samples, or of a table, that a micro-batch meets
        fetch = self.fetch if number is None else number
        self.meetings.data(tensor, made, len(self.facts.updates), fetch, self.location())
        return made

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """With numbers of its own, which the script neither moves nor reads."""
        self.busy += 1
        try:
            with _disable_current_modes():
                yield
        finally:
            self.busy -= 1

    def _number(self, tensor: torch.Tensor) -> Value | None:
        """A float tensor that holds one number everywhere is that number, and no data; so is a single integer.

        What a data loader gave are data, whatever they hold.
        """
        single = not tensor.dim() and self.rows.get(self.fetch, 1) is not None
        if not tensor.numel() or tensor.is_complex() or not (tensor.is_floating_point() or single):
            return None
        given = self._fetch_of(tensor) is not None
        if tensor.dim() and given:
            return None
        with torch.no_grad(), _disable_current_modes():
            first = tensor.detach().flatten()[0]
            if not bool((tensor.detach() == first).all()):
                return None
            plain = exact(float(first))
        by, powers = (plain, {}) if plain is None or tensor.numel() > 1 else self.laws.factor(float(plain), True)
        known = powers or self.origins.node(tensor).blank
        if plain is not None and not known and (tensor.is_floating_point() or given):
            self.meetings.one_number(tensor, self.site(), len(self.facts.updates), self.location())
        if plain is not None and self._made_before(tensor):
            self.facts.reads.append((self.location(), "of data"))
        if plain is None:
            return None
        return self.laws.rescaled(self.laws.ones(), by or plain, powers)

    def opened(self) -> int:
        """The present micro-batch; another one where a backward pass has ended since the last.

        Data that were met before are met anew: the same rows in another micro-batch are samples of that one.
        """
        if self.ran:
            self.fetch, self.begun, self.ran, self.taking = self.fetch + 1, False, False, False
            for number, held in self.memory.held.items():
                if held.data and not self.origins.loaded(number):
                    held.views.clear()
        return self.fetch

    def source(self, tensor: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """Data: rows of samples along an axis, or of several; a table where they are rows of no sample."""
        shape, node = tuple(tensor.shape), self.origins.node(tensor)
        if not tensor.numel():
            return self.leaf("constant", (digest(tensor),), shape)
        number = max(node.fetches, default=-1)
        if node.fetches:
            own = self.origins.of_batches(node, self._of_batch)
            if apart(own)[0] is None and self._grouped(number, own):
                own = self.origins.of_batches(node, self._of_batch)
            self._count(node, own)
        else:
            number, found = self.opened(), None
            self._meets(shape)
            if number not in self.rows:
                self.rows[number], axis = self._rows_of(tensor, None) if shape else (None, 0)
                self.axes.setdefault(number, axis)
            self._begins(number)
            rows = self.rows[number]
            found = None if rows is None else self._placed(tensor, rows, self.axes.get(number, 0))
            if found is None and rows is not None:
                return self.leaf("constant", (digest(tensor),), shape)
            first, _, each, _ = self._of_batch(number)
            own = torch.full(shape, first) if found is None else torch.where(found < 0, found, first + found // each)
        self.by_pass |= number not in self.marked
        value = self._of_samples(tensor, own, within)
        if not node.fetches and not value.shared:
            ids, tables = self._take_for_samples(tensor, value.axis, number)
            names, at = self.origins.named(tensor, ids, value.axis), (len(self.facts.updates), number)
            table = self.origins.table(tensor, value.axis)
            self.meetings.rows(names, {*tables}, table, at, self.location())
        return value

    def _take_for_samples(self, tensor: torch.Tensor, axis: int, number: int) -> tuple[torch.Tensor, dict[int, Any]]:
        """Note rows that nothing shows to be of one sample each. Gives where they lie, and in which tables.

        Code outside of torch made them, or they lie in their table otherwise than those of another one in theirs.
        """
        if (line := self.origins.made_outside(self.origins.node(tensor))) is not None:
            self.taken.setdefault((ROWS_OUTSIDE, line), tuple(tensor.shape))
        with self.own_work():
            ids, tables = self.origins.ids(tensor), self.origins.tables(tensor)
            size, places = self.origins.lie(ids, axis, tables)
        first = self._lie.setdefault((number, size, len(places)), places)
        apart, rows = {here - there for here, there in zip(places, first, strict=True)}, tensor.shape[axis]
        if len(apart) > 1 or (rows > 1 and any(by and (by * size / rows).denominator == 1 for by in apart)):
            self.taken.setdefault((ROWS_APART, self.location()), tuple(tensor.shape))
        return ids, tables

    def _rows_of(self, tensor: torch.Tensor, shown: int | None) -> tuple[int, int]:
        """The rows of a micro-batch that begins with a tensor, and their axis: those that were taken for it.

        `shown`: the axis that a module showed. Where nothing shows it, as of one of a table of batches, windows try
        the first and the second in turn: what is said then has to hold for both.
        """
        if shown is not None:
            return tensor.shape[shown], shown
        node = self.origins.node(tensor)
        found = self.origins.begins(node, None) if tensor.dim() > 1 else None
        if found is not None and bool((found >= 0).all()) and (bool(found.any()) or tensor.shape[0] == 1):
            return int(found.max()) + 1, 0
        batches = tensor.dim() > 1 + tensor.is_floating_point() and (found is not None or self.origins.chosen(node))
        self.first_axis |= batches and not tensor.is_floating_point()  # tokens, sequence by sequence: it is said
        batches &= tensor.is_floating_point()
        self.unsure = self.unsure or (self.location() if batches else None)
        axis = len(self.facts.updates) % 2 if batches else 0
        return tensor.shape[axis], axis

    def _grouped(self, number: int, own: torch.Tensor) -> bool:
        """Whether a batch was made fewer rows, as of pairs, each of as many rows of it: each of them is a sample."""
        _, rows, each, _ = self._of_batch(number)
        count = own.shape[0] if own.dim() > 1 else 1
        if self.met.get(number) or each > 1 or count < 2 or rows % count or not torch.all(own >= 0):
            return False
        found, size = own.reshape(count, -1) - number * MICRO, rows // count
        first = torch.arange(count) * size
        if not torch.equal(found.amin(1), first) or not torch.equal(found.amax(1), first + size - 1):
            return False
        if self._sizes.setdefault(call_site(), size) != size:
            self.lose("batches are taken apart by numbers that differ")
        self.grains[number] = size
        return True

    def _count(self, node: Movement, own: torch.Tensor) -> None:
        """Rows of batches of a data loader were met, of which some may be followed as one sample."""
        every = {number: self._of_batch(number) for number in node.fetches}
        if all(len(self.met.get(number, ())) >= rows for number, (_, rows, _, _) in every.items()):
            return
        if any(each > 1 for _, _, each, _ in every.values()):
            own = self.origins.of_batches(node, lambda number: (*every[number][:2], 1, every[number][3]))
        for row in torch.unique(own[own >= 0]).tolist():
            self.met.setdefault(row // MICRO, set()).add(row % MICRO)

    def partly(self, number: int) -> bool:
        """Whether rows of a batch of a data loader were never met."""
        return number in self.given and len(self.met.get(number, ())) < (self.rows.get(number) or 0)

    def described(self, numbers: Collection[int]) -> str:
        """What the samples of some micro-batches were taken to be, in words; nothing where none was met."""
        shape, axis = self.said or ((), 0)
        sizes = " or ".join(map(str, sorted({self.rows.get(number) or 1 for number in numbers})))
        along = f"axis {axis}" if axis else "the rows"
        return f"{len(numbers)} micro-batches of {sizes} samples: {along} of data {list(shape)}" if self.said else ""

    def _placed(self, tensor: torch.Tensor, rows: int, axis: int) -> torch.Tensor | None:
        """The row of each element in the present micro-batch; None for a table, which has no row of it."""
        found = self.origins.begins(self.origins.node(tensor), rows, axis)
        if found is not None:
            return found
        shape = tensor.shape
        order = [axis, *(at for at in range(min(2, len(shape))) if at != axis)]
        at = next((at for at in order if at < len(shape) and shape[at] == rows), None)
        if at is None and len(shape) == 1 and not tensor.is_floating_point() and rows and shape[0] % rows == 0:
            return torch.arange(shape[0]) // (shape[0] // rows)  # labels that were made flat
        if at is None:
            return None
        return along(torch.arange(rows), at, len(shape)).expand(shape)

    def _of_batch(self, number: int) -> tuple[int, int, int, int]:
        """The first sample of a micro-batch, its rows, how many are followed as one, and along which axis they lie."""
        rows = self.rows.get(number) or 1
        return number * MICRO, rows, self.grains.get(number) or rows // blocks(rows), self.axes.get(number, 0)

    def _of_samples(self, tensor: torch.Tensor, own: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """The value of data whose elements belong to these samples."""
        shape, (slot, gradients) = tuple(tensor.shape), self._first_met(tensor)
        axis, along = apart(own)
        mixed = sorted({int(one) for one in torch.unique(own) if one >= 0}) if axis is None else []
        owners = mixed or [one for one in along if one >= 0]
        for owner in owners if torch.is_grad_enabled() else ():
            self.used.setdefault(owner, self.location())
        turns = Counter[int]()

        def leaf(owner: int, size: Shape) -> Any:
            if owner < 0:
                return self.terms.make("constant", (digest(tensor), slot), (), size)
            turn = self.turns[slot, owner] + turns[owner]
            turns[owner] += 1
            name = (slot + f" {turn}" * (turn > 0), gradients, str(tensor.dtype), owner, within)
            return self.terms.make("data", name, (), size, owner)

        if axis is None and len(mixed) > 1:
            kids = tuple(leaf(owner, (1,)) for owner in mixed)
            self.facts.coupled = self.facts.coupled or ("a movement of data", self.location())
            value = shared(self.terms.of(self.terms.make("moved", (slot,), kids, shape)))
        elif axis is None:
            value = shared(self.terms.of(leaf(mixed[0] if mixed else NOWHERE, shape)))
        else:
            parts, rows, turns_of = in_parts(along, self.origins.node(tensor).joined)
            leaves = [self.terms.of(leaf(owner, shape_with(shape, axis, rows))) for owner in parts]
            value = Value(tuple(leaves), axis, rows, turns_of)
            self.said = self.said or (shape, axis)
            if parts != sorted(parts):
                self.shuffled = self.shuffled or self.location()
            if axis == 0:
                self._met(tensor, along)
        for owner in turns:
            self.turns[slot, owner] += turns[owner]
        return value

    def site(self) -> str:
        """Where data are met: the line, which call of it, and which of the operator's data they are."""
        same = self._last[0] == self.facts.operators
        self._last = (self.facts.operators, self._last[1] + 1 if same else 0)
        return f"{call_site()} {self._last[1]}"

    def _first_met(self, tensor: torch.Tensor) -> tuple[str, bool]:
        """Where data are met, and whether with gradients on; what is met anew was met there as it was first."""
        site, gone = self.site(), (None, "", False)
        weak, first, gradients = self._sites.pop((tensor.untyped_storage()._cdata, geometry_of(tensor)), gone)
        return (site, torch.is_grad_enabled()) if weak is None or weak.expired() else (first, gradients)

    @guarded
    def forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward pass begins: its first tensor of data gives the number of rows of the micro-batch."""
        if self.closed:
            return
        own = [p for p in module.parameters() if p.requires_grad]
        if not self.awake:
            self.awake = bool(own) and (torch.is_grad_enabled() or module.training)  # no first evaluation
        if not self.awake:
            return
        if torch.is_grad_enabled():
            self.opened()
        elif module.training:  # weights are used before a pass with gradients is
            with torch.enable_grad():
                for parameter in own:
                    self.value(parameter)
        weighs = next(module.parameters(), None) is not None
        self.training = module.training if weighs else self.training
        given = [t for t in tensors_in((args, kwargs)) if plain(t)]
        if given:
            self._meets(tuple(given[0].shape))
        first = next((t for t in given if t.dim() and (self._just_read(t) or not self.knows(t))), None)
        if first is None:
            self._begins(self.fetch)
            return
        number, rows = self._fetch_of(first), first.shape[0]
        if number is None:
            number, rows = self._passes(module, first, given)
        self.begun = self.begun or weighs
        single = first.is_floating_point() and first.dim() == 1
        self.marked.add(number)
        self.modes[number] = self.training or self.modes.get(number, False)
        self.rows.setdefault(number, None if single else rows)
        self.trained_on = self.taking = True
        self._begins(number)
        self.facts.operators += 1
        for tensor in given:
            self.value(tensor)

    def _passes(self, module: nn.Module, first: torch.Tensor, given: Sequence[torch.Tensor]) -> tuple[int, int]:
        """The micro-batch of a forward pass of data that no loader gave, and its rows."""
        number = self.opened()
        with self.own_work():
            rows, axis = self._rows_of(first, shown_axis(module, first))
        begun = self.begun or (number in self.marked and self.rows[number] not in (None, rows))
        if begun and not any(map(self._of_present, given)):  # else a decoder, a loss, or a metric
            number = self.fetch = self.fetch + 1
        self.axes.setdefault(number, axis)
        return number, rows

    def _of_present(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made of samples of the present micro-batch, or holds them."""
        value = self.memory.read(tensor) if self.knows(tensor) else None
        made = self.terms.samples(term for part in value.parts for term in part) if value is not None else ()
        return any(sample // MICRO == self.fetch for sample in made)

    # Rows that are read ahead

    def _reads_ahead(self, tensor: torch.Tensor) -> bool:
        """Whether integers are met before the forward pass of a micro-batch: it may be that of another one."""
        self.opened()
        return not (self.taking or tensor.is_floating_point() or not tensor.dim() or not tensor.numel())

    def _read_ahead(self, tensor: torch.Tensor) -> Value:
        """A line reads a tensor of integers: each row of it is a sample."""
        if tensor.shape[0] > MOST:
            return self.leaf("constant", (digest(tensor),), tuple(tensor.shape))
        with self.own_work():
            places = self.origins.spans(tensor)
        site, turns = self._first_met(tensor)[0], Counter[Span]()
        self._since.append((tensor, site, places))
        self._first_ahead = min(self._first_ahead, len(self.terms))
        leaves = []
        for place in places:
            if place not in self._ahead:
                self._taken += 1
                self._ahead[place] = (AHEAD + self._taken) * MICRO
            owner, turn = self._ahead[place], f" {turns[place]}" * (turns[place] > 0)
            turns[place] += 1
            name = (site + turn, False, str(tensor.dtype), owner, within(tensor))
            leaves.append(self.terms.of(self.terms.make("data", name, (), (1, *tensor.shape[1:]), owner)))
        return Value(tuple(leaves), 0, 1)

    def _table_rows(self) -> int:
        """How many rows were met before anything trains: none of a data loader, and none that were read ahead."""
        return 0 if self.trained_on or self.fetch in self.marked else self.rows.get(self.fetch) or 0

    def moved(self, tensors: Iterable[torch.Tensor]) -> None:
        """Before anything trains, what was met is taken apart: a part of it may be a micro-batch."""
        most = max([self._table_rows(), *(len(places) for _, _, places in self._since)])
        if any(t.dim() and 0 < t.shape[0] < most for t in tensors):
            self._begin_anew()

    def _meets(self, shape: Shape) -> None:
        """A tensor of fewer rows than those before it: they were no micro-batch, and what was met is met anew."""
        if shape and shape[0] < self._table_rows():
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Before anything trains, what was met was no micro-batch if a part of it, or of what it became, is one.

        What was made of it is data, as it would be if it had been made before the optimizer.
        """
        for number, held in self.memory.held.items():
            terms = [term for region in held.regions for part in region.value.parts for term in part]
            if not held.data and not held.weak.expired() and self.terms.samples(terms):
                self._before_training[number] = held.weak
            for geometry, value in held.views.items() if held.data else ():
                met = next((term for term in value.parts[0] if self.terms.operators[term] == "data"), None)
                if met is not None:
                    self._sites[number, geometry] = held.weak, *self.terms.attributes[met][:2]
        self.memory.held.clear()
        self.rows.pop(self.fetch, None)
        self.turns.clear()
        self.used.clear()
        self.meetings = Meetings()
        self._ahead.clear()
        self._since.clear()
        self._copies.clear()

    def forget_rows(self) -> None:
        """Nothing is known of rows that were read, or copied."""
        self.origins.forget()
        self._ahead.clear()
        self._since.clear()
        self._copies.clear()

    def _made_before(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made of data before anything trained."""
        weak = self._before_training.get(tensor.untyped_storage()._cdata)
        return weak is not None and not weak.expired()

    def _just_read(self, tensor: torch.Tensor) -> bool:
        """Whether this part of a storage was read since the last micro-batch began."""
        place = tensor.untyped_storage()._cdata, geometry_of(tensor)
        return any(place == (other.untyped_storage()._cdata, geometry_of(other)) for other, _, _ in self._since)

    def _begins(self, number: int) -> None:
        """A micro-batch begins. What was read since the last is its own, or is met anew by the one that takes it.

        It is its own where each line read as many rows as the micro-batch has.
        """
        since, self._since = self._since, []
        copies, self._copies = self._copies, []
        rows, by_site = self.rows.get(number) or 0, dict[str, dict[Span, int]]()
        for _, site, places in since:
            own = by_site.setdefault(site, {})
            for place in places:
                own.setdefault(place, len(own))
        if not rows or any(len(own) != rows for own in by_site.values()):
            for tensor, _, _ in since:
                self.memory.of(tensor).views.clear()
            for copy, held in copies:
                if self.memory.read(copy) == held:
                    self.memory.forget(copy)
            return
        first, _, each, _ = self._of_batch(number)
        self._are({place: first + at // each for own in by_site.values() for place, at in own.items()})
        for tensor, _, _ in since:
            value = self.memory.read(tensor)
            if value is not None:
                steps, line = len(self.facts.updates), self.location()
                self.meetings.data(tensor, value, steps, number, line, True)

    def _met(self, tensor: torch.Tensor, owners: Sequence[int]) -> None:
        """A micro-batch takes a tensor: the rows of it that were read ahead are its samples."""
        taken = dict[Span, int]()
        rows = [*zip(self.origins.spans(tensor), owners, strict=True)] if self._ahead and len(owners) <= MOST else []
        for low, high in self._ahead if rows else ():
            of = {owner for (first, last), owner in rows if first <= high and low <= last}
            if len(of) == 1:
                taken[low, high] = of.pop()
        self._are(taken)

    def _are(self, found: dict[Span, int]) -> None:
        """These rows are these samples. Rows that share a sample already have it."""
        new = {self._ahead.pop(place): owner for place, owner in found.items() if place in self._ahead}
        owners = self.terms.owners
        for term in range(self._first_ahead, len(owners)) if new else ():
            owners[term] = new.get(owners[term], owners[term])


def blocks(rows: int) -> int:
    """In how many blocks the rows of a micro-batch are followed."""
    if rows <= UNITS:
        return max(rows, 1)
    return next((n for n in range(UNITS, UNITS // 4, -1) if rows % n == 0), rows)


def shown_axis(module: nn.Module, tensor: torch.Tensor) -> int | None:
    """The axis of the samples that a recurrent layer, an attention or a convolution shows; None where none does."""
    for layer in module.modules():
        first = getattr(layer, "batch_first", None)
        if isinstance(first, bool):
            return 1 if not first and tensor.dim() > 1 else 0
        if isinstance(layer, nn.modules.conv._ConvNd):
            return 0
    return None
