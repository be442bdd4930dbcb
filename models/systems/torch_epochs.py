"""Epochs of accumulation windows on real PyTorch, under a real OneCycleLR.

The rules are those of `epochs.py` beside this file (when a step falls due, how many are planned, when the schedule
advances) and of `tails.py` (what a micro-batch weighs). They are proved for every size; this loop only asks them. So
every wrong rule is a wrong loop too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.registry import Mutant
from models.systems import epochs, tails
from models.systems.epochs import EmptyEpochs, Epochs
from models.systems.tails import EmptyTail, Held, Tail

Loss = Callable[[Tensor, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]


@dataclass
class EpochJob:
    """One training: the same micro-batches every epoch, each an (inputs, targets) with a row a sample.

    `schedule` makes the scheduler from its total number of steps. `loss` is the mean over the rows.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    batches: Sequence[Pair]
    n: int
    epochs: int
    loss: Loss
    schedule: Callable[[int], Any]


@dataclass(frozen=True)
class EpochStep:
    """A training loop that follows these rules."""

    plan: Epochs = field(default_factory=Epochs)
    tail: Tail = field(default_factory=Tail)

    def run(self, job: EpochJob) -> None:
        """Train. Raises what the scheduler raises."""
        scheduler = job.schedule(self.plan.total(job.epochs, len(job.batches), job.n))
        self.begins(job)
        for _ in range(job.epochs):
            self.begins_epoch()
            held = 0
            for i, batch in enumerate(job.batches):
                if held == 0:
                    job.optimizer.zero_grad()
                held += 1
                self.backward(job, batch, self.window(i, job))
                closed = bool(self.plan.ends(held, job.n, i + 1, len(job.batches)))
                skipped = closed and not self.update(job)
                if closed:
                    self.stepped(skipped)
                held = 0 if closed else held
                for _ in range(self.plan.schedules(closed, skipped)):
                    scheduler.step()

    def begins(self, job: EpochJob) -> None:
        """The training begins; like the next three this is for a loop that tells what it does."""

    def begins_epoch(self) -> None:
        """An epoch begins."""

    def heard(self, share: Tensor, count: int, held: Held) -> None:
        """A micro-batch of `count` samples has this share."""

    def stepped(self, skipped: bool) -> None:
        """A window was closed by a step, which the scaler may have skipped."""

    def window(self, i: int, job: EpochJob) -> Held:
        """The window of micro-batch `i`."""
        start = i - i % job.n
        counts = [len(x) for x, _ in job.batches[start : start + job.n]]
        return Held(job.n, len(counts), sum(counts), len(job.batches[0][0]))

    def backward(self, job: EpochJob, batch: Pair, held: Held) -> None:
        """Add the micro-batch's share to the buffer."""
        inputs, targets = batch
        share = self.tail.share(job.loss(job.model(inputs), targets), len(inputs), held)
        self.heard(share, len(inputs), held)
        if job.scaler is not None:
            share = job.scaler.scale(share)
        share.backward()

    def update(self, job: EpochJob) -> bool:
        """Step once; whether the weights moved."""
        if job.scaler is None:
            job.optimizer.step()
            return True
        scale = job.scaler.get_scale()
        job.scaler.step(job.optimizer)
        job.scaler.update()
        return job.scaler.get_scale() >= scale


EMPTY = partial(EpochStep, EmptyEpochs(), EmptyTail())

MUTANTS: Mapping[str, Mutant] = {
    **{
        name: Mutant(name, m.obligation, m.reference, partial(EpochStep, m.subject()))
        for name, m in epochs.MUTANTS.items()
        if m.obligation != "GA-SCHED-002"
    },
    **{
        name: Mutant(name, m.obligation, m.reference, partial(EpochStep, Epochs(), m.subject()))
        for name, m in tails.MUTANTS.items()
    },
}
