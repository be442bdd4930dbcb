"""The documents of two studies: `gradproof-speedup/1` and `gradproof-scaling/1`; their schemas lie in `reports/`."""

from __future__ import annotations

import statistics
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.documents import Count, Sha256, Shape
from gradproof.subjects.document import Loss, Rate
from gradproof.subjects.statistics import interval

SPEEDUP, SCALING = "gradproof-speedup/1", "gradproof-scaling/1"
CLAIMED = (10.0, 15.0)
Agrees = Literal["inside", "below", "above", "undecided"]


class Percent(Shape):
    """100 (time of the separate steps / time of the accumulated window - 1): the median of pairs and its interval."""

    median: float
    low: float
    high: float
    confidence: Annotated[float, Field(ge=0, le=1)]


class SpeedRow(Shape):
    """One model size and optimizer. `pairs_percent` has the speedup of every pair, in order.

    `agrees`: whether the interval lies inside the claimed 10 to 15 %, below it, above it, or across an end.
    """

    optimizer: Literal["SGD", "AdamW"]
    width: Count
    parameters: Count
    accumulated_ms: Rate
    separate_ms: Rate
    speedup_percent: Percent
    agrees: Agrees
    pairs_percent: list[float]

    @model_validator(mode="after")
    def _consistent(self) -> SpeedRow:
        if percent(self.pairs_percent) != self.speedup_percent:
            raise ValueError(f"{self.optimizer}, width {self.width}: the median is not that of its pairs")
        if agreement(self.speedup_percent) != self.agrees:
            raise ValueError(f"{self.optimizer}, width {self.width}: agrees is not what the interval says")
        return self


class Speedup(Shape):
    """Accumulation of 16 x 4 against four optimizer steps of 16, over the same samples. History: 1, the first.

    `speedup_percent` is that of the row that `configuration` names. `clock`: on a CPU the time that one thread of this
    process had, which other programs do not lengthen by taking turns; on CUDA the wall clock.
    """

    document: Literal["gradproof-speedup/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    seconds: Annotated[float, Field(ge=0)]
    device: Literal["cpu", "cuda"]
    device_name: str
    torch: str
    threads: Literal[1]
    clock: Literal["process time", "wall clock"]
    micro_batch: Count
    accumulate: Count
    claimed_percent: tuple[float, float]
    configuration: tuple[Literal["SGD", "AdamW"], Count]
    speedup_percent: Percent
    agrees: Agrees
    rows: list[SpeedRow]
    sources: dict[str, Sha256]

    @model_validator(mode="after")
    def _consistent(self) -> Speedup:
        named = [r for r in self.rows if (r.optimizer, r.width) == self.configuration]
        if len(named) != 1 or (named[0].speedup_percent, named[0].agrees) != (self.speedup_percent, self.agrees):
            raise ValueError("the speedup is not that of the configuration's row")
        if self.claimed_percent != CLAIMED:
            raise ValueError("the claim is another one")
        return self


def percent(pairs: list[float]) -> Percent:
    """The median of the pairs' speedups with its interval."""
    found = interval(pairs)
    return Percent(median=found.median, low=found.low, high=found.high, confidence=found.confidence)


def agreement(found: Percent) -> Agrees:
    """Where the interval lies beside the claim."""
    low, high = CLAIMED
    if found.high < low:
        return "below"
    if found.low > high:
        return "above"
    return "inside" if low <= found.low and found.high <= high else "undecided"


class ScalingRun(Shape):
    """One training, once for each seed. A final loss is None where the training ran into what is no number.

    `curve` has samples seen and mean loss since the point before, of the first seed.
    """

    name: str
    batch: Count
    accumulate: Count
    steps: Count
    rate: Rate
    warm_up_steps: Annotated[int, Field(ge=0)]
    finals: list[Loss | None]
    median_final: Loss | None
    curve: list[tuple[Count, Loss]]

    @model_validator(mode="after")
    def _consistent(self) -> ScalingRun:
        if median_of(self.finals) != self.median_final:
            raise ValueError(f"{self.name}: the median is not that of its seeds")
        return self


class Scaling(Shape):
    """One task with a small batch and with k times as large a one, over the same samples. History: 1, the first."""

    document: Literal["gradproof-scaling/1"] = Field(alias="schema")
    gradproof: str
    made_at: str
    seconds: Annotated[float, Field(ge=0)]
    torch: str
    threads: Literal[1]
    rule: str
    source: str
    net: Literal["char", "mlp"]
    parameters: Count
    k: Count
    samples: Count
    momentum: float
    seeds: Count
    runs: list[ScalingRun]
    told: str
    sources: dict[str, Sha256]

    @model_validator(mode="after")
    def _consistent(self) -> Scaling:
        if [r.name for r in self.runs] != list(RUNS):
            raise ValueError("the runs are not the four of the comparison")
        small, same, scaled, warmed = self.runs
        if any(r.steps * r.batch != self.samples or len(r.finals) != self.seeds for r in self.runs):
            raise ValueError("a run has other samples or seeds")
        large = [r.batch == self.k * small.batch for r in (same, scaled, warmed)]
        rates = (same.rate == small.rate, scaled.rate == warmed.rate == self.k * small.rate)
        if not all([*large, *rates]) or (scaled.warm_up_steps, small.warm_up_steps) != (0, 0):
            raise ValueError("the batches or rates are not those of the rule")
        if warmed.warm_up_steps < 1 or self.told != conclusion(self.runs):
            raise ValueError("there is no warm-up, or what is told is not what the runs say")
        return self


RUNS = ("B, rate", "kB, rate", "kB, k rate", "kB, k rate, warm-up")


def median_of(finals: list[float | None]) -> float | None:
    """The median of the seeds' final losses; None where one of them diverged."""
    known = [f for f in finals if f is not None]
    return statistics.median(known) if len(known) == len(finals) else None


def conclusion(runs: list[ScalingRun]) -> str:
    """How far each large batch ends from the small one, in nats, and which of them is nearest."""
    small = runs[0].median_final
    if small is None:
        return "the small batch diverged: nothing can be compared"
    away = {r.name: None if r.median_final is None else r.median_final - small for r in runs[1:]}
    words = [f"{name}: {'diverged' if d is None else f'{d:+.4f} nats'}" for name, d in away.items()]
    known = {name: abs(d) for name, d in away.items() if d is not None}
    nearest = min(known, key=lambda name: known[name]) if known else "none"
    return f"final loss less that of the small batch: {'; '.join(words)}. Nearest: {nearest}."
