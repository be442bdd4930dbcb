"""Bounds on rounding errors as exact rationals, computed from the formats alone.

Accumulation. With s_1 = x_1 and s_i = fl(s_{i-1} + x_i), |x_i| <= b, the partial sums obey |s_i| <= B_i with B_1 =
b and B_i = fl(B_{i-1} + b), because rounding is monotone; and each addition errs by at most half an ulp of the
binade below B_{i-1} + b. The sum of these constants is the bound; for n = 2^k and b = X/n with X a power of two it
is u X (n^2 - 1) / (3 n), and it is attained. Sources: Higham, Accuracy and Stability of Numerical Algorithms (2nd
ed.), section 4.2, for the running error bound; the constants are the contract's own (harness KANI-GA-001).

Clipping. `clip_factor` follows torch's clip_grad_norm_: squares, a sum in any order, a square root per tensor,
the norm of those norms, the addition of 1e-6, a division, a minimum and a multiplication.
Source: Higham, section 3.1 (products of 1 + d) and section 3.5 (norms).
"""

from __future__ import annotations

from fractions import Fraction

from gradproof.arith.formats import Format, binade, format_named


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


def accumulation_error(g: list[Fraction], fmt: str) -> Fraction:
    """|fl-sum of fl(g_i / n) minus the exact mean|, computed exactly."""
    f = format_named(fmt)
    total = Fraction(0)
    for x in g:
        total = f.round(total + f.round(x / len(g)))
    return abs(total - sum(g, Fraction(0)) / len(g))
