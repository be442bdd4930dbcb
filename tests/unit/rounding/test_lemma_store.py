"""Evidence of step contracts is believed only if it is whole, current and supports its verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradproof.arith import formats
from gradproof.core.check import digest_of
from gradproof.rounding import lemma_store as lemma_jobs, lemma_store as lemmas
from gradproof.rounding.lemma_store import LemmaRefused, judge, load, rebuild, recheck, require
from gradproof.rounding.step_contracts import LEMMAS, premises

QUICK = "add/bf16/half-ulp"
ROUND = "round/bf16/half-ulp"
DERIVED = "divide/bf16/half-ulp"
ASKED = "add/fp32/at-most-terms"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fresh evidence of three quick lemmas."""
    made = rebuild([QUICK, DERIVED, ROUND], tmp_path)
    assert [e.verdict for e in made] == ["proved"] * 3
    return tmp_path


def path_of(folder: Path, name: str) -> Path:
    """The evidence file of a lemma."""
    (found,) = folder.glob(f"{name.replace('/', '_')}.*.json")
    return found


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], None], *, rename: bool) -> None:
    """Change the content of an evidence file, under its old name or the one that its new content asks for."""
    path = path_of(folder, name)
    data = json.loads(path.read_text())
    change(data)
    path.unlink()
    stem = f"{name.replace('/', '_')}.{digest_of(data)}.json" if rename else path.name
    (folder / stem).write_text(json.dumps(data))


def reply(solver: str, answer: str = "unsat", **more: Any) -> dict[str, Any]:
    """A solver's reply about ASKED."""
    family = {"z3": "z3"}.get(solver, "symfpu")
    base = {"encoding": "same format", "family": family, "solver": solver, "version": "1", "answer": answer}
    return {**base, "seconds": 1.0, "texts": 1, "reason": ""} | more


def test_what_was_discharged_is_given(folder: Path) -> None:
    found = require([DERIVED, QUICK], folder)
    assert [e.name for e in found] == [DERIVED, QUICK]
    assert found[1].run["violations"] == 0
    assert found[1].run["cases"] > 10**6
    assert load(ROUND, folder).method == "exhaustion"
    assert recheck(QUICK, folder) == ("proved", "proved")


def test_every_lemma_of_the_repository_is_discharged() -> None:
    """What ships with the package, against the texts as they are now."""
    assert len(require(LEMMAS)) == len(LEMMAS)
    assert set(lemmas.statuses().values()) == {"proved"}


def test_the_counts_of_the_repository_are_whole() -> None:
    """All pairs of fp16, and every class of bf16."""
    run = load("add/fp16/half-ulp").run
    assert run["cases"] + run["skipped"] == 31744**2
    assert load("add/bf16/relative").run["stands_for"] == 32640**2
    assert load("convert/fp32-bf16/relative").run["stands_for"] == 255 * 2**23
    assert load("sqrt/fp32/table").run["cases"] == 2**24


def test_missing_evidence_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LemmaRefused, match="no evidence files"):
        require([QUICK], tmp_path)
    with pytest.raises(LemmaRefused, match="no lemma 'add/fp8/half-ulp'"):
        require(["add/fp8/half-ulp"], tmp_path)


def test_two_files_of_one_lemma_are_refused(folder: Path) -> None:
    path = path_of(folder, QUICK)
    (folder / path.name.replace(".json", "0.json")).write_text(path.read_text())
    with pytest.raises(LemmaRefused, match="2 evidence files"):
        require([QUICK], folder)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1, "a": 2}', b"null"])
def test_a_corrupted_file_is_refused(folder: Path, damage: bytes) -> None:
    path_of(folder, QUICK).write_bytes(damage)
    with pytest.raises(LemmaRefused, match=r"cannot be read|not named by"):
        require([QUICK], folder)


def test_one_flipped_bit_is_seen(folder: Path) -> None:
    path = path_of(folder, QUICK)
    text = path.read_text()
    assert '"violations": 0' in text
    path.write_text(text.replace('"cases": 1', '"cases": 2'))
    with pytest.raises(LemmaRefused, match="not named by"):
        require([QUICK], folder)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "violations": (lambda d: d["run"].update(violations=1), "supports 'refuted'"),
    "no case": (lambda d: d["run"].update(cases=0), "supports 'open'"),
    "no count": (lambda d: d["run"].update(violations=None), "what was run"),
    "a truth value": (lambda d: d["run"].update(violations=False), "what was run"),
    "a field gone": (lambda d: d["run"].pop("cases"), "what was run"),
    "a field more": (lambda d: d.update(note="trust me"), "not the fields"),
    "verdict": (lambda d: d.update(verdict="refuted"), "calls it 'refuted'"),
    "stale": (lambda d: d.update(text="0" * 64), "stale"),
    "statement": (lambda d: d.update(statement="|e| <= 0"), "states something else"),
    "assumptions": (lambda d: d.update(assumes=[]), "states something else"),
    "another lemma": (lambda d: d.update(name=ROUND), "the file is about"),
    "another method": (lambda d: d.update(method="solvers"), "the file is about"),
    "schema": (lambda d: d.update(schema="gradproof-lemma/0"), "not the fields"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_even_under_its_new_name(folder: Path, edit: str) -> None:
    change, why = EDITS[edit]
    rewrite(folder, QUICK, change, rename=True)
    with pytest.raises(LemmaRefused, match=why):
        require([QUICK], folder)


def test_evidence_of_another_source_is_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemma_jobs, "_source_digest", lambda sources: "another text of the pass")
    lemma_jobs.text_digest.cache_clear()
    with pytest.raises(LemmaRefused, match="stale"):
        require([QUICK], folder)
    with pytest.raises(LemmaRefused, match="stale"):
        require([DERIVED], folder)
    monkeypatch.undo()
    lemma_jobs.text_digest.cache_clear()
    assert require([QUICK, DERIVED], folder)


