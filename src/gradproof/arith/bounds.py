"""Bounds on rounding errors as exact rationals, computed from the formats alone.

Accumulation. With s_1 = x_1 and s_i = fl(s_{i-1} + x_i), |x_i| <= b, the partial sums obey |s_i| <= B_i with B_1 =
b and B_i = fl(B_{i-1} + b), because rounding is monotone; and each addition errs by at most half an ulp of the
binade below B_{i-1} + b. The sum of these constants is the bound; for n = 2^k and b = X/n with X a power of two it
is u X (n^2 - 1) / (3 n), and it is attained. Sources: Higham, Accuracy and Stability of Numerical Algorithms (2nd
ed.), section 4.2, for the running error bound; the constants are the contract's own (harness KANI-GA-001).

Clipping. `clip_factor` follows torch's clip_grad_norm_: squares, a sum in any order, a square root per tensor,
the norm of those norms, the addition of 1e-6, a division, a minimum and a multiplication.
Source: Higham, section 3.1 (products of 1 + d) and section 3.5 (norms).

Units. Numbers as whole multiples of 2^-1200, called units, for long chains of bounds.

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

from gradproof.arith.formats import Format, binade, format_named

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


# -- Bounds as exact rationals.
def accumulation_bound(fmt: str, n: int, magnitude: Fraction) -> Fraction:
    """Worst |fl(sum) - sum| of n sequential additions of numbers of `fmt` with |x_i| <= magnitude / n.

    The scaling by 1/n is not included: the x_i are the terms that reach the buffer. Raises ValueError for n < 1
    and OverflowError where the sum may leave the format.
    """
    if n < 1:
        raise ValueError("a window has at least one micro-batch")
    f = format_named(fmt)
    term = magnitude / n
    reach, total = term, Fraction(0)
    for _ in range(n - 1):
        total += f.half_ulp(reach + term)
        reach = f.round(reach + term)
    return total


def closed_form(fmt: str, n: int) -> Fraction:
    """E_n = u (n^2 - 1) / (3 n), the worst case for n = 2^k and |g_i| <= 1. Raises ValueError for other n."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"the closed form is for powers of two, not {n}")
    return format_named(fmt).u * (n * n - 1) / (3 * n)


def scaling_bound(fmt: str, n: int, magnitude: Fraction) -> Fraction:
    """Worst error of n divisions g_i / n, |g_i| <= magnitude: nothing but underflow when n is a power of two."""
    f = format_named(fmt)
    each = f.tiny / 2 if n & (n - 1) == 0 else max(f.half_ulp(magnitude / n), f.tiny / 2)
    return Fraction(0) if n == 1 else n * each


def clip_factor(fmt: str, elements: int, tensors: int = 1) -> Fraction:
    """The factor F = 1 + c u with ||clipped||_2 <= max_norm F, for `elements` numbers in `tensors` tensors.

    The norm computed falls short of the true one by at most (1 - u)^k with k = (elements + 1)/2 + 1 for the
    squares, the sum and the root of one tensor, and (tensors + 1)/2 + 1 for the norm of the norms; adding 1e-6 costs
    another (1 - u); max_norm as a number of the format, the reciprocal of the norm, its product with max_norm and the
    product with the gradient each at most (1 + u). Underflow is excluded: the norm is a normal number.
    """
    if elements < 1 or tensors < 1:
        raise ValueError("a norm needs at least one element and one tensor")
    u = format_named(fmt).u
    short = -(-(elements + 1) // 2) + 1 + -(-(tensors + 1) // 2) + 1 + 1
    if short * u >= 1:
        raise ValueError(f"{elements} elements are too many for a relative bound in {fmt}")
    return (1 + u) ** 4 / (1 - u) ** short


# -- Inputs that attain the worst case of sequential accumulation.
def _largest_tie(limit: Fraction, spacing: Fraction) -> Fraction:
    """The largest (e + 1/2) spacing <= limit with e even."""
    e = (limit / spacing - Fraction(1, 2)).__floor__()
    return (e - e % 2 + Fraction(1, 2)) * spacing


def _tie_below(limit: Fraction, f: Format) -> Fraction:
    k = binade(limit)
    tie = _largest_tie(limit, f.spacing(limit))
    edge = Fraction(2) ** k
    if tie >= edge:
        return tie
    half = f.spacing(limit) / 2
    return _largest_tie(edge - half / 2, half)


def accumulation_witness(n: int, fmt: str) -> list[Fraction]:
    """n numbers g_i of the format, |g_i| <= 1, whose running mean sum of fl(g_i / n) errs as far as ties allow.

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a window has at least one micro-batch")
    f = format_named(fmt)
    most = Fraction(1, n)
    total = f.round(most * (1 - 8 * f.u))
    terms = [total]
    for _ in range(n - 1):
        term = _tie_below(total + most, f) - total
        if term > most or not f.representable(term) or not f.representable(term * n):
            term = min(f.round(term), f.round(most))
        terms.append(term)
        total = f.round(total + term)
    return [f.round(t * n) if f.round(t * n) <= 1 else Fraction(1) for t in terms]
