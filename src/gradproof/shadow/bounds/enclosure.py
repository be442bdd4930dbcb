"""Enclosures in float64, rounded outward: interval products and quotients, and functions with a bound on their slope.

NumPy's functions are taken to be within 2^-45 of the truth, relatively; the four operations are IEEE's. A function maps
a triple (lo, hi, err) to the enclosure of its values and the bound err' on |f(x + d) - f(x)| for x in [lo, hi] and
|d| <= err; an infinite err' says that none is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parts = tuple[Array, ...]
Triple = tuple[Array, Array, Array]
WIDE = 2.0**-45
LEAST = 1e-300
erf = np.vectorize(math.erf, otypes=[np.float64])


class NoBound(Exception):
    """No bound is known for a value: why. Never a verdict."""


def above(x: Any) -> Array:
    """The next float64; infinities stay."""
    return np.asarray(np.nextafter(x, np.inf))


def below(x: Any) -> Array:
    """The float64 before; infinities stay."""
    return np.asarray(np.nextafter(x, -np.inf))


def sums(al: Array, ah: Array, bl: Array, bh: Array) -> tuple[Array, Array]:
    """[al, ah] + [bl, bh], widened only where float64 was not exact (Knuth's TwoSum tells)."""
    low, high = al + bl, ah + bh
    return np.where(_residue(al, bl, low) < 0, below(low), low), np.where(_residue(ah, bh, high) > 0, above(high), high)


def _residue(a: Array, b: Array, s: Array) -> Array:
    other = s - a
    return np.asarray(np.nan_to_num((a - (s - other)) + (b - other)))


def corners(al: Array, ah: Array, bl: Array, bh: Array) -> tuple[Array, Array]:
    """[al, ah] * [bl, bh]; zero times anything finite is zero, one times anything is that."""
    al, ah, bl, bh = np.broadcast_arrays(al, ah, bl, bh)
    four = (al * bl, al * bh, ah * bl, ah * bh)
    low, high = below(np.minimum.reduce(four)), above(np.maximum.reduce(four))
    for xl, xh, yl, yh in ((al, ah, bl, bh), (bl, bh, al, ah)):
        unit, null = (xl == 1) & (xh == 1), (xl == 0) & (xh == 0) & np.isfinite(yl) & np.isfinite(yh)
        low, high = np.where(unit, yl, np.where(null, 0.0, low)), np.where(unit, yh, np.where(null, 0.0, high))
    return low, high


def quotients(al: Array, ah: Array, bl: Array, bh: Array) -> tuple[Array, Array]:
    """[al, ah] / [bl, bh]; not a number where the divisor may be zero."""
    al, ah, bl, bh = np.broadcast_arrays(al, ah, bl, bh)
    four = (al / bl, al / bh, ah / bl, ah / bh)
    sound = (bl > 0) | (bh < 0)
    null = (al == 0) & (ah == 0)
    low = np.where(null, 0.0, below(np.minimum.reduce(four)))
    high = np.where(null, 0.0, above(np.maximum.reduce(four)))
    return np.where(sound, low, np.nan), np.where(sound, high, np.nan)


def widen(low: Array, high: Array) -> tuple[Array, Array]:
    """Outward by 2^-45 of the magnitude."""
    return low - np.abs(low) * WIDE, high + np.abs(high) * WIDE


def _nearest(x: Triple) -> Array:
    """Least magnitude that the machine's argument or the exact one may have."""
    lo, hi, err = x
    return np.asarray(np.maximum(0.0, np.maximum(lo - err, -(hi + err))))


def _rising(f: Callable[[Array], Array], slope: Callable[[Triple], Array]) -> Callable[..., Triple]:
    def enclosed(*args: Triple) -> Triple:
        x = args[0]
        lo, hi = widen(f(x[0]), f(x[1]))
        return lo, hi, np.where(x[2] == 0, 0.0, slope(x) * x[2])

    return enclosed


def _exp(x: Triple) -> Triple:
    lo, hi, err = x
    low, high = widen(np.exp(lo), np.exp(hi))
    high = np.where(np.isneginf(hi), 0.0, np.maximum(high, LEAST))
    return np.maximum(low, 0.0), high, np.where(err == 0, 0.0, high * np.expm1(err))


def _expm1(x: Triple) -> Triple:
    lo, hi = widen(np.expm1(x[0]), np.expm1(x[1]))
    return lo, hi, np.where(x[2] == 0, 0.0, np.exp(x[1]) * np.expm1(x[2]))


def _over(x: Array) -> Array:
    return np.where(x > 0, 1 / x, np.inf)


def _sqrt(x: Triple) -> Triple:
    lo, hi, err = x
    low, high = widen(np.sqrt(np.maximum(lo, 0.0)), np.sqrt(hi))
    safe = np.where(low > 0, err / np.maximum(low, LEAST), np.inf)
    return np.where(hi < 0, np.nan, low), high, np.where(err == 0, 0.0, np.minimum(safe, np.sqrt(err)))


def _bounded(f: Callable[[Array], Array]) -> Callable[..., Triple]:
    def enclosed(*args: Triple) -> Triple:
        lo, hi, err = args[0]
        middle, radius = (lo + hi) / 2, (hi - lo) / 2
        low, high = f(middle) - radius - WIDE, f(middle) + radius + WIDE
        return np.maximum(low, -1.0), np.minimum(high, 1.0), np.minimum(err, 2.0)

    return enclosed


def _steps(f: Callable[[Array], Array]) -> Callable[..., Triple]:
    def enclosed(*args: Triple) -> Triple:
        lo, hi, err = args[0]
        same = f(below(lo - err)) == f(above(hi + err))
        return f(lo), f(hi), np.where(same | (err == 0), 0.0, err + 1)

    return enclosed


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x))


