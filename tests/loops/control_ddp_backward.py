"""Correct, after ClassyVision#706: forward runs outside of `no_sync`, backward inside, except for the last."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def accumulate(run: Any, rank: int, world: int) -> list[Tensor]:
    """Train this rank's replica; this rank's loss of every window."""
    torch.manual_seed(run.seed)
    ddp = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    inputs = torch.randn(run.samples * world, 3)[rank::world].split(run.micro_batch_size)
    targets = torch.randn(run.samples * world, 2)[rank::world].split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        window_loss = torch.zeros(())
        optimizer.zero_grad()
        for i in window:
            share = nn.functional.mse_loss(ddp(inputs[i]), targets[i]) / len(window)
            with nullcontext() if i == window[-1] else ddp.no_sync():
                share.backward()
            window_loss += share.detach()
        optimizer.step()
        losses.append(window_loss)
    return losses


def train(run: Any) -> list[Tensor]:
    """Join the group, train, leave it; this rank's loss of every window."""
    dist.init_process_group("gloo")
    try:
        return accumulate(run, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
