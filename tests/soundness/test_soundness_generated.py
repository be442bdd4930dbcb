"""Generated steps: a sample, every bug, what is drawn anew, and that a broken engine is seen."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gradproof.shadow.judge import by_terms
from tests.soundness import generated
from tests.soundness.answers import FALSE_HOLDS
from tests.soundness.bugs import BUGS, RIGHT_NEEDS
from tests.soundness.compose import CHOICES, LOOPS, bracketed, choose
from tests.soundness.generated import TURNS, drawn_step, number_of, written
from tests.soundness.judged import answer
from tests.soundness.kit import CLASSES, RIGHT, STEPS, WRONG
from tests.soundness.oracle import Findings, weigh
from tests.soundness.table import Listed, by_class, by_seed, listed, missed, of_seed, row_of, share

DRAWN, PLAIN = 6, "plain"
EQ, WIDE = "GA-EQ-001", "GA-INV-004"
PLAN = {name: next(iter(choices)) for name, choices in CHOICES.items()} | {"model": "linear", "loss": "mean"}


@pytest.mark.parametrize("number", range(DRAWN))
def test_the_answer_to_a_drawn_step_is_sound(number: int) -> None:
    """One seed for all commits: `make soundness` draws by the commit, and what it finds is for a reader."""
    found = answer(("", number, PLAIN))
    assert found.fault == ("", "")
    assert found.contradiction == ""
    assert not found.open or found.reason


@pytest.mark.parametrize("at", range(len(BUGS)), ids=lambda at: BUGS[at].name)
def test_every_bug_is_drawn_and_has_an_effect(at: int) -> None:
    number = next(number for number in range(1, 2 * len(BUGS), 2) if number_of(PLAIN, number)[3] is BUGS[at])
    made = drawn_step(PLAIN, number)
    assert made.step.bug == BUGS[at].name
    assert made.found.broken
    assert len(made.before) < 10


def test_the_same_seed_draws_the_same_step_again() -> None:
    assert written(PLAIN, 3)[1] == written(PLAIN, 3)[1] != written("other", 3)[1] != written("other", 3, 1)[1]
    assert {number_of(PLAIN, number)[2] for number in range(4)} == {RIGHT, WRONG}
    assert number_of(PLAIN, 3)[1:] == number_of(PLAIN, 3, 1)[1:]
    assert {bug.subject for bug in BUGS} <= CLASSES.keys()
    assert {step.kind for step in STEPS.values()} | {name.partition(" of")[0] for name in RIGHT_NEEDS} == CLASSES.keys()


def test_a_step_that_crashes_or_is_not_certain_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([ZeroDivisionError("a crash"), Findings(gradient=1.0, signs={"gradient"}), Findings(gradient=1e-7)])

    def weighed(step: Any) -> Findings:
        one = next(turns, Findings())
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(generated, "weigh", weighed)
    made = drawn_step(PLAIN, 2)
    assert [why.partition(":")[0] for why in made.before] == [
        "ZeroDivisionError", "labelled right, and the numbers show", "the difference may be rounding",
    ]  # fmt: skip
    assert made.text == written(PLAIN, 2, 3)[1]
    monkeypatch.setattr(generated, "weigh", lambda step: Findings(signs={"stale"}))
    with pytest.raises(ValueError, match=f"none of {TURNS} draws"):
        drawn_step(PLAIN, 2)


def test_what_is_certain() -> None:
    right, wrong, narrow = STEPS["divided_by_the_window"], STEPS["never_divided"], STEPS["bf16_buffers"]
    assert Findings(gradient=1e-12).certain(right)
    assert not Findings(finite=False).certain(right)
    assert not Findings(gradient=1e-7).certain(right)
    assert Findings(gradient=0.5, signs={"gradient"}).certain(wrong)
    assert not Findings(gradient=1e-5, signs={"gradient"}).certain(wrong)
    assert not Findings(gradient=0.5, signs={"gradient"}).certain(narrow)
    assert Findings(signs={"narrow"}).certain(narrow)


@pytest.mark.parametrize("name", ["bf16_buffers", "main_grad_in_bf16", "a_flat_bf16_buffer", "fp16_buffers"])
def test_a_narrow_sum_is_exact_over_the_reals(name: str) -> None:
    narrow = replace(STEPS[name], magnitudes=(1.0, 3.0))
    found = weigh(narrow)
    assert found.signs == {"narrow"}
    assert found.gradient < 1e-9
    assert found.broken == {WIDE}
    assert "gradient" in weigh(replace(narrow, reference=STEPS["never_divided"].function)).signs


def test_reductions_stand_in_brackets() -> None:
    assert [bracketed(text) for text in ("a + b", "a * b", "f(a) + g(b)", "f(a + b)", "n", "")] == [
        "(a + b)", "(a * b)", "(f(a) + g(b))", "f(a + b)", "n", "",
    ]  # fmt: skip
    for share_ in ("loss", "factor", "samples"):
        text = choose({**PLAN, "loss": "weight decay", "share": share_}).text()
        assert "loss = (F.mse_loss(out, y) + 0.05 * sum(p.square().sum() for p in params)) " in text


COMMON = {"a", "b", "group", "i", "name", "p"}
"""Variables of a loop that end with it."""


def test_choices_of_two_dimensions_bind_no_variable_of_each_other() -> None:
    """Alternatives of one dimension never stand together, and `loss` is made by one dimension alone."""
    plan = {**PLAN, "zero": "none"}
    names: dict[str, set[str]] = {"loop": set().union(*(_bound({**plan, "loop": loop}) for loop in LOOPS))}
    plain = _bound(plan)
    for dimension in CHOICES.keys() - {"loop", "model", "loss", "dtype"}:
        every = (_bound({**plan, dimension: choice}) for choice in CHOICES[dimension])
        names[dimension] = set().union(*every) - plain
    counts = Counter(name for found in names.values() for name in found - COMMON)
    assert [name for name, count in counts.items() if count > 1] == []
    assert {"start", "flat", "held", "norm", "mine", "schedule"} <= counts.keys()


def _bound(plan: dict[str, str]) -> set[str]:
    """The names that a step binds, and those of its functions."""
    tree = ast.parse(choose(plan).text())
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_a_judge_that_ignores_weights_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = STEPS["never_divided"]
    assert row_of(step).fault == ("", "")
    monkeypatch.setattr(by_terms.Judge, "_first_unequal", lambda self: None)
    monkeypatch.setattr(by_terms.Judge, "first", None)
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
    drawn = [replace(good, number=at, seed=seed) for seed in "ab" for at in range(2)]
    assert of_seed([good, *drawn], "b") == [good, *drawn[2:]]
    assert [row.split(" | ")[:5] for row in by_seed([good, *drawn])[2:]] == [
        [f"| {seed}", "2", "1", "3", "0"] for seed in "ab"
    ]
    assert isinstance(good, Listed)
