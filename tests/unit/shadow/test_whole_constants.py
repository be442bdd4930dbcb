"""Float constants that stand for a rational."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gradproof.shadow.follow.interpreter import Interpreter, simplest, snapped
from gradproof.shadow.follow.terms import Terms


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (1 / 3, Fraction(1, 3)),
        (float(np.float32(1 / 3)), Fraction(1, 3)),
        (-1 / 6, Fraction(-1, 6)),
        (1 / 3 / 7, Fraction(1, 21)),
        (0.25, Fraction(1, 4)),
        (0.3333, Fraction(3333, 10000)),
        (1 / 3.0000001, Fraction(1 / 3.0000001)),
        (1e-8, Fraction(1, 10**8)),
        (1e-4 / 8, Fraction(1, 80000)),
        (12345.1, Fraction(123451, 10)),
        (float(np.float32(1 / 200001)), Fraction(1, 200001)),
        (2.0**-40, Fraction(1, 2**40)),
        (1 / 3 + 1e-15, Fraction(1 / 3 + 1e-15)),
    ],
)
def test_constants_are_read_as_near_rationals_only(x: float, expected: Fraction) -> None:
    assert snapped(x) == expected


def test_the_simplest_rational_of_an_interval() -> None:
    assert simplest(Fraction(3, 10), Fraction(7, 20)) == Fraction(1, 3)
    assert simplest(Fraction(5, 2), Fraction(7, 2)) == 3


def test_a_constant_near_a_rational_is_read_as_it_and_listed() -> None:
    laws = Interpreter(Terms())
    assert [laws.exact(x) for x in (0.5, 1 / 3)] == [Fraction(1, 2), Fraction(1, 3)]
    assert laws.near == {1 / 3: Fraction(1, 3)}


@given(st.floats(2**-10, 1e6), st.integers(0, 40))
def test_a_power_of_two_changes_no_reading(x: float, by: int) -> None:
    """So a weight w, and N times w / N, are one number, whatever w is."""
    assert snapped(x * 2.0**by) == snapped(x) * 2**by


@given(st.integers(1, 2**13), st.integers(0, 13))
def test_a_share_by_a_power_of_two_is_what_it_is(part: int, whole: int) -> None:
    assert snapped(part / 2**whole) == Fraction(part, 2**whole)


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_quotient_of_counts_is_read_in_both_types(part: int, whole: int) -> None:
    assert snapped(part / whole) == snapped(float(np.float32(part / whole))) == Fraction(part, whole)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_no_constant_is_read_as_one_that_differs_by_more_than_rounding(part: int, whole: int) -> None:
    x = part / whole * (1 + 1e-6)
    assert abs(snapped(x) / Fraction(x) - 1) <= Fraction(3, 2**24)
    assert snapped(x) != Fraction(part, whole)
