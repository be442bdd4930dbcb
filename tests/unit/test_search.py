"""A module that is not at the root of a workspace: where it came from, and what would be found in its place now."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, check

from gradproof.claim import place_of
from gradproof.core import Layer
from gradproof.evidence import NO_SEARCH, record, validate
from gradproof.search import Trail, _folders, home_of, searched
from gradproof.store import Store
from gradproof.workspace import PACKAGE, Workspace, sha256_of

Path_ = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace, and three folders beside it."""
    for name in ("ws/src/pkg", "first", "home/lib", "behind"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws/src/pkg/train.py").write_text("")
    (tmp_path / "home/lib/__init__.py").write_text("")
    (tmp_path / "home/lib/part.py").write_text("")
    return tmp_path / "ws"


def keys(root: Path, **files: str) -> dict[str, str]:
    """Claim keys by dotted name."""
    return {name.replace("__", "."): f"ext:{root.parent / file}" for name, file in files.items()}


@pytest.fixture
def path(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path_:
    """The import path of this process, and what PYTHONPATH says, as folders beside the workspace."""

    def put(*names: str, pythonpath: tuple[str, ...] = ()) -> None:
        monkeypatch.setattr(sys, "path", [str(root.parent / name) for name in names])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(root.parent / name) for name in pythonpath))

    return put


def told(root: Path, modules: dict[str, str], *start: str) -> dict[str, Any]:
    return searched(modules, root, [root.parent / name for name in start], lambda key: place_of(key, root))


def moved(root: Path, modules: dict[str, str], search: Any, here: bool = True) -> list[str]:
    """What has become of each module."""

    def place(key: str) -> Path | None:
        return place_of(key, root)

    trail = Trail(place, here)
    found = [trail.moved(name, key, place(key) or root, search) for name, key in modules.items()]
    return [reason for reason in found if reason is not None]


LIB = {"lib": "home/lib/__init__.py", "lib__part": "home/lib/part.py"}


def test_a_module_has_the_folder_that_its_name_begins_in() -> None:
    assert home_of("a", Path("/x/a.py")) == Path("/x")
    assert home_of("a.b", Path("/x/a/b.py")) == Path("/x")
    assert home_of("a.b", Path("/x/a/b/__init__.py")) == Path("/x")
    assert home_of("a.b.c.d", Path("/d.py")) is None
    assert home_of("a.b", Path("/b.py")) is None


def test_the_folders_of_python_and_of_the_engine_and_archives_are_not_looked_into(tmp_path: Path) -> None:
    library = Path(os.__file__).resolve().parent
    packages = library / "site-packages"
    own = [library, library / "lib-dynload", PACKAGE, PACKAGE / "cli", tmp_path / "python311.zip"]
    assert _folders(map(str, [*own, "", packages, tmp_path])) == [packages, tmp_path]


def test_the_folder_and_those_before_it_are_noted(root: Path, path: Path_) -> None:
    path("ws", "first", "home", "behind")
    search = told(root, {**keys(root, **LIB), "train": "ws:src/pkg/train.py"}, "home")
    assert set(search["found"]) == {"lib", "train"}
    outer = str(root.parent)
    assert search["start"] == [f"ext:{outer}/home"]
    assert search["found"]["lib"] == {"home": f"ext:{outer}/home", "before": [f"ext:{outer}/first"]}
    everywhere = [f"ext:{outer}/{name}" for name in ("first", "home", "behind")]
    assert search["found"]["train"] == {"home": "ws:src/pkg", "before": everywhere}


def test_what_the_root_has_is_not_noted_and_neither_is_the_engine(root: Path, path: Path_) -> None:
    path("ws", "home")
    (root / "own.py").write_text("")
    assert told(root, {"own": "ws:own.py", "gradproof.core": "gp:core.py"}) == NO_SEARCH


def test_what_no_folder_has_under_its_name_counts_by_its_content(root: Path, path: Path_) -> None:
    path("ws", "home")
    deep = ".".join("d" * 99)
    modules = {**keys(root, other="home/lib/part.py"), "trained": "ws:src/pkg/train.py", deep: "ws:src/pkg/train.py"}
    search = told(root, modules)
    assert search["found"] == {name.partition(".")[0]: {"home": "", "before": []} for name in modules}
    assert moved(root, modules, search) == []
    assert told(root, {"gone": "pkg:gone==1"}) == NO_SEARCH
    assert moved(root, {"train": "ws:src/pkg/train.py"}, NO_SEARCH) == ["module train is no longer found"]


