"""Deterministic accumulation on a real model: the loop of `models.sampling.model` in PyTorch.

A generator of its own draws the data: the whole effective batch in one call, then split in order. The model's dropout
uses the global generator. The loss is divided by N before backward; validation is at the effective batch size.

A draw is without replacement (randperm), so that a micro-batch drawn by itself is another one. With torch.randint on a
CPU, N calls for m numbers are one call for N m, and that bug cannot be seen; on CUDA it can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from models.sampling.transformer import CharTransformer, Shape, mean_loss

VALIDATION_SEED = 1


@dataclass(frozen=True)
class Setup:
    """A run: samples a micro-batch, micro-batches a window, windows; seeds; samples of the validation data."""

    size: int
    n: int
    steps: int
    shape: Shape
    validation: int = 64
    seed: int = 1337
    data_seed: int = 42
    learning_rate: float = 1e-2
    device: str = "cpu"

    @property
    def effective(self) -> int:
        """Samples of an effective batch."""
        return self.size * self.n


@dataclass
class Job:
    """What a run is given. Whoever observes it puts its own `build`, `criterion` and `stepped` here.

    `text` and `held_out`: (length,) characters, on the CPU. `arrival`: in which order the loader's workers answer.
    """

    setup: Setup
    text: Tensor
    held_out: Tensor
    build: Callable[[Shape], nn.Module] = CharTransformer
    criterion: Callable[[Tensor, Tensor], Tensor] = mean_loss
    stepped: Callable[[], None] = lambda: None
    arrival: int = 0


@dataclass
class Report:
    """What a run says of itself: logged losses, validation loss (None for the empty body), weights."""

    logged: list[float] = field(default_factory=list)
    validation: float | None = None
    weights: list[Tensor] = field(default_factory=list)


@contextmanager
def deterministic(device: str) -> Iterator[None]:
    """Deterministic kernels alone, as long as it lasts. On CUDA the workspace of cuBLAS is fixed for the process."""
    if device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    held = (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(held[0])
        cudnn.deterministic, cudnn.benchmark = held[1:]


class CharTraining:
    """The reference: a dedicated generator, the effective batch first, validation at the effective batch size."""

    def run(self, job: Job) -> Report:
        """Train and validate. Raises what torch raises for a device that is not there."""
        with deterministic(job.setup.device):
            return self.train(job)

    def train(self, job: Job) -> Report:
        """Seed, build, train for the job's windows, validate."""
        setup, report = job.setup, Report()
        torch.manual_seed(setup.seed)
        data = self.seeded(setup.data_seed)
        held_out = self.seeded(setup.data_seed + VALIDATION_SEED)
        model = job.build(setup.shape).to(setup.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=setup.learning_rate)
        model.train()
        for _ in range(setup.steps):
            optimizer.zero_grad()
            report.logged.append(float(self.window(job, model, data)))
            optimizer.step()
            job.stepped()
        report.validation = self.validate(job, model, held_out)
        report.weights = [p.detach().cpu() for p in model.parameters()]
        return report

    def seeded(self, seed: int) -> torch.Generator:
        """A generator that nothing else uses."""
        return torch.Generator().manual_seed(seed)

    def window(self, job: Job, model: nn.Module, data: torch.Generator) -> Tensor:
        """Accumulate one effective batch; the logged loss, a scalar on the device."""
        setup = job.setup
        starts = self.effective(job, data)
        logged = torch.zeros((), device=setup.device)
        for i in range(setup.n):
            loss = self.loss(job, model, job.text, self.micro_batch(job, starts, i, data))
            (loss / setup.n).backward()  # type: ignore[no-untyped-call]
            logged = self.log(logged, loss.detach(), setup.n)
        return logged

    def draw(self, text: Tensor, block: int, count: int, generator: torch.Generator | None) -> Tensor:
        """(count,) places where a block may start, no two alike. None: the global generator."""
        return torch.randperm(len(text) - block, generator=generator)[:count]

    def effective(self, job: Job, data: torch.Generator) -> Tensor:
        """The starts of the next effective batch, in one call."""
        return self.draw(job.text, job.setup.shape.block, job.setup.effective, data)

    def micro_batch(self, job: Job, starts: Tensor, i: int, data: torch.Generator) -> Tensor:
        """Part number `i` of the effective batch, in its order."""
        return starts[i * job.setup.size : (i + 1) * job.setup.size]

    def loss(self, job: Job, model: nn.Module, text: Tensor, starts: Tensor) -> Tensor:
        """Mean loss of the blocks that begin there."""
        block = job.setup.shape.block
        places = starts[:, None] + torch.arange(block + 1)
        characters = text[places].to(job.setup.device)
        return job.criterion(model(characters[:, :-1]), characters[:, 1:])

    def log(self, logged: Tensor, loss: Tensor, n: int) -> Tensor:
        """What is logged after one more micro-batch: every loss by its share."""
        return logged + loss / n

    def batches(self, job: Job, generator: torch.Generator) -> list[Tensor]:
        """The starts of the validation batches: of the effective size, the last one perhaps shorter."""
        starts = self.draw(job.held_out, job.setup.shape.block, job.setup.validation, generator)
        return list(torch.split(starts, job.setup.effective))

    def validate(self, job: Job, model: nn.Module, generator: torch.Generator) -> float:
        """Mean loss over the validation samples, in nats; NaN when there is no batch."""
        model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for starts in self.batches(job, generator):
                total += float(self.loss(job, model, job.held_out, starts)) * len(starts)
                count += len(starts)
        model.train()
        return total / count if count else float("nan")


class EmptyTraining(CharTraining):
    """The empty body: it has the reference's interface and does nothing. Every property must refute it."""

    def run(self, job: Job) -> Report:
        """Return at once."""
        return Report()
