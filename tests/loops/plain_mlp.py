"""A classifier in plain PyTorch: cross entropy, AdamW over lists, a warm-up, clipping by norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MAX_NORM = 0.5


def build(run: Any) -> nn.Module:
    """Two layers of width 4."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    return model.to(run.device, run.dtype)


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    model = build(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.4, weight_decay=0.1, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    targets = torch.randint(0, 3, (run.samples,)).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    window_loss = torch.zeros((), device=run.device)
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        first = i - i % run.accum_steps
        if i == first:
            optimizer.zero_grad()
        window = inputs[first : first + run.accum_steps]
        loss = nn.functional.cross_entropy(model(x), y)
        share = loss / len(window)
        share.backward()
        window_loss += share.detach()
        if (i + 1) % run.accum_steps == 0 or i + 1 == len(inputs):
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            losses.append(window_loss.clone())
            window_loss.zero_()
    return losses
