"""Attempts on the pytest plugin: another plugin, or a conftest, that makes a red contract end with exit code 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack_kit import verify

SWALLOW = {
    "at the end of the session": "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n",
    "last at the end": "import pytest\n\n@pytest.hookimpl(trylast=True)\n"
    "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n",
    "around everything": "import pytest\n\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
    "def pytest_sessionfinish(session):\n    yield\n    session.exitstatus = 0\n",
    "in every report": "import pytest\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item):\n"
    "    report = yield\n    report.outcome = 'passed'\n    return report\n",
}


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose contract is refuted, with the evidence of it, so that pytest runs nothing again."""
    from attack_kit import break_model, workspace

    root = workspace(tmp_path_factory.mktemp("red") / "ws")
    break_model(root)
    assert verify(root).red
    return root


def items(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """One run of pytest on K-1 of the contract."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args, "proofs/mean-v1/contract.yaml"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    environ["PYTEST_PLUGINS"] = "gradproof.pytest_plugin" if not _installed() else ""
    return subprocess.run(
        [*command, "-k", "K-1"], cwd=root, env=environ, capture_output=True, text=True, timeout=600, check=False
    )


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "gradproof.pytest_plugin" for point in entry_points(group="pytest11"))


@pytest.mark.parametrize("how", list(SWALLOW))
def test_an_exit_code_that_another_plugin_swallows(red: Path, how: str) -> None:
    (red / "swallower.py").write_text(SWALLOW[how])
    done = items(red, "-p", "swallower")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gradproof: 1 check " in done.stdout


def test_a_conftest_that_swallows(red: Path) -> None:
    (red / "conftest.py").write_text(SWALLOW["around everything"])
    try:
        assert items(red).returncode == 1
    finally:
        (red / "conftest.py").unlink()
