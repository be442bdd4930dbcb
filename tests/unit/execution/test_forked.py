"""Workers that are forked from a process that imported the libraries: nothing that they rest on is other than alone."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_runner import alive
from toy_workspace import check, taken, worker_command, write_workspace

from gradproof.core import processes
from gradproof.core.processes import strays
from gradproof.core.workspace import Workspace
from gradproof.evidence.store import Store
from gradproof.execution import local, worker as engine
from gradproof.execution.local import Forked, ForkServer, Worker
from gradproof.execution.pool import Pool

HARNESSES = """\
import os
import sys
import time

from toy_workspace import answer


def note(workspace, said):
    with (workspace.root / "said").open("a") as f:
        f.write(said + "\\n")


def parents(check, workspace):
    note(workspace, str(os.getppid()))
    time.sleep(0.2)
    return answer(check)


def sees(check, workspace):
    before = [name for name in ("z3", "crosshair") if name in sys.modules]
    import z3

    note(workspace, f"{before} {z3.get_version_string()} {z3.__spec__.loader.__class__.__name__} {z3.__file__}")
    return answer(check)


def sees_nothing(check, workspace):
    return answer(check)


def ends_its_parent(check, workspace):
    os.kill(os.getppid(), 9)
    time.sleep(20)


def hoards(check, workspace):
    held = bytearray(300 << 20)
    return answer(check)


def forks_away(check, workspace):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        note(workspace, str(os.getpid()))
        time.sleep(600)
        os._exit(0)
    while not (workspace.root / "said").exists():
        time.sleep(0.02)
    return answer(check)
"""
MOST = 150
Run = Callable[..., tuple[dict[str, Any], bool]]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = write_workspace(tmp_path / "toy")
    (workspace.root / "symbolic/odd.py").write_text(HARNESSES)
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(workspace.root))
    return workspace


@pytest.fixture
def servers(toy: Workspace) -> Iterator[dict[tuple[str, ...], ForkServer]]:
    """One server for each set of libraries, as in a pool."""
    made: dict[tuple[str, ...], ForkServer] = {}
    yield made
    for server in made.values():
        server.close()


@pytest.fixture
def server(toy: Workspace, servers: dict[tuple[str, ...], ForkServer]) -> ForkServer:
    return servers.setdefault((), ForkServer(toy.root))


@pytest.fixture
def run(toy: Workspace, servers: dict[tuple[str, ...], ForkServer]) -> Run:
    """Evidence of a harness, and whether its worker was forked."""

    def one(
        harness: str, preload: tuple[str, ...] = (), forked: bool = True, memory: int | None = None
    ) -> tuple[dict[str, Any], bool]:
        worker = Worker(check(harness=f"symbolic.odd:{harness}"), toy, 30.0, memory)
        worker.server = servers.setdefault(preload, ForkServer(toy.root, preload)) if forked else None
        return worker.run().stated(), isinstance(worker.process, Forked)

    return one


def said(toy: Workspace) -> list[str]:
    lines = (toy.root / "said").read_text().splitlines()
    (toy.root / "said").unlink()
    return lines


def test_three_checks_are_forked_from_one_process_that_is_not_the_runner(toy: Workspace) -> None:
    checks = [check(f"K-{i}", harness="symbolic.odd:parents") for i in range(3)]
    result = Pool(toy, jobs=3).run(checks, lambda data: None)
    parents = said(toy)
    assert [data.finding.outcome for data in result.evidence.values()] == ["HOLDS"] * 3
    assert len(parents) == 3
    assert len(set(parents)) == 1
    assert parents[0] != str(os.getpid())
    assert not alive(int(parents[0]))


def test_two_checks_start_by_themselves(toy: Workspace) -> None:
    checks = [check(f"K-{i}", harness="symbolic.odd:parents") for i in range(2)]
    Pool(toy, jobs=2).run(checks, lambda data: None)
    assert said(toy) == [str(os.getpid())] * 2


def test_a_preloaded_library_is_the_one_that_a_worker_alone_imports(toy: Workspace, run: Run) -> None:
    alone, forked = run("sees", forked=False), run("sees", ("z3", "crosshair.core_and_libs"))
    assert (alone[1], forked[1]) == (False, True)
    first, second = said(toy)
    assert (first.partition("]")[0], second.partition("]")[0]) == ("[", "['z3', 'crosshair'")
    assert first.partition("]")[2] == second.partition("]")[2]


def test_a_forked_run_rests_on_all_that_it_rests_on_alone(run: Run) -> None:
    for harness in ("sees", "sees_nothing"):
        alone, forked = (run(harness, ("z3",), forked=how)[0] for how in (False, True))
        assert forked["claim"]["files"] == alone["claim"]["files"]
        assert names(alone) <= names(forked)
        assert "z3" in names(forked)
        assert alone["environment"]["distributions"].items() <= forked["environment"]["distributions"].items()
        assert "z3-solver" in forked["environment"]["distributions"]


def names(evidence: dict[str, Any]) -> set[str]:
    """The names that a run asked for."""
    return {name for search in evidence["claim"]["imports"] for name in search["names"]}


def stale(toy: Workspace, evidence: dict[str, Any]) -> str:
    return Store(toy).fresh(check(harness="symbolic.odd:sees_nothing"), taken(evidence))[1]


def test_what_a_preloaded_library_looked_for_in_vain_makes_evidence_stale_where_it_appears(
    toy: Workspace, run: Run
) -> None:
    """Alone, the library would import it from the workspace."""
    evidence, forked = run("sees_nothing", ("numpy", "torch._dynamo"))
    assert forked
    wanted = sorted(name for name in names(evidence) - set(sys.stdlib_module_names) if "." not in name)
    missing = [name for name in wanted if name not in sys.modules and importlib.util.find_spec(name) is None]
    assert missing
    for name in ("torch", missing[0]):
        (toy.root / f"{name}.py").write_text("")
        assert stale(toy, evidence) != ""
        (toy.root / f"{name}.py").unlink()
    assert stale(toy, evidence) == ""


def test_a_workspace_with_a_module_of_a_library_starts_its_workers_from_nothing(toy: Workspace, run: Run) -> None:
    """Alone, the library would have imported the workspace's module; nothing else may be judged than that."""
    (toy.root / "z3.py").write_text("raise ImportError('the workspace has a solver of its own')\n")
    alone, forked = run("sees", ("z3",), forked=False)[0], run("sees", ("z3",))[0]
    assert "a solver of its own" in alone["finding"]["reason"]
    assert forked["finding"]["reason"] == alone["finding"]["reason"]
    assert "z3-solver" not in forked["environment"]["distributions"]


