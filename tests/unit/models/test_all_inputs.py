"""No proof "for all inputs" gives its model a number that is a constant: what harnesses pass is watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
from training_checks import checks, found

from gradproof.core.check import Scope
from gradproof.execution.methods.free_inputs import rows
from symbolic.tokens import scaling

SLOW = {"KANI-GA-029", "KANI-GA-030", "KANI-GT-401", "KANI-GT-402"}  # half a minute each while they are watched
INDUCTIONS = sorted({n for n, one in checks().items() if any(b.name == "transitions" for b in one.bounds)} - SLOW)


def numbers(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The numbers in an argument, by the names of their fields."""
    for _, field, _, inner in rows((), {name: value}):
        for one in inner if isinstance(inner, (list, tuple)) else [inner]:
            if isinstance(one, (int, float, Fraction)) and not isinstance(one, bool):
                yield field, one


@contextmanager
def watched() -> Iterator[set[str]]:
    """The constants, as "name = value", that harnesses pass to functions of models while this is open."""
    passed: set[str] = set()

    def heard(frame: Any, event: str, of: Any) -> None:
        caller, code = frame.f_back, frame.f_code
        if event != "call" or caller is None or code.co_name == "__init__":
            return
        ends = frame.f_globals.get("__name__", ""), caller.f_globals.get("__name__", "")
        if ends[0].startswith("models.") and ends[1].startswith("symbolic."):
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                if name != "self":
                    passed.update(f"{field} = {one}" for field, one in numbers(frame.f_locals[name], name))

    sys.setprofile(heard)
    try:
        yield passed
    finally:
        sys.setprofile(None)


def label_and_constants(name: str) -> tuple[str, set[str]]:
    """What a check says of its own subject, and what it passed to it as one constant value."""
    with watched() as passed:
        finding = found(name, checks()[name].subject)
    names = [one.partition(" = ")[0] for one in passed]
    return Scope(**finding.stats["scope"]).label, {one for one in passed if names.count(one.partition(" = ")[0]) == 1}


@pytest.mark.parametrize("name", INDUCTIONS)
def test_a_constant_is_part_of_the_label(name: str) -> None:
    label, passed = label_and_constants(name)
    assert "for all inputs" not in label or not passed
    assert not label.startswith("proved for every input with") or all(one in label for one in passed)


@pytest.mark.parametrize("stated", [True, False])
def test_a_rate_that_is_pinned_is_noticed(monkeypatch: pytest.MonkeyPatch, stated: bool) -> None:
    """Where the harness says its case the label names it; where it does not, this test sees what was passed."""
    free = scaling.adam_setup

    def pinned(k: Any, eps: Any) -> Any:
        setup, corrections = free(k, eps)
        if not stated:
            monkeypatch.setattr(type(k), "scenario", lambda *of, **named: None)
        return scaling.replace(setup, rate=Fraction(1, 1000)), corrections

    monkeypatch.setattr(scaling, "adam_setup", pinned)
    label, passed = label_and_constants("KANI-GT-219")
    assert passed == {"rate = 1/1000"}
    assert label == f"proved for {'every input with rate = 1/1000' if stated else 'all inputs'} by induction"
