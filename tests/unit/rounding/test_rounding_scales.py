"""Sizes, norms and edges: tables against the document, closed forms against searches, and what makes them go red."""

from __future__ import annotations

import itertools
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gradproof.arith.formats import FORMATS, Format
from gradproof.cli import dispatch
from gradproof.core.outcome import Outcome
from gradproof.rounding import bound as scales, edge_cases as reciprocals, edge_cases as survival
from gradproof.rounding.accumulation import Setting, error_of
from gradproof.rounding.bound import answer, proved, thresholds, witness
from tests import edges

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "edges.md"
EPS = Fraction(1, 10**5)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    code = dispatch(["bound", *args])
    caught = capsys.readouterr()
    return code, caught.out + caught.err


def lacking(text: str, made: list[str]) -> list[str]:
    """Lines of a table that a text lacks."""
    return [line for line in made if f"\n{line}\n" not in text]


@pytest.mark.parametrize("name", edges.tables())
def test_the_document_has_every_table(name: str) -> None:
    text, made = DOCUMENT.read_text(encoding="utf-8"), list(edges.tables()[name]())
    assert lacking(text, made) == []
    for row in (line for line in made if line.startswith("|")):
        assert row in lacking(text.replace(row, row[:-2] + "x |"), made)


def test_the_command_prints_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert edges.main(["swamping"]) == 0
    assert "| bf16 | 512 | 0.5 |" in capsys.readouterr().out
    assert edges.main(["nothing"]) == 2
    assert "known: sizes" in capsys.readouterr().err


# Sizes


def test_a_tolerance_at_three_sizes() -> None:
    small, one, large = (thresholds(Setting(1, magnitude=x), EPS, 512) for x in edges.SIZES)
    assert (small["true up to"], small["false from"]) == (512, None)
    assert (one["true up to"], one["false from"]) == (256, 512)
    assert (large["true up to"], large["false from"]) == (1, 2)
    assert [edges._ladder(found).partition(",")[0] for found in (small, one, large)] == [
        "true up to 512", "true up to 256", "true up to 1"
    ]  # fmt: skip
    told = edges._ladder({"true up to": None, "undecided from": 1, "false from": 2})
    assert re.findall(r"never|\d+", told) == ["never", "1", "2"]
    told = edges._ladder({"true up to": edges.MOST, "undecided from": None, "false from": None})
    assert re.findall(r"\d+|more", told) == [str(edges.MOST), "more"]


@pytest.mark.parametrize("magnitude", [Fraction(1), Fraction(10**4)])
def test_what_is_false_has_an_input(magnitude: Fraction) -> None:
    first = thresholds(Setting(1, magnitude=magnitude), EPS, 512)["false from"]
    assert first is not None
    own = Setting(first, magnitude=magnitude)
    assert error_of(own, witness(own)) > EPS
    assert EPS / FORMATS["fp32"].half_ulp(Fraction(10**4)) < 1 < EPS / FORMATS["fp32"].half_ulp(Fraction(1))


@pytest.mark.parametrize("k", [-30, -3, 7, 40])
def test_a_power_of_two_scales_the_bound_and_what_is_attained(k: int) -> None:
    x = Fraction(2) ** k
    one, other = answer(Setting(16)), answer(Setting(16, magnitude=x))
    assert other.attained == x * one.attained
    assert abs(other.bound - x * one.bound) <= 16 * FORMATS["fp32"].tiny * (1 + x)
    assert error_of(other.setting, [x * g for g in one.witness]) == x * one.attained


def test_another_size_is_no_multiple_of_the_sharp_bound() -> None:
    """X E_N is exceeded where X is no power of two, 2 X E_N is not; over all sizes the worst is near 3/8 N u."""
    n, u = 64, FORMATS["fp32"].u
    sharp, third = Fraction(n * n - 1, 3 * n) * u, Fraction(4, 3)
    assert sharp * third < answer(Setting(n, magnitude=third)).attained < 2 * third * sharp
    ends = [1 + Fraction(k, 6) for k in range(7)]  # a bound for each piece of a binade, against its lower end
    made = [Setting(n, magnitude=x) for x in ends[1:]]
    bound = max(proved(s)[0] / low for s, low in zip(made, ends, strict=False))
    attained = max(answer(s).attained / s.magnitude for s in made)
    assert sharp < attained <= bound < 2 * sharp
    assert abs(attained / (n * u) - Fraction(3, 8)) < Fraction(1, 100)


# Norms


