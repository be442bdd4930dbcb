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
    """A batch of rows; `loss` is the mean over the rows of what it is given."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor


class Layout:
    """The reference: the loss of each of n equal micro-batches is divided by n."""

    def run(self, job: LayoutJob, n: int) -> None:
        """One step over the batch, cut into n."""
        job.optimizer.zero_grad()
        for inputs, targets in zip(job.inputs.chunk(n), job.targets.chunk(n), strict=True):
            self.share(job.loss(job.model(inputs), targets), n).backward()  # type: ignore[no-untyped-call]
        job.optimizer.step()

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
            self.share(job.loss(job.model(inputs), targets), n).backward()  # type: ignore[no-untyped-call]
        job.optimizer.step()


_ROWS = (
    ("layout_missing_scale", "transformers#34191", MissingScale),
    ("layout_divided_twice", "transformers#34198", DividedTwice),
    ("layout_last_only", "torchtitan#3575", LastOnly),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-LAYOUT-001", _ROWS)

# The same loops with another feature of the training around them.
FEATURED: Mapping[str, Mutant] = {
    name.replace("layout", "featured"): Mutant(name.replace("layout", "featured"), "GA-COMPAT-001", thread, cls)
    for name, thread, cls in _ROWS
}
