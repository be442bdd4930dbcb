"""The relative form, for every n at once: KANI-GA-029 of the contract. No size of the gradients is assumed.

q_i = g_i / N is the exact quotient, x_i what reaches the buffer, E_n the error of n terms against the sum of the q_i.
Rounding to nearest errs by at most u / (1 + u) of its argument: half an ulp is u b, b the power of two below |z|, and b
is a number of the format, so the error is at most |z| - b too. With that and `add/*/at-most-terms`, for every n,

    |E_n| <= (n - 1 + own) u sum |q_i| + n tiny / 2 (1 + (n - 1 + own) u),   own = 1, or 0 where N is a power of two,

and with n = N the sum is mean |g_i|. So the quotients cost one more u, and nothing of second order; products with
fl(1/N) cost 2u, and as much again of each addition's u. Sources: Jeannerod and Rump, SIAM J. Matrix Anal. Appl. 34
(2013); Rump, BIT 52 (2012). The fourth path: E_N of KANI-GA-024 at P, the power of two next above X = max |g|.

Each absolute value is a path for each sign: without a disjunction, Z3 answers in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from symbolic.accumulation.rounding_all import ROUNDINGS, errors, rounded

CLAUSE = "GA-EQ-001"
SCALINGS = {"N a power of two": (0, 0), "x / N": (1, 0), "x * fl(1/N)": (0, 2)}
"""How 1/N is applied: u's that the induction takes in (`own`), and u's a term that it takes as they are (`more`)."""
ANY_SIZE = "N a power of two, against max |g|"

Scale = Callable[[Any, Any], Any]


def relative(k: Any, step: Any) -> None:
    """A way to apply 1/N a path, and the sharp bound at gradients of any size."""
    way = k.choose("scaling", [*SCALINGS, ANY_SIZE])
    if way == ANY_SIZE:
        k.inductive(lambda: _size_base(k), lambda: _size_step(k, step))
    else:
        own, more = SCALINGS[way]
        moves = k.choose("part", ["the error", "what scaling moves"]) == "what scaling moves"
        k.inductive(lambda: _base(k, own, more), lambda: _sums(k, own, more) if moves else _step(k, step, own, more))


def within(value: Any, bound: Any) -> Any:
    """|value| <= bound, without a disjunction."""
    return (value <= bound) & (-value <= bound)


def size(k: Any, value: Any, name: str) -> Any:
    """|value|, on a path for each sign."""
    signed = -value if k.choose(f"{name} is negative", [False, True]) else value
    k.assume(signed >= 0)
    return signed


def _both(k: Any, value: Any, bound: Any, label: str) -> None:
    """|value| <= bound, each side a question of its own."""
    k.check(CLAUSE, value <= bound, f"{label}, above")
    k.check(CLAUSE, -value <= bound, f"{label}, below")


def factor(n: Any, own: int) -> Any:
    """How many u's n terms cost."""
    return n - 1 + own


def _scales(k: Any, at: str, least: int = 1) -> tuple[Any, Any, Any]:
    """Terms so far, unit roundoff, and what underflow may cost a term."""
    n, u, low = (k.real(f"{name} {at}") for name in ("n", "u", "tiny/2"))
    k.assume((n >= least) & (u > 0) & (u <= Fraction(1, 2)) & (low >= 0))
    return n, u, low


@dataclass(frozen=True)
class Scaled:
    """g / N by its contract: moved by `more` u and by underflow, then rounded to `own` u / (1 + u). `near`: |moved|."""

    quotient: Any
    moved: Any
    near: Any
    result: Any


def scaled(k: Any, g: Any, share: Any, at: str, scales: tuple[Any, Any, int, int]) -> Scaled:
    """One scaling of g, in a path for each sign."""
    u, low, own, more = scales
    moved, error, q = k.real(f"moved {at}"), k.real(f"quotient error {at}"), g * share
    k.assume(within(moved, more * u * size(k, q, f"q {at}") + low if more else low))
    near = size(k, q + moved, f"the moved quotient {at}")
    k.assume(within(error * (1 + u), own * u * near))
    return Scaled(q, moved, near, q + moved + error)


def _base(k: Any, own: int, more: int) -> None:
    """One rounding by its contract; one term; and what the invariant says when n = N."""
    _, u, low = _scales(k, "at first")
    b, z, d = (k.real(f"{name} of one rounding") for name in ("b", "|z|", "d"))
    k.assume((b > 0) & (z >= b) & within(d, u * b) & within(d, z - b))
    _both(k, d * (1 + u), u * z, "half an ulp, and a power of two: at most u / (1 + u)")
    near, error = k.real("|first quotient, moved|"), k.real("its error")
    k.assume((near >= 0) & within(error * (1 + u), own * u * near))
    _both(k, error, factor(1, own) * u * near, "one term, one scaling")
    whole, total, mean, e, f = (k.real(name) for name in ("N", "T at last", "mean |g|", "E at last", "F at last"))
    lost = factor(whole, own) * u
    k.assume((whole >= 1) & (mean >= 0) & (total >= 0))
    k.assume(within(e, lost * total) & within(f, more * u * mean + whole * low))
    k.assume(total <= (1 + more * u) * mean + whole * low)
    k.cover("a window of many micro-batches with an error", (whole >= 64) & (e > 0))
    claim = (lost * (1 + more * u) + more * u) * mean + whole * low * (1 + lost)
    _both(k, e + f, claim, "relative to mean |g|, and what underflow costs")


