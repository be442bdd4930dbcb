"""The documents of two studies: `gradproof-speedup/2` and `gradproof-scaling/1`; their schemas lie in `reports/`."""

from __future__ import annotations

import statistics
from fractions import Fraction
from math import isclose, sqrt
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gradproof.core.schemas.base import Count, DocumentModel, Sha256
from gradproof.core.schemas.deterministic import Loss, Rate
from gradproof.core.schemas.sweep import interval

SPEEDUP, SCALING = "gradproof-speedup/2", "gradproof-scaling/1"
CLAIMED = (10.0, 15.0)
Agrees = Literal["inside", "below", "above", "undecided"]


class Percent(DocumentModel):
    """100 (time of the separate steps / time of the accumulated window - 1): the median of pairs and its interval."""

    median: float
    low: float
    high: float
    confidence: Annotated[float, Field(ge=0, le=1)]


class SpeedRow(DocumentModel):
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


class Times(DocumentModel):
    """How many times as long: the median of pairs and its interval."""

    median: Rate
    low: Rate
    high: Rate
    confidence: Annotated[float, Field(ge=0, le=1)]


class Doubling(DocumentModel):
    """A step of 2 n micro-batches over one of n. `pairs_times` has the quotient of every pair, in order."""

    optimizer: Literal["SGD", "AdamW"]
    width: Count
    accumulate: Count
    times: Times
    pairs_times: list[Rate]

    @model_validator(mode="after")
    def _consistent(self) -> Doubling:
        if times(self.pairs_times) != self.times:
            raise ValueError(f"{self.optimizer}, N = {self.accumulate}: the median is not that of its pairs")
        return self


class Speedup(DocumentModel):
    """Accumulation of 16 x 4 against four optimizer steps of 16, and steps of 2 N against steps of N micro-batches.

    History: 1, the first; 2, `doubling`.

    `speedup_percent` is that of the row that `configuration` names. `clock`: on a CPU the time that one thread of this
    process had, which other programs do not lengthen by taking turns; on CUDA the wall clock.
    """

    document: Literal["gradproof-speedup/2"] = Field(alias="schema")
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
    doubling: list[Doubling]
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


def times(pairs: list[float]) -> Times:
    """The median of the pairs' quotients with its interval."""
    found = interval(pairs)
    return Times(median=found.median, low=found.low, high=found.high, confidence=found.confidence)


def agreement(found: Percent) -> Agrees:
    """Where the interval lies beside the claim."""
    low, high = CLAIMED
    if found.high < low:
        return "below"
    if found.low > high:
        return "above"
    return "inside" if low <= found.low and found.high <= high else "undecided"


class ScalingRun(DocumentModel):
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


class Scaling(DocumentModel):
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
    stated: str
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
        if warmed.warm_up_steps < 1 or self.stated != conclusion(self.runs):
            raise ValueError("there is no warm-up, or what is reported is not what the runs say")
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


# -- The document of the study of token windows, format `gradproof-tokens/2`, made by `python -m symbolic.tokens.study`.
TOKENS = "gradproof-tokens/2"
Ratio = Annotated[float, Field(ge=1)]
Size = Annotated[float, Field(ge=0)]
Exact = Annotated[str, Field(pattern=r"^[0-9]+(/[1-9][0-9]*)?$")]
Name = Literal["SGD", "AdamW"]
Way = Literal["with 1/K", "without 1/K", "with 1/K, K times the rate"]


class Window(DocumentModel):
    """Tokens of a micro-step times micro-steps: the stated product, what was counted, and what each token weighs."""

    tokens: Count
    micro_batches: Count
    stated: Count
    counted: Count
    weight_of_each: Exact
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Window:
        if not self.counted == self.stated == self.tokens * self.micro_batches:
            raise ValueError("the tokens are not the product of the window")
        if Fraction(self.weight_of_each) * self.stated != 1:
            raise ValueError("the weights of the tokens do not add up to 1")
        return self


class StudyExample(DocumentModel):
    """A window of these counts whose bias, in units of the largest token gradient, is the bound for r = max / min."""

    r: Count
    counts: list[Count]
    bias: Exact
    bound: Exact
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> StudyExample:
        if Fraction(self.bias) != Fraction(self.bound):
            raise ValueError(f"r = {self.r}: the bias is not its bound")
        if max(self.counts) != self.r * min(self.counts):
            raise ValueError(f"r = {self.r}: the counts have another ratio")
        return self


