"""Every step through the oracle and through gradproof: `make soundness`, `python -m tests.soundness`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.soundness.generated import written
from tests.soundness.judged import answers
from tests.soundness.kit import STEPS
from tests.soundness.steps import MODULES, steps_of
from tests.soundness.table import Listed, by_class, markdown, missed, undecided

COUNT = 200


def commit() -> str:
    """The commit that is checked out, in short."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "none"


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 only when every label is confirmed, no answer is wrong, and few are undecided."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness", description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="STEP", help="steps, groups or classes")
    parser.add_argument("--seed", default=commit(), help="of the generated steps; the commit unless given")
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many are generated; {COUNT} unless given")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print a generated step, and end")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2 unless given")
    parser.add_argument("--out", type=Path, help="write the table here")
    given = parser.parse_args(words)
    if given.show is not None:
        print(written(given.seed, given.show)[1])
        return 0
    jobs = [(step.name, -1, "") for step in steps_of(*MODULES)] + [("", at, given.seed) for at in range(given.count)]
    if given.only:
        chosen = [(job, STEPS[job[0]] if job[1] < 0 else written(given.seed, job[1])[0]) for job in jobs]
        jobs = [job for job, step in chosen if {step.name, step.group, step.kind} & set(given.only)]
    every: list[Listed] = []
    for one in answers(jobs, given.jobs):
        every.append(one)
        if one.fault[0] or one.contradiction or one.open:
            print(
                f"{one.name} ({one.label}; {one.bug}): {one.verdict} {one.fault} {one.contradiction} {one.reason}",
                flush=True,
            )
    rows = [one for one in every if not one.thrown]
    print("\n".join([*by_class(rows), "", *undecided(rows), ""]))
    print(f"seed {given.seed}: {len(rows)} steps, {len(every) - len(rows)} generated ones thrown out")
    if given.out is not None and not given.only:
        given.out.write_text(markdown(rows, len(every) - len(rows), given.seed), encoding="utf-8")
    bars = missed(rows)
    print("\n".join(f"missed: {bar}" for bar in bars) or "every bar is met")
    return 1 if bars else 0


if __name__ == "__main__":
    sys.exit(main())
