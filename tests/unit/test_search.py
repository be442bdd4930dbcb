"""A module that is not at the root of a workspace: where it came from, and what would be found in its place now."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, check

import gradproof
from gradproof.claim import key_of, place_of
from gradproof.core import Layer
from gradproof.evidence import NO_SEARCH, record, validate
from gradproof.search import ROOT, SITE, Trail, _folders, home_of, searched, started
from gradproof.store import Store
from gradproof.workspace import PACKAGE, Workspace, sha256_of


class Run:
    """A run and a gate: the import paths of both, as folders beside the workspace, and what became of the names."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch

    def places(self, names: tuple[str, ...]) -> list[str]:
        """Folders beside the workspace, as an import path names them."""
        return [str(self.root.parent / name) for name in names]

    def write(self, *files: str) -> None:
        """Empty files beside the workspace."""
        for name in files:
            (self.root.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root.parent / name).write_text("")

    def place(self, key: str) -> Path | None:
        """The file of a claim key."""
        return place_of(key, self.root)

    def claim(self, *path: str, start: tuple[str, ...] = (), modules: Mapping[str, str] | None = None,
              absent: tuple[str, ...] = (), wanted: tuple[str, ...] = ()) -> dict[str, Any]:  # fmt: skip
        """What a run says that ended with this path, and began with `start`. `modules`: files by dotted name."""
        held = {name: key_of(Path(os.path.realpath(self.root.parent / f)), self.root) or f"ext:{self.root.parent / f}"
                for name, f in (LIB if modules is None else modules).items()}  # fmt: skip
        self.patch.setattr(sys, "path", self.places(path))
        search = searched(held, self.root, self.places(start), absent, wanted, self.place)
        return {"modules": held, "absent": list(absent), "search": search}

    def moved(self, claim: dict[str, Any], *start: str, here: bool = True) -> list[str]:
        """What the gate says whose Python starts with `start`."""
        self.patch.setattr(gradproof, "STARTED", tuple(self.places(start)))
        return Trail(self.root, self.place, here).moved(claim)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    made = Run(tmp_path / "ws", monkeypatch)
    made.write("ws/src/pkg/train.py", "home/lib/__init__.py", "home/lib/part.py", "first/f.txt", "behind/b.txt")
    made.write("site-packages/acc/__init__.py")
    return made


LIB = {"lib": "home/lib/__init__.py", "lib.part": "home/lib/part.py"}
HOME = ("home", "site-packages")


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
    os.symlink("loop", tmp_path / "loop")
    assert _folders(map(str, [*own, "", tmp_path, packages, tmp_path])) == [tmp_path, packages]
    os.symlink(tmp_path, tmp_path / "link")
    assert _folders([str(tmp_path / "link"), str(tmp_path)]) == [tmp_path / "link"]
    assert _folders([str(tmp_path / "loop")]) == [tmp_path / "loop"]


def test_what_a_claim_says_of_the_path(run: Run) -> None:
    modules = {**LIB, "train": "ws/src/pkg/train.py", "own": "ws/own.py"}
    run.write("ws/own.py", "behind/lib.py", "site-packages/json.py")
    claim = run.claim("ws/src/pkg", "ws", "first", "home", "site-packages", "behind", start=("first", *HOME),
                      modules=modules, absent=("acc", "gone", "json"), wanted=("gone", "acc"))  # fmt: skip
    outer = f"ext:{run.root.parent}"
    where = claim["search"].pop("where")
    assert claim["search"] == {
        "start": [f"{outer}/first", f"{outer}/home", SITE],
        "path": ["ws:src/pkg", ROOT, f"{outer}/first", f"{outer}/home", SITE, f"{outer}/behind"],
        "apart": {},
        "wanted": ["gone"],
    }
    assert where.pop(SITE) == ["acc"]
    assert {key: [n for n in names if n in modules] for key, names in where.items()} == {
        "ws:src/pkg": ["train"],
        f"{outer}/home": ["lib", "lib.part"],
    }
    assert run.moved(claim | {"search": claim["search"] | {"where": where | {SITE: ["acc"]}}}, "first", *HOME) == []


