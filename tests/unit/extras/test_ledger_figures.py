"""Figures of claims: where a value is read, what is compared, and that nothing is rounded or guessed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from ledger_toy import EXACT

from gradproof.extras.claims.figures import FigureShape, Unread, at, computed, judged, said, stated, value_of

ROWS = {"rows": [{"n": 1, "of": "x", "v": 2}, {"n": 2, "of": "x", "v": 8}, {"n": 2, "of": "y", "v": 4}]}


def figure(**given: Any) -> FigureShape:
    return FigureShape.model_validate({"document": "tokens", **given})


@pytest.mark.parametrize(("pointer", "value"), [("/a/0", 1), ("/a/1/b~1c", 2.5), ("/yes", True), ("", EXACT)])
def test_a_pointer_leads_to_its_value(pointer: str, value: Any) -> None:
    assert at(EXACT, pointer) == value


@pytest.mark.parametrize("pointer", ["/b", "/a/2", "/a/-1", "/a/x", "/yes/0", "/a/٠", "/a/1/b"])
def test_a_pointer_to_nothing_is_no_value(pointer: str) -> None:
    with pytest.raises(Unread):
        at(EXACT, pointer)


def test_a_double_is_the_rational_that_it_is() -> None:
    assert value_of(figure(at="/x", below=1), {"x": 0.1}) == Fraction(0.1) != Fraction("0.1")
    assert value_of(figure(at="/third", below=1), EXACT) == Fraction(1, 3)
    assert not judged(figure(at="/x", equals=1), Fraction(10**20 + 1, 10**20))


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        ({"at_least": 2}, "2", "1.999999999999"),
        ({"at_most": 2}, "2", "2.000000000001"),
        ({"above": 2}, "2.000000000001", "2"),
        ({"below": 2}, "1.999999999999", "2"),
        ({"at_least": 1, "below": 2}, "1", "2"),
        ({"equals": 2}, "2", "2.000000000001"),
    ],
)
def test_a_figure_moved_over_its_limit_is_seen(limits: dict[str, int], inside: str, outside: str) -> None:
    assert judged(figure(at="/x", **limits), Fraction(inside))
    assert not judged(figure(at="/x", **limits), Fraction(outside))


def test_words_and_truth_values_are_no_numbers() -> None:
    assert judged(figure(at="/x", equals=True), True)
    assert not judged(figure(at="/x", equals=True), Fraction(1))
    assert not judged(figure(at="/x", equals=1), True)
    assert not judged(figure(at="/x", equals="1"), Fraction(1))
    assert not judged(figure(at="/x", at_least=0), "x")
    for value in (True, "x", None, [1], {}):
        with pytest.raises(Unread):
            value_of(figure(at="/x", at_least=0), {"x": value})


def test_the_element_that_agrees_is_chosen_and_two_are_none() -> None:
    where = {"n": 2, "of": "y"}
    assert value_of(figure(among="/rows", where=where, at="/v", equals=4), ROWS) == 4
    assert value_of(figure(among="/rows", take="largest", at="/v", equals=8), ROWS) == 8
    assert value_of(figure(among="/rows", take="smallest", where={"n": 2}, at="/v", equals=4), ROWS) == 4
    for lost in ({"n": 2}, {"n": 3}, {"n": "2"}, {"n": True}, {"m": 2}):
        with pytest.raises(Unread):
            value_of(figure(among="/rows", where=lost, at="/v", equals=4), ROWS)
    with pytest.raises(Unread):
        value_of(figure(among="/rows", take="largest", where={"n": 3}, at="/v", equals=4), ROWS)


def test_a_quotient_is_exact_and_not_by_zero() -> None:
    data = {"a": 1, "b": 3, "zero": 0}
    assert value_of(figure(at="/a", over="/b", scale=3, equals=1), data) == 1
    with pytest.raises(Unread):
        value_of(figure(at="/a", over="/zero", equals=1), data)


@pytest.mark.parametrize(("text", "value"), [("12 / 8", "3/2"), ("100 * (1 - 157/625)", "74.88"), ("0.1 + 0.2", "0.3")])
def test_arithmetic_is_over_the_rationals(text: str, value: str) -> None:
    assert computed(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "x", "1 / 0", "2 ** 9", "True", "'1'", "int(1)", "1 // 2", "-1", "1j", "(" * 150, "1+" * 100 + "1"],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(Unread):
        computed(text)


@pytest.mark.parametrize("text", ["1e99999999", "1e-99999999", "9" * 31, "0x10", "1_000"])
def test_a_number_that_would_fill_the_memory_or_is_no_decimal_is_refused(text: str) -> None:
    with pytest.raises(Unread):
        computed(text)


def test_a_figure_in_words_is_exact_or_says_that_it_is_not() -> None:
    assert stated(Fraction("74.88"), "%") == "74.88 %"
    assert stated(Fraction(1, 3)) == "≈ 0.333333333333"
    assert [stated(True), stated("x"), stated(Fraction(157))] == ["yes", "x", "157"]
    assert said(figure(at="/x", at_least=3, at_most=4)) == ">= 3 and <= 4"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Fraction(10) ** 400, "1e+400"),
        (Fraction(10) ** 5000, "1e+5000"),
        (Fraction(1, 10**400), "1e-400"),
        (-Fraction(1, 3**800), "≈ -2.00907534575e-382"),
        (Fraction(10**30 + 1, 10**30), "≈ 1"),
        (Fraction(0), "0"),
    ],
)
def test_a_figure_beyond_the_doubles_has_words_too(value: Fraction, words: str) -> None:
    assert stated(value) == words
    assert judged(figure(compute="1", document=None, equals=1), value) is False
