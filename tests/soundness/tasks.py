"""Tasks: what the steps train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.soundness.kit import Batch, Task

VOCABULARY, LENGTH, IGNORED = 7, 5, -100


def regression(n: int, dtype: torch.dtype) -> Batch:
    """Three numbers in, two out."""
    return torch.randn(n, 3, dtype=dtype), torch.randn(n, 2, dtype=dtype)


def classes(n: int, dtype: torch.dtype) -> Batch:
    """Three numbers in, one of four classes out."""
    return torch.randn(n, 3, dtype=dtype), torch.randint(0, 4, (n,))


def truths(n: int, dtype: torch.dtype) -> Batch:
    """Three numbers in, two truth values out."""
    return torch.randn(n, 3, dtype=dtype), torch.randint(0, 2, (n, 2)).to(dtype)


def images(n: int, dtype: torch.dtype) -> Batch:
    """Images of 5 by 5, one of four classes out."""
    return torch.randn(n, 1, 5, 5, dtype=dtype), torch.randint(0, 4, (n,))


def tokens(n: int, dtype: torch.dtype) -> Batch:
    """Tokens in and out."""
    return torch.randint(0, VOCABULARY, (n, LENGTH)), torch.randint(0, VOCABULARY, (n, LENGTH))


def ragged(n: int, dtype: torch.dtype) -> Batch:
    """Tokens in and out; each sample has another number of tokens that count."""
    inputs, targets = tokens(n, dtype)
    lengths = torch.tensor([1 + i % LENGTH for i in range(n)])
    return inputs, targets.masked_fill(torch.arange(LENGTH) >= lengths[:, None], IGNORED)


def linear() -> nn.Module:
    """One layer."""
    return nn.Linear(3, 2)


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))


def small_mlp() -> nn.Module:
    """Two layers, two numbers out."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def convolution() -> nn.Module:
    """A small convolution."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4))


def language() -> nn.Module:
    """An embedding and a layer."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY))


def token_mean(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the tokens that count."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def token_sum(output: Tensor, target: Tensor) -> Tensor:
    """The sum over the tokens that count."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")


def squares(output: Tensor, target: Tensor) -> Tensor:
    """The sum over samples."""
    return (output - target).square().sum()


def tenths(output: Tensor, target: Tensor) -> Tensor:
    """The sum over samples, divided by ten."""
    return (output - target).square().sum() / 10.0


def sample_token_mean(output: Tensor, target: Tensor) -> Tensor:
    """The mean over the tokens of each sample, then over the samples."""
    each = F.cross_entropy(output.transpose(1, 2), target, ignore_index=IGNORED, reduction="none")
    return (each.sum(1) / (target != IGNORED).sum(1)).mean()


def clipped(model: nn.Module) -> None:
    """Clip the norm to a half."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


LINEAR = Task(linear, regression, F.mse_loss)
MLP = Task(mlp, classes, F.cross_entropy)
BCE = Task(small_mlp, truths, F.binary_cross_entropy_with_logits)
CONV = Task(convolution, images, F.cross_entropy)
TOKENS = Task(language, ragged, token_mean)
WHOLE_TOKENS = Task(language, tokens, token_mean)
CLIPPED = Task(linear, regression, F.mse_loss, prepare=clipped)
SUMMED = Task(linear, regression, squares, lambda parameters: torch.optim.SGD(parameters, lr=0.02), lr=0.02)
FIXED = Task(linear, regression, tenths)
SAMPLE_TOKENS = Task(language, ragged, sample_token_mean)
