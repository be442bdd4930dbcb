"""The pool under fault injection: nothing that goes wrong in a worker is an answer, and nothing outlives its limit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, check, recorded, taken, worker_command, write_workspace

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Effect, Kind, Layer, Outcome
from gradproof.core.schemas.evidence import Evidence
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import record
from gradproof.execution import local
from gradproof.execution.local import TAIL, Forked, ForkServer, Worker
from gradproof.execution.pool import Pool, PoolResult, Progress

Run = Callable[..., dict[str, Any]]
FAULTS = """\
import os
import signal
import subprocess
import sys
import time

from toy_workspace import answer

STUBBORN = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); "
STUBBORN += "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def spin():
    while True:
        pass


def good(check, workspace):
    return answer(check)


def hangs(check, workspace):
    time.sleep(600)


def ignores_sigterm(check, workspace):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    spin()


def exits_clean(check, workspace):
    print("all good, trust me")
    sys.stdout.flush()
    os._exit(0)


def exits_badly(check, workspace):
    print("Traceback (most recent call last):\\nValueError: no such number\\n", file=sys.stderr, flush=True)
    os._exit(3)


def segfaults(check, workspace):
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(check, workspace):
    os.kill(os.getpid(), signal.SIGKILL)


def breeds(check, workspace):
    pid = workspace.root / "child.pid"
    subprocess.Popen([sys.executable, "-c", STUBBORN, str(pid)])
    while not pid.exists() or not pid.stat().st_size:
        time.sleep(0.02)
    return answer(check)


def breeds_and_hangs(check, workspace):
    breeds(check, workspace)
    spin()


def breeds_a_session(check, workspace):
    pid = workspace.root / "child.pid"
    subprocess.Popen([sys.executable, "-c", STUBBORN, str(pid)], start_new_session=True)
    while not pid.exists() or not pid.stat().st_size:
        time.sleep(0.02)
    return answer(check)


def breeds_a_session_and_hangs(check, workspace):
    breeds_a_session(check, workspace)
    spin()


def breeds_a_session_and_dies(check, workspace):
    breeds_a_session(check, workspace)
    os.kill(os.getpid(), signal.SIGKILL)


def floods(check, workspace):
    for _ in range(2000):
        os.write(1, b"garbage " * 1000)
    os.write(1, b"the very end")
    os._exit(1)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    workspace = write_workspace(tmp_path / "toy")
    (workspace.root / "symbolic/faults.py").write_text(FAULTS)
    return workspace


@pytest.fixture(autouse=True)
def _toy_worker(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(toy.root))


