"""Linear regression in plain PyTorch: mean squared error, SGD, an index over the micro-batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2).to(run.device, run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(run.samples, 3, device=run.device, dtype=run.dtype)
    targets = torch.randn(run.samples, 2, device=run.device, dtype=run.dtype)
    n, size, count = run.accum_steps, run.micro_batch_size, run.micro_batches
    losses: list[Tensor] = []
    window_loss = torch.zeros((), device=run.device)
    for i in range(count):
        rows = slice(i * size, (i + 1) * size)
        window = min(n, count - i // n * n)
        loss = nn.functional.mse_loss(model(inputs[rows]), targets[rows])
        share = loss / window
        share.backward()
        window_loss += share.detach()
        if (i + 1) % n == 0 or i + 1 == count:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(window_loss.clone())
            window_loss.zero_()
    return losses
