"""The exhaustive passes against exact rationals and real kernels; a contract that promises too much is caught."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding import exhaust, exhaust_ops
from gradproof.rounding.exhaust import ADD_CHECKS, Additions, Ints, Rounded, round_units
from gradproof.rounding.exhaust_ops import RATIO_CHECKS, Ratios, round_ratio
from gradproof.rounding.exhaust_sums import quotients_and_sums
from gradproof.rounding.step_contracts import ADD_FORMS, ROUND_FORMS, TABLE_N, Step

TINY = Format("tiny", 6, 3, -1, 2)
HALF, BRAIN, SINGLE = FORMATS["fp16"], FORMATS["bf16"], FORMATS["fp32"]


def violations(tally: exhaust.Tally) -> dict[str, int]:
    """Violations of each promise."""
    return {name: count.violations for name, count in tally.counts.items()}


def exactly(z: int, p: int) -> int:
    """round_units by rationals: a format of precision p whose smallest subnormal is 1 and whose range is large."""
    return int(Format("wide", 64, p, p - 1, 60).round(Fraction(z)))


@pytest.mark.parametrize("p", [3, 8, 11, 24])
def test_integers_round_as_rationals_do(p: int) -> None:
    random = np.random.default_rng(p)
    z = np.concatenate([np.arange(1200), random.integers(0, 2**50, 300), 2 ** np.arange(0, 50) + 1]).astype(np.int64)
    ties = (random.integers(2 ** (p - 1), 2**p, 200) << 7) + (1 << 6)
    z = np.concatenate([z, ties])
    assert round_units(z, p).t.tolist() == [exactly(int(v), p) for v in z]


def test_bit_lengths() -> None:
    v = [0, 1, 2, 3, 4, 2**40 - 1, 2**40, 2**52 + 1]
    assert exhaust.bit_length(np.array(v)).tolist() == [n.bit_length() for n in v]


def test_sums_of_fp16_round_as_numpy_and_torch_do() -> None:
    """The rounding under test against two real implementations, on a sample: random pairs, subnormals among them."""
    random = np.random.default_rng(1)
    values = exhaust.finite_units(HALF)
    s = values[random.integers(0, len(values), 200_000)]
    x = values[np.minimum(random.integers(0, len(values), len(s)), random.integers(1, len(values), len(s)))]
    mine = round_units(s + x, 11).t
    fits = mine <= values[-1]
    first, second = ((v / 2.0**24).astype(np.float16) for v in (s, x))
    with np.errstate(over="ignore"):
        assert np.array_equal((first + second)[fits].astype(np.float64) * 2**24, mine[fits].astype(np.float64))
    added = (torch.from_numpy(first) + torch.from_numpy(second)).double().numpy()
    assert np.array_equal(added[fits] * 2**24, mine[fits].astype(np.float64))
    assert fits.sum() > 100_000


def test_classes_of_bf16_round_as_torch_does() -> None:
    """Every class up to a difference of 20, on numbers of bf16 that it stands for."""
    seen = 0
    for s, x in exhaust.classes(BRAIN):
        first, second = (torch.from_numpy(v / 2.0**10).to(torch.bfloat16) for v in (s, x))
        assert np.array_equal(first.double().numpy() * 2**10, s.astype(np.float64))
        added = (first + second).double().numpy() * 2**10
        assert np.array_equal(added, round_units(s + x, 8).t.astype(np.float64))
        seen += len(s)
    assert seen > 10**6


def test_every_pair_of_a_tiny_format_is_added_once() -> None:
    held = list(TINY.nonnegative())
    seen = {(int(s), int(x)) for row, column in exhaust.pairs(TINY) for s, x in zip(row, column, strict=True)}
    units = [int(v / TINY.tiny) for v in held]
    signed = {*units, *(-v for v in units)}
    assert seen == {(s, x) for s, x in product(units, signed) if abs(x) <= s}
    tally = exhaust.additions(TINY)
    assert tally.skipped > 0
    assert all(count.cases == len(seen) - tally.skipped for count in tally.counts.values())
    assert set(violations(tally).values()) == {0}


def test_classes_are_additions_of_numbers() -> None:
    """Every pair of a tiny format is a scaled copy of some class; the promises hold of all."""
    kinds = set()
    for s, x in exhaust.classes(TINY):
        kinds |= set(zip(s.tolist(), x.tolist(), strict=True))
    for s, x in product(range(1, 29), range(-28, 29)):
        if abs(x) <= s and all(TINY.representable(v * TINY.tiny) for v in (s, x)) and x:
            place = max(0, abs(x).bit_length() - TINY.p)
            assert (s >> place, x >> place) in kinds, (s, x)
    assert set(violations(exhaust.additions(TINY, literal=False)).values()) == {0}
    assert exhaust.far(TINY).cases > 0


def test_all_of_bf16() -> None:
    tally = exhaust.additions(BRAIN, literal=False)
    assert set(violations(tally).values()) == {0}
    assert tally.notes["far violations"] == 0
    assert all(count.cases > 10**6 for count in tally.counts.values())
    assert tally.stands_for == len(list(BRAIN.nonnegative())) ** 2


TOO_MUCH: dict[str, exhaust.Check] = {
    "half of half an ulp": lambda a: (a.error << (a.p + 1)) <= np.left_shift(1, np.maximum(a.r.length, 1) - 1),
    "half of u": lambda a: (a.error << (a.p + 1)) <= a.z,
    "half of x": lambda a: 2 * a.error <= np.abs(a.x),
    "no tie": lambda a: 2 * a.r.tail != np.left_shift(1, a.r.shift),
    "always exact": lambda a: a.error == 0,
    "strict": lambda a: a.r.t < a.z + 1,
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_an_unsound_contract_is_caught(name: str) -> None:
    for f, literal in ((TINY, True), (BRAIN, False)):
        count = exhaust.additions(f, {name: TOO_MUCH[name]}, literal).counts[name]
        assert 0 < count.violations < count.cases
        assert "units" in count.first


def _ties_down(z: Ints, p: int) -> Rounded:
    r = round_units(z, p)
    away = 2 * r.tail == np.left_shift(1, r.shift)
    return Rounded(r.length, r.shift, r.low, r.tail, np.where(away, r.low, r.t))


def _cut(z: Ints, p: int) -> Rounded:
    r = round_units(z, p)
    return Rounded(r.length, r.shift, r.low, r.tail, r.low)


def test_another_rounding_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncation breaks the bounds. Ties broken otherwise keep them: what is proved holds for any tie rule."""
    monkeypatch.setattr(exhaust, "round_units", _cut)
    found = violations(exhaust.additions(TINY))
    assert min(found["half-ulp"], found["relative"], found["at-most-terms"]) > 0
    monkeypatch.setattr(exhaust, "round_units", _ties_down)
    assert violations(exhaust.additions(TINY))["half-ulp"] == 0


