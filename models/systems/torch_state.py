"""Windows on real PyTorch whose optimizer state is watched, with GradScaler where a step may be skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.registry import Mutant, registered_for

Pair = tuple[Tensor, Tensor]


@dataclass
class StateJob:
    """One training over whole windows; `loss` is the mean over the rows of a micro-batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    batches: Sequence[Pair]
    n: int
    loss: Callable[[Tensor, Tensor], Tensor]


class StateStep:
    """The reference: one attempt a window."""

    def run(self, job: StateJob) -> None:
        """Train."""
        for i, (inputs, targets) in enumerate(job.batches):
            if i % job.n == 0:
                job.optimizer.zero_grad()
            share = job.loss(job.model(inputs), targets) / job.n
            (share if job.scaler is None else job.scaler.scale(share)).backward()  # type: ignore[no-untyped-call]
            if self.due(i, job):
                self.update(job)

    def due(self, i: int, job: StateJob) -> bool:
        """Whether a step falls due after micro-batch i."""
        return (i + 1) % job.n == 0

    def update(self, job: StateJob) -> None:
        """Step, unless the scaler skips it."""
        if job.scaler is None:
            job.optimizer.step()
        else:
            job.scaler.step(job.optimizer)
            job.scaler.update()


class StillStep(StateStep):
    """The empty body."""

    def run(self, job: StateJob) -> None:
        """Return at once."""


class StepsPerMicroBatch(StateStep):
    """Attempts a step after every micro-batch."""

    def due(self, i: int, job: StateJob) -> bool:
        return True


class CountsSkipped(StateStep):
    """Counts a skipped step as one of the optimizer's own."""

    def update(self, job: StateJob) -> None:
        scale = 0.0 if job.scaler is None else job.scaler.get_scale()
        super().update(job)
        if job.scaler is not None and job.scaler.get_scale() < scale:
            for held in job.optimizer.state.values():
                if "step" in held:
                    held["step"] += 1


class StepsWithZeros(StateStep):
    """Zeroes a gradient that is not finite and steps with it, past the scaler."""

    def update(self, job: StateJob) -> None:
        if job.scaler is None:
            job.optimizer.step()
            return
        job.scaler.unscale_(job.optimizer)
        for group in job.optimizer.param_groups:
            for p in group["params"]:
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
        job.optimizer.step()
        job.scaler.update()


_ROWS = (
    ("state_per_micro_batch", "DeepSpeed#8443", StepsPerMicroBatch),
    ("counts_skipped_steps", "Speech#3293", CountsSkipped),
    ("decays_on_skip", "keras#19990", StepsWithZeros),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-STATE-001", _ROWS)
