"""Jobs as processes of this machine: one process group a job, a time limit each, forked where that saves an import.

A worker that hangs, crashes, prints garbage or returns nothing yields evidence that says so.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.core.processes import PREFIX, SERVE, bury, end_group, end_strays, exceeded, killed_by
from gradproof.core.schemas.evidence import Evidence, evidence_of
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.environment import cuda_absent, environment, worker_environ
from gradproof.evidence.record import now, record
from gradproof.execution.engine import WorkItem, WorkResult

# torch._dynamo, which every optimizer imports at its first step, costs as much as torch itself.
NEEDED: Mapping[Kind, tuple[str, ...]] = {
    Kind.STUB: ("z3",),
    Kind.SMT: ("z3",),
    Kind.CROSSHAIR: ("z3", "crosshair.core_and_libs"),
    Kind.TRACE: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.TORCH: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.GATE: (),
}
MEMORY = (signal.SIGKILL, signal.SIGABRT)  # how a process ends that gets no memory, from outside and from within
TAIL = 4000
START = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("gradproof", {init!r}, submodule_search_locations=[{package!r}])
sys.modules["gradproof"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["gradproof"])
from gradproof.execution.worker import main
main()
"""

# -- Workers that are forked from one process with the solvers or PyTorch imported, which saves seconds for each.
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
    """Starts workers for one workspace until it is closed. `libraries` are imported once, before the first fork.

    Each message asks for a worker and brings three descriptors: its stdin, its output, and a socket that reports its
    process id and then its exit code. `root`: the folder that the workers run in.
    """

    def __init__(self, root: Path, libraries: Sequence[str] = ()) -> None:
        self.root, self.libraries = root, libraries
        self.since = 0.0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._broken = not (sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "recv_fds"))

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> Forked | None:
        """A worker in the environment `environ`, whose TMPDIR is its scratch folder; None when there can be none."""
        with self._lock:
            channel = self._serving(command, environ)
        if channel is None:
            return None
        with ExitStack() as kept:
            stdin, taken = _pipe(kept)
            given, stdout = _pipe(kept)
            mine, report = (kept.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            descriptors = [taken.fileno(), given.fileno(), report.fileno()]
            try:
                socket.send_fds(channel, [os.fsencode(environ["TMPDIR"])], descriptors)
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
                [*command, SERVE, str(theirs.fileno()), *self.libraries],
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


class Worker:
    """One check in one process group. It blocks until it is over; `kill` may be called from another thread."""

    def __init__(self, check: Check, workspace: Workspace, limit: float, memory: int | None = None) -> None:
        self.check, self.workspace, self.limit, self.memory = check, workspace, limit, memory
        self.server: ForkServer | None = None
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.killed = False
        self._tail = b""

    def command(self) -> list[str]:
        """How the worker is started: with no folder of the caller's on its path, and with this very package."""
        return [sys.executable, "-P", "-c", START.format(init=str(PACKAGE / "__init__.py"), package=str(PACKAGE))]

    def _attend(self, result: Path) -> tuple[Outcome | None, str]:
        """Start, wait, kill what is left. The outcome is None when the worker ended well."""
        process = self.process = self._started(str(result.parent))
        if self.killed:
            self.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        reader = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(self._job(result)).encode() + b"\n")
                process.stdin.flush()
            if late := exceeded(process, self.limit):
                self.kill()
                return Outcome.TIMEOUT, f"{late}; the process group was killed"
        finally:
            bury(process, str(result.parent))
            reader.join(1.0)
            with suppress(OSError):
                process.stdin.close()
        if self.killed:
            return Outcome.NOT_RUN, "interrupted"
        code = process.wait()
        if code == LOST:
            return Outcome.ERROR, "the process that the worker was forked from ended before it"
        return (None, "") if code == 0 else (Outcome.ERROR, _death(code, self.output()))

    def _started(self, scratch: str) -> subprocess.Popen[bytes] | Forked:
        """The process, forked where that can be; a GPU's driver does not outlive a fork."""
        command, environ = self.command(), worker_environ(str(self.check.layer), scratch)
        if self.server is not None and self.check.layer is not Layer.CUDA:
            forked = self.server.start(command, environ)
            if forked is not None:
                return forked
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=self.workspace.root,
            start_new_session=True,
        )

    def _job(self, result: Path) -> dict[str, Any]:
        return {
            "check": self.check.to_json(),
            "root": str(self.workspace.root),
            "reports": str(self.workspace.reports),
            "package": str(PACKAGE),
            "result": str(result),
            "lifeline": True,
            "memory": self.memory,
            **({"since": self.server.since} if isinstance(self.process, Forked) and self.server is not None else {}),
        }

    def kill(self) -> None:
        """SIGTERM to the group, and SIGKILL to what is left after the grace period. Returns at once when over."""
        self.killed = True
        process = self.process
        if process is None or process.poll() is not None:
            return
        end_group(process)

    def _listen(self, stream: IO[bytes]) -> None:
        with suppress(ValueError, OSError):
            for chunk in iter(lambda: os.read(stream.fileno(), 1 << 16), b""):
                self._tail = (self._tail + chunk)[-TAIL:]
        with suppress(OSError):
            stream.close()

    def output(self) -> str:
        """The end of what the worker printed."""
        return self._tail.decode(errors="replace")

    def run(self) -> Evidence:
        """Evidence of the run, whatever became of the worker."""
        started_at, clock = now(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
            result = Path(folder) / "result.json"
            try:
                outcome, reason = self._attend(result)
            except OSError as e:
                outcome, reason = Outcome.ERROR, f"the worker could not be started: {e}"
            if outcome is None:
                try:
                    return self._read(result)
                except ValueError as e:
                    outcome, reason = Outcome.ERROR, f"the worker returned no evidence: {e}"
        finding = Finding(outcome, reason, stats={"output": self.output()})
        return unanswered(self.check, finding, started_at=started_at, seconds=time.monotonic() - clock)

    def _read(self, result: Path) -> Evidence:
        """The worker's evidence. Raises ValueError when there is none, or it is not about this check."""
        try:
            data = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            said = self.output().strip()[-300:]
            raise ValueError(f"{e}; it printed: {said or 'nothing'}") from e
        evidence = evidence_of(data)
        if evidence.claim.spec != self.check.digest:
            raise ValueError("it is about another check")
        return evidence


class ForkServers:
    """Fork servers of one workspace, one for each set of libraries, started when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self._root, self._servers, self._lock = root, dict[tuple[str, ...], ForkServer](), threading.Lock()

    def of(self, libraries: tuple[str, ...]) -> ForkServer | None:
        """The server that has imported these libraries; none is worth its start for no library."""
        with self._lock:
            return self._servers.setdefault(libraries, ForkServer(self._root, libraries)) if libraries else None

    def close(self) -> None:
        """End them."""
        with self._lock:
            for server in self._servers.values():
                server.close()


def process_of(
    job: WorkItem, workspace: Workspace, servers: ForkServers | None = None, worker: type[Worker] = Worker
) -> Worker:
    """The process of a job, not yet started."""
    process = worker(job.check, workspace, job.seconds, job.memory)
    process.server = None if servers is None else servers.of(NEEDED[job.check.kind])
    return process


class LocalProcesses:
    """The engine that is this machine: at most `jobs` processes at a time.

    `shared`: the sets of libraries that one process should import for all.
    """

    def __init__(
        self, workspace: Workspace, jobs: int, shared: Collection[tuple[str, ...]], worker: type[Worker] = Worker
    ) -> None:
        self.workspace, self.jobs, self.worker = workspace, jobs, worker
        self._shared, self._servers = shared, ForkServers(workspace.root)
        self.places: dict[str, str] = {}
        self.notes: list[str] = []
        self._running: dict[str, Worker] = {}
        self._threads: list[threading.Thread] = []
        self._answers: queue.Queue[WorkResult] = queue.Queue()

    @property
    def no_gpu(self) -> str:
        """What the driver says."""
        return cuda_absent() or ""

    def slots(self) -> int:
        """Always the same number."""
        return max(1, self.jobs)

    def start(self, job: WorkItem) -> None:
        """Begin a job, in a thread that waits for it."""
        shared = NEEDED[job.check.kind] in self._shared
        process = process_of(job, self.workspace, self._servers if shared else None, self.worker)
        self._running[job.name] = process
        thread = threading.Thread(target=self._attend, args=(job.name, process), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _attend(self, name: str, process: Worker) -> None:
        try:
            self._answers.put(WorkResult(name, process.run().stated()))
        except Exception as e:
            self._answers.put(WorkResult(name, None, f"the runner raised {type(e).__name__}: {e}"))

    def answer(self, seconds: float) -> WorkResult | None:
        """The next answer."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        del self._running[answer.name]
        return answer

    def close(self) -> None:
        """Kill what still runs, all at once."""
        killers = [threading.Thread(target=process.kill) for process in self._running.values()]
        for thread in killers:
            thread.start()
        for thread in [*killers, *self._threads]:
            thread.join(5.0)
        self._servers.close()


def unanswered(check: Check, finding: Finding, **times: Any) -> Evidence:
    """Evidence of a run of which no worker said anything."""
    return evidence_of(record(check, finding, environment=environment(), **times))


def _death(code: int, output: str) -> str:
    """How a worker ended, in words, with the last line that it printed: of a traceback, the exception."""
    if code >= 0:
        last = [line.strip() for line in output.splitlines() if line.strip()][-1:]
        return f"the worker ended with exit code {code}" + (f": {last[0][-300:]}" if last else "")
    return f"the worker was {killed_by(code, MEMORY)}"
