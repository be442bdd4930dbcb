"""The value of a tensor: one combination, or one for each block of rows along an axis.

`Shared` content is one linear combination of terms of the tensor's own shape. `Parts` lie along one axis, `rows` rows
each, and each is one coefficient times one term. A part stands for what the tensor holds in those rows; that is all
that a law may rely on. Whose sample it is says the owner of its term, and is read by judgements only.

Parts may take turns along their axis: with `turns` 3, the axis has 3 blocks, and each block has a third of the rows of
every part, in order. So lie the samples of a tensor (time, sample, feature) whose first two axes were made one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

from gradproof.shadow.follow.terms import UNIT, ZERO, Combination, Powers, Shape, Terms, mapped, multiplied, plus, times

SHARED = -1


@dataclass(frozen=True, slots=True)
class Value:
    """`axis` is SHARED for a value of one part, else the axis along which the parts lie. `rows`: those of a part."""

    parts: tuple[Combination, ...]
    axis: int = SHARED
    rows: int = 1
    turns: int = 1

    @property
    def shared(self) -> bool:
        """Whether the value is one combination."""
        return self.axis == SHARED

    @property
    def layout(self) -> tuple[int, int, int]:
        """How the parts lie: their axis, their number, and their turns."""
        return self.axis, len(self.parts), self.turns

    def holding(self, parts: Sequence[Combination]) -> Value:
        """Other parts that lie alike."""
        return Value(tuple(parts), self.axis, self.rows, self.turns)

    def scaled(self, by: Fraction) -> Value:
        """The value times a rational."""
        return self.holding([times(part, by) for part in self.parts])


NOUGHT = Value((ZERO,))


def shape_with(shape: Shape, axis: int, rows: int) -> Shape:
    """A shape with another size of one axis."""
    return (*shape[:axis], rows, *shape[axis + 1 :])


def part_shape(value: Value, shape: Shape) -> Shape:
    """The shape of one part of a tensor."""
    return shape if value.shared else shape_with(shape, value.axis, value.rows)


def shared(combination: Combination) -> Value:
    """A value of one combination."""
    return Value((combination,))


class Algebra:
    """Values over a store of terms."""

    backward = False
    """Whether autograd runs: what it joins are the gradients of what was split, sums over samples among them."""
    marks = False
    """Whether a term says that it stands for all samples of a micro-batch, also where that has one sample."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.sums: dict[tuple[int, Shape], int] = {}

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

    def original(self, value: Value) -> int | None:
        """The parameter that a value is a copy of; None where it is anything else."""
        ((term, by),) = value.parts[0].items() if value.shared and len(value.parts[0]) == 1 else ((self.terms.one, 0),)
        return term if by == 1 and self.terms.operators[term] in ("parameter", "state") else None

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
        return value.holding([times(self.terms.rescaled(part, powers), by) for part in value.parts])

    def single(self, combination: Combination) -> Combination:
        """A combination of one element without a shape, its named sums taken apart."""
        found: Combination = ZERO
        for term, by in combination.items():
            bare, powers = self.terms.bare(term)
            bare = self.terms.inner(bare, "reshape")
            parts = self.terms.parts_of(bare)
            inner = {self.reshaped(bare, ()): UNIT} if bare in parts else self.single(parts)
            found = plus(found, self.terms.rescaled(inner, powers), by)
        return found

    def along(self, axis: int, rows: int, parts: Sequence[Combination], shape: Shape, turns: int = 1) -> Value:
        """A value of parts; each is made one coefficient times one term. `shape` is that of the whole tensor."""
        size = shape_with(shape, axis, rows)
        return Value(tuple(self.terms.factored(part, size) for part in parts), axis, rows, turns)

    def whole(self, value: Value, shape: Shape) -> Combination:
        """The value as one combination; parts become one term, which stands for all of them side by side."""
        if value.shared:
            return value.parts[0]
        if len(value.parts) == 1:
            return self.gathered(value.parts[0])
        if all(self.uniform(part) for part in value.parts) and len({frozenset(p.items()) for p in value.parts}) == 1:
            return value.parts[0]
        size, axis = part_shape(value, shape), value.axis
        parts = [self.fitted(part, size) for part in value.parts]
        if value.turns == 1:
            return self.laid(parts, [size] * len(parts), axis, shape)
        small = (*shape[:axis], value.turns, value.rows // value.turns, *shape[axis + 1 :])
        wide = shape_with(small, axis + 1, shape[axis] // value.turns)
        apart = [mapped(part, lambda term: self.reshaped(term, small)) for part in parts]
        made = self.laid(apart, [small] * len(parts), axis + 1, wide)
        return mapped(made, lambda term: self.reshaped(term, shape))

    def beside(self, kids: Sequence[int], axis: int, shape: Shape) -> int:
        """Rows that masks chose of samples, one after the other: those of each are as many as its mask says."""
        rows = tuple((self.terms.shapes[kid] or ())[axis] for kid in kids)
        return self.terms.make("chosen", (axis, rows), tuple(kids), shape)

    def chosen(self, combination: Combination) -> tuple[int, tuple[int, ...]] | None:
        """The axis of rows that masks chose, and how many of each sample; None where there is none, or several."""
        terms = self.terms
        bare = (terms.bare(term)[0] for term in combination)
        found: set[Any] = {terms.attributes[one] for one in bare if terms.operators[one] == "chosen"}
        return found.pop() if len(found) == 1 else None

    def laid(self, parts: Sequence[Combination], shapes: Sequence[Shape], axis: int, out: Shape) -> Combination:
        """Combinations side by side, as one coefficient times one term: that of the first part is taken out."""
        by = next((part[self.terms.leading(part)] for part in parts if part), None)
        if by is None:
            return ZERO
        powers = self.terms.common({term: by for part in parts for term in part})
        parts = [self.terms.rescaled(part, multiplied({}, powers, -1)) for part in parts]
        kids = [self.terms.named(times(part, 1 / by), size) for part, size in zip(parts, shapes, strict=True)]
        kinds = {kid: (self.terms.operators[kid], self.terms.attributes[kid]) for kid in kids}
        solid = [
            part
            for kid, size in zip(kids, shapes, strict=True)
            for part in (self.terms.kids[kid] if kinds[kid] == ("cat", (axis,)) else (self.solid(kid, size),))
        ]
        return {self.terms.scaled(self.terms.make("cat", (axis,), tuple(solid), out), powers): by}

    def solid(self, term: int, shape: Shape) -> int:
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
        own = terms.shapes[term] or ()
        if prod(own) == prod(shape):
            return self.reshaped(term, shape)
        lead = next((at for at, rows in enumerate(own) if rows != 1), len(own))
        return terms.make("expand", (), (self.reshaped(term, own[lead:]),), shape)

    def split(self, combination: Combination, shape: Shape, axis: int, rows: int, turns: int = 1) -> list[Combination]:
        """A combination of terms of a shape as parts along an axis."""
        if self.uniform(combination) or shape[axis] == rows:
            return [combination] * (shape[axis] // rows)
        if turns == 1:
            return [self.piece(combination, axis, at, rows) for at in range(0, shape[axis], rows)]
        whole, each = self.fitted(combination, shape), rows // turns
        rules = [partial(self._in_turn, axis, at, rows, turns) for at in range(0, shape[axis] // turns, each)]
        return [mapped(whole, rule) for rule in rules]

    def repeats(self, combination: Combination, axis: int) -> bool:
        """Whether a combination of terms that are not broadcast any more is the same in each row of an axis."""
        terms = self.terms
        bare = (terms.bare(one)[0] for one in combination)
        return all(terms.shapes[term] is None or self._one_row(term, axis) is not None for term in bare)

    def _one_row(self, term: int, axis: int) -> int | None:
        """What is broadcast along an axis in a term, or None where its rows are its own."""
        terms = self.terms
        if terms.operators[term] != "expand":
            return None
        (kid,) = terms.kids[term]
        inner = terms.shapes[kid] or ()
        own = axis - (len(terms.shapes[term] or ()) - len(inner))
        return kid if own < 0 or inner[own] == 1 else None

    def _in_turn(self, axis: int, start: int, rows: int, turns: int, term: int) -> int:
        """`rows` rows in all, of each of the blocks of an axis as many."""
        shape = self.terms.shapes[term]
        if shape is None or self._one_row(self.terms.bare(term)[0], axis) is not None:
            return self.slice(term, axis, 0, rows, 1)
        apart = self.reshaped(term, (*shape[:axis], turns, shape[axis] // turns, *shape[axis + 1 :]))
        return self.reshaped(self.slice(apart, axis + 1, start, rows // turns, 1), shape_with(shape, axis, rows))

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
        small = shape_with(shape, axis, count)
        operator, kids = terms.operators[term], terms.kids[term]
        if operator == "expand":
            row, own = self._one_row(term, axis), axis - (len(shape) - len(terms.shapes[kids[0]] or ()))
            return self.broadcast(row if row is not None else self.slice(kids[0], own, start, count, step), small)
        if operator == "slice" and terms.attributes[term][0] == axis:
            _, first, _, by = terms.attributes[term]
            return terms.make("slice", (axis, first + by * start, count, by * step), kids, small)
        if (
            operator == "constant_pad_nd"
            and step == 1
            and (inner := self._unpadded(term, axis, start, count)) is not None
        ):
            return self.slice(kids[0], axis, inner, count, step)
        if operator == "range":
            first, by = terms.attributes[term]
            return terms.make("range", (first + by * start, by * step), (), small)
        if operator == "cat" and terms.attributes[term][0] == axis and step == 1 and count:
            pieces = self._pieces(kids, axis, start, count)
            if pieces is not None:
                return pieces[0] if len(pieces) == 1 else terms.make("cat", (axis,), tuple(pieces), small)
        return terms.make("slice", (axis, start, count, step), (term,), small)

    def _unpadded(self, term: int, axis: int, start: int, count: int) -> int | None:
        """Where rows of a tensor that is padded along one axis start in what was padded, if they all lie there."""
        widths, shape = self.terms.attributes[term][1][1], self.terms.shapes[self.terms.kids[term][0]]
        at = 2 * (len(shape or ()) - 1 - axis)
        if shape is None or at >= len(widths) or any(width for i, width in enumerate(widths) if i not in (at, at + 1)):
            return None
        inner = start - widths[at]
        return inner if 0 <= inner <= inner + count <= shape[axis] else None

    def _pieces(self, kids: Sequence[int], axis: int, start: int, count: int) -> list[int] | None:
        """What lies in some rows of tensors side by side; None where one has no shape."""
        found = []
        for kid in kids:
            size = self.terms.shapes[kid]
            if size is None:
                return None
            first, last = max(start, 0), min(start + count, size[axis])
            if first < last:
                found.append(self.slice(kid, axis, first, last - first, 1))
            start -= size[axis]
        return found

    def reshaped(self, term: int, shape: Shape) -> int:
        """A term in another shape, its elements in the same order."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.reshaped(inner, shape))
        if terms.shapes[term] is None or terms.shapes[term] == shape:
            return term
        if terms.operators[term] == "chosen":
            axis, rows = terms.attributes[term]
            if shape[: axis + 1] == (terms.shapes[term] or ())[: axis + 1]:
                sizes = [shape_with(shape, axis, count) for count in rows]
                kids = [self.reshaped(kid, size) for kid, size in zip(terms.kids[term], sizes, strict=True)]
                return self.beside(kids, axis, shape)
        if terms.operators[term] == "reshape":
            return self.reshaped(terms.kids[term][0], shape)
        if terms.operators[term] == "expand":
            inner, old = terms.shapes[terms.kids[term][0]] or (), terms.shapes[term] or ()
            if old[len(old) - len(inner) :] == inner == shape[max(len(shape) - len(inner), 0) :]:
                return self.broadcast(terms.kids[term][0], shape)
        if terms.operators[term] == "combination":
            return self._reshaped_sum(term, shape)
        return terms.make("reshape", (), (term,), shape)

    def _reshaped_sum(self, term: int, shape: Shape) -> int:
        """A named sum in another shape. Sums within it come first, for those of a deep model lie within each other."""
        terms, made, stack = self.terms, self.sums, [term]
        while (term, shape) not in made:
            one = stack[-1]
            parts = self.fitted(terms.parts_of(one), terms.shapes[one] or ())
            inner = [terms.bare(part)[0] for part in parts]
            sums = [kid for kid in inner if terms.operators[kid] == "combination" and terms.shapes[kid] != shape]
            missing = [kid for kid in sums if (kid, shape) not in made]
            stack += missing
            if not missing:
                made[stack.pop(), shape] = terms.named(mapped(parts, lambda part: self.reshaped(part, shape)), shape)
        return made[term, shape]

    def distributed(self, combination: Combination) -> Combination:
        """The same, with the summands of each named sum, also of one that was moved as a whole."""
        terms, found = self.terms, ZERO
        for term, by in combination.items():
            bare, powers = terms.bare(term)
            found = plus(found, terms.rescaled(self._summands(bare), powers), by)
        return found

    def _summands(self, term: int) -> Combination:
        terms = self.terms
        operator, attributes, shape = terms.operators[term], terms.attributes[term], terms.shapes[term]
        if operator == "combination" and not terms.closed(term):
            return self.distributed(terms.parts_of(term))
        rules: dict[str, Callable[[int], int]] = {
            "reshape": lambda part: self.reshaped(part, shape or ()),
            "permute": lambda part: self.permuted(part, attributes),
            "slice": lambda part: self.slice(part, *attributes),
        }
        if operator not in rules:
            return terms.of(term)
        (kid,) = terms.kids[term]
        inner = self.fitted(self._summands(kid), terms.shapes[kid] or ())
        return terms.of(term) if inner == terms.of(kid) else mapped(inner, rules[operator])

    def permuted(self, term: int, order: Sequence[int]) -> int:
        """A term with its axes in another order."""
        terms = self.terms
        if terms.operators[term] == "scaled":
            return self.beneath(term, lambda inner: self.permuted(inner, order))
        shape = terms.shapes[term]
        if shape is None or list(order) == sorted(order):
            return term
        if terms.operators[term] == "expand":
            inner = terms.shapes[terms.kids[term][0]] or ()
            whole = self.reshaped(terms.kids[term][0], (*(1,) * (len(shape) - len(inner)), *inner))
            return self.broadcast(self.permuted(whole, order), tuple(shape[axis] for axis in order))
        if terms.operators[term] == "permute":
            inner = terms.attributes[term]
            return self.permuted(terms.kids[term][0], [inner[axis] for axis in order])
        made, long = tuple(shape[axis] for axis in order), [axis for axis in order if shape[axis] != 1]
        if terms.operators[term] == "chosen":
            axis = list(order).index(terms.attributes[term][0])
            return self.beside([self.permuted(kid, order) for kid in terms.kids[term]], axis, made)
        return self.reshaped(term, made) if long == sorted(long) else terms.make("permute", tuple(order), (term,), made)

    # -- Movements of values: views, slices and joins, which change where parts lie and no number.
    #
    # Each movement takes a value and the shape of its tensor, and gives the value of the moved tensor. Parts stay parts
    # where each lies in whole rows of one axis of the result; else they become one term.

    def reshape(self, value: Value, old: Shape, new: Shape, axis: int | None = None) -> Value:
        """The same elements in the same order. `axis`: where the caller knows that the parts lie in the result."""
        if old == new:
            return value
        turns = value.turns
        if not value.shared and axis is None:
            axis, turns = relocated(value, old, new)
        if not value.shared and axis is None and len(value.parts) == 1:
            value = shared(value.parts[0])
        if value.shared or axis is None:
            whole = self.terms.opened(self.fitted(self.whole(value, old), old))
            made = mapped(whole, lambda term: self.reshaped(term, new))
            return (self._blocks(whole, old, new) if value.shared and self._lost(made) else None) or shared(made)
        rows = new[axis] // len(value.parts)
        size = shape_with(new, axis, rows)
        moved = self._moved(value, old, lambda term: self.reshaped(term, size))
        return Value(moved.parts, axis, rows, turns)

    def _lost(self, made: Combination) -> bool:
        """Whether a reshape was left as it is, beneath which rows may repeat."""
        return any(self.terms.operators[self.terms.bare(term)[0]] == "reshape" for term in made)

    def _blocks(self, whole: Combination, old: Shape, new: Shape) -> Value | None:
        """What repeats along an axis that becomes a part of the first, as queries that all samples have."""
        for axis, count in enumerate(old[:2] if new and new[:1] != old[:1] else ()):
            turns = prod(old[:axis])
            if count > 1 and turns and new[0] % (turns * count) == 0 and self.repeats(whole, axis):
                size = (new[0] // count, *new[1:])
                part = mapped(self.piece(whole, axis, 0, 1), partial(self.reshaped, shape=size))
                return Value((self.terms.factored(part, size),) * count, 0, size[0], turns)
        return None

    def permute(self, value: Value, shape: Shape, order: Sequence[int]) -> Value:
        """The axes in another order; all of them are given, not negative."""
        moved = self._moved(value, shape, lambda term: self.permuted(term, order))
        return moved if value.shared else replace(moved, axis=list(order).index(value.axis))

    def _moved(self, value: Value, shape: Shape, rule: Callable[[int], int]) -> Value:
        """A movement of every part."""
        given = [self.terms.opened(p) for p in value.parts] if value.shared else value.parts
        made = [mapped(self.fitted(p, part_shape(value, shape)), rule) for p in given]
        return value.holding([{term: by for term, by in part.items() if not self._nothing(term)} for part in made])

    def _nothing(self, term: int) -> bool:
        """Whether a term is zeros, as rows that were written over are."""
        inner = self.terms.inner(self.terms.bare(term)[0], "filled", "reshape", "expand", "permute", "slice")
        return self.terms.operators[inner] == "combination" and not self.terms.kids[inner]

    def expand(self, value: Value, old: Shape, new: Shape) -> Value:
        """A broadcast to a larger shape."""
        if old == new:
            return value
        if value.shared:
            return shared(self.fitted(self.fitted(value.parts[0], old), new))
        axis = value.axis + len(new) - len(old)
        if new[axis] != old[value.axis]:
            return self.expand(shared(self.whole(value, old)), old, new)
        moved = self._moved(value, old, lambda term: self.broadcast(term, shape_with(new, axis, value.rows)))
        return replace(moved, axis=axis)

    def cut(self, value: Value, shape: Shape, axis: int, start: int, count: int, step: int = 1) -> Value:
        """`count` rows along an axis, every `step`-th from `start`."""
        if value.shared or axis != value.axis:
            return self._moved(value, shape, lambda term: self.slice(term, axis, start, count, step))
        rows = value.rows
        if value.turns > 1:
            return self._turns(value, shape, start, count, step)
        if rows == 1 and count:
            return Value(value.parts[start : start + step * (count - 1) + 1 : step], axis, 1)
        if step == 1 and count and start % rows == 0 and count % rows == 0:
            return Value(value.parts[start // rows : (start + count) // rows], axis, rows)
        at = start // rows
        if step == 1 and count and (start + count - 1) // rows == at:
            part = self.fitted(value.parts[at], part_shape(value, shape))
            return Value((self.piece(part, axis, start - at * rows, count),), axis, count)
        return self.cut(shared(self.whole(value, shape)), shape, axis, start, count, step)

    def _turns(self, value: Value, shape: Shape, start: int, count: int, step: int) -> Value:
        """Rows along an axis in which parts take turns: whole turns stay apart."""
        axis, each = value.axis, value.rows // value.turns
        first, left = divmod(start, each * len(value.parts))
        turns, over = divmod(count, each * len(value.parts))
        if step != 1 or not turns or left or over:
            return self.cut(shared(self.whole(value, shape)), shape, axis, start, count, step)
        given = (self.fitted(part, part_shape(value, shape)) for part in value.parts)
        return Value(
            tuple(self.piece(part, axis, first * each, turns * each) for part in given), axis, turns * each, turns
        )

    def split_like(self, value: Value, shape: Shape, lead: Value) -> list[Combination]:
        """A value as parts that lie as those of another."""
        if value.layout == lead.layout:
            return list(value.parts)
        return self.split(self.fitted(self.whole(value, shape), shape), shape, lead.axis, lead.rows, lead.turns)

    def select(self, value: Value, shape: Shape, axis: int, index: int) -> Value:
        """One row, without its axis."""
        one = self.cut(value, shape, axis, index, 1)
        small, gone = shape_with(shape, axis, 1), (*shape[:axis], *shape[axis + 1 :])
        if one.shared or one.axis == axis:
            alone = not value.shared and len(value.parts) == 1  # it may lie along another axis, which is left
            part = self.fitted(one.parts[0], small)
            return self.reshape(shared(self.gathered(part) if alone else part), small, gone)
        return self.reshape(one, small, gone, one.axis - (one.axis > axis))

    def join(self, values: Sequence[Value], shapes: Sequence[Shape], axis: int, out: Shape) -> Value:
        """Tensors one after the other along an axis."""
        values, shapes = zip(*[(v, s) for v, s in zip(values, shapes, strict=True) if s != (0,)], strict=True)
        across = {v.layout: v for v in values if not v.shared and v.axis != axis}
        if len(across) == 1 and all(v.shared or v.axis != axis for v in values):
            return self._beside(values, shapes, axis, out, next(iter(across.values())))
        rows = {v.rows if v.axis == axis else s[axis] for v, s in zip(values, shapes, strict=True)}
        if len(rows) == 1 and not across and self._apart(values, axis) and all(v.turns == 1 for v in values):
            small = shape_with(out, axis, rows.copy().pop())
            parts = [p for v in values for p in v.parts]
            return self.along(axis, rows.pop(), [self.fitted(p, small) for p in parts], out)
        wholes = [self.fitted(self.whole(v, s), s) for v, s in zip(values, shapes, strict=True)]
        if all(w == wholes[0] for w in wholes) and (shapes[0][axis] == 1 or self.uniform(wholes[0])):
            return self.expand(shared(wholes[0]), shapes[0], out)
        if self.backward and all(v.shared for v in values) and any(len(w) > 1 for w in wholes):
            return shared(self._placed(wholes, shapes, axis, out))
        return shared(self.laid(wholes, shapes, axis, out))

    def _placed(self, wholes: Sequence[Combination], shapes: Sequence[Shape], axis: int, out: Shape) -> Combination:
        """Sums side by side, as the sum of their summands with zeros around them."""
        total: Combination = ZERO
        start = 0
        for whole, shape in zip(wholes, shapes, strict=True):
            total = plus(total, mapped(whole, partial(self._in_zeros, axis, start, shape, out)))
            start += shape[axis]
        return total

    def _in_zeros(self, axis: int, start: int, shape: Shape, out: Shape, term: int) -> int:
        if self.terms.operators[term] == "scaled":
            return self.beneath(term, partial(self._in_zeros, axis, start, shape, out))
        where = (axis, out[axis], start, start + shape[axis], 1)
        return self.terms.make("slice_backward", (0, where, ()), (self.solid(term, shape),), out)

    def _apart(self, values: Sequence[Value], axis: int) -> bool:
        """Whether what is joined is of samples: it has parts along the axis, or a piece has one owner."""
        owners = [self.terms.owners[self.terms.bare(term)[0]] for v in values for part in v.parts for term in part]
        return any(v.axis == axis for v in values) or any(owner >= 0 for owner in owners)

    def _beside(self, values: Sequence[Value], shapes: Sequence[Shape], axis: int, out: Shape, lead: Value) -> Value:
        """Tensors one after the other, whose parts lie as those of one of them along another axis: part by part."""
        smalls = [shape_with(shape, lead.axis, lead.rows) for shape in shapes]
        columns = [self.split_like(value, shape, lead) for value, shape in zip(values, shapes, strict=True)]
        parts = [
            [self.fitted(p, size) for p, size in zip(row, smalls, strict=True)] for row in zip(*columns, strict=True)
        ]
        return lead.holding([self.laid(row, smalls, axis, shape_with(out, lead.axis, lead.rows)) for row in parts])


def number(x: Algebra, value: Value) -> Fraction | None:
    """The rational that a value holds everywhere, or None."""
    if not value.shared or not x.constant(value.parts[0]):
        return None
    return value.parts[0].get(x.terms.one, Fraction(0))


def relocated(value: Value, old: Shape, new: Shape) -> tuple[int | None, int]:
    """The axis of the new shape along which the parts of a value lie, and their turns; None where there is none.

    Of all elements in order, `each` are of the first part, as many of the next, and so on, and then of the first again.

    One part may lie along any axis, and is the whole tensor: an axis is taken along which several parts would lie. That
    is none that was there before, and rather one whose rows are those of a part.
    """
    count, held = len(value.parts), old[value.axis]
    each = value.rows // value.turns * prod(old[value.axis + 1 :])
    fitting = []
    for axis, size in enumerate(new):
        after = prod(new[axis + 1 :])
        if size and after and each % after == 0 and (size * after) % (count * each) == 0:
            fitting.append((axis, size * after // (count * each)))
    if count > 1:
        fitting.sort(key=lambda one: (one[1] != 1, new[one[0]] != held))
    else:
        kept = {(size, prod(old[axis + 1 :])) for axis, size in enumerate(old) if axis != value.axis}
        left = {axis: prod(new[axis + 1 :]) for axis, _ in fitting}
        fitting.sort(key=lambda one: ((new[one[0]], left[one[0]]) in kept, left[one[0]] != each, one[1] != 1))
    return next(iter(fitting), (None, 1))
