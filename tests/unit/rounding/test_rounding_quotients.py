"""Quotients by numbers that are no powers of two, joined with the sum that follows; the case at the edge."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from gradproof.arith.bounds import rational
from gradproof.arith.formats import FORMATS, Format
from gradproof.arith.linear import Linear
from gradproof.rounding import witness_sequential as edges
from gradproof.rounding.accumulation import Setting, difference, error_of
from gradproof.rounding.bound import answer, bounded
from gradproof.rounding.certificate import certify
from gradproof.rounding.farkas import Refused, check
from gradproof.rounding.lattice import exhaustive
from gradproof.rounding.witness_sequential import BeyondSearch, beyond

FP32 = FORMATS["fp32"]
SMALL = Format("small", 14, 8, -9, 7)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a format that brute force can walk through."""
    monkeypatch.setitem(FORMATS, "small", SMALL)
    return "small"


def text_of(n: int, **options: Any) -> dict[str, Any]:
    return certify(difference(Setting(n, **options))).text()


def row_of(text: dict[str, Any], kind: str) -> list[Any]:
    found: list[Any] = next(row for row in text["rows"] if row[0] == kind)
    return found


@pytest.mark.parametrize("kind", ["joint", "pair", "quotient"])
@pytest.mark.parametrize("at", [3, 4])
def test_a_smaller_constant_is_refused(kind: str, at: int) -> None:
    text = quotient() if kind == "quotient" else text_of(6)
    row = row_of(text, kind)
    row[at] = f"{int(row[at], 16) * 7 // 8:x}"
    with pytest.raises(Refused, match=rf"{kind}.*does not follow"):
        check(text)


def quotient() -> dict[str, Any]:
    g = Linear.input("g", "fp32", Fraction(1))
    return certify((g / 6).exact() - g.exact() / 6).text()


