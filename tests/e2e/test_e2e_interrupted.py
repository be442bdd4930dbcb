"""A run that is killed or interrupted reads as incomplete, keeps the evidence that it had, and leaves no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import (
    alive,
    command,
    corpus_workspace,
    environ,
    evidence_files,
    evidence_of,
    gradproof,
    read,
    rows,
    wait_for,
)

pytestmark = pytest.mark.slow

IMPORTS = "import os\nimport time\nfrom pathlib import Path\nfrom typing import Any\n"
FOREVER = '''

def forever(k: Any, mean: Any) -> None:
    """Says who it is, and never ends."""
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)
'''


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """K-1 ends at once, K-2 never."""
    root = corpus_workspace("timeout_loop", tmp_path / "ws")
    harness = root / "symbolic" / "__init__.py"
    text = harness.read_text(encoding="utf-8").partition("\n\ndef forever(")[0]
    text = text.replace(
        "from typing import Any\n", "import os\nimport time\nfrom pathlib import Path\nfrom typing import Any\n"
    )
    harness.write_text(text + FOREVER, encoding="utf-8")
    return root


@pytest.fixture
def started(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    """`gradproof verify`, at the moment when K-1 is on disk and K-2 runs."""
    process = subprocess.Popen(
        command("verify", "--jobs", "2", "--time-limit", "600"),
        cwd=workspace, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = workspace / "symbolic" / "pid"
    try:
        wait_for(lambda: pid.exists() and pid.read_text() != "" and any(workspace.glob("reports/evidence/K-1/*.json")))
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def worker_of(workspace: Path) -> int:
    """The process that runs K-2."""
    return int((workspace / "symbolic" / "pid").read_text())


def test_a_killed_run_never_reads_as_complete(workspace: Path, started: subprocess.Popen[str]) -> None:
    worker = worker_of(workspace)
    assert alive(worker)
    os.kill(started.pid, signal.SIGKILL)
    started.wait(100)
    wait_for(lambda: not alive(worker), 100)

    report = read(workspace / "reports" / "report.json")
    assert report["run_state"] in ("running", "partial")
    assert report["verdict"]["met"] is False
    assert report["verdict"]["code"] != 0
    assert not (workspace / "reports" / "report.html").exists()
    gate = gradproof(workspace, "gate", "--json")
    assert gate.returncode == 4
    assert any(r.startswith("K-2 is NOT_RUN") for r in json.loads(gate.stdout)["verdict"]["reasons"])


def test_a_killed_run_keeps_what_it_had(workspace: Path, started: subprocess.Popen[str]) -> None:
    held = evidence_of(workspace, "K-1")
    os.kill(started.pid, signal.SIGKILL)
    started.wait(100)
    done = gradproof(workspace, "prove", "-k", "K-1", "--json")
    assert done.returncode == 0, done.stderr
    assert rows(done)["K-1"]["cached"] is True
    assert evidence_of(workspace, "K-1") == held


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so(workspace: Path, started: subprocess.Popen[str], number: signal.Signals) -> None:
    worker = worker_of(workspace)
    os.kill(started.pid, number)
    started.communicate(timeout=200)
    assert started.returncode == 130
    wait_for(lambda: not alive(worker), 100)
    assert "K-1" in {path.parent.name for path in evidence_files(workspace)}
    assert "K-2" not in {path.parent.name for path in evidence_files(workspace)}
    report = read(workspace / "reports" / "report.json")
    assert report["run_state"] in ("running", "partial")
    assert report["verdict"]["met"] is False
    assert gradproof(workspace, "gate").returncode == 4


def test_an_interrupted_run_is_taken_up_again(workspace: Path, started: subprocess.Popen[str]) -> None:
    os.kill(started.pid, signal.SIGINT)
    started.communicate(timeout=200)
    again = gradproof(workspace, "verify", "-k", "K-1", "--json")
    assert again.returncode == 4, again.stderr
    assert rows(again)["K-1"]["cached"] is True
