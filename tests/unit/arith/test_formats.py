"""Formats and rounding against NumPy's and torch's own conversions, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from gradproof.arith.formats import FORMATS, binade, format_named, widest
from symbolic.stubs.claims import numbers

NUMPY: dict[str, Any] = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_numbers_of_a_16_bit_format_are_those_of_its_bit_patterns(name: str) -> None:
    assert [float(x) for x in FORMATS[name].nonnegative()] == numbers(name).tolist()


@given(st.floats(-60000, 60000, allow_nan=False), st.sampled_from(["fp16", "fp32", "fp64"]))
def test_rounding_agrees_with_numpy(x: float, name: str) -> None:
    assert float(FORMATS[name].round(Fraction(x))) == float(NUMPY[name](x))


@given(st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32))
def test_rounding_agrees_with_torch_in_bf16(x: float) -> None:
    want = torch.tensor(x, dtype=torch.float32).to(torch.bfloat16).item()
    assert float(FORMATS["bf16"].round(Fraction(x))) == want


@given(st.fractions(Fraction(1, 2**30), 60000), st.sampled_from(sorted(FORMATS)))
def test_half_an_ulp_bounds_the_error_and_is_attained(x: Fraction, name: str) -> None:
    f = FORMATS[name]
    assert abs(f.round(x) - x) <= f.half_ulp(x)
    low = f.round(x)
    tie = low + f.spacing(low) / 2
    assert abs(f.round(tie) - tie) == f.half_ulp(tie)


def test_overflow_is_an_error_and_not_a_number() -> None:
    with pytest.raises(OverflowError, match="overflows fp16"):
        FORMATS["fp16"].round(Fraction(65520))
    assert FORMATS["fp16"].round(Fraction(65519)) == 65504


def test_small_things() -> None:
    assert FORMATS["fp16"].half_ulp(Fraction(0)) == 0
    assert FORMATS["fp32"].half_ulp(Fraction(1)) == Fraction(1, 2**25)
    assert FORMATS["fp32"].half_ulp(Fraction(3, 2)) == FORMATS["fp32"].u
    assert binade(Fraction(-3, 8)) == -2
    assert not FORMATS["fp16"].representable(Fraction(2049))
    assert widest("fp16", "bf16") == "fp32"
    assert widest(None, "fp16") == "fp16"
    with pytest.raises(ValueError, match="no binade"):
        binade(Fraction(0))
    with pytest.raises(KeyError, match="known: fp16"):
        format_named("fp8")
