"""Workers that are forked from one process with the solvers and PyTorch imported, which saves seconds for each.

Everything that `gradproof.runner` does with a worker that it starts itself it can do with one of these: its own
session, its own scratch folder, standard streams, exit code, kill. Where the system cannot do it, `start` returns None
and the worker is started from nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from gradproof.processes import PREFIX, SERVE, end_strays

LOST = 256  # no exit code of a process: the fork server ended before it could tell
STARTS_WITHIN = 120.0  # seconds; the first worker waits for the import of PyTorch
DIES_WITHIN = 30.0


class Forked:
    """A forked worker, with what is used of subprocess.Popen. Its methods may be called from any thread."""

    def __init__(self, pid: int, report: socket.socket, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._report, self._lock = report, threading.Lock()

    def poll(self) -> int | None:
        """The exit code; None while the worker runs."""
        return self._ask(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired; LOST when nobody tells it within DIES_WITHIN of a kill."""
        code = self._ask(DIES_WITHIN if timeout is None else timeout)
        if code is None and timeout is None:
            code = self.returncode = LOST
            self._report.close()
        if code is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return code

    def _ask(self, seconds: float) -> int | None:
        with suppress(ValueError):  # another thread was told, and closed the socket
            if self.returncode is None and select.select([self._report], [], [], max(0.0, seconds))[0]:
                with self._lock:
                    if self.returncode is None:
                        self.returncode = _told(self._report)
                        self._report.close()
        return self.returncode


def _told(report: socket.socket) -> int:
    try:
        said = report.recv(64)
    except OSError:
        said = b""
    return int(said) if said else LOST


def _pipe(kept: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """A pipe's end for writing and its end for reading."""
    reading, writing = os.pipe()
    return kept.enter_context(os.fdopen(writing, "wb")), kept.enter_context(os.fdopen(reading, "rb"))


class ForkServer:
    """Starts workers for one workspace until it is closed. `root`: the folder that they run in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.since = 0.0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._broken = not (sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "recv_fds"))

    def start(self, command: Sequence[str], environ: Mapping[str, str], preload: Sequence[str]) -> Forked | None:
        """A worker in the environment `environ`, whose TMPDIR is its scratch folder; None when there can be none."""
        with self._lock:
            channel = self._serving(command, environ)
        if channel is None:
            return None
        message = {"scratch": environ["TMPDIR"], "preload": list(preload)}
        with ExitStack() as kept:
            stdin, taken = _pipe(kept)
            given, stdout = _pipe(kept)
            mine, report = (kept.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            descriptors = [taken.fileno(), given.fileno(), report.fileno()]
            try:
                socket.send_fds(channel, [json.dumps(message).encode()], descriptors)
                taken.close()
                given.close()
                report.close()
                said = mine.recv(64) if select.select([mine], [], [], STARTS_WITHIN)[0] else b""
            except OSError:
                said = b""
            if said:
                kept.pop_all()
                return Forked(int(said), mine, stdin, stdout)
        self._broken = True
        return None

    def _serving(self, command: Sequence[str], environ: Mapping[str, str]) -> socket.socket | None:
        """The channel to the server, which is started when it is first needed; None once it has failed."""
        if self._broken:
            return None
        if self._process is None:
            self._scratch = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            self.since = time.time()
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel = mine
            self._process = subprocess.Popen(
                [*command, SERVE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environ, "TMPDIR": self._scratch.name},
                cwd=self.root,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
        return self._channel

    def close(self) -> None:
        """End the server. Workers that it started live on, but nobody tells how they end."""
        with self._lock:
            self._broken = True
            if self._process is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            if self._channel is not None:
                self._channel.close()
            if self._scratch is not None:
                end_strays(self._scratch.name)
                self._scratch.cleanup()