PORTIONS = {
    "ns.a": "first/ns/a.py",
    "ns.b": "home/ns/b.py",
    "pk": "home/pk/__init__.py",
    "pk.core": "home/out/pk/core.py",
}


def test_a_package_in_several_folders_is_fresh_until_one_of_its_parts_is_shadowed(root: Path, path: Path_) -> None:
    """A namespace package of two portions, and a package with a part from a folder that it added."""
    path("ws", "behind", "first", "home")
    for file in PORTIONS.values():
        (root.parent / file).parent.mkdir(parents=True, exist_ok=True)
        (root.parent / file).write_text("")
    modules = {name: f"ext:{root.parent / file}" for name, file in PORTIONS.items()}
    search = told(root, modules)
    assert moved(root, modules, search) == []
    (root.parent / "first/ns/b.py").write_text("")
    assert [words.partition(",")[0] for words in moved(root, modules, search)] == ["module ns.b is now in first"]
    (root.parent / "behind/ns").mkdir()
    (root.parent / "behind/ns/a.py").write_text("")
    assert len(moved(root, modules, search)) == 2


def test_a_folder_that_had_the_name_already_is_no_news(root: Path, path: Path_) -> None:
    """As where a workspace took its own folder off the path again."""
    path("first", pythonpath=("first",))
    (root.parent / "first/lib.py").write_text("")
    modules = keys(root, **LIB)
    search = told(root, modules, "first")
    assert moved(root, modules, search) == []
    (root.parent / "behind/lib.py").write_text("")
    path("first", pythonpath=("first", "behind"))
    assert len(moved(root, modules, search)) == 2


PLACES = {
    "nothing": (None, []),
    "a file in a folder before": ("first/lib.py", ["module lib is now in first, shadowing"] * 2),
    "a package in a folder before": ("first/lib/__init__.py", ["module lib is now in first, shadowing"] * 2),
    "a folder without code before": ("first/lib/data.txt", []),
    "a file in a folder behind": ("behind/lib.py", []),
    "a package in the place of a part": ("home/lib/part/__init__.py", ["module lib.part is now"]),
}


@pytest.mark.parametrize("new", PLACES)
def test_what_comes_before_a_module_later_shadows_it(root: Path, path: Path_, new: str) -> None:
    path("ws", "first", "home", "behind")
    modules, (place, reasons) = keys(root, **LIB), PLACES[new]
    search = told(root, modules)
    if place is not None:
        (root.parent / place).parent.mkdir(exist_ok=True)
        (root.parent / place).write_text("")
    found = moved(root, modules, search)
    assert len(found) == len(reasons)
    assert all(words in said for words, said in zip(reasons, found, strict=True))


def test_a_module_that_is_gone_is_no_longer_found(root: Path, path: Path_) -> None:
    path("ws", "home")
    modules = keys(root, **LIB)
    search = told(root, modules)
    (root.parent / "home/lib/part.py").unlink()
    assert moved(root, modules, search) == ["module lib.part is no longer found"]


ORDERS = {
    "the same": (("home",), 0),
    "a new folder without the name first": (("behind", "home"), 0),
    "a new folder with the name first": (("first", "home"), 2),
    "a new folder with the name behind": (("home", "first"), 0),
    "another folder in its place": (("first",), 2),
    "none": ((), 0),
}


def test_the_second_of_two_folders_counts_where_the_first_one_is_gone(root: Path, path: Path_) -> None:
    (root.parent / "first/lib.py").write_text("")
    path("ws", "home", "first", pythonpath=("home", "first"))
    modules = keys(root, **LIB)
    search = told(root, modules, "home", "first")
    assert moved(root, modules, search) == []
    path("ws", "first", pythonpath=("first",))
    assert len(moved(root, modules, search)) == 2


@pytest.mark.parametrize("now", ORDERS)
def test_what_pythonpath_adds_later_is_looked_into(root: Path, path: Path_, now: str) -> None:
    path("ws", "home", pythonpath=("home",))
    modules, (pythonpath, count) = keys(root, **LIB), ORDERS[now]
    search = told(root, modules, "home")
    (root.parent / "first/lib.py").write_text("")
    path("ws", "home", pythonpath=pythonpath)
    assert len(moved(root, modules, search)) == count


