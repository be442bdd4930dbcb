"""A bound for every order of addition: atomics, split reductions, any binary tree.

Terms |x_i| <= b are enlarged to a multiple b' of a power of two q with n b' <= 2^p q: then every m b', m <= n, is a
number of the format, and by monotony a sum of m terms, in whatever order, is at most m b' in magnitude. The addition
that makes it errs by at most c(m), half an ulp of the binade below m b', and c grows with m.

In a binary tree with n leaves at most n - m + 1 inner nodes have m leaves or more. (They are closed upwards, so with
the subtrees that hang from them they form a binary tree: k of them have k + 1 subtrees, each with a leaf. A lowest one
has m leaves itself and makes up two of the subtrees; the other k - 1 have one leaf at least each: k - 1 <= n - m.) So
the k-th largest node has at most n - k + 1 leaves, and the sum over the nodes is at most c(2) + ... + c(n): what
left-to-right addition gives. Source of the tree bound: Lange and Rump, BIT 57 (2017), for the relative hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from gradproof.arith.formats import binade, format_named


def coarse(fmt: str, n: int, term: Fraction) -> tuple[Fraction, Fraction]:
    """b' and q: the least multiple of a power of two q that is at least `term`, with n b' <= 2^p q, q >= tiny.

    Raises ValueError where n > 2^p, for which there is none.
    """
    f = format_named(fmt)
    if n > 2**f.p:
        raise ValueError(f"the bound for every order is for at most 2^{f.p} terms in {fmt}")
    step = max(f.tiny, Fraction(2) ** (binade(n * term) - f.p))
    while n * (wide := -(-term // step) * step) > step * 2**f.p:
        step *= 2
    return wide, step


def any_order_bound(fmt: str, n: int, term: Fraction) -> Fraction:
    """Worst |fl(sum) - sum| of n numbers |x_i| <= term of a format, over every binary tree of additions.

    Raises ValueError for n < 1, n > 2^p or a term that is not positive, OverflowError where a sum may leave the format.
    """
    if n < 1 or term <= 0:
        raise ValueError("at least one term, of a positive magnitude")
    f = format_named(fmt)
    wide, _ = coarse(fmt, n, term)
    if n * wide > f.largest:
        raise OverflowError(f"a {fmt} sum of {n} terms may exceed {float(f.largest):.6g}")
    return stairs(f.half_ulp, n, wide)


def stairs(half_ulp: Callable[[Fraction], Fraction], n: int, wide: Fraction) -> Fraction:
    """The sum of half_ulp(m wide) for m = 2..n, one binade at a time."""
    total, m = Fraction(0), 2
    while m <= n:
        edge = Fraction(2) ** (binade(m * wide) + (Fraction(2) ** binade(m * wide) != m * wide))
        last = min(n, int(edge / wide))
        total += (last - m + 1) * half_ulp(m * wide)
        m = last + 1
    return total
