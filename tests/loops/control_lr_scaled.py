"""Correct in its weights only: the gradients are summed and SGD's learning rate is divided by N instead.

With SGD without clipping, decay and momentum the update is that of the full batch; the gradient is N times as large.
"""

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
        optimizer.param_groups[0]["lr"] = 0.1 / len(window)
        for i in window:
            loss = nn.functional.mse_loss(model(inputs[i]), targets[i])
            loss.backward()
            window_loss += loss.detach() / len(window)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(window_loss)
    return losses
