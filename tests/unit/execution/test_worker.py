"""One check in one process: what its claim rests on, and what becomes of a harness that misbehaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import check, fresh, taken, worker_command, write_workspace

from gradproof.core.check import Check
from gradproof.core.outcome import Outcome
from gradproof.core.workspace import PACKAGE, Workspace
from gradproof.evidence import environment
from gradproof.evidence.inputs import edited, key_of

HARNESSES = """\
import os
import sys
import threading
import time
from pathlib import Path

from toy_workspace import answer

from gradproof.core.check import Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome


def good(check, workspace):
    return answer(check)


def reads(check, workspace):
    return answer(check, stats={"files_read": ["data.txt"]})


def reads_nothing(check, workspace):
    return answer(check, stats={"files_read": ["no_such_file.txt"]})


def raises(check, workspace):
    raise ValueError("the harness is wrong")


def user_error(check, workspace):
    raise GradproofError("GP301", "this", "that", "correct it")


def exits(check, workspace):
    sys.exit(0)


def returns_true(check, workspace):
    return True


def returns_nan(check, workspace):
    return answer(check, measurements=[{"column": "accumulation", "measured": float("nan")}])


def prints(check, workspace):
    print("x" * 200_000)
    return answer(check)


def hoards(check, workspace):
    raise MemoryError


def edits_itself(check, workspace):
    Path(__file__).write_text(Path(__file__).read_text() + "# edited\\n")
    return answer(check)


def is_shadowed_at_once(check, workspace):
    sys.path.append(str(workspace.root / "late"))
    import late_module
    (workspace.root / "late_module.py").write_text("")
    return answer(check)


def sleeps(check, workspace):
    Path(workspace.root / "pid").write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    workspace = write_workspace(tmp_path / "toy")
    (workspace.root / "symbolic/odd.py").write_text(HARNESSES)
    (workspace.root / "data.txt").write_text("1 2 3")
    return workspace


def job(toy: Workspace, of: Check, **more: Any) -> bytes:
    data = {
        "check": of.to_json(),
        "root": str(toy.root),
        "reports": str(toy.reports),
        "package": str(PACKAGE),
        "result": str(toy.root / "result.json"),
        **more,
    }
    return json.dumps(data).encode() + b"\n"


