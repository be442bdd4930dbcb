"""Steps about what is returned: losses as tensors, Python numbers, arrays, dataclasses, text, or only printed."""

from __future__ import annotations

from torch.nn import functional as F

from gradproof.shadow.run import Run
from tests.soundness.kit import right, windows_losses, wrong
from tests.soundness.tasks import LINEAR


@right("reported losses", LINEAR, reports=windows_losses)
def floats(run: Run) -> list[float]:
    """Python floats."""
    job, losses = LINEAR.start(run), []
    for window in job.windows():
        total = 0.0
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
            total += float(loss)
        job.apply()
        losses.append(total)
    return losses


@wrong("reported losses", LINEAR, "GA-INV-001", reports=windows_losses)
def floats_of_the_last_micro_batch(run: Run) -> list[float]:
    """Only the last micro-batch's share is reported."""
    job, losses = LINEAR.start(run), []
    for window in job.windows():
        total = 0.0
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
            total = float(loss)
        job.apply()
        losses.append(total)
    return losses
