"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_workspace import worker_command, write_workspace

from gradproof.runner import Worker
from gradproof.workspace import Workspace


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The toy workspace, with its own backend in the workers, as the working directory."""
    workspace = write_workspace(tmp_path / "toy")
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(workspace.root))
    monkeypatch.chdir(workspace.root)
    return workspace
