"""The run that symbolic numbers belong to: who forks on a truth value, who rounds a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Run(Protocol):
    """What a symbolic number needs of its run."""

    rounds: bool

    def branch(self, term: Any) -> bool:
        """Decide a truth value on this path."""
        ...

    def rounder(self) -> Any:
        """The rounding stub of this run. Raises RuntimeError in a run over the reals."""
        ...

    def root(self, x: Any) -> Any:
        """The square root of a symbolic number."""
        ...

    def refuse(self, reason: str) -> None:
        """Remember that a number was asked for what it does not have, even if the subject catches the exception."""
        ...


_RUN: ContextVar[Run] = ContextVar("gradproof_run")


def current() -> Run:
    """The run in progress. Raises RuntimeError outside one."""
    try:
        return _RUN.get()
    except LookupError:
        raise RuntimeError("symbolic numbers exist only inside a harness run") from None


def refused(reason: str) -> None:
    """Tell the run in progress, if there is one, that a number was asked for what it does not have."""
    run = _RUN.get(None)
    if run is not None:
        run.refuse(reason)


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Make `run` the current one."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)
