"""The seam between what is to run and where it runs: jobs go in, answers come back in any order.

Planning, stubs first, saving and judging stand above it and are the same for every engine. An engine serves one run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from gradproof.core.check import Check
from gradproof.core.outcome import Kind, Layer
from gradproof.core.workspace import Workspace

CALL = "call"  # the strategy of a check that calls a function


@dataclass(frozen=True)
class WorkItem:
    """One check for one process. `seconds`: limit of CPU time. `memory`: limit in MiB. Its id is unique in a run."""

    check: Check
    seconds: float
    memory: int | None = None

    @property
    def name(self) -> str:
        """The check's id."""
        return self.check.id


def call_of(name: str, function: str, argument: Any, seconds: float) -> WorkItem:
    """A call of `module:function` of the workspace or of gradproof, from JSON to JSON.

    It is a check that decides nothing: what the function returns comes back in evidence, with the digests and the
    environment that it was made with, and is believed as evidence is.
    """
    params = {"argument": json.loads(json.dumps(argument))}
    check = Check(name, Kind.GATE, Layer.CPU, (), CALL, function, strategy=CALL, params=params, time_limit=seconds)
    return WorkItem(check, seconds)


@dataclass(frozen=True)
class WorkResult:
    """What became of an item: its evidence as plain data, or a fault in words. `where`: empty on this machine."""

    name: str
    value: Any = None
    fault: str = ""
    where: str = ""


class Executor(Protocol):
    """Runs work of one workspace somewhere. Its methods are called from one thread.

    `places`: which machine runs an item, where that is another one. `notes`: what became of workers, in words, until
    the reader takes it out. `no_gpu`: why no check of a GPU can run there; empty where it may try.
    """

    workspace: Workspace
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
