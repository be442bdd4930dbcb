"""Windows whose memory is measured: a loop that keeps one micro-batch alive at a time, and loops that keep more.

Sources: PyTorch's FAQ ("don't accumulate history across your training loop"); the thread of each row.
A loop is handed `fetch(i)`, which makes micro-batch i, so that what is alive is what the loop keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.registry import Mutant, registered_for

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class MemoryJob:
    """One window of n micro-batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    fetch: Callable[[int], tuple[Tensor, Tensor]]
    n: int


class OneAtATime:
    """The reference: each micro-batch's graph is freed by its own backward pass, and its loss is a float."""

    def run(self, job: MemoryJob) -> float:
        """Train over one window; its mean loss."""
        job.optimizer.zero_grad()
        total = 0.0
        for i in range(job.n):
            inputs, targets = job.fetch(i)
            loss = job.loss(job.model(inputs), targets) / job.n
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        job.optimizer.step()
        return total


class EmptyWindow(OneAtATime):
    """The empty body: no micro-batch is fetched."""

    def run(self, job: MemoryJob) -> float:
        return 0.0


class BackwardAtTheEnd(OneAtATime):
    """Adds up the losses and goes backward once: all graphs are alive."""

    def run(self, job: MemoryJob) -> float:
        job.optimizer.zero_grad()
        total = torch.zeros((), device=next(job.model.parameters()).device)
        for i in range(job.n):
            inputs, targets = job.fetch(i)
            total = total + job.loss(job.model(inputs), targets) / job.n
        total.backward()  # type: ignore[no-untyped-call]
        job.optimizer.step()
        return float(total.detach())


class KeepsGraphs(OneAtATime):
    """Keeps each loss with its graph, for a report, and the graph with its activations."""

    def run(self, job: MemoryJob) -> float:
        job.optimizer.zero_grad()
        losses = []
        for i in range(job.n):
            inputs, targets = job.fetch(i)
            losses.append(job.loss(job.model(inputs), targets) / job.n)
            losses[-1].backward(retain_graph=True)  # type: ignore[no-untyped-call]
        job.optimizer.step()
        return float(torch.stack(losses).sum().detach())


class KeepsOutputs(OneAtATime):
    """Keeps each output, for a metric over the window."""

    def run(self, job: MemoryJob) -> float:
        job.optimizer.zero_grad()
        outputs, total = [], 0.0
        for i in range(job.n):
            inputs, targets = job.fetch(i)
            outputs.append(job.model(inputs))
            loss = job.loss(outputs[-1], targets) / job.n
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        job.optimizer.step()
        return total


class FetchesTheWindow(OneAtATime):
    """Fetches the micro-batches of the window first."""

    def run(self, job: MemoryJob) -> float:
        window = [job.fetch(i) for i in range(job.n)]
        ahead = MemoryJob(job.model, job.optimizer, job.loss, window.__getitem__, job.n)
        return super().run(ahead)


class KeepsTheSumTwice(OneAtATime):
    """Keeps the sum of the micro-batches before in a buffer of its own, beside `.grad`, from the second one on."""

    def run(self, job: MemoryJob) -> float:
        """No more than two windows of any length need, and two gradients more than a window of one."""
        job.optimizer.zero_grad()
        total = 0.0
        before: list[Tensor] = []
        for i in range(job.n):
            if i:
                before.clear()
                before = [torch.clone(p.grad) for p in job.model.parameters() if p.grad is not None]
            inputs, targets = job.fetch(i)
            loss = job.loss(job.model(inputs), targets) / job.n
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        job.optimizer.step()
        return total


_ROWS = (
    ("backward_at_the_end", "labelmodels#4", BackwardAtTheEnd),
    ("keeps_graphs", "brax#152", KeepsGraphs),
    ("keeps_outputs", "pytorch-lightning#15514", KeepsOutputs),
    ("fetches_the_window", "open_clip#267", FetchesTheWindow),
    ("keeps_the_sum_twice", "EasyLM#36", KeepsTheSumTwice),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-MEM-001", _ROWS)
