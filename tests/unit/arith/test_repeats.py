"""Witnesses repeat: what a solver picks depends on the question alone, and not on what its process did before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from gradproof.arith import smt
from gradproof.execution.methods.crosshair import consult, uncollected


def loose() -> tuple[list[Any], dict[str, Any]]:
    """A query with many models, and the terms whose values are wanted."""
    x = [smt.real(f"x{i}") for i in range(6)]
    n = smt.integer("n")
    facts = [sum(x) != 0, x[0] * x[1] < x[2], smt.either([x[3] > x[4], x[5] > 1]), smt.to_real(n) > x[0] - x[5]]
    return [*facts, x[4] != x[5], x[1] != x[2]], {str(v): v for v in (*x, n)}


def picked(facts: list[Any], wanted: dict[str, Any]) -> str:
    """What gradproof's query picks."""
    return str(smt.solve(facts, wanted, 10).values)


def picked_here(facts: list[Any], wanted: dict[str, Any]) -> str:
    """What a solver picks in the context that the whole process shares."""
    solver = smt.z3.Solver()
    solver.add(*facts)
    assert str(solver.check()) == "sat"
    model = solver.model()
    return str({name: model.eval(term, model_completion=True) for name, term in wanted.items()})


def picks(pick: Callable[[list[Any], dict[str, Any]], str]) -> set[str]:
    """The different picks in a process that holds more and more other terms."""
    found = set()
    for others in (0, 3, 10, 50, 200):
        held = [smt.real(f"x{5 - i % 6}") * smt.number(i + 2) + smt.real(f"other{i}") for i in range(others)]
        found.add(pick(*loose()))
        assert len(held) == others
    return found


def test_values_do_not_depend_on_what_the_process_did_before() -> None:
    assert len(picks(picked)) == 1


def test_in_a_context_that_all_share_they_do() -> None:
    assert len(picks(picked_here)) > 1


class Cyclic:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_before_is_gone_and_that_of_an_exploration_stays() -> None:
    before = weakref.ref(Cyclic())
    with uncollected():
        assert before() is None
        assert not gc.isenabled()
        during = [weakref.ref(Cyclic()) for _ in range(5000)]
        assert all(made() is not None for made in during)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def positive(x: int) -> bool:
    """A postcondition that tells whether the collector ran while CrossHair explored.

    pre: 0 <= x <= 3
    post: _
    """
    return not gc.isenabled()


def test_crosshair_explores_uncollected() -> None:
    assert consult(positive, "_", 20).outcome == "HOLDS"