def _step(k: Any, step: Any, own: int, more: int) -> None:
    """T: the sum of the moved quotients' magnitudes, S that of the quotients'; F: what scaling moved; E: the rest."""
    n, u, low = _scales(k, "later")
    total, share, e, exact, g = (k.real(name) for name in ("T", "1/N", "E", "sum of moved quotients", "g"))
    k.assume((total >= 0) & (share > 0) & (share <= 1))
    k.assume(within(exact, total) & within(e, factor(n, own) * u * total))
    scales = (u, low, own, more)
    one = scaled(k, g, share, "later", scales)
    again = iter(["again"])

    def scale(a: Any, by: Any) -> Any:
        return one.result if a is g else scaled(k, a, by, next(again), scales).result

    s, x = exact + e, step.term(g, share, scale)
    t = step.add(s, x, _additions(k, u, x))
    k.cover("a rounding error", t > s + x)
    error, bound = e + t - s - one.quotient - one.moved, factor(n + 1, own) * u * (total + one.near)
    _both(k, error, bound, "the bound for n + 1 terms")


def _sums(k: Any, own: int, more: int) -> None:
    """What scaling moved, one term more; before the first one nothing."""
    n, u, low = _scales(k, "summed", 0)
    g, share, total, sizes, f = (k.real(f"{name} summed") for name in ("g", "1/N", "T", "S", "F"))
    one = scaled(k, g, share, "summed", (u, low, own, more))
    q = size(k, one.quotient, "the quotient summed")
    k.assume((total <= (1 + more * u) * sizes + n * low) & within(f, more * u * sizes + n * low))
    k.check(CLAUSE, total + one.near <= (1 + more * u) * (sizes + q) + (n + 1) * low, "the moved quotients' sum")
    _both(k, f + one.moved, more * u * (sizes + q) + (n + 1) * low, "what scaling moved")


def _additions(k: Any, u: Any, x: Any) -> Callable[[Any], Any]:
    """Roundings of a sum with x by the contracts relative and at-most-terms."""
    unused = iter(errors(k, "of the sum"))
    term = size(k, x, "x")

    def fl(z: Any) -> Any:
        d = next(unused)
        k.assume(within(d * (1 + u), u * size(k, z, "z")) & within(d, term))
        return z + d

    return fl


def _size_base(k: Any) -> None:
    """As in KANI-GA-024, m = P / N the largest term; P, a power of two, is X = max |g_i| or less than twice that."""
    n, u, low = _scales(k, "at first")
    whole, x, p, m = (k.real(f"{name} at first") for name in ("N", "X", "P", "m"))
    k.assume((x > 0) & (x <= p) & (p < 2 * x))
    k.assume((whole >= 1) & (m * whole == p))
    k.check(CLAUSE, u * m * (1 * 1 - 1) / 3 + low >= 0, "one term, its underflow")
    k.cover("a window of many micro-batches", whole >= 64)
    inner = u * m * (n * n - 1) / 3 + n * u * n * m
    k.check(CLAUSE, inner <= u * m * (4 * n * n - 1) / 3, "after n more terms it is the bound of 2 n")
    last = u * m * (whole * whole - 1)
    k.check(CLAUSE, whole * last == u * p * (whole * whole - 1), "P E_N, where n = N")
    k.check(CLAUSE, whole * last <= 2 * x * u * (whole * whole - 1), "at most 2 X E_N, and X E_N where X = P")


def _size_step(k: Any, step: Any) -> None:
    n, u, low = _scales(k, "later")
    m, j, s, e, g, share = (k.real(name) for name in ("m", "j", "s", "E", "g", "1/N"))
    k.assume((m > 0) & (j >= 0) & (j + 1 <= n))
    k.assume((share > 0) & (share <= 1) & within(g * share, m))
    lost = u * m * (n * n - 1) / 3 + j * u * n * m
    k.assume(within(s, (n + j) * m) & within(e, lost + (n + j) * low))
    moved = iter([k.real(f"moved {which}") for which in ROUNDINGS])

    def scale(a: Any, by: Any) -> Any:
        d = next(moved)
        k.assume(within(d, low) & within(a * by + d, m))  # grid: |g| <= P, and m = P / N is a number of the format
        return a * by + d

    x = step.term(g, share, scale)
    t = step.add(s, x, rounded(k, errors(k, "of the sum"), u * n * m, (n + j + 1) * m))
    k.cover("a rounding error", t > s + x)
    _both(k, t, (n + j + 1) * m, "the partial sum stays within its reach")
    _both(k, e + t - (s + g * share), lost + u * n * m + (n + j + 1) * low, "one more half ulp, one more underflow")
