"""Witnesses of pairwise, compensated and blocked sums: replayed, near the exact worst case, below the bound."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from gradproof.arith.bounds import Rounding
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding.accumulation import Setting, blocked, difference, error_of, kahan, neumaier, pairwise
from gradproof.rounding.certificate import certify
from gradproof.rounding.lattice import exhaustive
from gradproof.rounding.witness_compensated import (
    DOWN,
    UP,
    Plan,
    gradient,
    pairwise_witness,
    rounded,
    spacing,
    ties,
    witness_for,
)

SMALL = Format("small", 13, 8, -12, 7)


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "small", SMALL)


def ratio(setting: Setting, g: list[Fraction]) -> Fraction:
    """Bound over attained error."""
    return certify(difference(setting)).bound / error_of(setting, g)


@pytest.mark.parametrize(("fmt", "n"), [("fp32", 2), ("fp32", 4), ("fp32", 16), ("fp32", 64), ("fp16", 8)])
def test_the_plan_of_a_pairwise_sum_comes_true(fmt: str, n: int) -> None:
    """What the states promise is what exact evaluation finds, for every position grid that the format has room for."""
    f = FORMATS[fmt]
    for bits in (4, 5):
        plan = Plan(n, f, bits)
        g = [gradient(x, n, f) for x in plan.terms()]
        assert all(x * n == y for x, y in zip(plan.terms(), g, strict=True))
        assert error_of(Setting(n, fmt, order="pairwise"), g) == plan.best()[0] * Fraction(2) ** plan.unit


ALL = 1 + Fraction(1, 10**9)  # of the bound, but for underflow


@pytest.mark.parametrize(("n", "most"), [(1, None), (2, ALL), (4, "1.01"), (8, "1.11"), (32, "1.23")])
def test_pairwise_witnesses_of_fp32_are_near_the_bound(n: int, most: Fraction | str | None) -> None:
    setting, g = Setting(n, "fp32", order="pairwise"), pairwise_witness(n, "fp32")
    assert all((x / n).denominator & ((x / n).denominator - 1) == 0 for x in g)
    assert len(g) == n
    if most is None:
        assert error_of(setting, g) == 0
    else:
        assert 1 <= ratio(setting, g) <= Fraction(most)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_pairwise_witnesses_are_near_the_exact_worst_case(n: int) -> None:
    setting = Setting(n, "small", order="pairwise")
    exact, found = exhaustive(setting).worst, error_of(setting, pairwise_witness(n, "small"))
    assert found <= exact <= certify(difference(setting)).bound
    assert exact <= found * Fraction(108, 100)


def test_a_plan_whose_parities_are_wrong_errs_less() -> None:
    """The lowest bits carry the error: the same positions without the residues lose most of it."""
    n, f = 16, FORMATS["fp32"]
    setting, terms = Setting(n, "fp32", order="pairwise"), Plan(n, f, 5).terms()
    coarse = [Fraction(round(x * 2**20), 2**20) for x in terms]
    assert error_of(setting, [x * n for x in coarse]) * 4 < error_of(setting, [x * n for x in terms])


ORDERS: dict[str, Callable[[list[np.float32]], np.float32]] = {
    "pairwise": pairwise, "kahan": kahan, "neumaier": neumaier, "blocked:8": lambda x: blocked(x, 8),
}  # fmt: skip


@pytest.mark.parametrize("n", [2, 3, 16])
@pytest.mark.parametrize("order", ORDERS)
def test_witnesses_replay_on_floats_of_the_machine(order: str, n: int) -> None:
    setting = Setting(n, "fp32", order=order)
    g = witness_for(setting)
    made = ORDERS[order]([np.float32(x) / np.float32(n) for x in g])
    error = abs(Fraction(float(made)) - sum(g, Fraction(0)) / n)
    assert error == error_of(setting, g) > 0
    assert error <= certify(difference(setting)).bound


@pytest.mark.parametrize("scale", ["divide", "multiply", "none"])
@pytest.mark.parametrize("order", ["sequential", "kahan", "neumaier", "blocked:8", "blocked:3"])
def test_a_search_beats_chance(order: str, scale: str) -> None:
    draw = random.Random(0)
    for n in (3, 12):
        setting = Setting(n, "fp32", scale=scale, order=order)
        own = 1 if scale != "none" else 1 / n
        chance = [[Fraction(float(np.float32(draw.uniform(-own, own) * 0.999))) for _ in range(n)] for _ in range(40)]
        found = error_of(setting, witness_for(setting))
        assert found >= max(error_of(setting, g) for g in chance)
        assert found <= certify(difference(setting)).bound


@pytest.mark.parametrize(("order", "most"), [("blocked:8", Fraction(103, 100)), ("sequential", ALL)])
def test_blocks_attain_their_bound(order: str, most: Fraction) -> None:
    for n in (2, 8, 16, 64):
        setting = Setting(n, "fp32", order=order)
        assert 1 <= ratio(setting, witness_for(setting)) <= most


def test_kahan_loses_more_than_the_last_addition() -> None:
    """Half an ulp of the sum is u / 2; terms that cross a binade add to it."""
    setting = Setting(64, "fp32", order="kahan")
    assert error_of(setting, witness_for(setting)) > FORMATS["fp32"].u * Fraction(5, 4)


def test_a_bound_of_half_the_error_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(16, "fp32", order="blocked:8")
    found = error_of(setting, witness_for(setting))
    honest = Rounding.worst_error
    monkeypatch.setattr(Rounding, "worst_error", lambda self, bound: honest(self, bound) // 2)
    assert certify(difference(setting)).bound < found


def test_the_arithmetic_of_the_search_is_the_format_s() -> None:
    f = Format("t7", 7, 4, -2, 3)
    for z in range(-200, 201):
        exact = z * f.tiny
        assert rounded(z, f.p) * f.tiny == f.round(exact)
        assert spacing(z, f.p) * f.tiny == f.spacing(exact)
    for total in range(16, 64, 4):
        for way in (DOWN, UP):
            sums = [total + x for x in ties(total, 16, f.p, way)]
            assert max(sums) <= total + 16
            assert any(way * (z - rounded(z, f.p)) == spacing(z, f.p) // 2 > 0 for z in sums)


def test_what_has_no_search_is_refused() -> None:
    for setting in (Setting(2, "fp32", inputs="fp16"), Setting(2, "fp32", order="any")):
        with pytest.raises(ValueError, match="no search"):
            witness_for(setting)
    with pytest.raises(ValueError, match="at least one"):
        pairwise_witness(0, "fp32")
