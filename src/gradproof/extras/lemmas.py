"""`python -m gradproof.extras.lemmas`: every step contract from nothing, a job for each pass and question.

What came back is judged here by the run that it states, as `gradproof.rounding.lemma_store` judges what is stored, and
written by it. Derivations have nothing to run: they follow from the digests of their premises, and come last.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.processes import Options, default_jobs
from gradproof.core.workspace import Workspace
from gradproof.execution.engine import Executor, WorkItem
from gradproof.execution.pool import engine_for, run_jobs
from gradproof.rounding import lemma_store as store
from gradproof.rounding.step_contracts import LEMMAS, method

PLACE = "gradproof.extras.lemmas"  # where workers find `discharge`, whatever this module runs as
LONGEST = 3600.0  # seconds of CPU time for one job


def discharge(argument: Mapping[str, Any]) -> dict[str, Any]:
    """In a process of its own: the run of a lemma, and of all that the same exhaustive pass decides."""
    name = argument["name"]
    if method(LEMMAS[name]) == "exhaustion":
        return dict(store._enumerate(store.pass_of(name)))
    return {name: store._ask(name, argument["seconds"])}


def jobs_of(names: Collection[str], seconds: float) -> Iterator[WorkItem]:
    """A job for each question and for each pass; passes first, for they are the longest."""
    decided: set[str] = set()
    for kind in ("exhaustion", "solvers"):
        for name in names:
            if method(LEMMAS[name]) == kind and name not in decided:
                decided |= {*store.pass_of(name).decides} if kind == "exhaustion" else {name}
                argument = {"name": name, "seconds": seconds}
                yield WorkItem(name, "call", {"call": f"{PLACE}:discharge", "argument": argument}, LONGEST)


def rebuild(
    names: Sequence[str], engine: Executor, say: Callable[[str], object], folder: Path = store.PROVED_FOLDER,
    seconds: float = store.SECONDS,
) -> list[store.LemmaEvidence]:  # fmt: skip
    """Discharge lemmas on an engine and write their evidence. Raises LemmaRefused for no run."""
    order = [name for name in store.in_order(names) if name in names]
    runs: dict[str, Any] = {}
    done, began = [], time.monotonic()
    for answer in run_jobs(engine, jobs_of(order, seconds), say):
        if fault := answer.fault or answer.result["fault"]:
            raise store.LemmaRefused(f"{answer.name}: {fault}")
        runs |= answer.result["value"]
        place = f"  on {answer.where}" if answer.where else ""
        say(f"{time.monotonic() - began:8.1f} s  ran         {answer.name}{place}")
    for name in order:
        try:
            run = {"premises": store._premises(name)} if method(LEMMAS[name]) == "derivation" else runs[name]
            done.append(store._write(name, run, folder))
        except (KeyError, TypeError) as e:
            raise store.LemmaRefused(f"{name}: what came back is no run: {e}") from e
        say(f"{time.monotonic() - began:8.1f} s  {done[-1].verdict:10}  {name}")
    return done


def main(arguments: Sequence[str]) -> int:
    """Discharge the named lemmas, or all; 1 unless each is proved."""
    parser = ArgumentParser(prog="gradproof.extras.lemmas", description="Discharge step contracts from nothing.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=default_jobs())
    parser.add_argument("--engine", choices=("local", "dask"), default="local")
    parser.add_argument("--scheduler", metavar="ADDRESS")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in LEMMAS]:
        parser.error(f"no such lemma: {', '.join(unknown)}")
    try:
        asked = Options(engine=given.engine, scheduler=given.scheduler, jobs=given.jobs)
        with tempfile.TemporaryDirectory(prefix="gradproof-") as nothing:
            root = Path(nothing).resolve()  # a lemma reads no workspace
            engine = engine_for(Workspace(root, root), asked.jobs, asked.scheduler)
            made = rebuild(given.names or list(LEMMAS), engine, lambda line: print(line, flush=True))
    except (GradproofError, store.LemmaRefused) as error:
        print(error, file=sys.stderr)
        return EXIT_CODE[Exit.USAGE]
    return 0 if all(evidence.verdict == store.PROVED for evidence in made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
