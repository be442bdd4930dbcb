"""`python -m tests.bench_shadow`: what watching costs, against the bare step, and how long proofs take.

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

from gradproof.shadow.tape.monitor import Monitor

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


def watching() -> Monitor:
    """Events alone, of windows that are all recorded."""
    made = Monitor()
    made.run.recorded = set(range(10**6))
    return made


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


class Attention(nn.Module):
    """An embedding, one head of causal attention, a head over the vocabulary."""

    def __init__(self, vocabulary: int = 4, width: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, length) to logits (batch, vocabulary, length)."""
        h = self.embed(ids)
        mixed = nn.functional.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h), is_causal=True)
        return self.head(mixed).transpose(1, 2)


class Block(nn.Module):
    """Two layers of a transformer of width 64 with layer norm, attention and GELU; embedding and head are tied."""

    def __init__(self, vocabulary: int = 32, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (batch, length) to logits (batch, vocabulary, length)."""
        return (self.layers(self.embed(ids)) @ self.embed.weight.T).transpose(1, 2)


def trained(make: Callable[[], nn.Module], tokens: int) -> Callable[[Any], None]:
    """A training function; with `tokens`, of cross-entropy over sequences of that many token ids."""

    def step(run: Any) -> None:
        model = make()
        optimizer, full = torch.optim.SGD(model.parameters(), lr=0.1), run.accum_steps
        loss = nn.functional.cross_entropy if tokens else nn.functional.mse_loss
        x = torch.randint(0, 4, (run.samples, tokens)) if tokens else torch.randn(run.samples, 3)
        y = torch.randint(0, 4, (run.samples, tokens)) if tokens else torch.randn(run.samples, 2)
        pairs = zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True)
        for number, (a, b) in enumerate(pairs, 1):
            (loss(model(a), b) / full).backward()
            if number % full == 0:
                optimizer.step()
                optimizer.zero_grad()

    return step


def mlp() -> nn.Module:
    """Two layers with a ReLU between them."""
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


CASES: tuple[tuple[str, Callable[[Any], None], dict[str, Any], str], ...] = (
    ("linear, N=4, 2 windows", trained(lambda: nn.Linear(3, 2), 0), {}, "under 1 s"),
    ("MLP, N=4, 2 windows", trained(mlp, 0), {}, "under 1 s"),
    ("attention, width 3, vocabulary 4, 4 sequences of 3 tokens, N=4", trained(Attention, 3),
     {"micro_batch": 1, "windows": 1}, "under 1 s"),
    ("transformer, width 64, 2 layers, 4 micro-batches of 2 sequences of 16 tokens", trained(Block, 16),
     {"windows": 1}, "under 20 s"),
)  # fmt: skip


def proofs() -> None:
    """Wall-clock seconds of whole verifications, beyond importing torch: the median of three, after one."""
    import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it

    from tests.checked import check

    for name, step, options, bar in CASES:
        times = []
        for _ in range(4):
            begun = time.perf_counter()
            found = check(step, **options)
            times.append(time.perf_counter() - begun)
        print(f"{name}: {found.outcome}, {times[0]:.2f} s the first time, {statistics.median(times[1:]):.2f} s ({bar})")


def main() -> None:
    """Print the table."""
    proofs()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread")
    step = training(4, 128, 6)
    bare, ratio = compared(step, nullcontext, 20)
    print(f"nothing:            {ratio:.3f} of a bare step of {bare * 1000:.0f} ms")
    bare, ratio = compared(step, watching, 20)
    print(f"events of watch:    {ratio:.3f} of a bare step of {bare * 1000:.0f} ms (bar: 1.02 from 50 ms on)")


if __name__ == "__main__":
    main()
