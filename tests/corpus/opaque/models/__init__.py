"""A training step that changes the gradient behind torch's back, the empty body and a bug."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


def train(run: Any, divisor: int, change: Any) -> None:
    """One step a window of linear regression."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    for i in range(run.micro_batches):
        rows = slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)
        (nn.functional.mse_loss(model(inputs[rows]), targets[rows]) / divisor).backward()
        if (i + 1) % run.accum_steps == 0:
            change(model)
            optimizer.step()
            optimizer.zero_grad()


def halve(model: nn.Module) -> None:
    """Through NumPy."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad.numpy()[:] *= 0.5


def nothing(model: nn.Module) -> None:
    """No change."""


def step(run: Any) -> None:
    """The subject."""
    train(run, run.accum_steps, halve)


def empty(run: Any) -> None:
    """Does nothing."""


def missing_scale(run: Any) -> None:
    """The 1/N is missing."""
    train(run, 1, nothing)


MUTANTS = {"missing_scale": SimpleNamespace(obligation="GA-EQ-001", reference="nanoGPT#206", subject=missing_scale)}
