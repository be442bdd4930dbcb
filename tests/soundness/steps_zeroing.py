"""Steps about zeroing: too late, in part, never, in the wrong place, and gradients that are there before the loop."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from gradproof.shadow.run import Run
from tests.soundness.kit import right, wrong
from tests.soundness.tasks import LINEAR, MLP


@wrong("zeroing", LINEAR, "GA-INV-002")
def never_zeroed(run: Run) -> None:
    """No zero_grad at all."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


@wrong("zeroing", LINEAR, "GA-INV-002")
def the_bias_is_not_zeroed(run: Run) -> None:
    """Only one parameter is zeroed."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        job.parameters[0].grad = None


@wrong("zeroing", MLP, "GA-INV-002")
def the_first_row_is_not_zeroed(run: Run) -> None:
    """A part of a gradient is left as it was."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
        for gradient in job.gradients:
            gradient[1:] = 0


@wrong("zeroing", LINEAR, "GA-INV-002")
def gradients_before_the_loop(run: Run) -> None:
    """Something is in .grad when the loop begins."""
    job = LINEAR.start(run)
    for p in job.parameters:
        p.grad = torch.ones_like(p)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@right("zeroing", LINEAR)
def zeroed_before_each_window(run: Run) -> None:
    """Zeroed where a window begins."""
    job = LINEAR.start(run)
    for window in job.windows():
        job.zero()
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()
