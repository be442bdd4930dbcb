"""Deterministic accumulation, measured: `python -m gradproof.extras.studies.deterministic [--out FILE.json] [--quick]`.

A character transformer is trained on one effective batch of 64, as 64 x 1 and as 16 x 4, twice each; and as 16 x 4 with
each determinism flag left out, twice in each of two processes. Format of the document: `gradproof-deterministic/2`,
`reports/deterministic.schema.json`; it is written whole or not at all. Exit code 0: both repeat themselves bit for bit,
and so does the run with every flag in another process; 1: one does not; 2: a mistake in the call. Speed is reported and
never judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from gradproof.core.outcome import Exit
from gradproof.core.workspace import PACKAGE
from gradproof.extras.studies.sources import Begun, command, models, options, place

if TYPE_CHECKING:
    from gradproof.core.schemas.deterministic import Deterministic, FlagRun

SPLITS = ((64, 1), (16, 4))
STEPS, QUICK = 100, 5
FLAG_STEPS, SECONDS = 10, 300


def document(steps: int, device: str) -> Deterministic:
    """Run and compare. Raises GradproofError: GP201 without a reference workspace, GP219 where its files change."""
    from gradproof.core.schemas.deterministic import PUBLISHED, Deterministic, Sizes, TrainingRun, compared
    from gradproof.report.studies import DETERMINISTIC

    begun, measure = Begun(DETERMINISTIC), models("sampling.measured")
    one, two = (TrainingRun(**asdict(measure.measured(size, n, steps, device))) for size, n in SPLITS)
    return Deterministic(
        schema="gradproof-deterministic/2", device="cuda" if device == "cuda" else "cpu",
        device_name=measure.device_name(device), threads=1, sizes=Sizes(**asdict(measure.sizes(device))),
        runs=(one, two),
        compared=compared(one, two), published=PUBLISHED, flags=list(flags(min(steps, FLAG_STEPS), device)),
        **begun.head(),
    )  # fmt: skip


def flags(steps: int, device: str) -> Iterator[FlagRun]:
    """Every flag left out on this device; a row that was not run for the other one. Raises RuntimeError."""
    from gradproof.core.schemas.deterministic import FlagRun

    known = models("sampling.flags")
    right = left_out(known.NOTHING, steps, device)
    for flag in known.FLAGS:
        one, two = (left_out(flag.name, steps, device) for _ in range(2))
        yield FlagRun(
            flag=flag.name, left_out=flag.left_out, device="cuda" if device == "cuda" else "cpu", outcome="MEASURED",
            in_process=one[0] == one[1] and two[0] == two[1], across_processes=one[0] == two[0],
            same_bits={*one, *two} == {*right} and len({*right}) == 1,
        )  # fmt: skip
    for flag in known.FLAGS:
        yield FlagRun(
            flag=flag.name, left_out=flag.left_out, device="cpu" if device == "cuda" else "cuda", outcome="NOT_RUN",
            in_process=None, across_processes=None, same_bits=None,
        )  # fmt: skip


def left_out(flag: str, steps: int, device: str) -> list[str]:
    """The digests of two runs of a fresh process with a flag left out. Raises RuntimeError with what it said."""
    known, (size, n) = models("sampling.flags"), SPLITS[-1]
    environ = {k: v for k, v in os.environ.items() if k not in known.VARIABLES}
    environ |= {k: v for k, v in known.VARIABLES.items() if k != flag}
    environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", known.__name__, flag, str(size), str(n), str(steps), device]
    done = subprocess.run(
        words, cwd=place().root, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{flag} left out: {done.stderr.strip()[-500:]}")
    found: list[str] = json.loads(done.stdout)
    return found


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
    lines += [_flag(row) for row in made.flags if row.outcome == "MEASURED"]
    absent = sum(row.outcome == "NOT_RUN" for row in made.flags)
    lines.append(f"NOT_RUN on the other device: {absent} rows")
    where = f"torch {made.torch} on {made.device_name}, one thread"
    return "\n".join([*lines, f"step {made.runs[0].steps}, {where}, {made.seconds} s in all"])


def _flag(row: FlagRun) -> str:
    """A flag in one line."""
    said = [
        "repeats in one process" if row.in_process else "differs in one process",
        "across processes" if row.across_processes else "differs across processes",
        "the bits of the run with every flag" if row.same_bits else "other bits than with every flag",
    ]
    return f"without {row.flag} ({row.left_out}): {', '.join(said)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write, and return the exit code."""
    o = options("deterministic", __doc__, arguments, f"{QUICK} steps instead of {STEPS}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts

    def repeated(made: Deterministic) -> Exit:
        whole = [row for row in made.flags if row.flag == "nothing" and row.outcome == "MEASURED"]
        repeats = [run.repeats for run in made.runs] + [bool(row.same_bits) for row in whole]
        return Exit.MET if all(repeats) else Exit.BROKEN

    return command(o, lambda: document(QUICK if o.quick else STEPS, o.device), stated, ends=repeated)


if __name__ == "__main__":
    sys.exit(main())
