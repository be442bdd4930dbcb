"""Inputs that attain the worst case of sequential accumulation.

The sum s_i = fl(s_{i-1} + x_i) errs by half an ulp when the exact result lies midway between two neighbours, and
always in the same direction when the lower neighbour is the even one. So each x_i is chosen so that s_{i-1} + x_i
is such a tie, as large as |x_i| <= 1/n allows. For n = 2^k the total reaches u (n^2 - 1) / (3 n), the proven bound,
in fp32 up to n = 4096, fp16 up to 64 and bf16 up to 16. Source of the ties: Higham, Accuracy and Stability, section
4.2.
"""

from __future__ import annotations

from fractions import Fraction

from gradproof.arith.formats import Format, binade, format_named


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


def accumulation_error(g: list[Fraction], fmt: str) -> Fraction:
    """|fl-sum of fl(g_i / n) minus the exact mean|, computed exactly."""
    f = format_named(fmt)
    total = Fraction(0)
    for x in g:
        total = f.round(total + f.round(x / len(g)))
    return abs(total - sum(g, Fraction(0)) / len(g))
