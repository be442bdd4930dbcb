"""Every law of whole-tensor values is tried on the real kernel; what claims more than a law is refuted."""

from __future__ import annotations

import pytest

from gradproof.shadow.whole.laws import LAWS, RULES
from tests.laws import EQUIVALENT, TOO_WEAK, UNTRIED, Trial, tried


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    """Every operator's trial."""
    return tried()


def test_no_law_differs_from_its_kernel(trials: dict[str, Trial]) -> None:
    assert {name: trial.wrong for name, trial in trials.items() if trial.wrong} == {}


def test_thousands_of_cases_were_decided(trials: dict[str, Trial]) -> None:
    assert sum(trial.cases for trial in trials.values()) > 2000


def test_every_law_is_tried_or_says_why_not(trials: dict[str, Trial]) -> None:
    tried_names = {name for name, trial in trials.items() if trial.cases}
    assert (set(LAWS) | set(RULES)) - tried_names <= set(UNTRIED)


def test_nothing_that_is_tried_is_called_untried(trials: dict[str, Trial]) -> None:
    assert {name for name in UNTRIED if name in trials and trials[name].cases} == set()


def test_mutants_of_laws_are_refuted(trials: dict[str, Trial]) -> None:
    left = {
        name: mutant
        for name, trial in trials.items()
        for mutant in trial.survived
        if trial.cases and mutant.startswith("linear") and EQUIVALENT.get(name) != mutant and name not in TOO_WEAK
    }
    assert left == {}


@pytest.mark.parametrize(
    "name", ["_softmax", "native_layer_norm", "convolution", "native_group_norm", "cumsum", "tril"]
)
def test_a_coupled_axis_that_is_mapped_is_refuted(trials: dict[str, Trial], name: str) -> None:
    assert "every axis mapped" in trials[name].killed
