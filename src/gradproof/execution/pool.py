"""Which check runs next on an engine, and what came of it: stubs first, then the longest.

A worker that hangs, crashes, prints garbage or returns nothing yields evidence that says so. Nothing here decides
what an outcome is worth, except that a check whose stub was not discharged is not run at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import DECISION, Effect, Kind, Layer, Outcome
from gradproof.core.schemas.evidence import Evidence, evidence_of
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.audit import audit
from gradproof.evidence.environment import need
from gradproof.evidence.store import Store
from gradproof.execution.engine import Executor, WorkItem, WorkResult
from gradproof.execution.local import NEEDED, LocalProcesses, Worker, unanswered

SEVERAL = 3


@dataclass(frozen=True)
class Progress:
    """What happened: `event` is started, finished, tick or worker; `running` maps check ids to elapsed seconds.

    `where` maps check ids to the machines that run them, where these are others, and `note` says what became of one.
    `left`: about how many seconds the rest takes, None where nothing is known yet.
    """

    event: str
    check: Check | None
    evidence: Evidence | None
    done: int
    total: int
    running: Mapping[str, float]
    where: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    left: float | None = None


Listener = Callable[[Progress], None]
Refusal = Callable[[Check, Evidence], str]
"""Why evidence of a check is not to be believed; empty where it is."""


@dataclass(frozen=True)
class PoolResult:
    """Evidence by check id, and whether every check that was asked for was decided."""

    evidence: dict[str, Evidence]
    complete: bool
    interrupted: bool = False


@dataclass
class Pool:
    """Runs checks on an engine: `jobs` processes of this machine by default.

    `known` holds seconds of earlier runs; `status` effects of checks not run now. `limit`: seconds of CPU time for each
    check, instead of its own. `memory`: MiB for each check that is not on a GPU. `refused`: why evidence is not to be
    believed, empty where it is; what comes from other machines has to be asked.
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
    engine: Executor | None = None
    refused: Refusal = lambda check, evidence: ""

    def run(self, checks: Sequence[Check], save: Callable[[Evidence], object]) -> PoolResult:
        """Run all, saving each as it ends, and close the engine. What ended is kept when the run is interrupted.

        Raises GradproofError GP495 and GP496 where the engine can go on no longer.
        """
        self._done: dict[str, Evidence] = {}
        self._effects = dict(self.status)
        weight = _weights(checks, self.known)
        self._waiting = {c.id: c for c in sorted(checks, key=lambda c: (weight[c.id], c.id), reverse=True)}
        self._running: dict[str, tuple[Check, float]] = {}
        self._total, self._stop = len(checks), False
        engine = self._engine = self.engine or LocalProcesses(self.workspace, self.jobs, _worth(checks), self.worker)
        try:
            while self._running or (self._waiting and not self._stop):
                while len(self._running) < engine.slots() and self._launch():
                    continue
                self._collect(save)
        except KeyboardInterrupt:
            return PoolResult(self._done, complete=False, interrupted=True)
        finally:
            engine.close()
        return PoolResult(self._done, complete=not self._waiting)

    def _launch(self) -> bool:
        """Start, or decide without a run, the heaviest check whose stubs are decided. False when there is none.

        Where nothing runs, all that wait are ready: those that wait for each other are refused.
        """
        ready = (c for c in self._waiting.values() if not self._running or not any(map(self._undecided, c.depends)))
        check = None if self._stop else next(ready, None)
        if check is None:
            return False
        del self._waiting[check.id]
        reason = self._refusal(check)
        if reason is not None:
            self._finish(check, unanswered(check, Finding(Outcome.NOT_RUN, reason)))
            return True
        self._running[check.id] = (check, time.monotonic())
        self._engine.start(WorkItem(check, self.limit or check.time_limit, self.memory))
        self._tell("started", check)
        return True

    def _undecided(self, name: str) -> bool:
        return name in self._waiting or name in self._running

    def _refusal(self, check: Check) -> str | None:
        """Why this check is not run at all."""
        if not check.harness and check.kind is not Kind.GATE:
            return "the contract names no harness of this workspace for it"
        for name in check.depends:
            if self._effects.get(name) is not Effect.DISCHARGED:
                return f"it rests on {name}, which is not discharged"
        return (self._engine.no_gpu or None) if check.layer is Layer.CUDA else None

    def _collect(self, save: Callable[[Evidence], object]) -> None:
        if not self._running and self._engine.slots():
            return
        answer = self._engine.answer(0.25)
        while self._engine.notes:
            self._tell("worker", note=self._engine.notes.pop(0))
        if answer is None:
            self._tell("tick")
            return
        check, begun = self._running.pop(answer.name)
        evidence = received(check, answer, self.refused, time.monotonic() - begun)
        if evidence.finding.outcome is not Outcome.NOT_RUN:
            save(evidence)
        self._finish(check, evidence, answer.where)

    def _finish(self, check: Check, evidence: Evidence, where: str = "") -> None:
        self._done[check.id] = evidence
        effect = DECISION[check.expect, audit(check, evidence.finding)[0]]
        self._effects[check.id] = effect
        self._stop = self._stop or (self.fail_fast and effect is Effect.BROKEN)
        self._tell("finished", check, evidence, where)

    def _tell(
        self, event: str, check: Check | None = None, evidence: Evidence | None = None, where: str = "", note: str = ""
    ) -> None:
        clock = time.monotonic()
        running = {name: clock - begun for name, (_, begun) in self._running.items()}
        places = {**self._engine.places, **({check.id: where} if check is not None and where else {})}
        left = self._left(running)
        self.listener(Progress(event, check, evidence, len(self._done), self._total, running, places, note, left))

    def _left(self, running: Mapping[str, float]) -> float | None:
        """By the seconds of earlier runs; a check that never ran counts as the mean of the known ones."""
        known = {**self.known, **{name: evidence.seconds for name, evidence in self._done.items()}}
        if not known:
            return None
        mean = sum(known.values()) / len(known)
        rest = [known.get(name, mean) for name in self._waiting]
        rest += [max(known.get(name, mean) - spent, 0.0) for name, spent in running.items()]
        return max(sum(rest) / max(len(running), 1), *rest, 0.0)


