"""GA-CE-001 measured: the gradient of cross-entropy at the logits against (p - one_hot) / N in fp64.

The fp64 side starts from the very logits that the kernel was given. What is judged is N times the error, because the
elements of N times the gradient lie in [-1, 1] whatever N is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradproof.harness import Case, Observed, Place, Refutation
from models.cross_entropy import IGNORED
from symbolic.falsify_drawn import Drawn, row

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LOGITS = 16.0
SOME, NONE, ALL = "some rows ignored", "no row ignored", "every row ignored"


def drawn(case: Case, place: Place) -> tuple[Tensor, Tensor]:
    """Logits (rows, classes) in the place's dtype, and targets (rows,)."""
    generator = torch.Generator().manual_seed(case.seed)
    classes = int(case.net.rpartition(" ")[2])
    logits = (torch.rand(case.n, classes, generator=generator) * 2 - 1) * LOGITS
    targets = torch.randint(0, classes, (case.n,), generator=generator)
    if case.mode == SOME:
        targets[1::2] = IGNORED
    if case.mode == ALL:
        targets[:] = IGNORED
    return logits.to(place.device, DTYPES[place.dtype]), targets.to(place.device)


def closed_form(logits: Tensor, targets: Tensor) -> Tensor:
    """(p - one_hot) / N in fp64, zeros in ignored rows."""
    wide, valid = logits.double(), targets != IGNORED
    hot = torch.nn.functional.one_hot(targets.clamp(min=0), logits.shape[1])
    rows = (wide.softmax(1) - hot) * valid.unsqueeze(1)
    return rows / max(int(valid.sum()), 1)


class GradientAtLogits(Drawn):
    """FALSIFY-GT-201: PyTorch's backward pass, in each dtype, with no, some and all rows ignored."""

    clause = "GA-CE-001"
    modes = (SOME, NONE, ALL)

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        """Refutes a gradient that is not finite, not zero where it is ignored, or too far from the closed form."""
        logits, targets = drawn(case, place)
        got, want = subject().backward(logits, targets), closed_form(logits, targets)
        ignored = targets == IGNORED
        if not bool(got.isfinite().all()):
            raise Refutation(self.clause, f"{case.mode}: a gradient is not finite")
        if bool((got[ignored] != 0).any()):
            raise Refutation(self.clause, f"{case.mode}: an ignored row has a gradient")
        count = int((~ignored).sum())
        error = float(((got.double() - want) * count).abs().max())
        if place.exceeded(self.clause, error):
            limit = place.tolerances[self.clause]
            raise Refutation(
                self.clause, f"{case.mode}: N times the error is {error:.6g} > {limit:g}", {"error": error}
            )
        return Observed({case.mode}, [row(case, place, error, f"{case.mode}: N times the error, against fp64")])


gradient_at_logits = GradientAtLogits()
