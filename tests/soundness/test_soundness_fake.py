"""The steps of the soundness suite without numbers: nothing wrong holds, nothing right is refuted, and few are open."""

from __future__ import annotations

import contextlib
import io
import warnings

import pytest

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from tests.soundness.kit import BLIND, MEETS, RIGHT, STEPS, WRONG, Step
from tests.soundness.steps import MODULES, steps_of

ALL = steps_of(*MODULES)
PROVED_AT_LEAST = 70
"""Of the right steps. The rest read numbers, count tokens, or have another form than the full batch's run."""


def asked(step: Step) -> Verification:
    """The verification of a step without numbers."""
    request = Request(
        fake=True, accum_steps=step.accum_steps, micro_batch=step.micro_batch, windows=step.windows, tail=step.tail
    )
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return check_whole(step.function, step.name, request)


ANSWERS: dict[str, Outcome] = {}


@pytest.mark.parametrize("name", [step.name for step in ALL])
def test_a_step_without_numbers(name: str) -> None:
    """What is wrong, or blind, does not hold; what is right is not refuted; nothing crashes."""
    step = STEPS[name]
    found = asked(step)
    ANSWERS[name] = found.outcome
    assert found.outcome is not Outcome.ERROR, found.results[0].reason
    if step.label != RIGHT:
        assert found.outcome is not Outcome.HOLDS
        assert [b for b in step.broken if found.result(b).outcome is Outcome.HOLDS] == []
    if step.label == RIGHT:
        assert [r.reason for r in found.results if r.outcome is Outcome.REFUTED] == []


def test_most_right_steps_are_proved() -> None:
    """A judge that decides nothing would pass the rows above."""
    found = {step.name: asked(step).outcome for step in ALL if step.label == RIGHT and step.name not in ANSWERS}
    every = {**ANSWERS, **found}
    held = [step.name for step in ALL if step.label == RIGHT and every[step.name] is Outcome.HOLDS]
    assert len(held) >= PROVED_AT_LEAST


def test_the_suite_has_wrong_and_blind_steps() -> None:
    """The labels are those of the suite."""
    labels = {step.label for step in ALL}
    assert labels == {RIGHT, WRONG, BLIND, MEETS}
