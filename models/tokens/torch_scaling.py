"""Training with and without the 1/K on real PyTorch: SGD with momentum and AdamW, and what breaks the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.registry import Mutant, registered

MOMENTUM, DECAY = 0.9, 0.1
TINY_EPS, LARGE_EPS, CLIP = 1e-15, 1e-2, 1.0
Stream = Sequence[tuple[Tensor, Tensor]]


class TorchScaling:
    """The reference: no clip, no coupled decay, and an eps far below every second moment."""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """`SGD` or `AdamW` at a rate."""
        if name == "SGD":
            return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM)
        return torch.optim.AdamW(parameters, lr=rate, eps=TINY_EPS, weight_decay=DECAY)

    def before_step(self, parameters: list[nn.Parameter]) -> None:
        """Nothing stands between the gradient and the step."""

    def rate_at(self, rate: float, done: float) -> float:
        """The rate stays. `done`: the part of the windows before this one."""
        return rate

    def divides(self, scaled: bool, done: float) -> bool:
        """Whether the losses of this window are divided by k."""
        return scaled

    def train(self, name: str, model: nn.Module, stream: Stream, k: int, rate: float, scaled: bool) -> list[float]:
        """Windows of k micro-batches of the stream, in order; the mean loss of each window before its step."""
        parameters, losses = list(model.parameters()), []
        optimizer = self.optimizer(name, parameters, rate)
        for start in range(0, len(stream) - k + 1, k):
            done = start / len(stream)
            for group in optimizer.param_groups:
                group["lr"] = self.rate_at(rate, done)
            optimizer.zero_grad()
            stated = 0.0
            for inputs, targets in stream[start : start + k]:
                loss = functional.cross_entropy(model(inputs), targets)
                (loss / k if self.divides(scaled, done) else loss).backward()  # type: ignore[no-untyped-call]
                stated += float(loss.detach()) / k
            self.before_step(parameters)
            optimizer.step()
            losses.append(stated)
        return losses


class Documented(TorchScaling):
    """The optimizers as they come: plain SGD, and AdamW with torch's default eps and decay."""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """`SGD` without momentum, or `AdamW` with its defaults."""
        made: type[torch.optim.Optimizer] = torch.optim.SGD if name == "SGD" else torch.optim.AdamW
        return made(parameters, lr=rate)  # type: ignore[call-arg]


class Rising(TorchScaling):
    """A rate that rises in a straight line to its full value at the end, as a long warm-up does."""

    def rate_at(self, rate: float, done: float) -> float:
        """The part of the rate that belongs to this part of the training; the first window has a hundredth."""
        return rate * max(done, 0.01)


class Mended(Rising):
    """The same, and from `since` on the losses are divided by k whatever was asked."""

    since = 0.75

    def divides(self, scaled: bool, done: float) -> bool:
        """With 1/k in the last part."""
        return scaled or done >= self.since


class EmptyScaling(TorchScaling):
    """The empty body: trains nothing."""

    def train(self, name: str, model: nn.Module, stream: Stream, k: int, rate: float, scaled: bool) -> list[float]:
        """Return at once."""
        return []


class TorchSgdDecay(TorchScaling):
    """SGD with coupled weight decay."""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """torch's own `weight_decay` of SGD."""
        if name == "SGD":
            return torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM, weight_decay=DECAY)
        return super().optimizer(name, parameters, rate)


class TorchCoupledDecay(TorchScaling):
    """Adam with L2 in place of AdamW."""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """torch's own `weight_decay` of Adam."""
        if name == "AdamW":
            return torch.optim.Adam(parameters, lr=rate, eps=TINY_EPS, weight_decay=DECAY)
        return super().optimizer(name, parameters, rate)


class TorchSgdClipped(TorchScaling):
    """The gradient of SGD is clipped before the step."""

    clips, named = "SGD", ""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """The reference's, whose name is kept."""
        self.named = name
        return super().optimizer(name, parameters, rate)

    def before_step(self, parameters: list[nn.Parameter]) -> None:
        """By its norm."""
        if self.named == self.clips:
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)


class TorchAdamClipped(TorchSgdClipped):
    """The gradient of AdamW is clipped before the step."""

    clips = "AdamW"


class TorchKeepsEps(TorchScaling):
    """An eps as large as the second moments' roots."""

    def optimizer(self, name: str, parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """AdamW with it."""
        if name == "AdamW":
            return torch.optim.AdamW(parameters, lr=rate, eps=LARGE_EPS, weight_decay=DECAY)
        return super().optimizer(name, parameters, rate)


_ROWS = [
    ("sgd_decay", "GA-LR-001", "keras#19990", TorchSgdDecay),
    ("sgd_clipped", "GA-LR-001", "nanoGPT#168", TorchSgdClipped),
    ("coupled_decay", "GA-LR-001", "pytorch#41679", TorchCoupledDecay),
    ("adam_clipped", "GA-LR-001", "nanoGPT#168", TorchAdamClipped),
    ("keeps_eps", "GA-LR-001", "nanochat#304", TorchKeepsEps),
]

SCALING_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
