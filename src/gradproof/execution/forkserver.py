"""The process that the workers of one run are forked from: it imports solvers and PyTorch once, and runs no check.

The parent starts it with one end of a socket (`Forked`). Each message asks for a worker and brings three
descriptors: its stdin, its output, and a socket on which the worker's process id and then its exit code are reported. A
worker has a session and a scratch folder of its own, like one that was started from nothing. Where it cannot be given
either, or where its workspace has a module of a preloaded name, it starts itself from nothing. The end of the socket
is the end of the run. Imports of this module must not add to what a worker has imported: `serve` hides them.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.util
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
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, NoReturn

from gradproof.core.outcome import Kind
from gradproof.core.processes import PREFIX, SERVE, end_strays
from gradproof.core.workspace import Locator, installed
from gradproof.evidence.environment import environment, taken

# -- Workers that are forked from one process with the solvers and PyTorch imported, which saves seconds for each.
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
        with suppress(ValueError):  # another thread was reported, and closed the socket
            if self.returncode is None and select.select([self._report], [], [], max(0.0, seconds))[0]:
                with self._lock:
                    if self.returncode is None:
                        self.returncode = _stated(self._report)
                        self._report.close()
        return self.returncode


def _stated(report: socket.socket) -> int:
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


# -- Modules that a fork server imported in advance, out of sight until a worker imports them itself.
# torch._dynamo, which every optimizer imports at its first step, costs as much as torch itself.
NEEDED: Mapping[Kind, tuple[str, ...]] = {
    Kind.STUB: ("z3",),
    Kind.SMT: ("z3",),
    Kind.CROSSHAIR: ("z3", "crosshair.core_and_libs"),
    Kind.TRACE: ("numpy", "torch._dynamo"),
    Kind.TORCH: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.GATE: (),
}
_KEPT = ("gradproof", "__mp_main__", "__main__")


class Stash(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder that gives preloaded modules back. `before`: names in sys.modules that every worker has anyway."""

    def __init__(self, before: Iterable[str]) -> None:
        self._before = frozenset(before)
        self._held: dict[str, ModuleType] = {}
        # Modules, names that were looked for, and what was put on sys.path.
        self._brought: dict[str, tuple[frozenset[str], frozenset[str], tuple[str, ...]]] = {}
        self._sought: set[str] = set()
        self._asked: dict[str, tuple[ModuleType, ModuleSpec | None]] = {}

    def preload(self, name: str) -> None:
        """Import a library, if it is installed and not yet here, and hide it. Raises what its import raises."""
        top = name.partition(".")[0]
        if name in self._held or not _installed(top):
            return
        self._sought, path = set(), list(sys.path)
        importlib.import_module(name)
        self._brought[top] = self.hide(), frozenset(self._sought), tuple(p for p in sys.path if p not in path)
        sys.path[:] = path

    def hide(self) -> frozenset[str]:
        """Take every module that a worker would not have, when it starts from nothing, out of sys.modules."""
        names = {n for n in sys.modules if n not in self._before and n.partition(".")[0] not in _KEPT}
        self._held |= {name: sys.modules.pop(name) for name in names}
        return frozenset(names)

    def shadowed(self, root: Path) -> list[str]:
        """Modules at the root of a workspace for which a preloaded library looked: it would have found them there."""
        locator = Locator(root)
        sought = {name for _, names, _ in self._brought.values() for name in names}
        names = sought & {place.name.partition(".")[0] for place in root.iterdir()}
        return sorted(name for name in names if locator.spec(name, str(root)) is not None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module that is held."""
        if path is None:
            self._sought.add(fullname)
        module = self._held.get(fullname)
        if module is None:
            return None
        origin = module.__spec__.origin if module.__spec__ else None
        return ModuleSpec(fullname, self, origin=origin, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it was imported; all that came with it is in sys.modules from now on."""
        module, top = self._held.pop(spec.name), spec.name.partition(".")[0]
        self._asked[spec.name] = module, module.__spec__
        came, sought, places = self._brought.get(top, (frozenset(), frozenset(), ()))
        sys.path += places
        self._announce(sought - {spec.name}, top)
        for name in [n for n in self._held if n in came or n.partition(".")[0] == top]:
            sys.modules.setdefault(name, self._held.pop(name))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run again; the import system has put its own spec in the place of the module's."""
        if module.__spec__ is not None:
            module.__spec__ = self._asked[module.__spec__.name][1]

    def _announce(self, names: Iterable[str], asked: str) -> None:
        """The finders before this one hear of the names that an import looked for, as they would have.

        Raises ImportError when one of them has such a module.
        """
        self._sought |= set(names)
        for name in sorted(set(names) - set(sys.modules)):
            for finder in sys.meta_path[: sys.meta_path.index(self)]:
                if finder.find_spec(name, None) is not None:
                    raise ImportError(f"the workspace has a module {name!r}, for which {asked} looks; run again")


def _installed(top: str) -> bool:
    spec = importlib.util.find_spec(top)
    return spec is not None and spec.origin is not None and installed(Path(spec.origin).resolve())


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
    taken("")  # reads what every worker asks for: which distribution owns what, and which of them gradproof needs
    _Server(socket.socket(fileno=descriptor), stash, work).run()


class _Server:
    def __init__(self, channel: socket.socket, stash: Stash, work: Callable[[], None]) -> None:
        self._channel, self._stash, self._work = channel, stash, work
        self._children: dict[
            int, tuple[int, int]
        ] = {}  # descriptor of a process -> its id, and where its end is reported

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

    That is how a process that leaves its group is found again: see `gradproof.core.processes`.
    """
    was, now = (os.fsencode(f"TMPDIR={folder}\0") for folder in (old, new))
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
