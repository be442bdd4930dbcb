"""PyTorch's cross-entropy and wrong ones, as subjects of GA-CE-001: the gradient of the mean loss at the logits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from models.registry import Mutant, registered
from models.tokens.cross_entropy import IGNORED


class TorchCrossEntropy:
    """The reference: `torch.nn.functional.cross_entropy` with its mean and `ignore_index`."""

    def backward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Gradient at logits (rows, classes), in their dtype, for targets (rows,) of which IGNORED are none."""
        leaf = logits.detach().requires_grad_()
        self.loss(leaf, targets).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return leaf.grad

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the valid targets; 0 / 0 where there is none."""
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED)


class EmptyCrossEntropy(TorchCrossEntropy):
    """The empty body: no gradient at all."""

    def backward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(logits)


class TorchDividesByRows(TorchCrossEntropy):
    """N counts the ignored rows too."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum over the valid targets, divided by all rows."""
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") / targets.numel()


class TorchNotDivided(TorchCrossEntropy):
    """The gradient of the sum."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The sum."""
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


class TorchIgnoredLeaks(TorchCrossEntropy):
    """The label's part of an ignored row is masked, log sum exp is not."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """By hand, with half a mask."""
        valid = targets != IGNORED
        picked = logits.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
        return (logits.logsumexp(1) - picked.where(valid, 0)).sum() / valid.sum().clamp(min=1)


class TorchIgnoredIsFirstClass(TorchCrossEntropy):
    """An ignored label is clamped to class 0 and counted."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """After the clamp."""
        return functional.cross_entropy(logits, targets.clamp(min=0))


_ROWS = [
    ("divides_by_rows", "GA-CE-001", "TransformerEngine#2476", TorchDividesByRows),
    ("not_divided", "GA-CE-001", "torchtune#1917", TorchNotDivided),
    ("ignored_leaks", "GA-CE-001", "Paddle#28622", TorchIgnoredLeaks),
    ("ignored_is_first_class", "GA-CE-001", "pytorch#63004", TorchIgnoredIsFirstClass),
]

CE_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
