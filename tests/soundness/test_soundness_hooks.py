"""The steps of steps_hooks.py: labels that the numbers confirm, and answers that are sound."""

from __future__ import annotations

import pytest

from tests.soundness import steps_hooks
from tests.soundness.judged import complaints
from tests.soundness.kit import Step
from tests.soundness.steps import steps_of


@pytest.mark.parametrize("step", steps_of(steps_hooks), ids=lambda step: step.name)
def test_the_answer_is_sound(step: Step) -> None:
    assert complaints(step) == []
