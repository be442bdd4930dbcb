"""Windows on DistributedDataParallel: one all-reduce a window, and the ways in which `no_sync` is misplaced.

DDP reads `require_backward_grad_sync` in the forward pass, so the forward of a micro-batch that is not to be summed
belongs inside `no_sync` with its backward. Source: torch.nn.parallel.DistributedDataParallel.no_sync.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from models.registry import Mutant, registered_for


@dataclass
class DdpJob:
    """One rank's training; `loss` is the mean over the rows of a micro-batch."""

    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    batches: Sequence[tuple[Tensor, Tensor]]
    n: int
    loss: Callable[[Tensor, Tensor], Tensor]


class SyncOnLast:
    """The reference: forward and backward of every micro-batch but the window's last are inside `no_sync`."""

    def run(self, job: DdpJob) -> None:
        """Train."""
        count = len(job.batches)
        for i, batch in enumerate(job.batches):
            if i % job.n == 0:
                job.optimizer.zero_grad()
            size = min(job.n, count - (i - i % job.n))
            last = i % job.n == size - 1
            self.micro_batch(job, batch, size, last)
            if last:
                job.optimizer.step()

    def quiet(self, job: DdpJob, last: bool) -> AbstractContextManager[Any]:
        """`no_sync`, but for the last micro-batch."""
        return nullcontext() if last else job.ddp.no_sync()

    def micro_batch(self, job: DdpJob, batch: tuple[Tensor, Tensor], size: int, last: bool) -> None:
        """Forward and backward of one micro-batch."""
        with self.quiet(job, last):
            share = job.loss(job.ddp(batch[0]), batch[1]) / size
            share.backward()  # type: ignore[no-untyped-call]


class NoRun(SyncOnLast):
    """The empty body."""

    def run(self, job: DdpJob) -> None:
        """Return at once."""


class SyncEveryMicroBatch(SyncOnLast):
    """No `no_sync` at all: the sums are right, N times as many."""

    def quiet(self, job: DdpJob, last: bool) -> AbstractContextManager[Any]:
        return nullcontext()


class ForwardOutside(SyncOnLast):
    """The forward pass outside the context, the backward pass inside: DDP has read the flag by then."""

    def micro_batch(self, job: DdpJob, batch: tuple[Tensor, Tensor], size: int, last: bool) -> None:
        share = job.loss(job.ddp(batch[0]), batch[1]) / size
        with self.quiet(job, last):
            share.backward()  # type: ignore[no-untyped-call]


class NoSyncOnLast(SyncOnLast):
    """`no_sync` around the window's last micro-batch, and around no other."""

    def quiet(self, job: DdpJob, last: bool) -> AbstractContextManager[Any]:
        return job.ddp.no_sync() if last else nullcontext()


class NeverSynced(SyncOnLast):
    """`no_sync` around every micro-batch: each rank trains alone."""

    def quiet(self, job: DdpJob, last: bool) -> AbstractContextManager[Any]:
        return job.ddp.no_sync()


_ROWS = (
    ("sync_every_micro_batch", "transformers#34645", SyncEveryMicroBatch),
    ("forward_outside_no_sync", "ClassyVision#706", ForwardOutside),
    ("no_sync_on_last", "FunASR#3472", NoSyncOnLast),
    ("never_synced", "build-nanogpt#30", NeverSynced),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-SYNC-001", _ROWS)
