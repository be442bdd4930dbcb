"""The engine that is a cluster of dask.distributed: one task a job, on a worker that has shown what it is.

dask carries tasks and results, and knows which workers live. Which worker runs which job is decided here, one job a
thread of a worker, so that it is known where each job runs. A job is lost with its worker, or at its deadline: it runs
again on another one, until it was lost MOST_LOST times. A worker is asked for its environment first, and gets the
workspace once; what it says counts for that process, not for its address. `tls://` addresses take certificates from
dask's own configuration.
"""

from __future__ import annotations

import json
import operator
import pkgutil
import queue
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.processes import WALL
from gradproof.core.workspace import Workspace
from gradproof.execution import engine_remote as remote
from gradproof.execution.engine import WorkItem, WorkResult
from gradproof.execution.local import DIES_WITHIN, STARTS_WITHIN

MOST_LOST = 2
MOST_MEETINGS = 3  # of one address without an answer; after them a worker there is refused
BESIDE = STARTS_WITHIN + DIES_WITHIN  # seconds that a job may take beside WALL times its limit
LOOK = 0.5  # seconds between two looks at which workers there are
PATIENCE = 60.0  # seconds without any worker, before a run gives up
REFUSED = 3.0  # seconds in which every worker there is was refused
CONNECT = 10.0  # seconds
SHOWN = 3
GONE = (OSError, RuntimeError, ValueError, CancelledError)
"""What dask raises where a worker or the scheduler is there no longer."""


def hold(name: str, data: bytes) -> str:
    """In a worker: keep a workspace, in a folder that dask removes. Raises ValueError for an archive that is not it."""
    from distributed import get_worker

    return remote.hold(name, data, get_worker().local_directory)


@dataclass
class _Remote:
    """A worker: how many threads it has, whether it may run jobs (None until it has answered), and what it runs.

    `asked`: the question that it has to answer. `process`: which process it said that it is.
    """

    threads: int
    accepted: bool | None = None
    asked: Any = None
    process: str = ""
    jobs: set[str] = field(default_factory=set)

    @property
    def free(self) -> bool:
        return bool(self.accepted) and len(self.jobs) < self.threads


@dataclass
class _Flight:
    """A job, the worker that it was given to, until when, those that it was lost on, and why the last time."""

    job: WorkItem
    address: str = ""
    future: Any = None
    ends: float = 0.0
    tried: list[str] = field(default_factory=list)
    why: str = ""


