"""Every correct loop and every mutant of this folder through the verifier: `python -m tests.loops.sweep`.

A worker is a process that stays alive for many mutants; each verification has a limit, after which the worker and its
children are ended. Rows of a file given with `--json` are kept for the loops and mutants that are not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import linecache
import logging
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.loops.bugs import LoopMutant
from tests.loops.catalogue import LOOPS, UNPROVED, Loop
from tests.loops.mutants import MUTANTS, apply
from tests.loops.sweep_table import markdown
from tests.loops.verdicts import (
    NO_ANSWER,
    PROVED,
    RIGHT,
    WANTED,
    Answer,
    Row,
    as_answer,
    crashed,
    ordered,
    row_of_correct,
    row_of_mutant,
    timed_out,
)

SECONDS = 240.0
"""The longest that one verification of one rank may take; most take three."""
RANKS_SECONDS = 600.0
"""The same for several ranks: every recording starts its processes anew."""
START_SECONDS = 120.0
TAIL = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One verification: a loop's text, and the numbers that `check` is called with."""

    loop: str
    text: str
    accum_steps: int
    tail: int
    ranks: int
    mutant: LoopMutant | None = None

    @property
    def config(self) -> str:
        """The numbers, in words."""
        words = f"N={self.accum_steps}" + (f", tail={self.tail}" if self.tail else "")
        return words + (f", ranks={self.ranks}" if self.ranks > 1 else "")

    def row(self, answer: Answer) -> Row:
        """The verdict on an answer."""
        if self.mutant is not None:
            return row_of_mutant(self.mutant, self.config, answer)
        return row_of_correct(self.loop, self.config, answer)


def jobs_of(loop: Loop, names: Sequence[str] = ()) -> Iterator[Job]:
    """The jobs of a loop: its correct version, with and without a tail, and its mutants."""
    if not names or "correct" in names:
        text = loop.path.read_text(encoding="utf-8")
        for n, tail in [(loop.accum_steps, 0), *([(loop.accum_steps, TAIL)] if loop.tail else [])]:
            yield Job(loop.name, text, n, tail, loop.ranks)
    for mutant in MUTANTS:
        if mutant.loop == loop.name and (not names or mutant.name in names):
            tail = TAIL if mutant.tail else 0
            yield Job(loop.name, apply(mutant), loop.accum_steps, tail, loop.ranks, mutant)


# In the worker


def verify(file: Path, accum_steps: int, tail: int, ranks: int) -> dict[str, Any]:
    """Verify the `train` of a file; the answer as plain data. An exception of the verifier is an answer CRASH."""
    from tests.checked import check

    linecache.checkcache()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = check(module.train, accum_steps=accum_steps, tail=tail, ranks=ranks)
    lines = file.read_text(encoding="utf-8").splitlines()
    results = []
    for result in made.results:
        place = result.location
        text = ""
        if place is not None and place.line:
            mine = Path(place.file) == file and place.line <= len(lines)
            text = lines[place.line - 1].strip() if mine else f"{Path(place.file).name}:{place.line}"
        found = {"obligation": result.obligation, "outcome": str(result.outcome), "text": text}
        results.append({**found, "reason": result.reason.replace(str(file), file.name)})
    return {"outcome": str(made.outcome), "results": results}


def work(pipe: Connection) -> None:
    """Answer jobs until the pipe is closed. Frameworks talk; nobody listens."""
    os.setsid()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    import gradproof.shadow.process.check

    pipe.send(gradproof.shadow.process.check.__name__)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = verify(*job)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            answer = {"outcome": "CRASH", "results": [], "error": words}
        pipe.send(answer)


# In the caller