def test_a_library_on_pythonpath_is_not_run_in_the_process_that_all_share(
    toy: Workspace, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    mark = tmp_path / "ran"
    (tmp_path / "own/z3.py").write_text(f"open({str(mark)!r}, 'w').write('x')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "own"), os.environ.get("PYTHONPATH", "")]))
    evidence, forked = run("sees_nothing", ("z3",))
    assert (evidence["finding"]["outcome"], forked) == ("HOLDS", True)
    assert not mark.exists()


def test_a_check_that_ends_the_server_is_an_error_and_the_others_run(run: Run) -> None:
    lost, _ = run("ends_its_parent")
    assert lost["finding"]["outcome"] == "ERROR"
    assert "forked" in lost["finding"]["reason"]
    after, forked = run("sees_nothing")
    assert (after["finding"]["outcome"], forked) == ("HOLDS", False)


def test_a_process_that_forks_away_from_its_worker_is_found_and_ended(toy: Workspace, run: Run) -> None:
    """It has no environment of its own by which it could be known: it becomes a child of the server."""
    evidence, forked = run("forks_away")
    assert (evidence["finding"]["outcome"], forked) == ("HOLDS", True)
    child = int(said(toy)[0])
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


@pytest.mark.parametrize("text", ["import nothing_of_this_name\n", "raise SystemExit\n", "import os; os._exit(0)\n"])
def test_a_server_that_cannot_start_costs_no_answer(toy: Workspace, run: Run, text: str) -> None:
    script = toy.root / "toy_worker.py"
    script.write_text(f"import sys\nif '--serve' in sys.argv:\n    {text}" + script.read_text())
    evidence, forked = run("sees_nothing")
    assert (evidence["finding"]["outcome"], forked) == ("HOLDS", False)


def test_an_engine_that_was_edited_after_the_server_started_is_an_error(toy: Workspace, server: ForkServer) -> None:
    """The worker runs what the server imported, and its claim names what the file says now."""
    worker = Worker(check(harness="symbolic.odd:sees_nothing"), toy, 30.0)
    worker.server = server
    assert worker.run().finding.outcome == "HOLDS"
    server.since = Path(engine.__file__).stat().st_mtime - 1.0
    again = Worker(check(harness="symbolic.odd:sees_nothing"), toy, 30.0)
    again.server = server
    finding = again.run().stated()["finding"]
    assert finding["outcome"] == "ERROR"
    assert "ran: gp:" in finding["reason"]


def test_a_limit_on_memory_counts_what_the_check_takes_and_not_what_was_preloaded(run: Run) -> None:
    libraries = ("numpy", "torch._dynamo")
    assert run("sees_nothing", libraries, memory=MOST)[0]["finding"]["outcome"] == "HOLDS"
    assert run("hoards", libraries)[0]["finding"]["outcome"] == "HOLDS"
    finding = run("hoards", libraries, memory=MOST)[0]["finding"]
    assert finding["outcome"] == "ERROR"
    assert f"out of memory ({MOST} MiB" in finding["reason"]


def test_closing_leaves_no_process_and_starts_none(toy: Workspace, server: ForkServer, run: Run) -> None:
    run("sees_nothing")
    process, scratch = server._process, server._scratch
    assert process is not None
    assert scratch is not None
    server.close()
    assert process.returncode == -signal.SIGKILL
    assert not Path(scratch.name).exists()
    assert not strays(scratch.name)
    assert server.start([sys.executable], {"TMPDIR": "/x"}) is None


def test_a_folder_that_no_worker_has_marks_nobody(tmp_path: Path) -> None:
    """Else a worker without a scratch folder would end everything that shares its TMPDIR."""
    ours = tmp_path / f"{processes.PREFIX}1"
    for scratch, found in ((tmp_path, False), (ours, True)):
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": str(scratch)})
        try:
            while f"TMPDIR={scratch}".encode() not in Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0"):
                time.sleep(0.01)
            assert strays(str(scratch)) == ([child.pid] if found else [])
        finally:
            child.kill()
            child.wait()


def test_what_is_started_while_others_are_killed_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    rounds = iter([[1, 2], [3], []])
    monkeypatch.setattr(processes, "strays", lambda scratch: next(rounds))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    processes.end_strays("/x")
    assert killed == [(pid, signal.SIGKILL) for pid in (1, 2, 3)]
    assert next(rounds, None) is None


def serving(toy: Workspace, text: str) -> None:
    """Run this in the server before it serves, and in no worker that starts from nothing."""
    script = toy.root / "toy_worker.py"
    script.write_text("import sys\nif '--serve' in sys.argv:\n" + textwrap.indent(text, "    ") + script.read_text())


def test_a_server_that_never_answers_is_given_up(
    toy: Workspace, server: ForkServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(toy, "import time\ntime.sleep(600)\n")
    monkeypatch.setattr(local, "STARTS_WITHIN", 0.2)
    evidence, was_forked = run("sees_nothing")
    assert (evidence["finding"]["outcome"], was_forked) == ("HOLDS", False)
    monkeypatch.setattr(local.select, "select", lambda *asked: pytest.fail("it was asked again"))
    assert server.start([sys.executable], {"TMPDIR": "/x"}) is None


NO_PIDFD = """\
import os
def refused(pid, flags=0):
    raise OSError(38, 'Function not implemented')
os.pidfd_open = refused
"""
NO_PRCTL = """\
import ctypes
class Refusing:
    def __init__(self, *more, **how):
        self.prctl = lambda *asked: -1
ctypes.CDLL = Refusing
"""
NO_PROC = """\
import builtins, io, pathlib
plain_open = io.open
def refused(file, *more, **how):
    if str(file).startswith('/proc'):
        raise FileNotFoundError(2, 'No such file or directory', str(file))
    return plain_open(file, *more, **how)
io.open = builtins.open = refused
"""


@pytest.mark.parametrize(("text", "is_forked"), [(NO_PIDFD, False), (NO_PRCTL, False), (NO_PROC, True)])
def test_a_system_that_refuses_what_a_fork_needs_costs_no_answer(
    toy: Workspace, run: Run, text: str, is_forked: bool
) -> None:
    serving(toy, text)
    for _ in range(2):
        evidence, was_forked = run("sees_nothing")
        assert (evidence["finding"]["outcome"], was_forked) == ("HOLDS", is_forked)


def test_without_proc_no_process_is_found_and_no_memory_counted(
    toy: Workspace, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "Path", lambda place: Path(str(place).replace("/proc", str(tmp_path / "none"))))
    assert (strays(f"/x/{processes.PREFIX}y"), processes.data_held()) == ([], 0)
    assert run("sees_nothing")[0]["finding"]["outcome"] == "HOLDS"


def test_what_a_server_left_in_a_session_of_its_own_ends_with_it(toy: Workspace, server: ForkServer, run: Run) -> None:
    left = "import subprocess\nleft = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    serving(toy, left + "open('said', 'w').write(f'{left.pid}\\n')\n")
    assert run("sees_nothing")[1]
    child = int(said(toy)[0])
    server.close()
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)
