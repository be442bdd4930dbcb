"""The seam between what is to run and where it runs: jobs go in, answers come back in any order.

Planning, stubs first, saving and judging stand above it and are the same for every engine. An engine serves one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Job:
    """One process to run, as plain JSON data.

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
class Answer:
    """What became of a job: its result as plain data, or a fault in words. `where`: empty on this machine."""

    name: str
    result: Mapping[str, Any]
    fault: str = ""
    where: str = ""


class Engine(Protocol):
    """Runs jobs somewhere. Its methods are called from one thread."""

    def slots(self) -> int:
        """How many jobs may run at a time now; 0 while there is nobody yet. Raises GradproofError GP496 for never."""
        ...

    def start(self, job: Job) -> None:
        """Begin a job; called while fewer than `slots` run."""
        ...

    def answer(self, seconds: float) -> Answer | None:
        """The next answer, waited for at most so long. Raises GradproofError GP495 and GP496."""
        ...

    def where(self, name: str) -> str:
        """Which machine a job runs on; empty for this one."""
        ...

    def notes(self) -> Sequence[str]:
        """What happened to workers since the last call, in words."""
        ...

    def no_gpu(self) -> str | None:
        """Why it can run no check of a GPU; None where it may try."""
        ...

    def close(self) -> None:
        """End what still runs, and what was started for it."""
        ...
