"""A training step over a net with batch statistics, the empty body and a bug."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


def train(run: Any, divisor: int, *middle: nn.Module) -> None:
    """One step a window."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), *middle, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    for i in range(run.micro_batches):
        rows = slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)
        (nn.functional.mse_loss(model(inputs[rows]), targets[rows]) / divisor).backward()
        if (i + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def step(run: Any) -> None:
    """The subject: correct, and outside the assumptions."""
    train(run, run.accum_steps, nn.BatchNorm1d(4))


def empty(run: Any) -> None:
    """Does nothing."""


def missing_scale(run: Any) -> None:
    """The 1/N is missing, and no batch statistics hide it."""
    train(run, 1)


MUTANTS = {"missing_scale": SimpleNamespace(obligation="GA-EQ-001", reference="nanoGPT#206", subject=missing_scale)}