class Bias(DocumentModel):
    """The largest bias of the fixed constant at each r: for every K, 2 (sqrt r - 1) / (sqrt r + 1), and by K."""

    r: list[Ratio]
    any_k: list[Size]
    by_k: dict[Literal["2", "4", "8"], list[Size]]
    examples: list[StudyExample]

    @model_validator(mode="after")
    def _consistent(self) -> Bias:
        if any(len(row) != len(self.r) for row in (self.any_k, *self.by_k.values())):
            raise ValueError("a curve has not a point for each r")
        for i, (r, most) in enumerate(zip(self.r, self.any_k, strict=True)):
            if not isclose(most, 2 * (sqrt(r) - 1) / (sqrt(r) + 1), rel_tol=1e-12, abs_tol=1e-12):
                raise ValueError(f"r = {r}: the bound for every K is another number")
            if any(row[i] > most + 1e-12 for row in self.by_k.values()):
                raise ValueError(f"r = {r}: a bias is above the bound for every K")
        return self


class Switch(DocumentModel):
    """AdamW's steps in rates after the 1/K is dropped; the largest, and its number from 1."""

    steps: list[float]
    largest: Size
    at: Count
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Switch:
        if self.at > len(self.steps) or not self.steps[self.at - 1] == self.largest == max(self.steps):
            raise ValueError("the largest step is another one")
        return self


class Trained(DocumentModel):
    """One run on the stream: mean losses in nats, and how far its weights end from their start and from `without`."""

    optimizer: Name
    run: Way
    rate: Annotated[float, Field(gt=0)]
    losses: list[Size]
    way: Size
    from_without: Size


class Parity(DocumentModel):
    """Both optimizers on one stream. SGD without 1/K ends with K times the rate; AdamW nearer to the same rate."""

    k: Count
    rate: Annotated[float, Field(gt=0)]
    windows: Count
    mean_of: Count
    runs: list[Trained]
    ok: Literal[True]

    @model_validator(mode="after")
    def _consistent(self) -> Parity:
        far = {(r.optimizer, r.run): r.from_without for r in self.runs}
        if len(far) != len(self.runs) or len(far) != 6:
            raise ValueError("there are not three runs of each optimizer")
        larger: Way = "with 1/K, K times the rate"
        if not far["SGD", larger] == 0 < far["SGD", "with 1/K"]:
            raise ValueError("SGD without 1/K does not end where K times the rate does")
        if not far["AdamW", "with 1/K"] < far["AdamW", larger] / 10:
            raise ValueError("AdamW without 1/K does not end nearer to the same rate")
        return self


class Lengths(DocumentModel):
    """Euclidean length of an optimizer's first step, with 1/N and without."""

    optimizer: Name
    with_scale: Annotated[float, Field(gt=0)]
    without: Annotated[float, Field(gt=0)]


class FirstStep(DocumentModel):
    """The first step of a window of n micro-batches at one rate, of both optimizers."""

    n: Count
    rate: Annotated[float, Field(gt=0)]
    runs: tuple[Lengths, Lengths]


class LateRun(DocumentModel):
    """One training under a rate that rises, in nats. `losses`: means of `mean_of` windows.

    `early` and `late`: the mean of the first and of the last quarter. `highest`: of all behind the first quarter.
    `_with`: the same of the run with 1/K, the same optimizer and the same seed.
    """

    optimizer: Name
    run: Literal["with 1/K", "without 1/K", "1/K restored in the last quarter"]
    seed: int
    losses: list[Size]
    early: Size
    late: Size
    end: Size
    highest: Size
    early_with: Size
    late_with: Size
    end_with: Size

    @model_validator(mode="after")
    def _consistent(self) -> LateRun:
        quarter = max(1, len(self.losses) // 4)
        first, last = self.losses[:quarter], self.losses[-quarter:]
        right = isclose(self.early, sum(first) / quarter) and isclose(self.late, sum(last) / quarter)
        if not right or self.end != self.losses[-1] or self.highest != max(self.losses[quarter:]):
            raise ValueError(f"{self.optimizer}, {self.run}: the parts are not those of the losses")
        return self


class Late(DocumentModel):
    """Stability without 1/K. `restored_from`: the part of the windows after which the 1/K is restored."""

    k: Count
    rate: Annotated[float, Field(gt=0)]
    momentum: float
    windows: Count
    mean_of: Count
    restored_from: Annotated[float, Field(ge=0, le=1)]
    runs: list[LateRun]

    @model_validator(mode="after")
    def _consistent(self) -> Late:
        right = {(r.optimizer, r.seed): (r.early, r.late, r.end) for r in self.runs if r.run == "with 1/K"}
        if any((r.early_with, r.late_with, r.end_with) != right.get((r.optimizer, r.seed)) for r in self.runs):
            raise ValueError("a run is not compared with the one with 1/K of its seed")
        return self


class Tokens(DocumentModel):
    """Windows on token counts: effective tokens, the bias of the fixed constant, and training with and without 1/K.

    History: 1, the first; 2, `first_step` and `late`. `sources` are digests of the files that computed it.
    """

    document: Literal["gradproof-tokens/2"] = Field(alias="schema")
    gradproof: str
    torch: str
    made_at: str
    effective_tokens: list[Window]
    bias: Bias
    after_switch: Switch
    parity: Parity
    first_step: FirstStep
    late: Late
    sources: dict[str, Sha256]