@pytest.mark.parametrize("d", [0, 1, 2, 3, 4, 10**6, 10**6 + 1, 2**80 + 1])
def test_roots_are_on_the_safe_side(d: int) -> None:
    low, high = scales.root_below(d), scales.root_above(d)
    assert low * low <= d <= high * high
    assert high - low <= Fraction(1, scales.PLACES)
    with pytest.raises(ValueError, match="negative"):
        scales.root_above(-1)


@pytest.mark.parametrize(("d", "n"), [(2, 4), (3, 2), (7, 3)])
def test_the_norm_of_the_repeated_witness_lies_between(d: int, n: int) -> None:
    made = answer(Setting(n, buffer="fp16"))
    norm = scales.Norm(made, d)
    squares = sum((error_of(made.setting, made.witness) ** 2 for _ in range(d)), Fraction(0))
    assert norm.attained**2 <= squares <= norm.bound**2
    assert norm.outcome(norm.bound) is Outcome.HOLDS
    assert norm.outcome(norm.attained * Fraction(99, 100)) is Outcome.REFUTED
    if norm.attained < norm.bound:
        assert norm.outcome((norm.attained + norm.bound) / 2) is Outcome.UNKNOWN
    with pytest.raises(ValueError, match="one element"):
        scales.Norm(made, 0)


def test_the_norm_of_every_input_of_a_tiny_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two elements, two micro-batches, all inputs: no error's norm is larger, and one comes near."""
    f = Format("t3", 5, 3, -1, 3)
    monkeypatch.setitem(FORMATS, "t3", f)
    setting = Setting(2, buffer="t3")
    own = [x for x in f.nonnegative() if x <= 1]
    errors = {error_of(setting, g) ** 2 for g in itertools.product([*own, *(-x for x in own)], repeat=2)}
    made = scales.Norm(answer_of(setting), 2)
    worst = max(a + b for a, b in itertools.product(errors, repeat=2))
    assert made.bound**2 / 2 < worst <= made.bound**2


def answer_of(setting: Setting) -> Any:
    """An answer without contracts: a tiny format has none."""
    from gradproof.rounding.accumulation import difference
    from gradproof.rounding.bound import BoundAnswer
    from gradproof.rounding.certificate import certify

    return BoundAnswer(setting, certify(difference(setting)).bound, Fraction(0), (), None, ())


# The command


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["-n", "256", "--magnitude", "10000", "--relative", "1e-5"], 0),
        (["-n", "1024", "--magnitude", "10000", "--relative", "1e-5"], 1),
        (["-n", "2", "--magnitude", "10000", "--tolerance", "1e-5"], 1),
        (["-n", "64", "--tolerance", "1e-5", "--elements", "4"], 0),
        (["-n", "64", "--tolerance", "1e-5", "--elements", "1000000"], 1),
    ],
)
def test_relative_and_norm_set_the_exit_code(capsys: pytest.CaptureFixture[str], args: list[str], code: int) -> None:
    assert run(capsys, *args)[0] == code


def test_the_forms_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "-n", "8", "--relative", "1e-5", "--elements", "9")[1]
    bound = answer(Setting(8)).bound
    assert f" <= {float(3 * bound):.6e} over 9" in out
    assert f"mean |g| + {float(scales.relative_bound(Setting(8))[1]):.3e} " in out
    assert "every size" in run(capsys, "-n", "8", "--relative", "1e-5", "--order", "kahan")[1]
    found = json.loads(run(capsys, "-n", "8", "--tolerance", "1", "--elements", "9", "--json")[1])
    assert (Fraction(found["norm"]["bound"]), found["outcome"]) == (3 * bound, "HOLDS")


def test_the_largest_n_that_was_asked_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--thresholds", "--tolerance", "1e-5", "--most", "64"]
    assert "N = 64 is the largest" in run(capsys, *asked, "--magnitude", "1e-4")[1]
    assert "is the largest" not in run(capsys, *asked, "--magnitude", "10000")[1]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--relative", "1e-5", "--tolerance", "1e-5"], ["--relative", "some"], ["--elements", "0"],
        ["--thresholds", "--tolerance", "1", "--most", "3"],
        ["--thresholds", "--tolerance", "1", "--elements", "2"],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(capsys: pytest.CaptureFixture[str], wrong: list[str]) -> None:
    code, out = run(capsys, *wrong)
    assert (code, "GP411" in out) == (2, True)


# Edges


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("n", [*range(1, 17), 64, 100, 1024])
def test_the_smallest_survivor_is_the_one_that_a_search_finds(fmt: str, n: int) -> None:
    for scale in (1, 1024):
        assert survival.smallest_survivor(scale, n, fmt) == survivor_by_search(scale, n, fmt)


