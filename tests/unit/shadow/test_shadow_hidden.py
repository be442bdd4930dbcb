"""Bugs that hid from the verifier once, and correct loops beside them that it refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import shadow_hidden as hidden

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests import checked as verify

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED


def bad(found: Verification) -> list[tuple[str, Outcome, str]]:
    """What does not hold."""
    return [(r.obligation, r.outcome, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS]


@pytest.mark.parametrize("make", hidden.AVERAGES)
def test_an_average_that_advances_at_every_micro_batch(make: Callable[..., Any]) -> None:
    result = verify.check(hidden.averaging(make, each=True)).result("GA-INV-003")
    assert result.outcome in (REFUTED, Outcome.UNKNOWN), result.reason


@pytest.mark.parametrize("make", hidden.AVERAGES)
def test_an_average_that_advances_at_every_step(make: Callable[..., Any]) -> None:
    assert bad(verify.check(hidden.averaging(make, each=False))) == []


@pytest.mark.parametrize("make", [hidden.masked, hidden.attended, hidden.beside_a_table])
def test_other_counts_however_the_labels_are_made(make: Callable[..., Any]) -> None:
    assert verify.check(hidden.mean_of_means(make)).result("GA-EQ-001").outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("name", ["hook_by_own_count", "second_loss_by_own_count", "one_line_draws_unscaled"])
def test_what_hid_does_not_hold(name: str) -> None:
    assert verify.check(getattr(hidden, name)).result("GA-EQ-001").outcome in (REFUTED, Outcome.UNKNOWN)


@pytest.mark.parametrize("name", ["one_line_draws", "one_line_makes", "epochs_with_a_rest", "counted_in_python"])
def test_data_that_two_runs_make_in_other_portions_are_undecided(name: str) -> None:
    found = verify.check(getattr(hidden, name))
    assert {r.outcome for r in found.results if r.applies} <= {Outcome.HOLDS, Outcome.UNKNOWN, Outcome.OUTSIDE}


@pytest.mark.parametrize("name", ["sorted_inside", "ids_sorted_inside"])
def test_samples_that_are_sorted_inside_their_micro_batch_are_not_refuted(name: str) -> None:
    found = verify.check(getattr(hidden, name))
    assert {r.outcome for r in found.results} <= {Outcome.HOLDS, Outcome.UNKNOWN, Outcome.OUTSIDE}


def test_windows_in_another_order_are_refuted() -> None:
    result = verify.check(hidden.windows_swapped).result("GA-DATA-001")
    assert (result.outcome, "from other samples" in result.reason) == (REFUTED, True), result.reason


def test_a_decorated_function_is_found_by_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def each_rank(_: str, jobs: list[Any], __: float) -> list[Verification]:
        asked.extend(jobs[0][:2])
        return [Verification("", {}, seconds={"all": 0.0})]

    monkeypatch.setattr("gradproof.shadow.tape.ranks.each_rank", each_rank)

    @functools.wraps(hidden.one_line_draws)
    def outer(run: Any) -> None:
        hidden.one_line_draws(run)

    verify.check(outer, ranks=2)
    assert asked == [hidden.__file__, "one_line_draws"]
