"""Fixtures of the adversarial suite."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attack_kit import break_model, verify, workspace

from gradproof.core.outcome import Exit


@pytest.fixture(scope="session")
def green_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest workspace after a run that met the gate: without it no attempt would show anything."""
    root = workspace(tmp_path_factory.mktemp("green") / "ws")
    assert verify(root, alone=False).exit is Exit.MET
    return root


@pytest.fixture
def green(green_run: Path, tmp_path: Path) -> Path:
    """A copy of the honest workspace with its evidence."""
    shutil.copytree(green_run, tmp_path / "green")
    return tmp_path / "green"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A workspace whose model forgets the 1/N, before any run."""
    root = workspace(tmp_path / "wrong")
    break_model(root)
    return root


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands first on PYTHONPATH."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return folder
