"""The shape of evidence: what each kind of value takes, and the place that is named where something differs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from toy_workspace import fault_of

from gradproof.core.check import Bound, Check, Finding
from gradproof.core.outcome import Kind, Layer, Outcome
from gradproof.core.schemas import evidence as shape
from gradproof.evidence.record import record


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


LEMMAS: list[dict[str, Any]] = [
    {"name": "a", "method": "solvers", "solvers": []},
    {"name": "a", "method": "exhaustion", "cases": 1},
    {"name": "a", "method": "algebra", "premises": []},
]
TAKEN: dict[str, tuple[Any, list[Any]]] = {
    "a name": (shape.Name, ["", "a"]),
    "anything": (shape.Free, [None, True, 1, 1.5, "a", [], {}, {"a": [1]}, nested(shape.DEEPEST)]),
    "a fraction": (shape.Exact, ["0", "-1/3", "+2.5", "9" * 300, "0" * shape.MOST_DIGITS]),
    "an error": (shape.Error, [0, 2, 1.5]),
    "a whole number": (shape.Whole, [-(1 << 63), (1 << 63) - 1]),
    "a count": (shape.Count, [0]),
    "a lemma": (shape.LemmaRow, LEMMAS),
    "an operator": (shape.Rounded, ["add fp32"]),
    "an environment": (shape.Environment, [{"a": 1, "b": None, "variables": {"b": "c"}, "distributions": {}}]),
    "a cover with more": (shape.Cover, [{"name": "a", "reached": True, "witness": {"norm": "3/2"}}]),
}
REFUSED: dict[str, tuple[Any, list[Any]]] = {
    "a name": (shape.Name, [1, None, "a\0b"]),
    "anything": (shape.Free, [nested(shape.DEEPEST + 1), {"a": nested(shape.DEEPEST)}]),
    "a fraction": (shape.Exact, [1, "1e5", "nan", "1/0", "1/2/3", "9" * 400, "0" * (shape.MOST_DIGITS + 1)]),
    "an error": (shape.Error, [True, "1", -1, float("nan"), float("inf"), 10**400]),
    "a whole number": (shape.Whole, [True, 1.0, "1", 1 << 63]),
    "a count": (shape.Count, [-1, True]),
    "a lemma": (shape.LemmaRow, [{k: v for k, v in row.items() if k != gone} for row in LEMMAS for gone in row]),
    "an operator": (shape.Rounded, [1, "add"]),
    "an environment": (shape.Environment, [[], {"a": []}, {"variables": {"b": 1}}, {"distributions": {"b": None}}]),
    "a cover": (shape.Cover, [{"name": "a"}, {"name": "a", "reached": 1}]),
    "a cover with more": (shape.Cover, [{"name": "a", "reached": True, "more": nested(shape.DEEPEST + 1)}]),
    "a tick with more": (shape.TraceTick, [dict.fromkeys(("event", "after", "note", "refused", "harm", "more"), "")]),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken(name: str) -> None:
    kind, values = TAKEN[name]
    for value in values:
        TypeAdapter(kind).validate_python(value, strict=True)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    kind, values = REFUSED[name]
    for value in values:
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python(value, strict=True)


def good() -> Any:
    """Evidence of a small check."""
    bounds = (Bound("micro_batches", 4, "the contract's own bound"),)
    check = Check("K-1", Kind.SMT, Layer.SMT, ("GA-EQ-001",), "x", "a:b", bounds=bounds)
    return record(check, Finding(Outcome.HOLDS, "every clause holds"))


PLACES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "schema": (("schema",), "a"),
    "finding.outcome": (("finding", "outcome"), "GREEN"),
    "finding.assumptions[0]": (("finding", "assumptions"), [None]),
    "finding.trust": (("finding", "trust"), True),
    "check.bounds[0].value": (("check", "bounds", 0, "value"), "4"),
    "check.id": (("check", "id"), "a\0"),
    "claim.spec": (("claim", "spec"), "0"),
    "claim.files['a\\x00']": (("claim", "files"), {"a\0": ""}),
    "environment.torch": (("environment",), {"torch": []}),
    "seconds": (("seconds",), -1),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_names_its_place(place: str) -> None:
    (*way, last), value = PLACES[place]
    data = copy.deepcopy(good())
    inner = data
    for step in way:
        inner = inner[step]
    assert fault_of(data) == ""
    inner[last] = value
    assert place in fault_of(data).partition(": ")[2 if place != "schema" else 0]


def test_a_key_that_is_missing_and_data_of_another_kind() -> None:
    data = good()
    del data["finding"]["reason"]
    assert fault_of(data).startswith("it has the wrong shape: finding.reason: ")
    assert fault_of([]).startswith("its schema is 'list'")
