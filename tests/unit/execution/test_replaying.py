"""Replays of real counterexamples, on the reference workspace, and the pytest files that are written from them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradproof.contract.model import load
from gradproof.core.check import Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Kind
from gradproof.core.schemas.evidence import Counterexample, EvidenceFinding, ReplayRow
from gradproof.core.workspace import Workspace, find
from gradproof.execution.local import Worker
from gradproof.execution.methods.replay_evidence import again, pytest_file, replay, subject_of
from gradproof.verdict.plan import plan

ROOT = Path(__file__).resolve().parents[3]
RIGHT = "models.accumulation.loop:WeightedAccumulation"


def main_of(workspace: Workspace) -> Path:
    """The contract whose claims are replayed here."""
    return next(p for p in workspace.contracts() if p.parent.name == "gradient-accumulation-kernel-v1")


@pytest.fixture(scope="module")
def reference() -> Workspace:
    return find(ROOT, explicit=True)


@pytest.fixture(scope="module")
def refuted(reference: Workspace) -> tuple[Check, EvidenceFinding]:
    """The plain 1/N on unequal counts, and its counterexample."""
    check = next(c for c in plan(load(main_of(reference))) if c.id == "KANI-GA-009")
    finding = Worker(check, reference, 60.0).run().finding
    assert finding.outcome == "REFUTED", finding.reason
    return check, finding


def test_a_counterexample_breaks_the_same_clause_again(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding]
) -> None:
    check, finding = refuted
    rows = replay(check, reference, check.subject, finding.counterexample)
    assert again(rows, finding.replays)
    assert {"Python model, exact rationals", "Python model, floats"} <= {r["on"] for r in rows if r["reproduced"]}
    assert any("torch" in r["on"] for r in rows)


def test_the_right_subject_passes_on_the_same_numbers(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding]
) -> None:
    check, finding = refuted
    rows = replay(check, reference, RIGHT, finding.counterexample)
    assert rows
    assert not any(r["reproduced"] for r in rows)


def ran(place: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(place)]
    return subprocess.run(command, cwd=place.parent, capture_output=True, check=False).returncode


def test_a_written_file_passes_while_the_bug_is_seen_and_fails_on_a_right_subject(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding], tmp_path: Path
) -> None:
    check, finding = refuted
    example, place = finding.counterexample, tmp_path / "test_it.py"
    rows = replay(check, reference, check.subject, example)
    text = pytest_file(check, check.subject, example, rows, reference, place)
    place.write_text(text)
    assert ran(place) == 0
    place.write_text(text.replace(f"SUBJECT = {check.subject!r}", f"SUBJECT = {RIGHT!r}"))
    assert ran(place) == 1


HOSTILE = '"""\nopen("pwned", "w")\n"""'


@pytest.mark.parametrize("text", [HOSTILE, "\\", "a\0b", "\u00b2\u00b3", "\u2028x = 1", '"', "{x}"])
def test_no_text_of_evidence_becomes_code_of_a_written_file(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding], text: str, tmp_path: Path
) -> None:
    check, _ = refuted
    forged = Check.from_json({**check.to_json(), "id": text, "title": text})
    example = Counterexample(clause=text, values={text: text})
    rows = [{"on": text, "reproduced": True}]
    doc, *statements = ast.parse(pytest_file(forged, text, example, rows, reference, tmp_path / "test_it.py")).body
    assert isinstance(doc, ast.Expr)
    assert [type(s).__name__ for s in statements] == ["ImportFrom"] * 2 + ["Assign"] * 5 + ["FunctionDef"]
    for assigned in statements[3:7]:
        assert isinstance(assigned, ast.Assign)
        value = assigned.value.args[0] if isinstance(assigned.value, ast.Call) else assigned.value
        assert ast.literal_eval(value)


def test_a_file_about_a_claim_that_should_hold_fails_until_it_does(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding], tmp_path: Path
) -> None:
    check, finding = refuted
    claimed = Check.from_json({**check.to_json(), "expect": "holds"})
    example, place = finding.counterexample, tmp_path / "test_it.py"
    rows = [row.stated() for row in finding.replays]
    text = pytest_file(claimed, check.subject, example, rows, reference, place)
    place.write_text(text)
    assert ran(place) == 1
    place.write_text(text.replace(f"SUBJECT = {check.subject!r}", f"SUBJECT = {RIGHT!r}"))
    assert ran(place) == 0


def test_subjects_of_controls(reference: Workspace) -> None:
    checks = {c.id: c for c in plan(load(main_of(reference)))}
    proof, run = checks["KANI-GA-001"], checks["FALSIFY-GA-001@cpu-fp32"]
    assert subject_of(proof, None) == proof.subject
    assert subject_of(proof, "missing_scale") == "models.accumulation.mutants:MUTANTS[missing_scale]"
    assert subject_of(proof, "empty") == subject_of(proof, "empty body") == "models.accumulation.loop:Empty"
    assert subject_of(run, "missing_scale") == "models.accumulation.torch_mutants:MUTANTS[missing_scale]"
    with pytest.raises(GradproofError, match="GP214"):
        subject_of(proof, "nobody")


def test_a_gate_check_has_no_numbers(reference: Workspace) -> None:
    gate = next(c for c in plan(load(main_of(reference))) if c.kind is Kind.GATE)
    with pytest.raises(GradproofError, match="GP215"):
        replay(gate, reference, gate.subject, Counterexample(clause="", values={}))


def row(on: str, reproduced: bool) -> dict[str, Any]:
    return {"on": on, "reproduced": reproduced, "detail": ""}


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        ([], [], False),
        ([row("a", True)], [], True),
        ([row("a", False)], [row("a", True)], False),
        ([row("a", True), row("b", False)], [row("a", True), row("b", True)], False),
        ([row("a", True), row("b", False)], [row("a", True), row("b", False)], True),
        ([row("b", False)], [row("b", False)], False),
    ],
)
def test_again_means_all_that_was_reproduced_before(now: Any, then: Any, expected: bool) -> None:
    assert again(now, [ReplayRow.model_validate(recorded) for recorded in then]) is expected


def test_each_number_system_gets_an_instance_of_its_own(
    reference: Workspace, refuted: tuple[Check, EvidenceFinding], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one replay leaves in a subject must not reach the next."""
    check, finding = refuted
    subject = reference.resolve(check.subject)
    made: list[object] = []

    class Counted(subject):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    resolve = Workspace.resolve
    monkeypatch.setattr(Workspace, "resolve", lambda w, name: Counted if name == check.subject else resolve(w, name))
    rows = replay(check, reference, check.subject, finding.counterexample)
    families = [r for r in rows if r["on"].startswith("Python model")]
    assert len(made) == len(families) > 1
