"""Throughput against the effective batch at one micro-batch, and the variance of the gradient beside it.

`gradproof sweep` is the command. On one process the windows are timed without DistributedDataParallel, and the
all-reduces are counted in a second run of the same loop in a group of one; on several ranks one run does both.
Below the measurement it is put into words and drawings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.sweep import interval
from gradproof.extras.studies.sources import Begun, models
from gradproof.report.charts import Curve, Panel
from gradproof.report.studies import SWEEP

if TYPE_CHECKING:
    from gradproof.core.schemas.sweep import Setup, Sweep, SweepRow, Variance

FUNCTION = "models.speed.throughput:one_rank"
LEAST_STEPS, MOST_RANKS = 6, 16
CONFIDENCE = 0.95
SECONDS_A_RUN = 900.0


@dataclass(frozen=True)
class Asked:
    """The request of a sweep, as the command line has it. `draws` is how many estimates a variance is made of."""

    net: str = "char"
    micro: int = 16
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    steps: int = 20
    ranks: int = 1
    device: str = "cpu"
    seed: int = 0
    draws: int = 100

    def total(self) -> int:
        """How many times `tick` is called."""
        from_time = 0 if self.ranks > 1 else (WARM + self.steps) * len(self.lengths)
        return from_time + (len(self.lengths) if self.draws else 0) + 1


WARM = 2


def refused(asked: Asked) -> None:
    """Raises GradproofError GP421 for a sweep that says nothing."""
    n = asked.lengths
    wrong = [
        (list(n) != sorted(set(n)) or min(n, default=0) < 1, f"--accumulate {n}", "rising lengths of at least 1"),
        (asked.micro < 1, f"--micro-batch {asked.micro}", "at least one sample"),
        (asked.steps < LEAST_STEPS, f"--num-steps {asked.steps}", f"at least {LEAST_STEPS}, for an interval of 95 %"),
        (not 1 <= asked.ranks <= MOST_RANKS, f"--ranks {asked.ranks}", f"1 to {MOST_RANKS}"),
        (asked.ranks > 1 and asked.device == "cuda", "--ranks with --device cuda", "ranks over gloo on the CPU"),
        (asked.draws < 0 or asked.draws == 1, f"--draws {asked.draws}", "0, or at least 2"),
        (asked.seed < 0, f"--seed {asked.seed}", "a seed of at least 0"),
    ]  # fmt: skip
    for is_wrong, found, expected in wrong:
        if is_wrong:
            raise GradproofError("GP421", found, expected, "see gradproof sweep --help")


def made(asked: Asked, tick: Callable[[], None] = lambda: None) -> Sweep:
    """Measure. Raises GradproofError GP421 for a request that says nothing, GP410 when a rank dies, GP219 where
    a file of it changes meanwhile.
    """
    from gradproof.core.schemas.sweep import COUNTED, Sweep, knee_of
    from gradproof.evidence.environment import cuda_absent

    refused(asked)
    absent = cuda_absent() if asked.device == "cuda" else None
    begun, measure = Begun(SWEEP), models("sampling.measured")
    rows, variance = ([], None) if absent else _measured(asked, tick)
    return Sweep(
        schema="gradproof-sweep/1", outcome="NOT_RUN" if absent else "MEASURED", reason=absent or "",
        device="cuda" if asked.device == "cuda" else "cpu",
        device_name="" if absent else measure.device_name(asked.device),
        setup=_setup(asked), counted=COUNTED, rows=rows, knee=None if absent else knee_of(rows), variance=variance,
        **begun.head(),
    )  # fmt: skip


def _setup(asked: Asked) -> Setup:
    from gradproof.core.schemas.sweep import Setup

    throughput = models("speed.throughput")
    return Setup(
        net="mlp" if asked.net == "mlp" else "char", parameters=throughput.parameters(asked.net),
        micro_batch=asked.micro, accumulate=list(asked.lengths),
        num_steps=asked.steps, warm_up=WARM, ranks=asked.ranks, seed=asked.seed,
        learning_rate=throughput.Request.learning_rate, threads=1,
    )  # fmt: skip


def _measured(asked: Asked, tick: Callable[[], None]) -> tuple[list[SweepRow], Variance | None]:
    """Times, counts and variances, on one thread."""
    from gradproof.shadow.tape.ranks import run_ranks

    throughput, restore = models("speed.throughput"), models("sampling.measured").one_thread()
    request = throughput.Request(asked.net, asked.micro, asked.lengths, asked.steps, WARM, asked.device, asked.seed)
    try:
        counted_on = throughput.Request(asked.net, asked.micro, asked.lengths, asked.steps, WARM, "cpu", asked.seed)
        ranks = run_ranks(FUNCTION, counted_on, asked.ranks, SECONDS_A_RUN)
        tick()
        timed = ranks[0] if asked.ranks > 1 else throughput.measure(request, tick)
        losses = [[r[i].losses for r in ranks] if asked.ranks > 1 else [timed[i].losses] for i in range(len(timed))]
        rows = [row(asked, n, timed[i], losses[i], ranks[0][i].collectives) for i, n in enumerate(asked.lengths)]
        return rows, _variance(asked, tick) if asked.draws else None
    finally:
        restore()


def row(asked: Asked, n: int, timed: Any, losses: Sequence[Sequence[float]], collectives: int) -> SweepRow:
    """One row of the document; `losses` are those of each rank. Raises GradproofError GP422 for a loss that is none."""
    from gradproof.core.schemas.sweep import SweepRow

    found, effective = interval(timed.seconds), n * asked.micro * asked.ranks
    every = [loss for rank in losses for loss in rank]
    if not all(map(math.isfinite, every)):
        raise GradproofError(
            "GP422", f"a loss that is no number at N = {n}", "a training that converges", "another net"
        )
    return SweepRow(
        accumulate=n, effective_batch=effective,
        samples_per_sec=effective / found.median, samples_per_sec_low=effective / found.high,
        samples_per_sec_high=effective / found.low, median_step_ms=1000 * found.median, step_ms_low=1000 * found.low,
        step_ms_high=1000 * found.high, confidence=found.confidence, sync_calls=collectives,
        avg_loss=sum(every) / len(every), cpu_share=sum(timed.processor) / sum(timed.seconds),
    )  # fmt: skip


POPULATION = 64


def _variance(asked: Asked, tick: Callable[[], None]) -> Variance:
    """The scatter of drawn effective batches about the mean gradient of a finite set, at the net's first weights."""
    from gradproof.core.schemas.sweep import Scatter, Variance, fitted

    drawn, throughput = models("sampling.torch_variance"), models("speed.throughput")
    task = throughput.task(asked.net, asked.seed, asked.device)

    def job(n: int) -> Any:
        inputs, targets = task.inputs[:POPULATION], task.targets[:POPULATION]
        return drawn.DrawJob(task.model, inputs, targets, task.loss, asked.micro, n)

    known, rows = drawn.moments(job(1)), []
    for n in asked.lengths:
        seen = drawn.scatter(drawn.DrawnEstimate(), job(n), known, asked.draws, 1000 * asked.seed + n, CONFIDENCE)
        within = abs(seen.measured - seen.expected) <= seen.room
        values = {k: v for k, v in asdict(seen).items() if k in ("measured", "expected", "room")}
        rows.append(Scatter(effective_batch=seen.batch, estimates=seen.count, within=within, **values))
        tick()
    found, low, high = fitted(rows, CONFIDENCE)
    return Variance(
        population=POPULATION, sigma_squared=known.second, confidence=CONFIDENCE, rows=rows, slope=found, slope_low=low,
        slope_high=high, slope_expected=-1,
    )  # fmt: skip


