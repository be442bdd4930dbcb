"""What a run notes of its import path, and evidence that rests on it."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from search_bench import HOME, LIB, MOVED, Run, made
from toy_workspace import answer, check

from gradproof.core.outcome import Layer
from gradproof.core.workspace import PACKAGE, Finder, Workspace, sha256_of
from gradproof.evidence.import_path import ROOT, SITE, _folders, home_of, searched
from gradproof.evidence.inputs import place_of
from gradproof.evidence.record import NO_SEARCH, record, validate
from gradproof.evidence.store import Store


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A workspace, and folders beside it."""
    return made(tmp_path / "ws", monkeypatch)


def test_a_module_has_the_folder_that_its_name_begins_in() -> None:
    assert home_of("a", Path("/x/a.py")) == Path("/x")
    assert home_of("a.b", Path("/x/a/b.py")) == Path("/x")
    assert home_of("a.b", Path("/x/a/b/__init__.py")) == Path("/x")
    assert home_of("a.b.c.d", Path("/d.py")) is None
    assert home_of("a.b", Path("/b.py")) is None


def test_the_folders_of_python_and_of_the_engine_and_archives_are_not_looked_into(tmp_path: Path) -> None:
    library = Path(os.__file__).resolve().parent
    packages = library / "site-packages"
    own = [library, library / "lib-dynload", PACKAGE, PACKAGE / "cli", library.parent / "python311.zip"]
    os.symlink("loop", tmp_path / "loop")
    assert _folders(map(str, [*own, "", tmp_path, packages, tmp_path])) == [tmp_path, packages]
    os.symlink(tmp_path, tmp_path / "link")
    assert _folders([str(tmp_path / "link"), str(tmp_path)]) == [tmp_path / "link"]
    assert _folders([str(tmp_path / "loop")]) == [tmp_path / "loop"]
    assert _folders([tmp_path, b"/tmp", str(tmp_path)]) == [tmp_path]  # type: ignore[list-item]


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
        "passing": {},
    }
    assert where.pop(SITE) == ["acc"]
    assert {key: [n for n in names if n in modules] for key, names in where.items()} == {
        "ws:src/pkg": ["train"],
        f"{outer}/home": ["lib", "lib.part"],
    }
    assert run.moved(claim | {"search": claim["search"] | {"where": where | {SITE: ["acc"]}}}, "first", *HOME) == []


def test_the_names_of_the_engine_are_nobody_elses(run: Run) -> None:
    run.write("ws/gradproof/__init__.py", "ws/queue.py")
    claim = run.claim("ws", modules={}, absent=("gradproof", "gradproof.core.outcome"))
    assert (claim["search"]["where"], claim["search"]["apart"]) == ({ROOT: ["queue"]}, {})
    assert run.moved(claim | {"absent": []}) == []


