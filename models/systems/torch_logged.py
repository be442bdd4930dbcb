"""The epochs of `models.systems.torch_epochs` with a log of their own: what the loop tells of itself while it trains.

At start-up the effective batch; for every micro-batch its own loss, which `gradproof watch` gets as well; for every
epoch the performed and the skipped steps. The arithmetic is CountRules, so that wrong rules make a wrong log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradproof.monitoring import CountRules, Counts, report_loss
from models.systems.tails import Held
from models.systems.torch_epochs import EpochJob, EpochStep


@dataclass
class Log:
    """What was reported. `effective` is in samples, `epochs` are the counts of each."""

    effective: int = 0
    epochs: list[Counts] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    handed: float = 0.0


@dataclass(frozen=True)
class TellingStep(EpochStep):
    """A loop that keeps a log."""

    tally: CountRules = field(default_factory=CountRules)
    log: Log = field(default_factory=Log)

    def begins(self, job: EpochJob) -> None:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        world = torch.distributed.get_world_size() if distributed else 1
        self.log.effective = int(self.tally.effective(sum(len(x) for x, _ in job.batches[: job.n]), world))

    def begins_epoch(self) -> None:
        self.log.epochs.append(self.tally.epoch(self.log.epochs[-1] if self.log.epochs else Counts()))
        self.log.handed = 0.0

    def heard(self, share: Tensor, count: int, held: Held) -> None:
        value = float(share.detach())
        own = float(self.tally.loss(value, held.total / count, 1.0, self.log.handed))
        report_loss(own)
        self.log.losses.append(own)
        self.log.handed += value
        self.log.epochs[-1] = self.tally.micro_batch(self.log.epochs[-1], count)

    def stepped(self, skipped: bool) -> None:
        self.log.epochs[-1] = self.tally.attempt(self.log.epochs[-1], skipped)
        self.log.handed = 0.0