class Worker:
    """A process that verifies, and is started again after it died or was ended."""

    def __init__(self, folder: Path, seconds: float | None = None) -> None:
        self.folder, self.seconds = folder, seconds
        self.process: Any = None
        self.pipe: Connection | None = None

    def answer(self, job: Job) -> Answer:
        """What the verifier says; a crash and a time-out are answers of their own."""
        file = Path(tempfile.mkdtemp(dir=self.folder), f"{job.loop}.py")
        file.write_text(job.text, encoding="utf-8")
        try:
            return self._ask((file, job.accum_steps, job.tail, job.ranks))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self.close()
            return crashed(f"the worker died with {code}")

    def _ask(self, job: tuple[Any, ...]) -> Answer:
        pipe = self.pipe if self.pipe is not None else self._start()
        pipe.send(job)
        seconds = self.seconds or (SECONDS if job[3] == 1 else RANKS_SECONDS)
        if not pipe.poll(seconds):
            self.close()
            return timed_out(seconds)
        return as_answer(pipe.recv())

    def _start(self) -> Connection:
        context = mp.get_context("spawn")
        mine, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs,), daemon=False)
        self.process.start()
        theirs.close()
        self.pipe = mine
        if not mine.poll(START_SECONDS):
            raise EOFError
        mine.recv()
        return mine

    def close(self) -> int | None:
        """End the process and its children; its exit code."""
        if self.process is None:
            return None
        if self.process.is_alive():
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
        self.process.join()
        code: int | None = self.process.exitcode
        if self.pipe is not None:
            self.pipe.close()
        self.process, self.pipe = None, None
        return code


def sweep(jobs: Iterable[Job], workers: int = 1, seconds: float | None = None) -> Iterator[Row]:
    """The rows of the jobs, in their order."""
    listed = list(jobs)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        free = [Worker(Path(folder), seconds) for _ in range(workers)]
        made = list(free)

        def one(job: Job) -> Row:
            worker = free.pop()
            try:
                return job.row(worker.answer(job))
            finally:
                free.append(worker)

        try:
            yield from pool.map(one, listed)
        finally:
            for worker in made:
                worker.close()


def kept(file: Path | None, jobs: Sequence[Job]) -> list[Row]:
    """Rows of an earlier sweep that are not made again."""
    if file is None or not file.exists():
        return []
    again = {(job.loop, job.mutant.name if job.mutant else "correct", job.config) for job in jobs}
    rows = [Row(**plain) for plain in json.loads(file.read_text(encoding="utf-8"))]
    return [row for row in rows if (row.loop, row.name, row.config) not in again]


def wanted(row: Row) -> bool:
    """Whether a verdict is the one that is wanted, or a right loop is not proved for a reason that is listed."""
    listed = not row.mutant and (row.loop, row.config) in UNPROVED
    return row.verdict == NO_ANSWER if listed else row.verdict in WANTED


def said(row: Row) -> str:
    """A row as a line or two of text."""
    text = f"{row.verdict:28} {row.loop}/{row.name} ({row.config}) {row.outcome} {row.error}".rstrip()
    if wanted(row):
        return text
    found = "".join(f"\n    {f['outcome']} {f['obligation']} at `{f['text']}`: {f['reason']}" for f in row.found)
    return f"{text}\n    expected {row.expected}{found}"


def main(words: Sequence[str] | None = None) -> int:
    """The command; 0 only when every right loop is proved or listed, and every mutant is refuted at its line."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops.sweep", description=__doc__)
    parser.add_argument("--loop", nargs="+", choices=sorted(LOOPS), default=sorted(LOOPS), metavar="NAME")
    parser.add_argument("--mutant", nargs="+", default=(), metavar="NAME", help="`correct` is the loop itself")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the table here")
    parser.add_argument("--json", type=Path, help="keep the rows here, between runs")
    given = parser.parse_args(words)
    loops = [LOOPS[name] for name in given.loop]
    for loop in loops:
        if not loop.available:
            print(f"{loop.name}: {loop.package} is not installed")
    jobs = [job for loop in loops if loop.available for job in jobs_of(loop, given.mutant)]
    rows = kept(given.json, jobs)
    bad = 0
    for row in sweep(jobs, given.jobs):
        rows.append(row)
        bad += not wanted(row)
        print(said(row), flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps([asdict(r) for r in ordered(rows)], indent=1) + "\n", encoding="utf-8")
    if given.out is not None:
        given.out.write_text(markdown(ordered(rows)), encoding="utf-8")
    counts = Counter(row.verdict for row in rows)
    print(", ".join(f"{counts[name]} {name}" for name in sorted(counts, key=lambda n: (n not in (PROVED, RIGHT), n))))
    return 1 if bad or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
