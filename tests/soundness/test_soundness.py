"""The oracle sees a wrong label, a wrong answer is called one, and the lists name steps that there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soundness.answers import BESIDE, CRASH, FALSE_HOLDS, FALSE_REFUTED, Answer, fault
from tests.soundness.kit import BLIND, MEETS, RIGHT, STEPS, WRONG
from tests.soundness.oracle import Findings, numbers_of, weigh
from tests.soundness.steps import MODULES, steps_of
from tests.soundness.table import documented

EQ, ZERO, LOSS, STEP, WIDE = "GA-EQ-001", "GA-INV-002", "GA-INV-001", "GA-INV-003", "GA-INV-004"


def test_the_lists_name_every_step_and_no_other() -> None:
    assert [step.name for step in steps_of(*MODULES)] == list(documented())
    assert {step.label for step in STEPS.values()} == {RIGHT, WRONG, BLIND, MEETS}


@pytest.mark.parametrize("name", ["never_divided", "never_zeroed", "bf16_buffers", "floats_of_the_last_micro_batch"])
def test_a_wrong_step_that_is_called_right_is_contradicted(name: str) -> None:
    step = STEPS[name]
    found = weigh(step)
    assert found.contradicts(step) == ""
    assert found.contradicts(replace(step, label=RIGHT, broken=())) != ""


@pytest.mark.parametrize("broken", [EQ, ZERO, LOSS, STEP, WIDE])
def test_a_right_step_that_is_called_wrong_is_contradicted(broken: str) -> None:
    step = STEPS["divided_by_the_window"]
    found = weigh(step)
    assert found.signs == set()
    assert found.contradicts(step) == ""
    assert found.contradicts(replace(step, label=WRONG, broken=(broken,))) != ""


def test_an_oracle_that_sees_stale_gradients() -> None:
    found = weigh(STEPS["never_zeroed"])
    assert found.stale > 0.1
    assert found.broken == {EQ, ZERO}


def test_wrong_answers_are_called_wrong() -> None:
    right, wrong, found = (
        STEPS["divided_by_the_window"],
        STEPS["never_zeroed"],
        Findings(gradient=1.0, signs={"gradient"}),
    )
    green = Answer({EQ: "holds", ZERO: "holds"}, 0)
    assert fault(wrong, found, green)[0] == FALSE_HOLDS
    assert fault(wrong, found, Answer({EQ: "refuted", ZERO: "holds"}, 1)) == (FALSE_HOLDS, ZERO)
    assert fault(wrong, found, Answer({EQ: "holds", ZERO: "refuted"}, 1)) == (BESIDE, EQ)
    assert fault(wrong, found, Answer({EQ: "opaque", ZERO: "refuted"}, 1)) == ("", "")
    assert fault(wrong, found, Answer({EQ: "opaque", ZERO: "unknown"}, 4)) == ("", "")
    assert fault(right, Findings(), green) == ("", "")
    assert fault(right, Findings(), Answer({EQ: "opaque", ZERO: "holds"}, 4)) == ("", "")
    assert fault(right, Findings(), Answer({EQ: "refuted", ZERO: "holds"}, 1)) == (FALSE_REFUTED, EQ)
    assert fault(right, Findings(), Answer({EQ: "error"}, 3, "it raised"))[0] == CRASH
    blind = STEPS["right_numbers_of_its_own"]
    assert fault(blind, Findings(), green)[0] == FALSE_HOLDS
    assert fault(blind, Findings(), Answer({EQ: "refuted"}, 1)) == (FALSE_REFUTED, EQ)
    assert fault(blind, Findings(), Answer({EQ: "not_run"}, 4)) == ("", "")


def test_every_kind_of_report_is_read() -> None:
    assert numbers_of({"a": [1.5, 2], "b": "loss 3.25"}) == [1.5, 2.0, 3.25]
    assert numbers_of(None) == []
