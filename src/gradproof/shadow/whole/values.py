"""The value of a tensor: one combination, or one for each block of rows along an axis.

`Shared` content is one linear combination of terms of the tensor's own shape. `Parts` lie along one axis, `rows` rows
each, and each is one coefficient times one term. A part stands for what the tensor holds in those rows; that is all
that a law may rely on. Whose sample it is says the owner of its term, and is read by judgements only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradproof.shadow.whole.terms import UNIT, ZERO, Combination, Powers, Shape, Terms, multiplied, times

SHARED = -1


@dataclass(frozen=True, slots=True)
class Value:
    """`axis` is SHARED for a value of one part, else the axis along which the parts lie."""

    parts: tuple[Combination, ...]
    axis: int = SHARED
    rows: int = 1

    @property
    def shared(self) -> bool:
        """Whether the value is one combination."""
        return self.axis == SHARED

    def scaled(self, by: Fraction) -> Value:
        """The value times a rational."""
        return Value(tuple(times(part, by) for part in self.parts), self.axis, self.rows)


NOUGHT = Value((ZERO,))


def part_shape(value: Value, shape: Shape) -> Shape:
    """The shape of one part of a tensor."""
    return shape if value.shared else (*shape[: value.axis], value.rows, *shape[value.axis + 1 :])


def shared(combination: Combination) -> Value:
    """A value of one combination."""
    return Value((combination,))


class Algebra:
    """Values over a store of terms."""

    marks = False
    """Whether a term says that it stands for all samples of a micro-batch, also where that has one sample."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def gathered(self, combination: Combination) -> Combination:
        """A value of all samples that a tensor has, which are one."""
        if not self.marks:
            return combination
        return mapped(combination, lambda t: self.beneath(t, lambda u: self._rows(u)))

    def _rows(self, term: int) -> int:
        shape = self.terms.shapes[term]
        return term if self.terms.owners[term] < 0 else self.terms.make("rows", (), (term,), shape)

    def ones(self, by: Fraction = UNIT) -> Value:
        """A tensor that holds one rational everywhere."""
        return shared(times(self.terms.of(self.terms.one), by))

    def constant(self, combination: Combination) -> bool:
        """Whether a combination holds one known number everywhere."""
        return all(term == self.terms.one for term in combination)

    def uniform(self, combination: Combination) -> bool:
        """Whether a combination holds one number everywhere, known or not."""
        return all(self.terms.shapes[term] is None for term in combination)

    def scalar(self, combination: Combination) -> tuple[Fraction, Powers]:
        """A combination of one element, not zero, as a rational times powers of scalars."""
        ((term, by),) = self.terms.factored(combination, ()).items()
        bare, powers = self.terms.bare(term)
        bare = self.reshaped(bare, ())
        return by, powers if bare == self.terms.one else multiplied(powers, {bare: 1})

    def rescaled(self, value: Value, by: Fraction, powers: Powers) -> Value:
        """A value times a rational and powers of scalars."""
        parts = tuple(times(self.terms.rescaled(part, powers), by) for part in value.parts)
        return Value(parts, value.axis, value.rows)

    def along(self, axis: int, rows: int, parts: Sequence[Combination], shape: Shape) -> Value:
        """A value of parts; each is made one coefficient times one term. `shape` is that of the whole tensor."""
        size = (*shape[:axis], rows, *shape[axis + 1 :])
        return Value(tuple(self.terms.factored(part, size) for part in parts), axis, rows)

    def whole(self, value: Value, shape: Shape) -> Combination:
        """The value as one combination; parts become one term, which stands for all of them side by side."""
        if value.shared:
            return value.parts[0]
        if len(value.parts) == 1:
            return self.gathered(value.parts[0])
        if all(self.uniform(part) for part in value.parts) and len({frozenset(p.items()) for p in value.parts}) == 1:
            return value.parts[0]
        size = part_shape(value, shape)
        parts = [self.fitted(part, size) for part in value.parts]
        return self.laid(parts, [size] * len(parts), value.axis, shape)

    def laid(self, parts: Sequence[Combination], shapes: Sequence[Shape], axis: int, out: Shape) -> Combination:
        """Combinations side by side, as one coefficient times one term: that of the first part is taken out."""
        by = next((part[self.terms.leading(part)] for part in parts if part), None)
        if by is None:
            return ZERO
        powers = self.terms.common({term: by for part in parts for term in part})
        parts = [self.terms.rescaled(part, multiplied({}, powers, -1)) for part in parts]
        kids = [self.terms.named(times(part, 1 / by), size) for part, size in zip(parts, shapes, strict=True)]
        solid = [self._solid(kid, size) for kid, size in zip(kids, shapes, strict=True)]
        return {self.terms.scaled(self.terms.make("cat", (axis,), tuple(solid), out), powers): by}

    def _solid(self, term: int, shape: Shape) -> int:
        """A term of one number everywhere, with a shape of its own."""
        return term if self.terms.shapes[term] is not None else self.terms.make("filled", (), (term,), shape)

    def fitted(self, combination: Combination, shape: Shape) -> Combination:
        """The same with every term in this shape: what is smaller is broadcast."""
        if all(self.terms.shapes[term] in (None, shape) for term in combination):
            return combination
        return mapped(combination, lambda term: self.broadcast(term, shape))

    def beneath(self, term: int, rule: Callable[[int], int]) -> int:
        """A linear operator on a term with scalars: they stay outermost."""
        inner, powers = self.terms.bare(term)
        return self.terms.scaled(rule(inner), powers)

    def broadcast(self, term: int, shape: Shape) -> int:
        """A term expanded to a shape."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.broadcast(inner, shape))
        if terms.shapes[term] is None or terms.shapes[term] == shape:
            return term
        if terms.operators[term] == "expand":
            return self.broadcast(terms.kids[term][0], shape)
        if prod(terms.shapes[term] or ()) == 1:
            term = self.reshaped(term, ())
        return term if terms.shapes[term] == shape else terms.make("expand", (), (term,), shape)

    def split(self, combination: Combination, shape: Shape, axis: int, rows: int) -> list[Combination]:
        """A combination of terms of a shape as parts along an axis."""
        if self.uniform(combination) or shape[axis] == rows:
            return [combination] * (shape[axis] // rows)
        return [self.piece(combination, axis, at, rows) for at in range(0, shape[axis], rows)]

    def piece(self, combination: Combination, axis: int, start: int, rows: int) -> Combination:
        """Rows of a combination."""
        return mapped(combination, lambda term: self.slice(term, axis, start, rows, 1))

    def slice(self, term: int, axis: int, start: int, count: int, step: int) -> int:
        """`count` rows of a term along an axis."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.slice(inner, axis, start, count, step))
        shape = terms.shapes[term]
        if shape is None or (shape[axis] == count and start == 0 and step == 1):
            return term
        small = (*shape[:axis], count, *shape[axis + 1 :])
        operator, kids = terms.operators[term], terms.kids[term]
        if operator == "expand":
            inner = terms.shapes[kids[0]] or ()
            own = axis - (len(shape) - len(inner))
            if own < 0 or inner[own] == 1:
                return self.broadcast(kids[0], small)
            return self.broadcast(self.slice(kids[0], own, start, count, step), small)
        if operator == "slice" and terms.attributes[term][0] == axis:
            _, first, _, by = terms.attributes[term]
            return terms.make("slice", (axis, first + by * start, count, by * step), kids, small)
        if operator == "range":
            first, by = terms.attributes[term]
            return terms.make("range", (first + by * start, by * step), (), small)
        if operator == "cat" and terms.attributes[term][0] == axis and step == 1:
            inside = self._piece(kids, axis, start, count)
            if inside is not None:
                return self.slice(*inside, count, 1)
        return terms.make("slice", (axis, start, count, step), (term,), small)

    def _piece(self, kids: Sequence[int], axis: int, start: int, count: int) -> tuple[int, int, int] | None:
        for kid in kids:
            size = self.terms.shapes[kid]
            if size is None:
                return None
            if start < size[axis]:
                return (kid, axis, start) if start + count <= size[axis] else None
            start -= size[axis]
        return None

    def reshaped(self, term: int, shape: Shape) -> int:
        """A term in another shape, its elements in the same order."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.reshaped(inner, shape))
        if terms.shapes[term] is None or terms.shapes[term] == shape:
            return term
        if terms.operators[term] == "reshape":
            return self.reshaped(terms.kids[term][0], shape)
        if terms.operators[term] == "expand" and terms.shapes[terms.kids[term][0]] == ():
            return self.broadcast(terms.kids[term][0], shape)
        return terms.make("reshape", (), (term,), shape)

    def permuted(self, term: int, order: Sequence[int]) -> int:
        """A term with its axes in another order."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.permuted(inner, order))
        shape = terms.shapes[term]
        if shape is None or list(order) == sorted(order):
            return term
        if terms.operators[term] == "expand" and terms.shapes[terms.kids[term][0]] == ():
            return self.broadcast(terms.kids[term][0], tuple(shape[axis] for axis in order))
        if terms.operators[term] == "permute":
            inner = terms.attributes[term]
            return self.permuted(terms.kids[term][0], [inner[axis] for axis in order])
        made, long = tuple(shape[axis] for axis in order), [axis for axis in order if shape[axis] != 1]
        return self.reshaped(term, made) if long == sorted(long) else terms.make("permute", tuple(order), (term,), made)


