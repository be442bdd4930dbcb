"""Rounding for every N at once: KANI-GA-024 and -025 of the contract, each an explicit invariant.

u is the unit roundoff, E_n the error of n terms. The rounding of z is within half an ulp of the binade that z is shown
to lie in, or within u |z| and within the term: the contracts `add/*/half-ulp`, `/grid`, `/relative`, `/at-most-terms`.
"""

from __future__ import annotations

from typing import Any

ROUNDINGS = ("once", "again")
"""Roundings that a step may make: one, and one more for a step that is wrong."""


def sharp(k: Any, step: Any) -> None:
    """|E_N| <= u X (N^2 - 1) / 3 for all N = 2^k and |x_i| <= X, a power of two, N <= 2^p: two levels.

    Outer: n -> 2 n. Inner, for 0 <= j <= n terms beyond n: |s| <= (n + j) X and |E| <= u X (n^2 - 1) / 3 + j u n X.
    """
    first = *_scales(k, "at first"), *_term(k)
    later = _sharp_later(k)  # every input is drawn before the first check
    k.inductive(lambda: _sharp_base(k, step, *first), lambda: _sharp_step(k, step, *later))


def _scales(k: Any, at: str) -> tuple[Any, Any, Any]:
    n, x, u = (k.real(f"{name} {at}") for name in ("n", "X", "u"))
    k.assume(n >= 1)
    k.assume(x > 0)
    k.assume(u > 0)
    return n, x, u


def errors(k: Any, at: str) -> list[Any]:
    """An error for each rounding that a step may make."""
    return [k.real(f"error {at}, {which}") for which in ROUNDINGS]


def _term(k: Any) -> tuple[Any, list[Any]]:
    """The first term, and errors."""
    return k.real("x at first"), errors(k, "at first")


def first_error(k: Any, step: Any, u: Any, x: Any, drawn: list[Any]) -> Any:
    """The error of one term, added to an empty sum. The term is a number of the format: rounding keeps it."""
    unused = iter(drawn)

    def fl(z: Any) -> Any:
        if z == x:
            return z
        d = next(unused)
        k.assume(abs(d) <= u * abs(z))
        return z + d

    return step.add(0 * x, x, fl) - x


def _sharp_base(k: Any, step: Any, n: Any, x: Any, u: Any, term: Any, drawn: list[Any]) -> None:
    """One term is its own sum; the inner induction begins where the outer one stands, and ends at 2 n."""
    lost = first_error(k, step, u, term, drawn)
    k.check("GA-EQ-001", abs(lost) <= u * x * (1 * 1 - 1) / 3, "one term, no error")
    k.cover("a window of many micro-batches", n >= 64)
    inner = u * x * (n * n - 1) / 3 + n * u * n * x
    k.check("GA-EQ-001", inner <= u * x * (4 * n * n - 1) / 3, "after n more terms it is the bound of 2 n")


def _sharp_later(k: Any) -> tuple[Any, ...]:
    """n, X and u, the place in the inner induction, the sum and its error so far, a term, and errors."""
    return *_scales(k, "later"), k.real("j"), k.real("s"), k.real("E"), k.real("x"), errors(k, "later")


def _sharp_step(k: Any, step: Any, n: Any, most: Any, u: Any, j: Any, s: Any, e: Any, x: Any, drawn: list[Any]) -> None:
    k.assume(j >= 0)
    k.assume(j + 1 <= n)
    reach = (n + j) * most
    lost = u * most * (n * n - 1) / 3 + j * u * n * most
    for value, bound in ((s, reach), (e, lost), (x, most)):
        k.assume(abs(value) <= bound)
    fl = rounded(k, drawn, u * n * most, reach + most)
    t = step.add(s, x, fl)
    k.cover("a rounding error")
    k.check("GA-EQ-001", abs(t) <= reach + most, "the partial sum stays within its reach")
    k.check("GA-EQ-001", abs(e + t - (s + x)) <= lost + u * n * most, "one more half ulp at the most")


def rounded(k: Any, drawn: list[Any], error: Any, reach: Any) -> Any:
    """A rounding by the contracts half-ulp and grid, in the binade up to 2 n X, which the argument must be shown in."""
    unused = iter(drawn)

    def fl(z: Any) -> Any:
        k.check("GA-EQ-001", abs(z) <= reach, "the exact sum lies within the reach of one more term")
        d = next(unused)
        k.assume(abs(d) <= error)
        k.assume(abs(z + d) <= reach)
        return z + d

    return fl


def any_inputs(k: Any, step: Any) -> None:
    """|E_n| <= (n - 1) u sum |x_i| for all n with n u <= 1 and all inputs (Rump 2012; Jeannerod and Rump 2018)."""
    first, later = (k.real("u at first"), k.real("S at first"), *_term(k)), _any_later(k)
    k.inductive(lambda: _any_base(k, step, *first), lambda: _any_step(k, step, *later))


def _any_base(k: Any, step: Any, u: Any, total: Any, x: Any, drawn: list[Any]) -> None:
    """One term has no error."""
    k.assume((u > 0) & (total >= 0))
    k.check("GA-EQ-001", abs(first_error(k, step, u, x, drawn)) <= (1 - 1) * u * total, "one term, no error")
    k.cover("a sum", total > 0)


def _any_later(k: Any) -> tuple[Any, ...]:
    """n, u and S, the exact sum and the error so far, a term, and errors."""
    n, u, total, exact, e, x = (k.real(name) for name in ("n", "u", "S", "exact", "E", "x"))
    k.assume((n >= 1) & (u > 0))
    k.assume(n * u <= 1)
    k.assume(abs(exact) <= total)
    k.assume(abs(e) <= (n - 1) * u * total)
    return n, u, total, exact, e, x, errors(k, "later")


def _any_step(k: Any, step: Any, n: Any, u: Any, total: Any, exact: Any, e: Any, x: Any, drawn: list[Any]) -> None:
    unused = iter(drawn)

    def fl(z: Any) -> Any:
        d = next(unused)
        k.assume(abs(d) <= u * abs(z))
        k.assume(abs(d) <= abs(x))
        return z + d

    s = exact + e
    t = step.add(s, x, fl)
    k.cover("a rounding error")
    k.check("GA-EQ-001", abs(e + t - (s + x)) <= n * u * (total + abs(x)), "the bound for n + 1 terms")
