"""The domain of machine numbers computes what NumPy and math compute."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradproof.shadow.algebra import FUNCTIONS, Beyond, Value, function, lift, where
from gradproof.shadow.domains.floats import COMPUTED, Floats, inverse_erf


def test_every_function_is_computed() -> None:
    assert set(COMPUTED) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"pow"}))
def test_functions_carry_nan_and_infinities(name: str) -> None:
    out = function(name, lift(Floats(), np.array([0.25, math.inf, -math.inf, math.nan]))).parts[0]
    assert np.isfinite(out[0])
    assert math.isnan(out[3])


@pytest.mark.parametrize("y", [0.0, 1e-300, 1e-6, 0.3, -0.7, 0.999, 1 - 1e-12])
def test_inverse_erf(y: float) -> None:
    assert math.erf(inverse_erf(y)) == pytest.approx(y, rel=1e-14, abs=1e-320)


def test_inverse_erf_at_the_ends() -> None:
    assert inverse_erf(1.0) == math.inf
    assert inverse_erf(-1.0) == -math.inf
    assert math.isnan(inverse_erf(1.5))


def test_arithmetic_is_silent_about_infinities() -> None:
    d = Floats()
    x = lift(d, np.array([[1.0, 0.0], [-1.0, math.inf]]))
    zero = lift(d, np.zeros((2, 2)))
    quotient = (x / zero).parts[0]
    assert quotient[0, 0] == math.inf
    assert math.isnan(quotient[0, 1])
    assert np.array_equal((x @ zero).parts[0][0], [0.0, 0.0])
    assert where(x < zero, -x, x).parts[0][1, 0] == 1.0
    assert x.sum((0,)).parts[0][0] == 0.0
    assert (~(x < zero) & (x.same(x))).parts[0].tolist() == [[True, True], [False, True]]


def test_an_inexact_integer_is_refused() -> None:
    with pytest.raises(Beyond, match="2\\^53"):
        Floats().const(np.array([2**53 + 1]))


def test_rounding_is_left_out() -> None:
    d = Floats()
    third = Value(d, d.rounded((np.array([1 / 3]),), "float16", None))
    assert third.parts[0][0] == 1 / 3
