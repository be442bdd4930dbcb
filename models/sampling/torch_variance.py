"""Effective batches drawn with replacement at fixed weights, on real PyTorch: the gradient that each accumulates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.registry import Mutant, registered_for
from models.sampling.variance import Duplicated, Estimate, Overlapping, TailWithoutReplacement


@dataclass
class DrawJob:
    """A model at fixed weights, a finite set of samples, the mean loss of some of them, sizes of the window."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    size: int
    n: int


def flat(model: nn.Module) -> Tensor:
    """The gradient as one vector of fp64 on the CPU; empty where there is none."""
    found = [p.grad.detach().double().flatten().cpu() for p in model.parameters() if p.grad is not None]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)


class DrawnEstimate:
    """The reference: the window's draws in one call, split in order; every share is 1/N."""

    rule: type[Estimate] = Estimate

    def run(self, job: DrawJob, generator: torch.Generator) -> Tensor:
        """Draw one effective batch, accumulate its gradient and give it; no step is made."""
        population = len(job.inputs)
        draws = torch.randint(population, (job.size * job.n,), generator=generator).tolist()
        job.model.zero_grad()
        for i in range(job.n):
            part = list(self.rule().part(draws, i, job.size, job.n, population))
            self.share(job.loss(job.model(job.inputs[part]), job.targets[part]), job.n).backward()  # type: ignore[no-untyped-call]
        return flat(job.model)

    def share(self, loss: Tensor, n: int) -> Tensor:
        """What backward starts from."""
        return loss / n


class NothingDrawn(DrawnEstimate):
    """The empty body."""

    def run(self, job: DrawJob, generator: torch.Generator) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)


class SameAgain(DrawnEstimate):
    """Every micro-batch takes the samples of the first one."""

    rule = Duplicated


class SharesOne(DrawnEstimate):
    """A micro-batch begins with the sample that the one before it ended with."""

    rule = Overlapping


class TailApart(DrawnEstimate):
    """The last micro-batch avoids what the window has drawn."""

    rule = TailWithoutReplacement


class Unscaled(DrawnEstimate):
    """No 1/N."""

    def share(self, loss: Tensor, n: int) -> Tensor:
        return loss


_ROWS = (
    ("same_samples_again", "trl#3675", SameAgain),
    ("overlapping_micro_batches", "d2l-zh#87", SharesOne),
    ("tail_without_replacement", "GradCache#18", TailApart),
    ("variance_unscaled", "transformers#34191", Unscaled),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-VAR-001", _ROWS)
TORCH_ONLY: Mapping[str, str] = {}


@dataclass(frozen=True)
class Moments:
    """Of a data set's gradients g_i: their mean, sigma^2 = mean |y_i|^2 with y_i = g_i - mean, mean |y_i|^4, tr C^2.

    C is the covariance, whose trace is sigma^2.
    """

    mean: Tensor
    second: float
    fourth: float
    squared: float

    def variance(self, batch: int) -> float:
        """E |G - mean|^2 of the mean of `batch` draws with replacement."""
        return self.second / batch

    def spread(self, batch: int) -> float:
        """Standard deviation of |G - mean|^2: E |sum y|^4 = B E|y|^4 + B (B - 1) (sigma^4 + 2 tr C^2)."""
        whole = batch * self.fourth + batch * (batch - 1) * (self.second**2 + 2 * self.squared)
        return float(max(0.0, whole / batch**4 - self.variance(batch) ** 2) ** 0.5)


def moments(job: DrawJob) -> Moments:
    """From the gradient of every sample by itself."""
    rows = []
    for i in range(len(job.inputs)):
        job.model.zero_grad()
        job.loss(job.model(job.inputs[i : i + 1]), job.targets[i : i + 1]).backward()  # type: ignore[no-untyped-call]
        rows.append(flat(job.model))
    own = torch.stack(rows)
    away = own - own.mean(0)
    squares = (away**2).sum(1)
    inner = away @ away.T / len(rows)
    return Moments(own.mean(0), float(squares.mean()), float((squares**2).mean()), float((inner**2).sum()))


@dataclass(frozen=True)
class Scatter:
    """What `count` estimates of a batch did: mean |G - mean|^2 beside sigma^2 / B, and how far their mean is off.

    `room`: Chebyshev's half width at the asked confidence. `bias` is |mean G - mean|^2; by Markov it is at most
    `bias_room` with that confidence.
    """

    batch: int
    count: int
    measured: float
    expected: float
    room: float
    bias: float
    bias_room: float


def scatter(
    subject: DrawnEstimate, job: DrawJob, known: Moments, count: int, seed: int, confidence: float
) -> Scatter | None:
    """Draw that many effective batches; None where the subject gives no gradient of the right length."""
    batch, total, squares = job.size * job.n, torch.zeros_like(known.mean), 0.0
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        gradient = subject.run(job, generator)
        if gradient.shape != known.mean.shape:
            return None
        away = gradient - known.mean
        total += away
        squares += float(away @ away)
    doubt = 1 - confidence
    expected, mean = known.variance(batch), total / count
    room = known.spread(batch) / (count * doubt) ** 0.5
    return Scatter(batch, count, squares / count, expected, room, float(mean @ mean), expected / (count * doubt))
