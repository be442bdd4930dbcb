"""The seam between what is to run and where it runs: jobs go in, answers come back in any order.

Planning, stubs first, saving and judging stand above it and are the same for every engine. An engine serves one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class WorkItem:
    """One process to run, as plain JSON data. `name`: unique in a run.

    `kind`: "check", whose payload is a check as JSON and whose result is `{"evidence": ...}`; or "call", whose payload
    is `{"call": "module:function", "argument": JSON}`: a function of the workspace that takes the argument and returns
    JSON; its result is `{"value": JSON, "fault": ""}`, or no value and the fault in words.
    `seconds`: limit of CPU time. `memory`: limit in MiB.
    """

    name: str
    kind: str
    payload: Mapping[str, Any]
    seconds: float
    memory: int | None = None


@dataclass(frozen=True)
class WorkResult:
    """What became of a job: its result as plain data, or a fault in words. `where`: empty on this machine."""

    name: str
    result: Mapping[str, Any]
    fault: str = ""
    where: str = ""


class Executor(Protocol):
    """Runs work somewhere. Its methods are called from one thread.

    `places`: which machine runs an item, where that is another one. `notes`: what became of workers, in words, until
    the reader takes it out. `no_gpu`: why no check of a GPU can run there; empty where it may try.
    """

    places: dict[str, str]
    notes: list[str]

    @property
    def no_gpu(self) -> str: ...

    def slots(self) -> int:
        """How many items may run at a time now; 0 while there is nobody yet. Raises GradproofError GP495 and GP496."""
        ...

    def start(self, job: WorkItem) -> None:
        """Begin an item; called while fewer than `slots` run."""
        ...

    def answer(self, seconds: float) -> WorkResult | None:
        """The next result, waited for at most so long. Raises GradproofError GP495 and GP496."""
        ...

    def close(self) -> None:
        """End what still runs, and what was started for it."""
        ...
