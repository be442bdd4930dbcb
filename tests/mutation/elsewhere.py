"""The sweep's calls on an engine of gradproof: the workers of a dask scheduler, instead of processes of this machine.

Some calls go in one process there, which imports the solvers once for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from gradproof.core.workspace import Workspace
from gradproof.execution.engine import WorkItem, call_of
from gradproof.execution.pool import engine_for, run_calls
from tests.mutation import run

AT_ONCE = 8
LIMIT = 3600.0  # seconds of CPU time of a batch; each call in it has limits of its own


class Elsewhere:
    """What `tests.mutation.sweep.Pool` is, on the workers of a scheduler. Raises GradproofError as they do."""

    def __init__(self, root: Path, scheduler: str) -> None:
        self.workspace, self.scheduler = Workspace(root, root / "reports"), scheduler

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *of: object) -> None:
        return None

    def each(self, calls: Iterable[Callable[[], tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """The answers as they come, with the number of their call. Raises RuntimeError where a batch gave none."""
        engine = engine_for(self.workspace, 0, self.scheduler)
        with closing(run_calls(engine, self._items(enumerate(calls)))) as results:
            for result in results:
                if result.fault:
                    raise RuntimeError(result.fault)
                yield from ((number, answer) for number, answer in result.value)

    def _items(self, numbered: Iterator[tuple[int, Callable[[], tuple[Any, ...]]]]) -> Iterator[WorkItem]:
        while batch := [[number, *make()] for number, make in islice(numbered, AT_ONCE)]:
            yield call_of(str(batch[0][0]), "tests.mutation.elsewhere:answers", batch, LIMIT)


def answers(batch: list[list[Any]]) -> list[list[Any]]:
    """In a worker, in its copy of the workspace: the calls of a batch, one after another."""
    run.preload()
    return [[number, getattr(run, name)(*_here(first), *rest)] for number, name, first, *rest in batch]


def _here(first: Any) -> tuple[Any]:
    """The first argument is the root, or a job that has it."""
    return ({**first, "root": os.getcwd()} if isinstance(first, dict) else os.getcwd(),)
