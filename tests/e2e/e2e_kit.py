"""What the end-to-end tests share: the real command line in a process of its own, and workspaces to run it on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "tests" / "corpus"
CONTENT = ("proofs", "models", "symbolic")
CONTRACT = "proofs/mean-v1/contract.yaml"
REFERENCE_CONTRACT = "proofs/gradient-accumulation-kernel-v1/contract.yaml"

Done = subprocess.CompletedProcess[str]


def command(*args: str) -> list[str]:
    """How gradproof is started."""
    return [sys.executable, "-m", "gradproof", *args]


def environ(*path: Path) -> dict[str, str]:
    """The environment with `path`, or the repository's own source, as the only import path besides the installation."""
    places = path or (REPOSITORY / "src",)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONDONTWRITEBYTECODE": "1"}


def gradproof(cwd: Path, *args: str, path: Iterable[Path] = (), limit: float = 600) -> Done:
    """One run of the command line in the folder `cwd`."""
    return subprocess.run(
        command(*args), cwd=cwd, env=environ(*path), capture_output=True, text=True, timeout=limit, check=False
    )


def decoys(folder: Path, *names: str) -> tuple[Path, Path]:
    """An import path on which some packages raise ImportError, before the repository's own source."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text(f'raise ImportError("{name} was imported")\n', encoding="utf-8")
    return folder, REPOSITORY / "src"


BARRED = """\
import importlib.abc, sys


class Bar(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {names!r}:
            raise ImportError(name + " was imported")


sys.meta_path.insert(0, Bar())
"""


def barred(folder: Path, *names: str) -> tuple[Path, Path]:
    """An import path on which the command line cannot import some packages, though they are where they were."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BARRED.format(names=names), encoding="utf-8")
    return folder, REPOSITORY / "src"


def reference_workspace(folder: Path) -> Path:
    """A copy of the repository's workspace with its main contract alone, without evidence."""
    others = {p.parent.name for p in REPOSITORY.glob("proofs/*/contract.yaml")} - {REFERENCE_CONTRACT.split("/")[1]}
    for name in CONTENT:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", *others))
    return folder


def corpus_workspace(case: str, folder: Path) -> Path:
    """A copy of one workspace of the corpus."""
    shutil.copytree(CORPUS / case, folder, ignore=shutil.ignore_patterns("__pycache__", "reports"))
    return folder


def edit(path: Path, old: str, new: str) -> None:
    """Replace what must stand exactly once in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def evidence_files(workspace: Path) -> list[Path]:
    """Every evidence file of a workspace."""
    return sorted(workspace.glob("reports/evidence/*/*.json"))


def evidence_of(workspace: Path, check: str) -> Path:
    """The one evidence file of a check."""
    [path] = workspace.glob(f"reports/evidence/{check}/*.json")
    return path


def read(path: Path) -> dict[str, Any]:
    """A JSON file."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def rows(done: Done) -> dict[str, dict[str, Any]]:
    """The checks of a JSON answer, by id."""
    return {row["id"]: row for row in json.loads(done.stdout)["checks"]}


def wait_for(what: Callable[[], bool], seconds: float = 300) -> None:
    """Return when `what` is true. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
