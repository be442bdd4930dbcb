"""One measurement: a function in a process of its own, which is killed at its limit with all that it started."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

HOLDS, UNSOUND, TIMEOUT, CRASHED, NOT_RUN = "HOLDS", "UNSOUND", "TIMEOUT", "CRASHED", "NOT_RUN"
STARTS_WITHIN = 120.0
GRACE = 0.5
LONGEST_REASON = 200


@dataclass(frozen=True)
class Said:
    """A word; the bound that is proved, only with HOLDS and UNSOUND; seconds, imports apart; why there is no bound."""

    word: str
    bound: Fraction | None = None
    seconds: float = 0.0
    reason: str = ""


Measured = Callable[..., Said]


def _child(pipe: Any, function: Measured, args: tuple[Any, ...], imports: Sequence[str]) -> None:
    os.setsid()
    for name in imports:
        importlib.import_module(name)
    pipe.send(None)
    began = time.perf_counter()
    try:
        said = function(*args)
    except Exception as error:
        said = Said(CRASHED, reason=f"{type(error).__name__}: {error}"[:LONGEST_REASON])
    pipe.send(Said(said.word, said.bound, time.perf_counter() - began, said.reason))


def timed(function: Measured, args: tuple[Any, ...], limit: float, imports: Sequence[str] = ()) -> Said:
    """What a function said, or TIMEOUT after `limit` seconds, or CRASHED. The clock starts after `imports`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, function, args, tuple(imports)))
    process.start()
    there.close()
    try:
        if not here.poll(STARTS_WITHIN):
            return Said(CRASHED, reason=f"not started in {STARTS_WITHIN:g} s")
        here.recv()
        if not here.poll(limit + GRACE):
            return Said(TIMEOUT, seconds=limit, reason=f"killed after {limit:g} s")
        said: Said = here.recv()
        return said
    except EOFError:
        process.join()
        return Said(CRASHED, reason=f"ended with {process.exitcode}")
    finally:
        _end(process)
        here.close()


def _end(process: Any) -> None:
    """Kill the process and its group; the group is its own once it has started."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