def test_an_installed_copy_counts_where_pythonpath_lost_the_folder(root: Path, path: Path_) -> None:
    path("ws", "home", pythonpath=("home",))
    modules = keys(root, **LIB)
    search = told(root, modules, "home")
    (root.parent / "site-packages/lib").mkdir(parents=True)
    (root.parent / "site-packages/lib/__init__.py").write_text("")
    path("ws", "site-packages", pythonpath=("home",))
    assert moved(root, modules, search) == []
    path("ws", "site-packages")
    assert len(moved(root, modules, search)) == 2


def test_a_folder_that_is_neither_installed_nor_of_pythonpath_is_not_looked_into(root: Path, path: Path_) -> None:
    """As that of the script by which the gate was started, and not the run."""
    path("ws", "home", pythonpath=("home",))
    modules = keys(root, **LIB)
    search = told(root, modules, "home")
    (root.parent / "first/lib.py").write_text("")
    path("ws", "first")
    assert moved(root, modules, search) == []


def test_an_installed_folder_shadows_nothing_of_its_own(root: Path, path: Path_) -> None:
    (root.parent / "home").rename(root.parent / "site-packages")
    path("ws", "site-packages", pythonpath=("site-packages",))
    modules = keys(root, **{name: file.replace("home", "site-packages") for name, file in LIB.items()})
    search = told(root, modules, "site-packages")
    path("ws", "site-packages")
    assert moved(root, modules, search) == []


def test_on_another_machine_only_the_workspace_is_looked_into(root: Path, path: Path_) -> None:
    path("ws", "first", "home", pythonpath=("first",))
    modules = {**keys(root, **LIB), "train": "ws:src/pkg/train.py"}
    search = told(root, modules)
    (root.parent / "first/lib.py").write_text("")
    (root.parent / "first/train.py").write_text("")
    assert moved(root, modules, search, here=False) == []
    (root.parent / "home/lib").rename(root.parent / "home/bil")
    assert moved(root, modules, search, here=False) == []
    assert len(moved(root, modules, search)) == 3
    (root / "src/pkg/train.py").unlink()
    assert moved(root, modules, search, here=False) == ["module train is no longer found"]


def kept(toy: Workspace, layer: Layer) -> Store:
    """A store with the evidence of one check that rests on src/deep.py, found by a sys.path that was changed."""
    (toy.root / "src").mkdir()
    (toy.root / "src/deep.py").write_text("")
    files = {f"ws:{name}": sha256_of(toy.root / name) for name in ("symbolic/toy.py", "src/deep.py")}
    modules = {"symbolic.toy": "ws:symbolic/toy.py", "deep": "ws:src/deep.py"}
    of = check(layer=layer)
    search = {"start": [], "found": {"deep": {"home": "ws:src", "before": ["ws:lib", "ext:/nowhere"]}}}
    claim = {"files": {**files, "gp:core.py": sha256_of(Path(place_of("gp:core.py", toy.root) or ""))}}
    store = Store(toy)
    store.write(record(of, answer(of), claim={**claim, "modules": modules, "search": search}))
    return store


@pytest.mark.parametrize("layer", [Layer.SMT, Layer.CUDA])
def test_evidence_on_a_source_folder_is_fresh_until_something_shadows_it(toy: Workspace, layer: Layer) -> None:
    store = kept(toy, layer)
    assert "deep" not in store.standing(check(layer=layer)).reason
    (toy.root / "lib").mkdir()
    (toy.root / "lib/deep.py").write_text("")
    assert "module deep is now in lib, shadowing ws:src" in Store(toy).standing(check(layer=layer)).reason


BROKEN: list[Any] = [
    {}, {"start": [], "found": []}, {"start": "a", "found": {}}, {"start": [1], "found": {}},
    {"start": [], "found": {"a": 1}}, {"start": [], "found": {"a": {"home": "ws:a"}}},
    {"start": [], "found": {"a": {"home": 1, "before": []}}}, {"start": [], "found": {}, "more": 1},
    {"start": [], "found": {"a": {"home": "b", "before": [1]}}},
]  # fmt: skip


@pytest.mark.parametrize("search", BROKEN)
def test_a_search_of_another_shape_is_no_evidence(search: Any) -> None:
    of = check()
    made = copy.deepcopy(record(of, answer(of)))
    validate(made)
    made["claim"]["search"] = search
    with pytest.raises(ValueError, match=r"claim\.search"):
        validate(made)
