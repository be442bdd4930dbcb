"""Checks on the workers of a real scheduler: what is lost runs again, and who differs is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradproof import cli
from gradproof.cli import progress
from gradproof.core.check import Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.core.processes import WALL, Options
from gradproof.core.schemas.evidence import Evidence
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence.store import Store
from gradproof.execution import engine_dask, engine_remote
from gradproof.execution.engine import Executor, WorkItem, WorkResult, call_of
from gradproof.execution.engine_dask import MOST_LOST, DaskWorkers
from gradproof.execution.local import LocalProcesses, process_of, unanswered
from gradproof.execution.pool import Pool, Progress, received, run_calls
from gradproof.session import Session
from tests.clusters import Cluster, write_slow_workspace

SLOW = "time.sleep(0.2)"
MEDDLES = """\
def meddles(argument):
    from gradproof.rounding import lemma_store

    lemma_store.judge = lambda name, run: "proved"
    return "proved"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another gradproof: one comment more."""
    package = tmp_path_factory.mktemp("other") / "gradproof"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "_reference"))
    with (package / "arith/smt.py").open("a") as file:
        file.write("# not the same\n")
    return package


def said(evidence: Mapping[str, Evidence | None]) -> dict[str, Any]:
    """What evidence claims, without times and places."""
    keys = ("outcome", "reason", "clauses", "covers", "reach")
    return {name: {key: e.finding.stated()[key] for key in keys} for name, e in evidence.items() if e is not None}


def answers(engine: Executor, calls: list[WorkItem], say: Callable[[str], object] = print) -> dict[str, WorkResult]:
    """Make calls on an engine, and close it."""
    return {answer.name: answer for answer in run_calls(engine, calls, say)}


def call(name: str, function: str, argument: Any) -> WorkItem:
    return call_of(name, f"symbolic:{function}", argument, 60.0)


def test_a_worker_that_is_killed_loses_no_evidence(cluster: Cluster, tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 3, "time.sleep(0.1)")
    session = Session(Options(workspace=workspace.root, engine="dask", scheduler=cluster.address))
    local = Pool(workspace, jobs=2).run(session.checks, lambda evidence: None).evidence
    one, other = cluster.worker("one"), cluster.worker("other")
    seen: list[Progress] = []

    def listener(event: Progress) -> None:
        seen.append(event)
        if len(event.running) == 2 and event.done and one.poll() is None:
            one.send_signal(signal.SIGKILL)

    try:
        run = session.run(session.checks, listener)
    finally:
        cluster.close(one, other)
    assert one.returncode == -signal.SIGKILL
    assert [event.note for event in seen if "lost; to run elsewhere: " in event.note]
    assert run.complete
    assert run.ran == {check.id for check in session.checks}
    assert all(status.fresh for status in run.statuses.values())
    assert said({name: status.evidence for name, status in run.statuses.items()}) == said(local)
    assert len({event.where[name] for event in seen for name in event.running if name in event.where}) == 2


def test_another_gradproof_is_refused_and_the_others_go_on(cluster: Cluster, tmp_path: Path, stranger: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    differs = cluster.worker("differs", stranger)
    try:
        with pytest.raises(
            GradproofError, match=r"GP496(.|\n)*gradproof differs .* in 1 of its files, arith/smt.py first"
        ):
            answers(DaskWorkers(cluster.address, workspace), [call("a", "doubled", {"x": 3})])
        same = cluster.worker("same")
        engine = DaskWorkers(cluster.address, workspace)
        found = answers(engine, [call("a", "doubled", {"x": 3})])["a"]
    finally:
        cluster.close(*cluster.processes[1:])
    assert (found.fault, found.value["doubled"]) == ("", 6)
    assert found.where.startswith("127.0.0.1:")
    assert same.returncode == -signal.SIGKILL
    assert differs.returncode == -signal.SIGKILL


def test_a_job_that_ends_two_workers_is_a_fault(cluster: Cluster, tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    workers = [cluster.worker(f"mortal{n}") for n in range(MOST_LOST)]
    last = cluster.worker("last")
    engine = DaskWorkers(cluster.address, workspace)
    try:
        while engine.slots() < MOST_LOST + 1:
            assert engine.answer(0.2) is None
        notes = list[str]()
        jobs = [call("deadly", "ends_its_worker", None), call("good", "doubled", {"x": 1})]
        found = answers(engine, jobs, notes.append)
    finally:
        cluster.close(*workers, last)
    assert found["deadly"].fault == "2 workers failed under it; the last time its worker was lost"
    assert (found["good"].fault, found["good"].value["doubled"]) == ("", 2)
    assert sum("accepted" in note for note in notes) == MOST_LOST + 1
    assert sum("to run elsewhere: deadly" in note for note in notes) == MOST_LOST


def test_an_altered_archive_is_refused_and_an_interrupt_ends_the_jobs(cluster: Cluster, tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1, SLOW)
    worker = cluster.worker("careful")
    try:
        engine = DaskWorkers(cluster.address, workspace)
        (workspace.root / "models/__init__.py").write_text("mean = None\n")
        engine._archive = engine_remote.Archive(engine._archive.name, engine_remote.packed(workspace.root).data)
        with pytest.raises(GradproofError, match=r"GP496(.|\n)*the archive of the workspace is refused"):
            answers(engine, [call("a", "doubled", {"x": 3})])
        engine = DaskWorkers(cluster.address, workspace)
        pid = tmp_path / "pid"
        while not engine.slots():
            engine.answer(0.1)
        engine.start(call("waits", "waits", str(pid)))
        ends = time.monotonic() + 60
        while not pid.exists() or not pid.read_text():
            assert time.monotonic() < ends
            engine.answer(0.1)
        process = int(pid.read_text())
        os.kill(process, 0)
        engine.close()
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < ends
            time.sleep(0.05)
    finally:
        cluster.close(worker)


def accepted(engine: DaskWorkers, workers: int) -> None:
    """Wait until so many workers may run something."""
    ends = time.monotonic() + 60
    while engine.slots() < workers:
        assert time.monotonic() < ends
        assert engine.answer(0.1) is None


def unanswered_by(engine: DaskWorkers, seconds: float, seen: Callable[[str], object] = lambda address: None) -> None:
    """Let an engine work. `seen` is called for a worker that was accepted. Raises what the engine raises."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if engine.slots():
            seen(next(iter(engine._workers)))
        assert engine.answer(0.1) is None


