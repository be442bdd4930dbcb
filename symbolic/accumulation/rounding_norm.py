"""From one element to the norm over d elements, for every d: KANI-GA-030 of the contract.

Each element of a gradient has a buffer of its own, so element i errs by E_i with |E_i| <= B (what one element may lose:
KANI-GA-020 to -024) and |E_i| <= c m_i, m_i = mean |g| of that element (KANI-GA-029). Then, for every d,

    ||E||_inf <= B,   ||E||_2 <= sqrt(d) B,   ||E||_2 <= c ||m||_2.

The invariant is about squares, so no root is taken before the end: Q = sum E_i^2 <= d B^2, Q <= c^2 sum m_i^2. Both are
attained where every element is the witness of one. Source: Higham, Accuracy and Stability (2nd ed.), section 6.2.
"""

from __future__ import annotations

from typing import Any

CLAUSE = "GA-EQ-001"


def norm(k: Any, layout: Any) -> None:
    """One more element, whatever the ones before it were."""
    k.inductive(lambda: _base(k), lambda: _step(k, layout))


def squares(d: Any, bound: Any) -> Any:
    """The most that the squares of d errors of at most `bound` add up to."""
    return d * bound * bound


def _base(k: Any) -> None:
    """No element; and the roots, taken once all d are summed: r = ||E||_2, s = sqrt(d), w = ||m||_2."""
    names = ("d", "B", "c", "sum of E^2", "sum of m^2", "r", "s", "w")
    d, b, c, q, m, r, s, w = (k.real(f"{name} at last") for name in names)
    k.assume((d >= 1) & (b >= 0) & (c >= 0) & (m >= 0))
    k.check(CLAUSE, squares(0, b) >= 0, "no element, no error")
    k.assume((r >= 0) & (s >= 0) & (w >= 0))
    k.assume((r * r == q) & (s * s == d) & (w * w == m))
    k.assume((q <= squares(d, b)) & (q <= c * c * m))
    k.cover("a gradient of many elements", (d >= 64) & (q > 0))
    k.check(CLAUSE, r <= s * b, "the norm is at most sqrt(d) B")
    k.check(CLAUSE, r <= c * w, "the norm is at most c times the norm of the means")


def _step(k: Any, layout: Any) -> None:
    """An element's accumulated value and its neighbour's, each within its bounds, laid out by the subject."""
    names = ("d", "B", "c", "sum of E^2", "sum of m^2")
    d, b, c, q, total = (k.real(name) for name in names)
    exact, m, got, beside = (k.real(name) for name in ("exact mean", "mean |g|", "accumulated", "accumulated beside"))
    k.assume((d >= 0) & (b >= 0) & (c >= 0) & (total >= 0))
    k.assume((q <= squares(d, b)) & (q <= c * c * total))
    k.assume((exact <= m) & (-exact <= m))
    for bound in (b, c * m):
        k.assume((got - exact <= bound) & (exact - got <= bound))
    error = layout.element(got, beside) - exact
    k.cover("an element with an error", error > 0)
    k.check(CLAUSE, error <= b, "the largest error, above")
    k.check(CLAUSE, -error <= b, "the largest error, below")
    k.check(CLAUSE, q + error * error <= squares(d + 1, b), "the squares of d + 1 errors")
    k.check(CLAUSE, q + error * error <= c * c * (total + m * m), "the squares, relative to those of the means")
