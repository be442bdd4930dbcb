"""Each guard of a bundle's judgement by itself: what it finds, where no other guard stands behind it."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_bench import change, change_manifest, evidence_of, load, reseal, reword
from toy_workspace import taken

from gradproof.core.errors import GradproofError
from gradproof.core.schemas.evidence import Evidence
from gradproof.execution.queries import HEAD, Query, script
from gradproof.extras.attest import manifest as listing, verify as check, write
from gradproof.extras.attest.manifest import MANIFEST, BundleProblem, ManifestEntry
from gradproof.extras.attest.verify import Carried, verify

NO_DIGEST = "0" * 64


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, to tamper with."""
    return Path(shutil.copytree(pristine, tmp_path / "bundle"))


def entry(path: str) -> ManifestEntry:
    return ManifestEntry(path=path, sha256=NO_DIGEST, bytes=0)


def stated(found: Iterator[BundleProblem]) -> list[str]:
    return [f"{problem.code} {problem.path}" for problem in found]


@pytest.mark.parametrize(
    "path", ["../x", "sources/../x", "/etc/x", "//etc/x", "z//x", "./x", "z\\x", "C:/x", ".", "z\nx", "z/", MANIFEST]
)
def test_a_place_outside_is_refused_for_what_it_is(path: str) -> None:
    """Alone in the list, so that no order and no double stands beside it."""
    (problem,) = listing._listed([entry(path)])
    assert (problem.code, problem.path, "inside" in problem.found) == ("GP445", path, True)


def test_places_that_are_doubled_or_out_of_order_are_told_once() -> None:
    assert stated(listing._listed([entry("a"), entry("a"), entry("b")])) == ["GP445 a"]
    assert stated(listing._listed([entry("b"), entry("a")])) == ["GP445 MANIFEST.json"]
    assert stated(listing._listed([entry("a"), entry("b/c"), entry("b/d")])) == []


def test_an_entry_is_of_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert listing.entry_of(tmp_path, "a").bytes == 3
    assert listing.entry_of(tmp_path, "a").sha256.startswith("ba7816bf8f01cfea")


def odd_things(root: Path) -> None:
    """One of each kind."""
    (root / "file").write_text("x")
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    (root / "linked").symlink_to("folder")
    os.mkfifo(root / "pipe")


def test_what_lies_in_a_bundle_is_called_by_its_kind(tmp_path: Path) -> None:
    assert list(listing.walk(tmp_path)) == []
    odd_things(tmp_path)
    kinds = {"file": "file", "folder": "empty folder", "link": "link", "linked": "link", "pipe": "other"}
    assert dict(listing.walk(tmp_path)) == kinds
    with pytest.raises(ValueError, match=r"^folder "):
        listing.entries(tmp_path)