def test_the_names_of_the_engine_are_nobody_elses(run: Run) -> None:
    run.write("ws/gradproof/__init__.py")
    claim = run.claim("ws", modules={}, absent=("gradproof", "gradproof.core"))
    claim["modules"]["gradproof.core"] = "gp:core.py"
    assert claim["search"]["where"] == claim["search"]["apart"] == {}
    assert run.moved(claim | {"absent": []}) == []


def test_what_no_folder_has_under_its_name_counts_by_its_content(run: Run) -> None:
    deep = ".".join("d" * 99)
    claim = run.claim("ws", "home", modules={"other": "home/lib/part.py", "trained": "ws/src/pkg/train.py",
                                             deep: "ws/src/pkg/train.py"})  # fmt: skip
    assert claim["search"]["apart"] == {"other": "", "trained": "", deep: ""}
    assert run.moved(claim, "home") == []
    run.write("ws/other.py")
    assert run.moved(claim, "home") == [f"module other is now in the workspace, shadowing {claim['modules']['other']}"]


def test_a_key_of_no_kind_and_one_of_nothing(run: Run) -> None:
    assert searched({"gone": "pkg:gone==1"}, run.root, [], (), (), lambda key: None)["apart"] == {}
    claim = {"modules": {"train": "ws:src/pkg/train.py"}, "absent": [], "search": NO_SEARCH}
    assert run.moved(claim) == ["module train is no longer found"]


NAMES: dict[str, tuple[str, list[str]]] = {
    "nothing": ("first/data.txt", []),
    "a module in a folder before": ("first/lib.py", ["lib is now in first, shadowing ext:"]),
    "a package in a folder before": ("first/lib/__init__.py", ["lib is now in first, shadowing ext:"]),
    "a folder without code before": ("first/lib/data.txt", []),
    "a part without its package before": ("first/lib/part.py", []),
    "a module in a folder behind": ("behind/lib.py", []),
    "a package in the place of a part": ("home/lib/part/__init__.py", ["lib.part is now __init__.py, shadowing ext:"]),
    "a module at the root": ("ws/lib.py", ["lib is now in the workspace, shadowing ext:"]),
    "another name": ("first/other.py", []),
    "a name that was not there, at the root": ("ws/fast.py", ["fast now exists in the workspace"]),
    "a name that was not there, on the path": ("home/fast.py", ["fast is now in home, shadowing what was not there"]),
    "a part that was not there": ("home/lib/_c.py", ["lib._c is now in home, shadowing what was not there"]),
    "a package that was a mere folder": ("home/ns/__init__.py", ["ns is now in home, shadowing what was not there"]),
    "a name of Python itself": ("first/colorsys.py", ["colorsys is now in first, shadowing what was not there"]),
    "a name of Python itself, behind it": ("site-packages/colorsys.py", []),
    "an installed name": ("first/acc.py", ["acc is now in first, shadowing the installed one"]),
    "content elsewhere": ("first/models/__init__.py", []),
    "what user code asked for, installed": (
        "site-packages/fast.py", ["fast is now in site-packages, shadowing what was not there"]),
    "what other code asked for, installed": ("site-packages/lib._c.py", []),
}  # fmt: skip


@pytest.mark.parametrize("new", NAMES)
def test_what_is_found_elsewhere_later_is_told(run: Run, new: str) -> None:
    place, reasons = NAMES[new]
    start = ("first", *HOME, "behind")
    claim = run.claim("ws", *start, start=start, absent=("fast", "lib._c", "ns", "acc", "quick", "models"),
                      wanted=("fast",))  # fmt: skip
    assert run.moved(claim, *start) == []
    run.write(place)
    found = run.moved(claim, *start)
    assert len(found) == len(reasons)
    assert all(said.removeprefix("module ").startswith(words) for words, said in zip(reasons, found, strict=True))


PORTIONS = {
    "ns.a": "first/ns/a.py",
    "ns.b": "home/ns/b.py",
    "pk": "home/pk/__init__.py",
    "pk.core": "home/out/pk/core.py",
}


def test_a_package_in_several_folders_is_fresh_until_one_of_its_parts_is_shadowed(run: Run) -> None:
    """A namespace package of two portions, and a package with a part from a folder that it added."""
    run.write(*PORTIONS.values())
    start = ("behind", "first", "home")
    claim = run.claim("ws", *start, start=start, modules=PORTIONS)
    assert claim["search"]["apart"] == {"pk.core": f"ext:{run.root.parent}/home/out"}
    assert run.moved(claim, *start) == []
    run.write("first/ns/b.py")
    assert [words.partition(",")[0] for words in run.moved(claim, *start)] == ["module ns.b is now in first"]
    run.write("behind/ns/a.py")
    assert len(run.moved(claim, *start)) == 2
    (run.root.parent / "home/out/pk/core.py").unlink()
    assert "module pk.core is no longer found" in run.moved(claim, *start)


