"""Contracts as pytest items, in a pytest of its own: what passes, what fails, and what is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from toy_workspace import write_workspace

from gradproof.core.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parents[3]
PLUGIN = """\
import sys
from gradproof.execution.local import Worker
Worker.command = lambda self: [sys.executable, "-P", {worker!r}]
"""


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    workspace = write_workspace(tmp_path / "toy")
    worker = str(workspace.root / "toy_worker.py")
    (workspace.root / "conftest.py").write_text(PLUGIN.format(worker=worker), encoding="utf-8")
    return workspace


def run(toy: Workspace, *args: str) -> tuple[int, str, dict[str, str]]:
    """Exit code, output, and by check id: passed, failed, error or skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=j.xml", *args]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(command, cwd=toy.root, capture_output=True, text=True, timeout=600, check=False, env=env)
    cases = ET.parse(toy.root / "j.xml").iter("testcase") if (toy.root / "j.xml").exists() else []
    found = {c.attrib["name"]: ({"failure": "failed"}.get(c[0].tag, c[0].tag) if len(c) else "passed") for c in cases}
    return done.returncode, done.stdout + done.stderr, found


def edit(toy: Workspace, old: str, new: str, file: str = "symbolic/toy.py") -> None:
    path = toy.root / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


ALL = {"STUB-1": "passed", "K-1": "passed", "K-2": "passed", "F-1@cpu-fp32": "passed", "F-1@cuda-fp32": "skipped",
       "GATE-1/falsification": "passed"}  # fmt: skip


def test_one_item_a_check(toy: Workspace) -> None:
    code, out, found = run(toy)
    assert found == ALL, out
    assert code == 0


def test_several_workers_give_the_same(toy: Workspace) -> None:
    code, out, found = run(toy, "-n", "2")
    assert (code, found) == (0, ALL), out


def test_checks_are_selected_by_id_obligation_and_layer(toy: Workspace) -> None:
    assert set(run(toy, "-k", "K-1")[2]) == {"K-1"}
    assert set(run(toy, "-k", "T-1 and not cuda and not cpu")[2]) == {"K-1", "K-2"}


def test_what_is_required_and_not_run_is_an_error(toy: Workspace) -> None:
    code, _, found = run(toy, "-k", "cuda", "--gradproof-profile", "release")
    assert (code, found) == (1, {"F-1@cuda-fp32": "error"})


def test_a_broken_check_fails_and_x_stops(toy: Workspace) -> None:
    edit(toy, "VALUE = 1", "VALUE = 7", "models/a.py")
    code, out, found = run(toy, "-k", "K-1 or STUB-1")
    assert code == 1
    assert found["K-1"] == "failed", out
    assert "K-1 is REFUTED (BROKEN)" in out
    assert "Traceback" not in out
    assert "contract.yaml" in out
    code, out, found = run(toy, "-x")
    assert "stopping after 1 failures" in out


def test_an_inconclusive_check_is_an_error_and_never_a_pass(toy: Workspace) -> None:
    edit(toy, "time_limit: 200", "time_limit: 1", "proofs/toy/contract.yaml")
    edit(toy, "VALUE = 1", "import time\nwhile time.process_time() < 8:\n    pass\nVALUE = 1", "models/a.py")
    code, out, found = run(toy, "-k", "K-1")
    assert code == 1
    assert found == {"K-1": "error"}, out


def test_a_contract_with_mistakes_is_a_collection_error_with_its_place(toy: Workspace) -> None:
    edit(toy, "type: invariant", "type: invariance", "proofs/toy/contract.yaml")
    code, out, _ = run(toy)
    assert code == 2
    assert "GP105" in out
    assert "contract.yaml:" in out
    assert "Traceback" not in out


def test_a_contract_yaml_that_is_no_workspaces_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text("a: 1\n", encoding="utf-8")
    (tmp_path / "proofs" / "x").mkdir(parents=True)
    (tmp_path / "proofs" / "x" / "contract.yaml").write_text("a: 1\n", encoding="utf-8")
    code, out, _ = run(Workspace(tmp_path, tmp_path / "reports"))
    assert code == 5, out