def test_only_plain_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a pipe waits for ever."""
    odd_things(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr(listing, "entry_of", lambda root, path: opened.append(path) or entry(path))
    names = ["file", "folder", "gone", "link", "linked", "pipe"]
    found = stated(listing._present(tmp_path, [entry(n) for n in names]))
    assert found == [f"GP446 {name}" for name in ("folder", "link", "linked", "pipe", "gone")]
    assert opened == ["file"]


def test_what_cannot_be_read_is_a_problem(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **how: Any) -> Any:
        raise PermissionError(13, "Permission denied", "some/place")

    with monkeypatch.context() as patch:
        patch.setattr(listing.os, "scandir", refused)
        assert stated(iter(verify(bundle).problems)) == ["GP446 some/place"]
    with monkeypatch.context() as patch:
        patch.setattr(listing, "entry_of", refused)
        found = verify(bundle).problems
        assert {(p.code, "Permission" in p.found) for p in found} == {("GP446", True)}
        assert len(found) == len(load(bundle / MANIFEST)["files"])
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(GradproofError, match=r"GP443[\s\S]*cannot be read"):
        verify(bundle)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_manifest_that_is_no_file_is_never_opened(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    (bundle / MANIFEST).unlink()
    make(bundle / MANIFEST)
    monkeypatch.setattr(Path, "read_text", lambda self, **how: pytest.fail("it was opened"))
    with pytest.raises(GradproofError, match=r"GP443[\s\S]*there is no MANIFEST.json"):
        verify(bundle)


def test_a_wrong_manifest_is_told_by_place(bundle: Path) -> None:
    change_manifest(bundle, lambda m: m["files"][0].update(bytes=-1))
    with pytest.raises(GradproofError, match=r"MANIFEST.json: files\.0\.bytes: "):
        verify(bundle)
    (bundle / MANIFEST).write_text("[]")
    with pytest.raises(GradproofError, match=r"MANIFEST.json: document: "):
        verify(bundle)


def keys_of(key: str) -> Callable[[Any], object]:
    """A mapping becomes the list of its keys: it has them all, and no value."""
    return lambda d: d.update({key: sorted(d[key])})


def report(edit: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda b: change(b / "reports/toy.json", edit)


def only_keys(b: Path) -> None:
    (b / "reports/toy.json").write_text(json.dumps(sorted(load(b / "reports/toy.json"))))


def doubled(b: Path) -> None:
    place = evidence_of(b, "K-1")
    shutil.copy(place, place.with_name("copy.json"))
    reword(place.with_name("copy.json"), lambda d: d.update(seconds=9.5))


def stranger(b: Path) -> None:
    shutil.copytree(b / "evidence/K-1", b / "evidence/K-9")


def deep(name: str) -> Callable[[Path], object]:
    return lambda b: (b / name).write_text("[" * 100_000)


def of_another(b: Path) -> None:
    change_manifest(b, lambda m: m.update(gradproof="0.0.1"))
    change(b / "mutants.json", lambda d: d["toy"].clear())


def one_script(status: str, **row: Any) -> Callable[[Path], object]:
    """A script of one query, and what the index says of it."""
    text = script(["K-1"], [Query("(assert true)\n(check-sat)\n", status)])
    said = {"file": "queries/K-1.smt2", "included": 1, "read_back": 1,
            "expected": {"sat": 1, "unsat": 0, "unknown": 0}, **row}  # fmt: skip

    def attack(b: Path) -> None:
        (b / "queries/K-1.smt2").write_text(text)
        change(b / "queries/index.json", lambda d: next(r for r in d if r["check"] == "K-1").update(said))

    return attack


REPORT, SCRIPT = "GP449 reports/toy.json:", "GP449 queries/K-1.smt2:"
# Each behind a manifest that was made anew: the attack, the code with the place, and what tells it from the others.
WORDS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a report that is a list of its keys": (only_keys, REPORT, "its keys"),
    "a report that is gone": (lambda b: (b / "reports/toy.json").unlink(), REPORT, "read: reports/toy.json"),
    "a report too deep": (deep("reports/toy.json"), REPORT, "recursion"),
    "an index too deep": (deep("queries/index.json"), "GP449 queries/index.json:", ""),
    "versions too deep": (deep("distributions.json"), "GP448 sources:", "RecursionError"),
    "a study that is a list of its keys": (report(keys_of("rounding")), REPORT, "rounding has other keys"),
    "a study with more": (report(lambda d: d["rounding"].update(grade="A")), REPORT, "rounding has other keys"),
    "a verdict that is a list of its keys": (report(keys_of("verdict")), REPORT, "verdict is ["),
    "an outcome": (
        report(lambda d: d["checks"][0].update(outcome="UNKNOWN")), REPORT, 'checks[STUB-1].outcome is "UNKNOWN"'),
    "a number for a word": (report(lambda d: d["verdict"].update(met=1)), REPORT, "verdict.met is 1"),
    "a file of the engine among the sources": (
        lambda b: (b / "sources/core.py").write_text("x = 1\n"), "GP449 sources/core.py:", "nothing"),
    "two evidence files of one check": (doubled, "GP448 evidence/K-1/", "more than one"),
    "evidence of a check that nobody planned": (stranger, "GP448 evidence/K-9/", "plans"),
    "evidence that is rejected": (lambda b: os.truncate(evidence_of(b, "K-1"), 100), "GP448 evidence/K-1/", "rejected"),
    "evidence that is gone": (lambda b: shutil.rmtree(b / "evidence/K-1"), "GP448 evidence:", "K-1 is neither"),
    "evidence that is said to be left out": (
        lambda b: change_manifest(b, lambda m: m["left_out"].append({"check": "K-1", "reason": "lost"})),
        "GP448 evidence:", "K-1 is listed"),
    "a contract that is none": (
        lambda b: (b / "sources/proofs/toy/contract.yaml").write_text("- x\n"),
        "GP448 sources:", "contract.yaml:1:1: GP116"),
    "a script whose status was turned": (one_script("unsat"), SCRIPT, "counts"),
    "a script with another number": (one_script("sat", included=2), SCRIPT, "counts"),
    "a script that is none": (one_script("happy"), SCRIPT, "query 1 "),
    "a bundle of another release": (of_another, "GP449 mutants.json:", "gradproof 0.0.1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_the_first_problem_is_told_in_its_own_words(bundle: Path, name: str) -> None:
    attack, place, word = WORDS[name]
    attack(bundle)
    reseal(bundle)
    found = [str(problem) for problem in verify(bundle).problems]
    assert any(told.startswith(place) and word in told for told in found), [told[:300] for told in found]


def test_a_script_that_the_index_counts_rightly_is_good(bundle: Path) -> None:
    one_script("sat")(bundle)
    reseal(bundle)
    assert verify(bundle).problems == ()


def test_a_long_value_is_cut(bundle: Path) -> None:
    change(bundle / "reports/toy.json", lambda d: d["verdict"].update(exit="x" * 1000))
    reseal(bundle)
    (problem,) = (p for p in verify(bundle).problems if "verdict.exit" in p.found)
    assert f'"{"x" * 156}..., ' in problem.found


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), GradproofError("GP101", "a", "b", "c")])
def test_evidence_of_which_no_report_can_be_made_is_a_problem(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(check, "documents", fail)
    judged = verify(bundle)
    assert [(p.code, p.path) for p in judged.problems] == [("GP449", "reports")]
    assert not judged.reports


def carried_by(bundle: Path) -> Carried:
    carried = verify(bundle).carried
    assert carried is not None
    return carried


def reworded(carried: Carried, name: str, edit: Callable[[Any], object]) -> Carried:
    """Where the evidence of one check is another."""
    status = carried.statuses[name]
    assert status.evidence is not None
    data = copy.deepcopy(status.evidence.stated())
    edit(data)
    return replace(carried, statuses={**carried.statuses, name: replace(status, evidence=taken(data))})


def test_a_check_is_run_again_only_where_there_is_evidence(bundle: Path) -> None:
    carried = carried_by(bundle)
    assert write.chosen(carried, "K-1").id == "K-1"
    none = replace(carried.statuses["K-1"], evidence=None)
    for one, name in ((carried, "K-9"), (replace(carried, statuses={**carried.statuses, "K-1": none}), "K-1")):
        with pytest.raises(GradproofError, match=rf"GP441[\s\S]*evidence of {name}\n"):
            write.chosen(one, name)


def test_a_check_of_a_gpu_is_run_again_only_where_there_is_one(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = carried_by(bundle)
    gpu, cpu = "F-1@cuda-fp32", "F-1@cpu-fp32"
    carried = replace(carried, statuses={**carried.statuses, gpu: carried.statuses[cpu]})
    monkeypatch.setattr(write, "cuda_absent", lambda: "no driver")
    assert write.chosen(carried, cpu).id == cpu
    with pytest.raises(GradproofError, match=r"GP441[\s\S]*no driver"):
        write.chosen(carried, gpu)
    monkeypatch.setattr(write, "cuda_absent", lambda: None)
    assert write.chosen(carried, gpu).id == gpu


def test_a_file_of_the_engine_that_is_not_installed_here_is_another_engine(bundle: Path) -> None:
    carried = carried_by(bundle)
    carried.store.files = {**carried.store.files, "gp:nothing.py": NO_DIGEST}
    other = reworded(carried, "K-1", lambda d: d["claim"]["files"].update({"gp:nothing.py": NO_DIGEST}))
    with pytest.raises(GradproofError, match=r"GP441[\s\S]*gp:nothing\.py"):
        write.chosen(other, "K-1")


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda finding: None, True),
        (lambda finding: finding.update(outcome="UNKNOWN", reason="it gave up"), False),
        (lambda finding: finding["clauses"].update({"T-1": "HOLDS elsewhere"}), False),
        (lambda finding: finding["clauses"].update({"T-1/more": "HOLDS"}), False),
        (lambda finding: finding["controls"][1].update(killed=False), False),
    ],
    ids=["the same", "another outcome", "another clause", "one clause more", "a mutant that survives"],
)
def test_a_repeated_run_agrees_by_outcome_and_by_clauses(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Any], object], same: bool
) -> None:
    carried = carried_by(bundle)
    held = carried.statuses["K-1"].evidence
    assert held is not None
    data = copy.deepcopy(held.stated())
    edit(data["finding"])

    class Ended:
        def __init__(self, check: Any, workspace: Any, limit: float) -> None:
            assert (workspace.root / "models/a.py").is_file()
            assert bundle not in workspace.root.parents

        def run(self) -> Evidence:
            return taken(data)

    monkeypatch.setattr(write, "Worker", Ended)
    words, problem = write.rerun(bundle, carried, write.chosen(carried, "K-1"))
    assert (problem is None) is same
    assert ("is HOLDS again" in words) is same
    assert problem is None or (problem.code, problem.path) == ("GP449", "K-1")


ASKED = [Query("(assert true)\n(check-sat)\n", "sat"), Query("(assert false)\n(check-sat)\n", "unsat")]
UNDECIDED = Query("(assert (= 1 1))\n(check-sat)\n", "unknown")
WRONG = "GP449 queries/K-1.smt2"


@pytest.mark.parametrize(
    ("queries", "said", "place", "numbers"),
    [
        (ASKED, ["sat", "unsat"], "K-1", "2 2 0"),
        ([*ASKED, UNDECIDED], ["sat", "unsat", "sat"], "K-1", "2 2 0"),
        (ASKED, ["sat", "sat"], WRONG, "1 2 1"),
        (ASKED, ["sat", "unknown"], WRONG, "1 2 0 7.5 1"),
        (ASKED, ["sat"], WRONG, "1 2 0 7.5 1"),
        (ASKED, [], WRONG, "0 2 0 7.5 2"),
        ([UNDECIDED, *ASKED], ["sat", "sat", "sat"], WRONG, "1 2 1"),
    ],
)
def test_a_query_without_the_same_answer_is_a_problem(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    queries: list[Query],
    said: list[str],
    place: str,
    numbers: str,
) -> None:
    """A check without a script has nothing to ask."""
    rows = [{"check": "K-0", "file": None}, {"check": "K-1", "file": "queries/K-1.smt2"}]
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries/index.json").write_text(json.dumps(rows))
    (tmp_path / "queries/K-1.smt2").write_text(script(["K-1"], queries))
    assert HEAD in (tmp_path / "queries/K-1.smt2").read_text()
    monkeypatch.setattr(write, "answers", lambda queries, solver, seconds, each: said if each == 7.5 else [])
    (found,) = write.ask(tmp_path, "z3", 1.0, {"K-1": 7.5})
    there, _, told = str(found).partition(": ")
    assert (there, " ".join(re.findall(r"\b[\d.]+\b", told))) == (place, numbers)


def test_a_bundle_of_another_format_says_so_alone(bundle: Path) -> None:
    """Whoever receives it cannot run it again: one problem, with what to do, and no other."""
    place = evidence_of(bundle, "K-1")
    reword(place, lambda data: data.update(schema="gradproof-evidence/1"), rename=False)
    reseal(bundle)
    (problem,) = verify(bundle).problems
    assert (problem.code, "gradproof-evidence/1" in problem.found) == ("GP448", True)
    assert "ask for a new one" in problem.found
