"""What storages hold: regions of elements that were written last, and the values of views since then.

A write to a part of a storage leaves the rest. A tensor that is no block of its storage, read after a write through
another tensor, is lost: `read` gives None, and whoever reads it says so.

Writes may be no operators. A tensor whose memory somebody else can reach is compared whole, by checksum. What writes
into any other asked nobody for its memory, as a kernel of an extension does: of it at most SAMPLED elements are
compared.
"""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.terms import NOBODY, Shape
from gradproof.shadow.follow.values import NOUGHT, Algebra, Value, shape_with, shared
from gradproof.shadow.tape.checksums import BITS, checksum, same

Geometry = tuple[int, Shape, Shape]
"""Offset, sizes and strides of a tensor in its storage, in elements."""

MOVED = frozenset({
    "view", "reshape", "_unsafe_view", "_reshape_alias", "slice", "select", "narrow", "stack", "cat", "index",
    "index_select", "unbind", "split", "split_with_sizes", "chunk", "clone", "_to_copy", "to", "copy_", "lift_fresh",
    "alias", "detach", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand", "flip", "roll", "constant_pad_nd",
    "gather", "contiguous", "_pin_memory", "new_full", "new_zeros", "new_empty", "zeros_like", "ones_like", "full_like",
    "empty_like", "pin_memory", "fill_", "zero_", "as_strided",
})  # fmt: skip
"""Operators that only move data. In a real run data that no other operator met are not followed yet."""


SAMPLED = 1024


