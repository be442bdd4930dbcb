"""Every real execution is one that the stubs allow: random programs, run on software floats and on stubbed terms.

This guards what the claims of the stubs do not reach: the interval pass, the grids that say when nothing is
rounded, scalings by powers of two, conversions and constants. A stub that forbids what a float does would give
false proofs.
"""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gradproof.arith import round_to, smt
from gradproof.arith.formats import FORMATS
from gradproof.arith.soft import Soft
from gradproof.arith.symbolic import LemmaRequirements, OutOfRange, Site
from gradproof.core.check import Bound, Check
from gradproof.core.outcome import Kind, Layer
from gradproof.execution.methods.explore import Explorer, Limits
from gradproof.execution.methods.harness import SymbolicKit
from symbolic.stubs import d2_half_ulp, d3_grid, d4_monotone

STUBS = {"d2": d2_half_ulp, "d3": d3_grid, "d4": d4_monotone}
BOUNDS = (Bound("branches", 20, "a test"), Bound("paths", 20, "a test"))
CLAIM = Check("T", Kind.SMT, Layer.SMT, ("C",), "", "", strategy="stub_float", bounds=BOUNDS)

inputs = st.tuples(st.sampled_from(["fp16", "bf16", "fp32"]), st.integers(-(2**11), 2**11), st.integers(0, 18))
operations = st.tuples(
    st.sampled_from(["+", "-", "*c", "/c", "to"]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([2, 3, 4, 8, Fraction(1, 2), Fraction(1, 3), Fraction(7, 10)]),
    st.sampled_from(["fp16", "bf16", "fp32"]),
)


def execute(values: list[Any], program: list[Any]) -> list[Any]:
    """Run a straight-line program; every result is appended."""
    done = list(values)
    for op, i, j, c, fmt in program:
        a, b = done[i % len(done)], done[j % len(done)]
        if op == "to":
            done.append(round_to(a, fmt))
        elif op in ("*c", "/c"):
            c = c if FORMATS[a.fmt].bits > 16 or FORMATS[a.fmt].representable(Fraction(c)) else 2
            done.append(a * c if op == "*c" else a / c)
        else:
            done.append(a + b if op == "+" else a - b)
    return done


def numbers(rows: list[Any]) -> list[Soft]:
    return [Soft(FORMATS[fmt].round(Fraction(m, 2**e)), fmt) for fmt, m, e in rows]


def allowed(stub: Any, rows: list[Any], program: list[Any]) -> bool:
    """Whether the stubbed run admits what the software floats did, at every step and all at once."""
    given_, did = numbers(rows), execute(numbers(rows), program)
    explorer = Explorer(Limits(20, 20, 20.0, time.monotonic() + 600), stub)
    answers: list[smt.SolverAnswer] = []

    def body() -> None:
        kit = SymbolicKit(CLAIM, explorer)
        made = [kit.float(f"x{i}", x.fmt, -abs(x.value), abs(x.value)) for i, x in enumerate(given_)]
        for x, value in zip(made, given_, strict=True):
            kit.assume(x == value.value)
        facts = [(term == soft.value).term for term, soft in zip(execute(made, program), did, strict=True)]
        answers.append(explorer.ask(facts).answer)

    result = explorer.run(body)
    assert result.stopped is None, result.stopped
    return answers == [smt.SolverAnswer.SAT]


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(sorted(STUBS)), st.lists(inputs, min_size=2, max_size=4), st.lists(operations, max_size=5))
def test_a_real_execution_is_always_allowed(name: str, rows: list[Any], program: list[Any]) -> None:
    assert allowed(STUBS[name], rows, program)


class TooTight:
    """Half an ulp, halved: some real execution must be forbidden, or the test above could not fail."""

    @staticmethod
    def contract(z: Any, r: Any, site: Site) -> list[Any]:
        return [r - z <= site.half_ulp / 2, z - r <= site.half_ulp / 2]

    enclose = staticmethod(d3_grid.enclose)


def test_a_stub_that_is_too_tight_forbids_a_real_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LemmaRequirements, "objection", lambda *_: "")  # which would refuse the stub before it is used
    rows = [("fp16", 2047, 11), ("fp16", 1, 11)]
    program = [("+", 0, 1, 2, "fp16"), ("/c", 2, 0, 3, "fp16")]
    assert allowed(d3_grid, rows, program)
    assert not allowed(TooTight(), rows, program)


def test_an_operation_without_a_range_is_refused() -> None:
    explorer = Explorer(Limits(20, 20, 20.0, time.monotonic() + 600), d3_grid)

    def body() -> None:
        kit = SymbolicKit(CLAIM, explorer)
        x = kit.float("x", "fp16", -1, 1)
        with pytest.raises(OutOfRange):
            assert x + kit.real("y") is None

    result = explorer.run(body)
    assert result.stopped is not None
    assert result.stopped.outcome == "UNKNOWN"