@pytest.fixture(params=["alone", "forked"])
def one(toy: Workspace, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run one harness, in a worker that starts from nothing and in one that is forked."""
    server = ForkServer(toy.root)

    def run(harness: str, limit: float = 200.0) -> dict[str, Any]:
        return run_one(toy, harness, limit, server if request.param == "forked" else None)

    yield run
    server.close()


def run_one(toy: Workspace, harness: str, limit: float = 200.0, server: ForkServer | None = None) -> dict[str, Any]:
    of = check(harness=f"symbolic.faults:{harness}")
    worker = Worker(of, toy, limit)
    worker.server = server
    data = worker.run().stated()
    assert isinstance(worker.process, Forked) == (server is not None)
    assert taken(data).check == of
    return data


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_good_worker_gives_its_own_evidence(one: Run) -> None:
    data = one("good")
    assert data["finding"]["outcome"] == "HOLDS"
    assert data["claim"]["files"]


@pytest.mark.parametrize(
    ("harness", "said"),
    [
        ("exits_clean", "all good, trust me"),
        ("exits_badly", "code 3: ValueError"),
        ("segfaults", "SIGSEGV"),
        ("is_killed", "SIGKILL (out of memory?)"),
    ],
)
def test_a_worker_that_dies_is_an_error(one: Run, harness: str, said: str) -> None:
    finding = one(harness)["finding"]
    assert finding["outcome"] == "ERROR"
    assert said in finding["reason"]


@pytest.mark.parametrize(("harness", "limit", "said"), [
    ("hangs", 1.5, "15 clock 10 1.5 CPU killed"),
    ("ignores_sigterm", 4.0, "4 CPU killed"),
    ("breeds_and_hangs", 4.0, "4 CPU killed"),
])  # fmt: skip
def test_a_worker_that_hangs_is_killed_at_its_limit(one: Run, harness: str, limit: float, said: str) -> None:
    finding = one(harness, limit)["finding"]
    assert finding["outcome"] == "TIMEOUT"
    assert re.findall(r"[\d.]+|clock|CPU|killed", finding["reason"]) == said.split()


@pytest.mark.parametrize(
    ("harness", "limit", "outcome"),
    [
        ("breeds", 300.0, "HOLDS"),
        ("breeds_and_hangs", 4.0, "TIMEOUT"),
        ("breeds_a_session", 300.0, "HOLDS"),
        ("breeds_a_session_and_hangs", 4.0, "TIMEOUT"),
        ("breeds_a_session_and_dies", 300.0, "ERROR"),
    ],
)
def test_no_child_outlives_its_worker(one: Run, toy: Workspace, harness: str, limit: float, outcome: str) -> None:
    """Not even one that ignores SIGTERM, and not after a run that ended well."""
    assert one(harness, limit)["finding"]["outcome"] == outcome
    child = int((toy.root / "child.pid").read_text())
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_the_end_of_a_flood_is_kept(one: Run) -> None:
    finding = one("floods")["finding"]
    assert finding["outcome"] == "ERROR"
    assert finding["stats"]["output"].endswith("the very end")
    assert len(finding["stats"]["output"]) <= TAIL


RESULTS = {
    "no result": "",
    "garbage": "open(job['result'], 'w').write('HOLDS')",
    "truncated": "open(job['result'], 'w').write('{\"schema\": \"gradproof-evid')",
    "another shape": "open(job['result'], 'w').write('{}')",
    "a list": "open(job['result'], 'w').write('[1]')",
}


@pytest.mark.parametrize("name", list(RESULTS))
def test_a_result_that_is_no_evidence_is_an_error(toy: Workspace, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import json, sys; job = json.loads(sys.stdin.readline()); {RESULTS[name]}"
    monkeypatch.setattr(Worker, "command", lambda self: [sys.executable, "-c", program])
    finding = run_one(toy, "good")["finding"]
    assert finding["outcome"] == "ERROR"
    assert "no evidence" in finding["reason"]


def test_evidence_of_another_check_is_an_error(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    other = check("K-9")
    (toy.root / "other.json").write_text(__import__("json").dumps(record(other, answer(other))))
    program = "import json, shutil, sys; job = json.loads(sys.stdin.readline()); "
    program += f"shutil.copy({str(toy.root / 'other.json')!r}, job['result'])"
    monkeypatch.setattr(Worker, "command", lambda self: [sys.executable, "-c", program])
    assert "another check" in run_one(toy, "good")["finding"]["reason"]


def test_a_worker_that_cannot_start_is_an_error(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "command", lambda self: ["/no/such/python"])
    finding = run_one(toy, "good")["finding"]
    assert finding["outcome"] == "ERROR"
    assert "could not be started" in finding["reason"]


class Instant(Worker):
    """Answers without a process; notes the order, and how many ran at once."""

    order: list[str] = []  # noqa: RUF012
    at_once = 0
    most = 0
    lock = threading.Lock()

    def run(self) -> Evidence:
        with Instant.lock:
            Instant.order.append(self.check.id)
            Instant.at_once += 1
            Instant.most = max(Instant.most, Instant.at_once)
        time.sleep(0.05)
        with Instant.lock:
            Instant.at_once -= 1
        return recorded(self.check, self.finding())

    def finding(self) -> Finding:
        return answer(self.check)


class Raising(Instant):
    def run(self) -> Evidence:
        raise RuntimeError("the runner itself")


class Failing(Instant):
    """The stub is WEAK, everything else holds."""

    def finding(self) -> Finding:
        if self.check.kind is Kind.STUB:
            return Finding(Outcome.WEAK, "a mutant survives")
        return answer(self.check)


@pytest.fixture(autouse=True)
def _blank() -> None:
    Instant.order, Instant.at_once, Instant.most = [], 0, 0


def outcomes(result: PoolResult) -> dict[str, str]:
    return {name: data.finding.outcome for name, data in result.evidence.items()}


def stub(id_: str = "STUB-1", **more: Any) -> Check:
    return check(id_, kind=Kind.STUB, obligations=(), **more)


def test_longest_first_by_known_seconds_then_by_limit(toy: Workspace) -> None:
    checks = [check("a", time_limit=5.0), check("b", time_limit=9.0), check("c", time_limit=60.0)]
    Pool(toy, jobs=1, known={"c": 1.0, "a": 7.0}, worker=Instant).run(checks, lambda data: None)
    assert Instant.order == ["b", "a", "c"]


def test_a_stub_goes_before_what_waits_for_it(toy: Workspace) -> None:
    checks = [check("K-1", depends=("STUB-1",)), check("short", time_limit=21.0), stub()]
    result = Pool(toy, jobs=1, worker=Instant).run(checks, lambda data: None)
    assert Instant.order.index("STUB-1") < Instant.order.index("K-1")
    assert Instant.order[0] == "STUB-1"
    assert set(outcomes(result).values()) == {"HOLDS"}


def test_no_more_workers_at_once_than_jobs(toy: Workspace) -> None:
    result = Pool(toy, jobs=3, worker=Instant).run([check(str(i)) for i in range(12)], lambda data: None)
    assert len(result.evidence) == 12
    assert Instant.most == 3


def test_a_check_whose_stub_is_not_discharged_is_not_run(toy: Workspace) -> None:
    checks = [check("K-1", depends=("STUB-1",)), stub()]
    result = Pool(toy, worker=Failing).run(checks, lambda data: None)
    assert outcomes(result) == {"STUB-1": "WEAK", "K-1": "NOT_RUN"}
    assert "STUB-1" in result.evidence["K-1"].finding.reason
    assert Instant.order == ["STUB-1"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ({"STUB-1": Effect.DISCHARGED}, "HOLDS"),
        ({"STUB-1": Effect.OPEN}, "NOT_RUN"),
        ({"STUB-1": Effect.BROKEN}, "NOT_RUN"),
        ({}, "NOT_RUN"),
    ],
)
def test_a_stub_that_was_not_run_now_counts_as_it_stands(toy: Workspace, status: Any, outcome: str) -> None:
    pool = Pool(toy, worker=Instant, status=status)
    assert outcomes(pool.run([check("K-1", depends=("STUB-1",))], lambda data: None)) == {"K-1": outcome}


def test_a_circle_of_stubs_ends(toy: Workspace) -> None:
    checks = [stub("a", depends=("b",)), stub("b", depends=("a",)), check("c")]
    result = Pool(toy, worker=Instant).run(checks, lambda data: None)
    assert outcomes(result) == {"a": "NOT_RUN", "b": "NOT_RUN", "c": "HOLDS"}


def test_a_runner_that_raises_is_an_error_and_not_a_hang(toy: Workspace) -> None:
    result = Pool(toy, worker=Raising).run([check()], lambda data: None)
    assert outcomes(result) == {"K-1": "ERROR"}
    assert "the runner itself" in result.evidence["K-1"].finding.reason


def test_a_store_that_fails_is_raised(toy: Workspace) -> None:
    def full(data: Any) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Pool(toy, worker=Instant).run([check("a"), check("b")], full)


def test_without_a_gpu_cuda_checks_are_not_run_and_not_saved(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cuda_absent", lambda: "no CUDA driver on this machine")
    saved: list[Any] = []
    checks = [check("F@cuda-fp32", layer=Layer.CUDA, kind=Kind.TORCH)]
    result = Pool(toy, worker=Instant).run(checks, saved.append)
    assert outcomes(result) == {"F@cuda-fp32": "NOT_RUN"}
    assert result.evidence["F@cuda-fp32"].finding.reason == "no CUDA driver on this machine"
    assert (saved, Instant.order) == ([], [])


class NotRun(Instant):
    """A backend that finds no device."""

    def finding(self) -> Finding:
        return Finding(Outcome.NOT_RUN, "no CUDA device here")


def test_what_a_worker_did_not_run_is_not_saved(toy: Workspace) -> None:
    """Or it would take the place of evidence from a machine that could."""
    saved: list[Any] = []
    assert outcomes(Pool(toy, worker=NotRun).run([check()], saved.append)) == {"K-1": "NOT_RUN"}
    assert saved == []


def test_a_check_without_a_harness_is_not_run(toy: Workspace) -> None:
    result = Pool(toy, worker=Instant).run([check(harness="")], lambda data: None)
    assert outcomes(result) == {"K-1": "NOT_RUN"}


def test_fail_fast_starts_nothing_more_and_is_partial(toy: Workspace) -> None:
    checks = [stub(time_limit=600.0), *(check(str(i)) for i in range(5))]
    result = Pool(toy, jobs=1, fail_fast=True, worker=Failing).run(checks, lambda data: None)
    assert outcomes(result) == {"STUB-1": "WEAK"}
    assert not result.complete


def test_progress_tells_what_runs_and_how_much_is_done(toy: Workspace) -> None:
    seen: list[Progress] = []
    Pool(toy, jobs=1, worker=Instant, listener=seen.append).run([check("a"), check("b")], lambda data: None)
    started = [p for p in seen if p.event == "started"]
    finished = [p for p in seen if p.event == "finished"]
    assert [p.check.id for p in started if p.check] == [p.check.id for p in finished if p.check]
    assert [(p.done, p.total) for p in finished] == [(1, 2), (2, 2)]
    assert all(len(p.running) == 1 for p in started)


def test_every_check_is_saved_as_it_ends(toy: Workspace) -> None:
    saved: list[Any] = []
    Pool(toy, worker=Instant).run([check("a"), check("b")], saved.append)
    assert sorted(data.check.id for data in saved) == ["a", "b"]


INTERRUPTED = """\
import sys
import time
sys.path += {here!r}
from test_runner import alive
from pathlib import Path
from gradproof.execution.local import Worker
from gradproof.execution.pool import Pool
from toy_workspace import check, worker_command
from gradproof.core.workspace import Workspace
root = Path({root!r})
Worker.command = lambda self: worker_command(root)
checks = [check("quick", harness="symbolic.faults:good", time_limit=900.0)]
checks += [check("slow", harness="symbolic.faults:breeds_and_hangs", time_limit=600.0)]
saved = []
def keep(made):
    saved.append(made)
    (root / "kept").touch()
result = Pool(Workspace(root, root / "reports"), jobs=2).run(checks, keep)
time.sleep(0.5)
child = alive(int((root / "child.pid").read_text()))
print(result.interrupted, result.complete, sorted(result.evidence), len(saved), child)
"""


def test_an_interrupt_kills_the_children_and_keeps_what_ended(toy: Workspace) -> None:
    program = INTERRUPTED.format(here=[str(p) for p in Path(__file__).parents[:2]], root=str(toy.root))
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while not all((toy.root / name).exists() for name in ("child.pid", "kept")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGINT)
    out, _ = parent.communicate(timeout=200)
    assert out.strip() == "True False ['quick'] 1 False"
    assert not alive(int((toy.root / "child.pid").read_text()))
