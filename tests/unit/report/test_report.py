"""The report dict and its files: consistent with every renderer, and never cleaner than the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from toy_workspace import answer, control, recorded, refutation, write_workspace

from gradproof.contract.model import Contract, load
from gradproof.core.check import Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.core.workspace import Workspace
from gradproof.evidence.record import EvidenceStatus
from gradproof.report import build as reports, consistency, text
from gradproof.report.consistency import as_json
from gradproof.report.formats import html, markdown
from gradproof.session import Options, Session
from gradproof.verdict.judge import judge
from gradproof.verdict.plan import plan, policy_of

SCHEMA = Path(__file__).resolve().parents[3] / "reports/report.schema.json"
Maker = Callable[[Check], Finding]


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    return write_workspace(tmp_path / "toy")


def right(of: Check) -> Finding:
    """What a run of the toy gives where there is no GPU."""
    if of.layer is Layer.CUDA:
        return Finding(Outcome.NOT_RUN, "no GPU")
    if of.kind is Kind.GATE:
        return Finding(Outcome.HOLDS, "red", reach=None)
    return answer(of) if of.expect == "holds" else refutation(of)


def built(toy: Workspace, make: Maker = right, state: str = "complete", fresh: bool = True) -> dict[str, Any]:
    contract: Contract = load(toy.contracts()[0])
    checks = plan(contract)
    why = "" if fresh else "old"
    held = {c.id: EvidenceStatus(recorded(c, make(c), seconds=1.0), fresh, why, f"{toy.reports}/x.json")
            for c in checks}  # fmt: skip
    made = judge(checks, held, policy_of(contract, "ci"))
    return reports.build(contract, toy, made, profile="ci", run_state=state, seconds=2.0)


def shown(report: dict[str, Any]) -> list[str]:
    """Every rendering of a report."""
    return [
        text.plain(markdown.overview(report)),
        as_json(report),
        markdown.render(report),
        html.render(report),
    ]


def test_a_clean_run_is_met_and_every_renderer_says_so(toy: Workspace) -> None:
    made = built(toy)
    consistency.require(made)
    assert made["verdict"] == {"exit": "met", "code": 0, "met": True, "reasons": []}
    assert made["gate"]["falsification"]["turned_red"] is True
    assert made["gate"]["criteria"][0]["met"] is True
    assert all(shown(made))
    cell = made["obligations"][0]["cells"]["smt"]
    assert (cell["effect"], cell["reach"], cell["required"]) == ("DISCHARGED", "bounded", True)
    assert made["obligations"][0]["cells"]["crosshair"]["effect"] is None
    assert made["totals"] == {
        "checks": 6, "discharged": 5, "broken": 0, "open": 1, "mutants_killed": 1, "mutants_total": 1
    }  # fmt: skip


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_report_of_every_outcome_passes_the_renderers_own_checks(toy: Workspace, outcome: Outcome) -> None:
    def make(of: Check) -> Finding:
        return Finding(outcome, "as it is") if of.id == "K-1" and outcome is not Outcome.HOLDS else right(of)

    made = built(toy, make)
    consistency.require(made)
    assert made["verdict"]["met"] is (outcome is Outcome.HOLDS)
    assert all(shown(made))


@pytest.mark.parametrize("state", ["partial", "running"])
def test_a_run_that_is_not_complete_is_never_met(toy: Workspace, state: str) -> None:
    made = built(toy, state=state)
    consistency.require(made)
    assert (made["verdict"]["met"], made["verdict"]["exit"], made["verdict"]["code"]) == (False, "open", 4)
    assert state in made["verdict"]["reasons"][0]


def test_the_marker_is_a_report_that_is_not_met(toy: Workspace) -> None:
    contract = load(toy.contracts()[0])
    made = reports.marker(contract, toy, "ci")
    consistency.require(made)
    assert (made["run_state"], made["verdict"]["met"]) == ("running", False)
    assert all(shown(made))


def test_stale_evidence_leaves_no_trace_of_its_answer(toy: Workspace) -> None:
    made = built(toy, fresh=False)
    row = next(c for c in made["checks"] if c["id"] == "K-1")
    assert (row["outcome"], row["effect"], row["reach"], row["controls"]) == ("NOT_RUN", "OPEN", None, [])
    assert "old" in row["reason"]
    assert made["totals"]["mutants_killed"] == 0
    assert made["mutants"][0]["not_tried"] == ["STUB-1", "K-1", "F-1@cpu-fp32", "F-1@cuda-fp32"]


def test_mutants_are_gathered_over_all_checks(toy: Workspace) -> None:
    def make(of: Check) -> Finding:
        if of.id != "K-1":
            return right(of)
        alive = control(outcome=Outcome.HOLDS, killed=False)
        return answer(of, controls=[control("empty body", "empty_body"), alive])

    made = built(toy, make)
    assert made["mutants"] == [{
        "name": "bug", "obligation": "T-1", "reference": "toy#1", "killed_by": ["STUB-1", "F-1@cpu-fp32"],
        "survived": ["K-1"], "not_tried": ["F-1@cuda-fp32"],
    }]  # fmt: skip
    assert made["totals"]["mutants_killed"] == 0
    assert made["verdict"]["exit"] == "broken"


def test_measurements_carry_their_check(toy: Workspace) -> None:
    row: dict[str, Any] = dict.fromkeys(("measured", "bound", "ratio", "tolerance", "l2"), 1e-9)
    row |= {"column": "accumulation", "device": "cpu", "dtype": "fp32", "net": "mlp", "n": 4}
    row |= {"metric": "linf", "relative": None, "note": ""}
    absent = {**row, "measured": None, "note": "NOT_RUN: no kernel"}

    def make(of: Check) -> Finding:
        return answer(of, measurements=[row, absent]) if of.id == "F-1@cpu-fp32" else right(of)

    made = built(toy, make)
    assert made["measurements"] == [{**row, "check": "F-1@cpu-fp32"}]
    consistency.require(made)


def test_the_report_keeps_its_published_schema(toy: Workspace) -> None:
    schema = json.loads(SCHEMA.read_text())
    contract = load(toy.contracts()[0])
    for made in (built(toy), built(toy, state="partial"), reports.marker(contract, toy, "ci")):
        jsonschema.validate(json.loads(as_json(made)), schema)


def test_a_file_is_replaced_whole_or_not_at_all(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy.reports / "report.json"
    reports.write_json(path, built(toy))
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        reports.write_json(path, {"seconds": float("nan")})
    assert path.read_text() == before
    assert [p.name for p in toy.reports.iterdir()] == ["report.json"]


def test_a_mark_takes_older_renderings_away(toy: Workspace) -> None:
    session = Session(Options(workspace=toy.root))
    session.write([built(toy)])
    session.mark()
    assert [p.name for p in sorted(toy.reports.iterdir())] == ["report.json"]
    assert json.loads((toy.reports / "report.json").read_text())["run_state"] == "running"
