"""Correct, after nanoGPT#605: the loss is divided by the number of micro-steps, not by the index of this one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2).to(run.device, run.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(run.samples, 5, dtype=run.dtype).to(run.device)
    at = 0

    def get_batch() -> tuple[Tensor, Tensor]:
        nonlocal at
        rows = data[at : at + run.micro_batch_size]
        at += len(rows)
        return rows[:, :3], rows[:, 3:]

    losses: list[Tensor] = []
    left = run.micro_batches
    while left > 0:
        micro_steps = min(run.accum_steps, left)
        loss_accum = torch.zeros((), device=run.device)
        for _ in range(micro_steps):
            x, y = get_batch()
            loss = nn.functional.mse_loss(model(x), y)
            loss = loss / micro_steps
            loss_accum += loss.detach()
            loss.backward()
        left -= micro_steps
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss_accum)
    return losses
