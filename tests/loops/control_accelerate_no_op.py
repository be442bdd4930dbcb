"""Correct, after LTX-Video-Trainer#46: Accelerate's step and zero_grad do nothing off the boundary.

The number of micro-batches is a multiple of the window here, or the last window would be divided by too much.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def train(run: Any) -> list[Tensor]:
    """Train on the whole windows; the loss of every window."""
    torch.manual_seed(run.seed)
    accelerator = Accelerator(gradient_accumulation_steps=run.accum_steps, cpu=run.device == "cpu")
    model: nn.Module = nn.Linear(3, 2)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples = run.accum_steps * run.micro_batch_size * run.windows
    data = TensorDataset(torch.randn(samples, 3), torch.randn(samples, 2))
    loader: Any = DataLoader(data, batch_size=run.micro_batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    shares: list[Tensor] = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        shares.append(loss.detach() / run.accum_steps)
    return list(torch.stack(shares).reshape(-1, run.accum_steps).sum(dim=1))
