"""Movements of values: views, slices and joins, which change where parts lie and no number.

Each movement takes a value and the shape of its tensor, and gives the value of the moved tensor. Parts stay parts
where each lies in whole rows of one axis of the result; else they become one term.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradproof.shadow.whole.terms import Shape
from gradproof.shadow.whole.values import SHARED, Algebra, Value, mapped, part_shape, shared


class Moves(Algebra):
    """The algebra with movements."""

    def reshape(self, value: Value, old: Shape, new: Shape, axis: int | None = None) -> Value:
        """The same elements in the same order. `axis`: where the caller knows that the parts lie in the result."""
        if old == new:
            return value
        if not value.shared and axis is None:
            axis = relocated(value, old, new)
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

    def select(self, value: Value, shape: Shape, axis: int, index: int) -> Value:
        """One row, without its axis."""
        one = self.cut(value, shape, axis, index, 1)
        small, gone = shape_with(shape, axis, 1), (*shape[:axis], *shape[axis + 1 :])
        if one.shared or one.axis == axis:
            return self.reshape(shared(self.whole(one, small)), small, gone)
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
        if all(self.constant(w) for w in wholes) and all(w == wholes[0] for w in wholes):
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
    return (same or fitting or [None])[0]