@dataclass(slots=True)
class Region:
    """The elements of a storage from `start` on hold a value of a dense tensor with these sizes and strides."""

    start: int
    shape: Shape
    stride: Shape
    value: Value

    @property
    def stop(self) -> int:
        """The first element after them."""
        return self.start + prod(self.shape)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a view with gaps lies in a region.

    The elements of the region, as they lie in memory, are a tensor of `sizes`; the view is `counts` rows of each of its
    axes, from `first` on, every `jumps`-th.
    """

    sizes: Shape
    first: Shape
    counts: Shape
    jumps: Shape


@dataclass(slots=True)
class Held:
    """One storage. `views` are the values of its tensors since the last write; `data`: no operator has written it."""

    weak: Any
    width: int
    regions: list[Region] = field(default_factory=list)
    views: dict[Geometry, Value] = field(default_factory=dict)
    data: bool = False


class Memory:
    """The values of all live tensors of a run."""

    def __init__(self, moves: Algebra) -> None:
        self.moves = moves
        self.held: dict[int, Held] = {}
        self.bytes_read: Callable[[], None] = lambda: None
        """Called where what a storage holds is reached by its bytes, and is lost."""

    def of(self, tensor: torch.Tensor) -> Held:
        """The storage of a tensor; a new one where it was never met, or is gone and its number was given again.

        Complex numbers are another storage than their real parts: what is written where both are known is lost.
        """
        storage, number = tensor.untyped_storage(), _number(tensor)
        found = self.held.get(number)
        if found is None or found.weak.expired() or found.width != tensor.element_size():
            if tensor.dtype is torch.uint8 and found is not None and known(found) and not found.data:
                self.bytes_read()
            found = self.held[number] = Held(weakly(storage), tensor.element_size())
        return found

    def met(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor took part in a calculation: data that were only moved did not."""
        held = self.held.get(_number(tensor))
        return held is not None and known(held) and (not held.data or geometry_of(tensor) in held.views)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether something of a storage was met, as real numbers or as complex ones."""
        both = (self.held.get(number) for number in (storage._cdata, ~storage._cdata))
        return any(held is not None and known(held) for held in both)

    def forget(self, tensor: torch.Tensor) -> None:
        """What the storage of a tensor holds is met anew."""
        self.held.pop(_number(tensor), None)

    def read(self, tensor: torch.Tensor) -> Value | None:
        """The value of a tensor, or None where nobody knows it."""
        if tensor.is_conj() or tensor.is_neg():
            return self.of(tensor).views.get(_turned(tensor))
        return self.at(self.of(tensor), geometry_of(tensor))

    def at(self, held: Held, geometry: Geometry) -> Value | None:
        """The value of a part of a storage, or None where nobody knows it."""
        found = held.views.get(geometry)
        if found is None:
            found = self._assembled(held, geometry)
            if found is not None:
                held.views[geometry] = found
        return found

    def write(self, tensor: torch.Tensor, value: Value) -> None:
        """A tensor holds another value now, if the same one again; what shares its memory is read anew."""
        value = value.holding(value.parts)
        held, geometry = self.of(tensor), fitting(tensor, value)
        other = self.held.get(~_number(tensor))
        if tensor.is_conj() or tensor.is_neg() or (other is not None and known(other)):
            self.bytes_read()
        if 0 in geometry[1]:
            held.views[geometry] = value
            return
        held.views.clear()
        held.data = False
        whole = dense(*geometry[1:])
        made = None if whole and not self._of_a_row(held, geometry) else self._written(held, geometry, value)
        made = Region(*geometry, value) if made is None and whole else made
        start, stop = extent(geometry) if made is None else (made.start, made.stop)
        rest = [piece for region in held.regions for piece in self._without(region, start, stop)]
        held.regions = sorted([*rest, *([] if made is None else [made])], key=lambda region: region.start)
        held.views[geometry] = value

    def _of_a_row(self, held: Held, geometry: Geometry) -> bool:
        """Whether a view is a part of the rows of one sample of several, as the first labels of one in a batch."""
        start, stop = extent(geometry)
        for region in (r for r in held.regions if len(r.value.parts) > 1 and r.start <= start < stop <= r.stop):
            by = region.stride[region.value.axis]
            each, first, last = by * region.value.rows, start - region.start, stop - 1 - region.start
            return by == max(region.stride) and stop - start < each and first // each == last // each
        return False

    def _written(self, held: Held, geometry: Geometry, value: Value) -> Region | None:
        """What lies around a view with gaps after a write through it: it holds other rows of some axes."""
        region, (_, shape, stride) = self._block(held, geometry), geometry
        frame = None if region is None else framed(region, geometry)
        if region is None or frame is None:
            return None
        whole = self._in_order(region.value, region.shape, region.stride, frame.sizes)
        part = self._in_order(value, shape, stride, frame.counts)
        made = self._put(*self._apart(whole, part, frame), frame)
        return replace(region, value=self._as_view(made, frame.sizes, region.shape, region.stride))

    def _put(self, whole: Value, part: Value, frame: Frame) -> Value:
        """A tensor with other rows in the place of some of each axis."""
        if frame.sizes == frame.counts:
            return part
        moves, sizes = self.moves, frame.sizes
        axis = next(k for k, size in enumerate(sizes) if size != frame.counts[k])
        first, count, jump = frame.first[axis], frame.counts[axis], frame.jumps[axis]
        small = shape_with(sizes, axis, count)
        inner = Frame(small, shape_with(frame.first, axis, 0), frame.counts, shape_with(frame.jumps, axis, 1))
        if small != frame.counts:
            part = self._put(moves.cut(whole, sizes, axis, first, count, jump), part, inner)
        pieces, at = list[tuple[Value, int]](), 0
        for begin, own in [(first, count)] if jump == 1 else [(first + i * jump, 1) for i in range(count)]:
            pieces.append((moves.cut(whole, sizes, axis, at, begin - at), begin - at))
            pieces.append((moves.cut(part, small, axis, (begin - first) // jump, own), own))
            at = begin + own
        pieces.append((moves.cut(whole, sizes, axis, at, sizes[axis] - at), sizes[axis] - at))
        values, rows = zip(*[(value, count) for value, count in pieces if count], strict=True)
        return moves.join(values, [shape_with(sizes, axis, n) for n in rows], axis, sizes)

    def _apart(self, whole: Value, part: Value, frame: Frame) -> tuple[Value, Value]:
        """What is written, and what into, with the parts of both along an axis of which all rows are written.

        A value of one part may have it along any axis. Where both are the same in each row, the parts are these.
        """
        kept = [axis for axis, size in enumerate(frame.sizes) if size == frame.counts[axis]]
        pairs = ((whole, frame.sizes), (part, frame.counts))
        if kept and len(whole.parts) == len(part.parts) == 1:
            axis = next((value.axis for value, _ in pairs if value.axis in kept), kept[0])
            whole, part = (v if v.shared else Value(v.parts, axis, size[axis]) for v, size in pairs)
        if whole.shared and part.shared:
            fitted = [(self.moves.fitted(value.parts[0], size), size) for value, size in pairs]
            kept = [axis for axis in kept if all(self.moves.repeats(one, axis) for one, _ in fitted)]
            if len(kept) == 1:
                whole, part = (Value(tuple(self.moves.split(one, size, kept[0], 1)), kept[0]) for one, size in fitted)
        return whole, part

    def alike(self, value: Value) -> list[tuple[Held, Region]]:
        """Where memory holds a value: a tensor, and its copies."""
        every = (held for held in self.held.values() if not held.weak.expired())
        return [(held, region) for held in every for region in held.regions if region.value == value]

    def alias(self, tensor: torch.Tensor, value: Value) -> None:
        """A view of a storage that was met has this value."""
        turned = tensor.is_conj() or tensor.is_neg()
        self.of(tensor).views[_turned(tensor) if turned else fitting(tensor, value)] = value

    def _without(self, region: Region, start: int, stop: int) -> list[Region]:
        if region.stop <= start or stop <= region.start:
            return [region]
        ends = [(region.start, start), (stop, region.stop)]
        return [self._piece(region, first, last) for first, last in ends if first < last]

    def _piece(self, region: Region, start: int, stop: int) -> Region:
        """Some elements of a region."""
        if (start, stop) == (region.start, region.stop):
            return region
        count, small = prod(region.shape), stop - start
        flat = self._in_order(region.value, region.shape, region.stride, (count,))
        return Region(start, (small,), (1,), self.moves.cut(flat, (count,), 0, start - region.start, small))

    def _in_order(self, value: Value, shape: Shape, stride: Shape, sizes: Shape) -> Value:
        """The value of a tensor, its elements in the order of memory, in another shape."""
        order = slowest_first(shape, stride)
        return self.moves.reshape(self.moves.permute(value, shape, order), tuple(shape[a] for a in order), sizes)

    def _as_view(self, value: Value, sizes: Shape, shape: Shape, stride: Shape) -> Value:
        """The value of a tensor whose elements are given in the order of memory."""
        order = slowest_first(shape, stride)
        laid, back = tuple(shape[axis] for axis in order), [order.index(axis) for axis in range(len(order))]
        return self.moves.permute(self.moves.reshape(value, sizes, laid), laid, back)

    def _block(self, held: Held, geometry: Geometry) -> Region | None:
        """The elements from the first to the last of a view, and others around; None where some are not known."""
        start, stop = extent(geometry)
        pieces = [r for r in held.regions if r.start < stop and start < r.stop]
        if not pieces or sum(min(r.stop, stop) - max(r.start, start) for r in pieces) != stop - start:
            return None
        if len(pieces) == 1:
            return pieces[0]
        if not dense(*geometry[1:]):
            start, stop = pieces[0].start, pieces[-1].stop  # its axes are those of all that lies around
        clipped = [self._piece(r, max(r.start, start), min(r.stop, stop)) for r in pieces]
        sizes = [(prod(r.shape),) for r in clipped]
        flats = [self._in_order(r.value, r.shape, r.stride, size) for r, size in zip(clipped, sizes, strict=True)]
        owners = self.moves.terms.owners
        own = {owners[self.moves.terms.bare(term)[0]] for flat in flats for part in flat.parts for term in part}
        if (
            len(own - {NOBODY}) == 1 and max(own) >= 0 and all(flat.shared for flat in flats)
        ):  # pieces of one sample, of any size
            wholes = [self.moves.fitted(flat.parts[0], size) for flat, size in zip(flats, sizes, strict=True)]
            return Region(start, (stop - start,), (1,), shared(self.moves.laid(wholes, sizes, 0, (stop - start,))))
        return Region(start, (stop - start,), (1,), self.moves.join(flats, sizes, 0, (stop - start,)))

    def _assembled(self, held: Held, geometry: Geometry) -> Value | None:
        """The value of a view: whole blocks, or some rows of each axis of a block."""
        start, shape, stride = geometry
        if any(size > 1 and by == 0 for size, by in zip(shape, stride, strict=True)):
            small = tuple(1 if by == 0 else size for size, by in zip(shape, stride, strict=True))
            found = self.at(held, (start, small, stride))
            return None if found is None else self.moves.expand(found, small, shape)
        region = self._block(held, geometry)
        if region is None or (region.start, region.shape, region.stride) == geometry:
            return None if region is None else region.value
        if dense(shape, stride):
            region = self._piece(region, *extent(geometry))
            flat = self._in_order(region.value, region.shape, region.stride, (prod(shape),))
            return self._as_view(flat, (prod(shape),), shape, stride)
        frame = framed(region, geometry)
        if frame is None:
            return None
        value, sizes = self._in_order(region.value, region.shape, region.stride, frame.sizes), frame.sizes
        value = value if value.shared else self._apart(value, NOUGHT, frame)[0]
        for axis, (first, count, jump) in enumerate(zip(frame.first, frame.counts, frame.jumps, strict=True)):
            value, sizes = self.moves.cut(value, sizes, axis, first, count, jump), shape_with(sizes, axis, count)
        return self._as_view(value, sizes, shape, stride)


def framed(region: Region, geometry: Geometry) -> Frame | None:
    """Where a view with gaps lies in a region; None for a view that is no rows of axes of the region."""
    start, shape, stride = geometry
    rows = sorted((by, size) for size, by in zip(shape, stride, strict=True) if size > 1)
    steps = sorted(
        {by for size, by in zip(region.shape, region.stride, strict=True) if size > 1} | {prod(region.shape)}
    )
    for by, _ in rows:  # an axis is made two where whole blocks of its rows are rows of the view
        at = bisect(steps, by)
        if 0 < at < len(steps) and by % steps[at - 1] == 0 == steps[at] % by and by != steps[at - 1]:
            steps.insert(at, by)
    sizes = [by // step for step, by in itertools.pairwise(steps)]
    first = [(start - region.start) // step % size for step, size in zip(steps, sizes, strict=False)]
    counts, jumps = [1] * len(sizes), [1] * len(sizes)
    for by, size in rows:
        at = bisect(steps, by) - 1
        jump = by // steps[at] if at >= 0 and by % steps[at] == 0 else 0
        while size > 1:
            count = size if jump > 1 else min(size, sizes[at]) if at < len(sizes) else 0
            if not jump or not count or counts[at] > 1 or size % count or first[at] + (count - 1) * jump >= sizes[at]:
                return None
            counts[at], jumps[at], size, at = count, jump, size // count, at + 1
    found, laid = list(zip(sizes, first, counts, jumps, strict=True)), list[tuple[int, int, int, int]]()
    for axis in slowest_first(region.shape, region.stride):  # axes of one row stay where they are
        left = region.shape[axis]
        laid += [(1, 0, 1, 1)] if left == 1 else []
        while left > 1:
            laid.append(found.pop())
            left //= laid[-1][0]
    return Frame(*(tuple(own) for own in zip(*laid, strict=True)))


def _number(tensor: torch.Tensor) -> int:
    """The number of the storage of a tensor; that of complex numbers is the other one."""
    number: int = tensor.untyped_storage()._cdata
    return ~number if tensor.is_complex() else number


def _turned(tensor: torch.Tensor) -> Any:
    """Where a tensor lies that is read as the conjugate, or the opposite, of what its storage holds."""
    return (*geometry_of(tensor), tensor.is_conj(), tensor.is_neg())


def weakly(storage: torch.UntypedStorage) -> Any:
    """A weak reference to a storage."""
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Where a tensor lies in its storage."""
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def fitting(tensor: torch.Tensor, value: Value) -> Geometry:
    """Where a tensor lies, whose axes are those of its value."""
    assert value.shared or tensor.shape[value.axis] == value.rows * len(value.parts), "parts of another shape"
    return geometry_of(tensor)


