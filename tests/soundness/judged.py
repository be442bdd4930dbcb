"""Everything that is asked of one step: for a test, and for the table, by several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from tests.soundness.answers import ask
from tests.soundness.generated import drawn_step
from tests.soundness.kit import STEPS, Step
from tests.soundness.steps import MODULES as MODULES
from tests.soundness.table import ANSWER, COMMAND, LABEL, Listed, Row, documented, listed, row_of

Job = tuple[str, int, str]
"""The name of a step that is written by hand; or a number, not negative, and the seed of a generated one."""


def answer(job: Job) -> Listed:
    """One step through the oracle and through gradproof."""
    torch.set_num_threads(1)
    name, number, seed = job
    if number < 0:
        return listed(row_of(STEPS[name]))
    made = drawn_step(seed, number)
    return listed(Row(made.step, made.found, ask(made.step)), number, seed, made.before)


def answers(jobs: Sequence[Job], processes: int) -> Iterator[Listed]:
    """The answers to all jobs, in order."""
    if processes == 1:
        yield from map(answer, jobs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(answer, jobs)


def complaints(step: Step) -> list[str]:
    """What is wrong with the label, with gradproof's answer, or with the table of answers."""
    row = row_of(step)
    kind, where = row.fault
    made = [contradiction] if (contradiction := row.found.contradicts(step)) else []
    if kind:
        made.append(f"{kind} of {where}: {row.answer.outcomes} {row.answer.reasons}")
    cells = documented().get(step.name, [])
    listed = (cells[LABEL], cells[ANSWER]) if cells else ()
    if listed != (step.words, row.answer.verdict):
        made.append(f"{step.words}, {row.answer.verdict}, and docs/soundness.md says {listed}: run {COMMAND}")
    return made
