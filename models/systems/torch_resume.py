"""A training that stops in the middle of a window and goes on from a file: what must be saved.

A loop is a class with `train(job, stop)`, which runs micro-batches until `stop`, `save(job)` and `load(job, bytes)`.
What the file must hold: weights, gradients of the open window, its counter, optimizer, scheduler, scaler and RNG.

Sources: transformers#22143 (gradients before a checkpoint are lost), #5605 (the counter), mmcv#2093.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.registry import Mutant, registered_for


@dataclass
class ResumeJob:
    """One training. `fetch(i)` makes micro-batch i from the global RNG; `done` counts the micro-batches that are in."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    loss: Callable[[Tensor, Tensor], Tensor]
    fetch: Callable[[int], tuple[Tensor, Tensor]]
    n: int
    done: int = 0


class Resumes:
    """The reference."""

    def train(self, job: ResumeJob, stop: int) -> None:
        """Go on until `stop` micro-batches are in."""
        while job.done < stop:
            if job.done % job.n == 0:
                job.optimizer.zero_grad()
            inputs, targets = job.fetch(job.done)
            share = job.loss(job.model(inputs), targets) / job.n
            job.scaler.scale(share).backward()  # type: ignore[no-untyped-call]
            job.done += 1
            if job.done % job.n == 0:
                scale = job.scaler.get_scale()
                job.scaler.step(job.optimizer)
                job.scaler.update()
                if job.scaler.get_scale() >= scale:
                    job.scheduler.step()

    def save(self, job: ResumeJob) -> bytes:
        """Everything that the rest of the training depends on."""
        held = {
            "model": job.model.state_dict(),
            "gradients": {name: p.grad for name, p in job.model.named_parameters()},
            "done": job.done,
            "optimizer": job.optimizer.state_dict(),
            "scheduler": job.scheduler.state_dict(),
            "scaler": job.scaler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        out = io.BytesIO()
        torch.save(held, out)
        return out.getvalue()

    def load(self, job: ResumeJob, saved: bytes) -> None:
        """Put all of it back."""
        held = torch.load(io.BytesIO(saved), weights_only=True)
        job.model.load_state_dict(held["model"])
        self.restore(job, held)

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        """Everything but the weights."""
        for name, p in job.model.named_parameters():
            p.grad = held["gradients"][name]
        job.done = held["done"]
        job.optimizer.load_state_dict(held["optimizer"])
        job.scheduler.load_state_dict(held["scheduler"])
        job.scaler.load_state_dict(held["scaler"])
        torch.set_rng_state(held["rng"])


class NeverTrains(Resumes):
    """The empty body."""

    def train(self, job: ResumeJob, stop: int) -> None:
        """Return at once."""

    def save(self, job: ResumeJob) -> bytes:
        return b""

    def load(self, job: ResumeJob, saved: bytes) -> None:
        """Nothing was saved."""


class LosesGradients(Resumes):
    """Saves no gradients: the partial window is lost, and its step applies the rest alone."""

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        super().restore(job, held)
        job.optimizer.zero_grad()


class LosesCounter(Resumes):
    """Counts whole windows: the partial one is begun again."""

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        super().restore(job, held)
        job.done -= job.done % job.n


class LosesRng(Resumes):
    """Leaves the RNG as the new process made it."""

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        super().restore(job, {**held, "rng": torch.get_rng_state()})


class LosesScaler(Resumes):
    """Leaves the scaler at its initial scale, which is not that of the gradients in the buffer."""

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        super().restore(job, {**held, "scaler": job.scaler.state_dict()})


class LosesOptimizer(Resumes):
    """Leaves the optimizer without moments."""

    def restore(self, job: ResumeJob, held: Mapping[str, Any]) -> None:
        super().restore(job, {**held, "optimizer": job.optimizer.state_dict()})


_ROWS = (
    ("resume_loses_gradients", "transformers#22143", LosesGradients),
    ("resume_loses_counter", "transformers#5605", LosesCounter),
    ("resume_loses_rng", "transformers#8624", LosesRng),
    ("resume_loses_scaler", "mmcv#2093", LosesScaler),
    ("resume_loses_optimizer", "mmcv#2093", LosesOptimizer),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-RESUME-001", _ROWS)
