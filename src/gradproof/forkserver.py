"""The process that the workers of one run are forked from: it imports solvers and PyTorch once, and runs no check.

Started by `gradproof.forked` with one end of a socket. Each message asks for a worker and brings three descriptors:
its stdin, its output, and a socket on which the worker's process id and then its exit code are told. A worker has a
session and a scratch folder of its own, like one that was started from nothing. Where it cannot be given either, or
where its workspace has a module of a preloaded name, it starts itself from nothing. The end of the socket is the end
of the run. Imports of this module must not add to what a worker has imported: `serve` hides them.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gradproof.environment import environment
from gradproof.processes import SERVE
from gradproof.stash import Stash

MESSAGE = 1 << 16
_ENV_START = 47  # proc(5), /proc/PID/stat: fields 50 and 51, counted from the first one after the command's name


def serve(descriptor: int, before: Iterable[str], work: Callable[[], None]) -> NoReturn:
    """Fork a worker for each message. `before`: names of the modules that a worker has from its start.

    Raises OSError before the first fork where the system refuses what tells the end of a worker (pidfd, Linux 5.3).
    """
    os.close(os.pidfd_open(os.getpid()))
    stash = Stash(before)
    sys.meta_path.insert(0, stash)
    stash.hide()
    environment()
    _Server(socket.socket(fileno=descriptor), stash, work).run()


class _Server:
    def __init__(self, channel: socket.socket, stash: Stash, work: Callable[[], None]) -> None:
        self._channel, self._stash, self._work = channel, stash, work
        self._children: dict[int, tuple[int, int]] = {}  # descriptor of a process -> its id, and where its end is told

    def run(self) -> NoReturn:
        while True:
            for ready in select.select([self._channel.fileno(), *self._children], [], [])[0]:
                if ready in self._children:
                    self._bury(ready)
                else:
                    self._answer()

    def _answer(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE, 3)
        if not message:
            os._exit(0)
        request = json.loads(message)
        for name in request["preload"]:
            self._stash.preload(name)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            self._become(request, descriptors)
        os.close(descriptors[0])
        os.close(descriptors[1])
        self._children[os.pidfd_open(pid)] = pid, descriptors[2]

    def _bury(self, ended: int) -> None:
        """Tell the exit code of a worker: negative, the signal, as in subprocess."""
        pid, report = self._children.pop(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(BrokenPipeError, ConnectionResetError):
            os.write(report, str(code).encode())
        os.close(report)
        os.close(ended)

    def _become(self, request: dict[str, str], descriptors: list[int]) -> NoReturn:
        """In the new process: be a worker, and never come back."""
        try:
            os.setsid()
            for descriptor, (_, report) in self._children.items():
                os.close(descriptor)
                os.close(report)
            self._channel.close()
            taken, given, report = descriptors
            for old, new in ((taken, 0), (given, 1), (given, 2)):
                os.dup2(old, new)
            os.close(taken)
            os.close(given)
            os.write(report, str(os.getpid()).encode())
            os.close(report)
            known = _at_home(os.environ["TMPDIR"], request["scratch"])
            os.environ["TMPDIR"], tempfile.tempdir = request["scratch"], None
            at = sys.orig_argv.index(SERVE)
            if not known or self._stash.shadowed(Path.cwd()):
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:at]])
            del sys.argv[sys.argv.index(SERVE) :]
            self._work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _at_home(old: str, new: str) -> bool:
    """Name the scratch folder `new` in what the system shows as this process's environment, in the place of `old`.

    That is how a process that leaves its group is found again: see `gradproof.processes`.
    """
    was, now = (f"TMPDIR={folder}\0".encode() for folder in (old, new))
    if len(was) != len(now):
        return False
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            at = memory.read(end - start).find(was)
            if at < 0:
                return False
            memory.seek(start + at)
            memory.write(now)
        return now in Path("/proc/self/environ").read_bytes()
    except OSError:
        return False
