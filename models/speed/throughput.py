"""Training loops whose speed is measured: windows of micro-batches on one process, or on ranks that share gradients.

The effective batch is drawn first, by a generator of its own, and split in order; the loss is divided by N; on several
ranks `no_sync` covers every micro-batch but a window's last. Windows of different lengths are timed in turn, in an
order that rotates, so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from models.sampling.transformer import CharTransformer, Shape, encoded, mean_loss, text_of

SENTENCES, POPULATION = 400, 512
FEATURES, CLASSES = 32, 10


@dataclass(frozen=True)
class Request:
    """What is timed: a net, samples of a micro-batch, lengths of windows, timed windows of each, and before them."""

    net: str
    micro: int
    lengths: tuple[int, ...]
    steps: int
    warm: int = 2
    device: str = "cpu"
    seed: int = 0
    learning_rate: float = 0.05


@dataclass
class Series:
    """What one length of window gave: seconds, of them on the processor, mean losses, all-reduces of timed windows."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    collectives: int = 0


@dataclass(frozen=True)
class Task:
    """A net with a finite set of samples, (samples, ...) each, and the mean loss of some of them."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


def _char(seed: int) -> Task:
    text, characters = encoded(text_of(SENTENCES))
    shape = Shape(characters)
    torch.manual_seed(seed)
    starts = torch.randperm(len(text) - shape.block)[:POPULATION]
    rows = text[starts[:, None] + torch.arange(shape.block + 1)]
    return Task(CharTransformer(shape), rows[:, :-1], rows[:, 1:], mean_loss)


def _mlp(seed: int) -> Task:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.Tanh(), nn.Linear(128, CLASSES))
    inputs = torch.randn(POPULATION, FEATURES)
    labels = (inputs @ torch.randn(FEATURES, CLASSES) + torch.randn(POPULATION, CLASSES)).argmax(1)
    return Task(model, inputs, labels, F.cross_entropy)


TASKS: Mapping[str, Callable[[int], Task]] = {"char": _char, "mlp": _mlp}


def task(net: str, seed: int, device: str = "cpu") -> Task:
    """A task by name, the same on every machine but for rounding, on a device. Raises KeyError for another name."""
    made = TASKS[net](seed)
    return Task(made.model.to(device), made.inputs.to(device), made.targets.to(device), made.loss)


def parameters(net: str) -> int:
    """How many weights a net has."""
    return sum(p.numel() for p in task(net, 0).model.parameters())


class Trainer:
    """One length of window, with a model, an optimizer and data of its own; on ranks where there is a process group."""

    def __init__(self, request: Request, n: int) -> None:
        self.request, self.n = request, n
        self.task = task(request.net, request.seed, request.device)
        self.ranks = dist.get_world_size() if dist.is_initialized() else 0
        self.model = DistributedDataParallel(self.task.model) if self.ranks else self.task.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=request.learning_rate)
        rank = dist.get_rank() if self.ranks else 0
        self.data = torch.Generator().manual_seed(request.seed + 1 + rank)
        self.collectives = 0
        if self.ranks:
            self._count()

    def _count(self) -> None:
        """Count what DDP's reducer sends, as a communication hook that sends it as DDP would."""
        from torch._C._distributed_c10d import GradBucket
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        group = dist.group.WORLD
        assert group is not None

        def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            self.collectives += 1
            return allreduce_hook(group, bucket)

        hook.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[Tensor]})
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(None, hook)

    def window(self) -> Tensor:
        """Draw an effective batch with replacement, accumulate it and step; the mean loss, a scalar on the device."""
        n, micro = self.n, self.request.micro
        drawn = torch.randint(len(self.task.inputs), (n * micro,), generator=self.data).to(self.request.device)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.request.device)
        ddp = self.model if isinstance(self.model, DistributedDataParallel) else None
        for i, part in enumerate(drawn.view(n, micro).unbind()):
            with ddp.no_sync() if ddp is not None and i + 1 < n else nullcontext():
                loss = self.task.loss(self.model(self.task.inputs[part]), self.task.targets[part]) / n
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.optimizer.step()
        return total


def measure(request: Request, tick: Callable[[], None] = lambda: None) -> list[Series]:
    """Time the windows of every length; `tick` is called after each. On several ranks all begin a window together."""
    trainers = [Trainer(request, n) for n in request.lengths]
    found = [Series() for _ in trainers]
    for turn in range(request.warm + request.steps):
        for i in rotated(range(len(trainers)), turn):
            before = trainers[i].collectives
            seconds, processor, loss = _timed(trainers[i])
            if turn >= request.warm:
                found[i].seconds.append(seconds)
                found[i].processor.append(processor)
                found[i].losses.append(loss)
                found[i].collectives += trainers[i].collectives - before
            tick()
    return found


def rotated(items: Sequence[int], turn: int) -> list[int]:
    """The items, beginning with another one each turn."""
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _timed(trainer: Trainer) -> tuple[float, float, float]:
    """Seconds, seconds of this process, mean loss of a window; device and ranks have finished before."""
    device = trainer.request.device
    if trainer.ranks:
        dist.barrier()
    settled(device)
    began, own = time.perf_counter(), time.process_time()
    loss = trainer.window()
    settled(device)
    return time.perf_counter() - began, time.process_time() - own, float(loss)


def settled(device: str) -> None:
    """Wait until a CUDA device has nothing left to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def one_rank(request: Request) -> list[Series]:
    """What `measure` finds on this rank of a process group."""
    return measure(request)
