"""FALSIFY-GA-004: what is applied is the accumulated, unscaled gradient, clipped once by its global norm.

torch divides by (norm + 1e-6), others by the norm alone: both coefficients are right, and what lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import Case, Cell, Observed, Place, Refutation, WindowError, clip_factor, format_named
from symbolic.falsify_bench import Run, elements_of, execute, skipped_windows
from symbolic.falsify_grid import LOSS_SCALE, Grid
from symbolic.falsify_judge import due_passes, own_errors, table_breaks

EPSILON = 1e-6  # added to the norm by torch.nn.utils.clip_grad_norm_


class Clipped:
    """A gradient, the total that it should be the clip of, and the limit."""

    def __init__(self, got: Sequence[float], total: WindowError, max_norm: float, tensors: int) -> None:
        self.got, self.total = got, total
        self.norm = math.sqrt(math.fsum(v * v for v in total.mean))
        most = max_norm / self.norm if self.norm else 1.0
        self.least, self.most = min(1.0, max_norm / (self.norm + EPSILON)), min(1.0, most)
        self.factor = clip_factor("fp32", len(got), tensors)

    def wrong(self) -> int | None:
        """The first element that no coefficient between the two explains."""
        bounds = self.total.bounds
        blur = math.sqrt(math.fsum(b * b for b in bounds)) / self.norm if self.norm else 0.0
        blur += float(self.factor) - 1 + 8 * float(format_named("fp32").u)
        for e, (v, mean, bound) in enumerate(zip(self.got, self.total.mean, bounds, strict=True)):
            low, high = sorted((self.least * mean, self.most * mean))
            if max(low - v, v - high) > bound + blur * abs(self.most * mean) + 1e-38:
                return e
        return None


class ClipOnceOnTotal(Grid):
    """FALSIFY-GA-004."""

    clause = "GA-INV-005"

    def reaches(self, place: Place) -> Sequence[str]:
        return ("clipped", "not clipped", "loss scale present", "one large micro-batch")

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        large = {"seed": 5, "windows": 2, "clip": 0.25, "large": 0, "loss_scale": LOSS_SCALE}
        return self.fixed(cell, place, turn, turns, large, {**large, "clip": 4.0, "large": None})

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        return self.drawn(
            cell, place, clip=st.sampled_from((0.25, 0.5, 4.0)), large=st.none() | st.integers(0, cell.n - 1),
            windows=st.just(2), size=st.integers(1, 3), ragged=st.booleans(),
        )  # fmt: skip

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        run, seen = execute(subject, case, place), Observed()
        due_passes(run, self.clause)
        if skipped_windows(run):
            return Observed(judged=False)
        said = table_breaks(run, self.clause)
        for k in range(len(run.sizes)):
            seen.covers.add("clipped" if self.judge(run, k, said) < 1 else "not clipped")
        if said:
            raise Refutation(self.clause, said, {"events": ", ".join(run.trace.events)})
        seen.covers |= {"loss scale present"} if run.job.scaler else set()
        seen.covers |= {"one large micro-batch"} if case.large is not None else set()
        return seen

    def judge(self, run: Run, k: int, said: str) -> float:
        """The coefficient of window `k`, whose applied gradient is the clip of its total. Refutes any other.

        The total is what the subject's own backward passes brought, up to one overall factor.
        """
        max_norm, got = run.job.config.max_norm or math.inf, elements_of(run, k, self.clause)
        square = sum((Fraction(v) ** 2 for v in got), Fraction(0))
        clips = [c for c in run.trace.clips if c.window == k and math.isfinite(c.limit)]
        totals = (Clipped(got, total, max_norm, len(run.start)) for total in own_errors(run, k, self.clause))
        first = next(totals)
        values = {"window": k, "norm": first.norm, "max_norm": max_norm, "applied_norm": math.sqrt(square)}
        aside = f"; {said}" if said else ""
        if len(clips) > 1:
            detail = f"window {k}: clipped {len(clips)} times{aside}"
            raise Refutation(self.clause, detail, {**values, "clips": len(clips)})
        if square > (Fraction(max_norm) * first.factor) ** 2:
            detail = f"window {k}: ||applied|| = {math.sqrt(square):.9g} > max_norm {max_norm:.9g}{aside}"
            raise Refutation(self.clause, detail, values)
        wrong = first.wrong()
        if wrong is None:
            return first.least
        for other in totals:
            if other.wrong() is None:
                return other.least
        right = first.least * first.total.mean[wrong]
        detail = f"window {k}: element {wrong} is {got[wrong]:.9g}; clip(total) gives {right:.9g}{aside}"
        raise Refutation(self.clause, detail, {**values, "element": wrong})