def test_the_promises_on_integers_are_those_on_rationals() -> None:
    """On right and wrong results alike: what a vectorised promise accepts, its meaning on rationals accepts."""
    stated = {name: [0, 0] for name in ADD_CHECKS}
    rows = [(s, x) for row, column in exhaust.pairs(TINY) for s, x in zip(row, column, strict=True)]
    s, x = (np.array(v, dtype=np.int64) for v in zip(*rows, strict=True))
    for off in (-4, -1, 0, 1, 2, 8):
        good = round_units(s + x, 3)
        r = Rounded(good.length, good.shift, good.low, good.tail, np.maximum(good.t + off, 0))
        a = Additions(3, s, x, s + x, r, r.t - s - x, np.abs(r.t - s - x))
        for name, check in ADD_CHECKS.items():
            kept = np.broadcast_to(check(a), s.shape)
            for i in np.flatnonzero(r.t <= 28):
                parts = (Fraction(int(v)) * TINY.tiny for v in (a.z[i], r.t[i], s[i], x[i]))
                stated[name][int(kept[i])] += 1
                assert not kept[i] or ADD_FORMS[name].holds(Step(TINY, *parts)), name
    assert all(min(both) > 0 for both in stated.values()), stated


def test_ratios_round_as_rationals_do() -> None:
    for f, top in ((TINY, 28), (HALF, 5000)):
        num = np.arange(0, 7 * top, max(1, top // 500))
        for den in (1, 3, 7, 64):
            r = round_ratio(num, np.full_like(num, den), f.p)
            wanted = [Fraction(int(n), den) * f.tiny for n in num]
            fits = [i for i, z in enumerate(wanted) if z <= f.largest]
            assert [Fraction(int(r.t[i])) * f.tiny for i in fits] == [f.round(wanted[i]) for i in fits]
            for name, check in RATIO_CHECKS.items():
                assert check(r).all(), name


def test_the_promises_on_ratios_are_those_on_rationals() -> None:
    stated = {name: [0, 0] for name in RATIO_CHECKS}
    num = np.arange(0, 130)
    den = np.full_like(num, 5)
    good = round_ratio(num, den, TINY.p)
    for off in (-6, -2, -1, 0, 1, 3):
        t = np.maximum(good.t + off, 0)
        r = Ratios(3, num, den, t, good.low, good.gap, good.length, np.abs(t * den - num))
        for name, check in RATIO_CHECKS.items():
            for i, kept in enumerate(np.broadcast_to(check(r), num.shape)):
                c = Step(TINY, Fraction(int(num[i]), 5) * TINY.tiny, Fraction(int(t[i])) * TINY.tiny)
                stated[name][int(kept)] += 1
                assert not kept or ROUND_FORMS[name].holds(c), (name, c)
    assert all(min(both) > 0 for both in stated.values()), stated


def _batches(f: Format) -> list[Any]:
    return [exhaust_ops.reals(f), exhaust_ops.quotients(f, TABLE_N), exhaust_ops.products(f, TABLE_N)]


def test_operators_of_16_bit_formats() -> None:
    for f in (HALF, BRAIN):
        for batches in _batches(f):
            tally = exhaust_ops.ratios(f, batches)
            assert set(violations(tally).values()) == {0}
            assert all(count.cases > 10**4 for count in tally.counts.values())


def test_operators_with_half_the_bound_are_caught() -> None:
    wrong = {"half": lambda r: (r.error << (r.p + 1)) <= (r.den << (np.maximum(r.length, r.p) - 1))}
    for f in (HALF, BRAIN):
        for batches in _batches(f):
            assert exhaust_ops.ratios(f, batches, wrong).counts["half"].violations > 0
    assert exhaust_ops.roots(BRAIN, shrink=1).counts["half-ulp"].violations > 0
    wide = Format("wide", 12, 8, -6, 7)
    assert exhaust_ops.conversions(wide, TINY, wrong).counts["half"].violations > 0
    assert set(violations(exhaust_ops.conversions(wide, TINY)).values()) == {0}


def test_roots_are_those_of_numpy() -> None:
    assert set(violations(exhaust_ops.roots(HALF)).values()) == {0}
    assert set(violations(exhaust_ops.roots(BRAIN)).values()) == {0}
    assert exhaust_ops.roots(HALF).counts["half-ulp"].cases == 2**11


def test_reciprocals_are_rounded() -> None:
    assert exhaust_ops.reciprocal(SINGLE, 8) == (1, 3)
    m, s = exhaust_ops.reciprocal(SINGLE, 3)
    assert Fraction(m, 2**s) == Fraction(float(np.float32(1) / np.float32(3)))
    with pytest.raises(ValueError, match="subnormal"):
        exhaust_ops.reciprocal(HALF, 2**15)


def test_conversions_cover_every_way_of_dropping_bits() -> None:
    ways, stands_for = exhaust_ops.narrowed(SINGLE, HALF)
    assert (13, True) in ways
    assert (23, True) in ways
    assert stands_for == (15 + 126 + 2) * 2**23
    assert [d for d, normal in exhaust_ops.narrowed(SINGLE, BRAIN)[0]] == [16, 16]


def test_widening_and_what_is_no_widening() -> None:
    assert exhaust_ops.widened(TINY, HALF).counts["exact"].violations == 0
    assert exhaust_ops.widened(HALF, BRAIN).counts["exact"].violations > 0


def test_a_format_too_wide_for_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="too many bits"):
        exhaust.finite_units(BRAIN)


@pytest.mark.parametrize("less", [0, 1])
def test_quotients_and_their_sums(less: int) -> None:
    """Every promise is kept, and none by as little as 1 / m units in the last place less."""
    tally = quotients_and_sums(FORMATS["bf16"], range(3, 64, 2), less)
    assert {name: (count.cases > 0, count.violations > 0) for name, count in tally.counts.items()} == {
        name: (True, less > 0) for name in ("quotient", "joint", "pair")
    }
    assert all(("last place" in count.first) is (less > 0) for count in tally.counts.values())
