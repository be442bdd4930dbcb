"""The vectorised rounding: right at every number and every midpoint, and so everywhere; unmoved by flush modes."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
import torch

from gradproof.arith.formats import FORMATS, Format
from gradproof.extras.conformance.elementwise import all_patterns, cases, structured, to_bits, to_tensor
from gradproof.extras.conformance.machine import (
    KNOWN,
    Machine,
    Values,
    decode,
    encode,
    exact_dot,
    exact_sum,
    odd_sum,
    round_to,
    run,
)

RNG = np.random.default_rng(7)


def rounded(x: Fraction, f: Format) -> float:
    """The oracle: the format's own rounding in rationals, with an infinity where it overflows."""
    try:
        return float(f.round(x))
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_rounding_is_right_at_every_number_midpoint_and_neighbour(name: str) -> None:
    """Rounding by bits is monotone in |x|, so this decides every float64."""
    f = FORMATS[name]
    numbers = np.array([float(x) for x in f.nonnegative()])
    middle = (numbers[1:] + numbers[:-1]) / 2
    even = np.where(np.arange(len(middle)) % 2 == 0, numbers[:-1], numbers[1:])
    assert np.array_equal(round_to(numbers, name), numbers)
    assert np.array_equal(round_to(middle, name), even)
    assert np.array_equal(round_to(np.nextafter(middle, 0), name), numbers[:-1])
    assert np.array_equal(round_to(np.nextafter(middle, np.inf), name), numbers[1:])
    assert np.array_equal(round_to(-middle, name), -even)
    edge = float(f.largest + f.spacing(f.largest) / 2)
    assert np.array_equal(round_to(np.array([edge, np.nextafter(edge, 0)]), name), [np.inf, float(f.largest)])
    assert np.array_equal(round_to(middle, name, toward_zero=True), numbers[:-1])


@pytest.mark.parametrize("name", list(KNOWN))
def test_rounding_agrees_with_rationals(name: str) -> None:
    f = KNOWN[name]
    x = np.ldexp(RNG.standard_normal(1500), RNG.integers(f.emin - f.p - 3, f.emax + 2, 1500))
    assert round_to(x, name).tolist() == [rounded(Fraction(float(v)), f) for v in x]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_every_bit_pattern_means_what_torch_says(name: str) -> None:
    bits = all_patterns(name)
    values, said = decode(bits, name), to_tensor(bits, name, "cpu").double().numpy()
    assert np.array_equal(values.view(np.uint64)[~np.isnan(said)], said.view(np.uint64)[~np.isnan(said)])
    assert np.array_equal(np.isnan(values), np.isnan(said))
    assert np.array_equal(encode(values, name)[~np.isnan(said)], bits[~np.isnan(said)])
    assert np.array_equal(to_bits(to_tensor(bits, name, "cpu")), bits)


def operands(name: str, arity: int, count: int) -> list[Values]:
    """Finite operands: structured and random."""
    chunks = [[decode(b, name) for b in chunk] for chunk in cases(name, arity, 2000, 3)]
    columns = [np.concatenate(c) for c in zip(*chunks, strict=True)]
    kept = np.flatnonzero(np.all([np.isfinite(c) for c in columns], axis=0))
    chosen = RNG.choice(kept, count)
    return [c[chosen] for c in columns]


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_sums_products_quotients_and_fused_products_round_the_exact_result(name: str) -> None:
    f, m = FORMATS[name], Machine(name, name, name, contract=True)
    x, y = operands(name, 2, 1200)
    for got, op in ((m.add(x, y), Fraction.__add__), (m.mul(x, y), Fraction.__mul__)):
        want = [rounded(op(Fraction(float(a)), Fraction(float(b))), f) for a, b in zip(x, y, strict=True)]
        assert got.tolist() == want
    over = y != 0
    want = [rounded(Fraction(float(a)) / Fraction(float(b)), f) for a, b in zip(x[over], y[over], strict=True)]
    assert m.div(x, y)[over].tolist() == want
    a, b, c = operands(name, 3, 1200)
    fused = [rounded(Fraction(float(p)) + Fraction(float(q)) * Fraction(float(r)), f) for p, q, r in zip(a, b, c)]  # noqa: B905
    assert m.muladd(b, c, a).tolist() == fused


