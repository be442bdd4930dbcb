"""Applies laws to the values of a call: what each operator makes of the parts of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.follow.terms import (
    NOBODY,
    SIZE,
    UNIT,
    ZERO,
    Combination,
    Number,
    Powers,
    Shape,
    Terms,
    added,
    exact,
    multiplied,
    plus,
    times,
)
from gradproof.shadow.follow.values import Algebra, Value, part_shape, shape_with, shared
from gradproof.shadow.locations import Location, user_location

LETTERS = "abcdefghijklmnop"
NONE = "?"
"""The letter of no axis."""
SUMMANDS = 1024
"""Summands of a shared value that are followed apart; where samples meet in a recurrence they multiply."""


LOOKUPS = frozenset({"index", "index_select", "index_put", "embedding", "gather", "take", "scatter"})
"""Operators that are given places in a tensor."""
COUNTING = ("arange", "linspace", "logspace", "ones", "full")
"""Operators that make the data of toy examples, by no draw."""
MOST = 1024
"""The most rows of a tensor that are taken apart where no size says that they are samples."""


# -- Float constants stand for rationals: 1/3 typed into a loop is a float near it.
#
# One rule, for every plain number, where it enters: a float is the simplest rational near it, if that is far simpler
# than the float; else it is itself. So N * (1/N) is 1, and 0.3333 is not 1/3. Near is what the roundings that made it
# may do, so that nothing is taken for equal that differs by more. A power of two rounds nothing: x and x/4 are read
# alike.
NEAR = {"float64": ((Fraction(1, 2**52), 2**20),), "float32": ((Fraction(1, 2**24), 4096), (Fraction(3, 2**24), 1024))}
"""Greatest relative distance, and greatest denominator, of the rational, nearest first.

float64: 2^-52, two roundings (`1 / N / T` has two). float32: 2^-24, one rounding, else three (autograd divides by the
window's tokens and multiplies by the micro-batch's). Two rationals of these denominators below 1 lie farther apart
than that, or are equal.
"""
SMALL, RECIPROCAL = 2**-10, 2**17
"""A small float32 is compared with 1/k first, k odd and up to 2^18: these are far more than three roundings apart."""


def simplest(low: Fraction, high: Fraction) -> Fraction:
    """The rational of least denominator in [low, high], 0 < low <= high (Stern-Brocot, by continued fractions)."""
    whole = math.ceil(low)
    if whole <= high:
        return Fraction(whole)
    floor = whole - 1
    return floor + 1 / simplest(1 / (high - floor), 1 / (low - floor))


@lru_cache(maxsize=4096)
def snapped(x: float) -> Fraction:
    """The rational that a finite float stands for: itself where nothing simpler is near enough."""
    part, exponent = math.frexp(x)
    size, unit = Fraction(abs(part)), Fraction(2) ** exponent * (-1 if x < 0 else 1)
    if not x:
        return Fraction(0)
    with np.errstate(over="ignore"):
        kinds = ["float32", "float64"] if float(np.float32(x)) == x else ["float64"]
    whole = Fraction(RECIPROCAL, round(RECIPROCAL / size))
    small = kinds[0] == "float32" and abs(x) < SMALL and whole.denominator < size.denominator
    if small and abs(whole / size - 1) <= NEAR["float32"][1][0]:
        return whole * unit
    for reach, limit in (near for kind in kinds for near in NEAR[kind]):
        found = simplest(size * (1 - reach), size * (1 + reach))
        if found.denominator <= limit and found.denominator**2 <= size.denominator:
            return found * unit
    return Fraction(x)


# -- Calls, laws, and what the laws make of a call.


@dataclass(slots=True)
class Call:
    """One call of an operator. `tensors`, `values` and `shapes` are of its tensor arguments, in order.

    `attributes`: the arguments that are no tensors, in their places, and the overload.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attributes: tuple[Any, ...]
    tensors: list[torch.Tensor]
    values: list[Value]
    shapes: list[Shape]
    out: list[torch.Tensor | None]
    arguments: tuple[str, ...] = ()
    coupled: list[int] = field(default_factory=list)

    def out_shape(self, at: int = 0) -> Shape:
        """The shape of a result; () where there is none."""
        made = self.out[at]
        return () if made is None else tuple(made.shape)

    def numeric(self) -> bool:
        """Whether sums of the first result are those of numbers: not of booleans, bytes or complex ones."""
        made = self.out[0]
        return made is not None and (made.is_floating_point() or made.dtype in (torch.int32, torch.int64))

    def some(self, *chosen: int, **changes: Any) -> Call:
        """The same call with some of its tensors, in this order, and other `changes`."""
        tensors, values = [self.tensors[at] for at in chosen], [self.values[at] for at in chosen]
        return replace(self, tensors=tensors, values=values, shapes=[self.shapes[at] for at in chosen], **changes)

    def truncates(self) -> bool:
        """Whether the result of numbers with fractions has none, as that of `x.sum(dtype=torch.int64)`."""
        made = self.out[0]
        return made is not None and not made.is_floating_point() and self.tensors[0].is_floating_point()

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        """An argument by its place, or by its name."""
        return self.args[at] if at < len(self.args) else self.kwargs.get(name, default)


