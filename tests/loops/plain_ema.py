"""An exponential moving average of the weights in plain PyTorch, and a schedule."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window, then the average's loss on the first micro-batch of a window's size."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 2)).to(run.device, run.dtype)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device)
    targets = torch.randn(run.samples, 2, dtype=run.dtype).to(run.device)
    size, count = run.micro_batch_size, run.micro_batches
    losses: list[Tensor] = []
    for start in range(0, count, run.accum_steps):
        window = range(start, min(start + run.accum_steps, count))
        window_loss = torch.zeros((), device=run.device)
        optimizer.zero_grad()
        for i in window:
            x, y = inputs[i * size : (i + 1) * size], targets[i * size : (i + 1) * size]
            loss = nn.functional.mse_loss(model(x), y)
            share = loss / len(window)
            share.backward()
            window_loss += share.detach()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        losses.append(window_loss)
    held_out = slice(0, run.accum_steps * size)
    losses.append(nn.functional.mse_loss(average(inputs[held_out]), targets[held_out]))
    return losses
