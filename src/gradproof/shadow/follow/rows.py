"""Rows of data: what gave each, by the movements that it went through.

Data are only moved until they meet a parameter, and operators on them are not followed. What is kept of a movement is
the movement itself: to learn where the rows of a tensor come from, the same operators run once more, on numbers of the
rows of what they began with. So a roll, an index, or a broadcast needs no law here: the operator is its own.

What a data loader gave begins there: row j is sample j. Elsewhere a micro-batch begins at the first tensor on the way
from its source that was taken from a larger one, as a slice of a table, and of which every row is used. What is done
before is preparation of data, and says nothing of a micro-batch; what is done after has to keep its rows apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.memory import Geometry, dense, geometry_of, weakly
from gradproof.shadow.follow.terms import Shape
from gradproof.shadow.locations import Location
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.tape.checksums import BITS, plain

MOST = 512
"""So many rows are followed one by one; a tensor of more is a table."""
LARGE = 1 << 24
"""What a movement makes of more elements is new data, as if it had been read."""
DEEP, MANY = 48, 4096
"""So many movements are followed one after the other, and so many tensors of one storage."""
NOWHERE, MIXED = -1, -2
"""An element of no row that is known, and one of several."""
SHAPED = frozenset({"view", "_unsafe_view", "_reshape_alias", "reshape"})
SAME = frozenset({"clone", "_to_copy", "contiguous", "_pin_memory", "lift_fresh", "detach", "alias", "masked_fill"})
"""Operators that keep each element in its place, if they write numbers into some."""
MOVED_ARGUMENTS = {"where": (1, 2), "index_put": (0, 2), "_index_put_impl": (0, 2)}
"""Which arguments of a movement are moved, where it is not the first alone."""
MOVEMENTS = SAME | frozenset({
    "roll", "flip", "rot90", "cat", "stack", "index", "index_select", "gather", "take", "repeat", "where",
    "masked_select", "constant_pad_nd", "index_put", "_index_put_impl", "repeat_interleave", "tril",
    "triu", "copy", "_reshape_copy", "reshape", "_unsafe_view",
})  # fmt: skip
BLANK = frozenset({
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
    "empty", "empty_like", "new_empty", "empty_strided",
})  # fmt: skip
"""Operators whose results hold one number, whatever the data are, or nothing yet."""
Call = tuple[Any, Any, Any]
"""An operator, its arguments, and those by name, with a `Movement` for each tensor that it moves."""
Seeds = Callable[["Movement"], torch.Tensor | None]


@dataclass(eq=False, slots=True)
class Movement:
    """A tensor of data, and the movement that made it: an operator, with nodes in the place of tensors.

    `taken`: the axis along which its rows were taken out of a larger tensor, or joined one by one; `chosen`: it is one
    of the first axis of a larger tensor. `joined`: it is several, one after the other; `stacked`: one beside the other.
    `fetch`: the number of the batch of a data loader that it is; `fetches`: those that it is made of. `first`: where
    its first element lies, in bytes, for a tensor that no movement made. `outside`: the line where code outside of
    torch made its rows. `view`: it is a part of another tensor. `used`: something that is no movement met it.
    """

    shape: Shape
    parents: tuple[Movement, ...] = ()
    call: Call | None = None
    item: int | None = None
    taken: int | None = None
    chosen: bool = False
    joined: bool = False
    stacked: bool = False
    blank: bool = False
    fetch: int | None = None
    fetches: frozenset[int] = frozenset()
    chooser: Movement | None = None
    first: int = 0
    steps: Shape = ()
    depth: int = 0
    view: bool = False
    outside: Location | None = None
    used: bool = False

    def rows(self, axis: int, first: int = 0, each: int = 1) -> torch.Tensor:
        """The number of its row along an axis, for each element."""
        return along(first + torch.arange(self.shape[axis]) // each, axis, len(self.shape)).expand(self.shape)

    def places(self) -> torch.Tensor:
        """Where each element lies, in bytes of all memory that was seen, for a tensor that no movement made."""
        found = torch.tensor(self.first if self.steps else NOWHERE)
        if len(self.steps) != len(self.shape):  # of no place, as what holds one number
            return found.expand(self.shape)
        for at, (size, by) in enumerate(zip(self.shape, self.steps, strict=True)):
            found = found + along(torch.arange(size) * by, at, len(self.shape))
        return found.expand(self.shape)


@dataclass(slots=True)
class Storage:
    """What is known of a storage: its tensors, by geometry, the one that was made with it, and its first byte."""

    weak: Any
    base: int
    nodes: dict[tuple[Geometry, int], Movement] = field(default_factory=dict)
    home: tuple[Geometry, int, Movement] | None = None
    blank: bool = False
    fetch: int | None = None
    outside: Location | None = None


class Rows:
    """Where the rows of tensors of data come from."""

    def __init__(self) -> None:
        self._storages: dict[int, Storage] = {}
        self._bytes = 0

    # What is seen

    def node(self, tensor: torch.Tensor) -> Movement:
        """What is known of a tensor."""
        held, geometry, width = self._storage(tensor), geometry_of(tensor), tensor.element_size()
        found = held.nodes.get((geometry, width))
        if found is None:
            found = self._part(held, geometry, width)
            if len(held.nodes) > MANY:
                held.nodes.clear()
            held.nodes[geometry, width] = found
        return found

    def _storage(self, tensor: torch.Tensor) -> Storage:
        storage = tensor.untyped_storage()
        held = self._storages.get(storage._cdata)
        if held is None or held.weak.expired():
            if len(self._storages) > MANY:
                self._storages = {n: one for n, one in self._storages.items() if not one.weak.expired()}
            held = self._storages[storage._cdata] = Storage(weakly(storage), self._place(storage.nbytes()))
        return held

    def _place(self, size: int) -> int:
        self._bytes += size + 8
        return self._bytes - size

    def _part(self, held: Storage, geometry: Geometry, width: int) -> Movement:
        """A tensor that no operator made that was seen: a part of another one, or data."""
        start, shape, stride = geometry
        if held.home is not None and held.home[1] == width:
            (begin, size, steps), _, home = held.home
            if dense(size, steps) and list(steps) == sorted(steps, reverse=True) and start >= begin:
                call: Call = (_strided, (home, shape, stride, start - begin), {})
                return Movement(shape, (home,), call, fetches=home.fetches, depth=home.depth + 1)
        steps = tuple(by * width for by in stride)
        fetches = frozenset() if held.fetch is None else frozenset({held.fetch})
        made = Movement(shape, first=held.base + start * width, steps=steps, blank=held.blank, fetches=fetches)
        made.outside = held.outside if shape[:1] > (1,) else None
        return made

    def _put(self, tensor: torch.Tensor, node: Movement, own: bool) -> None:
        """What made a tensor. `own`: its storage as well."""
        held, geometry, width = self._storage(tensor), geometry_of(tensor), tensor.element_size()
        if own:
            held.nodes.clear()
            held.home, held.blank = (geometry, width, node), node.blank
        if len(held.nodes) > MANY:
            held.nodes.clear()
        held.nodes[geometry, width] = node

    def moved(self, func: Any, spec: Spec, args: Any, kwargs: Any, out: Any) -> None:
        """An operator on data ran: what it made of what."""
        base, made = spec.function, out if isinstance(out, list | tuple) else [out]
        made = [one for one in made if isinstance(one, torch.Tensor)]
        if not made or not all(map(plain, made)):
            return
        if spec.written:
            self._wrote(func, spec, args, kwargs)
        elif base in BLANK:
            self._put(made[0], Movement(tuple(made[0].shape), blank=True), True)
        elif (spec.view and base != "as_strided") or base in MOVEMENTS:
            view = made[0].untyped_storage()._cdata == tensors_in(args)[0].untyped_storage()._cdata
            if base == "masked_fill" and made[0].shape != args[0].shape:
                return
            if view and geometry_of(made[0]) == geometry_of(args[0]) and len(made) == 1:
                return
            call, parents = self._moved(func, spec, args, kwargs)
            for at, one in enumerate(made):
                node = Movement(tuple(one.shape), parents, call, at if isinstance(out, list | tuple) else None)
                self._known(node, base, args, parents)
                node.view = view
                if not view and one.numel() > LARGE and not node.fetches and base not in SAME:
                    continue
                if node.depth <= DEEP:
                    self._put(one, node, not view)

    def same(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        """A tensor is a copy of another one."""
        node = self.node(tensor)
        call: Call = (None, (node,), {})
        self._put(made, Movement(node.shape, (node,), call, fetches=node.fetches, depth=node.depth + 1), True)

    def _moved(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> tuple[Call, tuple[Movement, ...]]:
        """An operator, with nodes in the place of the tensors that it moves, and copies of the others."""
        base, parents = spec.function, list[Movement]()
        if base in SAME:
            node = self.node(args[0])
            return (None, (node,), {}), (node,)
        positions = (0,) if spec.view else MOVED_ARGUMENTS.get(base, (0,))

        def own(arg: Any, moves: bool) -> Any:
            if isinstance(arg, list | tuple):
                return [own(one, moves) for one in arg]
            if not isinstance(arg, torch.Tensor):
                return arg
            if not moves:
                return arg.detach().clone()
            parents.append(self.node(arg))
            return parents[-1]

        if base in SHAPED:
            func = torch.reshape
        given = [own(arg, at in positions) for at, arg in enumerate(args)]
        if base == "constant_pad_nd":
            given[2:] = [NOWHERE]
        given = given[:2] if base in SHAPED else given
        return (func, tuple(given), {k: v for k, v in kwargs.items() if k == "dim"}), tuple(parents)

    def _known(self, node: Movement, base: str, args: Any, parents: tuple[Movement, ...]) -> None:
        """How the rows of what was made were taken, and which batches it is made of."""
        node.fetches = frozenset[int]().union(*(one.fetches for one in parents))
        node.depth = 1 + max(one.depth for one in parents)
        node.blank = all(one.blank for one in parents)
        node.joined = base == "cat" or any(one.joined for one in parents)
        node.stacked = base == "stack"
        dim = next((arg for arg in args[1:2] if isinstance(arg, int)), 0)
        before = parents[0].shape
        if base in ("slice", "narrow", "index_select", "stack", "cat"):
            node.taken = dim % max(len(node.shape), 1)
        if base in ("split", "split_with_sizes", "chunk"):
            node.taken = next((arg for arg in args[2:3] if isinstance(arg, int)), 0) % len(before)
        if base in ("slice", "narrow", "split", "split_with_sizes", "chunk") and node.taken is not None:
            node.taken = node.taken if node.shape[node.taken] < before[node.taken] else None
        if base == "stack":
            node.taken = node.taken if len({id(one.parents[0]) if one.parents else 0 for one in parents}) == 1 else None
        if base == "cat":
            single = all(one.shape and one.shape[dim] == 1 for one in parents) and len(parents) > 1
            node.taken = node.taken if single else None
        if base == "index":
            used = [(at, one) for at, one in enumerate(args[1]) if one is not None]
            node.taken = used[0][0] if len(used) == 1 and used[0][1].dim() == 1 else None
            node.chosen = all(one.dim() == 0 for _, one in used)
            if len(used) == 1 and used[0][1].dtype not in (torch.bool, torch.uint8):
                self._chosen_by(node, used[0][1])
        if base in ("index_select", "gather"):
            self._chosen_by(node, args[2])
        node.chosen |= base in ("select", "unbind")

    def _chosen_by(self, node: Movement, index: torch.Tensor) -> None:
        chooser = self.node(index)
        if chooser.fetches:
            node.chooser, node.fetches = chooser, node.fetches | chooser.fetches

    def _wrote(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> None:
        """Data were written over: a copy, a movement into them, or numbers of no row."""
        target, base = spec.targets(args, kwargs)[0], spec.function
        before, held, given = self.node(target), self._storage(target), tensors_in(args)[1:]
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        found = None
        if base == "copy" and given and given[0].shape == target.shape:
            node = self.node(given[0])
            found = Movement(before.shape, (node,), (None, (node,), {}), fetches=node.fetches, depth=node.depth + 1)
        home = held.home
        blank = base in ("fill", "zero") and whole
        self.written(target)
        held.blank = blank
        if found is not None and found.depth <= DEEP:
            if whole:
                self._put(target, found, True)
            elif home is not None or not held.nodes:
                self._written(target, home[2] if home is not None else None, found)

    def _written(self, target: torch.Tensor, home: Movement | None, found: Movement) -> None:
        """A part of a storage is a copy now: the tensor of all of it is put together anew."""
        held, width = self._storage(target), target.element_size()
        size = (target.untyped_storage().nbytes() // width,)
        whole = home if home is not None and home.shape == size else Movement(size, first=held.base, steps=(width,))
        parents, fetches = (whole, found.parents[0]), whole.fetches | found.fetches
        call: Call = (_inserted, (*parents, geometry_of(target)), {})
        node = Movement(size, parents, call, fetches=fetches, depth=1 + max(one.depth for one in parents))
        if node.depth <= DEEP:
            held.nodes.clear()
            held.home = (0, size, (1,)), width, node

    def written(self, tensor: torch.Tensor) -> None:
        """A storage may hold other numbers now: what it was made of stays where it is, and is another one."""
        held = self._storage(tensor)
        held.base, held.blank = self._place(tensor.untyped_storage().nbytes()), False

        def again(node: Movement) -> Movement:
            first = self._place(torch.Size(node.shape).numel())
            parents = node.parents if node.first and node.parents else (node,)  # it was written over already
            call: Call = (None, parents, {})
            return Movement(node.shape, parents, call, fetches=node.fetches, depth=1 + parents[0].depth, first=first)

        kept = {at: one for at, one in held.nodes.items() if one.parents or one.fetch is not None}
        held.nodes = {at: again(one) for at, one in kept.items() if one.depth < DEEP}
        if held.home is not None:
            geometry, width, node = held.home
            known = (node.parents or node.fetch is not None) and node.depth < DEEP
            held.home = (geometry, width, held.nodes.get((geometry, width)) or again(node)) if known else None

    def comes(self, tensor: torch.Tensor, line: Location) -> None:
        """Code outside of torch, as NumPy, made the rows of a tensor."""
        self._storage(tensor).outside = line

    def made_outside(self, node: Movement) -> Location | None:
        """The line where code outside of torch made the rows of a micro-batch, all at once; else None.

        Rows that were taken from a larger tensor, or put together one by one, are known by it.
        """
        stack = [node]
        while stack:
            one = stack.pop()
            if one.outside is not None:
                return one.outside
            stack += [] if one.taken is not None or one.chosen or one.stacked else one.parents
        return None

    def gives(self, tensor: torch.Tensor, number: int) -> None:
        """A data loader gave a tensor: its rows are the samples of a micro-batch."""
        held = self._storage(tensor)
        node = Movement(tuple(tensor.shape), fetch=number, fetches=frozenset({number}))
        node.first, node.steps = held.base, tuple(by * tensor.element_size() for by in tensor.stride())
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        if whole:
            held.nodes.clear()
            held.home, held.fetch = (geometry_of(tensor), tensor.element_size(), node), number
        held.nodes[geometry_of(tensor), tensor.element_size()] = node

    def loaded(self, number: int) -> bool:
        """Whether a storage holds what a data loader gave."""
        held = self._storages.get(number)
        return held is not None and held.home is not None and bool(held.home[2].fetches)

    def forget(self) -> None:
        """Nothing is known of what was moved before, but for what data loaders gave."""
        self._storages = {number: one for number, one in self._storages.items() if self.loaded(number)}

    # What is asked

    def of(self, node: Movement, seeds: Seeds) -> torch.Tensor:
        """For each element a number of what it is made of: what `seeds` gives for some of the nodes it comes from."""
        with torch.no_grad(), _disable_current_modes():
            return _replayed(node, seeds, {})

    def of_batches(self, node: Movement, batch: Callable[[int], tuple[int, int, int, int]]) -> torch.Tensor:
        """The sample of each element, by the batches of data loaders.

        `batch`: the first sample of one, its rows, how many of them are one sample, and along which axis they lie.
        """

        def own(one: Movement) -> torch.Tensor | None:
            if one.fetch is None or not one.shape:
                return None
            first, rows, each, axis = batch(one.fetch)
            axis = axis_of(one.shape, axis, rows)
            several, rest = divmod(one.shape[axis], rows)
            return one.rows(axis, first, each * several) if several and not rest else None

        return self.of(node, own)

    def begins(self, node: Movement, rows: int | None, axis: int = 0) -> torch.Tensor | None:
        """The row of each element in the micro-batch; None where nothing shows where a micro-batch begins.

        `rows`: how many the micro-batch has, where it is known, and along which axis of data they were shown to lie.
        """
        with torch.no_grad(), _disable_current_modes():
            found = torch.full(node.shape, NOWHERE)
            for whole in (True, False):
                for one in _above(node):
                    at = self._axis(one, rows, axis)
                    if at is None or (not whole and len(one.shape) < 2):
                        continue
                    made = _replayed(node, {one: one.rows(at)}.get, {})
                    hits = torch.unique(made[made >= 0]).numel()
                    enough = hits == one.shape[at] or (rows is not None and hits > 1)
                    if whole and enough and bool((made >= 0).all()):
                        return made
                    if not whole and enough:
                        found = torch.where((found == NOWHERE) & (made >= 0), made, found)
            return found if bool((found >= 0).any()) else None

    @staticmethod
    def _axis(node: Movement, rows: int | None, axis: int) -> int | None:
        """The axis of a node along which its rows may be those of a micro-batch."""
        if axis and len(node.shape) > axis and node.shape[axis] == rows:
            return axis
        at = 0 if node.chosen and rows is not None and node.shape[:1] == (rows,) else node.taken
        return at if at is not None and rows in (None, node.shape[at]) else None

    def chosen(self, node: Movement) -> bool:
        """Whether a tensor is one of the first axis of a larger one, with nothing taken along another axis since."""
        return any(one.chosen for one in _above(node))

    def ids(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where each element lay first, in bytes of all memory that was seen."""
        return self.of(self.node(tensor), _place_of)

    def spans(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """The least and the largest place of each row along the first axis."""
        if not tensor.numel():
            return [(NOWHERE, NOWHERE)] * tensor.shape[0]
        found = self.ids(tensor).reshape(tensor.shape[0], -1)
        least = torch.where(found < 0, 1 << 62, found).amin(1)
        return [*zip(least.tolist(), found.amax(1).tolist(), strict=True)]

    def named(self, tensor: torch.Tensor, ids: torch.Tensor, axis: int) -> list[int]:
        """A name for each row along an axis: equal for rows that hold the same, of the same places (`ids`)."""
        with torch.no_grad(), _disable_current_modes():
            return _hashed(ids, axis).add_(digests(tensor, axis)).tolist()

    @staticmethod
    def home(node: Movement) -> Movement:
        """The tensor, no part of another one, that a part was taken out of."""
        node = node.parents[0] if node.parents else node
        while node.view and node.parents:
            node = node.parents[0]
        return node

    def uses(self, tensor: torch.Tensor) -> None:
        """Something met a tensor: what it was taken from is used."""
        for one in _above(self.node(tensor)):
            one.used = True

    def tables(self, tensor: torch.Tensor) -> dict[int, Movement]:
        """What a tensor was taken from, by its first byte."""
        return {one.first: one for one in _above(self.node(tensor)) if not one.parents and not one.blank}

    def table(self, tensor: torch.Tensor, axis: int) -> tuple[Movement, int]:
        """The tensor, no part of another one, that the rows of a micro-batch were taken from, and how many it has."""
        node = self.node(tensor)
        while node.taken is None and not node.chosen and node.parents:
            node = node.parents[0]
        node = self.home(node)
        row = tensor.numel() // max(1, tensor.shape[axis])
        size = torch.Size(node.shape).numel()
        return node, size // row if row and size % row == 0 else 0

    def lie(self, ids: torch.Tensor, axis: int, tables: Mapping[int, Movement]) -> tuple[int, list[Fraction]]:
        """Where in its one table each row along an axis begins, as a part of it, and the rows of that table.

        Nothing where it was taken from several, or a row has no place.
        """
        least = ids.movedim(axis, 0).reshape(ids.shape[axis], -1).amin(1).tolist()
        for first, table in tables.items():
            whole = table.shape[0] * table.steps[0] if table.steps else 0
            if whole and first <= min(least) and max(least) < first + whole:
                return table.shape[0], [Fraction(place - first, whole) for place in least]
        return 0, []


def axis_of(shape: Sequence[int], shown: int, rows: int) -> int:
    """The axis of a tensor of a batch along which its rows lie: the one that was shown, where it has as many."""
    return shown if tuple(shape[shown : shown + 1]) == (rows,) else 0


def along(numbers: torch.Tensor, axis: int, dims: int) -> torch.Tensor:
    """Numbers that lie along one axis of a tensor of so many: its other axes are broadcast."""
    return numbers.view([-1 if at == axis else 1 for at in range(dims)])


def apart(own: torch.Tensor) -> tuple[int | None, list[int]]:
    """The axis along which the elements of each row belong to one sample, and the sample of each row."""
    if bool((own == MIXED).any()):
        return None, []
    many, found = 1 << 62, list[tuple[int, int, list[int]]]()
    for axis in range(own.dim()):
        rows = own.movedim(axis, 0).reshape(own.shape[axis], -1)
        least, most = torch.where(rows < 0, many, rows).amin(1), rows.amax(1)
        if bool(((least == most) | (most < 0)).all()):
            found.append((axis, own.shape[axis], most.tolist()))
    fits = [(len({*owners}) == size, len({*owners}) > 1, -axis) for axis, size, owners in found]
    best = found[fits.index(max(fits))] if found else None
    return (None, []) if best is None else (best[0], best[2])


def in_parts(owners: Sequence[int], joined: bool) -> tuple[list[int], int, int]:
    """The samples of some rows, in order, each once where they take turns; the rows of each, and the turns.

    `joined`: they are one tensor after the other.
    """
    each = math.gcd(*(len([*run]) for _, run in itertools.groupby(owners)))
    single = [*owners[::each]]
    once = [*dict.fromkeys(single)]
    turns, rest = divmod(len(single), len(once))
    if not rest and single == once * turns and not (joined and turns > 1):
        return once, each * turns, turns
    return single, each, 1


def digests(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """What each row of a tensor along an axis holds, as a number."""
    with torch.no_grad(), _disable_current_modes():
        held = tensor.detach().resolve_conj().resolve_neg()
        held = torch.view_as_real(held) if held.is_complex() else held
        return _hashed(held.contiguous().view(BITS[held.element_size()]).cpu(), axis)


def _hashed(numbers: torch.Tensor, axis: int) -> torch.Tensor:
    rows = numbers.movedim(axis, 0).reshape(numbers.shape[axis], -1).to(torch.int64)
    mixed = rows * -7046029254386353131
    mixed = (mixed ^ (mixed >> 29)) * (2 * torch.arange(rows.shape[1]) + 1)
    return mixed.sum(1)


def _place_of(node: Movement) -> torch.Tensor | None:
    if not node.parents:
        return node.places()
    if node.call is not None and node.call[0] is None and node.first:  # it was written over
        return node.first + torch.arange(torch.Size(node.shape).numel()).view(node.shape)
    return None


def _above(node: Movement) -> list[Movement]:
    """What a node was made of, and the node: the first comes first."""
    found, stack, done = list[Movement](), [(node, False)], set[int]()
    while stack:
        one, ready = stack.pop()
        if ready:
            found.append(one)
        elif id(one) not in done:
            done.add(id(one))
            stack += [(one, True), *((parent, False) for parent in one.parents)]
    return found


def _strided(whole: torch.Tensor, shape: Shape, stride: Shape, start: int) -> torch.Tensor:
    return whole.contiguous().as_strided(shape, stride, start)


def _inserted(whole: torch.Tensor, part: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    start, shape, stride = geometry
    made = whole.clone()
    made.as_strided(shape, stride, start).copy_(part)
    return made


def _replayed(node: Movement, seeds: Seeds, done: dict[int, Any]) -> torch.Tensor:
    """Run the movements that made a node on numbers."""
    found = done.get(id(node))
    if found is None:
        found = done[id(node)] = _of_node(node, seeds, done)
    return found


def _of_node(node: Movement, seeds: Seeds, done: dict[int, Any]) -> torch.Tensor:
    seed = seeds(node)
    if seed is not None:
        return seed
    if node.call is None:
        return torch.tensor(NOWHERE).expand(node.shape)
    func, args, kwargs = node.call
    if func is None:
        found = _replayed(node.parents[0], seeds, done)
    elif node.item is None:
        found = func(*_filled(args, seeds, done), **kwargs)
    else:
        made = done.get(id(node.call))
        made = done[id(node.call)] = func(*_filled(args, seeds, done), **kwargs) if made is None else made
        found = made[node.item]
    if node.chooser is None:
        return found
    chosen = _replayed(node.chooser, seeds, done)
    if chosen.dim() == 1:
        chosen = along(chosen, node.taken or 0, found.dim())
    elif chosen.shape != found.shape:
        chosen = chosen.view([*chosen.shape, *[1] * (found.dim() - chosen.dim())])
    both = torch.where((found >= 0) & (chosen >= 0) & (found != chosen), torch.tensor(MIXED), found)
    return torch.where((found < 0) & (chosen >= 0), chosen, both)


def _filled(args: Any, seeds: Seeds, done: dict[int, Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, Movement):
            yield _replayed(arg, seeds, done)
        elif isinstance(arg, list):
            yield [*_filled(arg, seeds, done)]
        else:
            yield arg.cpu() if isinstance(arg, torch.Tensor) else arg


def moves(spec: Spec, given: Iterable[torch.Tensor]) -> bool:
    """Whether an operator moves data, or writes over them."""
    return (spec.view or spec.function in MOVEMENTS or spec.function in BLANK or bool(spec.written)) and not any(
        one.requires_grad for one in given
    )