LIES: dict[str, Callable[[list[Any]], Any]] = {
    "another divisor": lambda row: row[2][1].__setitem__(0, "1/7"),
    "a product": lambda row: row[2][1].__setitem__(0, "5/6"),
    "two sums": lambda row: row[2][0].__setitem__(0, "2"),
    "another format": lambda row: row.__setitem__(1, "bf16"),
    "a pair": lambda row: row.__setitem__(0, "pair"),
    "no rounding": lambda row: row.__setitem__(0, "quotient"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_joint_row_is_refused(name: str) -> None:
    text = text_of(6)
    LIES[name](row_of(text, "joint"))
    with pytest.raises(Refused):
        check(text)


@pytest.mark.parametrize("n", [4, 65, 2 * 127])
def test_a_quotient_of_which_no_lemma_speaks_is_refused(n: int) -> None:
    """By a power of two it ties where it is subnormal; by 65 or 254 nobody enumerated it."""
    given, half = Fraction(1, 8) + Fraction(1, 16), Fraction(1, 2**14)
    top = given + Fraction(1, 2**12) / n

    def units_of(x: Fraction) -> str:
        return f"{-(-x * 2**200 // 1):x}"

    rows: list[Any] = [
        ["input", "fp16", [], units_of(given), "0"],
        ["input", "fp16", [], units_of(Fraction(1, 2**12)), "0"],
    ]
    rows += [["joint", "fp16", [["1", 0], [f"1/{n}", 1]], units_of(top * 2), units_of(2 * half)]]
    rows += [["exact", "", [["1", 2], ["-1", 0], [f"-1/{n}", 1]], units_of(8 * top), "0"]]
    text = {"unit": 200, "bound": "1", "rows": rows, "multipliers": ["0", "0", "1", "1"]}
    with pytest.raises(Refused, match="no lemma speaks"):
        check(text)
    rows[2][2][1][0] = rows[3][2][2][0] = "1/3"
    rows[3][2][2][0] = "-1/3"
    assert check(text) == 1


@pytest.mark.parametrize(
    "setting",
    [
        Setting(5, "fp16", magnitude=Fraction(1, 2**14)), Setting(7, "fp32", magnitude=Fraction(1, 2**126)),
        Setting(3, "fp16", magnitude=Fraction(1, 2**30)), Setting(9, "fp16", None, Fraction(9, 8), "none", "pairwise"),
        Setting(65), Setting(254, "bf16"),
    ],
)  # fmt: skip
def test_small_gradients_and_large_odd_parts_have_an_answer(setting: Setting) -> None:
    made = answer(setting)
    assert made.attained <= made.bound
    assert made.bound > 0 or setting.magnitude < FORMATS[setting.buffer].tiny * setting.n


def test_the_divisor_of_a_sum_over_reals_is_no_reason() -> None:
    text = text_of(6)
    given = row_of(text, "joint")[2][1][1]
    text["rows"][given][1] = ""
    with pytest.raises(Refused):
        check(text)


@pytest.mark.parametrize("n", [3, 6, 7, 10, 12, 14])
def test_a_joint_bound_is_smaller_and_no_smaller_than_the_worst_case(n: int, small: str) -> None:
    setting = Setting(n, small)
    apart = n * rational(Linear.input("g", small, Fraction(1)).__truediv__(n).slack)
    added = [r.slack for r in certify(difference(Setting(n, small, scale="none"))).rows if r.kind == "round"]
    made, worst = certify(difference(setting)).bound, exhaustive(setting).worst
    assert worst <= made
    assert made < apart + rational(sum(added)) * 2


def test_a_sum_whose_error_is_taken_stays_a_sum() -> None:
    rows = certify(difference(Setting(6, order="kahan"))).rows
    assert {"residual", "quotient", "round"} <= {r.kind for r in rows}
    assert not {"joint", "pair"} & {r.kind for r in rows}


# The case at the edge


@pytest.mark.parametrize("n", [6, 10, 14, 20, 28])
def test_beyond_the_edge_the_runs_are_enumerated(n: int, small: str) -> None:
    """The two cases together are no less than the worst case over every input, and less than no case at all."""
    setting = Setting(n, small)
    bound, text, _ = bounded(setting)
    worst = exhaustive(setting).worst
    assert worst <= bound
    if beyond(setting) is not None:
        assert text is not None
        assert "case" in text
        assert bound < certify(difference(setting)).bound


def test_some_setting_has_a_case() -> None:
    assert [n for n in (6, 10, 12, 14, 19) if beyond(Setting(n)) is not None] == [6, 10, 14]
    assert beyond(Setting(8)) is None
    assert beyond(Setting(6, order="pairwise")) is None
    assert beyond(Setting(6, scale="multiply")) is None
    assert beyond(Setting(6, inputs="fp16")) is None


def test_a_certificate_of_a_case_is_none_without_it() -> None:
    _, text, _ = bounded(Setting(6))
    assert text is not None
    case = (text["case"]["row"], Fraction(int(text["case"]["edge"], 16), 2 ** text["unit"]))
    assert check(text, case) == Fraction(text["bound"])
    for other in (None, (case[0], case[1] / 2), (case[0] - 1, case[1])):
        with pytest.raises(Refused, match="another case"):
            check(text, other)
    with pytest.raises(Refused, match="another case"):
        check(text_of(6), case)
    with pytest.raises(Refused):
        check({name: value for name, value in text.items() if name != "case"})


def test_the_runs_beyond_the_edge_count(monkeypatch: pytest.MonkeyPatch, small: str) -> None:
    """If those runs erred more, the bound would say so."""
    plain = bounded(Setting(6, small))[0]
    monkeypatch.setattr("gradproof.rounding.bound.beyond", lambda setting: BeyondSearch(Fraction(1), Fraction(1), ()))
    assert bounded(Setting(6, small))[0] == 1 > plain


@pytest.mark.parametrize("n", [6, 10])
def test_the_enumeration_is_every_run_beyond_the_edge(n: int, small: str) -> None:
    """Against a walk over every partial sum and every quotient, with nothing left out."""
    f, setting = SMALL, Setting(n, small)
    made: dict[Fraction, tuple[Fraction, Fraction]] = {}
    for g in f.nonnegative():
        if g <= 1:
            x = f.round(g / n)
            made[x] = (min(made.get(x, (g, g))[0], g), g)
    kept = {Fraction(0): (Fraction(0), Fraction(0))}
    top = max(made)
    for i in range(n):
        grown: dict[Fraction, tuple[Fraction, Fraction]] = {}
        for s, (low, high) in kept.items():
            for x, (g, h) in made.items():
                if s + x + (n - 1 - i) * top + n * f.u <= 1:
                    continue
                if i == n - 1 and s + x <= 1:
                    continue
                t = f.round(s + x)
                a, b = grown.get(t, (low + g, high + h))
                grown[t] = (min(a, low + g), max(b, high + h))
        kept = grown
    worst = max(max(t - low / n, high / n - t) for t, (low, high) in kept.items())
    made_by = beyond(setting)
    assert made_by is not None
    assert made_by.worst == worst == error_of(setting, made_by.witness)


def test_too_many_runs_are_not_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "MOST_RUNS", 10)
    beyond.cache_clear()
    assert beyond(Setting(6)) is None
    assert bounded(Setting(6))[0] == certify(difference(Setting(6))).bound
    beyond.cache_clear()


@pytest.mark.parametrize("n", [3, 6, 10, 18, 22, 33, 63])
def test_elsewhere_than_at_powers_of_two_the_ratio_is_at_most_a_tenth_above_one(n: int) -> None:
    made = answer(Setting(n))
    assert made.ratio is not None
    assert 1 <= made.ratio <= Fraction(11, 10)
