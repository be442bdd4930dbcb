"""Linear floats: a number is a linear form in earlier ones plus a rounding error below a constant.

Every operation becomes a node `z + e`, with z linear in earlier nodes, |z| <= reach, and |e| <= error. The constants
come from an interval pass and the step contracts: half an ulp of the binade below the reach (S1), monotony, so that
|fl(z)| <= fl(reach) (S2), and exactness: a multiple of q no larger than 2^p q is a number of the format (S5), and a
quotient by a power of two is rounded by underflow alone (S4). A quotient by another number errs by less than half an
ulp, and less again together with the addition that follows (`units`). Constants are whole units, rounded up. A text
that runs on these numbers is straight-line and linear; anything else raises NonLinear. Source: the contracts of FLOATS,
IEEE 754-2019 section 4.3.1.

`residual` is an error as a number: fl(fl(t - s) - y) after t = fl(s + y). It equals the error of that addition where
|s| >= |y| (Dekker's Fast2Sum; Muller et al., Handbook, section 4.3), and is near it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

from gradproof.arith.bounds import MOST_ODD, Rounding, odd_part, rational, rounding, short, units
from gradproof.arith.context import ManyValued, Operators, Refusal, Undecided, noted
from gradproof.arith.formats import FORMATS, Format, widest

ONE, MINUS = Fraction(1), Fraction(-1)
Terms = Sequence[tuple[Fraction, "Linear"]]


class NonLinear(Refusal):
    """An operation that is not linear in the inputs; the run in progress is reported."""


class Linear(Operators, ManyValued):
    """A node. `kind` is how its error is justified: input, constant, exact, widen, fits, shift, round, quotient,
    residual or ordered (a residual of the larger operand).

    `terms` are pairs of a coefficient and an earlier node; where `of_error`, the last one stands for that node's error.
    `top` bounds the magnitude, `slack` the error, `grid` is a power of two that the number is a multiple of (0: none),
    all in units. `alone`: a residual refers to the error of this addition, so it stays an addition.
    """

    _refusal = NonLinear
    __slots__ = ("alone", "fmt", "grid", "kind", "name", "of_error", "slack", "terms", "top")

    def __init__(
        self, kind: str, fmt: str | None, terms: Terms, top: int, slack: int = 0, grid: int = 0, name: str = "",
        of_error: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.fmt, self.terms, self.top = kind, fmt, terms, top
        self.slack, self.grid, self.name, self.of_error, self.alone = slack, grid, name, of_error, False

    @classmethod
    def input(cls, name: str, fmt: str | None, reach: Fraction) -> Linear:
        """An input in [-reach, reach]: a number of `fmt`, or any real. Raises OverflowError beyond the format."""
        if fmt is None:
            return cls("input", None, (), short(units(reach)), name=name)
        r, most = rounding(FORMATS[fmt]), units(reach)
        _top(r, most)
        return cls("input", fmt, (), r.below(most), 0, r.tiny, name)

    @property
    def reach(self) -> Fraction:
        """The bound on the magnitude."""
        return rational(self.top)

    @property
    def error(self) -> Fraction:
        """The bound on the rounding error."""
        return rational(self.slack)

    def exact(self) -> Linear:
        """The same number over the reals."""
        return Linear("exact", None, ((ONE, self),), self.top, 0, self.grid) if self.fmt else self

    def rounded(self, fmt: str) -> Linear:
        """This number in the format `fmt`; the same one where it widens."""
        to = FORMATS[fmt]
        if self.fmt is not None:
            held = FORMATS[self.fmt]
            if held.p <= to.p and held.emin >= to.emin and self.top <= rounding(to).largest:
                return self if self.fmt == fmt else Linear("widen", fmt, ((ONE, self),), self.top, 0, self.grid)
        return settle(fmt, ((ONE, self),), self.top, self.grid)

    def _do(self, sign: str, other: Any, swap: bool = False) -> Any:
        if sign == "/":
            return NotImplemented if swap else _scaled(self, other, divide=True)
        if sign == "*":
            return _scaled(self, other)
        return _sum(-self, other, 1) if swap and sign == "-" else _sum(self, other, 1 if sign == "+" else -1)

    def __neg__(self) -> Linear:
        return Linear("exact" if self.fmt is None else "shift", self.fmt, ((MINUS, self),), self.top, 0, self.grid)

    def __abs__(self) -> Magnitude:
        return Magnitude(self)

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __ne__ = Undecided.undecided

    def __eq__(self, other: object) -> Any:
        return Within(self - other, Fraction(0))

    def __hash__(self) -> int:
        return id(self)

    def sqrt(self) -> NoReturn:
        """Raises NonLinear."""
        raise NonLinear("a square root")


class Claimed(Undecided):
    """What is no number: it has no truth value, and equals nothing."""

    _refusal = NonLinear
    __bool__ = __lt__ = __gt__ = __ge__ = Undecided.undecided
    __eq__ = __ne__ = Undecided.undecided
    __hash__ = object.__hash__


class Magnitude(Claimed):
    """|x|, which can be compared with a constant only."""

    def __init__(self, of: Linear) -> None:
        self.of = of

    def __le__(self, other: Any) -> Within:
        return Within(self.of, _constant(other))


class Within(Claimed):
    """The claim |x| <= bound, for a certificate to decide."""

    def __init__(self, of: Linear, bound: Fraction) -> None:
        self.of, self.bound = of, bound


def settle(fmt: str, terms: Terms, top: int, grid: int) -> Linear:
    """The linear form, rounded to the format. Raises OverflowError where it may leave the format."""
    r = rounding(FORMATS[fmt])
    reach = _top(r, top)
    if grid >= r.tiny and top <= grid << r.p:
        return Linear("fits", fmt, terms, top, 0, grid)
    return Linear("round", fmt, terms, reach, r.worst_error(top), max(grid, r.tiny))


def _top(r: Rounding, top: int) -> int:
    if top > r.largest:
        raise noted(OverflowError(f"a {r.fmt.name} result may exceed {float(r.fmt.largest):.6g}"))
    return r.round(top)


def residual(t: Linear, s: Linear, y: Linear, ordered: bool = False) -> Linear:
    """fl(fl(t - s) - y), where t = fl(s + y). `ordered`: s stands for the larger of the two, so it is the error.

    Raises NonLinear where t is no such sum, or was not rounded.
    """
    made = t.kind in ("round", "fits") and [id(n) for _, n in t.terms] == [id(s), id(y)]
    if not made or any(c != 1 or n.fmt != t.fmt for c, n in t.terms):
        raise NonLinear("a residual is taken of a sum of the two numbers")
    r, kind = rounding(FORMATS[str(t.fmt)]), "ordered" if ordered else "residual"
    error = 0 if ordered else r.residual_error(y.top)
    t.alone = True
    return Linear(kind, t.fmt, ((ONE, t),), r.round(t.slack + error), error, r.tiny, of_error=True)


def joined(t: Linear) -> tuple[str, Terms, int]:
    """Kind, terms and error of a node: of a sum of quotients, those of the quotients and the addition at once."""
    if t.kind != "round" or t.alone or len(t.terms) != 2 or t.terms[0][0] is not ONE or t.terms[1][0] is not ONE:
        return t.kind, t.terms, t.slack
    (_, s), (_, x) = t.terms
    if s.kind == "quotient" and x.kind != "quotient":
        s, x = x, s
    if x.kind != "quotient" or x.fmt != t.fmt or s.fmt != t.fmt:
        return t.kind, t.terms, t.slack
    r, (c, g) = rounding(FORMATS[str(t.fmt)]), x.terms[0]
    n = c.denominator
    if s.kind == "quotient" and abs(s.terms[0][0]) == abs(c):
        tops = (-(-s.terms[0][1].top // n), -(-g.top // n))
        return "pair", (s.terms[0], x.terms[0]), short(r.contract("pair", tops, n)[1])
    return "joint", ((ONE, s), (c, g)), short(r.contract("joint", (s.top, -(-g.top // n)), n)[1])


def _constant(x: Any) -> Fraction:
    if isinstance(x, bool) or not isinstance(x, int | Fraction | float):
        raise NonLinear(f"an operation with {type(x).__name__}, which is no constant")
    return Fraction(x)


def _sum(a: Linear, other: Any, sign: int) -> Linear:
    if not isinstance(other, Linear):
        c = _constant(other)
        if c == 0:
            return a
        c = c if a.fmt is None else _representable(c, FORMATS[a.fmt])
        other = Linear("constant", None, (), units(abs(c)), name=str(c))
    fmt = a.fmt if a.fmt == other.fmt else widest(a.fmt, other.fmt)
    x, y = (n if fmt is None or n.fmt in (None, fmt) else n.rounded(fmt) for n in (a, other))
    terms = ((ONE, x), (ONE if sign > 0 else MINUS, y))
    grid, top = min(x.grid, y.grid), x.top + y.top
    return Linear("exact", None, terms, top, 0, grid) if fmt is None else settle(fmt, terms, top, grid)


@lru_cache(maxsize=1024)
def _factor(c: Fraction | int | float, r: Rounding | None, divide: bool) -> tuple[Fraction, bool]:
    """What a number is multiplied by, and whether that is a power of two."""
    of = _constant(c) if r is None else _representable(_constant(c), r.fmt)
    if divide and of == 0:
        raise noted(ZeroDivisionError("a division by the constant zero"))
    factor = 1 / of if divide else of
    return factor, power_of_two(abs(factor))


def _scaled(x: Linear, c: Any, divide: bool = False) -> Linear:
    if isinstance(c, bool) or not isinstance(c, int | Fraction | float):
        raise NonLinear(f"an operation with {type(c).__name__}, which is no constant")
    if c == 1:
        return x
    r = None if x.fmt is None else rounding(FORMATS[x.fmt])
    factor, power = _factor(c, r, divide)
    terms, top = ((factor, x),), times(x.top, factor)
    grid = times(x.grid, factor) if power and _whole(x.grid, factor) else 0
    if r is None:
        return Linear("exact", None, terms, short(top), 0, grid)
    if divide and abs(factor.numerator) == 1 and 3 <= odd_part(factor.denominator) <= MOST_ODD:
        return Linear("quotient", x.fmt, terms, _top(r, top), short(r.quotient_error(top, factor.denominator)), r.tiny)
    if not power:
        return settle(r.fmt.name, terms, top, grid)
    low = grid < r.tiny
    return Linear("shift", x.fmt, terms, _top(r, top), r.tiny >> 1 if low else 0, r.tiny if low else grid)


def times(z: int, factor: Fraction) -> int:
    """The least whole number that is at least |factor| z."""
    return -(-z * abs(factor.numerator) // factor.denominator)


def _whole(z: int, factor: Fraction) -> bool:
    return z * factor.numerator % factor.denominator == 0


def _representable(c: Fraction, f: Format) -> Fraction:
    """A constant in the format that it meets. Raises NonLinear where frameworks differ in how they round it."""
    if f.bits == 16 and not f.representable(c):
        raise NonLinear(f"{c} is no {f.name} number, and torch and NumPy round such a scalar differently")
    return f.round(c)


def power_of_two(c: Fraction) -> bool:
    """Whether a rational is a power of two."""
    return c.numerator > 0 and c.numerator & (c.numerator - 1) == 0 and c.denominator & (c.denominator - 1) == 0