def survivor_by_search(scale: int, n: int, fmt: str = "fp16") -> tuple[Fraction, bool]:
    """The same by looking at every number h >= 0 of the format, in order: the first with fl(h / n) != 0."""
    f, below = FORMATS[fmt], Fraction(0)
    for h in f.nonnegative():
        if f.round(h / n):
            middle = (below + h) / 2
            return middle / scale, f.round(middle) == h
        below = h
    raise AssertionError(f"no {fmt} number survives a division by {n}")


def test_a_search_that_flushes_finds_another_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Format.round
    normal = Fraction(2) ** FORMATS["fp16"].emin
    monkeypatch.setattr(Format, "round", lambda f, x: kept(f, x) if abs(x) >= normal else Fraction(0))
    assert survival.smallest_survivor(1, 3) != survivor_by_search(1, 3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8, 64])
def test_late_overflow_is_exact(n: int) -> None:
    f, threshold = FORMATS["fp16"], survival.late_overflow(n)
    numbers = list(f.nonnegative())
    assert [survival.number(f, k) for k in range(len(numbers))] == numbers
    above = [x for x in numbers if x > threshold][:3]
    below = [x for x in numbers if x < threshold][-3:]
    assert [survival.overflows(f, x, n) for x in below] == [False] * 3
    assert [survival.overflows(f, x, n) for x in above] == [True] * len(above)
    if n in (6, 7):
        assert threshold != survival.overflow(f) / n  # partial sums round


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
@pytest.mark.parametrize("n", [1, 3, 5, 6, 7, 8, 12, 24])
def test_quotients_err_by_the_closed_form(fmt: str, n: int) -> None:
    f = FORMATS[fmt]
    errors = (abs(f.round(x) - x) / f.spacing(x) for x in (Fraction(m, n) for m in range(2 ** (f.p - 1), 2**f.p)))
    odd = n // (n & -n)
    assert max(errors) == reciprocals.worst(reciprocals.DIVIDE, odd, fmt).ulps == Fraction(odd - 1, 2 * odd)


@pytest.mark.parametrize("n", reciprocals.DIVISORS)
def test_quotients_of_fp32_err_by_the_closed_form(n: int) -> None:
    odd = n // (n & -n)
    assert reciprocals.worst(reciprocals.DIVIDE, n, "fp32").ulps == Fraction(odd - 1, 2 * odd)


def test_a_quotient_is_never_farther_than_a_product() -> None:
    f = FORMATS["bf16"]
    for n in reciprocals.DIVISORS:
        pairs = [(Fraction(m, n), f.round(m * f.round(Fraction(1, n)))) for m in range(2 ** (f.p - 1), 2**f.p)]
        assert all(abs(f.round(x) - x) <= abs(y - x) for x, y in pairs)
        assert any(abs(f.round(x) - x) < abs(y - x) for x, y in pairs)
        quotient, product = (reciprocals.worst(how, n, "bf16") for how in (reciprocals.DIVIDE, reciprocals.MULTIPLY))
        assert product.ulps == max(abs(y - x) / f.spacing(x) for x, y in pairs) > quotient.ulps


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp32"])
def test_cancellation_has_no_relative_bound_and_keeps_the_absolute_one(fmt: str) -> None:
    p = FORMATS[fmt].p
    errors = [edges.cancelling(fmt, k).relative for k in range(1, p)]
    assert errors == [2 ** (k - 1) for k in range(1, p)]
    made = edges.cancelling(fmt, None)
    assert (made.mean, made.relative) == (0, None)
    assert 0 < made.error <= answer(made.setting).bound
    assert made.against <= made.allowed
    with pytest.raises(ValueError, match="is no"):
        edges.cancelling(fmt, p + 8)


@pytest.mark.parametrize(("fmt", "n"), [("bf16", 2**k) for k in range(13)] + [("fp16", 2048), ("fp16", 8192)])
def test_swamping_is_what_additions_give(fmt: str, n: int) -> None:
    f, total = FORMATS[fmt], Fraction(0)
    for _ in range(n):
        total = f.round(total + f.round(Fraction(1, n)))
    assert edges.swamped(fmt, n) == total


@pytest.mark.parametrize(("fmt", "n"), [("bf16", 3), ("fp16", 2**15), ("bf16", 0)])
def test_swamping_without_a_closed_form(fmt: str, n: int) -> None:
    with pytest.raises(ValueError, match="closed form"):
        edges.swamped(fmt, n)


@pytest.mark.parametrize("n", [3, 4, 7])
def test_late_division_is_no_worse_for_gradients_of_size_one(n: int) -> None:
    before, after = edges.division_bounds("fp16", n)
    assert after <= before
    for scale, bound in (("divide", before), ("after", after)):
        made = answer(Setting(n, buffer="fp16", scale=scale))
        assert made.attained <= made.bound == bound
