"""A throughput sweep as text for a terminal, and as drawings that stand alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradproof.report.charts import Curve, Panel

if TYPE_CHECKING:
    from gradproof.core.schemas.sweep import Sweep, Variance

BAR = 24
BUSY = 0.9
HEAD = f"{'N':>4}{'effective':>11}{'samples/s':>11}{'interval':>19}{'step ms':>9}{'syncs':>7}{'loss':>8}"


def told(made: Sweep) -> str:
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
    lines += [HEAD, *_rows(made)]
    assert made.knee is not None
    knee = made.knee.effective_batch
    lines.append(f"{'no knee' if knee is None else f'knee at an effective batch of {knee}'}: {made.knee.reason}")
    lines.append(f"syncs: {made.counted}")
    shared = min(r.cpu_share for r in made.rows)
    if made.device == "cpu" and s.ranks == 1 and shared < BUSY:
        lines.append(
            f"warning: other programs took turns; as little as {100 * shared:.0f} % of the time was this one's"
        )
    return "\n".join([*lines, *(_variance(made.variance) if made.variance else [])])


def _rows(made: Sweep) -> Iterator[str]:
    most = max(r.samples_per_sec for r in made.rows)
    for r in made.rows:
        between = f"{r.samples_per_sec_low:,.0f} - {r.samples_per_sec_high:,.0f}"
        bar = "#" * max(1, round(BAR * r.samples_per_sec / most))
        mark = " < knee" if made.knee and made.knee.effective_batch == r.effective_batch else ""
        yield (
            f"{r.accumulate:4}{r.effective_batch:11}{r.samples_per_sec:11,.0f}{between:>19}{r.median_step_ms:9.3g}"
            f"{r.sync_calls:7}{r.avg_loss:8.4f}  {bar}{mark}"
        )


def _variance(v: Variance) -> Iterator[str]:
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
