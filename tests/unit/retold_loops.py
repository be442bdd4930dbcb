"""Training loops with one bug each, the event of which is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def right(run: Any) -> None:
    """Right."""
    _loop(run)


def stale(run: Any) -> None:
    """No zero between two windows: the first backward pass of the second one is wrong."""
    _loop(run, zero=False)


def unscaled(run: Any) -> None:
    """The 1/N is missing: the first loss is wrong already."""
    _loop(run, scale=False)


def clips_each(run: Any) -> None:
    """A clip after each backward pass: the first clip is wrong."""
    _loop(run, each=True)


def early(run: Any) -> None:
    """A step after two micro-batches of four."""
    _loop(run, early=2)


def divided_again(run: Any) -> None:
    """The gradient is divided by N once more before the step, in place."""
    _loop(run, again=True)


def moved(run: Any) -> None:
    """The weights shrink between two windows."""
    _loop(run, shrink=True)


def _loop(
    run: Any,
    scale: bool = True,
    zero: bool = True,
    each: bool = False,
    early: int = 0,
    again: bool = False,
    shrink: bool = False,
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, n = torch.randn(run.samples, 3), run.accum_steps
    for i, x in enumerate(data.split(run.micro_batch_size), 1):
        loss = model(x).square().mean()
        share = loss / n if scale else loss.clone()
        share.backward()
        if each:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if again and i % n == 0 and n > 1:
            torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], n)
        if i % n == 0 or i == early:
            optimizer.step()
            if zero:
                optimizer.zero_grad()
        if shrink and i % n == 0 and n > 1:
            with torch.no_grad():
                model.weight.mul_(0.9)


def one_weight(run: Any) -> None:
    """A model of one weight, whose gradient is a multiple of the full batch's whatever is wrong."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, n = torch.randn(run.samples, 1), run.accum_steps
    for i, x in enumerate(data.split(run.micro_batch_size), 1):
        share = model(x).square().mean() * (i if n > 1 else 1) / n
        share.backward()
        if i % n == 0:
            optimizer.step()
            optimizer.zero_grad()
