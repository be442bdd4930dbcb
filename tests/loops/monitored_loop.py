"""Two epochs over a DataLoader with a GradScaler, of which one window overflows; every loss is reported.

`CHANGED` lets a test put a mistake in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradproof.monitoring import report_loss

ROWS, MICRO, N, EPOCHS, OVERFLOWS = 40, 4, 4, 2, 5

Log = Callable[[Tensor, Tensor], None]


def undivided(loss: Tensor, share: Tensor) -> None:
    """What is to be logged: the micro-batch's own loss."""
    report_loss(loss)


def train(log: Log = undivided, losses: list[float] | None = None) -> Any:
    """Train; the optimizer and the scaler. `losses` takes each micro-batch's loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loader = DataLoader(TensorDataset(torch.randn(ROWS, 3), torch.randn(ROWS, 1)), batch_size=MICRO)
    seen = 0
    for _ in range(EPOCHS):
        for i, (inputs, targets) in enumerate(loader):
            window = min(N, len(loader) - i // N * N)
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss = loss * math.inf if seen == OVERFLOWS else loss
            share = loss / window
            scaler.scale(share).backward()
            seen += 1
            log(loss, share)
            if losses is not None:
                losses.append(float(loss.detach()))
            if (i + 1) % N == 0 or i + 1 == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return optimizer, scaler


if __name__ == "__main__":
    train()
