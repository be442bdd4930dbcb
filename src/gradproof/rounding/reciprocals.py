"""x / N against x * fl(1/N): what each loses at the worst, exactly.

A quotient is the nearest number of the format, so no product is nearer for any x: that is what rounding to nearest
means. With N = 2^a m, m odd, x / N is a whole number of ulps and r / m more, 0 <= r < m; the nearest whole number is at
most (m - 1) / (2 m) ulps away, and significands give every r as soon as 2^(p - 1) >= m. A product with fl(1/N) errs by
its rounding and by x / N times the reciprocal's own relative error; its worst case is found by looking at every
significand, in `kernels.reciprocal`. Source: Higham, Accuracy and Stability (2nd ed.), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from gradproof.arith.formats import FORMATS
from gradproof.kernels.reciprocal import DIVIDE, MULTIPLY, worst

DIVISORS, NAMES = (3, 5, 6, 7), ("fp16", "bf16", "fp32")


@dataclass(frozen=True, slots=True)
class Pair:
    """The largest errors of a quotient and of a product over all significands, in ulps of the exact quotient.

    `at` is the integer significand with the product's. `worse`: the share of significands whose product is not the
    quotient, and so is farther off, or as far on the other side.
    """

    fmt: str
    n: int
    quotient: Fraction
    product: Fraction
    at: int
    worse: Fraction


def quotient_error(n: int, fmt: str) -> Fraction:
    """The largest error of fl(x / n) in ulps of x / n, over normal x and x / n. Raises ValueError for n < 1 and for n
    with an odd part of more than p - 1 bits, for which not every remainder need occur.
    """
    if n < 1:
        raise ValueError("a window has at least one micro-batch")
    odd = n // (n & -n)
    if odd > 2 ** (FORMATS[fmt].p - 1):
        raise ValueError(f"the odd part of {n} is too large for {fmt}")
    return Fraction(odd - 1, 2 * odd)


def compared(n: int, fmt: str) -> Pair:
    """Both methods over every significand. Raises ValueError for n < 1 and n > 16, and ArithmeticError where the
    quotient's closed form is not what is found.
    """
    quotient, product = worst(DIVIDE, n, fmt), worst(MULTIPLY, n, fmt)
    if quotient.ulps != quotient_error(n, fmt):
        raise ArithmeticError(f"x / {n} errs by {quotient.ulps} ulps in {fmt}, not by {quotient_error(n, fmt)}")
    return Pair(fmt, n, quotient.ulps, product.ulps, product.at, product.share)


def reciprocal_rows() -> Iterator[str]:
    """The table of both methods in Markdown."""
    yield "| format | N | x / N, ulps | x * fl(1/N), ulps | times as much | results that differ |"
    yield "|---|---|---|---|---|---|"
    for fmt in NAMES:
        for p in (compared(n, fmt) for n in DIVISORS):
            times = p.product / p.quotient
            yield f"| {fmt} | {p.n} | {p.quotient} | {p.product} | {float(times):.3g} | {float(p.worse):.1%} |"
