"""What storages hold: regions of elements that were written last, and the values of views since then.

A write to a part of a storage leaves the rest. A tensor that is no block of its storage, read after a write through
another tensor, is lost: `read` gives None, and whoever reads it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.checksums import checksum, same
from gradproof.shadow.whole.terms import Shape
from gradproof.shadow.whole.values import SHARED, Moves, Value, part_shape, shape_with, shared

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


@dataclass(slots=True)
class Region:
    """Elements `start` to `stop` of a storage hold a value of a dense tensor with these sizes and strides."""

    start: int
    stop: int
    shape: Shape
    stride: Shape
    value: Value


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

    def __init__(self, moves: Moves) -> None:
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
        held.views.clear()
        held.data = False
        start, shape, stride = geometry
        stop = start + span(shape, stride)
        if order_of(shape, stride) is None:
            held.regions = self._scattered(held, geometry, value)
            held.views[geometry] = value
            return
        rest = [piece for region in held.regions for piece in self._without(region, start, stop)]
        rest.append(Region(start, stop, shape, stride, value))
        held.regions = sorted(rest, key=lambda region: region.start)
        held.views[geometry] = value

    def _scattered(self, held: Held, geometry: Geometry, value: Value) -> list[Region]:
        """A write through a view with gaps: what it was written into is a function of both."""
        start, shape, stride = geometry
        stop = start + span(shape, stride)
        around = [region for region in held.regions if region.start < stop and start < region.stop]
        if len(around) != 1 or around[0].start > start or around[0].stop < stop:
            return [region for region in held.regions if region not in around]
        region, moves = around[0], self.moves
        apart = self._apart(region, shape, stride, value)
        column = _column(apart, start, shape, stride)
        parts = self._by_part(apart, start, shape, stride, value) if column is None else None
        if column is not None:
            made = self._put(apart, *column, shape, value)
        elif parts is not None:
            made = parts
        else:
            pairs = ((region.value, region.shape), (value, shape))
            kids = [moves.terms.named(moves.fitted(moves.whole(v, s), s), s) for v, s in pairs]
            where = (start - region.start, shape, stride, region.stride)
            made = shared(moves.terms.of(moves.terms.make("scattered", where, tuple(kids), region.shape)))
        region = Region(region.start, region.stop, region.shape, region.stride, made)
        return [region if one is around[0] else one for one in held.regions]

    def _put(self, region: Region, axis: int, first: int, shape: Shape, value: Value) -> Value:
        """Rows of a region along an axis, with others in their place."""
        size, last = region.shape[axis], first + shape[axis]
        around = [(0, first), (last, size - last)]
        left = [(self.moves.cut(region.value, region.shape, axis, at, count), count) for at, count in around]
        pieces = [left[0], (value, shape[axis]), left[1]]
        values, sizes = zip(*[(piece, count) for piece, count in pieces if count], strict=True)
        return self.moves.join(values, [shape_with(region.shape, axis, n) for n in sizes], axis, region.shape)

    def _by_part(self, region: Region, start: int, shape: Shape, stride: Shape, value: Value) -> Value | None:
        """A write that goes over all rows of the axis of parts alike; None for any other."""
        parts, moves, view = region.value, self.moves, self._along(region, start, shape, stride)
        lead = Value(parts.parts, SHARED if view is None else view, parts.rows, parts.turns)
        if view is None or (not value.shared and value.layout != lead.layout):
            return None
        size, small = part_shape(parts, region.shape), shape_with(shape, view, parts.rows)
        written = moves.split_like(value, shape, lead)
        where = _where(region, start, shape, stride, view)
        made = []
        for before, after in zip(parts.parts, written, strict=True):
            kids = (moves.terms.named(before, size), moves.terms.named(moves.fitted(after, small), small))
            made.append(moves.terms.of(moves.terms.make("scattered", where, kids, size)))
        return parts.holding(made)

    def _along(self, region: Region, start: int, shape: Shape, stride: Shape) -> int | None:
        """The axis of a view that goes over all rows of the axis of parts; None where there is none."""
        parts, axis = region.value, region.value.axis
        step = 0 if parts.shared else region.stride[axis]
        along = [k for k, by in enumerate(stride) if by == step and shape[k] == region.shape[axis]] if step else []
        if len(along) != 1:
            return None
        around, first = step * region.shape[axis], (start - region.start) % (step * region.shape[axis])
        rest = [
            (size, by) for k, (size, by) in enumerate(zip(shape, stride, strict=True)) if k != along[0] and size > 1
        ]
        last = first + sum((size - 1) * by for size, by in rest if by < step)
        return along[0] if last < step and all(by < step or by % around == 0 for _, by in rest) else None

    def _apart(self, region: Region, shape: Shape, stride: Shape, value: Value) -> Region:
        """A region of one combination as parts, which lie as those of what is written into it.

        Where both are the same in each row of an axis, the parts are its rows.
        """
        if not region.value.shared:
            return region
        whole, rows = self.moves.fitted(region.value.parts[0], region.shape), list(zip(shape, stride, strict=True))
        if value.shared:
            put = self.moves.fitted(value.parts[0], shape)
            rows = [laid for k, laid in enumerate(rows) if self.moves.repeats(put, k)]
        else:
            rows = [rows[value.axis]]
        fitting = [k for k, laid in enumerate(zip(region.shape, region.stride, strict=True)) if laid in rows]
        if value.shared:
            fitting = [k for k in fitting if self.moves.repeats(whole, k)]
        if len(fitting) != 1:
            return region
        parts = self.moves.split(whole, region.shape, fitting[0], value.rows, value.turns)
        made = Value(tuple(parts), fitting[0], value.rows, value.turns)
        return Region(region.start, region.stop, region.shape, region.stride, made)

    def _with_gaps(self, held: Held, geometry: Geometry) -> Value | None:
        """A view with gaps of one block."""
        start, shape, stride = geometry
        stop = start + span(shape, stride)
        region = next((r for r in held.regions if r.start <= start and stop <= r.stop), None)
        if region is None or 0 in shape:
            return None
        column = _column(region, start, shape, stride)
        if column is not None:
            return self.moves.cut(region.value, region.shape, *column, shape[column[0]])
        moves, parts, view = self.moves, region.value, self._along(region, start, shape, stride)
        if view is not None:
            size, small = part_shape(parts, region.shape), shape_with(shape, view, parts.rows)
            kids = [moves.terms.named(moves.fitted(part, size), size) for part in parts.parts]
            where: tuple[Any, ...] = _where(region, start, shape, stride, view)
            each = [moves.terms.of(moves.terms.make("gathered", where, (kid,), small)) for kid in kids]
            return Value(tuple(each), view, parts.rows, parts.turns)
        kid = moves.terms.named(moves.fitted(moves.whole(region.value, region.shape), region.shape), region.shape)
        where = (start - region.start, shape, stride, region.stride)
        return shared(moves.terms.of(moves.terms.make("gathered", where, (kid,), shape)))

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
        flat, count = self._flat(region), region.stop - region.start
        cut = self.moves.cut(flat, (count,), 0, start - region.start, stop - start)
        return Region(start, stop, (stop - start,), (1,), cut)

    def _flat(self, region: Region) -> Value:
        order = order_of(region.shape, region.stride)
        assert order is not None
        value = self.moves.permute(region.value, region.shape, order)
        laid = tuple(region.shape[axis] for axis in order)
        return self.moves.reshape(value, laid, (region.stop - region.start,))

    def _assembled(self, held: Held, geometry: Geometry) -> Value | None:
        start, shape, stride = geometry
        order = order_of(shape, stride)
        stop = start + span(shape, stride)
        if order is None:
            return self._with_gaps(held, geometry)
        for region in held.regions:
            if (region.start, region.shape, region.stride) == (start, shape, stride):
                return region.value
        pieces = [r for r in held.regions if r.start < stop and start < r.stop]
        if not pieces or sum(min(r.stop, stop) - max(r.start, start) for r in pieces) != stop - start:
            return None
        flats = [self._flat(self._clipped(r, start, stop)) for r in pieces]
        sizes = [(min(r.stop, stop) - max(r.start, start),) for r in pieces]
        flat = flats[0] if len(flats) == 1 else self.moves.join(flats, sizes, 0, (stop - start,))
        laid = tuple(shape[axis] for axis in order)
        value = self.moves.reshape(flat, (stop - start,), laid)
        back = [order.index(axis) for axis in range(len(order))]
        return self.moves.permute(value, laid, back)

    def _clipped(self, region: Region, start: int, stop: int) -> Region:
        first, last = max(region.start, start), min(region.stop, stop)
        return region if (first, last) == (region.start, region.stop) else self._piece(region, first, last)


def _column(region: Region, start: int, shape: Shape, stride: Shape) -> tuple[int, int] | None:
    """The axis along which a view has some rows of a region and nothing else, and the first of them."""
    other = [k for k, pair in enumerate(zip(shape, region.shape, strict=False)) if pair[0] != pair[1]]
    if stride != region.stride or len(other) != 1 or (region.value.axis == other[0] and not region.value.shared):
        return None
    first, left = divmod(start - region.start, stride[other[0]])
    return None if left or first + shape[other[0]] > region.shape[other[0]] else (other[0], first)


def _where(region: Region, start: int, shape: Shape, stride: Shape, view: int) -> tuple[Any, ...]:
    """Where a view of all rows lies in each part of a region, whatever the number of parts."""
    axis, rows = region.value.axis, region.value.rows
    step, around = region.stride[axis], region.stride[axis] * region.shape[axis]

    def inside(by: int) -> int:
        return by // around * step * rows + by % around

    strides = [tuple(inside(by) for by in one if by != step) for one in (stride, region.stride)]
    rest = shape[:view] + shape[view + 1 :]
    return (inside(start - region.start), rest, *strides, view, axis, region.shape[axis + 1 :])


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
def span(shape: Shape, stride: Shape) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((size - 1) * by for size, by in zip(shape, stride, strict=True))


@lru_cache(maxsize=65536)
def order_of(shape: Shape, stride: Shape) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest of a tensor that fills its span, or None for any other."""
    if span(shape, stride) != prod(shape):
        return None
    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], shape[axis] != 1, axis))
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1 and stride[axis] != expected:
            return None
        expected *= shape[axis]
    return tuple(order)


