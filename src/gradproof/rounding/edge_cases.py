"""Gradients that a 16-bit buffer loses, and what a division by N loses: exact, as closed forms.

x / N against x * fl(1/N), decided for every significand of a format in integers.
Both are scale-free: without underflow and overflow, multiplying x by a power of two multiplies the result by it. So the
2^(p-1) significands are all the cases there are. A quotient is the correct rounding, at most half an ulp off. A product
with fl(1/N) = (1 + d)/N, |d| <= u, errs by the rounding and by d (Higham, section 2.2). torch's 16-bit kernels
keep the scalar 1/N in fp32, compute the product in fp32 and round once more: the third method.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from gradproof.arith.formats import FORMATS, Format, binade

# -- Which gradients survive in a 16-bit buffer, by loss scale and N, and where they overflow, as closed forms.
SCALES, WINDOWS = (1, 128, 1024, 65536), (1, 2, 3, 4, 8, 64, 1024)


def smallest_survivor(scale: int, n: int, fmt: str = "fp16") -> tuple[Fraction, bool]:
    """The threshold of |g| below which fl(fl(S g) / N) is zero, and whether the threshold itself survives.

    Raises ValueError for a scale that is no power of two, and for n < 1.
    """
    if scale < 1 or scale & (scale - 1) or n < 1:
        raise ValueError("the closed form is for loss scales that are powers of two and n >= 1")
    f = FORMATS[fmt]
    limit = n * f.tiny / 2
    step = f.spacing(limit)
    reached = ((limit / step).__floor__() + 1) * step
    below = reached - f.spacing(reached - step)
    even = (reached / f.spacing(reached)).numerator % 2 == 0
    return (reached + below) / 2 / scale, even


def reach_of_orders(scale: int, n: int, fmt: str = "fp16") -> dict[str, Fraction]:
    """Where g starts to survive, and to overflow, for N equal gradients, by when the division is made."""
    f = FORMATS[fmt]
    over = overflow(f)
    return {
        "before: survives from": smallest_survivor(scale, n, fmt)[0],
        "before: overflows from": over / scale,
        "after: survives from": f.tiny / 2 / scale,
        "after: overflows from": late_overflow(n, fmt) / scale,
    }


def overflow(f: Format) -> Fraction:
    """The least number that rounds to infinity."""
    return f.largest + f.spacing(f.largest) / 2


@cache
def late_overflow(n: int, fmt: str = "fp16") -> Fraction:
    """The threshold of h from which n equal terms fl(h) overflow when they are added from left to right."""
    f = FORMATS[fmt]
    low, high = 0, (f.emax - f.emin + 2) * 2 ** (f.p - 1) - 1
    if not overflows(f, number(f, high), n):
        return overflow(f)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overflows(f, number(f, middle), n) else (middle, high)
    return (number(f, low) + number(f, high)) / 2


def number(f: Format, k: int) -> Fraction:
    """The k-th number of a format, 0 the first."""
    e, m = divmod(k, 2 ** (f.p - 1))
    return k * f.tiny if e == 0 else (2 ** (f.p - 1) + m) * f.tiny * 2 ** (e - 1)


def overflows(f: Format, term: Fraction, n: int) -> bool:
    """Whether n equal terms overflow when they are added from left to right."""
    total = Fraction(0)
    for _ in range(n):
        if total + term >= overflow(f):
            return True
        after = f.round(total + term)
        if after == total:
            return False
        total = after
    return False


Integers = npt.NDArray[np.int64]

# -- x / N against x * fl(1/N): what each loses at the worst, exactly.
CHUNK = 2**18
DIVISORS, NAMES = (3, 5, 6, 7), ("fp16", "bf16", "fp32")
DIVIDE, MULTIPLY, WIDE = "x / N", "x * fl(1/N)", "x * fl32(1/N) in fp32, rounded once more"


@dataclass(frozen=True, slots=True)
class Worst:
    """The largest error of a method over every significand of a format.

    `ulps`: in units of the last place of the exact quotient. `relative`: of the exact quotient. `at`: the integer
    significand with the largest error in ulps. `differ`: significands whose result is not that of the division. `bias`:
    N times the rounded reciprocal, minus one; 0 for the division.
    """

    method: str
    fmt: str
    divisor: int
    ulps: Fraction
    relative: Fraction
    at: int
    differ: int
    significands: int
    bias: Fraction

    @property
    def share(self) -> Fraction:
        """The share of significands whose result is not that of the division."""
        return Fraction(self.differ, self.significands)


def cut(x: Integers, p: int) -> Integers:
    """Positive integers below 2^53, rounded to p significant bits, to nearest even."""
    length = np.frexp(x.astype(np.float64))[1].astype(np.int64)
    drop = np.maximum(length - p, 0)
    kept = x >> drop
    rest = x - (kept << drop)
    half = np.where(drop > 0, np.left_shift(1, np.maximum(drop - 1, 0)), 1)
    up = (drop > 0) & ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    result: Integers = (kept + up) << drop
    return result


def reciprocal(n: int, fmt: str) -> tuple[int, int]:
    """fl(1/n) as an integer R of p bits and an exponent t: R 2^-t."""
    f = FORMATS[fmt]
    value = f.round(Fraction(1, n))
    t = f.p - 1 - binade(value)
    return int(value * 2**t), t


def _chunks(p: int) -> Iterator[Integers]:
    for start in range(2 ** (p - 1), 2**p, CHUNK):
        yield np.arange(start, min(start + CHUNK, 2**p), dtype=np.int64)


def _quotients(m: Integers, n: int, p: int) -> tuple[Integers, Integers]:
    """Correctly rounded quotients D and shifts s: m/n is about D 2^-s with p bits in D."""
    s = np.full(len(m), n.bit_length() - 1, dtype=np.int64)
    s += (m << s) < n << (p - 1)
    q = (m << s) // n
    rest = (m << s) - q * n
    return q + ((2 * rest > n) | ((2 * rest == n) & (q & 1 == 1))), s


def _result(m: Integers, n: int, fmt: str, method: str) -> tuple[Integers, Integers]:
    """Results as Y 2^-t."""
    p = FORMATS[fmt].p
    if method == DIVIDE:
        return _quotients(m, n, p)
    r, t = reciprocal(n, fmt if method == MULTIPLY else "fp32")
    product = m * r
    if method == WIDE:
        product = cut(product, FORMATS["fp32"].p)
    return cut(product, p), np.full(len(m), t, dtype=np.int64)


def worst(method: str, n: int, fmt: str) -> Worst:
    """The exact worst case of a method over every significand of fp16, bf16 or fp32. Raises ValueError for n < 1
    or n > 16, and for the fp32 scalar in fp32.
    """
    if not 1 <= n <= 16:
        raise ValueError("the integers of this comparison are sized for divisors from 1 to 16")
    if method == WIDE and fmt == "fp32":
        raise ValueError("the third method is for 16-bit formats")
    p, differ = FORMATS[fmt].p, 0
    most, relative, at = Fraction(-1), Fraction(-1), 0
    for m in _chunks(p):
        quotient, s = _quotients(m, n, p)
        y, t = _result(m, n, fmt, method)
        off = np.abs(y * n - (m << t))  # the error is off / (n 2^t), the quotient m/n, its ulp 2^-s
        common = np.maximum(s, t)
        differ += int(((y << (common - t)) != (quotient << (common - s))).sum())
        by_ulp = off.astype(np.float64) / (1 << (t - s)).astype(np.float64)
        # Errors are multiples of 2^-28 / n ulp: those within 2^-40 of the largest are equal to it.
        for i in np.flatnonzero(by_ulp >= by_ulp.max() * (1 - 2.0**-40))[:64]:
            exact = Fraction(int(off[i]), n * 2 ** int(t[i] - s[i]))
            if exact > most:
                most, at = exact, int(m[i])
        share = off.astype(np.float64) / (m << t).astype(np.float64)
        for i in np.flatnonzero(share >= share.max() * (1 - 2.0**-50)):
            relative = max(relative, Fraction(int(off[i]), int(m[i]) << int(t[i])))
    bias = Fraction(0)
    if method != DIVIDE:
        r, exponent = reciprocal(n, fmt if method == MULTIPLY else "fp32")
        bias = Fraction(r * n, 2**exponent) - 1
    return Worst(method, fmt, n, most, relative, at, differ, 2 ** (p - 1), bias)


def comparison(divisors: tuple[int, ...] = DIVISORS, formats: tuple[str, ...] = NAMES) -> list[Worst]:
    """Every method for every divisor and format."""
    found = []
    for fmt in formats:
        for n in divisors:
            methods = (DIVIDE, MULTIPLY) if fmt == "fp32" else (DIVIDE, MULTIPLY, WIDE)
            found += [worst(method, n, fmt) for method in methods]
    return found
