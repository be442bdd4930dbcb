"""The explorer: complete, bounded, and never green without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gradproof.arith import exact, smt
from gradproof.arith.formats import FORMATS
from gradproof.arith.soft import Soft
from gradproof.core.check import Bound, Check
from gradproof.core.outcome import Kind, Layer
from gradproof.execution.methods.explore import Exploration, Explorer, Limits
from gradproof.execution.methods.harness import BrokenHarness, ConcreteKit, SymbolicKit, Unreplayable
from symbolic.stubs import d3_grid


def claim(strategy: str = "exhaustive", **bounds: int) -> Check:
    rows = {"branches": 50, "paths": 200, "n": 4} | bounds
    named = tuple(Bound(k, v, "a test") for k, v in rows.items())
    return Check("T-1", Kind.SMT, Layer.SMT, ("C",), "a test", "m:h", strategy=strategy, bounds=named)


def explore(
    body: Callable[[Any], None], check: Check | None = None, seconds: float = 20.0, scope: bool = True
) -> Exploration:
    check = check or claim()
    limits = Limits(check.bound("branches"), check.bound("paths"), seconds, time.process_time() + seconds, scope)
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


@pytest.mark.parametrize(("scope", "free", "queries"), [(True, {"x", "y"}, 4), (False, set(), 1)])
def test_what_is_free_is_asked_of_a_subject_alone(scope: bool, free: set[str], queries: int) -> None:
    def body(k: Any) -> None:
        x, y = k.int("x", 0, 9), k.int("y", 0, 9)
        k.check("C", x + y <= 18)

    before = smt.TALLY.queries
    result = explore(body, scope=scope)
    assert (result.checked, result.inputs, smt.TALLY.queries - before) == ({"C": 1}, free, queries)


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


@pytest.mark.parametrize(
    ("answer", "outcome"), [(smt.SolverAnswer.UNKNOWN, "UNKNOWN"), (smt.SolverAnswer.TIMEOUT, "TIMEOUT")]
)
def test_a_solver_that_gives_up_is_never_green(
    answer: smt.SolverAnswer, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smt, "solve", lambda *_: smt.Reply(answer, {}, "gave up"))
    result = explore(lambda k: k.check("C", k.real("x") >= 0))
    assert result.stopped is not None
    assert result.stopped.outcome == outcome


def test_an_undecided_branch_is_explored_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt, "solve", lambda *_: smt.Reply(smt.SolverAnswer.UNKNOWN, {}, "gave up"))
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
    with pytest.raises(BrokenHarness, match="C small"):
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


def stubbed(body: Callable[[Any], None]) -> Exploration:
    explorer = Explorer(Limits(50, 50, 20.0, time.process_time() + 600), d3_grid)
    kit = SymbolicKit(claim("stub_float"), explorer)
    return explorer.run(lambda: body(kit))


def test_a_constant_that_16_bits_cannot_hold_is_refused_and_one_in_fp32_is_rounded() -> None:
    """torch keeps such a scalar in fp32, NumPy rounds it to 16 bits; in fp32 both round it to fp32."""

    def half(k: Any) -> None:
        k.check("C", k.float("x", "fp16", 1, 2) * Fraction(2049, 2048) >= 1)

    refused = stubbed(half).stopped
    assert refused is not None
    assert "torch and NumPy" in refused.reason
    with pytest.raises(ArithmeticError, match="torch and NumPy"):
        Soft(1, "fp16") * Fraction(2049, 2048)

    def single(k: Any) -> None:
        x = k.float("x", "fp32", 1, 2)
        k.check("C", x * (1 + Fraction(1, 2**30)) == x)

    assert stubbed(single).violation is None


def test_a_number_is_true_unless_it_is_zero() -> None:
    def falsy(k: Any) -> None:
        x = k.real("x", -1, 1)
        k.check("C", x != 0 if x else x == 0)
        k.cover("zero", not x)
        k.check("C", (x or 5) != 0)

    result = explore(falsy)
    assert result.violation is None
    assert result.paths == 2

    def filled(k: Any) -> None:
        x = k.real("x", -1, 1)
        k.check("C", (x if x else 1) == x)

    found = explore(filled).violation
    assert found is not None
    assert found.values == {"x": 0}
    bits = explore(
        lambda k: k.check("C", (lambda x: (x if x else 1) == x)(k.float("x", "fp16", -1, 1))), claim("bit_precise")
    )
    assert bits.violation is not None
    assert not Soft(0, "fp32")
    assert Soft(1, "fp32")


@pytest.mark.parametrize("strategy", ["exhaustive", "bit_precise"])
def test_a_symbolic_number_has_no_hash(strategy: str) -> None:
    """By identity, two equal numbers would be two keys; Fraction and float hash by value."""
    with pytest.raises(TypeError, match="no hash"):
        explore(lambda k: {k.float("x", "fp16", -1, 1): 1}.clear(), claim(strategy))


def test_a_literal_zero_divisor_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        explore(lambda k: k.check("C", k.real("x", 0, 1) / 0 == 1))


@given(st.fractions(-4, 4, max_denominator=50), st.integers(-(2**10), 2**10))
def test_ieee_comparisons_with_a_constant_are_exact(c: Fraction, m: int) -> None:
    x = FORMATS["fp16"].round(Fraction(m, 2**8))

    def body(k: Any) -> None:
        v = k.float("v", "fp16", x, x)
        for said, true in ((v < c, x < c), (v <= c, x <= c), (v > c, x > c), (v >= c, x >= c), (v == c, x == c)):
            k.check("C", said if true else ~said)

    assert explore(body, claim("bit_precise")).violation is None


def test_a_path_whose_assumptions_contradict_each_other_is_known() -> None:
    def body(k: Any) -> None:
        n = k.choose("n", [1, 2])
        x = k.real("x", 0, 1)
        if n == 2:
            k.assume(x > 1)
        k.check("C", n == 1 or x == 5)

    result = explore(body)
    assert result.violation is None
    assert result.dead == [[2]]


def test_an_inductive_step_reads_no_bound() -> None:
    check = claim(transitions=1)
    result = explore(lambda k: k.inductive(lambda: None, lambda: k.check("C", True)), check)
    assert [(part, checks) for (part, *_), checks in result.parts.items()] == [("base", 0), ("step", 1)]
    with pytest.raises(TypeError, match="reads the bound 'n'"):
        explore(lambda k: k.inductive(lambda: None, lambda: k.upto("n")), check)
    with pytest.raises(ValueError, match="one transition"):
        explore(lambda k: k.inductive(lambda: None, lambda: None), claim(transitions=2))


def test_bounds_that_were_read_are_known() -> None:
    assert explore(lambda k: k.check("C", k.upto("n") > 0)).used == {"n"}


class TooTight:
    """A stub that promises what rounding does not keep over zero."""

    @staticmethod
    def contract(z: Any, r: Any, site: Any) -> list[Any]:
        return [r == z]

    enclose = staticmethod(d3_grid.enclose)


def test_a_stub_that_promises_too_much_where_it_is_used_gives_no_answer() -> None:
    def body(k: Any) -> None:
        a, b = k.floats("a", 2, "fp16", -1, 1)
        k.check("C", exact(a + b) == exact(a) + exact(b))

    explorer = Explorer(Limits(50, 50, 20.0, time.process_time() + 600), TooTight())
    kit = SymbolicKit(claim("stub_float"), explorer)
    stopped = explorer.run(lambda: body(kit)).stopped
    assert stopped is not None
    assert stopped.outcome == "UNKNOWN"
    assert "promises more" in stopped.reason