# -- A sweep in words and drawings.
BAR = 24
BUSY = 0.9
HEAD = f"{'N':>4}{'effective':>11}{'samples/s':>11}{'interval':>19}{'step ms':>9}{'syncs':>7}{'loss':>8}"


def stated(made: Sweep) -> str:
    """The sweep in words: a row with a bar for each length, the knee, and the variance."""
    s = made.setup
    if made.outcome == "NOT_RUN":
        return f"NOT_RUN on {made.device}: {made.reason}"
    ranks = f"{s.ranks} ranks over gloo" if s.ranks > 1 else "one process"
    where = f"torch {made.torch} on {made.device_name}, one thread"
    lines = [
        f"{s.net}, {s.parameters:,} weights, micro-batch {s.micro_batch}, {ranks}; "
        f"medians of {s.num_steps} steps; {where}"
    ]
    lines += [HEAD, *_row_lines(made)]
    assert made.knee is not None
    knee = made.knee.effective_batch
    lines.append(f"{'no knee' if knee is None else f'knee at an effective batch of {knee}'}: {made.knee.reason}")
    lines.append(f"syncs: {made.counted}")
    shared = min(r.cpu_share for r in made.rows)
    if made.device == "cpu" and s.ranks == 1 and shared < BUSY:
        lines.append(
            f"warning: other programs took turns; as little as {100 * shared:.0f} % of the time was this one's"
        )
    return "\n".join([*lines, *(_variance_lines(made.variance) if made.variance else [])])


