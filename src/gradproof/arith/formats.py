"""IEEE 754 binary formats, and rounding to nearest even in exact rationals.

A format has precision p (significand bits, the hidden one included), and the exponents emin and emax of its
smallest and largest normal binades. u = 2^-p is the unit roundoff; the spacing in the binade [2^k, 2^(k+1)) is
2^(max(k, emin) - p + 1). Source: IEEE 754-2019, sections 3.3 and 4.3.1; Muller et al., Handbook of
Floating-Point Arithmetic (2nd ed.), section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


def binade(x: Fraction) -> int:
    """The k with 2^k <= |x| < 2^(k+1). Raises ValueError at zero."""
    if x == 0:
        raise ValueError("zero lies in no binade")
    a = abs(x)
    k = a.numerator.bit_length() - a.denominator.bit_length()
    return k if Fraction(2) ** k <= a else k - 1


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format; `bits` is its width in memory."""

    name: str
    bits: int
    p: int
    emin: int
    emax: int

    @property
    def u(self) -> Fraction:
        """Unit roundoff 2^-p."""
        return Fraction(1, 2**self.p)

    @property
    def tiny(self) -> Fraction:
        """Smallest positive subnormal."""
        return Fraction(2) ** (self.emin - self.p + 1)

    @property
    def largest(self) -> Fraction:
        """Largest finite number."""
        return (2 - 2 * self.u) * Fraction(2) ** self.emax

    def spacing(self, x: Fraction) -> Fraction:
        """Distance between neighbours in the binade of x (the subnormal spacing below emin)."""
        k = self.emin if x == 0 else max(binade(x), self.emin)
        return Fraction(2) ** (k - self.p + 1)

    def round(self, x: Fraction) -> Fraction:
        """Nearest number of the format, ties to even. Raises OverflowError where IEEE gives an infinity."""
        step = self.spacing(x)
        result = round(x / step) * step  # Fraction.__round__ rounds ties to even
        if abs(result) > self.largest:
            raise OverflowError(f"{float(x):g} overflows {self.name}")
        return result

    def half_ulp(self, bound: Fraction) -> Fraction:
        """Largest rounding error of any real z with |z| <= bound: half a spacing of the binade just below."""
        if bound <= 0:
            return Fraction(0)
        k = binade(bound)
        if Fraction(2) ** k == bound:
            k -= 1
        return Fraction(2) ** (max(k, self.emin) - self.p)

    def worst_error(self, bound: Fraction) -> Fraction:
        """max |fl(z) - z| over all reals |z| <= bound: just above a power of two it is the distance to that power.

        By monotony and half an ulp, what lies nearer than half a spacing above a power of two is rounded to it.
        """
        if bound <= 0:
            return Fraction(0)
        k = binade(bound)
        if k < self.emin:
            return min(bound, self.tiny / 2)
        edge = Fraction(2) ** k
        return max(self.half_ulp(edge), min(bound - edge, self.spacing(bound) / 2))

    def representable(self, x: Fraction) -> bool:
        """Whether x is a finite number of the format."""
        return abs(x) <= self.largest and (x / self.spacing(x)).denominator == 1

    def nonnegative(self) -> Iterator[Fraction]:
        """Every finite number >= 0 in increasing order (2^15 or fewer for the 16-bit formats)."""
        for k in range(2 ** (self.p - 1)):
            yield k * self.tiny
        for e in range(self.emin, self.emax + 1):
            step = Fraction(2) ** (e - self.p + 1)
            for k in range(2 ** (self.p - 1), 2**self.p):
                yield k * step


FORMATS = {
    "fp16": Format("fp16", 16, 11, -14, 15),
    "bf16": Format("bf16", 16, 8, -126, 127),
    "fp32": Format("fp32", 32, 24, -126, 127),
    "fp64": Format("fp64", 64, 53, -1022, 1023),
}


def format_named(name: str) -> Format:
    """The format called `name`. Raises KeyError with the known names."""
    if name not in FORMATS:
        raise KeyError(f"no format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def widest(a: str | None, b: str | None) -> str | None:
    """Format of an operation on operands of formats a and b; None is a constant, which adapts.

    fp16 with bf16 gives fp32, as in torch's and NumPy's promotion tables.
    """
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"fp16", "bf16"}:
        return "fp32"
    return max(a, b, key=lambda name: FORMATS[name].p)
