"""Where names would be found now that a run asked for: stated where it is elsewhere, and only there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from search_bench import HOME, LIBRARY, Run, hiding, made, shown, where
from toy_workspace import check

from gradproof.core.schemas.evidence import ImportSearch
from gradproof.core.workspace import Workspace
from gradproof.evidence.import_path import Search, started
from gradproof.evidence.store import Store


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    return made(tmp_path / "ws", monkeypatch)


NAMES: dict[str, tuple[str, list[str]]] = {
    "nothing": ("first/data.txt", []),
    "a module in a folder before": ("first/lib.py", ["lib {new} {home}/lib/__init__.py"]),
    "a package in a folder before": ("first/lib/__init__.py", ["lib {new} {home}/lib/__init__.py"]),
    "a folder without code before": ("first/lib/data.txt", []),
    "a part without its package before": ("first/lib/part.py", []),
    "a module in a folder behind": ("behind/lib.py", []),
    "a package in the place of a part": (
        "home/lib/part/__init__.py", ["lib.part {new} {home}/lib/part.py"]),
    "a module at the root": ("ws/lib.py", ["lib ws:lib.py {home}/lib/__init__.py"]),
    "another name": ("first/other.py", []),
    "a name that was not there, at the root": ("ws/fast.py", ["fast ws:fast.py not there"]),
    "a name that was not there, on the path": ("home/fast.py", ["fast {new} not there"]),
    "a part that was not there": ("home/lib/_c.py", ["lib._c {new} not there"]),
    "a package that was a mere folder": ("home/ns/__init__.py", ["ns {new} not there"]),
    "a name of Python itself": ("first/colorsys.py", ["colorsys {new} installed"]),
    "a name of Python itself, behind it": ("site-packages/colorsys.py", []),
    "an installed name": ("first/acc.py", ["acc {new} installed"]),
    "content that was not there": (
        "ws/symbolic/__init__.py", ["symbolic ws:symbolic/__init__.py not there"]),
    "content elsewhere": ("first/models/__init__.py", []),
    "what user code asked for, installed": (
        "site-packages/fast.py", ["fast installed not there"]),
    "what other code asked for, installed": ("site-packages/quick.py", []),
    "what other code asked for, elsewhere": (
        "first/quick.py", ["quick {new} installed any"]),
    "an installed name, at the root": ("ws/acc.py", ["acc ws:acc.py installed"]),
    "a name that was asked for and not loaded": ("first/spare.py", ["spare {new} {home}/spare.py"]),
}  # fmt: skip
ASKED = ("lib", "lib.part", "lib._c", "fast", "ns", "acc", "models", "spare", "symbolic", "colorsys")


@pytest.mark.parametrize("new", NAMES)
def test_what_is_found_elsewhere_later_is_reported(run: Run, new: str) -> None:
    place, reasons = NAMES[new]
    start = ("first", *HOME, "behind")
    imports = run.imports("ws", *start, start=start, names=ASKED, others=("quick",))
    assert run.moved(imports, *start) == []
    run.write(place)
    words = [reason.format(new=f"{run.out}/{place}", home=f"{run.out}/home") for reason in reasons]
    assert hiding(run.moved(imports, *start)) == words


@pytest.mark.parametrize(
    ("gone", "name"),
    [("home/lib/part.py", "lib.part"), ("home/spare.py", "spare"), ("site-packages/acc/__init__.py", "acc")],
)
def test_what_is_gone_is_reported(run: Run, gone: str, name: str) -> None:
    imports = run.imports("ws", *HOME, start=HOME, names=("lib", "lib.part", "spare", "acc"))
    run.remove(gone)
    assert hiding(run.moved(imports, *HOME)) == [name]


PORTIONS = ("first/ns/a.py", "home/ns/b.py", "home/pk/__init__.py", "home/out/pk/core.py")


def test_a_package_in_several_folders_is_fresh_until_one_of_its_parts_is_shadowed(run: Run) -> None:
    run.write(*PORTIONS)
    start = ("behind", "first", "home")
    imports = run.imports("ws", *start, start=start, names=("ns", "ns.a", "ns.b"))
    assert (where(imports, "ns.a"), where(imports, "ns")) == ([f"{run.out}/first/ns/a.py"], [""])
    assert run.moved(imports, *start) == []
    run.write("first/ns/b.py")
    assert shown(run.moved(imports, *start)) == [f"ns.b {run.out}/first/ns/b.py"]
    run.write("behind/ns/a.py")
    assert len(run.moved(imports, *start)) == 2
    run.write("ws/late/ns/b.py", "home/ns/c.py")
    again = run.imports("ws", *start, "ws/late", start=start, names=("ns", "ns.b", "ns.c"))
    assert where(again, "ns.b") == ["ws:late/ns/b.py"]  # a run looks into the workspace's part of a package first


def test_forms_in_which_a_module_may_lie(run: Run) -> None:
    run.write("site-packages/rdq.py", "site-packages/ns/a.py")
    imports = run.imports("ws", *HOME, start=HOME, names=("fast", "gone", "ns", "ns.fast", "rdq", "acc"))
    assert run.moved(imports, *HOME) == []
    suffix = ".abi3.so" if os.name == "posix" else ".pyd"
    for place, said in (("home/fast.pyc", "fast {}"), (f"home/fast{suffix}", "fast {}"),
                        ("site-packages/ns/fast.py", "ns.fast installed")):  # fmt: skip
        run.write(place)
        assert shown(run.moved(imports, *HOME)) == [said.format(f"{run.out}/{place}")]
        run.remove(place)


def test_an_archive_is_looked_into(run: Run) -> None:
    imports = run.imports("ws", *HOME, start=HOME, names=("lib", "pk", "pk.part"))
    archive = run.root.parent / "new.zip"
    archive.write_text("no archive")
    assert run.moved(imports, "new.zip", *HOME) == []
    with ZipFile(run.root.parent / "new2.zip", "w") as made:
        made.writestr("other.py", "")
        made.writestr("gone.py", "what does not compile (")
    assert run.moved(imports, "new2.zip", *HOME) == []
    with ZipFile(run.root.parent / "new3.zip", "w") as made:
        made.writestr("lib.py", "")
        made.writestr("pk/", "")
        made.writestr("pk/part.py", "")
    assert shown(run.moved(imports, "new3.zip", *HOME)) == [
        f"lib {run.out}/new3.zip/lib.py", f"pk.part {run.out}/new3.zip/pk/part.py"
    ]  # fmt: skip
    broken = run.imports("ws", "new2.zip", start=("new2.zip",), names=("gone",))
    assert where(broken, "gone") == [""]


def test_a_folder_of_packages_before_pythons_own_library_is_no_installation(run: Run) -> None:
    """As one that is called site-packages, on PYTHONPATH."""
    start = (LIBRARY, "site-packages")
    imports = run.imports("ws", *start, start=start, names=("acc",))
    run.write("fr/site-packages/acc.py")
    assert run.moved(imports, LIBRARY, "fr/site-packages", "site-packages") == []
    assert shown(run.moved(imports, "fr/site-packages", *start)) == [f"acc {run.out}/fr/site-packages/acc.py"]


def test_a_folder_that_the_workspace_put_behind_others_has_new_ones_before_it(run: Run) -> None:
    run.write("mine/m.py", "first/m.py")
    for path in (("ws", "home", "mine", *HOME[1:]), ("ws", *HOME, "mine")):
        imports = run.imports(*path, start=HOME, names=("m",))
        assert imports[0]["path"] == ["ws:.", "start", f"{run.out}/mine"]
        assert run.moved(imports, *HOME) == run.moved(imports, *reversed(HOME)) == []
        assert shown(run.moved(imports, "first", *HOME)) == [f"m {run.out}/first/m.py"]
    assert len(run.moved(imports, *HOME, "first")) == 1
    for path in (("mine", "ws", *HOME), ("ws", "mine", *HOME), ("ws", "mine")):
        imports = run.imports(*path, start=HOME, names=("m",))
        assert run.moved(imports, "first", *HOME) == run.moved(imports, "first") == []


STARTS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "the same": (HOME, []),
    "a new folder without the name first": (("behind", *HOME), []),
    "a new folder with the name first": (("first", *HOME), ["lib {out}/first/lib.py"]),
    "a new folder with the name behind": ((*HOME, "first"), []),
    "another folder in its place": (("first", *HOME[1:]), ["lib {out}/first/lib.py"]),
    "none in its place": (HOME[1:], ["lib"]),
    "another folder of installed packages": (("home", LIBRARY, "venv/site-packages"), []),
    "an installed package in its place": ((LIBRARY, "more/site-packages"), ["lib installed"]),
    "no installed packages": (("home", LIBRARY), ["acc"]),
    "another folder with an installed name": (("home", "second", *HOME[1:]), ["acc {out}/second/acc.py"]),
    "another folder with an installed name behind": ((*HOME, "second"), []),
    "another order": (("second", "third", *HOME), ["two {out}/second/two.py"]),
}


@pytest.mark.parametrize("now", STARTS)
def test_what_python_starts_with_later_is_looked_into(run: Run, now: str) -> None:
    """PYTHONPATH, `.pth` files and editable installations."""
    run.write("first/lib.py", "venv/site-packages/acc.py", "more/site-packages/acc.py", "more/site-packages/lib.py")
    run.write("second/two.py", "third/two.py")
    start, reasons = STARTS[now]
    turned = now == "another order"
    began = ("third", "second", *HOME) if turned else HOME
    imports = run.imports("ws", *began, start=began, names=("two",) if turned else ("lib", "acc"))
    run.write("second/acc.py")
    assert shown(run.moved(imports, *start)) == [reason.format(out=run.out) for reason in reasons]


def test_what_the_workspace_put_onto_the_path_stays_there(run: Run) -> None:
    """A folder first, one behind the root, one last; a folder of PYTHONPATH that it put first; and one that it took."""
    run.write("ws/src/pkg/__init__.py", "ws/vendor/v.py", "last/w.py", "gone/g.py", "first/pkg.py", "home/v.py")
    imports = run.imports("ws/src", "ws", "ws/vendor", *HOME, "last", start=("gone", "ws/src", *HOME),
                          names=("pkg", "v", "w", "x"))  # fmt: skip
    assert imports[0]["path"] == ["ws:src", "ws:.", "ws:vendor", "start", f"{run.out}/last"]
    assert run.moved(imports, "gone", "ws/src", *HOME) == []
    assert run.moved(imports, "gone", "first", *HOME) == []
    run.write("other/w.py")
    assert shown(run.moved(imports, "other", *HOME)) == [f"w {run.out}/other/w.py"]
    assert run.moved(imports, *HOME, "last") == []
    assert run.moved(imports, "ws", *HOME) == []
    run.write("ws/x.py", "ws/src/x.py")
    assert shown(run.moved(imports, *HOME)) == ["x ws:src/x.py"]


def test_a_link_that_points_elsewhere_later_is_another_module(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root.parent / "farm/lib.py"
    link.parent.mkdir()
    link.symlink_to("../one/lib.py")
    imports = run.imports("ws", "farm", start=("farm",), names=("lib",))
    assert run.moved(imports, "farm") == []
    link.unlink()
    link.symlink_to("../two/lib.py")
    assert hiding(run.moved(imports, "farm")) == [f"lib {run.out}/two/lib.py {run.out}/one/lib.py"]


def test_a_folder_that_is_a_link_elsewhere_later_has_other_modules(run: Run) -> None:
    run.write("one/lib.py", "two/lib.py")
    link = run.root / "src/linked"
    link.symlink_to("../../one")
    imports = run.imports("ws/src/linked", "ws", names=("lib",))
    assert imports[0]["path"][0] == "ws:src/linked"
    assert run.moved(imports) == []
    link.unlink()
    link.symlink_to("../../two")
    assert shown(run.moved(imports)) == [f"lib {run.out}/two/lib.py"]


def test_on_another_machine_only_the_workspace_is_looked_into(run: Run) -> None:
    start = ("first", *HOME)
    imports = run.imports("first", "ws", "ws/src/pkg", *HOME, start=start,
                          names=("lib", "lib.part", "train", "acc", "fast"), others=("quick",))  # fmt: skip
    run.write("first/lib.py", "first/train.py", "first/acc.py", "home/fast.py", "home/lib/_c.py")
    assert run.moved(imports, here=False) == []
    run.write("ws/src/pkg/acc.py", "ws/src/pkg/fast.py", "ws/src/pkg/quick.py")
    assert shown(run.moved(imports, here=False)) == [f"{n} ws:src/pkg/{n}.py" for n in ("acc", "fast", "quick")]
    for name in ("acc", "fast", "quick"):
        run.remove(f"ws/src/pkg/{name}.py")
    (run.root.parent / "home/lib").rename(run.root.parent / "home/bil")
    assert run.moved(imports, here=False) == []
    run.write("ws/lib.py")
    assert shown(run.moved(imports, here=False)) == ["lib ws:lib.py"]
    run.remove("ws/lib.py")
    run.remove("ws/src/pkg/train.py")
    assert hiding(run.moved(imports, here=False)) == ["train"]


def test_a_link_of_the_workspace_and_a_name_that_it_lost_count_on_another_machine(run: Run) -> None:
    run.write("ws/deep/one.py", "ws/deep/two.py", "ws/lost/spare.py", "ws/lost/lib.py")
    (run.root / "src/pkg/one.py").symlink_to("../../deep/one.py")
    imports = run.imports("ws/src/pkg", "ws/lost", names=("one", "spare"))
    assert run.moved(imports, here=False) == []
    (run.root / "src/pkg/one.py").unlink()
    (run.root / "src/pkg/one.py").symlink_to("../../deep/two.py")
    run.remove("ws/lost/spare.py")
    assert hiding(run.moved(imports, here=False)) == ["one ws:deep/two.py ws:deep/one.py", "spare"]


def test_a_folder_of_the_workspace_behind_another_machines_is_behind_it(run: Run) -> None:
    begun = run.imports("ws", "home", "ws/src/pkg", start=("home",), names=("lib",))
    put = run.imports("ws", "first", "ws/src", "home", "ws/src/pkg", start=("first",), names=("lib",))
    run.write("ws/src/pkg/lib.py")
    assert run.moved(begun, here=False) == run.moved(put, here=False) == []
    run.write("ws/src/lib.py")
    assert run.moved(begun, here=False) == []
    assert shown(run.moved(put, here=False)) == ["lib ws:src/lib.py"]


def test_python_is_asked_for_the_path_that_it_starts_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    places = run.places(("first", "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    found = started()
    assert found is not None
    assert tuple(p for p in found if str(run.root.parent) in p) == places
    assert any(p.endswith("site-packages") for p in found)
    for python in ("/nowhere/python", "/bin/true", "/bin/false"):
        monkeypatch.setattr(sys, "executable", python)
        assert started() is None


def test_nobody_is_believed_who_does_not_know_the_path(
    run: Run, toy: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = run.imports("ws", "home", start=("home",))
    assert "cannot be started" in Search(run.root, None).moved(map(ImportSearch.model_validate, imports))[0]
    monkeypatch.setattr("gradproof.evidence.store.started", lambda: None)
    assert "cannot be started" in Store(toy)._search(check()).moved(map(ImportSearch.model_validate, imports))[0]