def known(held: Held) -> bool:
    """Whether something of a storage was met."""
    return not held.weak.expired() and bool(held.regions or held.views)


class Meetings:
    """The data that the micro-batches of a run met, by window. Places are lines of the user's.

    `again`: one micro-batch met what another one of its window had met. `beside`: such data that hold other numbers for
    each sample, where the micro-batch met data of its own as well: numbers by the place in a micro-batch.
    `by_chance`: a line met several tensors in a window of which each holds one number everywhere. `reused`: rows of
    samples that another window had met, and that still hold the same.
    """

    def __init__(self) -> None:
        self.again = False
        self.by_chance: Any = None
        self.reused: Any = None
        self._rows: dict[Any, list[tuple[Any, Geometry, set[int], torch.Tensor | None, int]]] = {}
        self._met: dict[tuple[int, Geometry], tuple[Any, int, int]] = {}
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

    def data(self, tensor: torch.Tensor, value: Value, window: int, fetch: int, location: Any) -> None:
        """A micro-batch met data, which are rows of samples or not."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, geometry_of(tensor))
        weak, before, other = self._met.get(key, (None, -1, fetch))
        known = weak is not None and not weak.expired() and before == window
        if known and other != fetch:
            self.again = True
            if not value.shared and differ(tensor, value):
                self._places.setdefault((window, fetch), location)
        elif not known:
            self._fresh.add((window, fetch))
        self._met[key] = (weakly(storage), window, fetch)
        if not value.shared and self.reused is None:
            self._met_rows(tensor, value.axis, window, location)

    def _met_rows(self, tensor: torch.Tensor, axis: int, window: int, location: Any) -> None:
        """Rows of samples: whether another window had some that begin where these do, and still hold what they held."""
        start, shape, stride = geometry = geometry_of(tensor)
        rows = set(range(start, start + shape[axis] * (stride[axis] or 1), stride[axis] or 1))
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype)
        before = [one for one in self._rows.get(key, []) if not one[0].expired()]
        for _, (at, size, by), own, held, other in before:
            if other != window and own & rows:
                with torch.no_grad(), _disable_current_modes():
                    if same(held, checksum(tensor.detach().as_strided(size, by, at))):
                        self.reused = location
        self._rows[key] = [*before, (weakly(storage), geometry, rows, checksum(tensor), window)]

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
