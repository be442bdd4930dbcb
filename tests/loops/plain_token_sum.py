"""Next-token prediction in plain PyTorch: the losses are summed and divided by the tokens of the window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH = 5, 4, 4


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.SiLU(), nn.Linear(WIDTH, VOCABULARY))
    model.to(run.device, run.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    ids = torch.randint(0, VOCABULARY, (run.samples, LENGTH + 1))
    valid = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (run.samples, 1))
    inputs = ids[:, :-1].to(run.device).split(run.micro_batch_size)
    targets = ids[:, 1:].masked_fill(~valid, -100).to(run.device).split(run.micro_batch_size)
    losses: list[Tensor] = []
    for start in range(0, len(inputs), run.accum_steps):
        last = min(start + run.accum_steps, len(inputs))
        counts = [(targets[i] != -100).sum() for i in range(start, last)]
        window_tokens = torch.stack(counts).sum()
        shares: list[Tensor] = []
        for i in range(start, last):
            logits = model(inputs[i])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), targets[i], reduction="sum")
            share = loss / window_tokens
            share.backward()
            shares.append(share.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(torch.stack(shares).sum())
    return losses
