"""The layers of the source: kept, seen when they are broken, and drawn as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house_rules import REPOSITORY

from tests import structure

LINT = Path(sys.executable).with_name("lint-imports")
BROKEN = {
    "a package imports one above it": ("core/files.py", "from gradproof.verdict import judge", "layers"),
    "inside a function too": ("arith/linear.py", "def f():\n    import gradproof.session", "layers"),
    "a part of shadow imports one above it": (
        "shadow/tape/run.py",
        "import gradproof.shadow.judge.two_runs",
        "shadow",
    ),
    "an optional part imports another": ("extras/claims/load.py", "import gradproof.extras.attest.write", "optional"),
    "two modules import each other": ("core/outcome.py", "import gradproof.core.check", "circle"),
}


def lint(root: Path) -> tuple[int, str]:
    """What import-linter says of a copy of the package."""
    env = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-P", LINT, "--no-logo", "--no-cache", "--config", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package."""
    root = tmp_path_factory.mktemp("layers")
    shutil.copytree(structure.SOURCE, root / "gradproof", ignore=shutil.ignore_patterns("__pycache__", "proved"))
    return root


def test_the_layers_are_kept(copied: Path) -> None:
    code, said = lint(copied)
    assert (code, "0 broken" in said) == (0, True), said


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_layer_is_seen(name: str, copied: Path) -> None:
    file, line, word = BROKEN[name]
    path = copied / "gradproof" / file
    whole = path.read_text(encoding="utf-8")
    path.write_text(f"{whole}\n{line}\n", encoding="utf-8")
    try:
        code, said = lint(copied)
    finally:
        path.write_text(whole, encoding="utf-8")
    assert code == 1
    assert any(word in row and row.endswith("BROKEN") for row in said.splitlines()), said


def test_there_is_no_circle_and_the_rooms_are_small() -> None:
    assert structure.circles() == set()
    found = structure.figures()
    assert int(found["modules at the package root"]) <= 8
    wide = {"cli": 25, "rounding": 25, "execution/methods": 25, "shadow/follow": 16}
    assert {name: n for name, n in structure.folders().items() if n > wide.get(name, 15)} == {}
    assert int(found["modules"]) <= 250
    assert structure.lines(structure.SOURCE) <= 57_760
    assert int(found["layers of packages"]) <= 9
    assert int(found["longest import path"].partition(":")[0]) <= 14
    assert int(found["longest in one folder"].partition(":")[0]) <= 7


def test_no_two_classes_have_one_name(tmp_path: Path) -> None:
    assert structure.shared_names(structure.files(structure.SOURCE)) == {}
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Session:\n    pass\n", encoding="utf-8")
    assert structure.shared_names(structure.files(tmp_path)) == {"Session": ["one", "other"]}


def test_the_picture_is_that_of_today() -> None:
    page = structure.PAGE.read_text(encoding="utf-8")
    assert structure.drawn(page) == page, "run: python -m tests.structure --write"
    with pytest.raises(ValueError, match="no place"):
        structure.drawn("no markers")
    assert structure.drawn(page.replace("cli --> extras", "cli --> nothing")) == page
