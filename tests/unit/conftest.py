"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_workspace import worker_command, write_workspace

from gradproof.core.workspace import Workspace
from gradproof.execution.local import Worker


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The toy workspace, with its own backend in the workers, as the working directory."""
    workspace = write_workspace(tmp_path / "toy")
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(workspace.root))
    monkeypatch.chdir(workspace.root)
    return workspace


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy workspace whose gate was met, to be copied and never written to."""
    from gradproof import cli

    root = write_workspace(tmp_path_factory.mktemp("finished") / "toy").root
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", lambda self: worker_command(root))
        patch.chdir(root)
        assert cli.dispatch(["verify", "-q"]) == 0
    return root


@pytest.fixture(scope="session")
def pristine(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of that workspace, to be copied and never written to."""
    from bundle_bench import EPOCH

    from gradproof import cli

    place = tmp_path_factory.mktemp("attested") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "command", lambda self: worker_command(finished))
        patch.setenv("SOURCE_DATE_EPOCH", EPOCH)
        patch.chdir(finished)
        assert cli.dispatch(["attest", str(place), "-q"]) == 0
    return place


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch in one thread: small tensors gain nothing from a second, and what is replayed bit for bit must have one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
