"""Whole units: the same functions as those of formats, and the errors of quotients against every number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from gradproof.arith.bounds import BITS, Rounding, odd_part, rational, rounding, short, units
from gradproof.arith.formats import FORMATS, Format

TINY = Format("tiny", 8, 4, -6, 5)
MAGNITUDES = st.one_of(
    st.fractions(Fraction(1, 2**40), Fraction(60000)),
    st.builds(
        lambda m, k, d: (m * 2**d + 1) * Fraction(2) ** (k - d),
        st.integers(0, 2**12), st.integers(-30, 3), st.integers(0, 40),
    ),
)  # fmt: skip


@given(MAGNITUDES, st.sampled_from(["fp16", "bf16", "fp32", "fp64"]))
def test_units_agree_with_rationals(x: Fraction, name: str) -> None:
    f, r, z = FORMATS[name], rounding(FORMATS[name]), units(x)
    x = rational(z)
    assert rational(r.half_ulp(z)) == f.half_ulp(x)
    assert rational(r.worst_error(z)) == f.worst_error(x)
    assert rational(r.round(z)) == f.round(x) if x <= f.largest else True
    below = rational(r.below(z))
    assert f.representable(below)
    assert below <= x
    assert below == f.largest or x < below + f.spacing(max(below, f.tiny))


@given(st.integers(1, 2**300))
def test_short_numbers_are_no_smaller_and_near(z: int) -> None:
    made = short(z)
    assert z <= made <= z + (z >> 95)
    assert (made // (made & -made)).bit_length() <= 96


def test_units_that_are_too_coarse_are_refused() -> None:
    assert Rounding(FORMATS["fp32"], 150).tiny == 2
    with pytest.raises(ValueError, match="coarser"):
        Rounding(FORMATS["fp32"], 149)
    assert BITS > 1075


def numbers(f: Format, most: Fraction) -> list[Fraction]:
    return [x for x in f.nonnegative() if x <= most]


@pytest.mark.parametrize("n", [3, 5, 6, 7, 11, 12, 13])
@pytest.mark.parametrize("most", [Fraction(1), Fraction(3, 2), Fraction(1, 8)])
def test_the_error_of_a_quotient_is_attained_and_never_exceeded(n: int, most: Fraction) -> None:
    r = rounding(TINY)
    bound = rational(r.quotient_error(units(most / n), n))
    worst = max(abs(TINY.round(g / n) - g / n) for g in numbers(TINY, most))
    assert worst <= bound
    assert bound <= max(2 * worst, TINY.tiny / 2)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 11, 12])
@pytest.mark.parametrize("most", [Fraction(1), Fraction(3, 16)])
def test_no_sum_with_a_quotient_exceeds_its_bound(n: int, most: Fraction) -> None:
    r = rounding(TINY)
    made = [(g, TINY.round(g / n)) for g in numbers(TINY, most)]
    top = max(x for _, x in made)
    for room in (top, 2 * top, Fraction(1, 2), Fraction(1)):
        total = room + top
        bound = r.sum_error(units(total), units(most / n), n)
        sums = numbers(TINY, room)
        worst = max(abs(TINY.round(s + a * x) - (s + a * g / n)) for g, x in made for s in sums for a in (1, -1))
        assert worst <= rational(bound) <= 2 * worst


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 12])
def test_no_pair_of_quotients_exceeds_its_bound(n: int) -> None:
    r = rounding(TINY)
    made = [(g, TINY.round(g / n)) for g in numbers(TINY, Fraction(1))]
    top = max(x for _, x in made)
    bound = rational(r.pair_error(units(2 * top), units(Fraction(1, n)), n))
    worst = max(abs(TINY.round(x + a * y) - (g + a * h) / n) for g, x in made for h, y in made for a in (1, -1))
    assert bound / 2 < worst <= bound


def test_odd_parts() -> None:
    assert [odd_part(n) for n in (1, 2, 3, 12, 96)] == [1, 1, 3, 3, 3]
