"""A training script of a small GPT, as people write it by hand: it knows nothing of gradproof.

BUG is one of: nothing, share (no 1/N), twice (divided twice), tail (a short window by the N of the others), clip (each
micro-batch), narrow (a bf16 buffer of its own), stale (never zeroed), scaler and autocast (both right).
"""

import math
import os

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BUG = os.environ.get("BUG", "")
B, T, C, V, N = 3, 8, 16, 23, 4
data = np.random.default_rng(0).integers(0, V, 500).astype(np.uint16)
torch.manual_seed(1337)


class Attention(nn.Module):
    """Causal attention with a buffer for its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, C]."""
        b, t, c = x.size()
        q, k, v = (part.view(b, t, 2, c // 2).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, dim=-1)) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.attention = nn.LayerNorm(C), nn.LayerNorm(C), Attention()
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, C]."""
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    """Two blocks with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(2)]), nn.LayerNorm(C)
        self.head = nn.Linear(C, V, bias=False)
        self.words.weight = self.head.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the mean loss of the tokens."""
        x = self.words(idx) + self.places(torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=BUG == "scaler")
buffers = [torch.zeros_like(p, dtype=torch.bfloat16) for p in model.parameters()]


def get_batch() -> tuple[Tensor, Tensor]:
    """Tokens, and the tokens that follow them."""
    starts = torch.randint(len(data) - T, (B,))
    x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in starts])
    return x, y


@torch.no_grad()
def estimate() -> Tensor:
    """The loss of other batches."""
    model.eval()
    losses = torch.zeros(2)
    for k in range(2):
        losses[k] = model(*get_batch())[1].item()
    model.train()
    return losses.mean()


X, Y = get_batch()
for step in range(5):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (step + 1) / 5
    if step % 2 == 0:
        print("validation", float(estimate()))
    own = 2 if BUG == "tail" and step == 1 else N
    for _ in range(own):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BUG == "autocast"):
            logits, loss = model(X, Y)
            if BUG != "share":
                loss = loss / (N if BUG == "tail" else own)
            if BUG == "twice":
                loss = loss / N
        X, Y = get_batch()
        scaler.scale(loss).backward()
        if BUG == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if BUG == "narrow":
            for buffer, p in zip(buffers, model.parameters(), strict=True):
                buffer += p.grad
                p.grad = None
    if BUG == "narrow":
        for buffer, p in zip(buffers, model.parameters(), strict=True):
            p.grad = buffer.float()
            buffer.zero_()
    if BUG != "clip":
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if BUG != "stale":
        optimizer.zero_grad(set_to_none=True)
    print(f"step {step}: loss {loss.item() * N:.4f}")
