"""`python -m tests.bench_shadow`: what watching and recording a step cost, against the bare step.

Pairs of steps run one after the other in one process, in processor time, and the ratio is the median over the pairs,
so that a machine that is busy or gets slower meanwhile does not count. The same is done with nothing beside the bare
step, which shows how far a ratio can be trusted. Nothing here is a test.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from gradproof.shadow.hooks import Hooks
from gradproof.shadow.recorder import Recorder
from gradproof.shadow.tape import Tape
from gradproof.shadow.watch import Events

ACCUM_STEPS = 4
STEPS = 3


def training(layers: int, width: int, batch: int) -> Callable[[], None]:
    """One window of four micro-batches of a transformer encoder, with clipping and AdamW."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(batch, 32, width)

    def step() -> None:
        for _ in range(ACCUM_STEPS):
            (model(data).square().mean() / ACCUM_STEPS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None], within: Any) -> float:
    """Of a step inside a context; entering and leaving it, and the first step in it, are not counted."""
    with within:
        step()
        begun = time.process_time()
        for _ in range(STEPS):
            step()
        return (time.process_time() - begun) / STEPS


def watching() -> Hooks:
    """Event-only hooks."""
    return Hooks(Events(Tape()))


def compared(step: Callable[[], None], other: Callable[[], Any], pairs: int) -> tuple[float, float]:
    """The bare step in seconds, and the median ratio of the other to it."""
    bare, ratios = [], []
    for index in range(pairs + 2):
        one, two = (nullcontext, other) if index % 2 else (other, nullcontext)
        first, second = seconds(step, one()), seconds(step, two())
        plain, dear = (first, second) if index % 2 else (second, first)
        if index >= 2:
            bare.append(plain)
            ratios.append(dear / plain)
    return statistics.median(bare), statistics.median(ratios)


def recording() -> Any:
    """The recorder and its hooks."""
    recorder = Recorder()
    return _Both(recorder, Hooks(recorder))


class _Both:
    """Two contexts as one."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second

    def __enter__(self) -> None:
        self.first.__enter__()
        self.second.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.second.__exit__(*error)
        self.first.__exit__(*error)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread")
    step = training(4, 128, 6)
    bare, ratio = compared(step, nullcontext, 20)
    print(f"nothing:            {ratio:.3f} of a bare step of {bare * 1000:.0f} ms")
    bare, ratio = compared(step, watching, 20)
    print(f"watch, events only: {ratio:.3f} of a bare step of {bare * 1000:.0f} ms (bar: 1.02 from 50 ms on)")
    bare, ratio = compared(training(2, 32, 2), recording, 5)
    print(f"recorder:           {ratio:.1f} times a bare step of {bare * 1000:.0f} ms")


if __name__ == "__main__":
    main()
