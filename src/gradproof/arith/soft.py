"""Software floats: IEEE arithmetic to nearest even in exact rationals, for any format, one operation at a time.

Slow and exact. The concrete meaning of a stubbed run: a counterexample to a rounding claim counts only if it
replays here and on the real kernels.

For symbolic execution there are exact rationals that stay linear, and their rounding to a binary format.

A `Ratio` is num/den in lowest or any other terms: nothing is normalised, because a greatest common divisor of symbolic
integers is a loop without a bound. The numerator may be a symbolic integer of CrossHair. The denominator is a positive
integer, and a concrete one unless the number came from a division by a symbolic one; so sums, products with constants
and comparisons (by cross-multiplication) are linear in the symbolic integers. The root of a square is remembered:
sqrt(x * x) is |x|.

A question about a number (its truth value, an order, an equality) is a case distinction, so that `g if g else 1` has
two paths. A float, an int or an index of it would need one concrete value: they raise TypeError. A hash needs one too:
it is that of the number in lowest terms, for which CrossHair tries one numerator after another and never confirms.

A `Lattice` is the same number in a binary format, rounded to nearest even after every operation, by a case distinction
over the binades of its value. Sources: IEEE 754-2019, section 4.3.1; the exactness rule S5 (a multiple of q with
magnitude at most 2^p q needs no rounding), which is the first case.
"""

from __future__ import annotations

from fractions import Fraction
from functools import total_ordering
from math import inf, isfinite, isqrt, lcm
from typing import Any, NoReturn

from gradproof.arith.formats import FORMATS, Format, widest


