"""Every step through the oracle and through gradproof: `make soundness`, `python -m tests.soundness`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.soundness.generated import drawn_step, number_of
from tests.soundness.judged import Job, answers
from tests.soundness.kit import STEPS
from tests.soundness.steps import MODULES, steps_of
from tests.soundness.table import Listed, by_class, by_seed, markdown, missed, of_seed, undecided

COUNT, SEEDS = 200, 5


def commit() -> str:
    """The commit that is checked out, in short."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "none"


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 only when every label is confirmed, no answer is wrong, and few are undecided."""
    parser = argparse.ArgumentParser(prog="python -m tests.soundness", description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="STEP", help="steps, groups or classes")
    parser.add_argument("--seed", default=commit(), help="of the generated steps; the commit unless given")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many are made of it; {SEEDS} unless given")
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many a seed generates; {COUNT} unless given")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print a generated step, and end")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 2 unless given")
    parser.add_argument("--json", type=Path, help="keep the answers here, a line each: what is there is not run again")
    parser.add_argument("--out", type=Path, help="write the table here")
    given = parser.parse_args(words)
    if given.show is not None:
        print(drawn_step(given.seed, given.show).text)
        return 0
    seeds = [given.seed, *(f"{given.seed}.{turn}" for turn in range(2, given.seeds + 1))]
    jobs = [(step.name, -1, "") for step in steps_of(*MODULES)]
    jobs += [("", at, seed) for seed in seeds for at in range(given.count)]
    if given.only:
        jobs = [job for job in jobs if {*_names(job)} & set(given.only)]
    known = kept(given.json)
    new = [job for job in jobs if job not in known]
    for job, one in zip(new, answers(new, given.jobs), strict=True):
        known[job] = one
        if given.json is not None:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"job": job, **asdict(one)}) + "\n")
        if one.fault[0] or one.contradiction or one.open:
            words = f"{one.verdict} {one.fault} {one.contradiction} {one.reason}"
            print(f"{one.seed} {one.name} ({one.label}; {one.bug}): {words}", flush=True)
    every = [known[job] for job in jobs]
    print("\n".join([*by_seed(every), "", *by_class(every), "", *undecided(every), ""]))
    if given.out is not None and not given.only:
        given.out.write_text(markdown(every), encoding="utf-8")
    bars = dict.fromkeys(bar for seed in seeds for bar in missed(of_seed(every, seed)))
    print("\n".join(f"missed: {bar}" for bar in bars) or "every bar is met")
    return 1 if bars else 0


def kept(file: Path | None) -> dict[Job, Listed]:
    """The answers of an earlier run."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    rows = [json.loads(line) for line in lines]
    tuples = [{name: tuple(row[name]) for name in ("fault", "before")} for row in rows]
    return {tuple(row.pop("job")): Listed(**{**row, **more}) for row, more in zip(rows, tuples, strict=True)}


def _names(job: Job) -> tuple[str, ...]:
    """The name, the group and the class of a step; a generated one is known by its subject."""
    name, number, seed = job
    if number >= 0:
        subject = number_of(seed, number)[1].partition(" of")[0]
        return f"{subject.replace(' ', '_')}_{number}", subject, subject
    return name, STEPS[name].group, STEPS[name].kind


if __name__ == "__main__":
    sys.exit(main())
