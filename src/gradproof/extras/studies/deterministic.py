"""Deterministic accumulation, measured: `python -m gradproof.extras.studies.deterministic [--out FILE.json] [--quick]`.

A character transformer is trained on one effective batch of 64, as 64 x 1 and as 16 x 4, twice each. Format of the
document: `gradproof-deterministic/1`, `reports/deterministic.schema.json`; it is written whole or not at all. Exit code
0: both repeat themselves bit for bit; 1: one does not; 2: a mistake in the call. Speed is reported and never judged.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gradproof import __version__
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.extras.studies.sources import models, place, write

if TYPE_CHECKING:
    from gradproof.core.schemas.deterministic import Deterministic

SPLITS = ((64, 1), (16, 4))
STEPS, QUICK = 100, 5


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m gradproof.extras.studies.deterministic", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the JSON document here")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps instead of {STEPS}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def document(steps: int, device: str) -> Deterministic:
    """Run and compare. Raises GradproofError: GP201 without a reference workspace, GP219 where its files change."""
    from gradproof.core.schemas.deterministic import PUBLISHED, Deterministic, Run, Sizes, compared
    from gradproof.evidence.record import now
    from gradproof.report.studies import DETERMINISTIC, settled, sources_of

    measure, began, made_of = models("char_measure"), time.monotonic(), sources_of(DETERMINISTIC, place())
    one, two = (Run(**asdict(measure.measured(size, n, steps, device))) for size, n in SPLITS)
    return Deterministic(
        schema="gradproof-deterministic/1", gradproof=__version__, made_at=now(),
        seconds=round(time.monotonic() - began, 1),
        device="cuda" if device == "cuda" else "cpu", device_name=measure.device_name(device),
        torch=measure.torch_version(), threads=1, sizes=Sizes(**asdict(measure.sizes(device))), runs=(one, two),
        compared=compared(one, two), published=PUBLISHED, sources=dict(settled(DETERMINISTIC, place(), made_of)),
    )  # fmt: skip


def told(made: Deterministic) -> str:
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
    lines.append(f"{'  published':16}{0:20.3e}{apart:20.3e}{slow:9.2f}x by its own figures, told as: {p.said}")
    where = f"torch {made.torch} on {made.device_name}, one thread"
    return "\n".join([*lines, f"step {made.runs[0].steps}, {where}, {made.seconds} s in all"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, and return the exit code."""
    from gradproof.core.files import writable
    from gradproof.evidence.environment import present

    o = options(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    try:
        writable(o.out)
        present(o.device)
        made = document(QUICK if o.quick else STEPS, o.device)
        if o.out is not None:
            write(o.out, made)
    except GradproofError as error:
        print(error.render(), file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    print(told(made))
    return EXIT_CODE[Exit.MET if all(run.repeats for run in made.runs) else Exit.BROKEN]


if __name__ == "__main__":
    sys.exit(main())