Letters = tuple[list[str], list[str]]
"""The letters of the tensor arguments, and of the results."""


@dataclass(frozen=True, slots=True)
class Law:
    """`letters` of a call; the arguments in which it is linear; what of its other arguments is part of the term.

    `uniform`: of numbers that are one everywhere it makes one. `commutes`: its arguments may change places.
    """

    letters: Callable[[Call], Letters]
    linear: tuple[int, ...] = ()
    attributes: Callable[[Call], tuple[Any, ...]] | None = None
    uniform: bool = False
    commutes: bool = False


def _padded(known: NDArray[Any], template: tuple[Any, ...], ignored: int) -> NDArray[Any] | None:
    """A mask of labels after `constant_pad_nd(labels, widths, value)`; None for a negative width."""
    widths, value = template[1], template[2] if len(template) > 2 else 0
    if any(width < 0 for width in widths):
        return None
    pairs = [(0, 0)] * (known.ndim - len(widths) // 2)
    pairs += [(widths[i], widths[i + 1]) for i in range(len(widths) - 2, -1, -2)]
    counts = value != ignored if isinstance(value, int) else float.fromhex(value[1]) != ignored
    return np.pad(known, pairs, constant_values=counts)


class Interpreter(Algebra):
    """Applies laws to the values of a call."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self.reduced: dict[int, tuple[Combination, Combination, str]] = {}
        self.numbers, self.locations = dict[int, float](), dict[int, Location]()
        self.near: dict[float, Fraction] = {}
        """The float constants that stand for another rational than the one that they are."""
        self.integers = False
        """Whether counts are the numbers of this run, and no unknowns."""
        self.every_label = self.smooths = False
        """Whether every label of a loss counts, as far as is known."""
        self.tallied: dict[int, Combination] = {}
        """How many of the truth values of a term are true, where counts are the numbers of this run."""
        self.rows_chosen: dict[Location, list[int]] = {}
        """By line, how many rows data chose, call by call."""
        self.reads_line: Callable[[float, bool], tuple[Fraction, Powers] | None] = lambda *_: None
        """What a plain number is made of that an operator is given, and whether it scales a whole loss, by its line."""
        self.looked: Callable[[torch.Tensor], list[int]] | None = None
        """Reads the numbers of a list of indices, where there are numbers."""

    def exact(self, number: Any) -> Fraction | None:
        """A Python number as the rational that it stands for, as a float, or that it is."""
        found = exact(number)
        if found is None or isinstance(number, int) or (near := snapped(number)) == found:
            return found
        self.near[number] = near
        return near

    def factor(self, number: Any, single: bool = False) -> tuple[Fraction | None, Powers]:
        """A number that scales a tensor, which may be of one element, as a rational times powers of named numbers."""
        found = exact(number)
        named = None if found is None or abs(found) in (0, 1) else self.reads_line(number, single)
        return (self.exact(number), {}) if named is None else named

    def counted_by(self, call: Call, dims: Sequence[int]) -> Powers:
        """By what a mean over some axes divides: the rows of a micro-batch, and what else it counts, have a name."""
        value, shape = call.values[0], call.shapes[0]
        along = -1 if value.shared else value.axis
        rest, rows = math.prod(shape[dim] for dim in dims if dim != along), shape[along] if along in dims else 1
        sizes = ((rest, 0), (rows, rows))
        found = [Number(SIZE, "a mean", "", 0, size, rows=own) for size, own in sizes if size > 1]
        return {self.named(number): -1 for number in found}

    def labels(self, counts: Sequence[Combination], value: Value, shape: Shape) -> Combination:
        """How many labels all samples have: where every label counts, a multiple of the rows of the micro-batch."""
        total = added(counts)
        if not self.marks or value.shared or not total or not self.constant(total):
            return total
        rows = shape[value.axis]
        term = self.named(Number(SIZE, "rows", "", 0, rows, rows=rows))
        return {self.terms.scaled(self.terms.one, {term: 1}): total[self.terms.one] / rows}

    def held(self, value: Combination) -> Fraction | None:
        """A number that tensors hold, as a count or a weight, in this run; None where it is not known."""
        total = Fraction(0)
        for term, by in value.items():
            bare, powers = self.terms.bare(term)
            for scalar, power in multiplied(powers, {} if bare == self.terms.one else {bare: 1}).items():
                held = self._of_scalar(scalar)
                if not held:
                    return None
                by *= held**power
            total += by
        return total

    def _of_scalar(self, scalar: int) -> Fraction | None:
        if scalar in self.numbers:
            return exact(self.numbers[scalar])
        return self.held(self.terms.parts_of(scalar)) if self.terms.operators[scalar] == "combination" else None

    def named(self, number: Number) -> int:
        """The term of a number that has a name."""
        term = self.terms.make("named", (number,), (), ())
        self.numbers[term] = number.value
        return term

    def reduces(self, made: Value, masses: Sequence[Combination], kind: str, whole: Combination | int) -> None:
        """A loss became a sum, or a mean, of a whole: keep how many of its elements each of its terms stands for.

        What no sample is made of stands beside the terms of samples; it counts once.
        """
        terms, one = list(made.parts[0]) if made.shared else [], self.ones().parts[0]
        beside = [term for term in terms if self.terms.owners[self.terms.bare(term)[0]] == NOBODY]
        if masses and len(terms) > len(beside) > 0:
            self.reduced |= {self.terms.bare(term)[0]: (one, one, kind) for term in beside}
            terms = [term for term in terms if term not in beside]
        apart = len(masses) == len(terms)
        plain = self.ones(Fraction(whole)).parts[0] if isinstance(whole, int) else whole
        total = added(masses) if apart and isinstance(whole, int) else plain
        for term, mass in zip(terms, masses if apart else list(masses) * len(terms), strict=False):
            self.reduced.setdefault(self.terms.bare(term)[0], (mass, total, kind))

    def scales(self, powers: Powers, by: Fraction, tensor: torch.Tensor) -> None:
        """Something is scaled by a scalar of a real run: keep its number, and the line."""
        new = [scalar for scalar, power in powers.items() if power == 1 and scalar not in self.numbers]
        known = {scalar: power for scalar, power in powers.items() if scalar in self.numbers}
        if (self.marks or self.looked) and len(new) == 1 and len(known) + 1 == len(powers):
            others = math.prod(self.numbers[scalar] ** power for scalar, power in known.items())
            with _disable_current_modes():
                self.numbers[new[0]] = float(tensor.detach().flatten()[0]) / float(by) / others
            self.locations[new[0]] = user_location()

    def apply(self, law: Law, call: Call) -> list[Value]:
        """The values of the results."""
        ins, outs = law.letters(call)
        attributes = call.attributes if law.attributes is None else law.attributes(call)
        letter, count, turns, rows = self._laid(call, ins)
        again = self._alike(call, ins, outs) if letter == NONE else None
        if again is None:
            kids = [self._parts(call, at, text.find(letter), count, turns, rows) for at, text in enumerate(ins)]
        else:
            letter, rows, kids = again, [1], [self._row(call, at, text.find(again)) for at, text in enumerate(ins)]
        made = []
        for at, letters in enumerate(outs):
            whole = call.out_shape(at)
            axis = -1 if call.out[at] is None else letters.find(letter)
            each = rows or [whole[axis] // count] * count if axis >= 0 else []
            sizes = [shape_with(whole, axis, own) for own in each] or [whole] * count
            own = list(zip(*kids, strict=True)) or [()] * count
            if axis >= 0 and again is None:
                parts = [self._term(law, call, at, attributes, *one) for one in zip(own, sizes, strict=True)]
                laid = shared(self.laid_chosen(parts, sizes, axis, whole)) if rows else None
                made.append(laid or Value(tuple(parts), axis, each[0], turns))
                continue
            pairs = zip(own, sizes, strict=True)
            total = added(self._spread(law, call, at, attributes, one, size) for one, size in pairs)
            if again is not None:
                total = self.fitted(self.fitted(total, sizes[0]), whole)
            elif count == 1 and letter != NONE and not rows:
                total = self.gathered(total)
            made.append(shared(total))
        return made

    def _spread(
        self, law: Law, call: Call, at: int, attributes: tuple[Any, ...],
        kids: Sequence[tuple[Combination, Shape]], shape: Shape,
    ) -> Combination:  # fmt: skip
        """The operator on shared arguments: a linear one keeps the summands of its longest linear argument."""
        terms = self.terms
        kids = [
            (terms.merged(terms.opened(part), size), size) if i in law.linear else (part, size)
            for i, (part, size) in enumerate(kids)
        ]
        longest = max(law.linear, key=lambda i: len(kids[i][0]), default=None)
        if longest is None or not 1 < len(kids[longest][0]) <= SUMMANDS:
            return self._term(law, call, at, attributes, kids, shape)
        whole, size = kids[longest]
        every = ([*kids[:longest], ({term: by}, size), *kids[longest + 1 :]] for term, by in whole.items())
        return added(self._term(law, call, at, attributes, each, shape) for each in every)

    def _laid(self, call: Call, ins: Sequence[str]) -> tuple[str, int, int, list[int]]:
        """The letter along which parts lie, with their number and turns; of several the first.

        Else that of rows which masks chose, and how many of each sample.
        """
        for value, letters in zip(call.values, ins, strict=True):
            if not value.shared and letters[value.axis].islower():
                return letters[value.axis], len(value.parts), value.turns, []
        laid = [(self.chosen(v.parts[0]), text) for v, text in zip(call.values, ins, strict=True) if v.shared]
        found = {(text[one[0]], one[1]) for one, text in laid if one is not None}
        ((letter, rows),) = found if len(found) == 1 else {(NONE, ())}
        return (letter, len(rows), 1, list(rows)) if letter.islower() else (NONE, 1, 1, [])

    def _parts(
        self, call: Call, at: int, axis: int, count: int, turns: int, rows: list[int]
    ) -> list[tuple[Combination, Shape]]:
        """The parts of an argument along an axis, or as many of it where it has none."""
        value, shape = call.values[at], call.shapes[at]
        size = shape if axis < 0 else shape_with(shape, axis, shape[axis] // count)
        if not rows and value.layout == (axis, count, turns):
            return [(part, size) for part in value.parts]
        if not value.shared:
            call.coupled.append(at)
        whole = self.whole(value, shape)
        if axis < 0:
            return [(whole, shape)] * count
        if rows:
            sizes = [shape_with(shape, axis, own) for own in rows]
            return list(zip(self.choices(whole, shape, axis, rows), sizes, strict=True))
        return [(part, size) for part in self.split(self.fitted(whole, shape), shape, axis, size[axis], turns)]

    def _row(self, call: Call, at: int, axis: int) -> list[tuple[Combination, Shape]]:
        """One row of an argument of which the rows repeat along an axis."""
        shape = call.shapes[at]
        kid = self.fitted(call.values[at].parts[0], shape)
        return [(kid, shape) if axis < 0 else (self.piece(kid, axis, 0, 1), shape_with(shape, axis, 1))]

    def chooses(self, by: Iterable[Combination], rows: int) -> None:
        """Data chose some rows, by truth values or by the places where these are true."""
        if any(self.terms.owners[term] != NOBODY for each in by for term in each):
            self.rows_chosen.setdefault(user_location(), []).append(rows)

    def by_chance(self, batches: int) -> Location | None:
        """A line at which data chose as many rows of each of some micro-batches: other data may choose others."""
        for line, rows in self.rows_chosen.items():
            each = 1 if len(rows) % batches else max(len(rows) // batches, 1)
            if any(len(set(rows[at::each])) == 1 for at in range(each)):
                return line
        return None

    def elements_of(self, value: Value, count: int) -> list[Combination]:
        """How many of `count` elements each part of a value stands for; not known of what a mask chose."""
        chosen = value.shared and self.chosen(value.parts[0])
        return [] if chosen else [self.ones(Fraction(count, len(value.parts))).parts[0]]

    def choices(self, combination: Combination, shape: Shape, axis: int, rows: list[int]) -> list[Combination]:
        """The rows of each sample: those that a mask chose, and as many of what else is in the combination."""
        made, start = [], 0
        for at, count in enumerate(rows):
            total: Combination = ZERO
            for term, by in self.fitted(combination, shape).items():
                bare, powers = self.terms.bare(term)
                own = self.terms.of(self.slice(term, axis, start, count, 1))
                if self.chosen({bare: UNIT}) == (axis, tuple(rows)):
                    own = self.terms.rescaled(self.terms.parts_of(self.terms.kids[bare][at]), powers)
                total = plus(total, own, by)
            made.append(total)
            start += count
        return made

    def laid_chosen(self, parts: Sequence[Combination], sizes: Sequence[Shape], axis: int, out: Shape) -> Combination:
        """Rows that masks chose, with their coefficients inside."""
        kids = [self.solid(self.terms.named(part, size), size) for part, size in zip(parts, sizes, strict=True)]
        return self.terms.of(self.beside(kids, axis, out))

    def _alike(self, call: Call, ins: Sequence[str], outs: Sequence[str]) -> str | None:
        """A letter of each result along which all arguments repeat their rows."""
        if not all(value.shared for value in call.values):
            return None
        kids = [self.fitted(value.parts[0], shape) for value, shape in zip(call.values, call.shapes, strict=True)]
        for letter in dict.fromkeys(x for text in outs for x in text if x.islower()):
            laid = zip(kids, call.shapes, [text.find(letter) for text in ins], strict=True)
            held = [(kid, axis) for kid, shape, axis in laid if axis >= 0 and shape[axis] > 1]
            if held and all(letter in text for text in outs) and all(self.repeats(kid, axis) for kid, axis in held):
                return letter
        return None

    def _term(
        self, law: Law, call: Call, at: int, attributes: tuple[Any, ...],
        kids: Sequence[tuple[Combination, Shape]], shape: Shape,
    ) -> Combination:  # fmt: skip
        """The operator on one part of each argument: a coefficient times a term."""
        by, powers = UNIT, Powers()
        terms: list[int] = []
        for location, (part, size) in enumerate(kids):
            if location in law.linear:
                if not part:
                    return ZERO
                part = self.terms.factored(part, size)
                ((term, factor),) = part.items()
                term, own = self.terms.bare(term)
                by = factor if by is UNIT else by if factor is UNIT else by * factor
                powers = multiplied(powers, own) if own else powers
                terms.append(term)
            else:
                terms.append(self.terms.named(self.terms.opened(part), size))
        if call.name == "sum" and law.linear and self.terms.shapes[terms[0]] is not None:
            return {self.terms.scaled(self._summed(terms[0], attributes[0], kids[0][1], shape), powers): by}
        if law.commutes:
            terms.sort(key=self.terms.order)
        formless = [self.terms.shapes[term] is None for term in terms]
        if law.uniform and all(formless):
            made = self.terms.make(call.name, (at, attributes), tuple(terms), None)
            return {self.terms.scaled(made, powers): by}
        sizes = tuple(size for (_, size), bare in zip(kids, formless, strict=True) if bare and not law.uniform)
        made = self.terms.make(call.name, (at, attributes, sizes), tuple(terms), shape)
        return {self.terms.scaled(made, powers): by}

    def _summed(self, term: int, dims: Sequence[int], size: Shape, shape: Shape) -> int:
        """A sum over axes of a term, from which axes of one row are left out before and put in after."""
        long = [axis for axis, rows in enumerate(size) if rows != 1]
        own = tuple(long.index(axis) for axis in dims if size[axis] != 1)
        inner = self.reshaped(self.broadcast(term, size), tuple(size[axis] for axis in long))
        if not own:
            return self.reshaped(inner, shape)
        left = tuple(size[axis] for axis in long if axis not in dims)
        return self.reshaped(self.terms.make("sum", (0, (own, False), ()), (inner,), left), shape)

    def counting(self, value: Value, shape: Shape, ignored: int, labels: torch.Tensor) -> list[Combination]:
        """For each part, how many labels are not the ignored one: a number, or a scalar where it is not known."""
        size = part_shape(value, shape)
        real = self.marks or self.looked
        if self.integers or real:
            with _disable_current_modes():
                own = [rows_of(labels, value, i) for i in range(len(value.parts))]
                seen = [int((one != ignored).sum()) for one in own]
        if self.integers:
            return [times(self.terms.of(self.terms.one), Fraction(number)) for number in seen]
        counts = [self.count(self.terms.named(part, size), size, ignored) for part in value.parts]
        for count, number in zip(counts, seen if real else (), strict=False):
            self.numbers.update({term: float(number) for term in count if term != self.terms.one})
        return counts

    def count(self, labels: int, size: Shape, ignored: int) -> Combination:
        """How many elements of a term of labels are not the ignored one."""
        seen = self._mask(labels, ignored)
        if seen is not None:
            self.every_label = True
            return times(self.terms.of(self.terms.one), Fraction(int(seen.sum())))
        labels = self.terms.inner(labels, "reshape", "permute")
        if self.terms.operators[labels] == "combination":  # its summands were reshaped, each by itself
            labels = self.reshaped(labels, (math.prod(self.terms.shapes[labels] or ()),))
        return self.terms.of(self.terms.make("count", (ignored,), (labels,), ()))

    def _mask(self, term: int, ignored: int) -> NDArray[Any] | None:
        terms = self.terms
        operator, attributes, shape = terms.operators[term], terms.attributes[term], terms.shapes[term]
        if operator in ("data", "draw"):
            low, high = attributes[-1]
            outside = low is not None and not low <= ignored < high
            return np.ones(shape or (), dtype=bool) if outside else None
        if operator == "filled" and (held := terms.parts_of(term)).keys() <= {terms.one}:
            return np.full(shape or (), held.get(terms.one, 0) != ignored)
        if operator in ("argmax", "argmin"):
            return np.ones(shape or (), dtype=bool) if ignored < 0 else None
        if operator not in ("reshape", "permute", "slice", "cat", "constant_pad_nd") or shape is None:
            return None
        kids = [self._mask(kid, ignored) for kid in terms.kids[term]]
        known = [kid for kid in kids if kid is not None]
        if len(known) != len(kids):
            return None
        if operator == "cat":
            return np.concatenate(known, axis=attributes[0])
        if operator == "slice":
            axis, start, count, step = attributes
            return known[0].take(range(start, start + count * step, step), axis=axis)
        if operator == "constant_pad_nd":
            return _padded(known[0], attributes[1], ignored)
        return known[0].transpose(attributes) if operator == "permute" else known[0].reshape(shape)

    def opaque(self, call: Call) -> list[Value]:
        """The results as uninterpreted functions of whole arguments."""
        call.coupled += [at for at, value in enumerate(call.values) if not value.shared]
        pairs = zip(call.values, call.shapes, strict=True)
        kids = [self.terms.named(self.fitted(self.whole(value, shape), shape), shape) for value, shape in pairs]
        sizes = tuple(call.shapes[i] for i, kid in enumerate(kids) if self.terms.shapes[kid] is None)
        made = (
            self.terms.make(call.name, (at, call.attributes, sizes), tuple(kids), call.out_shape(at))
            for at in range(len(call.out))
        )
        return [shared(self.terms.of(term)) for term in made]


def rows_of(tensor: torch.Tensor, value: Value, at: int) -> torch.Tensor:
    """A view of the rows of a tensor that a part of its value stands for. An axis of turns stands before the rows."""
    if value.shared:
        return tensor
    shape, each = tensor.shape, value.rows // value.turns
    apart = (*shape[: value.axis], value.turns, -1, *shape[value.axis + 1 :])
    return tensor.view(apart).narrow(value.axis + 1, at * each, each)


def within(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The least whole number of a tensor, and the first above its largest."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool or not tensor.numel():
        return (None, None)
    with _disable_current_modes():
        return int(tensor.min()), int(tensor.max()) + 1


# -- Random operators: which there are, and by what numbers they draw.
GENERATORS = frozenset({
    "rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "randint_like", "uniform", "bernoulli",
    "exponential", "random", "cauchy", "log_normal", "geometric",
})  # fmt: skip
"""Random operators whose result depends on no tensor but for its shape, or on the numbers of their first alone."""


def bounds(call: Call) -> tuple[Any, Any]:
    """The least number that a random operator gives and the first above; of others nothing is known."""
    if call.name != "randint":
        return (None, None)
    plain = [arg for arg in call.args if isinstance(arg, int) and not isinstance(arg, bool)]
    return (0, plain[0]) if len(plain) == 1 else (plain[0], plain[1]) if len(plain) == 2 else (None, None)


def settings(call: Call) -> tuple[Any, ...]:
    """The numbers that a random operator is given: a mean, a deviation, a probability, bounds."""
    given = call.attributes[:-1] if call.name != "randperm" else ()
    return tuple(one for one in given if isinstance(one, int) or (isinstance(one, tuple) and one[:1] == ("float",)))


def by_numbers(call: Call, written: list[torch.Tensor]) -> bool:
    """Whether it draws by the numbers of its first tensor: by a mean, or a probability, for each element."""
    first = call.args[0] if call.args else None
    if not isinstance(first, torch.Tensor) or any(first is one for one in written):
        return False
    return call.name == "normal" or (call.name == "bernoulli" and len(call.args) == 1)
