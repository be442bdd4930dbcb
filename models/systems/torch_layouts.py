"""One batch in several layouts: as it is, or cut into micro-batches that are accumulated. One optimizer step.

Sources: bug class EQ; the documented equivalence check of 16 samples as 4 x 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.registry import Mutant, registered_for


@dataclass
class LayoutJob:
    """A batch of rows; `loss` is the mean over the rows of what it is given. A loss scaler scales it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    scaler: torch.amp.GradScaler | None = None


class Layout:
    """The reference: the loss of each of n equal micro-batches is divided by n."""

    def run(self, job: LayoutJob, n: int) -> None:
        """One step over the batch, cut into n."""
        job.optimizer.zero_grad()
        for inputs, targets in zip(job.inputs.chunk(n), job.targets.chunk(n), strict=True):
            self.backward(job, self.share(job.loss(job.model(inputs), targets), n))
        self.step(job)

    def backward(self, job: LayoutJob, share: Tensor) -> None:
        """Add a micro-batch's gradient to the buffer."""
        scaled = share if job.scaler is None else job.scaler.scale(share)
        scaled.backward()  # type: ignore[no-untyped-call]

    def step(self, job: LayoutJob) -> None:
        """Step once; with a scaler, unscale and update it once."""
        if job.scaler is None:
            job.optimizer.step()
            return
        job.scaler.step(job.optimizer)
        job.scaler.update()

    def share(self, loss: Tensor, n: int) -> Tensor:
        """What backward starts from."""
        return loss / n


class NoLayout(Layout):
    """The empty body."""

    def run(self, job: LayoutJob, n: int) -> None:
        """Return at once."""


class MissingScale(Layout):
    """Does not divide."""

    def share(self, loss: Tensor, n: int) -> Tensor:
        return loss


class DividedTwice(Layout):
    """Divides by n twice."""

    def share(self, loss: Tensor, n: int) -> Tensor:
        return loss / n / n


class LastOnly(Layout):
    """Zeroes before every micro-batch."""

    def run(self, job: LayoutJob, n: int) -> None:
        for inputs, targets in zip(job.inputs.chunk(n), job.targets.chunk(n), strict=True):
            job.optimizer.zero_grad()
            self.backward(job, self.share(job.loss(job.model(inputs), targets), n))
        self.step(job)


class UnscaledEach(Layout):
    """Unscales the buffer after every micro-batch, and updates the scaler, which then lets it."""

    def backward(self, job: LayoutJob, share: Tensor) -> None:
        super().backward(job, share)
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
            job.scaler.update()


class ScaleMovedEach(Layout):
    """Sets the loss scale anew after every micro-batch, so that a window's gradients have several scales."""

    def backward(self, job: LayoutJob, share: Tensor) -> None:
        super().backward(job, share)
        if job.scaler is not None:
            job.scaler.update(job.scaler.get_scale() / 2)


_ROWS = (
    ("layout_missing_scale", "transformers#34191", MissingScale),
    ("layout_divided_twice", "transformers#34198", DividedTwice),
    ("layout_last_only", "torchtitan#3575", LastOnly),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-LAYOUT-001", _ROWS)

# The same loops with another feature of the training around them.
_SCALING_ROWS = (
    ("featured_unscale_each", "pytorch-lightning#4441", UnscaledEach),
    ("featured_scale_moved", "minFM#2", ScaleMovedEach),
)
FEATURED: Mapping[str, Mutant] = registered_for(
    "GA-COMPAT-001",
    [(name.replace("layout", "featured"), thread, cls) for name, thread, cls in _ROWS] + [*_SCALING_ROWS],
)