def _log(x: Triple) -> Triple:
    lo, hi = widen(np.log(np.where(x[0] > 0, x[0], np.nan)), np.log(x[1]))
    return lo, hi, np.where(x[2] == 0, 0.0, x[2] * _over(x[0] - x[2]))


def _log1p(x: Triple) -> Triple:
    lo, hi = widen(np.log1p(np.where(x[0] > -1, x[0], np.nan)), np.log1p(x[1]))
    return lo, hi, np.where(x[2] == 0, 0.0, x[2] * _over(below(1 + x[0]) - x[2]))


def _pow(x: Triple, y: Triple) -> Triple:
    """A constant exponent: any for a positive base, a natural number without error for every base."""
    lo, hi, err = x
    n = y[0]
    constant = y[0] == y[1]
    natural = constant & (n >= 1) & (n == np.floor(n)) & (y[2] == 0)
    positive = constant & (lo - err > 0)
    a, b = np.power(lo, n), np.power(hi, n)
    low, high = widen(np.minimum(a, b), np.maximum(a, b))
    low = np.where(natural & (lo < 0) & (hi > 0) & (np.mod(n, 2) == 0), 0.0, low)
    most = np.maximum(np.abs(lo), np.abs(hi)) + err
    ends = np.maximum(np.power(np.abs(lo - err), n - 1), np.power(most, n - 1))
    slope = np.where(
        positive, np.abs(n) * np.maximum(ends, np.power(hi + err, n - 1)), np.abs(n) * np.power(most, n - 1)
    )
    known = positive | natural
    return (
        np.where(known, low, np.nan),
        np.where(known, high, np.nan),
        np.where(err == 0, 0.0, slope * err * (1 + WIDE)),
    )


def _bump(x: Triple) -> Array:
    s = _sigmoid(_nearest(x))
    return np.asarray(np.minimum(0.25, s * (1 - s) + WIDE))


FUNCTIONS: dict[str, Callable[..., Triple]] = {
    "exp": lambda x: _exp(x),
    "expm1": lambda x: _expm1(x),
    "log": lambda x: _log(x),
    "log1p": lambda x: _log1p(x),
    "sqrt": lambda x: _sqrt(x),
    "sin": _bounded(np.sin),
    "cos": _bounded(np.cos),
    "tanh": _rising(np.tanh, lambda x: np.minimum(1.0, 1 - np.tanh(_nearest(x)) ** 2 + WIDE)),
    "sigmoid": _rising(_sigmoid, _bump),
    "softplus": _rising(_softplus, lambda x: np.minimum(1.0, _sigmoid(x[1] + x[2]) * (1 + WIDE))),
    "erf": _rising(erf, lambda x: 1.1283791670955128 * np.exp(-(_nearest(x) ** 2)) * (1 + WIDE)),
    "atan": _rising(np.arctan, lambda x: 1 / (1 + _nearest(x) ** 2) * (1 + WIDE)),
    "floor": _steps(np.floor),
    "round": _steps(np.round),
    "pow": lambda x, y: _pow(x, y),
}
"""By name; a name that is missing has no bound."""


# Truth values of the rounding domain: what the exact evaluation says, and whether the machine must say the same.
NO, YES, OPEN, MOSTLY_NO, MOSTLY_YES = 0, 1, 2, 3, 4
"""False and true for both; undecided; false, and true, for the exact evaluation only."""

_NOT = np.array([YES, NO, OPEN, MOSTLY_YES, MOSTLY_NO], dtype=np.int8)


def verdict(yes: Array, no: Array, sure: Array) -> Array:
    """From what the exact evaluation says, and where the machine must agree."""
    decided = np.where(yes, np.where(sure, YES, MOSTLY_YES), np.where(sure, NO, MOSTLY_NO))
    return np.asarray(np.where(yes | no, decided, OPEN), dtype=np.int8)


def negated(x: Array) -> Array:
    """Not."""
    return np.asarray(_NOT[np.asarray(x, dtype=np.int64)])


def both(x: Array, y: Array) -> Array:
    """And."""
    x, y = np.broadcast_arrays(x, y)
    false = (x == MOSTLY_NO) | (y == MOSTLY_NO)
    true = np.where((x == YES) & (y == YES), YES, MOSTLY_YES)
    rest = np.where(false, MOSTLY_NO, np.where((x == OPEN) | (y == OPEN), OPEN, true))
    return np.asarray(np.where((x == NO) | (y == NO), NO, rest), dtype=np.int8)
