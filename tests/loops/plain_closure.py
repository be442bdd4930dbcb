"""`optimizer.step(closure)` in plain PyTorch: the closure accumulates the whole window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2).to(run.device, run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2, dtype=run.dtype).to(run.device).split(run.micro_batch_size)

    def accumulate(window: range) -> Tensor:
        optimizer.zero_grad()
        window_loss = torch.zeros((), device=run.device)
        for i in window:
            loss = nn.functional.smooth_l1_loss(model(inputs[i]), targets[i])
            share = loss / len(window)
            share.backward()
            window_loss += share.detach()
        return window_loss

    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        losses.append(optimizer.step(lambda window=window: accumulate(window)))
    return losses