def test_what_is_loaded_was_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write("home/bare.py", "site-packages/acc/deep.py")
    for name in ("acc", "acc.deep", "bare"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("acc", "acc.deep"):
        monkeypatch.setattr(sys.modules[name], "__file__", "somewhere", raising=False)
    where = run.claim("ws", *HOME, start=HOME)["search"]["where"]
    assert where[SITE] == ["acc"]
    with monkeypatch.context() as patch:
        patch.setattr("gradproof.BARE", frozenset({"acc"}))
        assert SITE not in run.claim("ws", *HOME, start=HOME)["search"]["where"]
    assert where[f"ext:{run.root.parent}/home"] == ["lib", "lib.part"]


def test_the_root_counts_where_the_path_does_not_have_it_and_never_as_a_start(run: Run) -> None:
    run.write("ws/own.py", "ws/models/a.py", "ws/models/__init__.py", "home/models/a.py", "home/own.py")
    modules = {"own": "ws/own.py", "models": "ws/models/__init__.py", "models.a": "ws/models/a.py"}
    for path, start in ((HOME, HOME), (("ws", *HOME), ("home", "ws")), ((*HOME, "ws"), ())):
        claim = run.claim(*path, start=start, modules=modules)
        assert ROOT not in claim["search"]["start"]
        assert ("own" in claim["search"]["apart"]) is (start == ())
        assert run.moved(claim, *start) == []
        assert run.moved(claim, here=False) == []


def test_what_was_asked_for_by_an_earlier_path(run: Run) -> None:
    """Folders that were on the path for a while, and those of a package: what was not there then must not be there."""
    run.write("temp/had.py", "ws/pk/__init__.py", "more/part.py")
    finder = Finder(run.root)
    finder.paths = {(*run.places(("ws",)), "/nowhere"): {"own"},
                    tuple(run.places(("temp", "ws", "home"))): {"had", "new", "lib", "models"}}  # fmt: skip
    finder.inner = {str(run.root / "pk"): {"pk.part"}, str(run.root.parent / "more"): {"pk.part", "pk.other"}}
    claim = run.claim("ws", "home", start=("home",), finder=finder)
    outer = f"ext:{run.root.parent}"
    assert claim["search"]["passing"] == {
        f"{outer}/temp": ["lib", "new"], "ext:/nowhere": ["own"], "ws:pk": ["part"], f"{outer}/more": ["other"],
    }  # fmt: skip
    assert run.moved(claim, "home") == []
    for place, said in (("temp/new.py", "new temp"), ("temp/lib/__init__.py", "lib temp"),
                        ("ws/pk/part.py", "part pk"), ("more/other.py", "other more")):  # fmt: skip
        run.write(place)
        assert run.told(claim, "home") == [f"{said} what"]
        (run.root.parent / place).unlink()
    run.write("temp/new.py", "ws/pk/part.py")
    assert len(run.moved(claim, here=False)) == 1


def test_installed_packages_that_the_workspace_brings_are_a_folder_of_its_own(run: Run) -> None:
    run.write("vendor/site-packages/v.py")
    claim = run.claim("vendor/site-packages", "ws", *HOME, start=HOME, modules={"v": "vendor/site-packages/v.py"})
    assert claim["search"]["where"] == {f"ext:{run.root.parent}/vendor/site-packages": ["v"]}
    run.write("first/v.py")
    assert run.moved(claim, "first", *HOME) == []


def test_a_shadowed_package_is_told_without_its_parts(run: Run) -> None:
    claim = run.claim("ws", "first", "home", start=("first", "home"))
    run.write("first/lib/__init__.py", "first/lib/part.py")
    assert len(run.moved(claim, "first", "home")) == 1


def test_what_the_path_has_lost(run: Run) -> None:
    """A module and a name that was not loaded count where they were, and what comes there later not at all."""
    modules = {**LIB, "acc": "site-packages/acc/__init__.py"}
    claim = run.claim("ws", *HOME, start=HOME, modules=modules, absent=("spare", "fast"))
    assert run.moved(claim, *HOME) == []
    run.write("home/fast.py")
    assert run.moved(claim) == []
    (run.root.parent / "home/spare.py").unlink()
    assert run.told(claim) == ["spare"]
    (run.root.parent / "home/lib/part.py").unlink()
    assert run.told(claim) == ["lib.part", "spare"]


FORGED = {
    "where": {"what:x": ["a"], "ext:/nowhere": ["b"], "site": ["c"]},
    "apart": {"d": "what:y"},
    "path": ["what:z"],
}


@pytest.mark.parametrize("here", [True, False])
def test_a_claim_of_folders_that_there_are_none_is_no_crash(run: Run, here: bool) -> None:
    run.write("ws/b.py", "ws/c.py")
    search = {**NO_SEARCH, **FORGED}
    claim = {"modules": {"d": "ws:d.py", "a": "what:a.py"}, "absent": [], "search": search}
    stated = {why.removeprefix("module ").split(" ")[0] for why in run.moved(claim, here=here)}
    assert stated == ({"a", "b", "c", "d"} if here else {"b", "c"})
    for path in (["ext:/nowhere"], [ROOT]):
        assert len(run.moved({**claim, "search": {**search, "path": path}}, here=here)) >= 2


def test_what_no_folder_has_under_its_name_counts_by_its_content(run: Run) -> None:
    deep = ".".join("d" * 99)
    claim = run.claim("ws", "home", modules={"other": "home/lib/part.py", "trained": "ws/src/pkg/train.py",
                                             deep: "ws/src/pkg/train.py"})  # fmt: skip
    assert claim["search"]["apart"] == {"other": "", "trained": "", deep: ""}
    assert run.moved(claim, "home") == []
    run.write("ws/other.py")
    assert run.told(claim, "home") == [f"other workspace {claim['modules']['other']}"]


def test_a_key_of_no_kind_and_one_of_nothing(run: Run) -> None:
    assert searched({"gone": "pkg:gone==1"}, run.root, [], Finder(run.root), (), lambda key: None)["apart"] == {}
    claim = {"modules": {"train": "ws:src/pkg/train.py"}, "absent": [], "search": NO_SEARCH}
    assert run.told(claim) == ["train"]


def kept(toy: Workspace, layer: Layer) -> Store:
    """A store with the evidence of one check that rests on src/deep.py, found by a sys.path that was changed."""
    (toy.root / "src").mkdir()
    (toy.root / "src/deep.py").write_text("")
    files = {f"ws:{name}": sha256_of(toy.root / name) for name in ("symbolic/toy.py", "src/deep.py")}
    modules = {"symbolic.toy": "ws:symbolic/toy.py", "deep": "ws:src/deep.py"}
    of = check(layer=layer)
    path = ["ws:lib", "ext:/nowhere", "ws:src"]
    search = {**NO_SEARCH, "path": path, "where": {"ws:src": ["deep"]}}
    claim = {"files": {**files, "gp:core/check.py": sha256_of(Path(place_of("gp:core/check.py", toy.root) or ""))}}
    store = Store(toy)
    store.write(record(of, answer(of), inputs={**claim, "modules": modules, "search": search}))
    return store


@pytest.mark.parametrize("layer", [Layer.SMT, Layer.CUDA])
def test_evidence_on_a_source_folder_is_fresh_until_something_shadows_it(toy: Workspace, layer: Layer) -> None:
    store = kept(toy, layer)
    assert "deep" not in store.status(check(layer=layer)).reason
    (toy.root / "lib").mkdir()
    (toy.root / "lib/deep.py").write_text("")
    assert ("deep", "lib", "ws:src/deep.py") in MOVED.findall(Store(toy).status(check(layer=layer)).reason)


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
