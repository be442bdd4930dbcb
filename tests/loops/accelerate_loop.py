"""Hugging Face Accelerate: `accumulate()`, with a loss that is weighted by the tokens of the window."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH = 5, 4, 3
MAX_NORM = 0.3


def loader_of(run: Any) -> DataLoader[tuple[Tensor, ...]]:
    """Token ids, and targets of which some are ignored."""
    ids = torch.randint(0, VOCABULARY, (run.samples, LENGTH + 1))
    valid = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (run.samples, 1))
    data = TensorDataset(ids[:, :-1], ids[:, 1:].masked_fill(~valid, -100))
    return DataLoader(data, batch_size=run.micro_batch_size)


def train(run: Any) -> list[Tensor]:
    """Train; the loss of every window."""
    torch.manual_seed(run.seed)
    accelerator = Accelerator(gradient_accumulation_steps=run.accum_steps, cpu=run.device == "cpu")
    model: nn.Module = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCABULARY))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    loader: Any = loader_of(run)
    counts = [int((y != -100).sum()) for _, y in loader]
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses: list[Tensor] = []
    window_loss = torch.zeros((), device=accelerator.device)
    for i, (x, y) in enumerate(loader):
        first = i - i % run.accum_steps
        window_tokens = sum(counts[first : first + run.accum_steps])
        with accelerator.accumulate(model):
            total = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            loss = total / window_tokens
            accelerator.backward(loss * accelerator.gradient_accumulation_steps)
            window_loss += loss.detach()
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            losses.append(window_loss.clone())
            window_loss.zero_()
    return losses
