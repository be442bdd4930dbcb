"""Enumerated numbers: a sum of independent inputs of a 16-bit format, as the set of everything that it can be.

A text that runs on them builds the expression. What a result can be, and the least exact sum of inputs that leads to
each number, come from `rounding.lattice` when a claim is decided: the exact worst case over every input. Rounding is
odd and inputs are symmetric, so one side is enough. An input that is used twice, a product of two numbers and a
decision on a number are refused: their exact worst case would not be that of a sum of independent numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from gradproof.arith.context import ManyValued, Undecided, noted
from gradproof.arith.formats import FORMATS, Format
from gradproof.arith.linear import Claimed, NonLinear
from gradproof.arith.soft import Soft

if TYPE_CHECKING:
    from gradproof.rounding.lattice import Sums

ONE = Fraction(1)


class Enumerated(ManyValued):
    """A node: an input (no terms), a rounded sum of two nodes, or a rounded product of one with `factor`.

    `inputs` are the names of the inputs, in the order in which they are summed.
    """

    _refusal = NonLinear

    def __init__(
        self, fmt: str, inputs: tuple[str, ...], reach: Fraction, terms: tuple[Enumerated, ...] = (),
        factor: Fraction = ONE,
    ) -> None:  # fmt: skip
        self.fmt, self.inputs, self.reach, self.terms, self.factor = fmt, inputs, reach, terms, factor

    @classmethod
    def input(cls, name: str, fmt: str, reach: Fraction) -> Enumerated:
        """Every number of the format in [-reach, reach]."""
        return cls(fmt, (name,), reach)

    def rounded(self, fmt: str) -> Enumerated:
        """The same number. Raises NonLinear for another format."""
        if fmt != self.fmt:
            raise NonLinear(f"a conversion of {self.fmt} to {fmt} is not enumerated")
        return self

    def exact(self) -> LinearDifference:
        """This number over the reals."""
        return LinearDifference({id(self): (ONE, self)})

    @cached_property
    def sums(self) -> Sums:
        """Everything that this number can be. Raises NonLinear and OverflowError."""
        if not self.terms:
            return _every(FORMATS[self.fmt], self.reach)
        if len(self.terms) == 2:
            return self.terms[0].sums + self.terms[1].sums
        if self.factor <= 0:
            raise NonLinear("a factor that is not positive is not enumerated")
        return self.terms[0].sums.scaled(self.factor)

    def at(self, values: Mapping[str, Fraction]) -> Soft:
        """The number at given inputs, each operation rounded."""
        if not self.terms:
            return Soft(values[self.inputs[0]], self.fmt)
        if len(self.terms) == 2:
            return self.terms[0].at(values) + self.terms[1].at(values)
        return Soft(self.terms[0].at(values).value * self.factor, self.fmt)

    def __add__(self, other: Any) -> Enumerated:
        if not isinstance(other, Enumerated):
            if _constant(other) == 0:
                return self
            raise NonLinear("a sum with a constant is not enumerated")
        if other.fmt != self.fmt:
            raise NonLinear(f"a sum of {self.fmt} and {other.fmt} is not enumerated")
        if twice := set(self.inputs) & set(other.inputs):
            raise NonLinear(f"a sum of numbers that both rest on {min(twice)}")
        reach = self._reach(self.reach + other.reach)
        return Enumerated(self.fmt, self.inputs + other.inputs, reach, (self, other))

    __radd__ = __add__

    def __neg__(self) -> Enumerated:
        return self._times(-ONE)

    def __sub__(self, other: Any) -> Enumerated:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> Enumerated:
        return self.__neg__().__add__(other)

    def __mul__(self, other: Any) -> Enumerated:
        return self._times(self._held(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Enumerated:
        c = self._held(other)
        if c == 0:
            raise noted(ZeroDivisionError("a division by the constant zero"))
        return self._times(1 / c)

    def _held(self, c: Any) -> Fraction:
        exactly, f = _constant(c), FORMATS[self.fmt]
        if f.bits == 16 and not f.representable(exactly):
            raise NonLinear(f"{exactly} is no {f.name} number, and torch and NumPy round such a scalar differently")
        return f.round(exactly)

    def _times(self, factor: Fraction) -> Enumerated:
        if factor == 1:
            return self
        reach = self._reach(abs(factor) * self.reach)
        return Enumerated(self.fmt, self.inputs, reach, (self,), factor)

    def _reach(self, exact: Fraction) -> Fraction:
        try:
            return FORMATS[self.fmt].round(exact)
        except OverflowError as error:
            raise noted(error) from None

    __bool__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = Undecided.undecided

    def __hash__(self) -> int:
        return id(self)


@lru_cache(maxsize=8)
def _every(f: Format, reach: Fraction) -> Sums:
    from gradproof.rounding.lattice import numbers_up_to

    return numbers_up_to(f, reach)


def _constant(x: Any) -> Fraction:
    if isinstance(x, bool) or not isinstance(x, int | Fraction | float):
        raise NonLinear(f"an operation with {type(x).__name__}, which is no constant")
    return Fraction(x)


class LinearDifference(ManyValued):
    """A linear combination of nodes over the reals: (coefficient, node) by the node's identity."""

    _refusal = NonLinear

    def __init__(self, parts: Mapping[int, tuple[Fraction, Enumerated]]) -> None:
        self.parts = {key: part for key, part in parts.items() if part[0]}

    def __add__(self, other: Any) -> LinearDifference:
        if not isinstance(other, LinearDifference):
            if _constant(other) == 0:
                return self
            raise NonLinear("a difference from a constant is not enumerated")
        made = dict(self.parts)
        for key, (c, node) in other.parts.items():
            made[key] = (made[key][0] + c if key in made else c, node)
        return LinearDifference(made)

    __radd__ = __add__

    def __neg__(self) -> LinearDifference:
        return self * -1

    def __sub__(self, other: Any) -> LinearDifference:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> LinearDifference:
        return self.__neg__().__add__(other)

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = Undecided.undecided

    def __eq__(self, other: object) -> Any:
        return AtMost(self - other, Fraction(0))

    __hash__ = object.__hash__

    def __mul__(self, other: Any) -> LinearDifference:
        factor = _constant(other)
        return LinearDifference({key: (c * factor, node) for key, (c, node) in self.parts.items()})

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> LinearDifference:
        return self * (1 / _constant(other))

    def __abs__(self) -> Size:
        return Size(self)

    def at(self, values: Mapping[str, Fraction]) -> Fraction:
        """The value at given inputs, exactly."""
        return sum((c * node.at(values).value for c, node in self.parts.values()), Fraction(0))

    def every_input(self) -> dict[str, Enumerated]:
        """Every input, by name; those of the results first."""
        found: dict[str, Enumerated] = {}
        stack = [n for _, n in self.parts.values()]
        while stack:
            node = stack.pop(0)
            stack = [*node.terms, *stack]
            if not node.terms:
                found[node.inputs[0]] = node
        return found

    def worst(self) -> tuple[Fraction, dict[str, Fraction], int]:
        """The largest magnitude over all inputs, inputs that attain it, and how many numbers were visited.

        Raises NonLinear unless this is one result less a common share of each of its inputs, and OverflowError.
        Raises ArithmeticError where the inputs do not attain it.
        """
        made = [(c, n) for c, n in self.parts.values() if n.terms]
        weights = {n.inputs[0]: c for c, n in self.parts.values() if not n.terms}
        if len(made) > 1:
            raise NonLinear("the difference of two results is not enumerated")
        largest, values, visited = _of_result(*made[0], weights) if made else (Fraction(0), {}, 0)
        visited += len(weights)
        for name, node in self.every_input().items():
            if name not in values:
                top = node.sums.reach()
                largest += abs(weights[name]) * top
                values[name] = top if weights[name] > 0 else -top
        if self.at(values) != largest:
            raise ArithmeticError(f"the inputs found do not attain {float(largest):.6g}")
        return largest, values, visited


