"""The document of a throughput sweep, format `gradproof-sweep/1`; its JSON Schema is `reports/sweep.schema.json`.

Times are medians over timed windows, with an interval of order statistics (`gradproof.core.schemas.sweep`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core.schemas.base import Count, DocumentModel, Sha256, Tally
from gradproof.core.schemas.deterministic import Loss, Rate

# -- Statistics of noisy curves, without assumptions on the distribution: medians with intervals, a knee, a slope.
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
class SweepPoint:
    """A point of a curve: where, the value, and between what it lies."""

    x: float
    y: float
    low: float
    high: float


def knee(points: Sequence[SweepPoint]) -> tuple[SweepPoint | None, str]:
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


SWEEP = "gradproof-sweep/1"
Chance = Annotated[float, Field(ge=0, le=1)]
COUNTED = (
    "all-reduces that DistributedDataParallel's reducer started during the timed windows on rank 0, one a bucket, seen "
    "by a communication hook over gloo"
)


class Setup(DocumentModel):
    """What was swept. `warm_up` windows of each length are run before the timed ones and not counted."""

    net: Literal["char", "mlp"]
    parameters: Count
    micro_batch: Count
    accumulate: list[Count]
    num_steps: Count
    warm_up: Tally
    ranks: Count
    seed: Tally
    learning_rate: Rate
    threads: Literal[1]


class SweepRow(DocumentModel):
    """One length of window. `confidence` is that of the interval from low to high around the median.

    `cpu_share`: processor time over wall time of the timed windows on rank 0; well below 1 on one process of a CPU,
    other programs took turns, and long windows wait for more of them.
    """

    accumulate: Count
    effective_batch: Count
    samples_per_sec: Rate
    samples_per_sec_low: Rate
    samples_per_sec_high: Rate
    median_step_ms: Rate
    step_ms_low: Rate
    step_ms_high: Rate
    confidence: Chance
    sync_calls: Tally
    avg_loss: Loss
    cpu_share: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _consistent(self) -> SweepRow:
        for rate, step in (
            (self.samples_per_sec, self.median_step_ms),
            (self.samples_per_sec_low, self.step_ms_high),
            (self.samples_per_sec_high, self.step_ms_low),
        ):
            if not math.isclose(rate * step, 1000 * self.effective_batch, rel_tol=1e-9):
                raise ValueError(f"N = {self.accumulate}: the rate is not that of its step")
        if not self.step_ms_low <= self.median_step_ms <= self.step_ms_high:
            raise ValueError(f"N = {self.accumulate}: the median is not in its interval")
        return self


class Knee(DocumentModel):
    """Where more accumulation stops to pay; None where there is no knee, and why."""

    effective_batch: Count | None
    rule: str
    reason: str


class Scatter(DocumentModel):
    """Mean |G - mean g|^2 over drawn effective batches, beside sigma^2 / B. `room` is Chebyshev's half width."""

    effective_batch: Count
    estimates: Count
    measured: Rate
    expected: Rate
    room: Rate
    within: bool

    @model_validator(mode="after")
    def _consistent(self) -> Scatter:
        if self.within != (abs(self.measured - self.expected) <= self.room):
            raise ValueError(f"B = {self.effective_batch}: within is not what the numbers say")
        return self


class Variance(DocumentModel):
    """Variance of the gradient estimate at fixed weights, drawn with replacement from `population` samples.

    `slope` is that of log variance over log B, with twice its standard error on either side; None for one B alone.
    Sampling with replacement makes it -1: the variance is sigma^2 / B (GA-VAR-001, proved for small windows).
    """

    population: Count
    sigma_squared: Rate
    confidence: Chance
    rows: list[Scatter]
    slope: float | None
    slope_low: float | None
    slope_high: float | None
    slope_expected: Literal[-1]

    @model_validator(mode="after")
    def _consistent(self) -> Variance:
        for row in self.rows:
            if not math.isclose(row.expected * row.effective_batch, self.sigma_squared, rel_tol=1e-9):
                raise ValueError(f"B = {row.effective_batch}: what is expected is not sigma^2 / B")
        if fitted(self.rows, self.confidence) != (self.slope, self.slope_low, self.slope_high):
            raise ValueError("the slope is not that of its rows")
        return self


class Sweep(DocumentModel):
    """Throughput over the length of the window at one micro-batch. History: 1, the first.

    `outcome` is NOT_RUN, with a reason and no rows, where there is no such device. `sources` are digests of the files
    that made it.
    """

    document: Literal["gradproof-sweep/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    seconds: Annotated[float, Field(ge=0)]
    outcome: Literal["MEASURED", "NOT_RUN"]
    reason: str
    device: Literal["cpu", "cuda"]
    device_name: str
    torch: str
    setup: Setup
    counted: str
    rows: list[SweepRow]
    knee: Knee | None
    variance: Variance | None
    sources: dict[str, Sha256]

    @model_validator(mode="after")
    def _consistent(self) -> Sweep:
        if (self.outcome == "NOT_RUN") != (not self.rows) or (not self.rows) != (self.knee is None):
            raise ValueError("what was not run has no rows and no knee, and what was run has both")
        if self.rows and [r.accumulate for r in self.rows] != self.setup.accumulate:
            raise ValueError("the rows are not those that were asked for")
        for row in self.rows:
            if row.effective_batch != row.accumulate * self.setup.micro_batch * self.setup.ranks:
                raise ValueError(f"N = {row.accumulate}: the effective batch is not micro x N x ranks")
        if self.rows and self.knee != knee_of(self.rows):
            raise ValueError("the knee is not that of its rows")
        return self


def knee_of(rows: Sequence[SweepRow]) -> Knee:
    """The knee of samples per second over the effective batch."""

    points = [
        SweepPoint(r.effective_batch, r.samples_per_sec, r.samples_per_sec_low, r.samples_per_sec_high) for r in rows
    ]
    found, reason = knee(points)
    return Knee(effective_batch=None if found is None else round(found.x), rule=KNEE_RULE, reason=reason)


def fitted(rows: Sequence[Scatter], confidence: float) -> tuple[float | None, float | None, float | None]:
    """The slope of log variance over log B, and twice its standard error below and above; Nones for one B.

    The standard error of a row is Chebyshev's half width over 1 / sqrt(1 - confidence), over what was measured.
    """
    if len({r.effective_batch for r in rows}) < 2:
        return None, None, None
    points = [(r.effective_batch, r.measured, r.room * math.sqrt(1 - confidence) / r.measured) for r in rows]
    found, error = slope(points)
    return found, found - 2 * error, found + 2 * error
