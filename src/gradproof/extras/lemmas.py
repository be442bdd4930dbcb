"""`python -m gradproof.extras.lemmas`: every step contract from nothing, a job for each pass and question.

A job discharges its lemmas as `gradproof.rounding.lemma_store --rebuild` does, and its value is the evidence files that
this wrote. They are read here as stored ones are: by the digest of their content and of the lemma's text, and by what
they say was run. Derivations have nothing to run: they follow from the digests of their premises, and come last.
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
from gradproof.core.files import replace_whole
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.core.processes import Options, default_jobs
from gradproof.core.workspace import Workspace
from gradproof.execution.engine import Executor, WorkItem, call_of
from gradproof.execution.pool import engine_for, run_calls
from gradproof.rounding import lemma_store as store
from gradproof.rounding.step_contracts import LEMMAS, method

PLACE = "gradproof.extras.lemmas"  # where workers find `discharge`, whatever this module runs as
LONGEST = 3600.0  # seconds of CPU time for one job


def discharge(argument: Mapping[str, Any]) -> dict[str, str]:
    """In a process of its own: the evidence files of these lemmas, by name."""
    with tempfile.TemporaryDirectory() as folder:
        made = store.rebuild(argument["names"], Path(folder), seconds=argument["seconds"])
        return {evidence.path.name: evidence.path.read_text(encoding="utf-8") for evidence in made}


def jobs_of(names: Collection[str], seconds: float) -> Iterator[WorkItem]:
    """A job for each question and for each pass; passes first, for they are the longest."""
    decided: set[str] = set()
    for kind in ("exhaustion", "solvers"):
        for name in names:
            if method(LEMMAS[name]) == kind and name not in decided:
                together = [*store.pass_of(name).decides] if kind == "exhaustion" else [name]
                decided |= {*together}
                yield call_of(name, f"{PLACE}:discharge", {"names": together, "seconds": seconds}, LONGEST)


def rebuild(
    names: Sequence[str], engine: Executor, say: Callable[[str], object], folder: Path = store.PROVED_FOLDER,
    seconds: float = store.SECONDS,
) -> list[store.LemmaEvidence]:  # fmt: skip
    """Discharge lemmas on an engine and store their evidence. Raises LemmaRefused for what is not to be believed."""
    done, began = list[store.LemmaEvidence](), time.monotonic()

    def add(evidence: store.LemmaEvidence, where: str = "") -> None:
        done.append(evidence)
        say(f"{time.monotonic() - began:8.1f} s  {evidence.verdict:10}  {evidence.name}{where and f'  on {where}'}")

    for answer in run_calls(engine, jobs_of(names, seconds), say):
        if answer.fault:
            raise store.LemmaRefused(f"{answer.name}: {answer.fault}")
        for evidence in _accepted(answer.name, answer.value, names, folder):
            add(evidence, answer.where)
    for evidence in store.rebuild([name for name in names if method(LEMMAS[name]) == "derivation"], folder):
        add(evidence)
    return done


def _accepted(job: str, files: Any, names: Collection[str], folder: Path) -> Iterator[store.LemmaEvidence]:
    """Store what came back of a job, of the lemmas that were asked for. Raises LemmaRefused for none to believe."""
    with tempfile.TemporaryDirectory() as place:
        try:
            for name, text in files.items():
                (Path(place) / Path(name).name).write_text(text, encoding="utf-8")
        except (AttributeError, TypeError, OSError) as e:
            raise store.LemmaRefused(f"{job}: what came back is no evidence: {e}") from e
        decided = store.pass_of(job).decides if method(LEMMAS[job]) == "exhaustion" else (job,)
        for evidence in [store.load(name, Path(place)) for name in decided if name in names]:
            kept = folder / evidence.path.name
            replace_whole(kept, evidence.path.read_text(encoding="utf-8"))
            for older in folder.glob(f"{kept.name.partition('.')[0]}.*.json"):
                if older != kept:
                    older.unlink()
            yield store.load(evidence.name, folder)


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
