"""A subject or harness that swallows what a number refuses is not believed, whichever numbers it ran on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from gradproof.arith import exact
from gradproof.arith.linear import Linear, NonLinear
from gradproof.execution.methods.explore import Exploration, Explorer, Limits
from gradproof.execution.methods.harness import SymbolicKit
from gradproof.execution.methods.smt_strategies import ChainExplorer, ChainKit, ExhaustExplorer, ExhaustKit
from gradproof.rounding.enumerated import AtMost, Enumerated


def limits() -> Limits:
    return Limits(8, 8, 10.0, time.monotonic() + 600)


CHECK = SimpleNamespace(params={}, bound=lambda name: 2, text={}, strategy="exhaustive")


def chain(body: Callable[[Any], None]) -> Exploration:
    explorer = ChainExplorer(limits())
    kit: Any = ChainKit(CHECK, explorer)  # type: ignore[arg-type]
    return explorer.run(lambda: body(kit))


def enumeration(body: Callable[[Any], None]) -> Exploration:
    explorer = ExhaustExplorer(limits())
    kit: Any = ExhaustKit(CHECK, explorer)  # type: ignore[arg-type]
    return explorer.run(lambda: body(kit))


def symbolic(body: Callable[[Any], None]) -> Exploration:
    explorer = Explorer(limits())
    kit: Any = SymbolicKit(CHECK, explorer)  # type: ignore[arg-type]
    return explorer.run(lambda: body(kit))


USES: dict[str, Callable[[Any], Any]] = {
    "float": float, "int": int, "round": round, "floor": math.floor, "isfinite": math.isfinite,
    "power": lambda g: g**2, "remainder": lambda g: g % 0.5, "whole": lambda g: g.is_integer(),
    "index": lambda g: [0][g],
}  # fmt: skip


def careless(use: Callable[[Any], Any], error: type[Exception] = TypeError) -> Callable[[Any], None]:
    """The mean of two gradients by a subject that carries on after any refusal."""

    def body(k: Any) -> None:
        x, y = k.floats("g", 2, "fp16", -1, 1)
        with suppress(error):
            use(x)
        total = exact(x / 2 + y / 2) - (exact(x) + exact(y)) / 2
        k.check("T-1", abs(total) <= 1, "far enough")

    return body


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("run", [chain, enumeration, symbolic])
def test_a_swallowed_refusal_proves_nothing(run: Callable[[Any], Exploration], name: str) -> None:
    if run is symbolic:
        body = careless_reals(USES[name])
        assert run(careless_reals(lambda g: g)).stopped is None
    else:
        body = careless(USES[name])
        assert run(careless(lambda g: g)).stopped is None
    result = run(body)
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("run", [chain, enumeration])
def test_a_refusal_that_nobody_catches_is_unknown_and_no_crash(run: Callable[[Any], Exploration], name: str) -> None:
    result = run(careless(USES[name], KeyError))
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"


def careless_reals(use: Callable[[Any], Any]) -> Callable[[Any], None]:
    def body(k: Any) -> None:
        x, y = k.reals("g", 2, -1, 1)
        with suppress(TypeError):
            use(x)
        k.check("T-1", k.same(x / 2 + y / 2, (x + y) / 2), "the mean")

    return body


@pytest.mark.parametrize("run", [chain, enumeration])
@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda g: g < 0.5, TypeError), (lambda g: g / 0, ZeroDivisionError),
        (lambda g: (60000 * g) * 2, OverflowError), (lambda g: g != 0, TypeError),
        (bool, TypeError), (lambda g: g * g, TypeError),
    ],
)  # fmt: skip
def test_so_do_decisions_overflow_and_division_by_zero(
    run: Callable[[Any], Exploration], use: Callable[[Any], Any], error: type[Exception]
) -> None:
    result = run(careless(use, error))
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"


@pytest.mark.parametrize("run", [chain, enumeration])
@pytest.mark.parametrize(
    "claim",
    [
        lambda d: abs(d) != 0, lambda d: abs(d) == 0, lambda d: (abs(d) <= 1) != 0, lambda d: d != 0,
        lambda d: abs(d) > 0, lambda d: (abs(d) <= 1) == (abs(d) <= 2),
    ],
)  # fmt: skip
def test_what_is_not_decided_is_no_truth_value(run: Callable[[Any], Exploration], claim: Callable[[Any], Any]) -> None:
    """Python's own `!=` is True of any two objects, and a claim that is a plain True needs no proof."""

    def body(k: Any) -> None:
        x, y = k.floats("g", 2, "fp16", -1, 1)
        k.check("T-1", claim(exact(x / 2 + y / 2) - (exact(x) + exact(y)) / 2), "never exact")

    result = run(body)
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"


def test_a_harness_that_swallows_its_own_claim_proves_nothing() -> None:
    def body(k: Any) -> None:
        x, y = k.floats("g", 2, "fp16", -1, 1)
        with suppress(TypeError):
            k.check("T-1", (x + y) * (x + y) <= 1, "undecidable")
        k.check("T-1", abs(exact(x)) <= 1, "decided")

    for run in (chain, enumeration):
        result = run(body)
        assert result.stopped is not None
        assert result.stopped.outcome == "UNKNOWN"


def test_equality_of_exact_numbers_is_a_claim() -> None:
    x = Enumerated.input("x", "fp16", Fraction(1))
    claim = exact(x) == exact(x)
    assert isinstance(claim, AtMost)
    assert (claim.bound, claim.of.parts) == (0, {})
    assert (0 - exact(x)).at({"x": Fraction(1, 2)}) == Fraction(-1, 2)


def test_outside_a_run_a_refusal_is_an_error_like_any_other() -> None:
    with pytest.raises(NonLinear):
        float(Linear.input("x", "fp32", Fraction(1)))
