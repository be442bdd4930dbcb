"""Small nets, made in code: a linear layer, the same over labelled sequences, an MLP, a convolution net without
and with BatchNorm, a transformer.

Every net comes with data and a loss whose mean over a micro-batch is taken over samples, or over the tokens that
carry loss. Under BatchNorm in training mode the loss of a sample depends on the other samples of its micro-batch; then
(1/N) sum g_i is not the full-batch gradient. No attribute says so here: it is found by experiment
(`symbolic.accumulation.falsify_measure.interaction`), and the claim lists such nets as outside its assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES, CLASSES = 4, 3
VOCABULARY, LENGTH, WIDTH, HEADS = 7, 5, 4, 2
IGNORE = -100


class Attention(nn.Module):
    """Causal multi-head self-attention, written out so that its backward is deterministic on every device."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same shape."""
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, WIDTH)
        return cast(Tensor, self.out(mixed))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same shape."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    """Two blocks over a vocabulary of 7."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) of token ids -> (batch, length, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        return cast(Tensor, self.head(self.norm(self.blocks(x))))


def _linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.GELU(), nn.Linear(6, CLASSES))


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    )  # fmt: skip


def _conv_bn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
    )


def _vectors(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, FEATURES, generator=generator), torch.randn(size, CLASSES, generator=generator)


def _classes(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def _images(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 1, 6, 6, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def _sequences(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Token ids and next tokens, of which a drawn part is ignored; at least one of each sequence is kept."""
    tokens = torch.randint(VOCABULARY, (size, LENGTH + 1), generator=generator)
    kept = torch.randint(1, LENGTH + 1, (size, 1), generator=generator)
    targets = tokens[:, 1:].masked_fill(torch.arange(LENGTH) >= kept, IGNORE)
    return tokens[:, :-1], targets


def _labels(generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Sequences of vectors and classes, of which a drawn part is ignored; at least one of each sequence is kept."""
    x = torch.randn(size, LENGTH, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (size, LENGTH), generator=generator)
    kept = torch.randint(1, LENGTH + 1, (size, 1), generator=generator)
    return x, targets.masked_fill(torch.arange(LENGTH) >= kept, IGNORE)


def _squares(output: Tensor, targets: Tensor, reduction: str) -> Tensor:
    loss = F.mse_loss(output, targets.to(output.dtype), reduction=reduction)
    return loss / CLASSES if reduction == "sum" else loss


def _entropy(output: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(
        output.reshape(-1, output.shape[-1]), targets.reshape(-1), reduction=reduction, ignore_index=IGNORE
    )


def _samples(targets: Tensor) -> int:
    return len(targets)


def _kept(targets: Tensor) -> int:
    return int((targets != IGNORE).sum())


@dataclass(frozen=True, slots=True)
class Net:
    """A net, its data and its loss."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[torch.Generator, int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor, str], Tensor]
    count: Callable[[Tensor], int]

    def build(self, seed: int) -> nn.Module:
        """The net in training mode, its weights drawn from `seed` alone."""
        generator = torch.Generator().manual_seed(seed)
        model = self.make().train()
        with torch.no_grad():
            for p in model.parameters():
                spread = 0.5 if p.dim() > 1 else 0.25
                p.copy_(torch.randn(p.shape, generator=generator) * spread)
            for module in model.modules():
                if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                    module.weight.add_(1.0)
        return model


NETS: Mapping[str, Net] = {
    net.name: net
    for net in (
        Net("linear", _linear, _vectors, _squares, _samples),
        Net("labels", _linear, _labels, _entropy, _kept),
        Net("mlp", _mlp, _classes, _entropy, _samples),
        Net("conv", _conv, _images, _entropy, _samples),
        Net("conv_batchnorm", _conv_bn, _images, _entropy, _samples),
        Net("transformer", Transformer, _sequences, _entropy, _kept),
    )
}


class Weights(nn.Module):
    """One weight vector whose output is w . x, so that the gradient of each weight is the number handed in."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.row = nn.Linear(elements, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(1, elements) -> (1, 1)."""
        return cast(Tensor, self.row(x))
