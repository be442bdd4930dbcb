"""What a run notes of its imports, and evidence that rests on it."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from search_bench import HOME, LIB, LIBRARY, Run, hiding, made, shown, where
from toy_workspace import answer, check, recorded, taken

from gradproof.core.outcome import Layer
from gradproof.core.workspace import Finder, Workspace, sha256_of
from gradproof.evidence.import_path import EITHER, ROOT, SITE, START
from gradproof.evidence.inputs import place_of
from gradproof.evidence.record import record
from gradproof.evidence.store import Store


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    return made(tmp_path / "ws", monkeypatch)


def test_what_a_run_notes(run: Run) -> None:
    run.write("ws/own.py", "behind/lib.py", "site-packages/json.py")
    imports = run.imports("ws/src/pkg", "ws", "first", *HOME, "behind", "behind", start=("first", *HOME),
                          names=(*LIB, "train", "own", "acc", "gone"), others=("json", "absent", "spare"))  # fmt: skip
    assert [search["path"] for search in imports] == [
        ["ws:src/pkg", ROOT, START, f"{run.out}/behind"], [f"{run.out}/home/lib"], [ROOT, START],
    ]  # fmt: skip
    assert {name: imports[0]["names"][name] for name in imports[0]["names"]} == {
        "lib": f"{run.out}/home/lib/__init__.py", "train": "ws:src/pkg/train.py", "own": "ws:own.py", "acc": SITE,
        "gone": "", "json": EITHER, "absent": EITHER, "spare": f"{run.out}/home/spare.py",
    }  # fmt: skip
    assert imports[1]["names"] == {"lib.part": f"{run.out}/home/lib/part.py"}
    assert not {"lib", "json"} & set(imports[2]["names"])
    assert run.moved(imports, "first", *HOME) == []


def test_the_names_of_the_engine_are_nobody_elses(run: Run) -> None:
    run.write("ws/gradproof/__init__.py")
    imports = run.imports("ws", names=("gradproof", "gradproof.core.outcome"))
    assert [name for search in imports for name in search["names"] if name.startswith("gradproof")] == []


def test_what_is_loaded_and_was_not_asked_for_is_looked_for_where_python_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what the engine imports, and libraries of a process from which workers are forked."""
    for name in ("acc", "acc.deep", "bare", "frozen"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("acc", "acc.deep", "bare"):
        monkeypatch.setattr(sys.modules[name], "__file__", "somewhere", raising=False)
    imports = run.imports("ws", *HOME, start=HOME, names=())
    names = imports[0]["names"]
    assert (imports[0]["path"], names["acc"], names["bare"]) == ([ROOT, START], EITHER, EITHER)
    assert not {"acc.deep", "frozen"} & set(names)
    for place in ("ws/bare.py", "first/acc.py"):
        run.write(place)
        assert len(run.moved(imports, "first", *HOME)) == 1
        run.remove(place)
    assert where(run.imports("ws", "ws/src", *HOME, start=HOME, names=("bare",)), "bare") == [""]


def test_the_root_counts_where_the_path_does_not_have_it_and_content_is_there_alone(run: Run) -> None:
    run.write("ws/own.py", "ws/models/a.py", "ws/models/__init__.py", "home/models/a.py", "home/own.py")
    run.write("home/symbolic/__init__.py")
    names = ("own", "models", "models.a", "symbolic")
    for path, start in ((HOME, HOME), (("ws", *HOME), ("home", "ws")), (("home", "ws"), ())):
        imports = run.imports(*path, start=start, names=names)
        assert where(imports, "own") == [f"{run.out}/home/own.py" if start == () else "ws:own.py"]
        assert where(imports, "models") + where(imports, "models.a") == ["ws:models/__init__.py", "ws:models/a.py"]
        assert where(imports, "symbolic") == [""]
        assert run.moved(imports, *start) == []
    run.write("ws/symbolic/__init__.py")
    assert shown(run.moved(imports)) == ["symbolic ws:symbolic/__init__.py"]


def test_each_path_on_which_a_run_looked_counts(run: Run) -> None:
    """Folders that were on the path for a while, and those of a package: what was not there then must not be there."""
    run.write("temp/had.py", "ws/pk/__init__.py", "more/part.py")
    finder, ours = Finder(run.root), {str(run.root / "models/a.py")}
    finder.asked = {
        ("own", False, (*run.places(("ws",)), "/nowhere")): ours,
        **{(name, False, run.places(("temp", "ws", "home"))): ours for name in ("had", "new", "lib", "models")},
        ("pk.part", True, run.places(("ws/pk", "more"))): ours,
        ("pk.other", True, run.places(("more",))): ours,
    }
    imports = run.imports("ws", "home", start=("home",), names=(), finder=finder)
    assert run.moved(imports, "home") == []
    later = {
        "new": "temp/new.py",
        "lib": "temp/lib/__init__.py",
        "pk.part": "ws/pk/part.py",
        "pk.other": "more/other.py",
    }
    for name, place in later.items():
        key = place.replace("ws/", "ws:") if place.startswith("ws/") else ""
        run.write(place)
        assert shown(run.moved(imports, "home")) == [f"{name} {key or f'{run.out}/{place}'}"]
        run.remove(place)
    run.write("temp/new.py", "ws/pk/part.py")
    assert len(run.moved(imports, here=False)) == 1


def test_parts_of_installed_packages_count_where_own_code_asked_for_them(run: Run) -> None:
    imports = run.imports("ws", *HOME, start=HOME, names=("acc.fast",), others=("acc.slow",))
    assert (where(imports, "acc.fast"), where(imports, "acc.slow")) == ([""], [])
    run.write("site-packages/acc/fast.py")
    assert hiding(run.moved(imports, *HOME)) == ["acc.fast installed not there"]


def test_installed_packages_that_the_workspace_brings_are_a_folder_of_its_own(run: Run) -> None:
    run.write("vendor/site-packages/v.py")
    imports = run.imports("vendor/site-packages", "ws", *HOME, start=HOME, names=("v",))
    assert where(imports, "v") == [f"{run.out}/vendor/site-packages/v.py"]
    run.write("first/v.py")
    assert run.moved(imports, "first", *HOME) == []


def test_a_virtual_environment_below_the_root_is_no_part_of_the_workspace(run: Run) -> None:
    run.write("ws/venv/site-packages/v.py")
    start = (LIBRARY, "ws/venv/site-packages")
    assert where(run.imports("ws", *start, start=start, names=("v",)), "v") == [SITE]


def test_a_shadowed_package_is_reported_without_its_parts(run: Run) -> None:
    run.write("home/ns/deep/a.py")
    imports = run.imports("ws", "first", "home", start=("first", "home"), names=("ns", "ns.deep", "ns.deep.a"))
    run.write("first/ns/deep/__init__.py")
    assert shown(run.moved(imports, "first", "home")) == [f"ns.deep {run.out}/first/ns/deep/__init__.py"]


FORGED: list[dict[str, Any]] = [
    {"path": ["what:x", "ext:/nowhere", "ws:../home", START], "names": {"a": "what:a.py", "d": "ws:d.py", "b": SITE}},
    {"path": [], "names": {"c": "ext:/c.py", ".": "", "": "", "e/f": "", ".".join("g" * 3000): "ws:g.py"}},
]


@pytest.mark.parametrize("here", [True, False])
def test_a_claim_of_folders_that_there_are_none_is_no_crash(run: Run, here: bool) -> None:
    run.write("ws/b.py", "ws/c.py")
    stated = {why.removeprefix("module ").split(" ")[0][:3] for why in run.moved(FORGED, here=here)}
    assert stated == ({"a", "b", "c", "d", "g.g"} if here else {"d", "g.g"})


def test_what_no_folder_has_under_its_name_counts_by_its_content(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is loaded from a file, under a name of its own."""
    monkeypatch.setitem(sys.modules, "other", ModuleType("other"))
    monkeypatch.setattr(sys.modules["other"], "__file__", "somewhere", raising=False)
    imports = run.imports("ws", "home")
    assert where(imports, "other") == [EITHER]
    run.write("ws/other.py")
    assert hiding(run.moved(imports, "home")) == ["other ws:other.py installed any"]


def kept(toy: Workspace, layer: Layer) -> Store:
    """A store with the evidence of one check that rests on src/deep.py, found by a sys.path that was changed."""
    (toy.root / "src").mkdir()
    (toy.root / "src/deep.py").write_text("")
    files = {f"ws:{name}": sha256_of(toy.root / name) for name in ("symbolic/toy.py", "src/deep.py")}
    of = check(layer=layer)
    files["gp:core/check.py"] = sha256_of(Path(place_of("gp:core/check.py", toy.root) or ""))
    names = {"symbolic.toy": "ws:symbolic/toy.py", "deep": "ws:src/deep.py"}
    imports = [{"path": ["ws:lib", "ext:/nowhere", ROOT, START, "ws:src"], "names": names}]
    store = Store(toy)
    store.write(recorded(of, answer(of), inputs={"files": files, "imports": imports}))
    return store


@pytest.mark.parametrize("layer", [Layer.SMT, Layer.CUDA])
def test_evidence_on_a_source_folder_is_fresh_until_something_shadows_it(toy: Workspace, layer: Layer) -> None:
    store = kept(toy, layer)
    assert "deep" not in store.status(check(layer=layer)).reason
    (toy.root / "lib").mkdir()
    (toy.root / "lib/deep.py").write_text("")
    assert hiding([Store(toy).status(check(layer=layer)).reason]) == ["deep ws:lib/deep.py ws:src/deep.py"]


BROKEN: list[Any] = [
    {}, [{}], ["a"], [{"path": []}], [{"path": "a", "names": {}}], [{"path": [1], "names": {}}],
    [{"path": [], "names": []}], [{"path": [], "names": {"a": 1}}], [{"path": [], "names": {}, "more": 1}],
    [{"path": [], "names": {"a\0": ""}}], [{"path": ["a\0"], "names": {}}],
]  # fmt: skip


@pytest.mark.parametrize("imports", BROKEN)
def test_imports_of_another_shape_are_no_evidence(imports: Any) -> None:
    of = check()
    made = copy.deepcopy(record(of, answer(of)))
    taken(made)
    made["claim"]["imports"] = imports
    with pytest.raises(ValueError, match=r"claim\.imports"):
        taken(made)


def test_evidence_of_the_format_before_is_refused_with_what_to_run() -> None:
    of = check()
    old = {**record(of, answer(of)), "schema": "gradproof-evidence/1"}
    with pytest.raises(ValueError, match=r"evidence/1'.* 'gradproof-evidence/2'.* gradproof verify$"):
        taken(old)
