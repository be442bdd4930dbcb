"""Stopping in the middle of a window and going on: FALSIFY-GT-304 of the training contract.

One training runs through; another stops after every possible number of micro-batches, is saved, and goes on in objects
made anew with another seed. Weights, optimizer state, schedule, scale and random numbers must agree bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.harness import Case, Cell, Observed, Place, Refutation
from models.systems.torch_resume import ResumeJob
from symbolic.measured import Measured

WINDOWS, OVERFLOWS = 3, 0


def job_of(case: Case, seed: int, device: str) -> ResumeJob:
    """A training with dropout, AdamW, OneCycleLR and a GradScaler whose first step overflows."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.25), nn.Tanh(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    total = case.windows + 1
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.125, total_steps=total)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=3)
    count = 0

    def fetch(i: int) -> tuple[Tensor, Tensor]:
        nonlocal count
        count = i
        return torch.randn(2, 3, device=device), torch.randn(2, 1, device=device)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        value = nn.functional.mse_loss(output, targets)
        return value * math.inf if count == OVERFLOWS else value

    return ResumeJob(model, optimizer, scheduler, scaler, loss, fetch, case.n)


def end_of(job: ResumeJob) -> dict[str, Any]:
    """What a training ends with."""
    found: dict[str, Any] = {f"weight {k}": v for k, v in job.model.state_dict().items()}
    for i, p in enumerate(job.model.parameters()):
        found[f"gradient {i}"] = torch.zeros(0) if p.grad is None else p.grad
        found |= {f"{k} of {i}": torch.as_tensor(v) for k, v in job.optimizer.state.get(p, {}).items()}
    own = {"micro-batches": job.done, "schedule": job.scheduler.last_epoch, "scale": job.scaler.get_scale()}
    found |= {name: torch.tensor(value) for name, value in own.items()}
    return found | {"random numbers": torch.get_rng_state()}


def apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """The first thing in which two ends differ, or nothing."""
    return next((k for k in {**a, **b} if k not in a or k not in b or not torch.equal(a[k], b[k])), "")


class ResumedIsTheSame(Measured):
    """FALSIFY-GT-304: a training that was stopped anywhere ends as one that was not."""

    clause = "GA-RESUME-001"
    reached = ("stopped inside a window", "stopped between windows", "a scale that changed", "a schedule that moved")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        return [Case(cell.net, cell.n, windows=WINDOWS, swap=stop) for stop in range(1, WINDOWS * cell.n)]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        count, stop, loop = case.windows * case.n, case.swap or 1, subject()
        whole = job_of(case, 1, place.device)
        loop.train(whole, count)
        want = end_of(whole)
        if whole.done != count:
            raise Refutation(self.clause, f"{whole.done} of {count} micro-batches were trained")
        first = job_of(case, 1, place.device)
        loop.train(first, stop)
        saved = loop.save(first)
        second = job_of(case, 2, place.device)
        loop.load(second, saved)
        loop.train(second, count)
        if difference := apart(want, end_of(second)):
            where = f"stopped after {stop} micro-batches, {stop % case.n} of {case.n} in the open window"
            raise Refutation(self.clause, f"{where}: {difference} differs at the end")
        reached = {"stopped inside a window" if stop % case.n else "stopped between windows"}
        reached |= {"a scale that changed"} if float(want["scale"]) != 1024.0 else set()
        return Observed(reached | ({"a schedule that moved"} if int(want["schedule"]) > 1 else set()))


resumed_is_the_same = ResumedIsTheSame()
