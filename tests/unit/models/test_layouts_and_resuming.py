"""Layouts of one batch and resumed trainings: the right loops hold, each wrong one is seen."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from gradproof.execution.methods.property import Case, Cell, Place, Refutation
from models.systems import torch_layouts as layouts, torch_resume as resume_steps
from symbolic.systems.falsify_layouts import accumulation_error, own_gradients, same_in_every_layout, stepped
from symbolic.systems.falsify_resume import apart, end_of, job_of, resumed_is_the_same

PLACE = Place("cpu", "fp32", {"GA-LAYOUT-001": 1e-4}, frozenset({"GA-LAYOUT-001"}))


def test_three_layouts_agree_and_accumulation_is_within_what_is_proved() -> None:
    rows = same_in_every_layout.test(layouts.Layout, Case("mlp", 4), PLACE).rows
    assert {row["note"] for row in rows if row["column"] == "end to end"} == {
        f"{what}, 4 x 4 against {other}"
        for what in ("gradient", "parameters after step 1")
        for other in ("16", "2 x 8")
    }
    (own,) = [row for row in rows if row["column"] == "accumulation"]
    assert own["measured"] <= own["bound"] < 1e-6


def test_a_buffer_off_by_a_little_is_beyond_what_is_proved() -> None:
    got = stepped(layouts.Layout, 4, 0, PLACE).gradient
    error, bound = accumulation_error(got, own_gradients(4, 0, PLACE))
    assert error <= bound
    more, bound = accumulation_error(got + 1e-5, own_gradients(4, 0, PLACE))
    assert more > bound > Fraction(0)


def test_a_cut_that_is_no_power_of_two_has_no_exact_gradients() -> None:
    with pytest.raises(ValueError, match=r"^3 is"):
        own_gradients(3, 0, PLACE)


@pytest.mark.parametrize("name", layouts.MUTANTS)
@pytest.mark.parametrize("n", [2, 4])
def test_a_wrong_scaling_shows_its_parameters(name: str, n: int) -> None:
    with pytest.raises(Refutation, match=r"step 1 differs by 0\.\d"):
        same_in_every_layout.test(layouts.MUTANTS[name].subject, Case("mlp", n), PLACE)


@pytest.mark.parametrize("n", [2, 4])
def test_every_place_to_stop_resumes(n: int) -> None:
    cases = resumed_is_the_same.cases(Cell("mlp", n), PLACE)
    assert [case.swap for case in cases] == list(range(1, 3 * n))
    reached = set[str]().union(*(resumed_is_the_same.test(resume_steps.Resumes, c, PLACE).covers for c in cases))
    assert reached >= set(resumed_is_the_same.reached)


@pytest.mark.parametrize("name", resume_steps.MUTANTS)
def test_what_is_lost_is_seen(name: str) -> None:
    subject = resume_steps.MUTANTS[name].subject

    def walk() -> None:
        for case in resumed_is_the_same.cases(Cell("mlp", 4), PLACE):
            resumed_is_the_same.test(subject, case, PLACE)

    with pytest.raises(Refutation, match="differs at the end"):
        walk()


def test_a_lost_partial_window_is_seen_inside_the_window_alone() -> None:
    between, inside = Case("mlp", 4, windows=3, swap=4), Case("mlp", 4, windows=3, swap=6)
    assert resumed_is_the_same.test(resume_steps.LosesGradients, between, PLACE).covers
    with pytest.raises(Refutation, match="2 of 4 "):
        resumed_is_the_same.test(resume_steps.LosesGradients, inside, PLACE)


def test_two_ends_differ_in_one_bit() -> None:
    a = end_of(job_of(Case("mlp", 2, windows=3), 1, "cpu"))
    b = dict(a)
    assert apart(a, b) == ""
    b["weight 0.bias"] = torch.nextafter(a["weight 0.bias"], torch.tensor(9.0))
    assert apart(a, b) == "weight 0.bias"
    del b["schedule"]
    assert apart({"schedule": a["schedule"]}, b) == "schedule"