@lru_cache(maxsize=65536)
def extent(geometry: Geometry) -> tuple[int, int]:
    """The first element of a tensor, and the first behind its last."""
    start, shape, stride = geometry
    count = 0 if 0 in shape else 1 + sum((size - 1) * by for size, by in zip(shape, stride, strict=True))
    return start, start + count


@lru_cache(maxsize=65536)
def slowest_first(shape: Shape, stride: Shape) -> tuple[int, ...]:
    """The axes of a tensor, from the slowest to the fastest."""
    return tuple(sorted(range(len(shape)), key=lambda axis: (-stride[axis], axis)))


@lru_cache(maxsize=65536)
def dense(shape: Shape, stride: Shape) -> bool:
    """Whether a tensor fills its span, each element once."""
    expected = 1
    for axis in reversed(slowest_first(shape, stride)):
        if shape[axis] != 1 and stride[axis] != expected:
            return False
        expected *= shape[axis]
    return extent((0, shape, stride))[1] == prod(shape)


def known(held: Held) -> bool:
    """Whether something of a storage was met."""
    return not held.weak.expired() and bool(held.regions or held.views)


class Unchanged:
    """What tensors held when they were kept, and the storages whose memory was given away.

    An array that nobody holds any more reaches nothing. What another library owns cannot be resized, and neither can
    what NumPy was given: the latter is known here.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[Any, Callable[[], Any]]]] = {}
        self._seen: dict[str, tuple[torch.Tensor, Value, bool, torch.Tensor | None]] = {}

    def left(self, storage: torch.UntypedStorage, found: Any, foreign: bool = False) -> None:
        """Python has got the memory of a storage, as `found`: what it holds is kept whole from here on.

        `foreign`: it was another library's before.
        """
        if storage._cdata not in self._held and foreign:
            found = None
        array = weakref.ref(found) if isinstance(found, numpy.ndarray) else lambda: True
        self._held.setdefault(storage._cdata, []).append((weakly(storage), array))
        for name, (tensor, value, whole, before) in list(self._seen.items()):
            if not whole and tensor.untyped_storage()._cdata == storage._cdata and same(before, fingerprint(tensor)):
                self._seen[name] = (tensor, value, True, checksum(tensor))

    def reach(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else can reach the memory of a tensor."""
        storage = tensor.untyped_storage()
        given = [(weak, array) for weak, array in self._held.get(storage._cdata, ()) if not weak.expired()]
        if storage.device.type == "cpu" and (storage.is_shared() or (not given and not storage.resizable())):
            return True
        alive = [(weak, array) for weak, array in given if array() is not None]
        self._held[storage._cdata] = alive or given[:1]
        return bool(alive)

    def keep(self, name: str, tensor: torch.Tensor, value: Value) -> None:
        """Keep what a tensor holds."""
        whole = self.reach(tensor)
        with _disable_current_modes():
            own = tensor.detach()
        self._seen[name] = (own, value, whole, checksum(tensor) if whole else fingerprint(tensor))

    def changed(
        self, kind: str, read: Callable[[torch.Tensor], Value | None]
    ) -> Iterator[tuple[str, torch.UntypedStorage]]:
        """The kept tensors of a kind that no operator wrote, and that hold something else; each is forgotten."""
        for name in [name for name in self._seen if name.startswith(kind)]:
            tensor, value, whole, before = self._seen.pop(name)
            if read(tensor) is value and not same(before, checksum(tensor) if whole else fingerprint(tensor)):
                yield name, tensor.untyped_storage()

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()


