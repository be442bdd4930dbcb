"""Sums the gradients of a window in plain PyTorch and divides them once, before the step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def train(run: Any) -> list[float]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).to(run.device, run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples = [(torch.randn(3, dtype=run.dtype), torch.randn(2, dtype=run.dtype)) for _ in range(run.samples)]
    loader = torch.utils.data.DataLoader(samples, batch_size=run.micro_batch_size)  # type: ignore[arg-type, var-annotated]
    losses: list[float] = []
    total, held = 0.0, 0
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x.to(run.device)), y.to(run.device))
        loss.backward()
        total += loss.item()
        held += 1
        if held == run.accum_steps or i + 1 == len(loader):
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.div_(held)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total / held)
            total, held = 0.0, 0
    return losses
