"""Deterministic accumulation, measured: `python -m gradproof.extras.studies.deterministic [--out FILE.json] [--quick]`.

A character transformer is trained on one effective batch of 64, as 64 x 1 and as 16 x 4, twice each. Format of the
document: `gradproof-deterministic/1`, `reports/deterministic.schema.json`; it is written whole or not at all. Exit code
0: both repeat themselves bit for bit; 1: one does not; 2: a mistake in the call. Speed is reported and never judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gradproof.core.outcome import Exit
from gradproof.extras.studies.sources import Begun, command, models, options

if TYPE_CHECKING:
    from gradproof.core.schemas.deterministic import Deterministic

SPLITS = ((64, 1), (16, 4))
STEPS, QUICK = 100, 5


def document(steps: int, device: str) -> Deterministic:
    """Run and compare. Raises GradproofError: GP201 without a reference workspace, GP219 where its files change."""
    from gradproof.core.schemas.deterministic import PUBLISHED, Deterministic, Sizes, TrainingRun, compared
    from gradproof.report.studies import DETERMINISTIC

    begun, measure = Begun(DETERMINISTIC), models("sampling.measured")
    one, two = (TrainingRun(**asdict(measure.measured(size, n, steps, device))) for size, n in SPLITS)
    return Deterministic(
        schema="gradproof-deterministic/1", device="cuda" if device == "cuda" else "cpu",
        device_name=measure.device_name(device), threads=1, sizes=Sizes(**asdict(measure.sizes(device))),
        runs=(one, two),
        compared=compared(one, two), published=PUBLISHED, **begun.head(),
    )  # fmt: skip


def stated(made: Deterministic) -> str:
    """The two runs, their differences and the published row."""
    p, c = made.published, made.compared
    lines = [f"{'':16}{'train loss':>20}{'validation loss':>20}{'steps/s':>10}  repeats"]
    for i, run in enumerate(made.runs):
        name = f"{run.size} x {run.n}"
        again = "bit for bit" if run.repeats else "NO"
        lines.append(
            f"{name:16}{run.train_loss:20.12f}{run.validation_loss:20.12f}{run.steps_per_second:10.1f}  {again}"
        )
        lines.append(
            f"{'  published':16}{p.train_loss[i]:20.12f}{p.validation_loss[i]:20.8f}{p.steps_per_second[i]:10.1f}"
        )
    lines.append(f"{'difference':16}{c.train_loss:20.3e}{c.validation_loss:20.3e}{c.slower:9.2f}x as long a step")
    apart = p.validation_loss[1] - p.validation_loss[0]
    slow = p.steps_per_second[0] / p.steps_per_second[1]
    lines.append(f"{'  published':16}{0:20.3e}{apart:20.3e}{slow:9.2f}x by its own figures, stated as: {p.said}")
    where = f"torch {made.torch} on {made.device_name}, one thread"
    return "\n".join([*lines, f"step {made.runs[0].steps}, {where}, {made.seconds} s in all"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, and return the exit code."""
    o = options("deterministic", __doc__, arguments, f"{QUICK} steps instead of {STEPS}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts

    def repeated(made: Deterministic) -> Exit:
        return Exit.MET if all(run.repeats for run in made.runs) else Exit.BROKEN

    return command(o, lambda: document(QUICK if o.quick else STEPS, o.device), stated, ends=repeated)


if __name__ == "__main__":
    sys.exit(main())