def perform(toy: Workspace, harness: str, **more: Any) -> dict[str, Any]:
    """Evidence that a worker process writes for a harness of symbolic/odd.py."""
    of = check(harness=f"symbolic.odd:{harness}")
    done = subprocess.run(worker_command(toy.root), input=job(toy, of, **more), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads((toy.root / "result.json").read_text())
    assert taken(data).check == of
    return data


def test_the_claim_lists_the_files_that_the_run_rests_on(toy: Workspace) -> None:
    data = perform(toy, "good")
    claim = data["claim"]
    assert data["finding"]["outcome"] == "HOLDS"
    assert {"ws:symbolic/odd.py", "ws:symbolic/__init__.py", "gp:core/check.py", "gp:execution/worker.py"} <= set(
        claim["files"]
    )
    assert "ws:models/a.py" not in claim["files"]
    assert not {
        key for key in claim["files"] if key.startswith(("gp:cli", "gp:report", "gp:verdict", "gp:evidence/store"))
    }
    assert [s["names"]["symbolic.odd"] for s in claim["imports"] if "symbolic.odd" in s["names"]] == [
        "ws:symbolic/odd.py"
    ]
    assert {"python", "gradproof", "z3", "torch"} <= set(data["environment"])
    assert fresh(check(harness="symbolic.odd:good"), taken(data), toy) == (True, "")


def test_a_file_that_a_harness_declares_having_read_is_part_of_the_claim(toy: Workspace) -> None:
    data = perform(toy, "reads")
    assert "ws:data.txt" in data["claim"]["files"]
    (toy.root / "data.txt").write_text("1 2 4")
    assert fresh(check(harness="symbolic.odd:reads"), taken(data), toy) == (False, "ws:data.txt changed")


@pytest.mark.parametrize(
    ("harness", "said"),
    [
        ("raises", "ValueError: "),
        ("user_error", "GP301: this"),
        ("exits", "SystemExit"),
        ("returns_true", "returned a bool"),
        ("returns_nan", "finding.measurements[0].measured is nan"),
        ("reads_nothing", "no_such_file.txt"),
        ("hoards", "out of memory"),
        ("nothing_of_this_name", "GP204"),
        ("edits_itself", "edited "),
    ],
)
def test_a_misbehaving_harness_is_an_error_that_says_so(toy: Workspace, harness: str, said: str) -> None:
    finding = perform(toy, harness)["finding"]
    assert finding["outcome"] == "ERROR"
    assert said in finding["reason"]


def test_the_traceback_is_kept(toy: Workspace) -> None:
    finding = perform(toy, "raises")["finding"]
    assert "symbolic/odd.py" in finding["stats"]["traceback"]


def test_an_outcome_of_a_chatty_harness_is_whole(toy: Workspace) -> None:
    assert perform(toy, "prints")["finding"]["outcome"] == "HOLDS"


def test_another_gradproof_on_the_path_is_an_error(toy: Workspace) -> None:
    finding = perform(toy, "good", package="/somewhere/else")["finding"]
    assert finding["outcome"] == "ERROR"
    assert "another gradproof" in finding["reason"]


def test_a_worker_dies_with_its_parent(toy: Workspace) -> None:
    """The end of stdin is the end of the parent."""
    of = check(harness="symbolic.odd:sleeps")
    worker = subprocess.Popen(worker_command(toy.root), stdin=subprocess.PIPE, start_new_session=True)
    assert worker.stdin is not None
    worker.stdin.write(job(toy, of, lifeline=True))
    worker.stdin.flush()
    deadline = time.monotonic() + 200
    while not (toy.root / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker.poll() is None
    worker.stdin.close()
    assert worker.wait(100) == -signal.SIGKILL


def test_a_package_that_the_check_names_counts_even_where_it_is_installed(
    toy: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib/site-packages"
    (site / "trainer").mkdir(parents=True)
    (site / "trainer/__init__.py").write_text("VALUE = 1\n")
    (toy.root / "symbolic/odd.py").write_text(HARNESSES + "\nimport trainer\n")
    of = check(harness="symbolic.odd:good", subject="trainer:VALUE")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    subprocess.run(worker_command(toy.root), input=job(toy, of), check=True, timeout=600)
    data = json.loads((toy.root / "result.json").read_text())
    assert f"ext:{site}/trainer/__init__.py" in data["claim"]["files"]
    assert fresh(of, taken(data), toy)[0]
    (site / "trainer/__init__.py").write_text("VALUE = 2\n")
    assert not fresh(of, taken(data), toy)[0]


def test_a_module_that_is_put_before_an_imported_one_while_the_check_runs_is_an_error(toy: Workspace) -> None:
    """The run imported the other one."""
    (toy.root / "late").mkdir()
    (toy.root / "late/late_module.py").write_text("")
    finding = perform(toy, "is_shadowed_at_once")["finding"]
    assert finding["outcome"] == "ERROR"
    assert finding["reason"] == "edited while the check ran: ws:late_module.py"


def test_keys_name_files_by_where_they_belong(tmp_path: Path) -> None:
    assert key_of(tmp_path / "models/a.py", tmp_path) == "ws:models/a.py"
    assert key_of(PACKAGE / "core/check.py", tmp_path) == "gp:core/check.py"
    assert key_of(PACKAGE / "core/check.py", PACKAGE.parent.parent) == "gp:core/check.py"
    assert key_of(PACKAGE / "_reference/models/a.py", PACKAGE / "_reference") == "ws:models/a.py"
    assert key_of(tmp_path / ".venv/lib/python3/site-packages/torch/__init__.py", tmp_path) is None
    assert key_of(Path(json.__file__).resolve(), tmp_path) is None
    assert key_of(Path("/opt/stranger/loop.py"), tmp_path) == "ext:/opt/stranger/loop.py"


def test_a_file_written_after_the_start_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    files = {"ws:a.py": "0" * 64, "gp:core/check.py": "0" * 64, "ws:looked_for_in_vain": ""}
    assert edited(files, tmp_path, time.time() + 5) == []
    assert edited(files, tmp_path, (tmp_path / "a.py").stat().st_mtime - 1) == ["ws:a.py"]
    (tmp_path / "a.py").unlink()
    assert edited(files, tmp_path, time.time() + 5) == ["ws:a.py"]


def test_every_worker_starts_without_a_solver_or_torch() -> None:
    program = "import sys, gradproof.execution.worker; print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "'torch'" not in out
    assert "'z3'" not in out
    assert Outcome.ERROR in Outcome


def no_driver(name: str) -> None:
    raise OSError(name)


@pytest.mark.parametrize(
    ("torch", "visible", "said"),
    [
        (None, None, "torch is not installed"),
        ("2.13.0+cpu", None, "built without CUDA"),
        ("2.13.0+cu130", "", "hides every device"),
        ("2.13.0+cu130", None, "no CUDA driver"),
        ("2.13.0+rocm6.4", None, None),
    ],
)
def test_the_reason_why_there_is_no_gpu(
    torch: str | None, visible: str | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "version_of", lambda name: torch)
    monkeypatch.setattr(environment.ctypes, "CDLL", no_driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = environment.cuda_absent.__wrapped__()
    assert found == said if said is None else said in str(found)


@pytest.mark.parametrize("devices", [0, 1])
def test_a_driver_is_asked_for_its_devices(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            self.name = name

        def cuInit(self, flags: int) -> int:
            return 0

        def cuDeviceGetCount(self, count: Any) -> int:
            count._obj.value = devices
            return 0

    monkeypatch.setattr(environment, "version_of", lambda name: "2.13.0+cu130")
    monkeypatch.setattr(environment.ctypes, "CDLL", Driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = environment.cuda_absent.__wrapped__()
    assert found is None if devices else "no device" in found
