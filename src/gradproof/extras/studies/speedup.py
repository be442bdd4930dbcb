"""The "10-15 % speedup", measured: `python -m gradproof.extras.studies.speedup [--out FILE.json] [--quick]`.

Steps with accumulation, 16 x 4, against four optimizer steps of 16: the same samples and fewer optimizer steps, in
pairs whose order alternates. Beside it steps of 2 N micro-batches against steps of N, which says whether twice the
accumulation takes twice the time. Format of the document: `gradproof-speedup/2`, `reports/speedup.schema.json`; it is
written whole or not at all. Exit code 0: measured, whatever it is; 2: a mistake in the call.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from gradproof.extras.studies.sources import Begun, command, models, options
from gradproof.report.studies import SPEEDUP

if TYPE_CHECKING:
    from gradproof.core.schemas.studies import Doubling, SpeedRow, Speedup

WIDTHS = (16, 32, 64, 128)
PAIRS, QUICK = 41, 6
CONFIGURATION = ("AdamW", 32)
DOUBLED = (1, 2, 4, 8, 16)


def document(pairs: int, device: str, widths: Sequence[int] = WIDTHS) -> Speedup:
    """Time every width and optimizer, on one thread."""
    from gradproof.core.schemas.studies import CLAIMED, Speedup

    begun, measure = Begun(SPEEDUP), models("sampling.measured")
    restore = measure.one_thread()
    try:
        rows = [row(name, width, pairs, device) for width in widths for name in ("SGD", "AdamW")]
        twice = [doubling(name, n, pairs, device) for name in ("SGD", "AdamW") for n in DOUBLED]
    finally:
        restore()
    named = next(r for r in rows if (r.optimizer, r.width) == CONFIGURATION)
    timing = models("speed.step_speed").Timing
    return Speedup(
        schema="gradproof-speedup/2", device="cuda" if device == "cuda" else "cpu",
        device_name=measure.device_name(device), threads=1,
        clock="wall clock" if device == "cuda" else "process time", micro_batch=timing.micro, accumulate=timing.n,
        claimed_percent=CLAIMED, configuration=(named.optimizer, named.width), speedup_percent=named.speedup_percent,
        agrees=named.agrees, rows=rows, doubling=twice, **begun.head(),
    )  # fmt: skip


def row(optimizer: str, width: int, pairs: int, device: str) -> SpeedRow:
    """One row: every pair's speedup in percent, its median, and where that lies beside the claim."""
    from gradproof.core.schemas.studies import SpeedRow, agreement, percent

    speed = models("speed.step_speed")
    seconds = speed.pairs(speed.Timing(width, optimizer, pairs=pairs, device=device))
    each = [100 * (apart / one - 1) for one, apart in seconds]
    found = percent(each)
    return SpeedRow(
        optimizer="SGD" if optimizer == "SGD" else "AdamW", width=width, parameters=speed.parameters(width),
        accumulated_ms=1000 * statistics.median(one for one, _ in seconds),
        separate_ms=1000 * statistics.median(apart for _, apart in seconds),
        speedup_percent=found, agrees=agreement(found), pairs_percent=each,
    )  # fmt: skip


def doubling(optimizer: str, n: int, pairs: int, device: str) -> Doubling:
    """A step of 2 n micro-batches over one of n, at the width of the documented configuration."""
    from gradproof.core.schemas.studies import Doubling, times

    speed, width = models("speed.step_speed"), CONFIGURATION[1]
    seconds = speed.doublings(speed.Timing(width, optimizer, n=n, pairs=pairs, device=device))
    each = [two / one for one, two in seconds]
    name: Literal["SGD", "AdamW"] = "SGD" if optimizer == "SGD" else "AdamW"
    return Doubling(optimizer=name, width=width, accumulate=n, times=times(each), pairs_times=each)


def stated(made: Speedup) -> str:
    """Every row, and the one of the documented configuration beside the claim."""
    n, micro = made.accumulate, made.micro_batch
    lines = [f"{'':8}{'width':>6}{'weights':>10}{f'{micro} x {n} ms':>12}{f'{n} steps ms':>12}{'faster':>9}  interval"]
    for r in made.rows:
        p = r.speedup_percent
        lines.append(
            f"{r.optimizer:8}{r.width:6}{r.parameters:10,}{r.accumulated_ms:12.2f}{r.separate_ms:12.2f}"
            f"{p.median:8.1f}%  {p.low:.1f} to {p.high:.1f} % at {100 * p.confidence:.1f} %: {r.agrees}"
        )
    p, (low, high) = made.speedup_percent, made.claimed_percent
    lines.append(
        f"{made.configuration[0]}, width {made.configuration[1]}: {p.median:.1f} %, {p.low:.1f} to {p.high:.1f} %; "
        f"claimed {low:g} to {high:g} %: {made.agrees}"
    )
    for d in made.doubling:
        t = d.times
        lines.append(
            f"{d.optimizer:8}{d.width:6} N = {d.accumulate} to {2 * d.accumulate}: {t.median:.3f} times as long, "
            f"{t.low:.3f} to {t.high:.3f}"
        )
    return "\n".join([*lines, f"torch {made.torch} on {made.device_name}, one thread, {made.seconds} s"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write, and return the exit code."""
    o = options("speedup", __doc__, arguments, f"{QUICK} pairs instead of {PAIRS}")
    return command(o, lambda: document(QUICK if o.quick else PAIRS, o.device), stated)


if __name__ == "__main__":
    sys.exit(main())
