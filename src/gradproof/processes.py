"""Processes that a worker left behind, wherever they went: known by the scratch folder in their environment."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20
PREFIX = "gradproof-"
ROUNDS = 5
SERVE = "--serve"  # a worker with this flag and a descriptor is a fork server


def strays(scratch: str) -> list[int]:
    """Ids of the other processes that were started with `scratch` as TMPDIR. Empty where there is no /proc."""
    mark, found = f"TMPDIR={scratch}".encode(), []
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
