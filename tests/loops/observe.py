"""What a loop does when it runs alone: gradients and learning rates at every step, and the losses that it reports."""

from __future__ import annotations

import math
import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


@dataclass(frozen=True, slots=True)
class Run:
    """The numbers that a loop is called with. `tail` further micro-batches form a short last window."""

    accum_steps: int = 4
    micro_batch_size: int = 2
    windows: int = 2
    tail: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    seed: int = 0
    tail_samples: int = 0

    @property
    def samples(self) -> int:
        """Samples in all."""
        whole = self.accum_steps * self.micro_batch_size * self.windows
        return whole + (self.tail_samples or self.tail * self.micro_batch_size)

    @property
    def micro_batches(self) -> int:
        """Micro-batches in all."""
        return math.ceil(self.samples / self.micro_batch_size)

    def full_batch(self) -> Run:
        """The same samples, one micro-batch a window."""
        size = self.accum_steps * self.micro_batch_size
        tail = self.tail_samples or self.tail * self.micro_batch_size
        return replace(self, accum_steps=1, micro_batch_size=size, tail=0, tail_samples=tail)


@dataclass(slots=True)
class Seen:
    """One list entry a step; `error` is the type of the exception that the loop ended with."""

    gradients: list[list[float]] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    error: str = ""


def _numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    return [float(x) for t in tensors for x in t.detach().double().flatten().tolist()]


def _tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@contextmanager
def _watched(seen: Seen) -> Iterator[None]:
    """Note every step of every optimizer; for a step with a closure the gradient is the one after it."""

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen.rates.append(float(optimizer.param_groups[0]["lr"]))
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            seen.gradients.append(_gradients(optimizer))

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if len(seen.gradients) < len(seen.rates):
            seen.gradients.append(_gradients(optimizer))
        seen.weights.append(_numbers(_tensors(optimizer)))

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gradients(optimizer: torch.optim.Optimizer) -> list[float]:
    held = [torch.zeros_like(p) if p.grad is None else p.grad for p in _tensors(optimizer)]
    return _numbers(held)


def observe(text: str, name: str, run: Run) -> Seen:
    """Run the loop whose source is `text`. A framework's warnings are not this repository's."""
    seen = Seen()
    space: dict[str, Any] = {"__name__": Path(name).stem}
    with warnings.catch_warnings(), _watched(seen):
        warnings.simplefilter("ignore")
        try:
            exec(compile(text, name, "exec"), space)
            seen.losses = [float(loss) for loss in space["train"](run)]
        except Exception as error:
            seen.error = type(error).__name__
            seen.losses = []
    return seen


Job = tuple[str, str, Run]


def _rank(rank: int, world: int, ports: Sequence[int], jobs: Sequence[Job], out: Queue[Any]) -> None:
    found = []
    for port, (text, name, run) in zip(ports, jobs, strict=True):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        found.append(observe(text, name, run))
    out.put((rank, found))


def observe_ranks(jobs: Sequence[Job], world: int = 2) -> list[list[Seen]]:
    """Run every job in `world` processes, which are started once; the observations by job and rank."""
    context = mp.get_context("spawn")
    out: Any = context.Queue()
    arguments = (world, [_free_port() for _ in jobs], list(jobs), out)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    found = dict(out.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return [[found[rank][k] for rank in range(world)] for k in range(len(jobs))]


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def distance(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Largest difference over the largest element of `b`; infinite where the shapes differ."""
    if [len(row) for row in a] != [len(row) for row in b]:
        return math.inf
    worst = 0.0
    for left, right in zip(a, b, strict=True):
        scale = max((abs(x) for x in right), default=0.0) or 1.0
        differences = [abs(x - y) / scale for x, y in zip(left, right, strict=True)]
        worst = max([worst, *(math.inf if math.isnan(d) else d for d in differences)])
    return worst
