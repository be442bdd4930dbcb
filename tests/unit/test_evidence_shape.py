"""The tests that an evidence file's shape is made of: what each takes, and where it says that something differs."""

from __future__ import annotations

from typing import Any

import pytest

from gradproof.core.outcome import Reach
from gradproof.core.schemas import evidence as shape


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


SCALARS: list[Any] = [None, True, 1, 1.5, "a"]
TAKEN: list[tuple[str, Any, Any]] = [
    ("a text", shape.text, ["", "a\0"]),
    ("a name", shape.name, ["", "a"]),
    ("a flag", shape.flag, [True, False]),
    ("anything", shape.free, [*SCALARS, [], {}, {"a": [1]}, nested(shape.DEEPEST)]),
    ("a mapping", shape.mapping, [{}, {"a": 1}]),
    ("a scalar", shape.scalar, SCALARS),
    ("a fraction", shape.exact, ["0", "-1/3", "+2.5", "9" * 300, "0" * shape.MOST_DIGITS]),
    ("a number", shape.number(0, 2), [0, 2, 1.5]),
    ("a whole number", shape.whole(1), [1, (1 << 63) - 1]),
    ("a word", shape.one_of(Reach), [str(next(iter(Reach)))]),
    ("nothing or a flag", shape.maybe(shape.flag), [None, True]),
    ("a list", shape.listed(shape.flag, 1), [[True], [True, False]]),
    ("names", shape.named(shape.flag, shape.name), [{}, {"a": True}]),
    ("a row", shape.row({"a": shape.flag}, {"b": shape.flag}), [{"a": True}, {"a": True, "b": False}]),
    ("a free row", shape.row({"a": shape.flag}, others=True), [{"a": True, "c": nested(9)}]),
    ("a lemma", shape.lemma, [{"name": "a", "method": "solvers", "solvers": []},
                              {"name": "a", "method": "exhaustion", "cases": 1},
                              {"name": "a", "method": "algebra", "premises": []}]),
    ("an operator", shape.operator, ["add fp32"]),
    ("an environment", shape.environment, [{"a": 1, "variables": {"b": "c"}, "distributions": {}}]),
]  # fmt: skip


@pytest.mark.parametrize(("test", "values"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_what_is_taken(test: shape.Test, values: list[Any]) -> None:
    assert [test(value) for value in values] == [None] * len(values)


FAULTS: dict[str, tuple[Any, Any, str, str]] = {
    "a number for a text": (shape.text, 1, "", "is a int"),
    "a number for a name": (shape.name, 1, "", "is a int"),
    "a name that ends": (shape.name, "a\0b", "", "holds a NUL"),
    "a number for a flag": (shape.flag, 1, "", "is a int"),
    "too deep": (shape.free, nested(shape.DEEPEST + 1), "", "is nested too deeply"),
    "too deep in a mapping": (shape.mapping, {"a": nested(shape.DEEPEST)}, "", "is nested too deeply"),
    "a list for a mapping": (shape.mapping, [], "", "is a list"),
    "a list for a scalar": (shape.scalar, [], "", "is a list"),
    "a mapping for a scalar": (shape.scalar, {}, "", "is a dict"),
    "a number for a fraction": (shape.exact, 1, "", "is a int"),
    "an exponent": (shape.exact, "1e5", "", "is '1e5', no fraction"),
    "no digits": (shape.exact, "nan", "", "is 'nan', no fraction"),
    "nothing below": (shape.exact, "1/0", "", "is '1/0', no fraction"),
    "two bars": (shape.exact, "1/2/3", "", "is '1/2/3', no fraction"),
    "beyond every float": (shape.exact, "9" * 400, "", f"is '{'9' * 40}', no fraction"),
    "too many digits": (shape.exact, "0" * (shape.MOST_DIGITS + 1), "", f"is '{'0' * 40}', no fraction"),
    "a flag for a number": (shape.number(), True, "", "is a bool"),
    "a text for a number": (shape.number(), "1", "", "is a str"),
    "too small": (shape.number(0, 2), -1, "", "is not from 0 to 2"),
    "too large": (shape.number(0, 2), 2.5, "", "is not from 0 to 2"),
    "no number": (shape.number(), float("nan"), "", "is not from -1.79769e+308 to 1.79769e+308"),
    "a flag for a whole number": (shape.whole(), True, "", "is a bool"),
    "a part of a whole number": (shape.whole(), 1.0, "", "is a float"),
    "a whole number too small": (shape.whole(1), 0, "", "is not from 1 to 2**63 - 1"),
    "a whole number too large": (shape.whole(1), 1 << 63, "", "is not from 1 to 2**63 - 1"),
    "a number for a word": (shape.one_of(Reach), 1, "", "is a int"),
    "another word": (shape.one_of(Reach), "a", "", f"is 'a', none of {', '.join(Reach)}"),
    "a number for nothing": (shape.maybe(shape.flag), 0, "", "is a int"),
    "a mapping for a list": (shape.listed(shape.flag), {}, "", "is a dict"),
    "too few": (shape.listed(shape.flag, 1), [], "", "has 0 entries, fewer than 1"),
    "a wrong entry": (shape.listed(shape.flag), [True, 1], "[1]", "is a int"),
    "a list for names": (shape.named(shape.flag), [], "", "is a list"),
    "a wrong name": (shape.named(shape.flag, shape.name), {"a\0": True}, "['a\\x00']", "holds a NUL"),
    "a wrong value": (shape.named(shape.flag), {"a": 1}, "['a']", "is a int"),
    "a list for a row": (shape.row({}), [], "", "is a list"),
    "a row that lacks": (shape.row({"a": shape.flag}), {}, ".a", "is missing"),
    "a row with a wrong value": (
        shape.row({"a": shape.flag}, {"b": shape.flag}),
        {"a": True, "b": 1},
        ".b",
        "is a int",
    ),
    "a row with a deep fault": (shape.row({"a": shape.listed(shape.flag)}), {"a": [1]}, ".a[0]", "is a int"),
    "a row with more": (shape.row({"a": shape.flag}), {"a": True, "c": 1, "b": 1}, "", "has the unknown key 'b'"),
    "a free row too deep": (shape.row({}, others=True), {"c": nested(shape.DEEPEST + 1)}, ".c", "is nested too deeply"),
    "a lemma without a name": (shape.lemma, {"method": "solvers", "solvers": []}, ".name", "is missing"),
    "a lemma of no solvers": (shape.lemma, {"name": "a", "method": "solvers", "cases": 1}, ".solvers", "is missing"),
    "a lemma of no cases": (shape.lemma, {"name": "a", "method": "exhaustion", "solvers": []}, ".cases", "is missing"),
    "a lemma of no premises": (shape.lemma, {"name": "a", "method": "b", "solvers": []}, ".premises", "is missing"),
    "a number for an operator": (shape.operator, 1, "", "is a int"),
    "an operator of no format": (shape.operator, "add", "", "is 'add', no operator with its format"),
    "a list for an environment": (shape.environment, [], "", "is a list"),
    "a list in an environment": (shape.environment, {"a": []}, ".a", "is a list"),
    "a number among the variables": (shape.environment, {"variables": {"b": 1}}, ".variables['b']", "is a int"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_differs_is_told_by_its_place(name: str) -> None:
    test, value, place, said = FAULTS[name]
    assert test(value) == (place, said)


def test_a_fault_of_evidence_begins_with_its_first_key() -> None:
    assert shape.fault_of([]) == "it is a list"
    assert shape.fault_of({"schema": "a"}) == "schema is 'a', not 'gradproof-evidence/1'"
