"""Training with k times the batch: the linear scaling rule, with and without warm-up.

k small steps at rate r, w - r (1/n) sum_j sum_{B_j} grad l(x, w_j), and one large step at rate k r from w agree where
the gradients at w_j are close to those at w; they are not while weights change fast, at the start, which is what the
gradual warm-up from r to k r is for. Source: Goyal et al. 2017 (arXiv:1706.02677), equations (3) and (4), section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from models.speed.throughput import POPULATION, task


@dataclass(frozen=True)
class Plan:
    """One training: `n` micro-batches a step, a rate that rises from `first` to `rate` over `warm` steps."""

    net: str
    micro: int
    n: int
    samples: int
    rate: float
    first: float
    warm: int = 0
    momentum: float = 0.9
    seed: int = 0

    @property
    def steps(self) -> int:
        """Optimizer steps. Raises ValueError where a step is left unfinished."""
        whole, rest = divmod(self.samples, self.micro * self.n)
        if rest:
            raise ValueError(f"{self.samples} samples are no whole number of steps")
        return whole

    def rate_at(self, step: int) -> float:
        """The rate of step number `step`, counted from 0: linear during the warm-up, constant after it."""
        if step >= self.warm:
            return self.rate
        return self.first + (self.rate - self.first) * step / self.warm


@dataclass
class Trained:
    """Mean loss of each step's batch, up to the first that is no number, and the loss over every sample at the end."""

    losses: list[float] = field(default_factory=list)
    final: float | None = None


def train(plan: Plan) -> Trained:
    """SGD with momentum over a stream of samples that depends on the seed alone: every plan sees the same ones."""
    made, found = task(plan.net, plan.seed), Trained()
    optimizer = torch.optim.SGD(made.model.parameters(), lr=plan.rate, momentum=plan.momentum)
    stream = torch.randint(POPULATION, (plan.samples,), generator=torch.Generator().manual_seed(plan.seed))
    parts = stream.view(plan.steps, plan.n, plan.micro)
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step)
        optimizer.zero_grad()
        total = 0.0
        for part in parts[step].unbind():
            loss = made.loss(made.model(made.inputs[part]), made.targets[part]) / plan.n
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        if not torch.isfinite(torch.tensor(total)):
            return found
        found.losses.append(total)
        optimizer.step()
    with torch.no_grad():
        final = float(made.loss(made.model(made.inputs), made.targets))
    found.final = final if torch.isfinite(torch.tensor(final)) else None
    return found
