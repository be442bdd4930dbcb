"""Processes that run a check or a step: what is asked for, their limits, and what they left behind."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gradproof.core.errors import GradproofError

MIB = 1 << 20
MOST_JOBS = 8
PREFIX = "gradproof-"
ROUNDS = 5
GRACE = 0.2
SERVE = "--serve"  # a worker with this flag and a descriptor is a fork server
WALL = 10.0
"""Seconds on the clock for each second of a time limit, which counts CPU time: the machine may have other work."""
LOOK = 0.2  # seconds between two looks at the CPU time of a process, at least


class Started(Protocol):
    """What is used of subprocess.Popen to wait for a process."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""


def time_limit(seconds: float) -> float:
    """The limit itself. Raises GradproofError GP406 for what is no number of seconds above 0, such as NaN."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        expected = "a number of seconds above 0, and finite"
        raise GradproofError("GP406", f"the time limit is {seconds!r}", expected, "change the number")
    return seconds


def default_jobs() -> int:
    """One check for each CPU that this process may use, at most MOST_JOBS."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST_JOBS)


@dataclass(frozen=True)
class Options:
    """What a command line asks for. `stated`: the options that it, or the environment, gives.

    `baseline`: the one that it gives; `baselines`: all that a verdict is compared with, that of the file included.
    Raises GradproofError: GP406 for a time limit that is none, GP498 for an engine without its scheduler.
    """

    workspace: Path | None = None
    contracts: tuple[str, ...] = ()
    profile: str = "ci"
    jobs: int = field(default_factory=default_jobs)
    no_cache: bool = False
    select: tuple[str, ...] = ()
    time_limit: float | None = None
    fail_fast: bool = False
    baseline: Path | None = None
    baselines: tuple[Path, ...] = ()
    stated: frozenset[str] = frozenset()
    memory_limit: int = 16384
    engine: str = "local"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if (self.engine == "dask") != (self.scheduler is not None):
            found = f"--engine {self.engine}" + (
                " without --scheduler" if self.scheduler is None else " and --scheduler"
            )
            help = "such as --engine dask --scheduler tcp://host:8786; local processes have no scheduler"
            raise GradproofError("GP498", found, "--engine dask with the address of its scheduler", help)
        if self.time_limit is not None:
            time_limit(self.time_limit)


class Spent:
    """CPU time of a process and of everything that it started, the dead included."""

    def __init__(self, pid: int) -> None:
        self.seconds = 0.0
        self._pid, self._held = pid, 0.0
        self._known: dict[int, Any] = {}

    def look(self) -> float:
        """Seconds until now. What dies unseen without a parent that waits for it is not counted."""
        import psutil

        running = {p.pid: p for p in psutil.process_iter()}
        self._known = {pid: p for pid, p in self._known.items() if running.get(pid) == p}
        parents = {pid: self._parent(p) for pid, p in running.items()}
        while new := {pid for pid, own in parents.items() if pid not in self._known and {pid, *own} & self._roots()}:
            self._known |= {pid: running[pid] for pid in new}
        held = 0.0
        for process in self._known.values():
            with suppress(psutil.Error):
                held += sum(process.cpu_times()[:4])  # of itself, and of the children that it has waited for
        self.seconds += max(0.0, held - self._held)
        self._held = held
        return self.seconds

    def _roots(self) -> set[int]:
        return {self._pid, *self._known}

    @staticmethod
    def _parent(process: Any) -> set[int]:
        """Whose child a process is, and the leader of its session."""
        import psutil

        with suppress(psutil.Error, OSError):
            return {process.ppid(), os.getsid(process.pid)}
        return set()


def exceeded(process: Started, limit: float) -> str | None:
    """Wait for a process: None when it ends, or else which limit it exceeded, in words.

    `limit` is in seconds of the CPU time of the process and all that it starts; the clock allows WALL times as many.
    Raises GradproofError GP406 for a limit that is none.
    """
    time_limit(limit)
    spent, ends, cores = Spent(process.pid), time.monotonic() + WALL * limit, os.cpu_count() or 1
    while (left := ends - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(left, max(LOOK, (limit - spent.seconds) / cores)))
            return None
        if spent.look() >= limit:
            return f"no answer within {limit:g} s of CPU time"
    return f"no answer within {WALL * limit:g} s on the clock, {WALL:g} times the limit of {limit:g} s of CPU time"


def strays(scratch: str) -> list[int]:
    """Ids of the other processes that were started with `scratch` as TMPDIR. Empty where there is no /proc."""
    mark, found = os.fsencode(f"TMPDIR={scratch}"), []
    if not Path(scratch).name.startswith(PREFIX):
        return []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(place.name) != os.getpid() and mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def end_strays(scratch: str) -> None:
    """Kill them, also those that left the process group for a session of their own."""
    for _ in range(ROUNDS):
        left = strays(scratch)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it is there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def end_group(process: Started) -> None:
    """SIGTERM to the group of a process, and SIGKILL to what is left after the grace period."""
    signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    signal_group(process.pid, signal.SIGKILL)


def bury(process: Started, scratch: str) -> None:
    """Leave no member of the process group alive, nor a child that left it."""
    signal_group(process.pid, signal.SIGKILL)
    process.wait()
    end_strays(scratch)


def killed_by(code: int, memory: Sequence[int] = (signal.SIGKILL,)) -> str:
    """The signal of an exit code below 0, in words. `memory`: those that may mean that there was no memory left."""
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    return f"killed by {name}" + (" (out of memory?)" if -code in memory else "")


def data_held() -> int:
    """Data that this process may write, in MiB: what RLIMIT_DATA counts. 0 where the system does not tell."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) // 1024
    return 0


def limit_memory(mib: int | None, beside: int = 0) -> None:
    """Let this process hold at most so much data of its own, in MiB. Nothing where the system has no such limit.

    `beside`: MiB that do not count, because a fork began with them. RLIMIT_DATA counts what may be written and is not
    shared (Linux 4.7); address space that is only reserved is free.
    """
    if mib is None:
        return
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = (mib + beside) * MIB
        wanted = allowed if most == resource.RLIM_INFINITY else min(allowed, most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def job_of_stdin() -> dict[str, Any]:
    """The job, JSON on the first line of stdin; afterwards stdin is empty.

    With `lifeline` in the job, this process's group ends with the pipe: the parent closes it, or dies.
    """
    line = b""
    while not line.endswith(b"\n"):
        some = os.read(0, 1 << 16)
        if not some:
            break
        line += some
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    job = dict(json.loads(line))
    if job.get("lifeline"):
        threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    return job


def _end_with_parent(descriptor: int) -> None:
    while os.read(descriptor, 1):
        continue
    end_strays(os.environ.get("TMPDIR", ""))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