@total_ordering
class Soft:
    """A finite number of a format. Operations with ints and Fractions round the constant first.

    A constant that is no number of a 16-bit format is refused with ArithmeticError.
    """

    __slots__ = ("fmt", "value")

    def __init__(self, value: Fraction | int, fmt: str) -> None:
        self.fmt = fmt
        self.value = FORMATS[fmt].round(Fraction(value))

    def _with(self, other: Any) -> tuple[Fraction, str]:
        if isinstance(other, Soft):
            name = widest(self.fmt, other.fmt)
            return other.value, name or self.fmt
        f, c = FORMATS[self.fmt], Fraction(other)
        if f.bits == 16 and not f.representable(c):
            raise ArithmeticError(f"{c} is no {self.fmt} number, and torch and NumPy round such a scalar differently")
        return f.round(c), self.fmt

    def __add__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(self.value + value, fmt)

    def __sub__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(self.value - value, fmt)

    def __rsub__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(value - self.value, fmt)

    def __mul__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(self.value * value, fmt)

    def __truediv__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(self.value / value, fmt)

    def __rtruediv__(self, other: Any) -> Soft:
        value, fmt = self._with(other)
        return Soft(value / self.value, fmt)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Soft:
        return Soft(-self.value, self.fmt)

    def __abs__(self) -> Soft:
        return Soft(abs(self.value), self.fmt)

    def __lt__(self, other: Any) -> bool:
        return self.value < _exact(other)

    def __eq__(self, other: object) -> bool:
        return self.value == _exact(other)

    def __bool__(self) -> bool:
        return self.value != 0

    def __hash__(self) -> int:
        return hash(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"{self.fmt}({float(self.value)!r})"

    def sqrt(self) -> Soft:
        """Correctly rounded square root. Raises ValueError for negative numbers."""
        if self.value < 0:
            raise ValueError("square root of a negative number")
        return Soft(near_sqrt(self.value), self.fmt)


def _exact(x: Any) -> Fraction:
    return x.value if isinstance(x, Soft) else Fraction(x)


def near_sqrt(x: Fraction, bits: int = 240) -> Fraction:
    """The square root cut after `bits` binary places more than x needs, with a sticky last bit if it is inexact.

    The sticky bit keeps a later rounding to a format (p <= 64) correct: a cut value never sits on a tie by accident.
    """
    scale = 4**bits
    scaled = x * scale
    whole = scaled.numerator // scaled.denominator
    root = isqrt(whole)
    exact = Fraction(root * root) == scaled
    return Fraction(2 * root + (not exact), 2 * 2**bits)


# -- Exact rationals that stay linear under symbolic execution, and their rounding.
LARGEST_POWER = 8


class Ratio:
    """num/den. `root` is the number that this one is the square of, where that is known."""

    __slots__ = ("den", "num", "root")

    def __init__(self, num: int, den: int = 1, root: Ratio | None = None) -> None:
        """Raises ZeroDivisionError for a zero denominator."""
        if den == 0:
            raise ZeroDivisionError("a ratio with denominator zero")
        self.num, self.den = (num, den) if den > 0 else (-num, -den)
        self.root = root

    def _like(self, num: int, den: int, other: Ratio) -> Ratio:
        """num/den as the result of an operation on this number and `other`."""
        return Ratio(num, den)

    def _lift(self, other: Any) -> Ratio | None:
        """An operand as a Ratio, a float by its exact value; None where it is no number, or not a finite one."""
        if isinstance(other, Ratio):
            return other
        if isinstance(other, int):
            return Ratio(other)
        if isinstance(other, float) and isfinite(other):
            other = Fraction(other)
        return Ratio(other.numerator, other.denominator) if isinstance(other, Fraction) else None

    def _aligned(self, other: Ratio) -> tuple[int, int, int]:
        """Both numerators over one denominator, and it; without divisions, which may be symbolic."""
        if self.den == other.den:
            return self.num, other.num, self.den
        return self.num * other.den, other.num * self.den, self.den * other.den

    def __add__(self, other: Any) -> Ratio:
        o = self._lift(other)
        if o is None:
            return NotImplemented
        a, b, den = self._aligned(o)
        return self._like(a + b, den, o)

    def __sub__(self, other: Any) -> Ratio:
        o = self._lift(other)
        return NotImplemented if o is None else self + -o

    def __rsub__(self, other: Any) -> Ratio:
        o = self._lift(other)
        return NotImplemented if o is None else o + -self

    def __mul__(self, other: Any) -> Ratio:
        o = self._lift(other)
        if o is None:
            return NotImplemented
        result = self._like(self.num * o.num, self.den * o.den, o)
        if o is self and type(result) is Ratio:
            result.root = self
        return result

    def __truediv__(self, other: Any) -> Ratio:
        o = self._lift(other)
        return NotImplemented if o is None else self._like(*_quotient(self, o), o)

    def __rtruediv__(self, other: Any) -> Ratio:
        o = self._lift(other)
        return NotImplemented if o is None else self._like(*_quotient(o, self), o)

    __radd__ = __add__
    __rmul__ = __mul__

    def __pow__(self, power: int) -> Ratio:
        """A product, for a concrete exponent of at most 8 in magnitude; TypeError for any other."""
        if not isinstance(power, int) or abs(power) > LARGEST_POWER:
            return NotImplemented
        product: Ratio | None = None
        for _ in range(abs(power)):
            product = self if product is None else product * self
        if product is None:
            return self._like(1, 1, self)
        return product if power > 0 else 1 / product

    def __pos__(self) -> Ratio:
        return self

    def __neg__(self) -> Ratio:
        return self._like(-self.num, self.den, self)

    def __abs__(self) -> Ratio:
        return self if self.num >= 0 else -self

    def __bool__(self) -> bool:
        if self.num == 0:  # noqa: SIM103  (a case distinction: a symbolic comparison is no truth value)
            return False
        return True

    def _gap(self, other: Any) -> int | None:
        """An integer with the sign of self - other; None where `other` is no number, or not a number."""
        if isinstance(other, float) and other in (inf, -inf):
            return -1 if other > 0 else 1
        o = Ratio(0)._lift(other)
        if o is None:
            return None
        a, b, _ = self._aligned(o)
        return a - b

    def __lt__(self, other: Any) -> bool:
        gap = self._gap(other)
        return NotImplemented if gap is None else gap < 0

    def __le__(self, other: Any) -> bool:
        gap = self._gap(other)
        return NotImplemented if gap is None else gap <= 0

    def __gt__(self, other: Any) -> bool:
        gap = self._gap(other)
        return NotImplemented if gap is None else gap > 0

    def __ge__(self, other: Any) -> bool:
        gap = self._gap(other)
        return NotImplemented if gap is None else gap >= 0

    def __eq__(self, other: object) -> bool:
        gap = self._gap(other)
        return NotImplemented if gap is None else gap == 0

    def __hash__(self) -> int:
        return hash(Fraction(self.num, self.den))

    def __float__(self) -> NoReturn:
        raise TypeError("a ratio is no float: a symbolic number has no nearest one")

    def __repr__(self) -> str:
        return f"{self.num}/{self.den}"

    def sqrt(self) -> Ratio:
        """The exact square root. Raises ValueError where the number is negative or no square of a rational."""
        if self.root is not None:
            return abs(self.root)
        if self.num < 0:
            raise ValueError("square root of a negative number")
        square = Fraction(self.num, self.den)
        top, bottom = isqrt(square.numerator), isqrt(square.denominator)
        if top * top != square.numerator or bottom * bottom != square.denominator:
            raise ValueError(f"{self!r} has no exact square root")
        return Ratio(top, bottom)

    def round_to(self, fmt: str) -> Ratio:
        """The number itself: a Ratio lives in the reals. Raises KeyError for an unknown format."""
        FORMATS[fmt]
        return self


class Lattice(Ratio):
    """A finite number of the format `fmt`; the denominator is concrete. Constants are rounded before they are used.

    A constant that is no number of a 16-bit format is refused with ArithmeticError, as software floats do.
    """

    __slots__ = ("fmt",)

    def __init__(self, num: int, den: int = 1, fmt: str = "fp32") -> None:
        """num/den rounded to `fmt`. Raises OverflowError where IEEE gives an infinity."""
        exact = Ratio(num, den)
        super().__init__(*nearest(exact.num, exact.den, FORMATS[fmt]))
        self.fmt = fmt

    def _lift(self, other: Any) -> Ratio | None:
        if isinstance(other, Lattice):
            return other
        plain = super()._lift(other)
        if plain is None:
            return None
        constant = Lattice(plain.num, plain.den, self.fmt)
        if FORMATS[self.fmt].bits == 16 and constant != plain:
            raise ArithmeticError(
                f"a constant is no {self.fmt} number; torch and NumPy round such a scalar differently"
            )
        return constant

    def _like(self, num: int, den: int, other: Ratio) -> Ratio:
        return Lattice(num, den, widest(self.fmt, other.fmt if isinstance(other, Lattice) else None) or self.fmt)

    def _aligned(self, other: Ratio) -> tuple[int, int, int]:
        den = lcm(self.den, other.den)
        return self.num * (den // self.den), other.num * (den // other.den), den

    def __pow__(self, power: int) -> Ratio:
        """The square, which is one operation; TypeError for any other exponent."""
        return self * self if isinstance(power, int) and power == 2 else NotImplemented

    def sqrt(self) -> Ratio:
        """Raises TypeError: a rounded root is not linear."""
        raise TypeError("a lattice number has no square root")

    def round_to(self, fmt: str) -> Ratio:
        """The number in another format."""
        return self if fmt == self.fmt else Lattice(self.num, self.den, fmt)


def _quotient(top: Ratio, bottom: Ratio) -> tuple[int, int]:
    if bottom.num == 0:
        raise ZeroDivisionError("division by a ratio that is zero")
    num, den = top.num * bottom.den, top.den * bottom.num
    return (num, den) if bottom.num > 0 else (-num, -den)


def nearest(num: int, den: int, fmt: Format) -> tuple[int, int]:
    """The number of `fmt` nearest to num/den, ties to even, as a ratio with a concrete denominator.

    A dyadic `den` is kept. `den` is concrete, so the only symbolic operations are comparisons of `num` with constants
    and one remainder by a constant. Raises OverflowError.
    """
    whole, size, k = 2**fmt.p, abs(num), max(fmt.emin, -den.bit_length())
    dyadic = den & (den - 1) == 0 and Fraction(1, den) >= fmt.tiny
    if dyadic:
        if size <= whole:
            return num, den
        k = max(k, fmt.p - den.bit_length() + 1)
    while k < fmt.emax and size * _up(-k - 1) >= den * _up(k + 1):
        k += 1
    up, down = _up(fmt.p - 1 - k), _up(k - fmt.p + 1)
    if dyadic:
        top = _to_multiple(num, den * down // up)
    else:
        top, den = _to_multiple(num * up, den * down) // den, up
    if k == fmt.emax and abs(top) >= den * _up(fmt.emax + 1):
        raise OverflowError(f"a number overflows {fmt.name}")
    return top, den


def _up(k: int) -> int:
    return 2**k if k > 0 else 1


def _to_multiple(x: int, step: int) -> int:
    """The multiple of `step` nearest to x, ties to an even multiple: by the place of x between two even multiples."""
    rest = x % (2 * step)
    if 2 * rest <= step:
        return x - rest
    return x - rest + (step if 2 * rest < 3 * step else 2 * step)
