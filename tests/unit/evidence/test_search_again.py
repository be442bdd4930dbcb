"""Where names would be found now that a run asked for: stated where it is elsewhere, and only there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from search_bench import HOME, LIB, Run, made

import gradproof
from gradproof.__main__ import began
from gradproof.evidence.import_path import started


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    return made(tmp_path / "ws", monkeypatch)


NAMES: dict[str, tuple[str, list[str]]] = {
    "nothing": ("first/data.txt", []),
    "a module in a folder before": ("first/lib.py", ["lib first ext:"]),
    "a package in a folder before": ("first/lib/__init__.py", ["lib first ext:"]),
    "a folder without code before": ("first/lib/data.txt", []),
    "a part without its package before": ("first/lib/part.py", []),
    "a module in a folder behind": ("behind/lib.py", []),
    "a package in the place of a part": ("home/lib/part/__init__.py", ["lib.part __init__.py ext:"]),
    "a module at the root": ("ws/lib.py", ["lib workspace ext:"]),
    "another name": ("first/other.py", []),
    "a name that was not there, at the root": ("ws/fast.py", ["fast now exists"]),
    "a name that was not there, on the path": ("home/fast.py", ["fast home what"]),
    "a part that was not there": ("home/lib/_c.py", ["lib._c home what"]),
    "a package that was a mere folder": ("home/ns/__init__.py", ["ns home what"]),
    "a name of Python itself": ("first/colorsys.py", ["colorsys first what"]),
    "a name of Python itself, behind it": ("site-packages/colorsys.py", []),
    "an installed name": ("first/acc.py", ["acc first installed"]),
    "content that was not there": ("ws/symbolic/__init__.py", ["symbolic now exists"]),
    "content elsewhere": ("first/models/__init__.py", []),
    "what user code asked for, installed": ("site-packages/fast.py", ["fast site-packages what"]),
    "what other code asked for, installed": ("site-packages/quick.py", []),
    "an installed name, at the root": ("ws/acc.py", ["acc workspace installed"]),
    "a name that was asked for and not loaded": ("first/spare.py", ["spare first ext:"]),
}  # fmt: skip


@pytest.mark.parametrize("new", NAMES)
def test_what_is_found_elsewhere_later_is_told(run: Run, new: str) -> None:
    place, reasons = NAMES[new]
    start = ("first", *HOME, "behind")
    claim = run.claim("ws", *start, start=start, absent=("fast", "lib._c", "ns", "acc", "quick", "models", "spare",
                                                        "symbolic"),
                      wanted=("fast",))  # fmt: skip
    assert run.moved(claim, *start) == []
    run.write(place)
    found = run.told(claim, *start)
    assert len(found) == len(reasons)
    assert all(said.startswith(words) for words, said in zip(reasons, found, strict=True))


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
    assert [words.rpartition(" ")[0] for words in run.told(claim, *start)] == ["ns.b first"]
    run.write("behind/ns/a.py")
    assert len(run.moved(claim, *start)) == 2
    (run.root.parent / "home/out/pk/core.py").unlink()
    assert "pk.core" in run.told(claim, *start)


def test_a_folder_that_had_the_name_already_is_no_news(run: Run) -> None:
    """As where a workspace put a folder onto its path, imported from there, and took it off again."""
    run.write("first/lib.py", "ws/lib.py")
    claim = run.claim("ws", "first", start=("first",))
    assert set(claim["search"]["apart"]) == set(LIB)
    assert run.moved(claim, "first") == []
    (run.root / "lib.py").unlink()
    assert run.told(claim, "first") == [f"lib first {claim['modules']['lib']}"]


def test_forms_in_which_a_module_may_lie(run: Run) -> None:
    claim = run.claim("ws", *HOME, start=HOME, absent=("fast", "gone", "ns.fast"), wanted=("ns.fast",),
                      modules={"acc": "site-packages/acc/__init__.py", "rdq": "site-packages/rdq.py"})  # fmt: skip
    assert "rdq" in claim["search"]["apart"]
    run.write("site-packages/rdq.py", "site-packages/ns/a.py")
    claim = run.claim("ws", *HOME, start=HOME, absent=("fast", "gone", "ns.fast"), wanted=("ns.fast",),
                      modules={"acc": "site-packages/acc/__init__.py", "rdq": "site-packages/rdq.py"})  # fmt: skip
    assert run.moved(claim, *HOME) == []
    for place, said in (("home/fast.pyc", "fast home "), ("site-packages/ns/fast.py", "ns.fast "),
                        ("site-packages/rdq/__init__.py", "rdq __init__.py ext:")):  # fmt: skip
        run.write(place)
        [found] = run.told(claim, *HOME)
        assert found.startswith(said)
        (run.root.parent / place).unlink()
    run.write("new.zip")
    [found] = run.told(claim, "new.zip", *HOME)
    assert found.startswith("new.zip ")
    assert run.moved(run.claim("ws", "new.zip", *HOME, start=("new.zip", *HOME), modules={}), "new.zip", *HOME) == []


LIBRARY = str(Path(os.__file__).resolve().parent)


def test_a_folder_of_packages_before_pythons_own_library_is_no_installation(run: Run) -> None:
    """As one that is called site-packages, on PYTHONPATH."""
    claim = run.claim("ws", "site-packages", start=(LIBRARY, "site-packages"), absent=("acc",))
    run.write("fr/site-packages/acc.py")
    assert run.moved(claim, LIBRARY, "fr/site-packages", "site-packages") == []
    [found] = run.told(claim, "fr/site-packages", LIBRARY, "site-packages")
    assert found.startswith("acc site-packages ")


def test_a_folder_that_the_workspace_put_among_others_has_new_ones_before_it(run: Run) -> None:
    run.write("mine/m.py", "first/m.py")
    modules = {"m": "mine/m.py"}
    for path in (("ws", "home", "mine", "site-packages"), ("ws", "home", "site-packages", "mine")):
        claim = run.claim(*path, start=HOME, modules=modules)
        assert run.moved(claim, *HOME) == run.moved(claim, *reversed(HOME)) == []
        assert run.told(claim, "first", *HOME) == [f"m first {claim['modules']['m']}"]
    assert len(run.moved(claim, *HOME, "first")) == 1
    claim = run.claim("mine", "ws", *HOME, start=HOME, modules=modules)
    assert run.moved(claim, "first", *HOME) == run.moved(claim, "first") == []
    claim = run.claim("ws", "mine", start=HOME, modules=modules)
    assert len(run.moved(claim, "first")) == 0


STARTS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "the same": (HOME, []),
    "a new folder without the name first": (("behind", *HOME), []),
    "a new folder with the name first": (("first", *HOME), ["lib first"]),
    "a new folder with the name behind": ((*HOME, "first"), []),
    "another folder in its place": (("first", "site-packages"), ["lib first"]),
    "none in its place": (("site-packages",), []),
    "another folder of installed packages": (("home", "venv/site-packages"), []),
    "an installed package in its place": (("more/site-packages",), ["lib site-packages"]),
    "no installed packages": (("home",), ["acc"]),
    "another folder with an installed name": (("home", "second", "site-packages"), ["acc second"]),
    "another folder with an installed name behind": ((*HOME, "second"), []),
}


@pytest.mark.parametrize("now", STARTS)
def test_what_python_starts_with_later_is_looked_into(run: Run, now: str) -> None:
    """PYTHONPATH, `.pth` files and editable installations."""
    run.write("first/lib.py", "venv/site-packages/acc.py", "more/site-packages/acc.py", "more/site-packages/lib.py")
    run.write("second/acc.py")
    start, reasons = STARTS[now]
    claim = run.claim("ws", *HOME, start=HOME, absent=("acc",))
    assert [" ".join(said.split(" ")[:2]) for said in run.told(claim, *start)] == reasons


def test_what_the_workspace_put_onto_the_path_stays_there(run: Run) -> None:
    """A folder first, one behind the root, one last; a folder of PYTHONPATH that it put first; and one that it took."""
    run.write("ws/src/pkg/__init__.py", "ws/vendor/v.py", "last/w.py", "gone/g.py", "first/pkg.py", "home/v.py")
    modules = {"pkg": "ws/src/pkg/__init__.py", "v": "ws/vendor/v.py", "w": "last/w.py"}
    claim = run.claim("ws/src", "ws", "ws/vendor", "home", "site-packages", "last",
                      start=("gone", "ws/src", *HOME), modules=modules, absent=("g", "x"))  # fmt: skip
    assert run.moved(claim, "gone", "ws/src", *HOME) == []
    assert run.moved(claim, "gone", "first", *HOME) == []
    run.write("other/w.py")
    assert run.told(claim, "other", *HOME) == [f"w other {claim['modules']['w']}"]
    assert run.moved(claim, *HOME, "last") == []
    assert run.moved(claim, "ws", *HOME) == []
    run.write("ws/x.py", "ws/src/x.py")
    assert run.told(claim, *HOME) == ["x src what"]


def test_a_link_that_points_elsewhere_later_is_another_module(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root.parent / "farm/lib.py"
    link.parent.mkdir()
    link.symlink_to("../one/lib.py")
    claim = run.claim("ws", "farm", start=("farm",), modules={"lib": "one/lib.py"})
    assert run.moved(claim, "farm") == []
    link.unlink()
    link.symlink_to("../two/lib.py")
    assert run.told(claim, "farm") == [f"lib lib.py {claim['modules']['lib']}"]


def test_a_folder_that_is_a_link_elsewhere_later_has_other_modules(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root / "src/linked"
    link.symlink_to("../../one")
    claim = run.claim("ws/src/linked", "ws", modules={"lib": "one/lib.py"})
    assert claim["search"]["where"]["ws:src/linked"] == ["lib"]
    assert run.moved(claim) == []
    link.unlink()
    link.symlink_to("../../two")
    assert run.told(claim) == [f"lib lib.py {claim['modules']['lib']}"]


def test_on_another_machine_only_the_workspace_is_looked_into(run: Run) -> None:
    modules = {**LIB, "train": "ws/src/pkg/train.py"}
    start = ("first", *HOME)
    claim = run.claim("first", "ws", "ws/src/pkg", "home", "site-packages", start=start, modules=modules,
                      absent=("acc", "fast", "lib"), wanted=("fast",))  # fmt: skip
    run.write("first/lib.py", "first/train.py", "first/acc.py", "home/fast.py", "ws/src/pkg/acc.py")
    assert run.told(claim, here=False) == ["acc pkg installed"]
    (run.root / "src/pkg/acc.py").unlink()
    (run.root.parent / "home/lib").rename(run.root.parent / "home/bil")
    assert run.moved(claim, here=False) == []
    run.write("ws/lib.py")
    assert run.told(claim, here=False) == [f"lib workspace {claim['modules']['lib']}"]
    (run.root / "lib.py").unlink()
    (run.root / "src/pkg/train.py").unlink()
    assert run.told(claim, here=False) == ["train"]


def test_a_link_of_the_workspace_and_a_name_that_it_lost_count_on_another_machine(run: Run) -> None:
    run.write("ws/deep/one.py", "ws/deep/two.py", "ws/lost/spare.py", "ws/lost/lib.py")
    (run.root / "src/pkg/one.py").symlink_to("../../deep/one.py")
    claim = run.claim("ws/src/pkg", "ws/lost", modules={"pkg": "ws/src/pkg/train.py", "one": "ws/deep/one.py"},
                      absent=("spare",))  # fmt: skip
    assert run.moved(claim, here=False) == []
    (run.root / "src/pkg/one.py").unlink()
    (run.root / "src/pkg/one.py").symlink_to("../../deep/two.py")
    (run.root / "lost/spare.py").unlink()
    assert run.told(claim, here=False) == ["one one.py ws:deep/one.py", "spare"]


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
    monkeypatch.setattr("gradproof.evidence.import_path.started", lambda *args: None)
    assert "cannot be started" in run.moved(claim, "home")[0]
    assert run.moved(claim, here=False) == []


STRANGE: dict[str, dict[str, str]] = {
    "a home of Python's": {"PYTHONHOME": "/x"},
    "another user's folder": {"PYTHONUSERBASE": "/x"},
    "the current folder": {"PYTHONPATH": f"{os.pathsep}/x"},
}


@pytest.mark.parametrize("name", ["", *STRANGE, "a start-up file"])
def test_the_command_line_knows_its_path_where_a_worker_has_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPATH"):
        monkeypatch.delenv(variable, raising=False)
    for module in ("sitecustomize", "usercustomize"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for variable, value in STRANGE.get(name, {}).items():
        monkeypatch.setenv(variable, value)
    if name == "a start-up file":
        monkeypatch.setitem(sys.modules, "usercustomize", ModuleType("usercustomize"))
    monkeypatch.setattr(sys, "argv", ["/own/bin/gradproof"])
    monkeypatch.setattr(sys, "path", ["/own/bin", "/a", "/own/bin"])
    assert began() == (None if name else ("/a", "/own/bin"))
    monkeypatch.setattr(sys, "path", ["/a", "/own/bin"])
    assert began() == (None if name else ("/a", "/own/bin"))
