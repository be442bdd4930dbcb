"""Gradient checkpointing in plain PyTorch: the inner block is computed again in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """Two blocks, of which nothing but the inputs is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.GELU())
        self.second = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3) to (batch, 2)."""
        x = checkpoint(self.first, x, use_reentrant=False)
        x = checkpoint(self.second, x, use_reentrant=False)
        return self.head(x)


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = Model().to(run.device, run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        window_loss = torch.zeros((), device=run.device)
        for i in window:
            output = model(inputs[i])
            share = nn.functional.mse_loss(output, targets[i]) / len(window)
            share.backward()
            window_loss += share.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(window_loss)
    return losses