def fingerprint(tensor: torch.Tensor) -> torch.Tensor | None:
    """At most SAMPLED elements of a tensor, as bits, at an odd distance; all of a tensor that has gaps."""
    size = tensor.numel()
    with torch.no_grad(), _disable_current_modes():
        plain = tensor.detach()
        odd = plain.is_complex() or plain.element_size() not in BITS or tensor.is_quantized
        if odd or not dense(tuple(plain.shape), plain.stride()):
            return checksum(tensor)
        step = max(1, size // SAMPLED) | 1
        return plain.as_strided((size,), (1,))[::step].clone().view(BITS[plain.element_size()])


class Meetings:
    """The data that the micro-batches of a run met, by window. Places are lines of the user's.

    `again`: one micro-batch met what another one of its window had met. `beside`: such data that hold other numbers for
    each sample, where the micro-batch met data of its own as well: numbers by the place in a micro-batch.
    `by_chance`: a line met several tensors in a window of which each holds one number everywhere. `repeated`: where a
    micro-batch met no row that another had not met there. `repeats`: batches of a data loader with rows that another
    iteration gave, by number, and where they were read. `redrawn`: where two micro-batches of a window drew the same.
    `holds`: by micro-batch, what its data hold and whether they were read before it, and where they were met first;
    `placed`: those of which rows are known by their place in a table.
    """

    def __init__(self) -> None:
        self.again = False
        self.by_chance: Any = None
        self.redrawn: Any = None
        self._rows: list[tuple[tuple[int, int], tuple[int, ...], set[int], tuple[Any, int], Any]] = []
        self.repeats: dict[int, tuple[int, Any, bool]] = {}
        self.holds: dict[int, dict[Any, Any]] = {}
        self.placed = set[int]()
        self._met: dict[tuple[int, Geometry, Any], tuple[Any, int, int, Any]] = {}
        self._same: dict[tuple[int, int], Any] = {}
        self._ones: dict[tuple[str, int], tuple[Any, Geometry]] = {}
        self._fresh: set[tuple[int, int]] = set()
        self._places: dict[tuple[int, int], Any] = {}

    def forget(self) -> None:
        """Data are met anew."""
        self._met.clear()
        self._rows.clear()

    @property
    def beside(self) -> Any:
        """A place; None without one."""
        return next((at for batch, at in self._places.items() if batch in self._fresh), None)

    @property
    def repeated(self) -> Any:
        """A place; None without one."""
        return next((at for batch, at in self._same.items() if batch not in self._fresh), None)

    @property
    def strayed(self) -> Any:
        """Where rows were read before a micro-batch that took others like them, and another took these; or None."""
        took = [(number, held) for number, own in self.holds.items() for held, ahead in own if not ahead]
        for number, own in self.holds.items():
            mine = {held for n, held in took if n == number}
            others = {held for n, held in took if n != number} - mine
            for held, at in ((held, at) for (held, ahead), at in own.items() if ahead):
                if held in others and any(like[:2] == held[:2] for like in mine):
                    return at
        return None

    def data(
        self, tensor: torch.Tensor, value: Value, window: int, fetch: int, location: Any, ahead: bool = False
    ) -> None:
        """A micro-batch met data, which are rows of samples or not. `ahead`: they were read before it."""
        holds = checksum(tensor)
        with _disable_current_modes():
            held = tensor.numel(), tensor.dtype, object() if holds is None else int(holds)
        self.holds.setdefault(fetch, {}).setdefault((held, ahead), location)
        storage = tensor.untyped_storage()
        key = (storage._cdata, geometry_of(tensor), held)  # a buffer that was written over is other data
        weak, before, other, at = self._met.get(key, (None, -1, fetch, None))
        known = weak is not None and not weak.expired() and before == window
        if known and other != fetch:
            self.again |= not value.shared
            if at == location:
                self._same.setdefault((window, fetch), location)
            if not value.shared and differ(tensor, value):
                self._places.setdefault((window, fetch), location)
        elif not known:
            self._fresh.add((window, fetch))
        self._met[key] = (weakly(storage), window, fetch, location)

    def rows(
        self, names: Sequence[int], tables: set[int], table: tuple[Any, int], at: tuple[int, int], line: Any
    ) -> None:
        """Rows of samples, by what they are called, and the storages that they were taken from.

        `table`: the one tensor that they are rows of, and how many it has.
        """
        self._rows.append((at, tuple(names), tables, table, line))
        if table[1] > len(names):
            self.placed.add(at[1])

    @property
    def reused(self) -> Iterator[tuple[Any, set[int]]]:
        """Rows that another micro-batch had, in everything that was taken from storages which several took from.

        What one micro-batch alone took from, as numbers that are drawn for it, tells no two samples apart. Where every
        row of a table was trained on, another epoch begins: its rows come again.
        """
        taken = {(table, at) for at, _, tables, _, _ in self._rows for table in tables}
        several = {table for table, number in Counter(table for table, _ in taken).items() if number > 1}
        before, again = defaultdict[int, list[Any]](list), dict[Any, list[Any]]()
        epoch = defaultdict[Any, set[int]](set)
        for at, names, tables, table, line in self._rows:
            own = epoch[table]
            if len(own) == table[1] > 0:
                for name in own:
                    before[name] = [one for one in before[name] if one[0][0] == at[0]]
                own.clear()
            own.update(names)
            if tables & several:
                found = {row: self._earlier(before[name], at, names) for row, name in enumerate(names)}
                again.setdefault(at, []).append((line, {row: one for row, one in found.items() if one is not None}))
            for name in names:
                before[name].append((at, names))
        for (_, number), entries in again.items():
            first = entries[0][1]
            rows = [row for row in first if all(row in found for _, found in entries)]
            if rows:
                yield entries[0][0], {number, first[rows[0]]}

    @staticmethod
    def _earlier(before: list[tuple[tuple[int, int], Any]], at: tuple[int, int], names: tuple[int, ...]) -> int | None:
        other = (own for own, all_of in before if own[0] != at[0] or (own[1] != at[1] and all_of != names))
        found = next(other, None)
        return None if found is None else found[1]

    def one_number(self, tensor: torch.Tensor, site: str, window: int, location: Any) -> None:
        """A line met a tensor that holds one number everywhere."""
        own = (weakly(tensor.untyped_storage()), geometry_of(tensor))
        before = self._ones.setdefault((site, window), own)
        if before[0].expired() or before != own:
            self.by_chance = self.by_chance or location


def differ(tensor: torch.Tensor, value: Value) -> bool:
    """Whether the parts of a tensor, by sample, do not hold the same numbers."""
    with torch.no_grad(), _disable_current_modes():
        first, *others = torch.split(tensor.detach(), value.rows, value.axis)
        return not all(torch.equal(first, other) for other in others)
