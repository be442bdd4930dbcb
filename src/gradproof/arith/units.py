"""Numbers as whole multiples of 2^-1200, called units, and what a format does to magnitudes that are given in them.

Every number of every format, every midpoint and every half ulp is a whole number of units; any other constant is
rounded up to one, which only weakens a bound. Integers make the arithmetic of long chains fast. The functions are
those of `formats`, and two about quotients.

Quotients. Let g be a number of the format and N = m 2^j, m odd, g / N normal with spacing w: fl(g / N) = X w and g /
N = (X - d / m) w with whole X and d, |d| <= (m - 1) / 2. As g has p bits too, m X - d is a multiple of a power of two
above (m - 1) / 2. Hence the quotient errs by (m - 1) / (2 m) w at most. Where fl(g / N) is added to a number and the
sum is a tie, X is a multiple of k, half the spacing of the sum over w; so d is a multiple of k too, and 0 where k is
above (m - 1) / 2: both errors are seldom at their largest at once. In a sum of two such quotients a tie takes X + X'
odd, so d + d' is odd. The lemmas divide-add/* enumerate this for m <= 63.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from gradproof.arith.formats import Format

BITS = 1200
SHORT = 96
MOST_ODD = 63


def units(x: Fraction) -> int:
    """The least whole number of units that is at least x."""
    return -(-(x.numerator << BITS) // x.denominator)


def rational(z: int, bits: int = BITS) -> Fraction:
    """A whole number of 2^-bits as a rational."""
    return Fraction(z, 1 << bits)


def short(z: int) -> int:
    """The least number of at most 96 significant bits that is at least z >= 0."""
    drop = z.bit_length() - SHORT
    return z if drop <= 0 else -(-z >> drop) << drop


def odd_part(n: int) -> int:
    """The m of n = m 2^j, m odd."""
    return n // (n & -n)


class Rounding:
    """What a format does to magnitudes 0 <= |z| <= a bound; all arguments and results are in units of 2^-bits."""

    __slots__ = ("fmt", "largest", "low", "normal", "p", "tiny")

    def __init__(self, fmt: Format, bits: int = BITS) -> None:
        self.fmt, self.p, self.normal = fmt, fmt.p, fmt.emin + bits
        self.low = self.normal - fmt.p
        if self.low < 0:
            raise ValueError(f"2^-{bits} is coarser than half the smallest subnormal of {fmt.name}")
        self.tiny, self.largest = 2 << self.low, int(fmt.largest * 2**bits)

    def holds(self, other: Format) -> bool:
        """Whether every number of the other format that is in range is one of this."""
        return other.p <= self.p and other.emin >= self.fmt.emin

    def half_ulp(self, bound: int) -> int:
        """Half a spacing of the binade just below the bound."""
        return 1 << max((bound - 1).bit_length() - 1 - self.p, self.low) if bound > 0 else 0

    def worst_error(self, bound: int) -> int:
        """max |fl(z) - z| over |z| <= bound; see `Format.worst_error`."""
        k = bound.bit_length() - 1
        if k < self.normal:
            return min(bound, 1 << self.low)
        edge = 1 << k
        return max(self.half_ulp(edge), min(bound - edge, 1 << (k - self.p)))

    def round(self, z: int) -> int:
        """Nearest number of the format, ties to even; z >= 0. Overflow is the caller's to exclude."""
        step = max(z.bit_length() - self.p, self.low + 1)
        whole, rest = z >> step, z & ((1 << step) - 1)
        half = 1 << (step - 1)
        return (whole + (rest > half or (rest == half and whole & 1))) << step

    def below(self, z: int) -> int:
        """The largest number of the format that is at most z >= 0."""
        step = max(z.bit_length() - self.p, self.low + 1)
        return min(z >> step << step, self.largest)

    def quotient_error(self, bound: int, n: int) -> int:
        """max |fl(g / n) - g / n| over numbers g of the format with |g / n| <= bound."""
        m = odd_part(n)
        return max(-(-2 * self.half_ulp(bound) * (m - 1) // (2 * m)), 1 << self.low)

    def sum_error(self, bound: int, quotient: int, n: int) -> int:
        """max |fl(s + fl(g / n)) - (s + g / n)| with |s + fl(g / n)| <= bound and |g / n| <= quotient."""
        m, w = odd_part(n), 2 * self.half_ulp(quotient)
        most = -(-((m - 1) // 2) * w // m)
        if quotient < 1 << self.normal:
            return self.worst_error(bound) + self.quotient_error(quotient, n)
        edge = 1 << (bound.bit_length() - 1)
        low = self._tie(self.half_ulp(edge), w, m)
        return max(low, min(bound - edge + max(most, 1 << self.low), self._tie(edge >> self.p, w, m)))

    def _tie(self, half: int, w: int, m: int) -> int:
        h, step = (m - 1) // 2, max(half // w, 1)
        more = -(-(h - h % step) * w // m)
        return half + (more if half >= 1 << self.normal else max(more, 1 << self.low))

    def pair_error(self, bound: int, quotient: int, n: int) -> int:
        """max |fl(fl(g / n) + fl(h / n)) - (g + h) / n|; `quotient` bounds both quotients, `bound` their sum."""
        m, w = odd_part(n), 2 * self.half_ulp(quotient)
        apart = self.sum_error(bound, quotient, n) + self.quotient_error(quotient, n)
        if w < 1 << self.normal or self.half_ulp(bound) != w:
            return apart
        return min(apart, w + -(-(m - 2) * w // m))

    def contract(self, kind: str, tops: Sequence[int], n: int, edge: int | None = None) -> tuple[int, int]:
        """Bounds on what is rounded last and on the error of a row whose terms are at most `tops`; see `Linear`.

        round: the terms are added; quotient: g / n; joint: s + fl(g / n); pair: fl(g / n) + fl(h / n). `edge`: the case
        that what is rounded last is no larger. Raises ValueError for a quotient that the lemmas do not speak of.
        """
        if kind != "round" and not 3 <= odd_part(n) <= MOST_ODD:
            raise ValueError(f"a quotient by {n}, of which no lemma speaks")
        first = self.round(tops[0]) if kind == "pair" else tops[0]
        most = first + self.round(tops[1]) if kind in ("joint", "pair") else sum(tops)
        most = most if edge is None else min(most, edge)
        if kind == "quotient":
            return most, self.quotient_error(most, n)
        if kind == "round":
            return most, self.worst_error(most)
        return most, self.sum_error(most, tops[1], n) if kind == "joint" else self.pair_error(most, max(tops), n)

    def residual_error(self, bound: int) -> int:
        """How far fl(fl(t - s) - y) may be from the error of t = fl(s + y), |y| <= bound: nothing where |s| >= |y|.

        Elsewhere |t| <= fl(2 y), |t - s| <= y + e with e half an ulp below 2 y; both subtractions err by half an ulp.
        """
        e = self.worst_error(2 * bound)
        first = self.worst_error(bound + e)
        return first + self.worst_error(e + first)


@lru_cache(maxsize=64)
def rounding(fmt: Format, bits: int = BITS) -> Rounding:
    """The rounding of a format on units of 2^-bits. Raises ValueError where those are too coarse for it."""
    return Rounding(fmt, bits)
