"""Training functions of transformers and image models, built in code, with one bug each where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, LENGTH, WORDS = 24, 3, 6, 13


class Block(nn.Module):
    """A block of a GPT: LayerNorm, causal attention, GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [samples, length, width]."""
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """A GPT with tied embeddings."""

    def __init__(
        self, width: int = WIDTH, heads: int = HEADS, layers: int = 2, length: int = LENGTH, words: int = WORDS
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of the tokens."""
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


class Gated(nn.Module):
    """A block as Llama has it: RMSNorm, rotary positions, grouped queries, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def turned(self, x: Tensor) -> Tensor:
        """Rotary positions on [samples, heads, length, size]."""
        at = torch.arange(x.shape[-2], dtype=x.dtype)
        rate = 10000.0 ** (-torch.arange(0, self.size, 2, dtype=x.dtype) / self.size)
        angle = torch.outer(at, rate)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        """x: [samples, length, width]."""
        b, t, c = x.shape
        h = self.first(x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        share = self.heads // self.groups
        k, v = (
            part[:, :, None].expand(b, self.groups, share, t, self.size).reshape(b, self.heads, t, self.size)
            for part in (k, v)
        )
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Words, gated blocks, and labels that are the words shifted by one, the last of which is ignored."""

    def __init__(
        self,
        width: int = WIDTH,
        heads: int = 4,
        groups: int = 2,
        layers: int = 2,
        words: int = WORDS,
        hidden: int = 2 * WIDTH,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Gated(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, _: Tensor) -> Tensor:
        """The mean loss of the next token."""
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        labels = F.pad(x, (0, 1), value=-100)[..., 1:]
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), labels.flatten())


class Pictures(nn.Module):
    """Convolutions with a norm that is asked for, pooling, and a head."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm(), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3))
        self.head = nn.Linear(4, WORDS)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of the pictures."""
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))), y)


def tokens(run: Any) -> tuple[Tensor, Tensor]:
    """Words and labels of every sample."""
    return torch.randint(WORDS, (run.samples, LENGTH)), torch.randint(WORDS, (run.samples, LENGTH))


def pictures(run: Any) -> tuple[Tensor, Tensor]:
    """Pictures and labels of every sample."""
    return torch.randn(run.samples, 3, 7, 7), torch.randint(WORDS, (run.samples,))


def loop(model: Callable[[], nn.Module], data: Callable[[Any], tuple[Tensor, Tensor]] = tokens, bug: str = "") -> Any:
    """A training function with clipping and AdamW, right or with a bug.

    Bugs: share (no 1/N), stale (never zeroed), clip (each micro-batch), early (a step after two), tail (a short window
    divided by N), narrow (a bf16 buffer of its own), last (only the last loss is divided).
    """

    def train(run: Any) -> list[float]:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
        inputs, labels = data(run)
        size, steps, losses, total = run.micro_batch_size, run.accum_steps, list[Any](), 0.0
        own = [torch.zeros_like(p, dtype=torch.bfloat16) for p in net.parameters()]
        for i in range(run.micro_batches):
            rows = slice(i * size, (i + 1) * size)
            left = run.micro_batches - i // steps * steps
            shares = {"share": 1, "tail": steps, "last": steps if (i + 1) % steps == 0 else 1}
            loss = net(inputs[rows], labels[rows]) / shares.get(bug, min(steps, left))
            loss.backward()
            total += loss.item()
            if bug == "clip":
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if bug == "narrow":
                for buffer, p in zip(own, net.parameters(), strict=True):
                    buffer += p.grad
                    p.grad = None
            if (i + 1) % (2 if bug == "early" else steps) == 0 or i + 1 == run.micro_batches:
                if bug == "narrow":
                    for buffer, p in zip(own, net.parameters(), strict=True):
                        p.grad = buffer.float()
                        buffer.zero_()
                if bug != "clip":
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                if bug != "stale":
                    optimizer.zero_grad()
                losses.append(total)
                total = 0.0
        return losses

    return train