def mapped(combination: Combination, rule: Callable[[int], int]) -> Combination:
    """A linear operator on every term of a combination."""
    found: dict[int, Fraction] = {}
    for term, by in combination.items():
        made = rule(term)
        found[made] = found.get(made, Fraction(0)) + by
    return {term: by for term, by in found.items() if by}


# -- Movements of values: views, slices and joins, which change where parts lie and no number.
#
# Each movement takes a value and the shape of its tensor, and gives the value of the moved tensor. Parts stay parts
# where each lies in whole rows of one axis of the result; else they become one term.


class Moves(Algebra):
    """The algebra with movements."""

    def reshape(self, value: Value, old: Shape, new: Shape, axis: int | None = None) -> Value:
        """The same elements in the same order. `axis`: where the caller knows that the parts lie in the result."""
        if old == new:
            return value
        if not value.shared and axis is None:
            axis = relocated(value, old, new)
        if not value.shared and axis is None and len(value.parts) == 1:
            value = shared(value.parts[0])
        if value.shared or axis is None:
            whole = self.terms.opened(self.fitted(self.whole(value, old), old))
            return shared(mapped(whole, lambda term: self.reshaped(term, new)))
        rows = new[axis] // len(value.parts)
        size = (*new[:axis], rows, *new[axis + 1 :])
        before = part_shape(value, old)
        parts = [mapped(self.fitted(p, before), lambda term: self.reshaped(term, size)) for p in value.parts]
        return Value(tuple(parts), axis, rows)

    def permute(self, value: Value, shape: Shape, order: Sequence[int]) -> Value:
        """The axes in another order; all of them are given, not negative."""
        before = part_shape(value, shape)
        given = [self.terms.opened(p) for p in value.parts] if value.shared else value.parts
        parts = [mapped(self.fitted(p, before), lambda term: self.permuted(term, order)) for p in given]
        return Value(tuple(parts), SHARED if value.shared else list(order).index(value.axis), value.rows)

    def expand(self, value: Value, old: Shape, new: Shape) -> Value:
        """A broadcast to a larger shape."""
        if old == new:
            return value
        if value.shared:
            return shared(self.fitted(self.fitted(value.parts[0], old), new))
        axis = value.axis + len(new) - len(old)
        if new[axis] != old[value.axis]:
            return self.expand(shared(self.whole(value, old)), old, new)
        size = (*new[:axis], value.rows, *new[axis + 1 :])
        before = part_shape(value, old)
        return Value(tuple(self.fitted(self.fitted(p, before), size) for p in value.parts), axis, value.rows)

    def cut(self, value: Value, shape: Shape, axis: int, start: int, count: int, step: int = 1) -> Value:
        """`count` rows along an axis, every `step`-th from `start`."""
        if value.shared or axis != value.axis:
            before = part_shape(value, shape)
            given = [self.terms.opened(p) for p in value.parts] if value.shared else value.parts
            parts = [
                mapped(self.fitted(p, before), lambda term: self.slice(term, axis, start, count, step)) for p in given
            ]
            return Value(tuple(parts), value.axis, value.rows)
        rows = value.rows
        if rows == 1 and count:
            return Value(value.parts[start : start + step * (count - 1) + 1 : step], axis, 1)
        if step == 1 and count and start % rows == 0 and count % rows == 0:
            return Value(value.parts[start // rows : (start + count) // rows], axis, rows)
        at = start // rows
        if step == 1 and count and (start + count - 1) // rows == at:
            return self._inside(value, shape, axis, start, count)
        return self.cut(shared(self.whole(value, shape)), shape, axis, start, count, step)

    def _inside(self, value: Value, shape: Shape, axis: int, start: int, count: int) -> Value:
        """Rows of one part."""
        at, first = divmod(start, value.rows)
        part = self.fitted(value.parts[at], part_shape(value, shape))
        return Value((mapped(part, lambda term: self.slice(term, axis, first, count, 1)),), axis, count)

    def split_like(self, value: Value, shape: Shape, lead: Value) -> list[Combination]:
        """A value as parts that lie as those of another."""
        if (value.axis, len(value.parts)) == (lead.axis, len(lead.parts)):
            return list(value.parts)
        return self.split(self.fitted(self.whole(value, shape), shape), shape, lead.axis, lead.rows)

    def select(self, value: Value, shape: Shape, axis: int, index: int) -> Value:
        """One row, without its axis."""
        one = self.cut(value, shape, axis, index, 1)
        small, gone = shape_with(shape, axis, 1), (*shape[:axis], *shape[axis + 1 :])
        if one.shared or one.axis == axis:
            return self.reshape(shared(self.fitted(one.parts[0], small)), small, gone)
        return self.reshape(one, small, gone, one.axis - (one.axis > axis))

    def join(self, values: Sequence[Value], shapes: Sequence[Shape], axis: int, out: Shape) -> Value:
        """Tensors one after the other along an axis."""
        values, shapes = zip(*[(v, s) for v, s in zip(values, shapes, strict=True) if s != (0,)], strict=True)
        across = {(v.axis, v.rows, len(v.parts)) for v in values if not v.shared and v.axis != axis}
        if len(across) == 1 and all(v.shared or v.axis != axis for v in values):
            return self._beside(values, shapes, axis, out, next(iter(across)))
        rows = {v.rows if v.axis == axis else s[axis] for v, s in zip(values, shapes, strict=True)}
        if len(rows) == 1 and not across and self._apart(values, axis):
            small = shape_with(out, axis, rows.copy().pop())
            parts = [p for v in values for p in v.parts]
            return self.along(axis, rows.pop(), [self.fitted(p, small) for p in parts], out)
        wholes = [self.fitted(self.whole(v, s), s) for v, s in zip(values, shapes, strict=True)]
        if all(self.uniform(w) for w in wholes) and all(w == wholes[0] for w in wholes):
            return shared(wholes[0])
        return shared(self.laid(wholes, shapes, axis, out))

    def _apart(self, values: Sequence[Value], axis: int) -> bool:
        """Whether what is joined is of samples: it has parts along the axis, or a piece has one owner."""
        owners = [self.terms.owners[term] for v in values for part in v.parts for term in part]
        return any(v.axis == axis for v in values) or any(owner >= 0 for owner in owners)

    def _beside(
        self, values: Sequence[Value], shapes: Sequence[Shape], axis: int, out: Shape, laid: tuple[int, int, int]
    ) -> Value:
        along, rows, count = laid
        columns = []
        for value, shape in zip(values, shapes, strict=True):
            small = shape_with(shape, along, rows)
            parts = (
                value.parts if not value.shared else self.split(self.fitted(value.parts[0], shape), shape, along, rows)
            )
            columns.append([self.fitted(p, small) for p in parts])
        smalls = [shape_with(shape, along, rows) for shape in shapes]
        size = shape_with(out, along, rows)
        made = [self.laid([column[i] for column in columns], smalls, axis, size) for i in range(count)]
        return Value(tuple(made), along, rows)


def shape_with(shape: Shape, axis: int, rows: int) -> Shape:
    """A shape with another size of one axis."""
    return (*shape[:axis], rows, *shape[axis + 1 :])


def relocated(value: Value, old: Shape, new: Shape) -> int | None:
    """The axis of the new shape along which the parts of a value lie, or None where they do not lie in whole rows."""
    count, left, held = len(value.parts), prod(old[: value.axis]), old[value.axis]
    before, fitting = 1, []
    for axis, size in enumerate(new):
        if before == left and size and size % count == 0:
            fitting.append(axis)
        before *= size
    same = [axis for axis in fitting if new[axis] == held]
    return next(iter(same or fitting), None)


# -- What storages hold: regions of elements that were written last, and the values of views since then.
#
# A write to a part of a storage leaves the rest. A tensor that is no block of its storage, read after a write through
# another tensor, is lost: `read` gives None, and whoever reads it says so.

Geometry = tuple[int, Shape, Shape]
"""Offset, sizes and strides of a tensor in its storage, in elements."""


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

    def of(self, tensor: torch.Tensor) -> Held:
        """The storage of a tensor; a new one where it was never met, or is gone and its number was given again."""
        storage = tensor.untyped_storage()
        found = self.held.get(storage._cdata)
        if found is None or found.weak.expired() or found.width != tensor.element_size():
            found = self.held[storage._cdata] = Held(weakly(storage), tensor.element_size())
        return found

    def met(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor took part in a calculation: data that were only moved did not."""
        held = self.held.get(tensor.untyped_storage()._cdata)
        return held is not None and known(held) and (not held.data or geometry_of(tensor) in held.views)

    def read(self, tensor: torch.Tensor) -> Value | None:
        """The value of a tensor, or None where nobody knows it."""
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
        value = Value(value.parts, value.axis, value.rows)
        held, geometry = self.of(tensor), geometry_of(tensor)
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
        apart = self._by_part(region, start, shape, stride, value)
        if apart is not None:
            made = apart
        else:
            pairs = ((region.value, region.shape), (value, shape))
            kids = [moves.terms.named(moves.fitted(moves.whole(v, s), s), s) for v, s in pairs]
            place = (start - region.start, shape, stride, region.stride)
            made = shared(moves.terms.of(moves.terms.make("scattered", place, tuple(kids), region.shape)))
        region = Region(region.start, region.stop, region.shape, region.stride, made)
        return [region if one is around[0] else one for one in held.regions]

    def _by_part(self, region: Region, start: int, shape: Shape, stride: Shape, value: Value) -> Value | None:
        """A write that goes over all rows of the axis of parts alike; None for any other."""
        parts, moves, axis = region.value, self.moves, region.value.axis
        step = 0 if parts.shared else region.stride[axis]
        along = [k for k, by in enumerate(stride) if by == step and shape[k] == region.shape[axis]] if step else []
        offset = start - region.start
        if len(along) != 1 or (offset // step) % region.shape[axis]:
            return None
        view = along[0]
        lead = Value(parts.parts, view, parts.rows)
        if not value.shared and (value.axis, len(value.parts)) != (view, len(parts.parts)):
            return None
        size, small = part_shape(parts, region.shape), shape_with(shape, view, parts.rows)
        written = moves.split_like(value, shape, lead)
        place = (offset, shape[:view] + shape[view + 1 :], stride, region.stride, view, axis, region.shape[axis + 1 :])
        made = []
        for before, after in zip(parts.parts, written, strict=True):
            kids = (moves.terms.named(before, size), moves.terms.named(moves.fitted(after, small), small))
            made.append(moves.terms.of(moves.terms.make("scattered", place, kids, size)))
        return Value(tuple(made), axis, parts.rows)

    def _with_gaps(self, held: Held, geometry: Geometry) -> Value | None:
        """A view with gaps of one block."""
        start, shape, stride = geometry
        stop = start + span(shape, stride)
        region = next((r for r in held.regions if r.start <= start and stop <= r.stop), None)
        if region is None or 0 in shape:
            return None
        moves = self.moves
        kid = moves.terms.named(moves.fitted(moves.whole(region.value, region.shape), region.shape), region.shape)
        place = (start - region.start, shape, stride, region.stride)
        return shared(moves.terms.of(moves.terms.make("gathered", place, (kid,), shape)))

    def alike(self, value: Value) -> list[tuple[Held, Region]]:
        """Where memory holds a value: a tensor, and its copies."""
        every = (held for held in self.held.values() if not held.weak.expired())
        return [(held, region) for held in every for region in held.regions if region.value == value]

    def alias(self, tensor: torch.Tensor, value: Value) -> None:
        """A view of a storage that was met has this value."""
        self.of(tensor).views[geometry_of(tensor)] = value

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


def weakly(storage: torch.UntypedStorage) -> Any:
    """A weak reference to a storage."""
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Where a tensor lies in its storage."""
    return int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride())


def span(shape: Shape, stride: Shape) -> int:
    """Elements from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((size - 1) * by for size, by in zip(shape, stride, strict=True))


def order_of(shape: Shape, stride: Shape) -> list[int] | None:
    """The axes from the slowest to the fastest of a tensor that fills its span, or None for any other."""
    if span(shape, stride) != prod(shape):
        return None
    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], shape[axis] != 1, axis))
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1 and stride[axis] != expected:
            return None
        expected *= shape[axis]
    return order


def known(held: Held) -> bool:
    """Whether something of a storage was met."""
    return not held.weak.expired() and bool(held.regions or held.views)
