"""Exact judgement of a window: the bound is attained, and one ulp more is red."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st

from gradproof.arith.bounds import accumulation_bound, accumulation_witness
from gradproof.execution.methods import exact_window as torch_exact
from gradproof.execution.methods.exact_window import element_bound, judge_window, power_of_two


def summed(terms: list[float]) -> float:
    """The terms added one after the other in fp32."""
    total = torch.tensor(terms[0])
    for x in terms[1:]:
        total = total + torch.tensor(x)
    return float(total)


def witness(n: int) -> list[float]:
    """Scaled gradients that attain the worst case in fp32."""
    return [float(g) / n for g in accumulation_witness(n, "fp32")]


@pytest.mark.parametrize("n", [2, 4, 8, 32, 256])
def test_the_worst_case_attains_the_bound_and_does_not_exceed_it(n: int) -> None:
    terms = witness(n)
    error = judge_window([[x] for x in terms], [1.0] * n, [summed(terms)])
    assert error.within
    assert error.ratio is not None
    assert error.ratio > 0.9


@pytest.mark.parametrize("n", [2, 8, 32])
def test_one_ulp_more_than_the_worst_case_is_red(n: int) -> None:
    terms = witness(n)
    exact = math.fsum(terms)
    worse = summed(terms)
    step = abs(float(torch.nextafter(torch.tensor(worse), torch.tensor(2.0))) - worse)
    error = judge_window([[x] for x in terms], [1.0] * n, [worse - step if worse < exact else worse + step])
    assert not error.within
    assert error.ratio is not None
    assert error.ratio > 1


def test_a_broken_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fmt: str, n: int, magnitude: Fraction) -> Fraction:
        return accumulation_bound(fmt, n, magnitude) / 2

    torch_exact._bound.cache_clear()
    monkeypatch.setattr(torch_exact, "accumulation_bound", half)
    try:
        terms = witness(8)
        assert not judge_window([[x] for x in terms], [1.0] * 8, [summed(terms)]).within
    finally:
        torch_exact._bound.cache_clear()


def test_a_single_micro_batch_must_be_exact() -> None:
    assert judge_window([[0.3, 0.1]], [1.0], [0.3, 0.1]).ratio == 0
    off = judge_window([[0.3, 0.1]], [1.0], [0.3, math.nextafter(0.1, 1)])
    assert off.ratio is None
    assert not off.within


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=12), st.sampled_from([1.0, 4.0, 1024.0]))
def test_a_real_fp32_sum_is_within_its_bound(terms: list[float], scale: float) -> None:
    n = len(terms)
    arrived = [float(torch.tensor(x) / n) * scale for x in terms]
    applied = float(torch.tensor(summed(arrived)) / scale)
    error = judge_window([[x] for x in arrived], [scale] * n, [applied])
    assert error.within, error
    exact = sum((Fraction(x) for x in arrived), Fraction(0)) / Fraction(scale)
    assert error.linf == pytest.approx(float(abs(Fraction(applied) - exact)), rel=1e-12)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=12), st.integers(1, 12))
def test_a_late_division_is_within_its_bound_and_a_missing_one_is_not(terms: list[float], by: int) -> None:
    total = torch.tensor(summed(terms))
    ratios = [float(by)] * len(terms)
    assert judge_window([[x] for x in terms], ratios, [float(total / by)]).within
    if by > 1 and abs(math.fsum(terms)) > 1e-3:
        assert not judge_window([[x] for x in terms], ratios, [float(total)]).within


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        judge_window([[math.nan]], [1.0], [0.0])
    with pytest.raises(ValueError, match="not finite"):
        judge_window([[1.0]], [1.0], [math.inf])
    with pytest.raises(ValueError, match="factor zero"):
        judge_window([[1.0]], [0.0], [0.0])


def test_powers_of_two_are_found_up_to_rounding_and_nothing_else() -> None:
    assert power_of_two([4.0, 4.0 * (1 + 2**-24)]) == 4.0
    assert power_of_two([4.0, 2.0]) is None
    assert power_of_two([3.0]) is None
    assert power_of_two([4.0 * (1 + 2**-19)]) is None
    assert power_of_two([0.0]) is None
    assert power_of_two([-4.0]) is None


def test_the_cached_bound_is_never_below_the_exact_one() -> None:
    for largest in (1.0, 0.1, 0.7501, 3e-5):
        exact = accumulation_bound("fp32", 8, 8 * Fraction(largest))
        assert exact <= element_bound(8, largest, False, Fraction(0)) <= exact * 2