def test_a_folder_that_had_the_name_already_is_no_news(run: Run) -> None:
    """As where a workspace put a folder onto its path, imported from there, and took it off again."""
    run.write("first/lib.py", "ws/lib.py")
    claim = run.claim("ws", "first", start=("first",))
    assert set(claim["search"]["apart"]) == set(LIB)
    assert run.moved(claim, "first") == []
    (run.root / "lib.py").unlink()
    assert run.moved(claim, "first") == [f"module lib is now in first, shadowing {claim['modules']['lib']}"]


STARTS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "the same": (HOME, []),
    "a new folder without the name first": (("behind", *HOME), []),
    "a new folder with the name first": (("first", *HOME), ["lib is now in first"]),
    "a new folder with the name behind": ((*HOME, "first"), []),
    "another folder in its place": (("first", "site-packages"), ["lib is now in first"]),
    "none in its place": (("site-packages",), []),
    "another folder of installed packages": (("home", "venv/site-packages"), []),
    "an installed package in its place": (("more/site-packages",), ["lib is now in site-packages"]),
    "no installed packages": (("home",), ["acc is no longer found"]),
    "another folder with an installed name": (("home", "second", "site-packages"), ["acc is now in second"]),
    "another folder with an installed name behind": ((*HOME, "second"), []),
}


@pytest.mark.parametrize("now", STARTS)
def test_what_python_starts_with_later_is_looked_into(run: Run, now: str) -> None:
    """PYTHONPATH, `.pth` files and editable installations."""
    run.write("first/lib.py", "venv/site-packages/acc.py", "more/site-packages/acc.py", "more/site-packages/lib.py")
    run.write("second/acc.py")
    start, reasons = STARTS[now]
    claim = run.claim("ws", *HOME, start=HOME, absent=("acc",))
    found = run.moved(claim, *start)
    assert [said.removeprefix("module ").partition(",")[0] for said in found] == reasons


def test_what_the_workspace_put_onto_the_path_stays_there(run: Run) -> None:
    """A folder first, one behind the root, one last; a folder of PYTHONPATH that it put first; and one that it took."""
    run.write("ws/src/pkg/__init__.py", "ws/vendor/v.py", "last/w.py", "gone/g.py", "first/pkg.py", "home/v.py")
    modules = {"pkg": "ws/src/pkg/__init__.py", "v": "ws/vendor/v.py", "w": "last/w.py"}
    claim = run.claim("ws/src", "ws", "ws/vendor", "home", "site-packages", "last",
                      start=("gone", "ws/src", *HOME), modules=modules, absent=("g", "x"))  # fmt: skip
    assert run.moved(claim, "gone", "ws/src", *HOME) == []
    assert run.moved(claim, "gone", "first", *HOME) == []
    run.write("other/w.py")
    assert [w.partition(",")[0] for w in run.moved(claim, "other", *HOME)] == ["module w is now in other"]
    assert run.moved(claim, *HOME, "last") == []
    assert run.moved(claim, "ws", *HOME) == []
    run.write("ws/x.py", "ws/src/x.py")
    assert run.moved(claim, *HOME) == ["module x is now in src, shadowing what was not there"]


