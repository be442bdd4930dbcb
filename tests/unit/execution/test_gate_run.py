"""The gate's own falsification: red for the seeded bug, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_workspace import answer, only, refutation, write_workspace

from gradproof.contract.model import load
from gradproof.core.check import Check, Finding
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Outcome
from gradproof.core.workspace import Workspace
from gradproof.execution import methods as backends
from gradproof.execution.methods import gate as gate_run
from gradproof.verdict.plan import plan

Backend = Callable[[Check, Workspace], Any]


@pytest.fixture
def toy(tmp_path: Path) -> Workspace:
    return write_workspace(tmp_path / "toy")


def gate_check(toy: Workspace) -> Check:
    return plan(load(toy.contracts()[0]))[-1]


def run(toy: Workspace, monkeypatch: pytest.MonkeyPatch, backend: Backend, of: Check | None = None) -> Finding:
    monkeypatch.setattr(backends, "run", backend)
    with only(toy):
        return gate_run.run(of or gate_check(toy), toy)


def sees(check: Check, workspace: Workspace) -> Finding:
    """A backend that looks at the subject that the check names."""
    return answer(check) if workspace.resolve(check.subject) == 1 else refutation(check)


def test_the_seeded_bug_turns_the_gate_red(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = run(toy, monkeypatch, sees)
    assert finding.outcome is Outcome.HOLDS
    assert "BROKEN by K-1, F-1@cpu-fp32" in finding.reason
    assert "right is not met" in finding.reason
    assert finding.stats["seeded_bugs"]["bug"]["exit"] == "broken"
    assert finding.stats["seeded_bugs"]["bug"]["criteria"] == {"right": False}


def test_a_gate_that_cannot_see_the_bug_is_weak(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = run(toy, monkeypatch, lambda check, workspace: answer(check))
    assert finding.outcome is Outcome.WEAK
    assert "does not see it" in finding.reason


def test_one_blind_check_is_enough_to_be_weak(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = run(toy, monkeypatch, lambda c, w: refutation(c) if c.id == "K-1" else answer(c))
    assert finding.outcome is Outcome.WEAK
    assert "F-1@cpu-fp32" in finding.reason


def crash(check: Check, workspace: Workspace) -> Finding:
    raise ValueError("crash")


def unresolved(check: Check, workspace: Workspace) -> Finding:
    raise GradproofError("GP209", "no mutant", "one", "correct it")


OTHER_REASONS: dict[str, Backend] = {
    "crash": crash,
    "unresolved": unresolved,
    "timeout": lambda c, w: Finding(Outcome.TIMEOUT, "late"),
    "vacuous": lambda c, w: answer(c, clauses={}),
    "spurious": lambda c, w: refutation(c, replays=[]),
    "another clause": lambda c, w: refutation(c, counterexample={"clause": "T-9", "values": {}}),
    "unknown": lambda c, w: Finding(Outcome.UNKNOWN, "gave up"),
    "only half of it": lambda c, w: refutation(c) if c.id == "K-1" else Finding(Outcome.TIMEOUT, "late"),
}


@pytest.mark.parametrize("name", list(OTHER_REASONS))
def test_a_gate_that_is_red_for_another_reason_is_an_error(
    toy: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    finding = run(toy, monkeypatch, OTHER_REASONS[name])
    assert finding.outcome is Outcome.ERROR
    assert "another reason" in finding.reason


def changed(toy: Workspace, **params: Any) -> Check:
    data = gate_check(toy).to_json()
    return Check.from_json({**data, "params": {**data["params"], **params}})


def test_no_check_named_to_kill_the_bug_is_weak(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(toy, monkeypatch, sees, changed(toy, subchecks=[])).outcome is Outcome.WEAK


def test_no_seeded_bug_is_not_run(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(toy, monkeypatch, sees, changed(toy, seeded_bugs=[])).outcome is Outcome.NOT_RUN


def test_each_of_several_bugs_must_turn_the_gate_red(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    both = changed(toy, seeded_bugs=["bug", "other"])
    assert run(toy, monkeypatch, sees, both).outcome is Outcome.WEAK
    rows = both.params["subchecks"]
    other = [{**row, "subject": row["subject"].replace("[bug]", "[other]")} for row in rows]
    both = changed(toy, seeded_bugs=["bug", "other"], subchecks=rows + other)
    finding = run(toy, monkeypatch, lambda c, w: refutation(c), both)
    assert finding.outcome is Outcome.HOLDS
    assert set(finding.stats["seeded_bugs"]) == {"bug", "other"}
    blind = run(toy, monkeypatch, lambda c, w: refutation(c) if "[bug]" in c.subject else answer(c), both)
    assert blind.outcome is Outcome.WEAK
    assert "with other seeded" in blind.reason


def test_a_bug_that_no_criterion_speaks_of_is_weak(toy: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = run(toy, monkeypatch, sees, changed(toy, criteria={"other": ["T-9"]}))
    assert finding.outcome is Outcome.WEAK
    assert "no criterion" in finding.reason
