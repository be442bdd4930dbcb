"""Software floats: IEEE arithmetic to nearest even in exact rationals, for any format, one operation at a time.

Slow and exact. The concrete meaning of a stubbed run: a counterexample to a rounding claim counts only if it
replays here and on the real kernels.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Any

from gradproof.arith.formats import FORMATS, widest


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

    def __le__(self, other: Any) -> bool:
        return self.value <= _exact(other)

    def __gt__(self, other: Any) -> bool:
        return self.value > _exact(other)

    def __ge__(self, other: Any) -> bool:
        return self.value >= _exact(other)

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