class DaskWorkers:
    """The workers of a scheduler.

    A worker's GPU is not asked for: evidence of a GPU is made where it is, and committed.
    Raises GradproofError: GP495 without a scheduler, GP497 and GP499 for a workspace that cannot be sent.
    """

    no_gpu = "checks of a GPU are not sent to workers: gradproof run --device cuda runs them on its machine"

    def __init__(self, scheduler: str, workspace: Workspace) -> None:
        from distributed import Client

        self.workspace = workspace
        self._here, self._archive = remote.engine_here(), remote.packed(workspace.root)
        self._session = uuid.uuid4().hex
        self._workers: dict[str, _Remote] = {}
        self._refused: dict[str, str] = {}
        self._meetings: Counter[str] = Counter()
        self._flights: dict[str, _Flight] = {}
        self._again: list[_Flight] = []
        self._events: queue.Queue[tuple[str, str, Any]] = queue.Queue()  # of a meeting, a holding or a job; whose
        self.notes: list[str] = []
        self.places: dict[str, str] = {}
        self._looked, self._alone_since = 0.0, time.monotonic()
        self._address = scheduler
        try:
            self._client: Any = Client(scheduler, timeout=CONNECT, set_as_default=False, name="gradproof")
        except (OSError, ValueError, TypeError) as e:
            raise self._no_scheduler(e) from e

    def _no_scheduler(self, error: Exception) -> GradproofError:
        found = f"no dask scheduler answers at {self._address}: {str(error) or type(error).__name__}"
        help = "start one with `dask scheduler`; evidence that came back before is kept"
        return GradproofError("GP495", found, "a scheduler that can be reached, such as tcp://host:8786", help)

    # -- The seam.

    def slots(self) -> int:
        """One job for each thread of the workers that were accepted."""
        self._look()
        return sum(worker.threads for worker in self._workers.values() if worker.accepted)

    def start(self, job: WorkItem) -> None:
        """Give a job to a worker."""
        self._flights[job.name] = flight = _Flight(job)
        self._send(flight)

    def answer(self, seconds: float) -> WorkResult | None:
        """The next answer. Raises GradproofError GP495 and GP496."""
        self._look()
        try:
            what, name, future = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if what != "job":
            if (worker := self._workers.get(name)) is not None and worker.asked is future:
                self._met(what, name, worker)
            return None
        flight = self._flights.get(name)
        return self._ended(flight) if flight is not None and flight.future is future else None

    def close(self) -> None:
        """Kill what still runs, there too, and leave the scheduler. Waits a few seconds at most."""
        for future in [flight.future for flight in self._flights.values() if flight.future is not None]:
            with suppress(*GONE):
                future.cancel(force=True)
        thread = threading.Thread(target=self._leave, daemon=True)
        thread.start()
        thread.join(5.0)

    def _leave(self) -> None:
        with suppress(*GONE):
            accepted = [address for address, worker in self._workers.items() if worker.accepted]
            if accepted:
                self._client.run(remote.end, self._session, workers=accepted, on_error="ignore")
        with suppress(*GONE):
            self._client.close(timeout=2)

    # -- Workers that come, answer, and go.

    def _look(self) -> None:
        """See which workers there are. Raises GradproofError: GP495 without a scheduler, GP496 without a worker."""
        if time.monotonic() - self._looked < LOOK:
            return
        try:
            now: dict[str, int] = self._client.nthreads()
        except Exception as e:
            raise self._no_scheduler(e) from e
        self._looked = time.monotonic()
        for address in [a for a in self._workers if a not in now]:
            self._gone(address)
        for address in [a for a in now if a not in self._workers]:
            self._workers[address] = _Remote(now[address])
            self._meet(address)
        for flight in [f for f in self._flights.values() if f.future is not None and self._looked > f.ends]:
            why = f"there was no answer within {self._allowed(flight.job):.0f} s"
            if flight.address in self._workers:
                self._refuse(flight.address, f"{flight.job.name}: {why}")
            self._lost(flight, why)
        while self._again and any(worker.free for worker in self._workers.values()):
            self._send(self._again.pop(0))
        self._patient()

    def _patient(self) -> None:
        """Raises GradproofError GP496 when nobody ran or could run a job for PATIENCE seconds; REFUSED if none may."""
        states = {worker.accepted for worker in self._workers.values()}
        if True in states or any(flight.future is not None for flight in self._flights.values()):
            self._alone_since = time.monotonic()
        if time.monotonic() - self._alone_since > (REFUSED if states == {False} else PATIENCE):
            silent = f"{sum(worker.accepted is None for worker in self._workers.values())} have not answered"
            found = "; ".join([*(f"{a}: {why}" for a, why in self._refused.items()), silent])
            help = (
                "install the same versions there, start workers that hang again; evidence that came back before is kept"
            )
            expected = f"a worker at {self._address} with this gradproof and these versions"
            raise GradproofError("GP496", f"no worker can run anything: {found}", expected, help)

    def _ask(self, what: str, name: str, address: str, function: str, *arguments: Any) -> Any:
        """A task on one worker, whose end is an event. The future.

        The worker finds the function by its name, so that the scheduler, which reads every task, needs no gradproof.
        """
        there = {"workers": [address], "allow_other_workers": False, "pure": False}
        found = self._client.submit(pkgutil.resolve_name, f"gradproof.execution.{function}", **there)
        future = self._client.submit(operator.call, found, *arguments, **there)
        future.add_done_callback(lambda done: self._events.put((what, name, done)))
        return future

    def _meet(self, address: str) -> None:
        """Ask a worker what it is, which gets no job until it has answered."""
        self._workers[address].accepted = None
        self._meetings[address] += 1
        if self._meetings[address] > MOST_MEETINGS:
            self._refuse(address, f"it was lost, or failed, {MOST_MEETINGS} times without an answer")
        else:
            asked = self._ask("meet", address, address, "engine_remote:meet", self._archive.name)
            self._workers[address].asked = asked

    def _met(self, what: str, address: str, worker: _Remote) -> None:
        """A worker has said what it is, or that it holds the workspace."""
        future = worker.asked
        if future.status != "finished":
            error = future.exception() if future.status == "error" else future.status
            said = "it could not keep the workspace" if what == "hold" else "its gradproof cannot be asked"
            self._refuse(address, f"{said}: {type(error).__name__}: {error}")
            return
        try:
            there = future.result(timeout=CONNECT)
            if what == "meet" and (found := remote.differences(self._here, there)):
                self._refuse(address, "; ".join(found[:SHOWN]))
                return
            if what == "meet":
                worker.process = there["process"]
            if what == "meet" and not there["holds"]:
                [data] = self._client.scatter([self._archive.data], workers=[address], hash=False)
                worker.asked = self._ask("hold", address, address, "engine_dask:hold", self._archive.name, data)
            elif what == "hold" and there != worker.process:
                self._meet(address)
            else:
                worker.accepted = True
                self.notes.append(f"worker {address}: accepted, {worker.threads} at a time")
        except GONE:
            self._gone(address)  # it is asked again where it is still there

    def _refuse(self, address: str, why: str) -> None:
        self._workers[address].accepted = False
        self._refused[address] = why
        self.notes.append(f"worker {address}: refused: {why}")

    def _gone(self, address: str) -> None:
        """A worker is lost, and what it ran has to run elsewhere."""
        jobs = self._workers.pop(address).jobs
        again = f"; to run elsewhere: {', '.join(sorted(jobs))}" if jobs else ""
        self.notes.append(f"worker {address}: lost{again}")
        self._refused.pop(address, None)
        for name in jobs:
            self._lost(self._flights[name], "its worker was lost")

    # -- Jobs.

    def _send(self, flight: _Flight) -> None:
        """Give a job to the worker with the most free threads, of those that it did not fail on if there is one."""
        free = [address for address, worker in self._workers.items() if worker.free]
        if not free:
            self._again.append(flight)
            return
        address = max(
            free, key=lambda a: (a not in flight.tried, self._workers[a].threads - len(self._workers[a].jobs))
        )
        self._workers[address].jobs.add(flight.job.name)
        flight.address, flight.ends = address, time.monotonic() + self._allowed(flight.job)
        self.places[flight.job.name] = address.partition("://")[2]
        job = flight.job
        asked = (json.dumps(job.check.to_json()), job.seconds, job.memory, self._archive.name, self._session)
        flight.future = self._ask("job", job.name, address, "engine_remote:perform", *asked)

    @staticmethod
    def _allowed(job: WorkItem) -> float:
        """Seconds on the clock after which a worker that has not answered hangs: it ends the job itself before."""
        return WALL * job.seconds + BESIDE

    def _lost(self, flight: _Flight, why: str) -> None:
        """A job has to run again elsewhere, or has been tried often enough."""
        future, name = flight.future, flight.job.name
        if (worker := self._workers.get(flight.address)) is not None:
            worker.jobs.discard(name)
        flight.tried.append(flight.address)
        flight.future, flight.address, flight.why = None, "", why
        self.places.pop(name, None)
        with suppress(*GONE):
            future.cancel(force=True)
        if len(flight.tried) < MOST_LOST:
            self._again.append(flight)
        else:
            self._events.put(("job", name, None))

    def _ended(self, flight: _Flight) -> WorkResult | None:
        """The answer of a job that is over; None for one that has to run again."""
        future, name, place = flight.future, flight.job.name, self.places.get(flight.job.name, "")
        if future is None:
            del self._flights[name]
            return WorkResult(name, None, f"{len(flight.tried)} workers failed under it; the last time {flight.why}")
        worker = self._workers.get(flight.address)
        try:
            said = json.loads(future.result(timeout=CONNECT))
            if worker is None or said["process"] != worker.process:
                raise RuntimeError("another process answers at its address")
        except Exception as e:  # of the worker, not of the check, whose process it could not run, or not report
            self._lost(flight, f"worker {place}: {type(e).__name__}: {e}")
            if worker is not None and worker.accepted:
                self._meet(flight.tried[-1])
            return None
        worker.jobs.discard(name)
        del self._flights[name], self._meetings[flight.address]
        self.places.pop(name, None)
        return WorkResult(name, said["evidence"], "", place)
