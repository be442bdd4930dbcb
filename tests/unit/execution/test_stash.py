"""Preloaded modules are out of sight until they are imported, and then they are the very same objects."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from gradproof.core.outcome import Kind
from gradproof.execution.forkserver import NEEDED, Stash

FILES = {
    "st_base/__init__.py": "COUNT = []\nCOUNT.append(1)\n",
    "st_base/inner.py": "X = 1\n",
    "st_top/__init__.py": "import st_base\ntry:\n    import st_absent\nexcept ImportError:\n    st_absent = None\n",
    "st_top/deep.py": "import st_base.inner\nfrom st_top import st_absent\nRUNS = []\nRUNS.append(1)\n",
    "st_maker.py": "import sys, types\nsys.modules['st_made'] = types.ModuleType('st_made')\n",
    "st_placed.py": "import sys\nsys.path.append('/st_place')\n",
    "st_broken.py": "raise ValueError('no')\n",
}


@pytest.fixture
def stash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stash]:
    site = tmp_path / "site-packages"
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(site)
    made = Stash(set(sys.modules))
    sys.meta_path.insert(0, made)
    yield made
    sys.meta_path.remove(made)
    for name in [n for n in sys.modules if n.startswith("st_")]:
        del sys.modules[name]


class Ahead(importlib.abc.MetaPathFinder):
    """A finder like that of a workspace: it notes what it is asked for, and has what a test gives it."""

    def __init__(self, has: str = "") -> None:
        self.asked: set[str] = set()
        self.has = has

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        self.asked |= {fullname} if path is None else set()
        return ModuleSpec(fullname, None) if fullname == self.has else None


@pytest.fixture
def ahead(stash: Stash) -> Iterator[Ahead]:
    finder = Ahead()
    sys.meta_path.insert(0, finder)
    yield finder
    sys.meta_path.remove(finder)


def loaded() -> set[str]:
    return {name for name in sys.modules if name.startswith("st_")}


def test_a_preloaded_module_is_hidden_and_comes_back_unrun(stash: Stash) -> None:
    stash.preload("st_top.deep")
    assert loaded() == set()
    deep = importlib.import_module("st_top.deep")
    assert deep.RUNS == [1]
    assert {"st_top", "st_top.deep", "st_base", "st_base.inner"} <= loaded()
    assert sys.modules["st_base"].COUNT == [1]


def test_a_part_of_what_was_preloaded_comes_alone(stash: Stash) -> None:
    stash.preload("st_top.deep")
    base = importlib.import_module("st_base")
    assert base.COUNT == [1]
    assert loaded() == {"st_base", "st_base.inner"}


def test_a_module_has_its_own_spec_again(stash: Stash) -> None:
    stash.preload("st_top.deep")
    top = importlib.import_module("st_top")
    assert top.__spec__ is not None
    assert top.__spec__.loader is top.__loader__
    assert top.__spec__.origin == top.__file__


def test_a_module_that_was_made_by_hand_has_no_spec_again(stash: Stash) -> None:
    stash.preload("st_maker")
    assert loaded() == set()
    assert importlib.import_module("st_made").__spec__ is None


def test_what_a_library_puts_on_the_import_path_comes_with_it(stash: Stash, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    stash.preload("st_placed")
    assert sys.path == before
    importlib.import_module("st_base")
    assert sys.path == before
    importlib.import_module("st_placed")
    assert sys.path == [*before, "/st_place"]


def test_asking_for_a_spec_gives_nothing_away(stash: Stash) -> None:
    stash.preload("st_base")
    for _ in range(2):
        spec = importlib.util.find_spec("st_base")
        assert spec is not None
        assert Path(spec.origin or "").name == "__init__.py"
    assert loaded() == set()
    assert importlib.import_module("st_base").COUNT == [1]


def test_a_library_that_uses_an_earlier_one_brings_it(stash: Stash) -> None:
    stash.preload("st_base")
    stash.preload("st_top.deep")
    importlib.import_module("st_top")
    assert {"st_base", "st_base.inner", "st_top.deep"} <= loaded()
    assert sys.modules["st_base"].COUNT == [1]


def test_the_finders_before_it_hear_what_the_library_looked_for(stash: Stash, ahead: Ahead) -> None:
    stash.preload("st_base")
    stash.preload("st_top.deep")
    ahead.asked.clear()
    importlib.import_module("st_top")
    assert {"st_top", "st_base", "st_absent"} <= ahead.asked


def test_only_top_level_names_are_asked_of_a_workspace(stash: Stash, ahead: Ahead) -> None:
    stash.preload("st_top.deep")
    ahead.asked.clear()
    importlib.import_module("st_top")
    assert not any("." in name for name in ahead.asked)


def test_what_is_preloaded_twice_comes_back_whole(stash: Stash) -> None:
    stash.preload("st_top.deep")
    stash.preload("st_top.deep")
    assert importlib.import_module("st_top").__name__ == "st_top"
    assert {"st_top.deep", "st_base", "st_base.inner"} <= loaded()


def test_a_module_that_stands_before_it_now_is_an_import_error(stash: Stash, ahead: Ahead) -> None:
    stash.preload("st_top.deep")
    ahead.has = "st_absent"
    with pytest.raises(ImportError, match="the workspace has a module 'st_absent', for which st_top looks"):
        importlib.import_module("st_top")


@pytest.mark.parametrize("name", ["st_top.py", "st_base/__init__.py", "st_absent.py"])
def test_a_workspace_with_a_module_that_a_library_looks_for_is_told(stash: Stash, tmp_path: Path, name: str) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    stash.preload("st_top.deep")
    (root / "st_unknown.py").write_text("")
    (root / "st_base").mkdir()
    (root / "st_base/data.txt").write_text("")
    assert stash.shadowed(root) == []
    (root / name).write_text("")
    assert stash.shadowed(root) == [name.partition(".")[0].partition("/")[0]]


def test_what_is_not_installed_is_not_preloaded(stash: Stash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/st_mine.py").write_text("raise ValueError('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path / "src")
    stash.preload("st_mine")
    stash.preload("st_nowhere")
    (tmp_path / "site-packages/st_space").mkdir()
    stash.preload("st_space")
    assert loaded() == set()


def test_a_library_that_does_not_import_is_no_secret(stash: Stash) -> None:
    with pytest.raises(ValueError, match="no"):
        stash.preload("st_broken")


def test_every_kind_says_what_its_workers_need() -> None:
    assert set(NEEDED) == set(Kind)
