"""Real micro-batch gradients: a small transformer, in every dtype, with its loss scaled.

A scaled gradient S g that has left the format is no input of the accumulation, so such a run is refused: it is
GradScaler's case. The bound is for the scaled gradients; the division by the power of two S is exact unless it
underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.kernels.elementwise import TORCH
from gradproof.kernels.full_runs import CLAIM, PAIRS, run
from gradproof.kernels.report import Result, not_run

VOCABULARY, LENGTH, WIDTH, HEADS, BATCH = 17, 8, 16, 2, 4
SCALES = {"fp32": 1.0, "fp16": 1024.0, "bf16": 1024.0}


def small_transformer(seed: int) -> nn.Module:
    """An embedding, one encoder layer and a head, without dropout; its weights are drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), layer, nn.Linear(WIDTH, VOCABULARY)).train()


def micro_batches(n: int, dtype: str, device: str, scale: float, seed: int = 0) -> list[Tensor]:
    """Flat gradients of n micro-batches, each of its own loss times `scale`."""
    model = small_transformer(seed).to(device=device, dtype=TORCH[dtype])
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(device)
        output = model(tokens[:, :-1])
        loss = F.cross_entropy(output.float().flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        found.append(flat(p.grad for p in model.parameters()))
    return found


def flat(gradients: Iterable[Tensor | None]) -> Tensor:
    """The gradients of a model as one vector; missing ones are left out. Raises ValueError where one is not finite."""
    vector = torch.cat([g.detach().reshape(-1).clone() for g in gradients if g is not None])
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("a scaled gradient is not finite: GradScaler skips such a step")
    return vector


Source = Callable[[int, str, str, float], list[Tensor]]


def real_runs(
    device: str,
    counts: Iterable[int],
    source: Source = micro_batches,
    progress: Callable[[Result], Any] = lambda r: None,
) -> list[Result]:
    """Recorded gradients of `source` accumulated in every pair of formats, with loss scaling in 16 bits."""
    found = []
    for n in counts:
        kept: dict[str, list[Tensor]] = {}
        for gradient, buffer in PAIRS:
            scale = SCALES[gradient]
            name = gradient if gradient == buffer else f"{gradient}->{buffer}"
            if device == "cuda" and not torch.cuda.is_available():
                found.append(not_run(f"transformer, n={n}", name, device, CLAIM, "no CUDA device is at hand"))
                continue
            if gradient not in kept:
                kept[gradient] = source(n, gradient, device, scale)
            note = f"transformer, loss scale {scale:g}"
            found.append(run(n, gradient, buffer, device, gradients=kept[gradient].__getitem__, note=note))
            progress(found[-1])
    return found