def test_the_formats_are_part_of_the_source() -> None:
    """A changed function that the passes use is seen; another function of that module is not their business."""
    text = (Path(formats.__file__)).read_text(encoding="utf-8")
    used = lemma_jobs._used_of_formats(text)
    assert "Fraction.__round__" in used
    assert lemma_jobs._used_of_formats(text.replace("round(x / step) * step", "x // step * step")) != used
    assert lemma_jobs._used_of_formats(text + "\n\ndef other() -> None: ...\n") == used
    with pytest.raises(ImportError, match="binade"):
        lemma_jobs._used_of_formats(text.replace("def binade", "def exponent"))


def test_a_lemma_falls_with_its_premise(folder: Path) -> None:
    assert premises(LEMMAS[DERIVED]) == (ROUND,)
    rewrite(folder, ROUND, lambda d: (d["run"].update(violations=3), d.update(verdict="refuted"))[1], rename=True)
    assert load(ROUND, folder).verdict == "refuted"
    with pytest.raises(LemmaRefused, match=f"{ROUND}: its verdict is 'refuted'"):
        require([DERIVED], folder)
    path_of(folder, ROUND).unlink()
    with pytest.raises(LemmaRefused, match="no evidence"):
        require([DERIVED], folder)


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        ([reply("bitwuzla"), reply("z3")], "proved"),
        ([reply("bitwuzla")], "one solver"),
        ([reply("bitwuzla"), reply("cvc5")], "one solver"),
        ([reply("z3"), reply("z3")], "one solver"),
        ([reply("bitwuzla"), reply("z3", "timeout")], "one solver"),
        ([reply("bitwuzla"), reply("z3", "sat")], "refuted"),
        ([reply("bitwuzla", "unknown"), reply("z3", "error")], "open"),
        ([reply("bitwuzla"), reply("z3", texts=0)], "one solver"),
        ([reply("bitwuzla"), reply("z3", encoding="another")], "one solver"),
        ([reply("bitwuzla"), reply("z3", version="")], "one solver"),
        ([], "open"),
    ],
)
def test_only_two_families_prove(replies: list[dict[str, Any]], verdict: str) -> None:
    assert judge(ASKED, {"replies": replies}) == verdict


def test_one_solver_is_stored_and_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = "add/fp32/error-representable"
    runs = {ASKED: [reply("bitwuzla"), reply("z3", "timeout")], base: [reply("bitwuzla"), reply("z3")]}
    monkeypatch.setattr(lemmas, "_ask", lambda name, _: {"replies": runs[name]})
    assert [e.verdict for e in rebuild([ASKED, base], tmp_path)] == ["proved", "one solver"]
    assert load(ASKED, tmp_path).verdict == "one solver"
    with pytest.raises(LemmaRefused, match="'one solver'"):
        require([ASKED], tmp_path)


def test_a_split_lemma_needs_every_text() -> None:
    name = "add/fp32/half-ulp"
    wide, split = reply("bitwuzla", encoding="wide"), reply("z3", encoding="split", texts=52)
    assert judge(name, {"replies": [wide, split]}) == "proved"
    assert judge(name, {"replies": [wide, split | {"texts": 51}]}) == "one solver"
    assert judge(name, {"replies": [wide, reply("z3", encoding="wide")]}) == "one solver"


def test_a_rebuild_replaces_and_a_crash_leaves_the_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path_of(folder, QUICK)
    said: list[str] = []
    rebuild([QUICK], folder, said.append)
    assert len(said) == 1
    assert QUICK in said[0]
    after = path_of(folder, QUICK)
    assert not before.exists() or before == after

    def crash(_: Any) -> Any:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(lemmas, "_enumerate", crash)
    with pytest.raises(RuntimeError, match="in the middle"):
        rebuild([QUICK], folder)
    assert path_of(folder, QUICK) == after
    assert require([QUICK], folder)


def test_a_violation_found_by_a_rebuild_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradproof.rounding import exhaust

    cut = dict(exhaust.ADD_CHECKS) | {"half-ulp": lambda a: a.error == 0}
    wrong = lemma_jobs.pass_of(QUICK)
    changed = lemma_jobs.Passes(
        wrong.parameters, wrong.decides, lambda: exhaust.additions(lemma_jobs.FORMATS["bf16"], cut, literal=False)
    )
    monkeypatch.setattr(lemmas, "pass_of", lambda _: changed)
    (made,) = rebuild([QUICK], tmp_path)
    assert made.verdict == "refuted"
    assert made.run["first"]
    with pytest.raises(LemmaRefused, match="refuted"):
        require([QUICK], tmp_path)


def test_premises_come_first() -> None:
    order = lemma_jobs.in_order(LEMMAS)
    assert sorted(order) == sorted(LEMMAS)
    assert all(order.index(p) < order.index(name) for name in LEMMAS for p in premises(LEMMAS[name]))
    with pytest.raises(KeyError):
        lemma_jobs.pass_of("add/fp32/half-ulp")


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert lemmas.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(LEMMAS)
    assert lemmas.main(["--check"]) == 0
    monkeypatch.setattr(lemmas, "statuses", lambda: {QUICK: "stale"})
    assert lemmas.main(["--check"]) == 1
    with pytest.raises(SystemExit):
        lemmas.main(["--rebuild", "add/fp8/half-ulp"])
    capsys.readouterr()
