"""Automatic mixed precision in plain PyTorch: autocast, GradScaler, clipping after `unscale_`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MAX_NORM = 1.25


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    half = torch.bfloat16 if run.dtype == torch.bfloat16 else torch.float16
    kind = torch.device(run.device).type
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0)
    inputs = torch.randn(run.samples, 3).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        window_loss = torch.zeros((), device=run.device)
        optimizer.zero_grad()
        for i in window:
            with torch.autocast(kind, dtype=half):
                output = model(inputs[i])
                loss = nn.functional.mse_loss(output.float(), targets[i])
            share = loss / len(window)
            scaler.scale(share).backward()
            window_loss += share.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        losses.append(window_loss)
    return losses
