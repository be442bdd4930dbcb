"""Integer data in layouts on which a verifier is easily wrong: time first, read twice, padded, cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def time_first(run: Any, scale: float = 1.0) -> None:
    """Right: the samples are the second axis."""
    model = nn.RNN(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x = torch.randn(3, run.micro_batch_size, 3)
            (scale * model(x)[0].square().mean() / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def time_first_unscaled(run: Any) -> None:
    """The 1/N is missing."""
    time_first(run, run.accum_steps)


def tokens_time_first(run: Any) -> None:
    """Right: token ids with the samples along the second axis."""
    steps, model = 4, nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7))
    optimizer, row = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            rows = range(row, row + run.micro_batch_size)
            x = torch.tensor([[(5 * (b * steps + t) + 3) % 7 for b in rows] for t in range(steps)])
            row += run.micro_batch_size
            (F.cross_entropy(model(x[:-1]).flatten(0, 1), x[1:].flatten()) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def tokens_of(run: Any, read: Callable[[int, int], int]) -> None:
    """A model of token ids; `read` says which micro-batch of the data is taken for one of a window."""
    model, count = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7)), run.accum_steps
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.1), torch.randint(0, 7, (run.samples, 5))
    batches_ = ids.split(run.micro_batch_size)
    for window in range(run.windows):
        for k in range(count):
            x = batches_[read(window * count, k)]
            (F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()) / count).backward()
        optimizer.step()
        optimizer.zero_grad()


def tokens(run: Any) -> None:
    """Right."""
    tokens_of(run, lambda first, k: first + k)


def tokens_of_the_first_window(run: Any) -> None:
    """A loader that begins anew in every window, whatever the full batch does."""
    tokens_of(run, lambda first, k: k)


def tokens_of_the_first_micro_batch(run: Any) -> None:
    """A micro-batch fetched once a window."""
    tokens_of(run, lambda first, k: first)


def padded(run: Any, by_tokens: bool = True, cut: bool = False) -> None:
    """Token ids padded to the longest sample of the batch that is made, with labels that ignore the padding."""
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7))
    optimizer, first, size = torch.optim.SGD(model.parameters(), lr=0.1), 0, run.micro_batch_size
    data = [[(5 * i + 3 * j) % 6 + 1 for j in range(2 + i % 3)] for i in range(run.samples)]
    for _ in range(run.windows):
        total = sum(map(len, data[first : first + run.accum_steps * size]))
        for _ in range(run.accum_steps):
            rows = data[first : first + size]
            longest, first = min(map(len, rows)) if cut else max(map(len, rows)), first + size
            x = torch.tensor([(r + [0] * (longest - len(r)))[:longest] for r in rows])
            y = torch.tensor([(r + [-100] * (longest - len(r)))[:longest] for r in rows])
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            (loss / (total if by_tokens else run.accum_steps * (y != -100).sum())).backward()
        optimizer.step()
        optimizer.zero_grad()


def padded_by_batch(run: Any) -> None:
    """Right."""
    padded(run)


def padded_mean_of_means(run: Any) -> None:
    """Every micro-batch is divided by its own tokens."""
    padded(run, by_tokens=False)


def cut_by_batch(run: Any) -> None:
    """Every batch is cut to its shortest sample: the full batch loses other tokens than the micro-batches do."""
    padded(run, cut=True)
