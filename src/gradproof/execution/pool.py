"""A pool of killable processes: one worker a check, a time limit each, the longest first.

A worker that hangs, crashes, prints garbage or returns nothing yields evidence that says so. Nothing here decides
what an outcome is worth, except that a check whose stub was not discharged is not run at all.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import DECISION, Effect, Kind, Layer, Outcome
from gradproof.core.processes import PREFIX, end_strays, exceeded
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.audit import audit
from gradproof.evidence.environment import cuda_absent, environment, worker_environ
from gradproof.evidence.record import now, record, validate
from gradproof.execution.forkserver import LOST, NEEDED, Forked, ForkServer

GRACE = 0.2
SEVERAL = 3
MEMORY = (signal.SIGKILL, signal.SIGABRT)  # how a process ends that gets no memory, from outside and from within
TAIL = 4000
START = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("gradproof", {init!r}, submodule_search_locations=[{package!r}])
sys.modules["gradproof"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["gradproof"])
sys.modules["gradproof"].BARE = frozenset(sys.modules)
from gradproof.execution.worker import main
main()
"""
Evidence = dict[str, Any]


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
class Result:
    """Evidence by check id, and whether every check that was asked for was decided."""

    evidence: dict[str, Evidence]
    complete: bool
    interrupted: bool = False


class Worker:
    """One check in one process group. `run` blocks until it is over; `kill` may be called from another thread."""

    def __init__(self, check: Check, workspace: Workspace, limit: float, memory: int | None = None) -> None:
        self.check, self.workspace, self.limit, self.memory = check, workspace, limit, memory
        self.server: ForkServer | None = None
        self.preload: Sequence[str] = ()
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
        spent = time.monotonic() - clock
        return record(self.check, finding, environment=environment(), started_at=started_at, seconds=spent)

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
            self._bury(process, str(result.parent))
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
            forked = self.server.start(command, environ, self.preload)
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
        _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        _signal(process.pid, signal.SIGKILL)

    def _bury(self, process: subprocess.Popen[bytes] | Forked, scratch: str) -> None:
        """Leave no member of the process group alive, nor a child that left it."""
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        end_strays(scratch)

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
        if validate(data).digest != self.check.digest:
            raise ValueError("it is about another check")
        return dict(data)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _death(code: int, output: str) -> str:
    """How a worker ended, in words, with the last line that it printed: of a traceback, the exception."""
    if code >= 0:
        last = [line.strip() for line in output.splitlines() if line.strip()][-1:]
        return f"the worker ended with exit code {code}" + (f": {last[0][-300:]}" if last else "")
    name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
    return f"the worker was killed by {name}" + (" (out of memory?)" if -code in MEMORY else "")


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

    def run(self, checks: Sequence[Check], save: Callable[[Evidence], object]) -> Result:
        """Run all, saving each as it ends. On KeyboardInterrupt the children are killed and what ended is kept."""
        self._done: dict[str, Evidence] = {}
        self._effects = dict(self.status)
        self._waiting = {c.id: c for c in checks}
        self._running: dict[str, tuple[Worker, float]] = {}
        self._events: queue.Queue[tuple[Check, Evidence]] = queue.Queue()
        self._total, self._stop = len(checks), False
        self._threads: list[threading.Thread] = []
        self._server, self._preload = ForkServer(self.workspace.root), _worth(checks)
        weight = _weights(checks, self.known)
        try:
            while self._running or (self._waiting and not self._stop):
                while len(self._running) < max(1, self.jobs) and self._launch(weight):
                    continue
                self._collect(save)
        except KeyboardInterrupt:
            self._abort()
            return Result(self._done, complete=False, interrupted=True)
        except BaseException:
            self._abort()
            raise
        finally:
            self._server.close()
        return Result(self._done, complete=not self._waiting)

    def _launch(self, weight: Mapping[str, float]) -> bool:
        """Start, or decide without a run, the heaviest check whose stubs are decided. False when there is none."""
        ready = [c for c in self._waiting.values() if not any(d in self._undecided() for d in c.depends)]
        if self._stop or not ready:
            return False
        check = max(ready, key=lambda c: (weight[c.id], c.id))
        del self._waiting[check.id]
        reason = self._refusal(check)
        if reason is not None:
            self._finish(check, record(check, Finding(Outcome.NOT_RUN, reason), environment=environment()))
            return True
        limit = self.limit or check.time_limit
        worker = self.worker(check, self.workspace, limit, self.memory)
        if self._preload:
            worker.server = self._server
            worker.preload = [name for name in NEEDED[check.kind] if name in self._preload]
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
            finding = Finding(Outcome.ERROR, f"the runner raised {type(e).__name__}: {e}")
            evidence = record(check, finding, environment=environment())
        self._events.put((check, evidence))

    def _undecided(self) -> set[str]:
        return {*self._waiting, *self._running}

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
            if self._waiting and not self._stop and not self._ready():
                self._deadlock()
            return
        try:
            check, evidence = self._events.get(timeout=0.25)
        except queue.Empty:
            self._tell("tick", None, None)
            return
        del self._running[check.id]
        if evidence["finding"]["outcome"] != Outcome.NOT_RUN:
            save(evidence)
        self._finish(check, evidence)

    def _ready(self) -> bool:
        return any(not any(d in self._undecided() for d in c.depends) for c in self._waiting.values())

    def _deadlock(self) -> None:
        """Checks that wait for each other."""
        for check in list(self._waiting.values()):
            del self._waiting[check.id]
            finding = Finding(Outcome.ERROR, f"it waits for itself through {', '.join(check.depends)}")
            self._finish(check, record(check, finding, environment=environment()))

    def _finish(self, check: Check, evidence: Evidence) -> None:
        self._done[check.id] = evidence
        effect = DECISION[check.expect, audit(check, evidence["finding"])[0]]
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


def _worth(checks: Sequence[Check]) -> frozenset[str]:
    """Libraries that so many of these checks import that one process should import them for all."""
    wanted = Counter(name for c in checks if c.harness and c.layer is not Layer.CUDA for name in NEEDED[c.kind])
    return frozenset(name for name, count in wanted.items() if count >= SEVERAL)


def _weights(checks: Sequence[Check], known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest chain that starts at a check: its own run, then that of what waits for it."""
    own = {c.id: known.get(c.id) or c.time_limit for c in checks}
    behind = {c.id: max((own[d.id] for d in checks if c.id in d.depends), default=0.0) for c in checks}
    return {name: seconds + behind[name] for name, seconds in own.items()}
