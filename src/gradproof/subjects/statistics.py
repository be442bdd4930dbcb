"""Statistics of noisy curves, without assumptions on the distribution: medians with intervals, a knee, a slope.

The interval of a median is made of order statistics: between the k-th smallest and the k-th largest of n independent
values the median lies with probability 1 - 2 P(Bin(n, 1/2) < k). Source: David and Nagaraja, Order Statistics, 7.1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

ASKED = 0.95
KNEE_RULE = (
    "the point farthest above the chord from the first point to the last, vertically, over the effective batch "
    "(Kneedle for a rising concave curve: Satopaa et al. 2011); no knee where one constant lies in every interval, or "
    "where the low end of that point is not above the chord of the high ends and the high end of the first point"
)


@dataclass(frozen=True)
class Interval:
    """A median, two of the values around it, and the probability that the true median lies between these."""

    median: float
    low: float
    high: float
    confidence: float


def interval(values: Sequence[float]) -> Interval:
    """The shortest symmetric pair of order statistics with 95 %; the extremes where there are too few values for it.

    Raises ValueError for no value, or one that is not finite.
    """
    if not values or not all(math.isfinite(v) for v in values):
        raise ValueError("a median needs values, and finite ones")
    ordered, n = sorted(values), len(values)
    k, below = 1, 2.0**-n
    while 2 * k < n and 1 - 2 * (more := below + math.comb(n, k) * 2.0**-n) >= ASKED:
        k, below = k + 1, more
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k], 1 - 2 * below if n > 1 else 0.0)


@dataclass(frozen=True)
class Point:
    """A point of a curve: where, the value, and between what it lies."""

    x: float
    y: float
    low: float
    high: float


def knee(points: Sequence[Point]) -> tuple[Point | None, str]:
    """The knee of a curve over rising x, and why there is one or none; the rule is `KNEE_RULE`."""
    if len(points) < 3:
        return None, f"{len(points)} points have no knee: three are needed"
    if max(p.low for p in points) <= min(p.high for p in points):
        return None, "flat within its spread: one constant lies in every interval"
    first, last = points[0], points[-1]

    def chord(x: float, left: float, right: float) -> float:
        return left + (right - left) * (x - first.x) / (last.x - first.x)

    top = max(points[1:-1], key=lambda p: p.y - chord(p.x, first.y, last.y))
    if top.low <= chord(top.x, first.high, last.high):
        return None, "no point is above the chord by more than the spread"
    if top.low <= first.high:
        return None, "the curve does not rise from its first point by more than the spread"
    return top, "farthest above the chord, by more than the spread"


def slope(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Least squares of log y over log x, and the standard error of the slope, from rows of x, y and the error of log y.

    The errors are taken as independent and small (delta method). Raises ValueError for fewer than two x.
    """
    xs = [math.log(x) for x, _, _ in points]
    if len(set(xs)) < 2:
        raise ValueError("a slope needs two places")
    mean = statistics.fmean(xs)
    weight = [(x - mean) / sum((a - mean) ** 2 for a in xs) for x in xs]
    found = sum(w * math.log(y) for w, (_, y, _) in zip(weight, points, strict=True))
    return found, math.sqrt(sum((w * e) ** 2 for w, (_, _, e) in zip(weight, points, strict=True)))
