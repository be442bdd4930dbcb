"""The ledger of a workspace: verdicts from evidence alone, mistakes with their places, and what is printed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ledger_toy import STUDY, check_of, flipped, judged, ledger, left, only_row, reaching, row, stocked, store, study
from pydantic import ValidationError
from toy_workspace import answer, runs, worker_command

from gradproof import cli
from gradproof.contract.yaml_reader import ContractErrors
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Exit, Outcome, Reach
from gradproof.core.workspace import Workspace
from gradproof.execution.local import Worker
from gradproof.extras.claims import FILE, figures
from gradproof.extras.claims.document import Claims, as_json, html, markdown
from gradproof.extras.claims.load import again, can_turn_red
from tests.schemas import schemas

MET, BROKEN, USAGE, OPEN, NOTHING = (EXIT_CODE[e] for e in (Exit.MET, Exit.BROKEN, Exit.USAGE, Exit.OPEN, Exit.NOTHING))
STATED, REFUTING = "checks: [K-1]", "refuted_by: [K-2]"
FIGURE = "figures: [{document: tokens, at: /x, at_least: 1, at_most: 2}]"
BOUNDED, REFUTED, TRUE = "PROVED within a bound", "REFUTED", "MEASURED true"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("template") / "toy").root


@pytest.fixture
def toy(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(figures, "TRAINING", (STUDY,))
    root = Path(shutil.copytree(template, tmp_path / "toy")).resolve()
    return Workspace(root, root / "reports")


def test_each_kind_of_row_gets_its_verdict(toy: Workspace) -> None:
    study(toy, "tokens", {"x": 1.5})
    against = "contradicted_by: [K-1], contradiction: both cannot hold"
    found = {
        basis: only_row(toy, basis, expect)
        for basis, expect in (
            (STATED, BOUNDED),
            ("checks: [F-1]", TRUE),
            ("checks: [K-1, F-1]", BOUNDED),
            (REFUTING, REFUTED),
            (against, REFUTED),
            ("contradicted_by: [F-1], contradiction: both cannot hold", "MEASURED false"),
            (FIGURE, TRUE),
            (FIGURE.replace("at_least: 1", "at_least: 1.6"), "MEASURED false"),
            ("figures: [{evidence: K-1, among: /controls, where: {name: bug}, at: /killed, equals: true}]", TRUE),
            ("figures: [{compute: 12 / 8, at_least: 3}]", REFUTED),
            ("figures: [{plan: {micro: 16, accum: 4, batches: 625}, at: /steps_per_epoch, equals: 157}]", TRUE),
            ("why: nobody knows", "NOT TESTABLE"),
        )
    }
    assert {basis: (r.verdict, r.effect) for basis, r in found.items()} == {
        basis: (r.expect, "DISCHARGED") for basis, r in found.items()
    }
    assert [b.name for b in found[STATED].checks[0].bounds] == ["micro_batches"]
    assert "x = 7" in str(found[REFUTING].checks[0].counterexample)
    uncounted = {basis for basis, r in found.items() if not r.counts}
    assert uncounted == {"figures: [{compute: 12 / 8, at_least: 3}]", "why: nobody knows"}
    reaching(toy, "K-1", Reach.ALL_INPUTS)
    assert only_row(toy, STATED, "PROVED for all inputs").effect == "DISCHARGED"
    assert only_row(toy, STATED).effect == "OPEN"


@pytest.mark.parametrize(("basis", "expect", "id_"), [(STATED, BOUNDED, "K-1"), (REFUTING, REFUTED, "K-2")])
def test_a_check_that_answers_the_opposite_is_a_surprise(toy: Workspace, basis: str, expect: str, id_: str) -> None:
    assert judged_code(toy, basis, expect) == MET
    flipped(toy, id_)
    made = only_row(toy, basis, expect)
    assert made.verdict == {BOUNDED: REFUTED, REFUTED: BOUNDED}[expect]
    assert made.effect == "BROKEN"
    assert f"{id_} is" in made.reason
    assert judged_code(toy, basis, expect) == BROKEN


def judged_code(toy: Workspace, basis: str, expect: str) -> int:
    ledger(toy.root, row(basis, expect))
    return judged(toy).code


def test_a_refuted_contradiction_says_nothing_and_is_a_surprise(toy: Workspace) -> None:
    flipped(toy, "K-1")
    made = only_row(toy, "contradicted_by: [K-1], contradiction: both cannot hold", REFUTED)
    assert (made.verdict, made.effect) == ("OPEN", "BROKEN")


def stale(toy: Workspace) -> None:
    (toy.root / "symbolic/toy.py").write_text("# another harness\n", encoding="utf-8")


def edited(toy: Workspace) -> None:
    [path] = (toy.root / "reports/evidence/K-1").glob("*.json")
    path.write_text(path.read_text(encoding="utf-8").replace("every clause held", "EVERY clause held"), "utf-8")


def unaudited(toy: Workspace) -> None:
    check = check_of(toy, "K-1")
    store(toy, check, answer(check, covers=[]))


def weak(toy: Workspace) -> None:
    check = check_of(toy, "K-1")
    store(toy, check, answer(check, controls=[]))


def stub_gone(toy: Workspace) -> None:
    [path] = (toy.root / "reports/evidence/STUB-1").glob("*.json")
    path.unlink()


LOSSES: dict[str, Callable[[Workspace], Any]] = {
    "stale": stale,
    "edited": edited,
    "without its covers": unaudited,
    "without its controls": weak,
    "on a stub without evidence": stub_gone,
    "unknown": lambda toy: left(toy, "K-1", Outcome.UNKNOWN),
    "out of time": lambda toy: left(toy, "K-1", Outcome.TIMEOUT),
    "crashed": lambda toy: left(toy, "K-1", Outcome.ERROR),
    "not run": lambda toy: [p.unlink() for p in (toy.root / "reports/evidence/K-1").glob("*.json")],
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "basis", [STATED, "checks: [K-1, F-1]", "figures: [{evidence: K-1, at: /reach, equals: bounded}]"]
)
def test_what_is_no_fresh_answer_is_open_with_its_reason(toy: Workspace, name: str, basis: str) -> None:
    expect = TRUE if basis.startswith("figures") else BOUNDED
    assert judged_code(toy, basis, expect) == MET
    LOSSES[name](toy)
    made = only_row(toy, basis, expect)
    assert (made.verdict, made.effect) == ("OPEN", "OPEN")
    assert "K-1" in made.reason
    assert [c.evidence for c in made.checks if c.id == "K-1" and name in ("stale", "edited", "not run")] in ([], [None])
    document = judged(toy)
    assert document.code == OPEN
    assert str(toy.root) not in as_json(document)


def test_a_refutation_with_half_of_its_evidence_is_no_success(toy: Workspace) -> None:
    basis = f"{REFUTING}, {FIGURE}"
    made = only_row(toy, basis, REFUTED)
    assert (made.verdict, made.effect) == (REFUTED, "OPEN")


def test_a_figure_over_its_limit_turns_the_verdict(toy: Workspace) -> None:
    for x, verdict, code in ((1, TRUE, MET), (2, TRUE, MET), (2.0000001, "MEASURED false", BROKEN)):
        study(toy, "tokens", {"x": x})
        assert only_row(toy, FIGURE, TRUE).verdict == verdict
        assert judged(toy).code == code


def test_a_figure_says_what_it_was_measured_on(toy: Workspace) -> None:
    made = {"x": 1, "device_name": "cpu AVX512", "torch": "2.13.0", "made_at": "2026-11-22T01:17:51+00:00"}
    study(toy, "tokens", made)
    (figure,) = only_row(toy, FIGURE, TRUE).figures
    assert figure.on == "cpu AVX512, torch 2.13.0, 2026-11-22"
    study(toy, "tokens", made | {"device_name": None})
    assert only_row(toy, FIGURE, TRUE).figures[0].on == "torch 2.13.0, 2026-11-22"
    study(toy, "tokens", {"x": 1})
    assert only_row(toy, FIGURE, TRUE).figures[0].on == ""


DOCUMENTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "absent": (lambda path: path.unlink(), "no reports/tokens.json"),
    "stale": (lambda path: (path.parents[1] / "models/a.py").write_text("VALUE = 2\n"), "models/a.py changed"),
    "without its source": (lambda path: (path.parents[1] / "models/a.py").unlink(), "models/a.py is gone"),
    "of no sources": (
        lambda path: path.write_text('{"schema": "gradproof-tokens/1", "x": 1}'),
        "sources: Field required",
    ),
    "another's": (lambda path: path.write_text('{"schema": "gradproof-sweep/1", "x": 1}'), "schema: Input should"),
    "no JSON": (lambda path: path.write_text("{"), "rejected"),
    "a list": (lambda path: path.write_text("[" * 99999), "rejected"),
    "not a number": (lambda path: path.write_text(path.read_text().replace('"x": 1', '"x": NaN')), "finite number"),
    "without the figure": (lambda path: path.write_text(path.read_text().replace('"x"', '"y"')), "x: Field required"),
    "outside": (lambda path: path.write_text(path.read_text().replace("models/a", "../a")), "is gone"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_not_fresh_decides_nothing(toy: Workspace, name: str) -> None:
    harm, reason = DOCUMENTS[name]
    path = study(toy, "tokens", {"x": 1})
    assert only_row(toy, FIGURE, TRUE).effect == "DISCHARGED"
    harm(path)
    made = only_row(toy, FIGURE, TRUE)
    assert (made.verdict, made.effect) == ("OPEN", "OPEN")
    assert reason in made.reason


def test_a_row_counts_only_by_what_can_turn_red(toy: Workspace) -> None:
    proof, refuting = check_of(toy, "K-1"), check_of(toy, "K-2")
    assert can_turn_red(proof)
    assert not can_turn_red(replace(proof, mutants=()))
    assert can_turn_red(replace(refuting, mutants=()))
    assert only_row(toy, STATED).counts
    assert only_row(toy, f"{STATED}, figures: [{{compute: 1 * 1, equals: 1}}]").counts
    assert not only_row(toy, "figures: [{compute: 1 * 1, equals: 1}]", TRUE).counts


MISTAKES = {
    "an unknown check": (row("checks: [K-9]"), "GP502", "checks: [K-9]"),
    "a check under the wrong part": (row("checks: [K-2]"), "GP503", "[K-2]"),
    "a refutation that is expected to hold": (row("refuted_by: [K-1]", REFUTED), "GP503", "[K-1]"),
    "nothing": (row("why: none"), "GP503", "CLAIM-T-01"),
    "untestable with a test": (row(f"{STATED}, why: x", "NOT TESTABLE"), "GP503", "NOT TESTABLE"),
    "untestable without a reason": (row("contradiction: x", "NOT TESTABLE"), "GP503", "NOT TESTABLE"),
    "a contradiction without its words": (row("contradicted_by: [K-1]", REFUTED), "GP503", "CLAIM-T-01"),
    "a row twice": (row(STATED) * 2, "GP129", "CLAIM-T-01"),
    "a check twice": (row("checks: [K-1, K-1]"), "GP129", "K-1"),
    "another source": (row(STATED).replace("source: S", "source: Q"), "GP504", "Q,"),
    "another id": (row(STATED, id="claim 1"), "GP122", "claim 1"),
    "a verdict": (row(f"{STATED}, verdict: REFUTED"), "GP101", "verdict"),
    "an outcome": (row(f"{STATED}, outcome: HOLDS"), "GP101", "outcome"),
    "an expectation of nothing": (row(STATED, "OPEN"), "GP105", "OPEN"),
    "an empty list": (row("checks: []"), "GP103", "[]"),
    "a figure from nowhere": (row("figures: [{at: /x, equals: 1}]"), "GP505", "{at"),
    "a figure from two places": (row("figures: [{compute: 1, evidence: K-1, equals: 1}]"), "GP104", "1,"),
    "a figure of no claim": (row("figures: [{document: tokens, at: /x}]"), "GP505", "{document"),
    "a figure without its place": (row("figures: [{document: tokens, equals: 1}]"), "GP505", "{document"),
    "a choice from no list": (row("figures: [{document: tokens, at: /x, take: largest, equals: 1}]"), "GP505", "{doc"),
    "no pointer": (row("figures: [{document: tokens, at: x, equals: 1}]"), "GP122", "x,"),
    "no arithmetic": (row("figures: [{compute: 2 ** 9, equals: 1}]"), "GP505", "2 ** 9"),
    "evidence of nobody": (row("figures: [{evidence: K-9, at: /x, equals: 1}]"), "GP502", "K-9"),
    "another document": (row("figures: [{document: mine, at: /x, equals: 1}]"), "GP105", "mine"),
    "an infinite limit": (row("figures: [{document: tokens, at: /x, below: .inf}]"), "GP107", ".inf"),
    "a limit in quotes": (row('figures: [{document: tokens, at: /x, below: "1"}]'), "GP104", '"1"'),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_its_code_and_its_place(toy: Workspace, name: str) -> None:
    text, code, place = MISTAKES[name]
    path = ledger(toy.root, text)
    with pytest.raises(ContractErrors) as raised:
        judged(toy)
    problem = next(p for p in raised.value.problems if p.code == code)
    line = path.read_text(encoding="utf-8").splitlines()[problem.line - 1]
    assert place in line[max(0, problem.col - 1 - len(place)) :]
    assert raised.value.where.startswith(f"{path}:")


@pytest.mark.parametrize(
    "text", ["", "[]", "a: 1", "format: gradproof-ledger/2\nsources: {}\nclaims: []\n", "a: [", "\xff"]
)
def test_a_file_that_is_no_ledger_is_an_error_and_no_crash(toy: Workspace, text: str) -> None:
    (toy.root / FILE).write_text(text, encoding="latin-1")
    assert cli.dispatch(["claims", "--workspace", str(toy.root)]) == USAGE


def test_no_ledger_is_an_error(toy: Workspace) -> None:
    with pytest.raises(GradproofError, match="GP501"):
        judged(toy)


FORGED: dict[str, Callable[[Any], Any]] = {
    "another verdict": lambda d: d["rows"][0].update(verdict="PROVED for all inputs"),
    "an effect": lambda d: d["rows"][0].update(effect="OPEN"),
    "another expectation": lambda d: d["rows"][0].update(expect="REFUTED"),
    "a stronger answer": lambda d: d["rows"][0]["checks"][0].update(answer="proved for all inputs"),
    "no answer": lambda d: d["rows"][0]["checks"][0].update(answer="nothing"),
    "a contrary one": lambda d: d["rows"][0]["checks"][0].update(contrary=True),
    "a count": lambda d: (d["rows"][0].update(counts=False), d["totals"].update(counted=0)),
    "a total": lambda d: d["totals"].update(counted=7),
    "an exit": lambda d: d.update(exit="open", code=4),
    "a code": lambda d: d.update(code=1),
    "a row less": lambda d: d["rows"].pop(),
    "an unknown key": lambda d: d.update(verdict="good"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_document_is_rejected(toy: Workspace, name: str) -> None:
    ledger(toy.root, row(STATED))
    text = as_json(judged(toy))
    Claims.model_validate_json(text)
    data = json.loads(text)
    FORGED[name](data)
    with pytest.raises(ValidationError):
        Claims.model_validate_json(json.dumps(data))


def test_the_document_has_its_schema_and_no_path_of_the_machine(toy: Workspace) -> None:
    ledger(toy.root, row(STATED), row(FIGURE, TRUE, "CLAIM-T-02"), row("checks: [F-1@cuda-fp32]", TRUE, "CLAIM-T-03"))
    text = as_json(judged(toy))
    jsonschema.validate(json.loads(text), schemas()["claims.schema.json"])
    assert str(toy.root) not in text


def test_the_command_prints_and_writes_every_format(
    toy: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger(toy.root, row(STATED), row(FIGURE, TRUE, "CLAIM-T-02"))
    here = ["claims", "--workspace", str(toy.root)]
    assert cli.dispatch([*here, "--out", str(tmp_path / "made")]) == OPEN
    (counts,) = re.findall(r"^2 claims: .*$", capsys.readouterr().out, re.M)
    assert re.findall(r"\d+", counts)[:4] == ["2", "1", "0", "1"]
    names = ["claims.html", "claims.json", "claims.md"]
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == names
    Claims.model_validate_json((tmp_path / "made/claims.json").read_bytes())
    assert cli.dispatch([*here, "-k", "t-01"]) == MET
    out = capsys.readouterr().out
    assert "-k K-1" in out
    assert "CLAIM-T-02" not in out
    assert cli.dispatch([*here, "-k", "none such"]) == NOTHING
    assert cli.dispatch([*here, "-k", "T", "--out", str(tmp_path)]) == USAGE
    assert cli.dispatch([*here, "--out", str(tmp_path / "made/claims.md")]) == USAGE
    assert "GP407" in capsys.readouterr().err


def test_every_check_says_how_to_run_it_again(toy: Workspace) -> None:
    ids = ("K-1", "F-1@cpu-fp32", "F-1@cuda-fp32", "GATE-1/falsification")
    assert [again(check_of(toy, name)).removeprefix("gradproof ") for name in ids] == [
        "prove --no-cache -k K-1",
        "run --no-cache -k F-1",
        "run --device cuda --no-cache -k F-1@cuda-fp32",
        "verify --no-cache -k GATE-1/falsification",
    ]


def test_report_writes_the_ledger_and_keeps_its_own_exit_code(toy: Workspace) -> None:
    before = cli.dispatch(["report", "--workspace", str(toy.root)])
    assert not (toy.reports / "claims.json").exists()
    ledger(toy.root, row(STATED, "PROVED for all inputs"))
    assert cli.dispatch(["report", "--workspace", str(toy.root)]) == before
    assert Claims.model_validate_json((toy.reports / "claims.json").read_bytes()).code == OPEN


def test_what_a_ledger_says_is_escaped(toy: Workspace) -> None:
    evil = row(STATED).replace("claim: a claim", 'claim: "<script>alert(1)</script> | `x`\\e[31m"')
    ledger(toy.root, evil)
    made = judged(toy)
    page, text = html(made), markdown(made)
    assert "<script" not in page
    assert "<script" not in text
    assert "\x1b" not in page + text
    assert re.findall(r"(?:src|href)=\"(?!#)", page) == []


def test_a_run_with_a_wrong_ledger_tells_it_and_judges_the_contracts(
    toy: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(toy.root))
    (toy.root / FILE).write_text("format: none\n", encoding="utf-8")
    assert cli.dispatch(["verify", "-q", "--workspace", str(toy.root)]) == MET
    assert f"{FILE}:1:" in capsys.readouterr().err
    report = json.loads((toy.reports / "report.json").read_text(encoding="utf-8"))
    assert "claims" not in report


def test_the_checks_of_some_rows_are_run_first_and_no_others(
    toy: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "command", lambda self: worker_command(toy.root))
    shutil.rmtree(toy.reports / "evidence")
    ledger(toy.root, row(STATED), row("checks: [F-1]", TRUE, id="CLAIM-T-02"))
    here = ["claims", "--workspace", str(toy.root), "-k", "T-01"]
    assert cli.dispatch(here) == OPEN
    assert cli.dispatch([*here, "--run"]) == MET
    assert runs(toy.root) == ["K-1", "STUB-1"]
    capsys.readouterr()
    assert cli.dispatch(here) == MET
    assert cli.dispatch([*here, "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1"]) == USAGE
    assert "add --run" in capsys.readouterr().err
