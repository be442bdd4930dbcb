"""A tiny causal language model in plain PyTorch: tied weights, ignored targets, a loss weighted by tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH = 5, 4, 4
MAX_NORM = 1.95


class Attention(nn.Module):
    """Causal self-attention with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        q, k, v = self.mix(x).split(WIDTH, dim=2)
        scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH)
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        return self.out(weights @ v)


class Model(nn.Module):
    """One block."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token, (batch, length, vocabulary)."""
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        x = x + self.attention(self.norm1(x))
        x = x + self.feed(self.norm2(x))
        return self.head(x)


def documents(run: Any) -> tuple[Tensor, Tensor]:
    """Token ids and labels of all samples; the labels behind a document's end are ignored."""
    ids = torch.randint(0, VOCABULARY, (run.samples, LENGTH))
    lengths = torch.randint(2, LENGTH + 1, (run.samples, 1))
    labels = ids.masked_fill(torch.arange(LENGTH) >= lengths, -100)
    return ids.to(run.device), labels.to(run.device)


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    model = Model().to(run.device, run.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    ids, labels = documents(run)
    batches = list(zip(ids.split(run.micro_batch_size), labels.split(run.micro_batch_size), strict=True))
    losses: list[Tensor] = []
    for start in range(0, len(batches), run.accum_steps):
        window = batches[start : start + run.accum_steps]
        window_tokens = sum(int((y[:, 1:] != -100).sum()) for _, y in window)
        window_loss = torch.zeros((), device=run.device)
        optimizer.zero_grad(set_to_none=True)
        for x, y in window:
            logits, aims = model(x)[:, :-1], y[:, 1:]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), aims.flatten(), ignore_index=-100)
            tokens = int((aims != -100).sum())
            share = loss * tokens / window_tokens
            share.backward()
            window_loss += share.detach()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        scheduler.step()
        losses.append(window_loss)
    return losses