def test_a_link_that_points_elsewhere_later_is_another_module(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root.parent / "farm/lib.py"
    link.parent.mkdir()
    link.symlink_to("../one/lib.py")
    claim = run.claim("ws", "farm", start=("farm",), modules={"lib": "one/lib.py"})
    assert run.moved(claim, "farm") == []
    link.unlink()
    link.symlink_to("../two/lib.py")
    assert run.moved(claim, "farm") == [f"module lib is now lib.py, shadowing {claim['modules']['lib']}"]


def test_a_folder_that_is_a_link_elsewhere_later_has_other_modules(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root / "src/linked"
    link.symlink_to("../../one")
    claim = run.claim("ws/src/linked", "ws", modules={"lib": "one/lib.py"})
    assert claim["search"]["where"]["ws:src/linked"] == ["lib"]
    assert run.moved(claim) == []
    link.unlink()
    link.symlink_to("../../two")
    assert run.moved(claim) == [f"module lib is now lib.py, shadowing {claim['modules']['lib']}"]


def test_on_another_machine_only_the_workspace_is_looked_into(run: Run) -> None:
    modules = {**LIB, "train": "ws/src/pkg/train.py"}
    start = ("first", *HOME)
    claim = run.claim("first", "ws", "ws/src/pkg", "home", "site-packages", start=start, modules=modules,
                      absent=("acc", "fast", "lib"), wanted=("fast",))  # fmt: skip
    run.write("first/lib.py", "first/train.py", "first/acc.py", "home/fast.py", "ws/src/pkg/acc.py")
    assert run.moved(claim, here=False) == [f"module {n} is now in pkg, shadowing {s}" for n, s in (
        ("acc", "the installed one"),)]  # fmt: skip
    (run.root / "src/pkg/acc.py").unlink()
    (run.root.parent / "home/lib").rename(run.root.parent / "home/bil")
    assert run.moved(claim, here=False) == []
    run.write("ws/lib.py")
    assert [w.partition(",")[0] for w in run.moved(claim, here=False)] == ["module lib is now in the workspace"]
    (run.root / "lib.py").unlink()
    (run.root / "src/pkg/train.py").unlink()
    assert run.moved(claim, here=False) == ["module train is no longer found"]


def test_a_folder_of_the_workspace_behind_another_machines_is_behind_it(run: Run) -> None:
    claim = run.claim("ws", "home", "ws/src/pkg", start=("home",))
    run.write("ws/src/pkg/lib.py")
    assert run.moved(claim, here=False) == []


def test_python_is_asked_for_the_path_that_it_starts_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the command line is not its own process, as in pytest."""
    monkeypatch.setattr(gradproof, "STARTED", None)
    places = os.pathsep.join(run.places(("first", "home")))
    monkeypatch.setenv("PYTHONPATH", places)
    found = started()
    assert found is not None
    assert [p for p in found if str(run.root.parent) in p] == run.places(("first", "home"))
    assert any(p.endswith("site-packages") for p in found)
    for python in ("/nowhere/python", "/bin/true", "/bin/false"):
        monkeypatch.setattr(sys, "executable", python)
        assert started() is None


def test_nobody_is_believed_who_does_not_know_the_path(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = run.claim("ws", "home", start=("home",))
    monkeypatch.setattr("gradproof.search.started", lambda *args: None)
    assert "cannot be started" in run.moved(claim, "home")[0]
    assert run.moved(claim, here=False) == []


def kept(toy: Workspace, layer: Layer) -> Store:
    """A store with the evidence of one check that rests on src/deep.py, found by a sys.path that was changed."""
    (toy.root / "src").mkdir()
    (toy.root / "src/deep.py").write_text("")
    files = {f"ws:{name}": sha256_of(toy.root / name) for name in ("symbolic/toy.py", "src/deep.py")}
    modules = {"symbolic.toy": "ws:symbolic/toy.py", "deep": "ws:src/deep.py"}
    of = check(layer=layer)
    path = ["ws:lib", "ext:/nowhere", "ws:src"]
    search = {"start": [], "path": path, "where": {"ws:src": ["deep"]}, "apart": {}, "wanted": []}
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
    {}, [], {**NO_SEARCH, "start": "a"}, {**NO_SEARCH, "path": [1]}, {**NO_SEARCH, "where": []},
    {**NO_SEARCH, "where": {"site": "a"}}, {**NO_SEARCH, "where": {"site": [1]}}, {**NO_SEARCH, "apart": {"a": 1}},
    {**NO_SEARCH, "wanted": {}}, {**NO_SEARCH, "more": 1}, {k: v for k, v in NO_SEARCH.items() if k != "wanted"},
]  # fmt: skip


@pytest.mark.parametrize("search", BROKEN)
def test_a_search_of_another_shape_is_no_evidence(search: Any) -> None:
    of = check()
    made = copy.deepcopy(record(of, answer(of)))
    validate(made)
    made["claim"]["search"] = search
    with pytest.raises(ValueError, match=r"claim\.search"):
        validate(made)
