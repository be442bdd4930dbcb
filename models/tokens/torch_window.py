"""A window of token counts on real PyTorch, and wrong normalisers: the twins of `models.tokens.window`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.registry import Mutant, registered
from models.tokens.cross_entropy import IGNORED

Window = Sequence[tuple[Tensor, Tensor]]


def valid(targets: Tensor) -> int:
    """How many labels are not ignored."""
    return int((targets != IGNORED).sum())


class TorchTokens:
    """The reference: summed losses over the window's valid tokens; a window without one is not stepped."""

    def train(self, model: nn.Module, window: Window, optimizer: torch.optim.Optimizer) -> None:
        """One window of (token ids, targets) a micro-batch: accumulate, then step."""
        if self.skips(window):
            return
        optimizer.zero_grad()
        for inputs, targets in window:
            self.loss(model(inputs), targets, window).backward()  # type: ignore[no-untyped-call]
        self.finish(model, window)
        optimizer.step()

    def skips(self, window: Window) -> bool:
        """Whether there is no valid token."""
        return sum(valid(t) for _, t in window) == 0

    def normaliser(self, window: Window) -> int:
        """The total of valid tokens in the window."""
        return sum(valid(t) for _, t in window)

    def loss(self, logits: Tensor, targets: Tensor, window: Window) -> Tensor:
        """The micro-batch's share of the window's loss."""
        return summed(logits, targets) / self.normaliser(window)

    def finish(self, model: nn.Module, window: Window) -> None:
        """Nothing is left to be done at the boundary."""


class EmptyTokens(TorchTokens):
    """The empty body: never steps."""

    def train(self, model: nn.Module, window: Window, optimizer: torch.optim.Optimizer) -> None:
        """Return at once."""


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed loss of the valid tokens."""
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def scale(model: nn.Module, factor: float) -> None:
    """Multiply every gradient."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(factor)


class TorchFixedConstant(TorchTokens):
    """(1/K) times each micro-batch's mean; one without a target adds nothing."""

    def loss(self, logits: Tensor, targets: Tensor, window: Window) -> Tensor:
        """The mean over K."""
        return summed(logits, targets) / max(valid(targets), 1) / len(window)


class TorchMeanOfMeans(TorchFixedConstant):
    """The mean over the micro-batches that have a target at all."""

    def finish(self, model: nn.Module, window: Window) -> None:
        """Over those that counted."""
        scale(model, len(window) / sum(valid(t) > 0 for _, t in window))


class TorchFirstCount(TorchTokens):
    """The valid targets of the first micro-batch stand for all: K * N_1."""

    def skips(self, window: Window) -> bool:
        """Guards what it divides by."""
        return valid(window[0][1]) == 0

    def normaliser(self, window: Window) -> int:
        """Counted once."""
        return len(window) * valid(window[0][1])


class TorchCountsIgnored(TorchTokens):
    """Every label counts: targets.numel()."""

    def normaliser(self, window: Window) -> int:
        """Valid and ignored."""
        return sum(t.numel() for _, t in window)


class TorchNoGuard(TorchTokens):
    """Divides by the total also where it is zero."""

    def skips(self, window: Window) -> bool:
        """Never."""
        return False

    def loss(self, logits: Tensor, targets: Tensor, window: Window) -> Tensor:
        """The division is PyTorch's: 0 / 0 is not a number and raises nothing."""
        return summed(logits, targets) / torch.tensor(float(self.normaliser(window)))


class TorchStepsOnNothing(TorchTokens):
    """The count is clamped to one and the window is stepped: momentum and weight decay move the weights."""

    def skips(self, window: Window) -> bool:
        """Never."""
        return False

    def normaliser(self, window: Window) -> int:
        """At least one."""
        return max(super().normaliser(window), 1)


class TorchMissingScale(TorchTokens):
    """The means are summed: the 1/K is missing."""

    def loss(self, logits: Tensor, targets: Tensor, window: Window) -> Tensor:
        """The mean."""
        return summed(logits, targets) / max(valid(targets), 1)


class TorchDividedTwice(TorchTokens):
    """The loss is divided by the window's tokens, and the framework divides by K again."""

    def finish(self, model: nn.Module, window: Window) -> None:
        """Once more."""
        scale(model, 1 / len(window))


class TorchSummedTokens(TorchTokens):
    """The summed loss is never divided."""

    def normaliser(self, window: Window) -> int:
        """Nothing to divide by."""
        return 1


_ROWS = [
    ("mean_of_means", "GA-TOK-001", "transformers#34191", TorchMeanOfMeans),
    ("fixed_constant", "GA-TOK-001", "torchtune#1875", TorchFixedConstant),
    ("first_count", "GA-TOK-001", "LlamaFactory#6639", TorchFirstCount),
    ("counts_ignored", "GA-TOK-001", "composer#3273", TorchCountsIgnored),
    ("no_guard", "GA-TOK-001", "pytorch#116349", TorchNoGuard),
    ("steps_on_nothing", "GA-TOK-001", "mlx-lm#1413", TorchStepsOnNothing),
    ("missing_scale", "GA-TOK-002", "nanoGPT#206", TorchMissingScale),
    ("divided_twice", "GA-TOK-002", "Megatron-LM#4590", TorchDividedTwice),
    ("summed_tokens", "GA-TOK-002", "torchtune#1917", TorchSummedTokens),
]

TOKEN_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
