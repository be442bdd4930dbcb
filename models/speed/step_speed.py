"""Steps timed in pairs: one over four micro-batches against four steps of one, and one of 2 N against one of N."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.sampling.transformer import CharTransformer, Shape, encoded, mean_loss, text_of
from models.speed.throughput import SENTENCES, settled

OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-4),
}


@dataclass(frozen=True)
class Timing:
    """What is timed: a width of the transformer, an optimizer, samples of a micro-batch and how many of them."""

    width: int
    optimizer: str
    micro: int = 16
    n: int = 4
    pairs: int = 41
    warm: int = 3
    device: str = "cpu"


class Bench:
    """A transformer with its optimizer and one fixed set of micro-batches."""

    def __init__(self, timing: Timing) -> None:
        text, characters = encoded(text_of(SENTENCES))
        shape = Shape(characters, width=timing.width)
        torch.manual_seed(0)
        self.timing = timing
        self.model: nn.Module = CharTransformer(shape).to(timing.device)
        self.optimizer = OPTIMIZERS[timing.optimizer](self.model.parameters())
        starts = torch.randperm(len(text) - shape.block)[: timing.micro * timing.n]
        rows = text[starts[:, None] + torch.arange(shape.block + 1)].to(timing.device)
        self.parts = list(rows.view(timing.n, timing.micro, -1).unbind())
        self.steps = 0

    def loss(self, part: Tensor) -> Tensor:
        """Mean loss of one micro-batch."""
        return mean_loss(self.model(part[:, :-1]), part[:, 1:])

    def accumulated(self, n: int | None = None) -> None:
        """One optimizer step over all the micro-batches, or over the first `n`."""
        parts = self.parts[:n]
        self.optimizer.zero_grad()
        for part in parts:
            (self.loss(part) / len(parts)).backward()  # type: ignore[no-untyped-call]
        self.stepped()

    def separate(self) -> None:
        """One optimizer step a micro-batch."""
        for part in self.parts:
            self.optimizer.zero_grad()
            self.loss(part).backward()  # type: ignore[no-untyped-call]
            self.stepped()

    def stepped(self) -> None:
        """Step, and count it."""
        self.optimizer.step()
        self.steps += 1

    def seconds(self, run: Callable[[], None]) -> float:
        """How long `run` takes: of this process's time on a CPU, or until a CUDA device has finished."""
        clock = time.process_time if self.timing.device == "cpu" else time.perf_counter
        settled(self.timing.device)
        began = clock()
        run()
        settled(self.timing.device)
        return clock() - began


def pairs(timing: Timing, tick: Callable[[], None] = lambda: None) -> list[tuple[float, float]]:
    """Seconds of the accumulated window and of the separate steps, pair by pair; the order alternates."""
    bench, found = Bench(timing), []
    for turn in range(timing.warm + timing.pairs):
        if turn % 2:
            apart, one = bench.seconds(bench.separate), bench.seconds(bench.accumulated)
        else:
            one, apart = bench.seconds(bench.accumulated), bench.seconds(bench.separate)
        if turn >= timing.warm:
            found.append((one, apart))
        tick()
    return found


def doublings(timing: Timing) -> list[tuple[float, float]]:
    """Seconds of a step of n and of one of 2 n micro-batches, pair by pair; the order alternates."""
    bench, found = Bench(replace(timing, n=2 * timing.n)), []
    for turn in range(timing.warm + timing.pairs):
        sizes = (2 * timing.n, timing.n) if turn % 2 else (timing.n, 2 * timing.n)
        seconds = {n: bench.seconds(partial(bench.accumulated, n)) for n in sizes}
        if turn >= timing.warm:
            found.append((seconds[timing.n], seconds[2 * timing.n]))
    return found


def parameters(width: int) -> int:
    """How many weights a transformer of that width has."""
    return sum(p.numel() for p in Bench(Timing(width, "SGD")).model.parameters())
