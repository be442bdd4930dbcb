"""DistributedDataParallel over gloo: every rank calls `train` with RANK, WORLD_SIZE and MASTER_* in its environment.

The samples of a rank are those of the whole stream that lie `world` apart; a token's loss is divided by the tokens
that all ranks have in the window.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH = 5, 4, 3
MAX_NORM = 0.217


def stream(run: Any, rank: int, world: int) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of a rank; some targets are ignored."""
    ids = torch.randint(0, VOCABULARY, (run.samples * world, LENGTH + 1))
    valid = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (run.samples * world, 1))
    inputs, targets = ids[:, :-1][rank::world], ids[:, 1:].masked_fill(~valid, -100)[rank::world]
    size = run.micro_batch_size
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def accumulate(run: Any, rank: int, world: int) -> list[Tensor]:
    """Train this rank's replica; the mean loss of every window over all ranks."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    batches = stream(run, rank, world)
    losses: list[Tensor] = []
    for start in range(0, len(batches), run.accum_steps):
        window = batches[start : start + run.accum_steps]
        tokens = torch.stack([(y != -100).sum() for _, y in window]).sum()
        dist.all_reduce(tokens)
        window_loss = torch.zeros(())
        optimizer.zero_grad()
        for k, (x, y) in enumerate(window):
            last = k + 1 == len(window)
            with nullcontext() if last else ddp.no_sync():
                total = nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten(), reduction="sum")
                share = total * world / tokens
                share.backward()
            window_loss += share.detach() / world
        nn.utils.clip_grad_norm_(ddp.parameters(), MAX_NORM)
        optimizer.step()
        dist.all_reduce(window_loss)
        losses.append(window_loss)
    return losses


def train(run: Any) -> list[Tensor]:
    """Join the group, train, leave it; the loss of every window."""
    dist.init_process_group("gloo")
    try:
        return accumulate(run, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
