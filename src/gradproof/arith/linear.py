"""Linear floats: a number is a linear form in earlier ones plus a rounding error below a constant.

Every operation becomes a node `z + e`, with z linear in earlier nodes, |z| <= reach, and |e| <= error. The constants
come from an interval pass and the step contracts: half an ulp of the binade below the reach (S1), monotony, so that
|fl(z)| <= fl(reach) (S2), and exactness: a multiple of q no larger than 2^p q is a number of the format (S5), and a
quotient by a power of two is rounded by underflow alone (S4). A text that runs on these numbers is straight-line and
linear; anything else raises NonLinear. Source: the contracts of FLOATS, IEEE 754-2019 section 4.3.1.

`residual` is an error as a number: fl(fl(t - s) - y) after t = fl(s + y). It equals the error of that addition where
|s| >= |y| (Dekker's Fast2Sum; Muller et al., Handbook, section 4.3), and is near it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NoReturn

from gradproof.arith.formats import FORMATS, Format, widest

ZERO = Fraction(0)


class NonLinear(TypeError):
    """An operation that is not linear in the inputs."""


class Linear:
    """A node. `kind` is how its error is justified: input, constant, exact, widen, fits, shift, round, residual
    or ordered (a residual of the larger operand).

    `terms` are pairs of a coefficient and an earlier node; where `of_error`, the last one stands for that node's error.
    `grid` is a power of two that the number is a multiple of, or None.
    """

    __slots__ = ("error", "fmt", "grid", "kind", "name", "of_error", "reach", "terms")

    def __init__(
        self, kind: str, fmt: str | None, terms: Sequence[tuple[Fraction, Linear]], reach: Fraction,
        error: Fraction = ZERO, grid: Fraction | None = None, name: str = "", of_error: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.fmt, self.terms, self.reach = kind, fmt, tuple(terms), reach
        self.error, self.grid, self.name, self.of_error = error, grid, name, of_error

    @classmethod
    def input(cls, name: str, fmt: str | None, reach: Fraction) -> Linear:
        """An input in [-reach, reach]: a number of `fmt`, or any real."""
        return cls("input", fmt, (), reach, ZERO, FORMATS[fmt].tiny if fmt else None, name)

    def exact(self) -> Linear:
        """The same number over the reals."""
        return Linear("exact", None, ((Fraction(1), self),), self.reach, ZERO, self.grid) if self.fmt else self

    def rounded(self, fmt: str) -> Linear:
        """This number in the format `fmt`; the same one where it widens."""
        to = FORMATS[fmt]
        if self.fmt is not None:
            held = FORMATS[self.fmt]
            if held.p <= to.p and held.emin >= to.emin and self.reach <= to.largest:
                one = ((Fraction(1), self),)
                return self if self.fmt == fmt else Linear("widen", fmt, one, self.reach, ZERO, self.grid)
        return settle(fmt, ((Fraction(1), self),), self.reach, self.grid)

    def __add__(self, other: Any) -> Linear:
        return _sum(self, other, 1)

    def __radd__(self, other: Any) -> Linear:
        return _sum(self, other, 1)

    def __sub__(self, other: Any) -> Linear:
        return _sum(self, other, -1)

    def __rsub__(self, other: Any) -> Linear:
        return _sum(-self, other, 1)

    def __neg__(self) -> Linear:
        kind = "exact" if self.fmt is None else "shift"
        return Linear(kind, self.fmt, ((Fraction(-1), self),), self.reach, ZERO, self.grid)

    def __mul__(self, other: Any) -> Linear:
        return _scaled(self, _constant(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Linear:
        c = _constant(other)
        if c == 0:
            raise ZeroDivisionError("a division by the constant zero")
        return _scaled(self, c, divide=True)

    def __abs__(self) -> Magnitude:
        return Magnitude(self)

    def __bool__(self) -> NoReturn:
        raise NonLinear("a decision on a number that is not known")

    def _undecided(self, other: Any) -> NoReturn:
        raise NonLinear("a decision on a number that is not known")

    __lt__ = __le__ = __gt__ = __ge__ = _undecided

    def __eq__(self, other: object) -> Any:
        return Within(self - other, ZERO)

    def __hash__(self) -> int:
        return id(self)

    def sqrt(self) -> NoReturn:
        """Raises NonLinear."""
        raise NonLinear("a square root")

    def __float__(self) -> NoReturn:
        raise NonLinear("a linear number has no value")


class Magnitude:
    """|x|, which can be compared with a constant only."""

    def __init__(self, of: Linear) -> None:
        self.of = of

    def __le__(self, other: Any) -> Within:
        return Within(self.of, _constant(other))


class Within:
    """The claim |x| <= bound, for a certificate to decide."""

    def __init__(self, of: Linear, bound: Fraction) -> None:
        self.of, self.bound = of, bound

    def __bool__(self) -> NoReturn:
        raise NonLinear("a decision on a number that is not known")


def settle(fmt: str, terms: Sequence[tuple[Fraction, Linear]], reach: Fraction, grid: Fraction | None) -> Linear:
    """The linear form, rounded to the format. Raises OverflowError where it may leave the format."""
    f = FORMATS[fmt]
    top = _top(f, reach)
    if grid is not None and grid >= f.tiny and reach <= grid * 2**f.p:
        return Linear("fits", fmt, terms, reach, ZERO, grid)
    held = f.tiny if grid is None else max(grid, f.tiny)
    return Linear("round", fmt, terms, top, f.worst_error(reach), held)


def _top(f: Format, reach: Fraction) -> Fraction:
    if reach > f.largest:
        raise OverflowError(f"a {f.name} result may exceed {float(f.largest):.6g}")
    return f.round(reach)


def residual(t: Linear, s: Linear, y: Linear, ordered: bool = False) -> Linear:
    """fl(fl(t - s) - y), where t = fl(s + y). `ordered`: s stands for the larger of the two, so it is the error.

    Raises NonLinear where t is no such sum, or was not rounded.
    """
    made = t.kind in ("round", "fits") and [id(n) for _, n in t.terms] == [id(s), id(y)]
    if not made or any(c != 1 or n.fmt != t.fmt for c, n in t.terms):
        raise NonLinear("a residual is taken of a sum of the two numbers")
    f, kind = FORMATS[str(t.fmt)], "ordered" if ordered else "residual"
    error = ZERO if ordered else residual_error(f, y.reach)
    return Linear(kind, t.fmt, ((Fraction(1), t),), t.error + error, error, f.tiny, of_error=True)


def residual_error(f: Format, y: Fraction) -> Fraction:
    """How far fl(fl(t - s) - y) may be from the error of t = fl(s + y), |y| <= y: nothing where |s| >= |y|.

    Elsewhere |t| <= fl(2 y), |t - s| <= y + e with e half an ulp below 2 y; both subtractions err by half an ulp.
    """
    e = f.worst_error(2 * y)
    first = f.worst_error(y + e)
    return first + f.worst_error(e + first)


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
        other = Linear("constant", None, (), abs(c), ZERO, None, str(c))
    fmt = widest(a.fmt, other.fmt)
    x, y = (n if fmt is None or n.fmt in (None, fmt) else n.rounded(fmt) for n in (a, other))
    terms = ((Fraction(1), x), (Fraction(sign), y))
    grid = None if x.grid is None or y.grid is None else min(x.grid, y.grid)
    reach = x.reach + y.reach
    return Linear("exact", None, terms, reach, ZERO, grid) if fmt is None else settle(fmt, terms, reach, grid)


def _scaled(x: Linear, c: Fraction, divide: bool = False) -> Linear:
    if c == 1:
        return x
    if x.fmt is not None:
        c = _representable(c, FORMATS[x.fmt])
    factor = 1 / c if divide else c
    power = power_of_two(abs(factor))
    terms, reach = ((factor, x),), abs(factor) * x.reach
    grid = None if x.grid is None or not power else x.grid * abs(factor)
    if x.fmt is None:
        return Linear("exact", None, terms, reach, ZERO, grid)
    if not power:
        return settle(x.fmt, terms, reach, grid)
    f = FORMATS[x.fmt]
    low = grid is None or grid < f.tiny
    return Linear("shift", x.fmt, terms, _top(f, reach), f.tiny / 2 if low else ZERO, f.tiny if low else grid)


def _representable(c: Fraction, f: Format) -> Fraction:
    """A constant in the format that it meets. Raises NonLinear where frameworks differ in how they round it."""
    if f.bits == 16 and not f.representable(c):
        raise NonLinear(f"{c} is no {f.name} number, and torch and NumPy round such a scalar differently")
    return f.round(c)


def power_of_two(c: Fraction) -> bool:
    """Whether a positive rational is a power of two."""
    return c.numerator & (c.numerator - 1) == 0 and c.denominator & (c.denominator - 1) == 0
