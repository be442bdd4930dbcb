"""Proved, different, equal up to constants, unknown: each where it is due, and never one for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gradproof.shadow.algebra import Domain, Value, function, lift, where
from gradproof.shadow.domains.modular import Field
from gradproof.shadow.domains.programs import Floats
from gradproof.shadow.domains.real import Reals
from gradproof.shadow.tape import Source
from gradproof.shadow.verify.decide import (
    DecisionKind,
    Equality,
    Pair,
    decide,
    equal_field,
    equal_real,
    up_to_constants,
)

Scale = Callable[[Value], Value]
Sides = tuple[Sequence[Pair], Sequence[Value]]
N, ROWS, WIDTH, CLASSES = 3, 6, 2, 3


def leaf(d: Domain, kind: str, name: str, *shape: int) -> Value:
    value = np.random.default_rng(len(name) + len(shape)).normal(size=shape)
    return Value(d, d.leaf(Source(kind, name), shape, value))


def gradient(d: Domain, x: Value, w: Value, targets: Any, scale: Scale) -> Value:
    """Softmax regression by hand: the gradient of the scaled mean cross-entropy over these rows."""
    logits = x @ w
    e = function("exp", logits)
    p = e / e.sum((1,), keep=True)
    hot = lift(d, np.eye(CLASSES)[targets])
    return x.transpose(1, 0) @ scale((p - hot) / len(targets))


def step(scale: Scale) -> Callable[[Domain], Sides]:
    """Accumulation over N micro-batches, against the full batch."""
    targets = np.arange(ROWS) % CLASSES

    def make(d: Domain) -> Sides:
        x, w = leaf(d, "data", "x", ROWS, WIDTH), leaf(d, "param", "w", WIDTH, CLASSES)
        size = ROWS // N
        ours = lift(d, np.zeros((WIDTH, CLASSES)))
        for i in range(N):
            part = slice(i * size, (i + 1) * size)
            ours = ours + gradient(d, x[part], w, targets[part], scale)
        return [("w", ours, gradient(d, x, w, targets, lambda g: g))], []

    return make


CORRECT: list[Scale] = [lambda g: g / N, lambda g: g / (2 * N) * 2, lambda g: g * 8 / N / 8]
WRONG: dict[str, tuple[Scale, Fraction | None]] = {
    "no 1/N": (lambda g: g, Fraction(3)),
    "1/4 for 1/3": (lambda g: g * (1 / 4), Fraction(3, 4)),
    "0.3333": (lambda g: g * 0.3333, Fraction(9999, 10000)),
    "1/3.0000001": (lambda g: g * (1 / 3.0000001), None),
    "float16's 1/3": (lambda g: g * float(np.float16(1 / 3)), None),
}


@pytest.mark.parametrize("scale", CORRECT)
def test_correct_steps_are_proved(scale: Scale) -> None:
    assert decide(step(scale)).kind is DecisionKind.EQUAL
    field = decide(step(scale), domain="field")
    assert field.kind is DecisionKind.EQUAL
    assert field.error <= 2.0**-40


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("domain", ["real", "field"])
def test_wrong_steps_are_not(name: str, domain: str) -> None:
    scale, _ = WRONG[name]
    found = decide(step(scale), domain=domain)
    assert found.kind is DecisionKind.DIFFERENT
    assert found.names == ["w"]


@pytest.mark.parametrize("domain", ["real", "field"])
def test_the_missing_factor_is_named(domain: str) -> None:
    assert decide(step(lambda g: g), domain=domain).ratios == {"w": Fraction(3)}


@pytest.mark.parametrize("domain", ["real", "field"])
@pytest.mark.parametrize("third", [1 / 3, float(np.float32(1 / 3)), 2 / 3 / 2, 1 / 6 * 2])
def test_a_rounded_third_is_equal_up_to_constants(domain: str, third: float) -> None:
    make = step(lambda g: g * third)
    first = equal_real(*make(Reals())) if domain == "real" else equal_field(make)
    assert first.kind is not DecisionKind.EQUAL
    found = decide(make, domain=domain)
    assert found.kind is DecisionKind.CONSTANTS
    assert found.constants == {third: Fraction(1, 3)}
    assert 0 < found.bound <= Fraction(1, 2**24)


def test_the_counterexample_is_one() -> None:
    make = step(WRONG["no 1/N"][0])
    found = equal_real(*make(Reals()))
    assert found.assignment is not None
    leaves: dict[tuple[str, str], Any] = {}
    for kind, name, size in (("data", "x", ROWS * WIDTH), ("param", "w", WIDTH * CLASSES)):
        leaves[kind, name] = np.array([found.assignment[f"{kind}/{name}[{i}]"] for i in range(size)])
    ((_, ours, full),), _ = make(Floats(leaves))
    assert np.abs(ours.parts[0] - full.parts[0]).max() > 0.01
    assert found.sides is not None
    assert any(np.isclose(ours.parts[0], found.sides[0]).ravel())


def one(f: Callable[[Value, Value], tuple[Value, Value]], *conditions: Callable[[Value, Value], Value]) -> Equality:
    d = Reals()
    x, y = leaf(d, "data", "x", 2), leaf(d, "data", "y", 2)
    ours, full = f(x * 1.0, y * 1.0)
    return equal_real([("z", ours, full)], [c(x, y) for c in conditions], 5)


def test_the_solver_proves_what_the_normal_form_does_not() -> None:
    found = one(lambda x, y: ((x + y) * (x + y), x * x + 2 * x * y + y * y))
    assert (found.kind, found.how) == (DecisionKind.EQUAL, "z3")


def test_conditions_on_the_path_are_used() -> None:
    def relu(x: Value, y: Value) -> tuple[Value, Value]:
        return where(x * x < y + 1000.0, x, 0.0), x

    assert one(relu).kind is not DecisionKind.EQUAL
    assert one(relu, lambda x, y: x * x < y + 1000.0).kind is DecisionKind.EQUAL


def test_a_path_that_nothing_takes_proves_nothing() -> None:
    found = one(lambda x, y: (x, y), lambda x, y: x < x - 1.0)
    assert found.kind is DecisionKind.UNKNOWN


def test_contradictory_symbolic_conditions_prove_nothing() -> None:
    found = one(lambda x, y: (x, y), lambda x, y: x < y, lambda x, y: y < x)
    assert found.kind is DecisionKind.UNKNOWN


def test_cancelling_a_divisor_is_not_proved() -> None:
    assert one(lambda x, y: (x / x, x * 0.0 + 1.0)).kind is DecisionKind.UNKNOWN
    assert one(lambda x, y: (x * y / y, x)).kind is DecisionKind.UNKNOWN


def test_a_true_identity_of_functions_is_neither_proved_nor_refuted() -> None:
    def sums(x: Value, y: Value) -> tuple[Value, Value]:
        return function("exp", x) * function("exp", y), function("exp", x + y)

    assert one(sums).kind is DecisionKind.UNKNOWN


def test_a_difference_at_ties_alone_is_not_proved() -> None:
    found = one(lambda x, y: (where(x < y, 1.0 * x, y), where(x < y, x, y) + where(x.same(y), x / x, 0.0)))
    assert found.kind is not DecisionKind.EQUAL


def test_what_is_no_number_is_unknown() -> None:
    assert one(lambda x, y: (x / 0.0, x / 0.0)).kind is DecisionKind.UNKNOWN
    answer = equal_field(lambda d: ([("z", leaf(d, "data", "x", 2) / 0.0, leaf(d, "data", "x", 2))], []))
    assert answer.kind is DecisionKind.UNKNOWN


def test_nothing_compared_is_unknown() -> None:
    assert equal_real([]).kind is DecisionKind.UNKNOWN
    assert equal_field(lambda d: ([], [])).kind is DecisionKind.UNKNOWN


def test_two_pools_and_two_shapes_are_refused() -> None:
    x, y = leaf(Reals(), "data", "x", 2), leaf(Reals(), "data", "x", 2)
    with pytest.raises(ValueError, match="two domains"):
        equal_real([("x", x, y)])
    with pytest.raises(ValueError, match="shapes"):
        equal_real([("x", x, x[:1])])
    with pytest.raises(ValueError, match="another domain"):
        equal_field(lambda d: ([("x", leaf(Field(9), "data", "x", 2), leaf(d, "data", "x", 2))], []))


def test_the_solver_agrees_without_our_normal_form() -> None:
    assert equal_real(*step(CORRECT[0])(Reals(raw=True)), 30).kind is DecisionKind.EQUAL
    assert equal_real(*step(WRONG["no 1/N"][0])(Reals(raw=True)), 5).kind is DecisionKind.DIFFERENT


def test_both_sides_wrong_alike_by_other_constants_is_not_up_to_constants() -> None:
    def make(d: Domain) -> Sides:
        x = leaf(d, "data", "x", 4)
        return [("x", x * 0.1 + x * (1 / 3), x * 0.1 + x / 4)], []

    assert up_to_constants(make).kind is DecisionKind.DIFFERENT
    assert up_to_constants(make, domain="field").kind is DecisionKind.DIFFERENT