def received(check: Check, answer: WorkResult, refused: Refusal, seconds: float = 0.0) -> Evidence:
    """What an answer is evidence of: what this check found, or that there is none to believe."""
    outcome, reason = Outcome.ERROR, answer.fault
    if not reason:
        try:
            evidence = evidence_of(answer.value)
            if evidence.claim.spec != check.digest:
                raise ValueError("it is about another check")
            reason = refused(check, evidence)
            if not reason:
                return evidence
            outcome, reason = Outcome.NOT_RUN, f"the evidence of {answer.where or 'a worker'} is refused: {reason}"
        except ValueError as e:
            reason = f"the worker returned no evidence: {e}"
    return unanswered(check, Finding(outcome, reason), seconds=seconds)


def able(checks: Sequence[Check]) -> None:
    """Raises GradproofError GP409 where a package is not installed that these checks need on this machine."""
    names = {(c.kind, name.partition(".")[0]) for c in checks for name in ("psutil", *NEEDED[c.kind])}
    spared = {(Kind.TRACE, "hypothesis")}  # imported in advance because checks of PyTorch share the process
    listed = ", ".join(c.id for c in checks[:3]) + ", ..." * (len(checks) > 3)
    need({name for _, name in names - spared}, f"to run {listed}")


def engine_for(workspace: Workspace, jobs: int, scheduler: str | None) -> Executor:
    """Processes of this machine, or the workers of a scheduler. Raises GradproofError GP495, GP497 and GP499."""
    if scheduler is None:
        return LocalProcesses(workspace, jobs, ())
    from gradproof.execution.engine_dask import DaskWorkers

    return DaskWorkers(scheduler, workspace)


def _returned(evidence: Evidence) -> tuple[Any, str]:
    """What a call returned, and an empty text; or nothing, and the fault. A value rests on two files at least."""
    finding, files = evidence.finding, evidence.claim.files
    stats = finding.stats.stated()
    if finding.outcome is not Outcome.UNKNOWN or "value" not in stats:
        return None, finding.reason
    module = evidence.check.harness.partition(":")[0]
    place = module.removeprefix(f"{PACKAGE.name}.").replace(".", "/")
    if not {f"{place}.py", f"{place}/__init__.py"} & {key.partition(":")[2] for key in files}:
        return None, f"the inputs list no file of {module}"
    if not any(key.startswith("gp:") for key in files):
        return None, "the inputs list no file of the engine"
    return stats["value"], ""


def run_calls(
    engine: Executor, calls: Iterable[WorkItem], say: Callable[[str], object] = print
) -> Iterator[WorkResult]:
    """Make calls that do not depend on each other; their values, in the order in which they end. Closes the engine.

    A value comes with evidence, which passes what evidence on disk passes: digests, seal, environment. `say` hears what
    becomes of workers. Raises GradproofError GP495 and GP496.
    """
    store, waiting = Store(engine.workspace), iter(calls)
    running: dict[str, Check] = {}
    call = next(waiting, None)
    try:
        while call is not None or running:
            while call is not None and len(running) < engine.slots():
                running[call.name] = call.check
                engine.start(call)
                call = next(waiting, None)
            answer = engine.answer(0.25)
            while engine.notes:
                say(engine.notes.pop(0))
            if answer is not None:
                evidence = received(running.pop(answer.name), answer, lambda check, e: store.fresh(check, e)[1])
                yield WorkResult(answer.name, *_returned(evidence), answer.where)
    finally:
        engine.close()


def _worth(checks: Sequence[Check]) -> set[tuple[str, ...]]:
    """Libraries that so many of these checks import that one process should import them for all."""
    count = Counter(NEEDED[c.kind] for c in checks if c.harness and c.layer is not Layer.CUDA)
    return {names for names, checks_ in count.items() if names and checks_ >= SEVERAL}


def _weights(checks: Sequence[Check], known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest chain that starts at a check: its own run, then that of what waits for it."""
    own = {c.id: known.get(c.id) or c.time_limit for c in checks}
    behind = dict.fromkeys(own, 0.0)
    for check in checks:
        for name in behind.keys() & set(check.depends):
            behind[name] = max(behind[name], own[check.id])
    return {name: seconds + behind[name] for name, seconds in own.items()}
