"""FALSIFY-GA-005: the accumulation buffer has the precision of fp32, judged by value and never by a dtype attribute.

A weight vector of one element is trained on loss_i = w x_i, whose gradient is x_i. The sequences make a 16-bit sum
err by far more than fp32's proven bound: the witness of `gradproof.arith.bounds` lands every partial sum on a tie (the
worst case u (N^2 - 1) / (3 N): 1.28e-3 for fp16 at N = 8), `swamped` adds N - 1 terms that each fall below half an
ulp of the sum. At N = 4 an fp16 buffer still meets 1e-3; hence the claim's bound N >= 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import Case, Cell, Observed, Place, Refutation, accumulation_witness, element_bound, format_named
from symbolic.falsify_bench import WITNESS, Run, backwards_of, error_of, execute, largest_gradient, skipped_windows
from symbolic.falsify_grid import Grid
from symbolic.falsify_judge import own_error
from symbolic.falsify_measure import accumulation_row, probe_kernels

NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def swamped(n: int, fmt: str) -> tuple[float, ...]:
    """1, then n - 1 terms a little under half an ulp of 1 in `fmt`."""
    u = format_named(fmt).u
    return (1.0,) + (float(u * Fraction(7, 8)),) * (n - 1)


def narrow_error(terms: Sequence[float], dtype: torch.dtype) -> float:
    """Error of summing the terms in a 16-bit buffer."""
    total = torch.tensor(terms[0]).to(dtype)
    for x in terms[1:]:
        total = total + torch.tensor(x).to(dtype)
    return abs(float(total) - sum(terms))


class Buffer(Grid):
    """FALSIFY-GA-005. The tolerance is judged where the 1/N is right; where it is not, GA-EQ-001 is refuted."""

    clause = "GA-INV-004"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("a fp16 buffer would err too much here", "a bf16 buffer would err too much here", "gradients as given")

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        return [Cell(WITNESS, n) for n in params["n"]]

    def probe(self, cell: Cell, place: Place) -> None:
        """Raise NoKernel when the device lacks a kernel that the cell needs."""
        probe_kernels(Case(WITNESS, cell.n, gradients=(1.0,) * cell.n), place, self.modes(place))

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        worst = [tuple(map(float, accumulation_witness(cell.n, fmt))) for fmt in NARROW]
        made = [*worst, *(swamped(cell.n, fmt) for fmt in NARROW)]
        return self.fixed(cell, place, turn, turns, *({"gradients": g, "size": 1} for g in made))

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        number = st.integers(-1024, 1024).map(lambda k: k / 1024) | st.floats(-1, 1, width=32, allow_subnormal=False)
        gradients = st.lists(number, min_size=cell.n, max_size=cell.n).map(tuple)
        return self.drawn(cell, place, gradients=gradients, size=st.just(1))

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        backwards_of(run, 0, self.clause)
        if skipped_windows(run):
            return Observed(judged=False)
        error = error_of(run, 0, self.clause)
        inside = error.within and largest_gradient(run) <= 1
        error = error if error.within else own_error(run, 0, self.clause)
        values = {"gradients": list(case.gradients), "error": error.error, "bound": error.bound}
        if not error.within or (inside and place.exceeded(self.clause, error.linf)):
            detail = f"the accumulated gradient errs by {error.error:.6g}; an fp32 buffer by at most {error.bound:.6g}"
            raise Refutation(self.clause, detail, values)
        seen.rows.append(accumulation_row(run, place, error, self.clause, inside))
        seen.covers |= self.reached(run, case)
        return seen

    def reached(self, run: Run, case: Case) -> set[str]:
        """What the recorded terms would have shown of a narrower buffer."""
        passes = backwards_of(run, 0, self.clause)
        terms = [float(b.vector[0]) for b in passes]
        bound = float(element_bound(len(terms), max(map(abs, terms)), False, Fraction(0)))
        wide = [fmt for fmt, dtype in NARROW.items() if narrow_error(terms, dtype) > bound]
        covers = {f"a {fmt} buffer would err too much here" for fmt in wide}
        if [x / b.factor for x, b in zip(terms, passes, strict=True)] == list(case.gradients):
            covers.add("gradients as given")
        return covers
