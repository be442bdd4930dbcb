"""Float constants that stand for a rational."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

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
        (1e-8, Fraction(1e-8)),
        (2.0**-40, Fraction(1, 2**40)),
        (1 / 3 + 1e-15, Fraction(1 / 3 + 1e-15)),
    ],
)
def test_constants_are_read_as_near_rationals_only(x: float, expected: Fraction) -> None:
    assert snapped(x) == expected


def test_the_simplest_rational_of_an_interval() -> None:
    assert simplest(Fraction(3, 10), Fraction(7, 20)) == Fraction(1, 3)
    assert simplest(Fraction(5, 2), Fraction(7, 2)) == 3


def test_a_constant_near_a_rational_is_listed_and_read_as_it_where_a_run_asks_for_it() -> None:
    laws = Interpreter(Terms())
    assert [laws.exact(x) for x in (0.5, 1 / 3)] == [Fraction(1, 2), Fraction(1 / 3)]
    laws.snap = True
    assert [laws.exact(x) for x in (0.5, 1 / 3)] == [Fraction(1, 2), Fraction(1, 3)]
    assert laws.near == {1 / 3: Fraction(1, 3)}
