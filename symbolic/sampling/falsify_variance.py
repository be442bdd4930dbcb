"""The variance of real gradient estimates against sigma^2 / B: FALSIFY-GT-501 of the training contract.

sigma^2 and the fourth moment come from every sample's own gradient, so that Chebyshev's inequality gives an interval
that holds for every distribution. Seeds are fixed: the confidence is of the choice of the seed, and a run repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradproof.harness import Bound, Case, Cell, Observed, Place, Refutation
from models.accumulation.torch_nets import NETS
from models.sampling.torch_variance import DrawJob, moments, scatter
from symbolic.measured import Measured

CONFIDENCE = 0.99
ESTIMATES = 600
POPULATIONS = {1: 8, 2: 4, 4: 4}


def job_of(case: Case, place: Place, samples: int) -> DrawJob:
    """A net in fp64, so that rounding is no part of the variance, and a data set of some samples."""
    net = NETS[case.net]
    model = net.build(case.seed).double().to(place.device)
    inputs, targets = net.data(torch.Generator().manual_seed(case.seed), samples)
    inputs, targets = inputs.double().to(place.device), targets.to(place.device)
    return DrawJob(model, inputs, targets, lambda a, b: net.loss(a, b, "mean"), case.size, case.n)


class VarianceOfEstimates(Measured):
    """FALSIFY-GT-501: no bias, and the variance sigma^2 / B, each within its interval."""

    clause = "GA-VAR-001"
    reached = ("one micro-batch", "several micro-batches")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        return [Case(cell.net, cell.n, size=2)]

    def bounds(self, place: Place) -> Sequence[Bound]:
        return [
            Bound("confidence of an interval in percent", round(100 * CONFIDENCE), "stated for each case by itself")
        ]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        job = job_of(case, place, POPULATIONS.get(case.n, 8))
        seen = scatter(subject(), job, moments(job), ESTIMATES, 1000 + case.seed, CONFIDENCE)
        stated = f"B = {case.n} x {case.size}"
        if seen is None:
            raise Refutation(self.clause, f"{stated}: no gradient was accumulated")
        away = abs(seen.measured - seen.expected)
        if away > seen.room:
            detail = f"{stated}: variance {seen.measured:.4g}; sigma^2 / B = {seen.expected:.4g} within {seen.room:.2g}"
            raise Refutation(self.clause, detail, {"measured": seen.measured, "expected": seen.expected})
        if seen.bias > seen.bias_room:
            raise Refutation(self.clause, f"{stated}: the mean is off by {seen.bias**0.5:.4g}", {"bias": seen.bias})
        row = {
            "column": "variance of the estimate", "net": case.net, "n": case.n, "dtype": place.dtype,
            "device": place.device, "measured": away, "bound": seen.room, "ratio": away / seen.room,
            "note": f"B = {seen.batch}, {seen.count} estimates",
        }  # fmt: skip
        return Observed({"several micro-batches" if case.n > 1 else "one micro-batch"}, [row])


variance_of_estimates = VarianceOfEstimates()
