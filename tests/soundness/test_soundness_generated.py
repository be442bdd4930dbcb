"""Generated steps: a sample, every bug, and that a broken engine is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradproof.shadow.verify import judge
from tests.soundness.answers import FALSE_HOLDS
from tests.soundness.bugs import BUGS, RIGHT_NEEDS
from tests.soundness.generated import number_of, written
from tests.soundness.judged import answer
from tests.soundness.kit import CLASSES, RIGHT, STEPS, WRONG
from tests.soundness.oracle import weigh
from tests.soundness.table import Listed, by_class, listed, missed, row_of, share

DRAWN, PLAIN = 6, "plain"


@pytest.mark.parametrize("number", range(DRAWN))
def test_the_answer_to_a_drawn_step_is_sound(number: int) -> None:
    """One seed for all commits: `make soundness` draws by the commit, and what it finds is for a reader."""
    found = answer(("", number, PLAIN))
    assert found.thrown or found.fault == ("", "")
    assert not found.open or found.reason


@pytest.mark.parametrize("at", range(len(BUGS)), ids=lambda at: BUGS[at].name)
def test_every_bug_is_drawn_and_has_an_effect(at: int) -> None:
    own = (number for number in range(1, 2 * len(BUGS), 2) if number_of(PLAIN, number)[3] is BUGS[at])
    first = next(own)
    numbers = (first + 2 * len(BUGS) * turn for turn in range(4))
    assert any(not weigh(step).contradicts(step) for step in (written(PLAIN, number)[0] for number in numbers))


def test_the_same_seed_draws_the_same_step_again() -> None:
    assert written(PLAIN, 3)[1] == written(PLAIN, 3)[1] != written("other", 3)[1]
    assert {number_of(PLAIN, number)[2] for number in range(4)} == {RIGHT, WRONG}
    assert {bug.subject for bug in BUGS} <= CLASSES.keys()
    assert {step.kind for step in STEPS.values()} | {name.partition(" of")[0] for name in RIGHT_NEEDS} == CLASSES.keys()


def test_a_judge_that_ignores_weights_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = STEPS["never_divided"]
    assert row_of(step).fault == ("", "")
    monkeypatch.setattr(judge.Judge, "_first_unequal", lambda self: None)
    monkeypatch.setattr(judge, "apart", lambda ours, full: None)
    assert row_of(step).fault[0] == FALSE_HOLDS
    assert any(FALSE_HOLDS in bar for bar in missed([listed(row_of(step))]))


def test_a_bar_that_is_missed_is_named() -> None:
    good = listed(row_of(STEPS["divided_by_the_window"]))
    bad: dict[str, Any] = {"verdict": "undecided", "reason": "a reason"}
    assert missed([good]) == []
    assert [bar.partition("%")[0] for bar in missed([good] * 9 + [replace(good, **bad)])] == ["10.0"]
    assert len(missed([good] * 3 + [replace(good, **bad)])) == 2
    assert missed([good] * 99 + [replace(good, verdict="undecided")]) == [f"{good.name}: undecided without a reason"]
    assert share([good, replace(good, **bad)]) == 0.5
    assert by_class([good])[-1].startswith("| all | 1 | 1 |")
    assert isinstance(good, Listed)