def _row_lines(made: Sweep) -> Iterator[str]:
    most = max(r.samples_per_sec for r in made.rows)
    for r in made.rows:
        between = f"{r.samples_per_sec_low:,.0f} - {r.samples_per_sec_high:,.0f}"
        bar = "#" * max(1, round(BAR * r.samples_per_sec / most))
        mark = " < knee" if made.knee and made.knee.effective_batch == r.effective_batch else ""
        yield (
            f"{r.accumulate:4}{r.effective_batch:11}{r.samples_per_sec:11,.0f}{between:>19}{r.median_step_ms:9.3g}"
            f"{r.sync_calls:7}{r.avg_loss:8.4f}  {bar}{mark}"
        )


def _variance_lines(v: Variance) -> Iterator[str]:
    yield f"variance of the gradient estimate, drawn with replacement from {v.population} samples at fixed weights:"
    yield f"{'effective':>11}{'measured':>12}{'sigma^2 / B':>13}{'room':>11}"
    for r in v.rows:
        outside = "" if r.within else "  OUTSIDE"
        yield f"{r.effective_batch:11}{r.measured:12.4g}{r.expected:13.4g}{r.room:11.2g}{outside}"
    if v.slope is not None:
        yield (
            f"slope of log variance over log B: {v.slope:.3f}, two standard errors {v.slope_low:.3f} to "
            f"{v.slope_high:.3f}; theory: {v.slope_expected} (GA-VAR-001)"
        )


def throughput_svg(made: Sweep) -> str:
    """Samples per second over the effective batch, with the interval and the knee. Raises ValueError without rows."""
    curves = [
        Curve(name, tuple((float(r.effective_batch), float(getattr(r, field))) for r in made.rows))
        for name, field in (
            ("samples per second, median", "samples_per_sec"),
            ("low end of its interval", "samples_per_sec_low"),
            ("high end", "samples_per_sec_high"),
        )
    ]
    knee = made.knee.effective_batch if made.knee else None
    if knee is not None:
        top = next(r.samples_per_sec for r in made.rows if r.effective_batch == knee)
        curves.append(Curve(f"knee at {knee}", ((float(knee), 0.0), (float(knee), top))))
    title = f"{made.setup.net}, micro-batch {made.setup.micro_batch}, {made.device}: throughput"
    return Panel(title, "effective batch", "samples per second", tuple(curves), (2, 0)).svg


def variance_svg(v: Variance) -> str:
    """log2 of the variance over the effective batch, measured and sigma^2 / B."""
    base = min(min(r.measured, r.expected) for r in v.rows)
    curves = tuple(
        Curve(name, tuple((float(r.effective_batch), math.log2(getattr(r, field) / base)) for r in v.rows))
        for name, field in (("measured", "measured"), ("σ² / B", "expected"))
    )
    upright = "log2 of the variance, least = 0"
    return Panel("Variance of the gradient estimate", "effective batch", upright, curves, (2, 0)).svg
