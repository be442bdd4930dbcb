"""`loss * (1 / N)` in plain PyTorch: with N = 3 the factor is not a third but the nearest double."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2).to(run.device, run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        window_loss = torch.zeros((), device=run.device)
        optimizer.zero_grad()
        for i in window:
            loss = nn.functional.mse_loss(model(inputs[i]), targets[i])
            share = loss * (1 / len(window))
            share.backward()
            window_loss += share.detach()
        optimizer.step()
        losses.append(window_loss)
    return losses
