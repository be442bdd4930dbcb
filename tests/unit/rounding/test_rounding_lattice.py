"""The exact worst case by dynamic programming: equal to plain enumeration, attained, between witnesses and bounds."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gradproof.arith.bounds import closed_form
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding import lattice
from gradproof.rounding.accumulation import Setting, difference, error_of
from gradproof.rounding.certificate import certify
from gradproof.rounding.lattice import Grid, Sums, exhaustive, grid, leaf

TINY = {"t5": Format("t5", 5, 3, 0, 1), "wide5": Format("wide5", 5, 2, -2, 3), "t6": Format("t6", 6, 3, -2, 3)}
SMALL = Format("small", 13, 8, -12, 7)
SCALES = ("none", "divide", "multiply", "after")


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, f in {**TINY, "small": SMALL}.items():
        monkeypatch.setitem(FORMATS, name, f)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("fmt", "n", "order"),
    [("t5", 3, "sequential"), ("t5", 3, "pairwise"), ("wide5", 3, "blocked:2"), ("t6", 2, "pairwise")],
)
def test_it_is_what_enumeration_finds(fmt: str, n: int, order: str, scale: str) -> None:
    setting = Setting(n, fmt, scale=scale, order=order)
    own = setting.magnitude if scale != "none" else setting.magnitude / n
    values = [s * x for x in TINY[fmt].nonnegative() if x <= own for s in (1, -1)]
    found = exhaustive(setting)
    assert found.worst == max(error_of(setting, g) for g in itertools.product(values, repeat=n))
    assert error_of(setting, found.witness) == found.worst


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:4"])
def test_the_closed_form_is_exact_and_pairwise_is_not(order: str) -> None:
    """u (n^2 - 1) / (3 n) up to underflow; the half-ulp bound of pairwise sums is not attained from n = 8 on."""
    for n in (2, 4) if order != "pairwise" else (4, 8):
        setting = Setting(n, "small", order=order)
        found, bound = exhaustive(setting), certify(difference(setting)).bound
        assert found.worst <= bound
        assert found.states > 5000
        if order == "sequential":
            assert closed_form("small", n) <= found.worst <= closed_form("small", n) + n * SMALL.tiny
        if order == "pairwise" and n == 8:
            assert found.worst * Fraction(108, 100) < bound


def test_fp16_over_all_of_its_inputs() -> None:
    setting = Setting(2, "fp16")
    found = exhaustive(setting)
    assert closed_form("fp16", 2) <= found.worst <= certify(difference(setting)).bound
    assert found.states >= 2 * 15361 - 1 + 2 * 14337 - 1
    assert error_of(setting, found.witness) == found.worst


def compared(a: Sums, b: Sums) -> bool:
    """Whether fl(a + b) is what all pairs give; rounding by `Format.round`."""
    made, tiny = a + b, a.fmt.tiny
    pairs: dict[int, int] = {}
    for (v, x), (w, y) in itertools.product(zip(a.values, a.least, strict=True), zip(b.values, b.least, strict=True)):
        t = int(a.fmt.round(int(v + w) * tiny) / tiny)
        pairs[t] = min(pairs.get(t, int(x + y)), int(x + y))
    return pairs == dict(zip(made.values.tolist(), made.least.tolist(), strict=True))


def test_an_addition_is_the_best_of_all_pairs() -> None:
    """Where the least sums do not grow with the number, too."""
    fmt, rng = Format("t7", 7, 4, -2, 3), np.random.default_rng(0)
    for _ in range(8):
        values = grid(fmt, Fraction(2)).values[1:-1]
        a, b = (Sums(fmt, v, v + rng.integers(-9, 9, len(v))) for v in (values, values[rng.random(len(values)) < 0.5]))
        assert a.lower is not None
        assert compared(a, b)
        assert compared(b, a)
        assert compared(a, a)


def test_a_table_that_is_too_large_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(4, "t6", order="pairwise")
    whole = exhaustive(setting)
    monkeypatch.setattr(lattice, "TABLE", 1)
    assert exhaustive(setting).worst == whole.worst


@pytest.mark.parametrize("shift", [-1, 1])
def test_wrong_rounding_is_noticed(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that are too large do not replay in software floats; enumeration finds more where they are too small."""
    honest, setting = grid, Setting(2, "t6", magnitude=Fraction(2), scale="none")
    values = [s * x for x in TINY["t6"].nonnegative() if x <= 1 for s in (1, -1)]
    true = max(error_of(setting, g) for g in itertools.product(values, repeat=2))
    assert exhaustive(setting).worst == true

    def moved(fmt: Format, reach: Fraction) -> Grid:
        made = honest(fmt, reach)
        low, high = made.low.copy(), made.high.copy()
        low[1:] += shift
        high[:-1] += shift
        return Grid(made.values, low, high)

    monkeypatch.setattr(lattice, "grid", moved)
    if shift < 0:
        with pytest.raises(ArithmeticError):
            exhaustive(setting)
    else:
        assert exhaustive(setting).worst < true


HALVES = {"weights": (Fraction(1, 2),) * 2, "scale": "multiply"}


@pytest.mark.parametrize("more", [{"order": "kahan"}, {"order": "neumaier"}, {"inputs": "fp16"}, HALVES])
def test_what_is_no_lattice_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no lattice"):
        exhaustive(Setting(2, "small", **more))


def test_what_does_not_fit_is_refused() -> None:
    for fmt in ("bf16", "fp32"):
        with pytest.raises(OverflowError):
            exhaustive(Setting(2, fmt))
    with pytest.raises(OverflowError):
        exhaustive(Setting(4, "t5", scale="none", magnitude=Fraction(8)))


def test_gradients_are_every_number_up_to_the_magnitude() -> None:
    for most in (Fraction(1), Fraction(5, 8), Fraction(1, 3)):
        made = leaf(Setting(2, "t6", magnitude=most))
        own = [x for x in TINY["t6"].nonnegative() if x <= most]
        assert [int(v) * TINY["t6"].tiny for v in made.values] == [-x for x in own[:0:-1]] + own
