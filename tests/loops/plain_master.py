"""A bfloat16 model with float32 masters in plain PyTorch: buffers, clipping and SGD are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MAX_NORM = 0.3


class HandSGD(torch.optim.Optimizer):
    """SGD in three lines."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """p -= lr * grad."""
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


def clip(buffers: list[Tensor], limit: float) -> None:
    """Scale the buffers so that their norm is at most `limit`."""
    norm = torch.stack([b.square().sum() for b in buffers]).sum().sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for b in buffers:
        b.mul_(factor)


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(run.device, torch.bfloat16)
    masters = [p.detach().clone().float() for p in model.parameters()]
    optimizer = HandSGD(masters, lr=0.1)
    inputs = torch.randn(run.samples, 3).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        buffers = [torch.zeros_like(m) for m in masters]
        window_loss = torch.zeros((), device=run.device)
        for i in window:
            output = model(inputs[i].bfloat16()).float()
            share = nn.functional.mse_loss(output, targets[i]) / len(window)
            share.backward()
            for b, p in zip(buffers, model.parameters(), strict=True):
                if p.grad is not None:
                    b.add_(p.grad.float())
                p.grad = None
            window_loss += share.detach()
        clip(buffers, MAX_NORM)
        for m, b in zip(masters, buffers, strict=True):
            m.grad = b
        optimizer.step()
        with torch.no_grad():
            for p, m in zip(model.parameters(), masters, strict=True):
                p.copy_(m)
        losses.append(window_loss)
    return losses
