"""Attempts by the order in which Python looks for modules: one is put in front of another, before or after a run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from attack_kit import HONEST, MODEL, append, edit, gate, verify

from gradproof.core.outcome import Exit, Outcome

FRONT = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
import colorsys
import iniconfig
import mylib.util

try:
    from pkg import _fast
except ImportError:
    import pkg.slow
try:
    import fast
except ImportError:
    fast = None
"""
FLEETING = """
import pathpkg.part

try:
    import broken
except ImportError:
    broken = None
for folder in ("a", "b"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
import kept

try:
    import optional
except ImportError:
    optional = None
del sys.path[:2]
import taken

del sys.modules["taken"]
"""
LATER = {
    "a package in the place of a module that failed": ("green/broken/__init__.py", "broken"),
    "a module in a folder that was on the path for a while": ("green/b/kept.py", "kept"),
    "one that was looked for there": ("green/a/optional.py", "optional"),
    "a part in a folder that a package added": ("green/parts/part.py", "pathpkg.part"),
    "a module before one that was taken out again": ("green/src/taken.py", "taken"),
    "a module that was not there": ("green/src/fast.py", "fast"),
    "the same on PYTHONPATH": ("path/fast.py", "fast"),
    "a part that was not there": ("green/src/pkg/_fast.py", "pkg._fast"),
    "a package that was a folder": ("green/src/mylib/__init__.py", "mylib"),
    "a module of Python's own": ("green/src/colorsys.py", "colorsys"),
    "one that nobody of the workspace asked for": ("path/fractions.py", "fractions"),
    "an installed package": ("path/iniconfig.py", "iniconfig"),
}


@pytest.fixture
def searching(green: Path, path: Path) -> Path:
    """The honest workspace, with imports that are looked for in several places, after a run."""
    for name in ("mylib/util.py", "pkg/__init__.py", "pkg/slow.py"):
        (green / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (green / "src" / name).write_text("")
    (green / "pathpkg").mkdir()
    (green / "pathpkg/__init__.py").write_text(f"__path__.insert(0, {str(green / 'parts')!r})\n")
    (green / "broken.py").write_text("raise ImportError\n")
    for name in ("pathpkg/part.py", "a/kept.py", "b/other.py", "taken.py", "parts/more.py"):
        (green / name).parent.mkdir(exist_ok=True)
        (green / name).write_text("")
    append(green, MODEL, FRONT + FLEETING)
    assert verify(green, alone=False).exit is Exit.MET
    assert gate(green).exit is Exit.MET
    return green


@pytest.mark.parametrize("name", LATER)
def test_a_module_that_is_put_before_another_one_after_the_run(searching: Path, name: str) -> None:
    file, module = LATER[name]
    later = searching.parent / file
    later.parent.mkdir(exist_ok=True)
    later.write_text("")
    found = gate(searching)
    assert found.red
    key = f"ws:{later.relative_to(searching)}" if later.is_relative_to(searching) else f"ext:{later}"
    assert re.search(rf" {re.escape(module)} .* {re.escape(key)}, shadowing ", found.reason)
    later.unlink()
    assert gate(searching).exit is Exit.MET


def test_a_module_in_an_archive_that_is_put_onto_pythonpath_after_the_run(
    searching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ZipFile(searching.parent / "new.zip", "w") as archive:
        archive.writestr("iniconfig.py", "")
    places = os.environ["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(searching.parent / "new.zip"), places]))
    assert re.search(r"\biniconfig .*/new\.zip/iniconfig\.py, .* installed", gate(searching).reason)
    monkeypatch.setenv("PYTHONPATH", places)
    assert gate(searching).exit is Exit.MET


def test_a_folder_of_pythonpath_that_the_workspace_comes_before_changes_nothing(searching: Path, path: Path) -> None:
    for name in ("models/__init__.py", "mylib/__init__.py", "pkg.py", "other.py"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("")
    (path / "mylib/__init__.py").unlink()
    assert gate(searching).exit is Exit.MET


def test_a_right_file_at_the_root_stands_for_none_that_python_takes_first(green: Path) -> None:
    (green / "src").mkdir()
    (green / "chosen.py").write_text("def total(grads):\n    return sum(grads) / len(grads)\n")
    (green / "src/chosen.py").write_text("def total(grads):\n    return sum(grads)\n")
    edit(green, MODEL, HONEST, "return total(grads)\n")
    append(green, MODEL, FRONT[: FRONT.index("import colorsys")] + "from chosen import total\n")
    assert verify(green).outcome is Outcome.REFUTED
    (green / "src/chosen.py").write_text((green / "chosen.py").read_text())
    assert verify(green, alone=False).exit is Exit.MET
    (green / "src/chosen.py").unlink()
    assert "chosen" in gate(green).reason
