"""A pool of killable processes: one worker a check, a time limit each, the longest first.

A worker that hangs, crashes, prints garbage or returns nothing yields evidence that says so. Nothing here decides
what an outcome is worth, except that a check whose stub was not discharged is not run at all.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import DECISION, Effect, Kind, Layer, Outcome
from gradproof.core.processes import PREFIX, SERVE, bury, end_group, end_strays, exceeded, killed_by
from gradproof.core.schemas.evidence import Evidence, evidence_of
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.audit import audit
from gradproof.evidence.environment import cuda_absent, environment, worker_environ
from gradproof.evidence.record import now, record

# torch._dynamo, which every optimizer imports at its first step, costs as much as torch itself.
NEEDED: Mapping[Kind, tuple[str, ...]] = {
    Kind.STUB: ("z3",),
    Kind.SMT: ("z3",),
    Kind.CROSSHAIR: ("z3", "crosshair.core_and_libs"),
    Kind.TRACE: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.TORCH: ("hypothesis", "numpy", "torch._dynamo"),
    Kind.GATE: (),
}
SEVERAL = 3
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


@dataclass(frozen=True)
class Progress:
    """What happened: `event` is started, finished or tick; `running` maps check ids to elapsed seconds."""

    event: str
    check: Check | None
    evidence: Evidence | None
    done: int
    total: int
    running: Mapping[str, float]


Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class PoolResult:
    """Evidence by check id, and whether every check that was asked for was decided."""

    evidence: dict[str, Evidence]
    complete: bool
    interrupted: bool = False


class Worker:
    """One check in one process group. `run` blocks until it is over; `kill` may be called from another thread."""

    def __init__(self, check: Check, workspace: Workspace, limit: float, memory: int | None = None) -> None:
        self.check, self.workspace, self.limit, self.memory = check, workspace, limit, memory
        self.server: ForkServer | None = None
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.killed = False
        self._tail = b""

    def command(self) -> list[str]:
        """How the worker is started: with no folder of the caller's on its path, and with this very package."""
        return [sys.executable, "-P", "-c", START.format(init=str(PACKAGE / "__init__.py"), package=str(PACKAGE))]

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
        return _unanswered(self.check, finding, started_at=started_at, seconds=time.monotonic() - clock)

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


def _unanswered(check: Check, finding: Finding, **times: Any) -> Evidence:
    """Evidence of a run of which no worker said anything."""
    return evidence_of(record(check, finding, environment=environment(), **times))


def _death(code: int, output: str) -> str:
    """How a worker ended, in words, with the last line that it printed: of a traceback, the exception."""
    if code >= 0:
        last = [line.strip() for line in output.splitlines() if line.strip()][-1:]
        return f"the worker ended with exit code {code}" + (f": {last[0][-300:]}" if last else "")
    return f"the worker was {killed_by(code, MEMORY)}"


