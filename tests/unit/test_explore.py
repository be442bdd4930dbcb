"""The explorer: complete, bounded, and never green without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from gradproof import smt
from gradproof.core import Bound, Check, Kind, Layer
from gradproof.explore import Explorer, Limits, Result
from gradproof.kit import Broken, ConcreteKit, SymbolicKit, Unreplayable
from symbolic.stubs import d3_grid


def claim(strategy: str = "exhaustive", **bounds: int) -> Check:
    rows = {"branches": 50, "paths": 200, "n": 4} | bounds
    named = tuple(Bound(k, v, "a test") for k, v in rows.items())
    return Check("T-1", Kind.SMT, Layer.SMT, ("C",), "a test", "m:h", strategy=strategy, bounds=named)


def explore(body: Callable[[Any], None], check: Check | None = None, seconds: float = 20.0) -> Result:
    check = check or claim()
    limits = Limits(check.bound("branches"), check.bound("paths"), seconds, time.monotonic() + seconds)
    explorer = Explorer(limits)
    kit = SymbolicKit(check, explorer)
    return explorer.run(lambda: body(kit))


def test_every_side_of_a_branch_is_run() -> None:
    seen: list[str] = []

    def body(k: Any) -> None:
        x = k.real("x", -1, 1)
        seen.append("up" if x > 0 else "down")
        k.check("C", abs(x) <= 1)

    result = explore(body)
    assert sorted(seen) == ["down", "up"]
    assert result.paths == 2
    assert result.violation is None


def test_a_violation_on_a_rare_path_is_found_with_its_value() -> None:
    def body(k: Any) -> None:
        x = k.int("x", 0, 1000)
        if x % 7 == 3 and x > 990:
            k.check("C", x != 997, "rare")

    result = explore(body)
    assert result.violation is not None
    assert result.violation.values["x"] == 997


def test_the_unwinding_bound_is_asserted() -> None:
    def body(k: Any) -> None:
        x, i = k.int("x", 0), 0
        while x > i:
            i += 1
        k.check("C", True)

    result = explore(body, claim(branches=10))
    assert result.stopped is not None
    assert result.stopped.outcome == "BOUND_HIT"
    assert "branches" in result.stopped.reason


def test_the_path_bound_is_asserted() -> None:
    def body(k: Any) -> None:
        for i in range(8):
            k.choose(f"c{i}", [0, 1])
        k.check("C", True)

    result = explore(body, claim(paths=100))
    assert result.stopped is not None
    assert "more than 100 paths" in result.stopped.reason
    assert explore(body, claim(paths=256)).paths == 256


def test_a_passed_deadline_is_a_timeout() -> None:
    result = explore(lambda k: k.check("C", k.real("x") >= 0), seconds=0.0)
    assert result.stopped is not None
    assert result.stopped.outcome == "TIMEOUT"


@pytest.mark.parametrize(("answer", "outcome"), [(smt.Answer.UNKNOWN, "UNKNOWN"), (smt.Answer.TIMEOUT, "TIMEOUT")])
def test_a_solver_that_gives_up_is_never_green(
    answer: smt.Answer, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smt, "solve", lambda *_: smt.Reply(answer, {}, "gave up"))
    result = explore(lambda k: k.check("C", k.real("x") >= 0))
    assert result.stopped is not None
    assert result.stopped.outcome == outcome


def test_an_undecided_branch_is_explored_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt, "solve", lambda *_: smt.Reply(smt.Answer.UNKNOWN, {}, "gave up"))
    seen: list[bool] = []
    explore(lambda k: seen.append(bool(k.real("x") > 0)))
    assert sorted(seen) == [False, True]


def test_contradicting_assumptions_reach_no_cover() -> None:
    def body(k: Any) -> None:
        x = k.real("x", 0, 1)
        k.assume(x > 2)
        k.cover("here")
        k.check("C", x == 5)

    result = explore(body)
    assert result.violation is None
    assert result.covers == {"here": None}


def test_a_plain_false_is_a_violation_only_where_it_is_reachable() -> None:
    def reachable(k: Any) -> None:
        k.check("C", False)

    def unreachable(k: Any) -> None:
        x = k.real("x", 0, 1)
        k.assume(x > 2)
        k.check("C", False)

    assert explore(reachable).violation is not None
    assert explore(unreachable).violation is None


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two inputs"):
        explore(lambda k: [k.real("x") for _ in "ab"].clear())


def test_a_square_root_is_the_nonnegative_one() -> None:
    from gradproof.arith import sqrt

    def body(k: Any) -> None:
        x = k.real("x", 0, 9)
        r = sqrt(x * x)
        k.cover("positive", r > 1)
        k.check("C", r == x)

    assert explore(body).violation is None
    assert explore(lambda k: k.check("C", sqrt(k.real("x", 1, 9)) < 3)).violation is not None


def test_ieee_terms_are_bit_precise() -> None:
    def associative(k: Any) -> None:
        a, b, c = k.floats("a", 3, "fp16", -4, 4)
        k.check("C", (a + b) + c == a + (b + c))

    result = explore(associative, claim("bit_precise"))
    assert result.violation is not None

    def commutes(k: Any) -> None:
        a, b = k.floats("a", 2, "fp16", -4, 4)
        k.check("C", a + b == b + a)

    assert explore(commutes, claim("bit_precise")).violation is None


def test_a_concrete_kit_judges_numbers() -> None:
    def body(k: Any) -> None:
        x = k.real("x", 0, 4)
        which = k.choose("which", ["a", "b"])
        k.assume(x > 1)
        k.check("C", which == "a" or x > 2, "small")

    body(ConcreteKit(claim(), {"x": "5/2"}, ["b"], "fraction"))
    with pytest.raises(Broken, match="C small"):
        body(ConcreteKit(claim(), {"x": "3/2"}, ["b"], "fraction"))
    with pytest.raises(Unreplayable, match="assumption"):
        body(ConcreteKit(claim(), {"x": "1/2"}, ["a"], "fraction"))
    with pytest.raises(Unreplayable, match="outside"):
        body(ConcreteKit(claim(), {"x": "5"}, ["a"], "fraction"))
    with pytest.raises(Unreplayable, match="no choice"):
        body(ConcreteKit(claim(), {"x": "2"}, [], "fraction"))
    with pytest.raises(Unreplayable, match="options"):
        body(ConcreteKit(claim(), {"x": "2"}, ["z"], "fraction"))


def test_no_subject_can_swallow_a_verdict() -> None:
    def greedy(k: Any) -> None:
        try:
            k.check("C", k.real("x", 0, 1) > 0)
        except BaseException:
            k.check("C", True)

    assert explore(greedy).violation is not None

    def loops(k: Any) -> None:
        x, i = k.int("x", 0), 0
        try:
            while x > i:
                i += 1
        except BaseException:
            k.check("C", True)

    result = explore(loops, claim(branches=10))
    assert result.stopped is not None
    assert result.stopped.outcome == "BOUND_HIT"


def test_division_by_zero_and_negative_roots_are_not_taken_for_granted() -> None:
    from gradproof.arith import sqrt

    with pytest.raises(ZeroDivisionError):
        explore(lambda k: k.check("C", 1 / k.real("x", 0, 1) > 0))
    with pytest.raises(ValueError, match="negative"):
        explore(lambda k: k.check("C", sqrt(k.real("x", -1, 1)) >= 0))
    assert explore(lambda k: k.check("C", 1 / k.real("x", 1, 2) > 0)).violation is None


def test_a_constant_is_rounded_to_the_format_that_it_meets() -> None:
    """2049/2048 is no fp16 number: it becomes 1, and multiplying by it changes nothing."""

    def body(k: Any) -> None:
        x = k.float("x", "fp16", 1, 2)
        k.check("C", x * Fraction(2049, 2048) == x)

    limits = Limits(50, 50, 20.0, time.monotonic() + 20.0)
    explorer = Explorer(limits, d3_grid)
    kit = SymbolicKit(claim("stub_float"), explorer)
    assert explorer.run(lambda: body(kit)).violation is None
