"""`torch.func` in plain PyTorch: gradients are values, added up by hand and handed to the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(run.device, run.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(run.samples, 3, dtype=run.dtype).to(run.device).split(run.micro_batch_size)
    targets = torch.randn(run.samples, 2, dtype=run.dtype).to(run.device).split(run.micro_batch_size)

    def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(functional_call(model, params, (x,)), y)

    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        window = range(start, min(start + run.accum_steps, len(inputs)))
        held = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        window_loss = torch.zeros((), device=run.device)
        for i in window:
            params = {name: p.detach() for name, p in model.named_parameters()}
            grads, loss = grad_and_value(loss_of)(params, inputs[i], targets[i])
            held = {name: total + grads[name] / len(window) for name, total in held.items()}
            window_loss += loss / len(window)
        for name, p in model.named_parameters():
            p.grad = held[name]
        optimizer.step()
        losses.append(window_loss)
    return losses
