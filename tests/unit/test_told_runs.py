"""Counterexamples of whole checks over symbolic values, told as windows of events by their replay."""

from __future__ import annotations

from dataclasses import replace

from gradproof import telling
from gradproof.core import Expect, Outcome
from gradproof.timeline import from_json
from models.accumulation import Vector
from models.mutants import MUTANTS
from tests.unit.test_smt_run import claim, run


def test_a_killed_mutant_is_told_by_its_replay_and_never_by_the_exploration() -> None:
    heard: list[bool] = []

    class Spy(MUTANTS["missing_scale"].subject):  # type: ignore[misc,name-defined]
        def zero(self, buffer: Vector) -> Vector:
            heard.append(telling.heard())
            return tuple(super().zero(buffer))

    check = claim(
        "symbolic.accumulation:exact_equivalence", "GA-EQ-001", mutants=("missing_scale",),
        bounds={"micro_batches": 2, "elements": 1, "samples": 1},
    )  # fmt: skip
    spied = {"missing_scale": replace(MUTANTS["missing_scale"], subject=Spy)}
    control = run(check, mutants=spied).controls[1]
    assert control.killed, control.reason
    assert control.counterexample is not None
    line = from_json(control.counterexample["trace"])
    assert [t.event for _, t in line.faults if t.refused] == ["accumulate"]
    explored = heard.index(True)
    assert explored > 0
    assert not telling.heard()


def test_an_expected_refutation_is_told_without_an_event_to_blame() -> None:
    bounds = {"micro_batches": 2, "elements": 1, "samples": 2}
    found = run(claim("symbolic.accumulation:weighted_equivalence", "GA-EQ-001", bounds=bounds, expect=Expect.REFUTED))
    assert found.outcome is Outcome.REFUTED
    assert found.counterexample is not None
    line = from_json(found.counterexample["trace"])
    assert [(t.event, t.refused, t.harm) for _, t in line.faults] == [("end", "", "GA-EQ-001 breaks")]