def _of_result(
    c: Fraction, node: Enumerated, weights: Mapping[str, Fraction]
) -> tuple[Fraction, dict[str, Fraction], int]:
    """The largest c (result + k * sum of its inputs), k < 0 the share of each over c."""
    shares = {weights.get(name, Fraction(0)) / c for name in node.inputs}
    if len(shares) != 1 or min(shares) >= 0:
        raise NonLinear("the result is not compared with one share of each of its inputs")
    k, sums, tiny = min(shares), node.sums, FORMATS[node.fmt].tiny
    pairs = zip(sums.values, sums.least, strict=True)
    errors = [int(v) * k.denominator + k.numerator * int(m) for v, m in pairs]
    best = max(errors)
    found = [x * tiny * (1 if c > 0 else -1) for x in sums.trace(errors.index(best))]
    return abs(c) * best * tiny / k.denominator, dict(zip(node.inputs, found, strict=True)), sums.numbers()


class Size(Claimed):
    """|difference|, which can be compared with a constant only."""

    def __init__(self, of: LinearDifference) -> None:
        self.of = of

    def __le__(self, other: Any) -> AtMost:
        return AtMost(self.of, _constant(other))


class AtMost(Claimed):
    """The claim |difference| <= bound, for the enumeration to decide."""

    def __init__(self, of: LinearDifference, bound: Fraction) -> None:
        self.of, self.bound = of, bound