@dataclass
class Pool:
    """Runs checks in `jobs` slots. `known` holds seconds of earlier runs; `status` effects of checks not run now.

    `limit`: seconds of CPU time for each check, instead of its own. `memory`: MiB for each check that is not on a GPU.
    """

    workspace: Workspace
    jobs: int = 2
    limit: float | None = None
    fail_fast: bool = False
    known: Mapping[str, float] = field(default_factory=dict)
    status: Mapping[str, Effect] = field(default_factory=dict)
    listener: Listener = lambda progress: None
    worker: type[Worker] = Worker
    memory: int | None = None

    def run(self, checks: Sequence[Check], save: Callable[[Evidence], object]) -> PoolResult:
        """Run all, saving each as it ends. On KeyboardInterrupt the children are killed and what ended is kept."""
        self._done: dict[str, Evidence] = {}
        self._effects = dict(self.status)
        self._waiting = {c.id: c for c in checks}
        self._running: dict[str, tuple[Worker, float]] = {}
        self._events: queue.Queue[tuple[Check, Evidence]] = queue.Queue()
        self._total, self._stop = len(checks), False
        self._threads: list[threading.Thread] = []
        self._servers = {names: ForkServer(self.workspace.root, names) for names in _worth(checks)}
        weight = _weights(checks, self.known)
        try:
            while self._running or (self._waiting and not self._stop):
                while len(self._running) < max(1, self.jobs) and self._launch(weight):
                    continue
                self._collect(save)
        except KeyboardInterrupt:
            self._abort()
            return PoolResult(self._done, complete=False, interrupted=True)
        except BaseException:
            self._abort()
            raise
        finally:
            for server in self._servers.values():
                server.close()
        return PoolResult(self._done, complete=not self._waiting)

    def _launch(self, weight: Mapping[str, float]) -> bool:
        """Start, or decide without a run, the heaviest check whose stubs are decided. False when there is none.

        Where nothing runs, all that wait are ready: those that wait for each other are refused.
        """
        undecided = {*self._waiting, *self._running} if self._running else set()
        waiting = list(self._waiting.values())
        ready = [c for c in waiting if undecided.isdisjoint(c.depends)]
        if self._stop or not ready:
            return False
        check = max(ready, key=lambda c: (weight[c.id], c.id))
        del self._waiting[check.id]
        reason = self._refusal(check)
        if reason is not None:
            self._finish(check, _unanswered(check, Finding(Outcome.NOT_RUN, reason)))
            return True
        limit = self.limit or check.time_limit
        worker = self.worker(check, self.workspace, limit, self.memory)
        worker.server = self._servers.get(NEEDED[check.kind])
        self._running[check.id] = (worker, time.monotonic())
        thread = threading.Thread(target=self._attend, args=(check, worker), daemon=True)
        self._threads.append(thread)
        thread.start()
        self._tell("started", check, None)
        return True

    def _attend(self, check: Check, worker: Worker) -> None:
        try:
            evidence = worker.run()
        except Exception as e:
            evidence = _unanswered(check, Finding(Outcome.ERROR, f"the runner raised {type(e).__name__}: {e}"))
        self._events.put((check, evidence))

    def _refusal(self, check: Check) -> str | None:
        """Why this check is not run at all."""
        if not check.harness and check.kind is not Kind.GATE:
            return "the contract names no harness of this workspace for it"
        for name in check.depends:
            if self._effects.get(name) is not Effect.DISCHARGED:
                return f"it rests on {name}, which is not discharged"
        return cuda_absent() if check.layer is Layer.CUDA else None

    def _collect(self, save: Callable[[Evidence], object]) -> None:
        if not self._running:
            return
        try:
            check, evidence = self._events.get(timeout=0.25)
        except queue.Empty:
            self._tell("tick", None, None)
            return
        del self._running[check.id]
        if evidence.finding.outcome is not Outcome.NOT_RUN:
            save(evidence)
        self._finish(check, evidence)

    def _finish(self, check: Check, evidence: Evidence) -> None:
        self._done[check.id] = evidence
        effect = DECISION[check.expect, audit(check, evidence.finding)[0]]
        self._effects[check.id] = effect
        self._stop = self._stop or (self.fail_fast and effect is Effect.BROKEN)
        self._tell("finished", check, evidence)

    def _tell(self, event: str, check: Check | None, evidence: Evidence | None) -> None:
        clock = time.monotonic()
        running = {name: clock - begun for name, (_, begun) in self._running.items()}
        self.listener(Progress(event, check, evidence, len(self._done), self._total, running))

    def _abort(self) -> None:
        workers = [worker for worker, _ in self._running.values()]
        threads = [threading.Thread(target=w.kill) for w in workers]
        for thread in threads:
            thread.start()
        for thread in [*threads, *self._threads]:
            thread.join(5.0)


def _worth(checks: Sequence[Check]) -> set[tuple[str, ...]]:
    """Libraries that so many of these checks import that one process should import them for all."""
    count = Counter(NEEDED[c.kind] for c in checks if c.harness and c.layer is not Layer.CUDA)
    return {names for names, checks_ in count.items() if names and checks_ >= SEVERAL}


def _weights(checks: Sequence[Check], known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest chain that starts at a check: its own run, then that of what waits for it."""
    own = {c.id: known.get(c.id) or c.time_limit for c in checks}
    behind = {c.id: max((own[d.id] for d in checks if c.id in d.depends), default=0.0) for c in checks}
    return {name: seconds + behind[name] for name, seconds in own.items()}
