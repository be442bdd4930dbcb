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
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from gradproof.shadow.locations import Location, stated
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.record.checksums import plain
from gradproof.shadow.whole.clock import TimeLimit
from gradproof.shadow.whole.engine import Engine
from gradproof.shadow.whole.interpreter import within
from gradproof.shadow.whole.memory import Meetings, geometry_of, weakly
from gradproof.shadow.whole.rows import COPIED, MOST, Place, Rows
from gradproof.shadow.whole.terms import Shape, Terms, exact
from gradproof.shadow.whole.unseen import call_site, digest
from gradproof.shadow.whole.values import Value

MICRO = 1 << 20
"""Samples are numbered by micro-batch: `MICRO` times its number, plus the row."""
AHEAD = 1 << 30
"""From this number on micro-batches are rows, one each, that no other has taken yet."""
UNITS = 32
"""A micro-batch of more rows is followed in this many blocks of rows, where it has as many."""


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
            self.late = self.late or Late(str(error), self.passed(), self.location())
            self.close()
            return {}
        except Exception as error:
            self._leave(stated(error))
            return {}

    return call


class Late(NamedTuple):
    """The time limit passed: why, in which window, and where."""

    reason: str
    window: int
    location: Location | None


class Samples(Engine):  # type: ignore[no-untyped-call]
    """An engine that names the samples of a real run, and leaves the user's script alone where it fails.

    `fetch`: the number of the present micro-batch; `begun`: a forward pass took it; `taking`: something was computed
    with it; `ran`: a backward pass has ended since, or a data loader was read. `trained_on`: anything was.
    """

    def __init__(self) -> None:
        super().__init__(Terms(), MICRO, 0)
        self.awake = self.closed = self.begun = self.ran = self.by_pass = False
        self.trained_on = self.taking = False
        self.fetch = 0
        self.used: dict[int, Location] = {}
        self.rows: dict[int, int | None] = {}
        self.fetched: dict[int, tuple[Any, int, tuple[int, ...]]] = {}
        self.turns: Counter[tuple[int, str]] = Counter()
        self.marked = set[int]()  # by a forward pass
        self.given = dict[int, tuple[Any, Location]]()  # by a data loader with gradients on: its iteration, and where
        self.meetings = Meetings()
        self.modes: dict[int, bool] = {}  # whether a forward pass in training mode took a micro-batch
        self.training = True
        self.late: Late | None = None
        self.passed: Callable[[], int] = lambda: len(self.facts.updates)
        """Takes note of the time limit, and gives the number of the window in which it passed."""
        self._last = (-1, 0)
        self.places, self._ahead = Rows(), dict[Place, int]()
        self._since: list[tuple[torch.Tensor, str, list[Place]]] = []
        self._copies: list[tuple[torch.Tensor, Value]] = []  # of what was read since the last micro-batch began
        self._before_training: dict[int, Any] = {}
        self._ratios = dict[str, float]()
        self._taken, self._first_ahead = 0, 1 << 62
        self._sites: dict[tuple[int, Any], tuple[Any, str, bool]] = {}

    def _leave(self, why: str) -> None:
        """Follow nothing more, and prove nothing."""
        self.lose(why)
        self.close()

    def close(self) -> None:
        """Nothing more is followed."""
        self.closed = True
        self.seen.clear()

    def _carried(self, tensors: list[torch.Tensor], out: list[torch.Tensor]) -> None:
        """What is made of fetched data belongs to the same fetch."""
        sources = [t for t in tensors if self._fetch_of(t) is not None]
        for made in out if sources else ():
            storage, (_, number, row) = made.untyped_storage(), self.fetched[sources[-1].untyped_storage()._cdata]
            self.fetched.setdefault(storage._cdata, (weakly(storage), number, row))

    @guarded
    def _copied(self, spec: Spec, args: Any, kwargs: Any, out: Any) -> None:
        """What an operator made of data has the same rows, where it copies them; what it wrote over has not."""
        for target in spec.targets(args, kwargs) if spec.written else ():
            self.places.written(target)
            number = target.untyped_storage()._cdata
            self._ahead = {place: owner for place, owner in self._ahead.items() if place[0] != number}
        given = tensors_in((args, kwargs))
        rows = spec.short in COPIED and not spec.written and not spec.named("dim", args, kwargs)
        data = (not self.seen.reach(t) and (not self.knows(t) or self.memory.of(t).data) for t in given)
        if rows and plain(out) and all(map(plain, given)) and all(data):
            self.places.copy(given, out)
            if any(map(self._just_read, given)) and (value := self.memory.read(out)) is not None:
                self._copies.append((out, value))

    def _fetch_of(self, tensor: torch.Tensor) -> int | None:
        found = self.fetched.get(tensor.untyped_storage()._cdata)
        return None if found is None or found[0].expired() else found[1]

    def _data(self, tensor: torch.Tensor) -> Value:
        """What is met now: a number, rows of samples, or a table."""
        plain, number = self._number(tensor), self._fetch_of(tensor)
        if plain is not None:
            return plain
        if number is None and self._reads_ahead(tensor):
            return self._read_ahead(tensor)
        made = self.source(tensor, within(tensor))  # rows of samples, or of a table, that a micro-batch meets
        fetch = self.fetch if number is None else number
        self.meetings.data(tensor, made, len(self.facts.updates), fetch, self.location())
        return made

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
        if plain is not None and not powers and (tensor.is_floating_point() or given):
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
                if held.data and number not in self.fetched:
                    held.views.clear()
        return self.fetch

    def source(self, tensor: torch.Tensor, within: tuple[Any, Any]) -> Value:
        """Data: rows of samples along one of the first two axes; a table where neither has as many rows.

        Labels that were flattened, and batches that were put together, have several rows a sample. Where a batch was
        made fewer rows, as of pairs, each of them is a sample.
        """
        shape, given = tuple(tensor.shape), self._fetch_of(tensor)
        number = self.opened() if given is None else given
        if given is None:
            self._meets(shape)
        if number not in self.rows:
            self.rows[number] = shape[0] if shape else None
        if given is None:
            self._begins(number)
        rows = self.rows[number]
        axis = next((i for i in range(min(2, len(shape))) if shape[i] == rows), None)
        labels = len(shape) == 1 and not tensor.is_floating_point()
        if axis is None and rows and labels and shape[0] % rows == 0:
            axis = 0
        row = None if given is None else self.fetched[tensor.untyped_storage()._cdata][2]
        part = bool(shape) and shape[0] != rows and shape[1:] == row
        if given is not None and rows and axis in (None, 0) and len(shape) > 1 and not (part and shape[0] < rows):
            axis = self._put_together(shape[0], rows)
        whole = given is not None and axis is not None and shape[axis] >= (rows or 0)
        if part:
            axis, whole = 0, False  # a part of a batch, as where a script cuts it into micro-batches
        if axis is None and rows is not None:
            return self.leaf("constant", (digest(tensor),), shape)
        slot, gradients = self._first_met(tensor)
        count = blocks(min(rows, shape[axis])) if axis is not None and rows is not None else 1
        size = shape if axis is None else (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
        first = self.turns[number, slot]
        self.turns[number, slot] += 1 if whole else count
        if whole:
            slot, first = f"{slot} {first}", 0
        self.by_pass |= number not in self.marked
        owners = range(number * MICRO + first, number * MICRO + first + count)
        if axis == 0:
            self._met(tensor, owners)
        for owner in owners if torch.is_grad_enabled() else ():
            self.used.setdefault(owner, self.location())
        names = [(slot, gradients, str(tensor.dtype), owner, within) for owner in owners]
        return self.data(names, owners[0], size, axis)

    def _put_together(self, count: int, rows: int) -> int | None:
        """The first axis, where a batch was made more or fewer rows, by one number at each line; None elsewhere."""
        if count < min(2, rows) or (count % rows and rows % count):
            return None
        if self._ratios.setdefault(call_site(), count / rows) != count / rows:
            self.lose("batches are put together, or taken apart, by numbers that differ")
        return 0

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
        number = self._fetch_of(first)
        if number is None:
            number = self.opened()
            begun = self.begun or (number in self.marked and self.rows[number] not in (None, first.shape[0]))
            if begun and not any(map(self._of_present, given)):  # else a decoder, a loss, or a metric
                number = self.fetch = self.fetch + 1
        self.begun = self.begun or weighs
        single = first.is_floating_point() and first.dim() == 1
        self.marked.add(number)
        self.modes[number] = self.training or self.modes.get(number, False)
        self.rows.setdefault(number, None if single else first.shape[0])
        self.trained_on = self.taking = True
        self._begins(number)
        self.facts.operators += 1
        for tensor in given:
            self.value(tensor)

    def _of_present(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made of samples of the present micro-batch."""
        value = self.memory.read(tensor) if self.knows(tensor) and not self.memory.of(tensor).data else None
        made = self.terms.samples(term for part in value.parts for term in part) if value is not None else ()
        return any(sample // MICRO == self.fetch for sample in made)

    @guarded
    def took(self, batch: Any, of: Any = None) -> None:
        """A data loader gave a batch. Plain numbers and arrays in it may be made of its data, by a worker."""
        if not self.closed and any(isinstance(one, int | float | numpy.ndarray) for one in tree_leaves(batch)):
            self.facts.reads.append((self.location(), "a data loader"))
        tensors = [t for t in tensors_in(batch) if plain(t) and t.dim()]
        if not tensors or self.closed:
            return
        if not self.trained_on and any(map(self.knows, tensors)):
            self._begin_anew()
        self.ran = True
        number = self.opened()
        self.marked.add(number)
        if torch.is_grad_enabled():
            self.given[number] = of, self.location()
        self.rows[number] = tensors[0].shape[0]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self.fetched[storage._cdata] = (weakly(storage), number, tuple(tensor.shape[1:]))

    # Rows that are read ahead

    def _reads_ahead(self, tensor: torch.Tensor) -> bool:
        """Whether integers are met before the forward pass of a micro-batch: it may be that of another one."""
        self.opened()
        return not (self.taking or tensor.is_floating_point() or not tensor.dim() or not tensor.numel())

    def _read_ahead(self, tensor: torch.Tensor) -> Value:
        """A line reads a tensor of integers: each row of it is a sample."""
        if tensor.shape[0] > MOST:
            return self.leaf("constant", (digest(tensor),), tuple(tensor.shape))
        site, places, turns = self._first_met(tensor)[0], self.places.places(tensor), Counter[Place]()
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
        self.forget_rows()

    def forget_rows(self) -> None:
        """Nothing is known of rows that were read, or copied."""
        self.places = Rows()
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
        rows, by_site = self.rows.get(number) or 0, dict[str, dict[Place, int]]()
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
        first, each = number * MICRO, rows // blocks(rows)
        self._are({place: first + at // each for own in by_site.values() for place, at in own.items()})
        for tensor, _, _ in since:
            value = self.memory.read(tensor)
            if value is not None:
                steps, line = len(self.facts.updates), self.location()
                self.meetings.data(tensor, value, steps, number, line, True)

    def _met(self, tensor: torch.Tensor, owners: range) -> None:
        """A micro-batch takes a tensor: the rows of it that were read ahead are its samples."""
        size, found = tensor.shape[0] // len(owners), dict[Place, set[int]]()
        for at, place in enumerate(self.places.places(tensor) if tensor.stride(0) else ()):
            found.setdefault(place, set()).add(owners[at // size])
        taken = dict[Place, int]()
        for storage, by, number in self._ahead:
            same = ((storage, step, by * number // step) for step in {step for _, step, _ in found})
            of = set[int]().union(*(found.get(place, ()) for place in same))
            if len(of) == 1:
                taken[storage, by, number] = of.pop()
        self._are(taken)

    def _are(self, found: dict[Place, int]) -> None:
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