def late(engine: DaskWorkers, name: str) -> WorkResult:
    """What the engine answers, where the deadline of a job passes on each worker that hangs."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        flight = engine._flights[name]
        if flight.address in stuck:
            flight.ends = 0.0
        if answer := engine.answer(0.1):
            return answer
    raise AssertionError("no answer")


stuck = set[str]()  # addresses of workers that hang


def hang(cluster: Cluster, address: str) -> None:
    """Take the lock that every job of a worker asks for; its heartbeat goes on."""
    from distributed import Client

    def take() -> None:
        from gradproof.execution import engine_remote

        engine_remote._LOCK.acquire()

    with Client(cluster.address, set_as_default=False) as client:
        client.run(take, workers=[address])
    stuck.add(address)


def test_a_worker_that_hangs_has_a_deadline(cluster: Cluster, tmp_path: Path) -> None:
    workers = [cluster.worker(f"hangs{n}") for n in range(MOST_LOST + 1)]
    engine = DaskWorkers(cluster.address, write_slow_workspace(tmp_path / "slow", 1))
    try:
        accepted(engine, len(workers))
        first, *others = engine._workers
        hang(cluster, first)
        engine.start(call("a", "doubled", {"x": 1}))
        flight = engine._flights["a"]
        assert flight.address == first
        assert 0 <= WALL * 60 + engine_dask.BESIDE + time.monotonic() - flight.ends < 5
        assert late(engine, "a").value["finding"]["stats"]["value"]["doubled"] == 2
        assert flight.tried == [first]
        assert any("there was no answer within 750 s" in note and "refused" in note for note in engine.notes)
        for address in others:
            hang(cluster, address)
        engine.start(asked := call("b", "doubled", {"x": 1}))
        lost = late(engine, "b")
        assert lost.fault == "2 workers failed under it; the last time there was no answer within 750 s"
        assert received(asked.check, lost, lambda check, evidence: "").finding.outcome is Outcome.ERROR
        engine.close()
    finally:
        cluster.close(*workers)


def test_another_process_at_the_same_address_is_asked_what_it_is(
    cluster: Cluster, tmp_path: Path, stranger: Path
) -> None:
    from distributed import Client

    workspace, workers = write_slow_workspace(tmp_path / "slow", 1), [cluster.worker("before")]
    try:
        engine = DaskWorkers(cluster.address, workspace)
        accepted(engine, 1)
        [address] = engine._workers
        cluster.close(*workers)
        workers.append(cluster.worker("after", stranger, int(address.rpartition(":")[2])))
        with Client(cluster.address, set_as_default=False) as client:
            there = engine._archive.name, engine._archive.data
            client.run(engine_remote.hold, *there, str(tmp_path), workers=[address])
        engine.start(call("a", "doubled", {"x": 1}))
        with pytest.raises(GradproofError, match=r"GP496(.|\n)*gradproof differs"):
            unanswered_by(engine, 60.0)
        assert "another process answers at its address" in engine._flights["a"].why
        engine.close()
    finally:
        cluster.close(*workers)


def test_a_worker_that_comes_and_goes_is_refused_in_the_end(cluster: Cluster, tmp_path: Path) -> None:
    worker, accepted_ = cluster.worker("restless"), list[str]()
    engine = DaskWorkers(cluster.address, write_slow_workspace(tmp_path / "slow", 1))

    def goes(address: str) -> None:
        accepted_.append(address)
        engine._gone(address)

    try:
        with pytest.raises(GradproofError, match=r"GP496(.|\n)*it was lost, or failed, 3 times without an answer"):
            unanswered_by(engine, 60.0, goes)
    finally:
        engine.close()
        cluster.close(worker)
    assert len(accepted_) == engine_dask.MOST_MEETINGS


# -- Without a scheduler.


def test_a_copy_that_a_job_wrote_into_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_remote, "KEPT", 2)
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    for name in (".git/config", "reports/evidence/K-1/a.json", "reports/report.json", "venv/pyvenv.cfg", "venv/x.py"):
        (workspace.root / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace.root / name).write_text("x")
    archive = engine_remote.packed(workspace.root)
    assert [place for place, _ in engine_remote.shipped(workspace.root)] == [
        "models/__init__.py", "proofs/mean-v1/contract.yaml", "symbolic/__init__.py",
    ]  # fmt: skip
    (tmp_path / "worker").mkdir()
    engine_remote.hold(archive.name, archive.data, str(tmp_path / "worker"))

    def run(function: str) -> dict[str, Any]:
        stated = json.dumps(call(function, function, {"x": 1}).check.to_json())
        said = json.loads(engine_remote.perform(stated, 60.0, None, archive.name, "session"))
        assert said["process"] == engine_remote.PROCESS
        return dict(said["evidence"]["finding"])

    before = run("doubled")["stats"]["value"]["root"]
    assert run("writes")["stats"] == {"value": None}
    assert (Path(before) / "symbolic/left_behind.py").exists()
    after = run("doubled")["stats"]["value"]["root"]
    assert before != after
    assert [place.name for place in (tmp_path / "worker").iterdir()] == [Path(after).name]
    assert "no such number" in run("fails")["reason"]
    assert "GP204" in run("nothing")["reason"]
    assert engine_remote.meet(archive.name)["holds"]
    engine_remote.end("session")
    for n in range(engine_remote.KEPT + 1):
        assert "value" in run("doubled")["stats"]
        (workspace.root / "models/__init__.py").write_text(f"N = {n}\n")
        other = engine_remote.packed(workspace.root)
        engine_remote.hold(other.name, other.data, str(tmp_path / "worker"))
    assert engine_remote.meet(archive.name)["holds"]
    assert len(list((tmp_path / "worker").iterdir())) == len(engine_remote._archives) == engine_remote.KEPT
    engine_remote.end("session")


def test_an_archive_that_is_not_its_name_is_refused(tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    archive = engine_remote.packed(workspace.root)
    assert engine_remote.name_of(engine_remote.unpacked(archive, tmp_path)) == archive.name
    (workspace.root / "models/__init__.py").write_text("mean = None\n")
    other = engine_remote.packed(workspace.root)
    before = sorted(tmp_path.iterdir())
    for data in (other.data, archive.data[: len(archive.data) // 2], b"", b"\x1f\x8b garbage"):
        with pytest.raises(ValueError, match="the archive of the workspace is refused"):
            engine_remote.unpacked(engine_remote.Archive(archive.name, data), tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("folder", [False, True])
def test_a_link_out_of_the_workspace_is_not_followed(folder: bool, tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    secret, link = tmp_path / "elsewhere/secret.py", workspace.root / "models/borrowed.py"
    secret.parent.mkdir()
    secret.write_text("KEY = 1")
    link.symlink_to(workspace.root / "models/__init__.py")
    assert len(dict(engine_remote.shipped(workspace.root))) == 4
    link.unlink()
    link.symlink_to(secret.parent if folder else secret)
    with pytest.raises(GradproofError, match=r"GP499(.|\n)*models/borrowed.py is a link to .*elsewhere") as refused:
        DaskWorkers("tcp://127.0.0.1:1", workspace)
    assert "KEY" not in str(refused.value)
    copy = engine_remote.unpacked(engine_remote.packed(write_slow_workspace(tmp_path / "other", 1).root), tmp_path)
    name = engine_remote.name_of(copy)
    assert engine_remote._intact(copy, name)
    (copy / "symbolic/borrowed").symlink_to(secret.parent)
    assert not engine_remote._intact(copy, name)


def test_a_workspace_that_is_too_big_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    monkeypatch.setattr(engine_remote, "MOST_BYTES", 100)
    with pytest.raises(GradproofError, match="GP497"):
        engine_remote.packed(workspace.root)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"torch": "1.0"}, "torch 1.0 there, "),
        ({"python": "3.9.1"}, "python 3.9.1 there, "),
        ({"variables": {"LD_LIBRARY_PATH": "x"}}, "LD_LIBRARY_PATH"),
        ({"sources": {"core/check.py": "0"}}, "gradproof differs"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], word: str) -> None:
    here = engine_remote.engine_here()
    assert engine_remote.differences(here, here) == []
    assert engine_remote.differences(here, {**here, "python": f"{here['python']}1"}) == []
    [found] = engine_remote.differences(here, {**here, **change})
    assert word in found


class Scripted(LocalProcesses):
    """An engine that answers what it is told."""

    said: Any = None

    def start(self, job: WorkItem) -> None:
        self.said_of = job.name

    def answer(self, seconds: float) -> WorkResult | None:
        return WorkResult(self.said_of, self.said, "", "far")


def test_evidence_from_elsewhere_is_believed_as_evidence_on_disk_is(tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 2)
    check, other = (c for c in Session(Options(workspace=workspace.root)).checks if c.id in ("K-1", "K-2"))
    genuine = Pool(workspace).run([check], lambda evidence: None).evidence[check.id].stated()
    digests = {**genuine["claim"]["files"], "ws:models/__init__.py": "0" * 64}
    forged = {
        "": genuine,
        "ws:models/__init__.py changed": {**genuine, "claim": {**genuine["claim"], "files": digests}},
        "torch 1.0 then": {**genuine, "environment": {**genuine["environment"], "z3": "1.0"}},
        "it has the wrong shape": {**genuine, "seconds": "1"},
        "its schema is": None,
        "it is about another check": Pool(workspace).run([other], lambda e: None).evidence[other.id].stated(),
    }
    forged["z3 1.0 then"] = forged.pop("torch 1.0 then")
    for why, data in forged.items():
        store, saved = Store(workspace), list[Any]()
        pool = Pool(workspace, engine=(engine := Scripted(workspace, 1, ())))
        pool.refused = lambda check, evidence, store=store: store.fresh(check, evidence)[1]
        engine.said = data
        finding = pool.run([check], saved.append).evidence[check.id].finding
        believed = str(finding.outcome) == "HOLDS"
        assert believed == (why == ""), why
        assert why in finding.reason
        assert bool(saved) == (str(finding.outcome) != "NOT_RUN")


def test_what_a_call_returns_is_believed_as_evidence_is(tmp_path: Path) -> None:
    workspace, asked = write_slow_workspace(tmp_path / "slow", 1), call("a", "doubled", {"x": 3})

    def ran(item: WorkItem) -> Any:
        return process_of(item, workspace).run().stated()

    genuine = ran(asked)
    files, stats = genuine["claim"]["files"], genuine["finding"]["stats"]
    assert {"ws:symbolic/__init__.py", "gp:execution/worker.py"} <= {*files}
    forged = {
        "ws:symbolic/__init__.py changed": {
            "claim": {**genuine["claim"], "files": {**files, "ws:symbolic/__init__.py": "0" * 64}}
        },
        "gp:execution/worker.py changed": {
            "claim": {**genuine["claim"], "files": {**files, "gp:execution/worker.py": "0" * 64}}
        },
        "the inputs list no file of the engine": {
            "claim": {**genuine["claim"], "files": {key: value for key, value in files.items() if key[:3] == "ws:"}}
        },
        "the inputs list no file of symbolic": {
            "claim": {**genuine["claim"], "files": {key: value for key, value in files.items() if key[:3] == "gp:"}}
        },
        "z3 1.0 then": {"environment": {**genuine["environment"], "z3": "1.0"}},
        "it is about another check": ran(call("a", "doubled", {"x": 4})),
        "its claim digest is not the digest of its check": {
            "check": {**genuine["check"], "params": {"argument": {"x": 4}}}
        },
        "a call decides nothing": {"finding": {**genuine["finding"], "stats": {**stats, "value": None}}},
    }
    del forged["a call decides nothing"]["finding"]["stats"]["value"]
    for why, change in forged.items():
        engine = Scripted(workspace, 1, ())
        engine.said = {**genuine, **change}
        found = answers(engine, [asked])["a"]
        assert found.value is None
        assert why in found.fault
    engine.said = genuine
    assert answers(engine, [asked])["a"].value["doubled"] == 6


def test_a_call_that_changes_the_engine_returns_nothing(tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    source = workspace.root / "symbolic/__init__.py"
    source.write_text(f"{source.read_text()}\n\n{MEDDLES}")
    found = answers(LocalProcesses(workspace, 1, ()), [call("a", "meddles", {"x": 3})])["a"]
    assert "the engine was changed while the check ran: gradproof.rounding.lemma_store.judge" in found.fault
    assert found.value is None


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 2)
    asked = ["verify", "-q", "--workspace", str(workspace.root)]
    for options in (["--engine", "dask"], ["--scheduler", "tcp://127.0.0.1:1"]):
        assert cli.dispatch([*asked, *options]) == 2
        assert "GP498" in capsys.readouterr().err
    monkeypatch.setattr(engine_dask, "CONNECT", 0.5)
    assert cli.dispatch([*asked, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1"]) == 6
    assert "GP495" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.dispatch([*asked, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    shown = capsys.readouterr().err
    assert "GP409" in shown
    assert "pip install 'distributed>=" in shown


def test_local_processes_call_functions_too(tmp_path: Path) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 1)
    found = answers(LocalProcesses(workspace, 2, ()), [call("a", "doubled", {"x": 3}), call("b", "fails", None)])
    assert (found["a"].value, found["a"].fault) == ({"doubled": 6, "root": str(workspace.root)}, "")
    assert "ValueError: no such number" in found["b"].fault
    assert found["b"].value is None


def test_a_workspace_without_a_worker_is_given_up(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_dask, "PATIENCE", 0.2)
    workspace: Workspace = write_slow_workspace(tmp_path / "slow", 1)
    with pytest.raises(GradproofError, match=r"GP496(.|\n)*0 have not answered"):
        answers(DaskWorkers(cluster.address, workspace), [call("a", "doubled", {"x": 3})])


class Vanished:
    """A future that was finished, whose result went with its worker."""

    def result(self, timeout: float) -> str:
        raise TimeoutError(timeout)

    def cancel(self, force: bool) -> None:
        self.cancelled = force


def test_a_result_that_went_with_its_worker_is_made_again(cluster: Cluster, tmp_path: Path) -> None:
    engine = DaskWorkers(cluster.address, write_slow_workspace(tmp_path / "slow", 1))
    flight, future = engine_dask._Flight(call("a", "doubled", {"x": 3}), "tcp://gone:1", Vanished()), None
    engine._flights["a"] = flight
    for n in range(1, MOST_LOST + 1):
        flight.address, flight.future = "tcp://gone:1", (future := Vanished())
        engine._events.put(("job", "a", future))
        assert engine.answer(0.1) is None
        assert (len(flight.tried), future.cancelled) == (n, True)
    answer = engine.answer(0.1)
    engine.close()
    assert answer is not None
    assert "2 workers failed under it" in answer.fault
    assert "TimeoutError" in answer.fault


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_names_the_worker(terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = write_slow_workspace(tmp_path / "slow", 2)
    check = Session(Options(workspace=workspace.root)).checks[0]
    evidence = unanswered(check, Finding(Outcome.TIMEOUT, "late"))
    events = [
        Progress("worker", None, None, 0, 1, {}, {}, "worker tcp://a:1: accepted"),
        Progress("finished", check, evidence, 1, 1, {}, {check.id: "a:1"}),
        Progress("tick", None, None, 0, 1, {check.id: 3.0}, {check.id: "a:1"}),
    ]
    shown = io.StringIO()
    with progress._bar(Console(file=shown, force_terminal=True, width=200)) as bar:
        for event in events:
            (bar if terminal else progress._plain)(event)
    said = shown.getvalue() if terminal else capsys.readouterr().err
    assert "worker tcp://a:1: accepted" in said
    assert ("K-1 3 s on a:1" if terminal else "late  on a:1") in said
