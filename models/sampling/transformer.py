"""A small character transformer, and a text built in code to train it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SUBJECTS = ("the old king", "a young sailor", "my sister", "the miller", "one grey cat", "the night watch")
VERBS = ("counts", "carries", "forgets", "mends", "follows", "sells")
OBJECTS = ("seven lamps", "a broken oar", "the letter", "two loaves", "his brother", "every bell")
PLACES = ("by the river", "at dawn", "in the market", "under the bridge", "before winter", "without a word")


def text_of(sentences: int) -> str:
    """That many sentences, chosen by a linear congruential generator of 2^31: the same on every machine."""
    state, lines = 12345, []
    for _ in range(sentences):
        words = []
        for options in (SUBJECTS, VERBS, OBJECTS, PLACES):
            state = (1103515245 * state + 12345) % 2**31
            words.append(options[(state >> 16) % len(options)])
        lines.append(" ".join(words))
    return ".\n".join(lines) + ".\n"


def encoded(text: str) -> tuple[Tensor, int]:
    """The text as (length,) integers, characters numbered in order, and how many characters there are."""
    alphabet = sorted(set(text))
    number = {c: i for i, c in enumerate(alphabet)}
    return torch.tensor([number[c] for c in text]), len(alphabet)


@dataclass(frozen=True)
class Shape:
    """Sizes of the transformer. `width` is a multiple of `heads`."""

    characters: int
    width: int = 32
    layers: int = 2
    heads: int = 4
    block: int = 32
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal multi-head self-attention, written out so that its backward is deterministic on every device."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same shape."""
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (w // self.heads) ** 0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = F.dropout(weights, self.dropout, self.training) @ v
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(b, t, w)))


class Block(nn.Module):
    """Pre-norm transformer block with dropout on both branches."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        w = shape.width
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(w), Attention(shape), nn.LayerNorm(w)
        self.mlp = nn.Sequential(nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w), nn.Dropout(shape.dropout))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same shape."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class CharTransformer(nn.Module):
    """Predicts the next character at every place of a block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.characters, shape.width)
        self.places = nn.Parameter(torch.randn(shape.block, shape.width) * 0.02)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.characters)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) of characters -> (batch, length, characters) of logits; length at most the block."""
        hidden = self.blocks(self.tokens(x) + self.places[: x.shape[1]])
        return cast(Tensor, self.head(self.norm(hidden)))


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over every place: (batch, length, characters), (batch, length) -> scalar, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
