"""Loops that were written to fool the verifier: bugs that hide, and correct code that looks odd."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import shadow_layouts as layouts
import shadow_traps as traps

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests import checked as verify

HOLDS, REFUTED, OPAQUE = Outcome.HOLDS, Outcome.REFUTED, Outcome.OPAQUE

WRONG = [
    ("same_data_again", "GA-DATA-001"), ("branch_on_a_number", "GA-EQ-001"), ("clip_by_python_numbers", "GA-EQ-001"),
    ("best_then_numpy", "GA-EQ-001"), ("another_model_is_stepped", "GA-INV-003"), ("one_window_only", "GA-EQ-001"),
    ("learning_rate_zero", "GA-EQ-001"), ("average_n_times", "GA-INV-003"), ("average_decays_by_n", "GA-INV-003"),
    ("swa_n_times", "GA-INV-003"), ("decay_by_n", "GA-INV-003"), ("step_by_hand_unscaled", "GA-EQ-001"),
    ("clip_each", "GA-EQ-001"), ("clip_each", "GA-INV-005"), ("hook_clamps", "GA-EQ-001"),
    ("time_first_unscaled", "GA-EQ-001"), ("deep_copy_in_training", "GA-EQ-001"),
    ("tokens_of_the_first_window", "GA-DATA-001"), ("tokens_of_the_first_micro_batch", "GA-DATA-001"),
    ("padded_mean_of_means", "GA-EQ-001"), ("cut_by_batch", "GA-EQ-001"), ("returned_sum", "GA-INV-001"),
]  # fmt: skip
UNDECIDED = {
    "same_data_again", "clip_by_python_numbers", "best_then_numpy", "another_model_is_stepped", "one_window_only",
    "clip_each", "hook_clamps", "deep_copy_in_training", "padded_mean_of_means", "cut_by_batch",
}  # fmt: skip
"""Wrong steps of which the named obligation may stay undecided; every other is refuted."""

RIGHT = (
    "average_a_step", "clamped_weights", "losses_summed", "step_by_hand", "tokens",
    "overlapping_windows",
)  # fmt: skip


def said(name: str, **options: Any) -> Verification:
    return verify.check(getattr(traps, name, None) or getattr(layouts, name), **options)


@pytest.mark.parametrize(("name", "obligation"), WRONG)
def test_what_hides_is_never_proved(name: str, obligation: str) -> None:
    found = said(name)
    result = found.result(obligation)
    assert result.outcome is REFUTED or (name in UNDECIDED and result.outcome is not HOLDS), result.reason
    assert found.code != 0


@pytest.mark.parametrize("name", ["tokens_time_first", "padded_by_batch", "time_first", "deep_copy_frozen"])
def test_what_lies_along_another_axis_is_undecided_and_not_refuted(name: str) -> None:
    outcomes = {r.outcome for r in said(name).results if r.applies}
    assert outcomes <= {HOLDS, Outcome.UNKNOWN, Outcome.OUTSIDE}


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_odd_is_no_false_alarm(name: str) -> None:
    found = said(name)
    bad = [(r.obligation, r.outcome, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS]
    assert bad == []


def test_a_step_without_an_optimizer_is_counted() -> None:
    assert said("step_by_hand").result("GA-INV-003").reason.startswith("2 steps, ")


def test_what_happens_after_the_last_step_counts() -> None:
    result = said("decay_by_n", windows=1).result("GA-INV-003")
    assert (result.outcome, "parameters at the end" in result.reason) == (REFUTED, True)


def test_weights_changed_between_two_steps_are_blamed_on_their_line() -> None:
    found = said("decay_by_n")
    for name in ("GA-INV-003", "GA-EQ-001"):
        place = found.result(name).location
        assert place is not None
        assert "p.mul_(1 - 0.01" in linecache.getline(place.file, place.line)


def test_lbfgs_is_not_refuted() -> None:
    """That it evaluates its closure several times is no violation."""
    assert said("evaluated_twice").outcome is Outcome.UNKNOWN


def test_the_users_arrays_are_left_as_they_were() -> None:
    before = traps.SERIES.copy()
    said("overlapping_windows")
    assert (before == traps.SERIES).all()


def test_an_average_is_blamed_on_the_line_that_writes_it() -> None:
    place = said("average_n_times").result("GA-INV-003").location
    assert place is not None
    assert "add_(p" in linecache.getline(place.file, place.line)


def test_labels_that_ignore_nothing_are_said_to_be_untested() -> None:
    found = said("labels_without_padding")
    assert found.outcome is HOLDS
    assert any("numbers of valid labels" in text for text in found.uncovered)
