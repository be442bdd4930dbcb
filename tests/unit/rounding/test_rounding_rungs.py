"""What the inductions prove for every N, against every input of formats of 5 to 7 bits; and rung against rung."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import pytest

from gradproof.arith.bounds import closed_form, scaling_bound
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import any_order_bound, bounded
from gradproof.rounding.lattice import exhaustive

TINY = {"wide5": Format("wide5", 5, 2, -2, 3), "t6": Format("t6", 6, 3, -2, 3), "t7": Format("t7", 7, 4, -2, 3)}


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, f in TINY.items():
        monkeypatch.setitem(FORMATS, name, f)


def vectors(f: Format, n: int, most: Fraction) -> Iterator[tuple[Fraction, ...]]:
    """Every n numbers of a format up to a magnitude; the first one is not negative, because rounding is odd."""
    some = [x for x in f.nonnegative() if x <= most]
    return itertools.product(some, *[[*some, *(-x for x in some if x)]] * (n - 1))


def error(f: Format, x: tuple[Fraction, ...]) -> Fraction:
    """|fl(sum) - sum|, left to right."""
    total = x[0]
    for term in x[1:]:
        total = f.round(total + term)
    return abs(total - sum(x, Fraction(0)))


@pytest.mark.parametrize(("fmt", "n"), [("wide5", 2), ("wide5", 3), ("t6", 3), ("t7", 2), ("wide5", 4)])
def test_the_relative_bound_is_kept_by_every_input_and_half_of_it_is_not(fmt: str, n: int) -> None:
    """KANI-GA-025: |E_n| <= (n - 1) u sum |x_i|."""
    f = TINY[fmt]
    most = f.largest / n
    pairs = [(error(f, x), (n - 1) * f.u * sum(map(abs, x))) for x in vectors(f, n, min(most, Fraction(1)))]
    assert len(pairs) > 10
    assert all(found <= bound for found, bound in pairs)
    assert any(found > bound / 2 for found, bound in pairs)


@pytest.mark.parametrize("fmt", TINY)
@pytest.mark.parametrize("n", [2, 4])
def test_the_sharp_bound_is_kept_by_every_input_and_attained(fmt: str, n: int) -> None:
    """KANI-GA-024: |E_N| <= u X (N^2 - 1) / 3 with terms up to X."""
    f, x = TINY[fmt], Fraction(1, n)
    worst = max(error(f, v) for v in vectors(f, n, x))
    bound = f.u * x * (n * n - 1) / 3
    assert worst <= bound
    assert worst == bound if n == 2 else worst > bound / 2


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:2"])
@pytest.mark.parametrize("fmt", TINY)
def test_no_rung_is_below_the_one_that_is_exact(fmt: str, order: str) -> None:
    """The lattice is exact; the certificate, with its case at the edge, and the closed form lie above it."""
    for n in (2, 3, 4, 5, 6):
        setting = Setting(n, fmt, order=order)
        worst = exhaustive(setting).worst
        assert worst <= bounded(setting)[0]
        if n in (2, 4):
            assert worst <= closed_form(fmt, n) + scaling_bound(fmt, n, Fraction(1))
        if n <= 2 ** TINY[fmt].p:
            term = TINY[fmt].round(Fraction(1, n))
            assert worst <= bounded(Setting(n, fmt, order="any"))[0]
            assert exhaustive(Setting(n, fmt, scale="none", order=order)).worst <= any_order_bound(fmt, n, term)
