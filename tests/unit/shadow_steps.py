"""Training functions for the tests of the verifier: each is right, or has one thing about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Change = Callable[[Any], None]
UNSEEDED = itertools.count()


def batches(run: Any, inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Micro-batches, each with the length of its window."""
    xs, ys = inputs.split(run.micro_batch_size), targets.split(run.micro_batch_size)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        first = i - i % run.accum_steps
        yield x, y, min(run.accum_steps, len(xs) - first)


def loop(run: Any, model: nn.Module, before_step: Change | None = None, loss: Any = None, data: Any = None) -> None:
    """A plain loop; `before_step` is called with the model when a window is complete."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = data if data is not None else (torch.randn(run.samples, 3), torch.randn(run.samples, 2))
    loss = loss or nn.functional.mse_loss
    count = 0
    for x, y, window in batches(run, inputs, targets):
        (loss(model(x), y) / window).backward()
        count += 1
        if count == window:
            if before_step is not None:
                before_step(model)
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def plain(run: Any) -> None:
    """Right."""
    loop(run, nn.Linear(3, 2))


def unscaled(run: Any) -> None:
    """The 1/N is missing."""
    loop(run, nn.Linear(3, 2), loss=lambda a, b: nn.functional.mse_loss(a, b) * run.accum_steps)


def through_numpy(run: Any) -> None:
    """A gradient is halved behind torch's back."""

    def halve(model: nn.Module) -> None:
        for p in model.parameters():
            p.grad.numpy()[:] *= 0.5  # type: ignore[union-attr]

    loop(run, nn.Linear(3, 2), halve)


def dropout(run: Any) -> None:
    """Random numbers in the forward pass."""
    loop(run, nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)))


def batch_norm(run: Any) -> None:
    """The loss of a sample depends on its micro-batch."""
    loop(run, nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))


def frozen_batch_norm(run: Any) -> None:
    """The statistics are frozen: right."""
    loop(run, nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)))


def nan_in_data(run: Any) -> None:
    """One number of the data is no number."""
    inputs = torch.randn(run.samples, 3)
    inputs[1, 1] = float("nan")
    loop(run, nn.Linear(3, 2), data=(inputs, torch.randn(run.samples, 2)))


def data_dependent_shape(run: Any) -> None:
    """The shape of the loss depends on the weights."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2)[output > 0].sum() / output.numel()

    loop(run, nn.Linear(3, 2), loss=loss)


def unseeded(run: Any) -> None:
    """Every call trains on other numbers."""
    inputs = torch.full((run.samples, 3), 0.5) + next(UNSEEDED)
    loop(run, nn.Linear(3, 2), loss=lambda a, b: (a * float(inputs[0, 0])).mean())


def hand_clip(run: Any) -> None:
    """A clip with a Python branch on the norm: right."""

    def clip(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        if norm > 0.5:
            for g in grads:
                g.mul_(0.5 / norm)

    loop(run, nn.Linear(3, 2), clip)


def wrong_branch(run: Any) -> None:
    """Right where the norm is at most 5; above it each micro-batch counts twice."""

    def double(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if torch.stack([g.square().sum() for g in grads]).sum().sqrt() > 5.0:
            for g in grads:
                g.mul_(run.accum_steps)

    loop(run, nn.Linear(3, 2), double)


class Doubled(torch.autograd.Function):
    """Twice the input, computed in NumPy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Forward."""
        return torch.from_numpy(x.detach().numpy() * np.float32(2.0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Backward."""
        return torch.from_numpy(grad.numpy() * np.float32(2.0))


def numpy_function(run: Any) -> None:
    """An operator that torch does not dispatch."""
    loop(run, nn.Linear(3, 2), loss=lambda a, b: nn.functional.mse_loss(Doubled.apply(a), b))


def python_number(run: Any) -> None:
    """A number that left torch comes back as a factor."""

    def normalise(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        factor = 1.0 / (1.0 + float(grads[0].abs().max()))
        for g in grads:
            g.mul_(factor)

    loop(run, nn.Linear(3, 2), normalise)


def contrastive(run: Any) -> None:
    """In-batch negatives: the loss is no sum over samples."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        scores = output @ target.T
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    loop(run, nn.Linear(3, 2), loss=loss)


def raises(run: Any) -> None:
    """It raises."""
    raise RuntimeError("no such data")


def nothing(run: Any) -> None:
    """It trains nothing."""
