"""Operators of one number, looked at for every input: x / N, x fl(1/N), square root, conversions, and any real z.

An exact result is a ratio num / den of integers in units of tiny; rounding a ratio is exact in int64. A result that is
normal and far from the ends rounds in the same way after a scaling by a power of two, so one binade of x stands for all
whose results are normal; results that may be subnormal are enumerated literally. fl(-z) = -fl(z), so z >= 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from gradproof.arith.formats import Format
from gradproof.rounding.exhaust import Count, Ints, Mask, Tally, bit_length

LITERAL_BITS = 41
CHUNK = 1 << 18


@dataclass(frozen=True)
class Ratios:
    """Ratios z = num / den in units of tiny with their roundings t to p bits; error is den |t - z|."""

    p: int
    num: Ints
    den: Ints
    t: Ints
    low: Ints
    gap: Ints
    length: Ints
    error: Ints


def round_ratio(num: Ints, den: Ints, p: int) -> Ratios:
    """num / den rounded to p bits or to a whole unit, whichever is coarser, ties to even.

    0 <= num, 0 < den, and num, den 2^shift below 2^53, where shift is what the quotient has above p bits.
    """
    length = bit_length(num // den)
    shift: Ints = np.maximum(length - p, 0)
    wide = den << shift
    head = num // wide
    twice = (num - head * wide) << 1
    up = (twice > wide) | ((twice == wide) & ((head & 1) == 1))
    gap: Ints = np.asarray(np.left_shift(1, shift), dtype=np.int64)
    low: Ints = head << shift
    t: Ints = low + np.where(up, gap, 0)
    return Ratios(p, num, den, t, low, gap, length, np.abs(t * den - num))


Check = Callable[[Ratios], Mask]


def _half_ulp(r: Ratios) -> Mask:
    """|e| <= u 2^max(k, emin), and 2^emin has p bits in units of tiny."""
    kept: Mask = (r.error << r.p) <= (r.den << (np.maximum(r.length, r.p) - 1))
    return kept


def _relative(r: Ratios) -> Mask:
    kept: Mask = (r.num < (r.den << (r.p - 1))) | ((r.error << r.p) <= r.num)
    return kept


def _subnormal(r: Ratios) -> Mask:
    kept: Mask = (r.num > (r.den << (r.p - 1))) | (2 * r.error <= r.den)
    return kept


def _grid(r: Ratios) -> Mask:
    above = r.low + np.where(r.low * r.den < r.num, r.gap, 0)
    kept: Mask = (r.low <= r.t) & (r.t <= above) & (r.low * r.den <= r.num) & (r.num <= above * r.den)
    return kept


def _exact(r: Ratios) -> Mask:
    kept: Mask = (r.low * r.den != r.num) | (r.error == 0)
    return kept


def _ftz(r: Ratios) -> Mask:
    least = 1 << (r.p - 1)
    kept: Mask = ((r.t >= least) & (r.num >= r.den * least)) | (r.num <= r.den * least)
    return kept


RATIO_CHECKS: Mapping[str, Check] = {
    "half-ulp": _half_ulp,
    "relative": _relative,
    "subnormal": _subnormal,
    "grid": _grid,
    "exact": _exact,
    "ftz": _ftz,
}
Batch = tuple[Ints, Ints]


def ratios(f: Format, batches: Iterator[Batch], checks: Mapping[str, Check] = RATIO_CHECKS) -> Tally:
    """Round every ratio of some batches and count what breaks each promise. Overflow is left out by the batches."""
    tally = Tally({name: Count() for name in checks})
    for nums, dens in batches:
        for at in range(0, len(nums), CHUNK):
            num, den = nums[at : at + CHUNK], dens[at : at + CHUNK]
            r = round_ratio(num, den, f.p)
            for name, check in checks.items():
                tally.counts[name].add(check(r), _words(num, den))
    return tally


def _words(num: Ints, den: Ints) -> Callable[[int], str]:
    return lambda i: f"{int(num[i])}/{int(den[i])} units of the smallest subnormal"


def low_numbers(f: Format, bits: int = LITERAL_BITS) -> Ints:
    """Every number 0 <= x < 2^bits units of tiny, in increasing order: all of fp16, the lower binades of bf16."""
    top = min(bits, f.emax - f.emin + f.p)
    parts = [np.arange(2**f.p, dtype=np.int64)]
    head = np.arange(2 ** (f.p - 1), 2**f.p, dtype=np.int64)
    return np.concatenate([*parts, *(head << j for j in range(1, top - f.p + 1))])


def reals(f: Format) -> Iterator[Batch]:
    """Points that decide every real z: numbers, midpoints, and one on either side of each, in eighths of a spacing.

    The error is linear between these points and its extremes, relative ones included, are at the midpoints.
    """
    numbers = low_numbers(f)
    a, b = numbers, np.append(numbers[1:], 1 << int(numbers[-1]).bit_length())
    num = np.concatenate([8 * a + j * (b - a) for j in range(9)])
    yield num, np.full_like(num, 8)


def quotients(f: Format, divisors: Sequence[int]) -> Iterator[Batch]:
    """x / N for every number x below 2^41 units and every N: all of fp16; for bf16 the other x have normal results."""
    numbers = low_numbers(f)
    for n in divisors:
        yield numbers, np.full_like(numbers, n)


def reciprocal(f: Format, n: int) -> tuple[int, int]:
    """fl(1/N) as m / 2^s with m of at most p bits. Raises ValueError where it is no normal number."""
    c = f.round(Fraction(1, n))
    if c < Fraction(2) ** f.emin:
        raise ValueError(f"1/{n} is subnormal in {f.name}")
    return c.numerator, c.denominator.bit_length() - 1


def products(f: Format, divisors: Sequence[int]) -> Iterator[Batch]:
    """x fl(1/N) for every number x below 2^41 units and every N."""
    numbers = low_numbers(f)
    for n in divisors:
        m, s = reciprocal(f, n)
        yield numbers * m, np.full_like(numbers, 1 << s)


def significands(f: Format, divisors: Sequence[int], product: bool) -> Iterator[Batch]:
    """One binade of x for each odd N, with normal results: x / N, or x fl(1/N). An even N halves those of N / 2."""
    lift = 14
    head = np.arange(2 ** (f.p - 1), 2**f.p, dtype=np.int64)
    for n in sorted({n // (n & -n) for n in divisors}):
        m, s = reciprocal(f, n)
        if product:
            shift = max(lift - s, 0)
            yield head * (m << shift), np.full_like(head, 1 << max(s - lift, 0))
        else:
            yield head << lift, np.full_like(head, n)


ROOT_CHECKS = ("half-ulp", "relative", "grid", "exact")


def roots(f: Format, shrink: int = 0) -> Tally:
    """sqrt(M) for every significand and both parities of the exponent: 4^(p-1) <= M < 4^p, so that t has p bits.

    Every positive x is such an M times a power of four, subnormal ones too, and its root is normal. `shrink` > 0 asks
    for a smaller bound, which is wrong (for tests).
    """
    tally = Tally({name: Count() for name in ROOT_CHECKS})
    head = np.arange(2 ** (f.p - 1), 2**f.p, dtype=np.int64)
    for more in (f.p - 1, f.p):
        for at in range(0, len(head), CHUNK):
            square = head[at : at + CHUNK] << more
            root = np.sqrt(square.astype(np.float64)).astype(np.int64)
            root -= root * root > square
            root += (root + 1) * (root + 1) <= square
            t = root + (square - root * root > root)
            near = _near(t, square, shrink)
            kept = {"half-ulp": near, "relative": near & (square >= 4 ** (f.p - 1))}
            kept["grid"] = (t >= root) & (t <= root + 1) & (root * root <= square) & (square < (root + 1) ** 2)
            kept["exact"] = (root * root != square) | (t == root)
            for name, mask in kept.items():
                tally.counts[name].add(mask, partial(_root_of, square))
    return tally


def _root_of(square: Ints, i: int) -> str:
    return f"sqrt({int(square[i])})"


def _near(t: Ints, square: Ints, shrink: int) -> Mask:
    """|t - sqrt(square)| <= 1 / 2^(1 + shrink), by squares; t has p bits, so u times its binade is 1/2."""
    k = 2 << shrink
    kept: Mask = ((k * t - 1) ** 2 <= k * k * square) & (k * k * square <= (k * t + 1) ** 2)
    return kept


def narrowed(wide: Format, f: Format) -> tuple[list[tuple[int, bool]], int]:
    """How many low bits of a significand of `wide` a conversion to f drops, and whether the number is normal.

    One entry a distinct way, and how many positive finite numbers of `wide` all of them stand for. Numbers that
    f would round to an infinity are left out by the caller.
    """
    ways = set()
    for e in range(wide.emin, f.emax + 1):
        ways.add((wide.p - f.p + max(0, f.emin - e), True))
    low = wide.p - f.p + max(0, f.emin - wide.emin)
    return [*sorted(ways), (low, False)], (f.emax - wide.emin + 2) * 2 ** (wide.p - 1)


def conversions(wide: Format, f: Format, checks: Mapping[str, Check] = RATIO_CHECKS) -> Tally:
    """Every positive finite number of `wide` converted to f: a significand m over 2^drop, in units of its new place.

    Numbers of the top binade that overflow are judged as if the exponents went on, which asks for more. Beyond p + 2
    dropped bits more than the significand has, z is below half the smallest subnormal and t = 0.
    """
    ways, stands_for = narrowed(wide, f)
    half = 2 ** (wide.p - 1)
    most = wide.p + 3

    def batches() -> Iterator[Batch]:
        for drop, normal in sorted({(min(d, most), n) for d, n in ways}):
            m = np.arange(half, 2 * half, dtype=np.int64) if normal else np.arange(half, dtype=np.int64)
            yield m, np.full_like(m, 1 << drop)

    tally = ratios(f, batches(), checks)
    tally.stands_for = stands_for
    return tally


def widened(f: Format, wide: Format) -> Tally:
    """Whether every finite number of f, from its bit pattern up, is one of `wide`."""
    count = Count()
    for x in f.nonnegative():
        if not wide.representable(x):
            count.violations, count.first = count.violations + 1, count.first or f"{x}"
        count.cases += 1
    return Tally({"exact": count}, stands_for=count.cases)