def test_every_quotient_of_fp16_significands_is_right() -> None:
    s = np.arange(1024, 2048, dtype=np.int64)
    for divisor in range(1024, 2048, 7):
        up = s < divisor
        q, rest = np.divmod(s << (10 + up), divisor)
        q += (2 * rest > divisor) | ((2 * rest == divisor) & (q & 1 == 1))
        got = Machine("fp16", "fp16", "fp16").div(s.astype(np.float64), np.array([float(divisor)]))
        assert np.array_equal(got, q / 2.0 ** (10 + up))


def test_every_square_root_of_fp16_is_right() -> None:
    values = [x for x in FORMATS["fp16"].nonnegative() if x > 0]
    got = Machine("fp16", "fp16", "fp16").sqrt(np.array([float(x) for x in values]))
    for x, r in zip(values, got, strict=True):
        root, half = Fraction(float(r)), FORMATS["fp16"].spacing(Fraction(float(r))) / 2
        assert (root - half) ** 2 <= x <= (root + half) ** 2
    assert isqrt(49) == 7


def test_a_plain_float64_sum_would_round_twice() -> None:
    """What the odd sum is for: 1 + 2^-24 + 2^-80 is above a midpoint of fp32, and float64 cannot say so."""
    x, y = np.array([1 + 2.0**-24]), np.array([2.0**-80])
    assert round_to(x + y, "fp32")[0] == 1.0
    assert round_to(odd_sum(x, y), "fp32")[0] == 1 + 2.0**-23
    assert round_to(odd_sum(x, -y), "fp32")[0] == 1.0


def test_the_model_does_not_see_the_flush_mode() -> None:
    bits = [structured("fp32"), structured("fp32")[::-1].copy()]
    machine = Machine("fp32", "fp32", "fp32")
    before = run(lambda m, x, s: m.add(x[0], x[1]), machine, bits, 1.0)
    assert torch.set_flush_denormal(True)
    try:
        assert np.array_equal(run(lambda m, x, s: m.add(x[0], x[1]), machine, bits, 1.0), before)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_exact_sums_are_exact(name: str) -> None:
    x, y = (encode(np.ldexp(RNG.uniform(-1, 1, 50), RNG.integers(-30, 9, 50)), name) for _ in range(2))
    a, b = ([Fraction(float(v)) for v in decode(z, name)] for z in (x, y))
    assert exact_sum(x, name) == sum(a)
    assert exact_sum(x, name, magnitudes=True) == sum(map(abs, a))
    assert exact_dot(x, y, name) == sum(p * q for p, q in zip(a, b, strict=True))


def test_what_has_no_exact_value_is_refused() -> None:
    for value in (np.inf, np.nan):
        with pytest.raises(ValueError, match="no exact value"):
            exact_sum(encode(np.array([1.0, value]), "fp16"), "fp16")
    with pytest.raises(ValueError, match="at most 2\\^14"):
        exact_dot(np.zeros(2**14 + 1, dtype=np.uint32), np.zeros(2**14 + 1, dtype=np.uint32), "fp16")
    with pytest.raises(ValueError, match="no vectorised rounding"):
        round_to(np.ones(1), "fp64")


def test_cases_meet_the_promises() -> None:
    assert len(next(cases("fp16", 1, 10, 0))[0]) == 65536
    pairs = [np.concatenate(c) for c in zip(*cases("fp16", 2, 1000, 0), strict=True)]
    special = structured("fp16")
    seen = set(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    assert all(pair in seen for pair in itertools.product(special.tolist(), repeat=2))
    values = decode(special, "fp16")
    assert np.isnan(values).any()
    assert np.isinf(values).any()
    assert {0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0x7C00} <= set(special.tolist())
    with pytest.raises(ValueError, match="one to three"):
        next(cases("fp16", 4, 10, 0))
    with pytest.raises(ValueError, match="too many bit patterns"):
        all_patterns("fp32")
