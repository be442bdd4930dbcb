"""Training functions for the second judge: what is wrong shows in numbers or in lost sight, not in a proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run

Losses = list[Tensor]


@dataclass
class Parts:
    """A model, its optimizer, and the samples of a run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def loss(self, rows: slice) -> Tensor:
        return F.mse_loss(self.model(self.x[rows]), self.y[rows])


class Counting(nn.Module):
    """A linear layer that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x)  # type: ignore[no-any-return]


def parts(run: Run, samples: int = 0, model: Callable[[], nn.Module] = lambda: nn.Linear(8, 1)) -> Parts:
    torch.manual_seed(run.seed)
    made = model().to(run.dtype)
    count = samples or run.samples
    x, y = torch.randn(count, 8, dtype=run.dtype), torch.randn(count, 1, dtype=run.dtype)
    return Parts(made, torch.optim.AdamW(made.parameters()), x, y)


def trained(run: Run, p: Parts, after: Callable[[Parts], None] | None = None) -> Losses:
    """The textbook loop; `after` runs after each step instead of zero_grad."""
    losses: Losses = []
    total = torch.zeros((), dtype=run.dtype)
    for i in range(run.micro_batches):
        loss = p.loss(slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)) / run.accum_steps
        loss.backward()
        total = total + loss.detach()
        if (i + 1) % run.accum_steps == 0:
            p.optimizer.step()
            (after or (lambda p: p.optimizer.zero_grad()))(p)
            losses.append(total)
            total = torch.zeros((), dtype=run.dtype)
    return losses


def right(run: Run) -> Losses:
    return trained(run, parts(run))


def reports_nothing(run: Run) -> None:
    trained(run, parts(run))


def gradients_before(run: Run) -> Losses:
    p = parts(run)
    for weight in p.model.parameters():
        weight.grad = torch.ones_like(weight)
    return trained(run, p)


def partly_zeroed(run: Run) -> Losses:
    def after(p: Parts) -> None:
        for weight in p.model.parameters():
            assert weight.grad is not None
            weight.grad[:, :4].zero_() if weight.dim() == 2 else weight.grad.zero_()

    return trained(run, parts(run), after)


def zeroed_in_place(run: Run) -> Losses:
    return trained(run, parts(run), lambda p: p.optimizer.zero_grad(set_to_none=False))


def zeroed_by_halves(run: Run) -> Losses:
    def after(p: Parts) -> None:
        for weight in p.model.parameters():
            assert weight.grad is not None
            flat = weight.grad.view(-1)
            flat[: flat.numel() // 2].zero_()
            flat[flat.numel() // 2 :].zero_()

    return trained(run, parts(run), after)


def moving_buffer(run: Run) -> Losses:
    return trained(run, parts(run, model=Counting))


# Loops that ignore the numbers of `run`


def own_everything(run: Run) -> None:
    p = parts(run, 16)
    for i in range(8):
        p.loss(slice(2 * i, 2 * i + 2)).backward()
        if (i + 1) % 4 == 0:
            p.optimizer.step()
            p.optimizer.zero_grad()


def own_batch_size(run: Run) -> None:
    p = parts(run)
    for i in range(run.samples // 2):
        (p.loss(slice(2 * i, 2 * i + 2)) / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            p.optimizer.step()
            p.optimizer.zero_grad()


def own_n(run: Run) -> None:
    p = parts(run)
    for i in range(run.micro_batches):
        (p.loss(slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)) / 4).backward()
        if (i + 1) % 4 == 0:
            p.optimizer.step()
            p.optimizer.zero_grad()


def own_windows(run: Run) -> None:
    size = run.micro_batch_size
    p = parts(run, 3 * run.accum_steps * size)
    for i in range(3 * run.accum_steps):
        (p.loss(slice(i * size, (i + 1) * size)) / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            p.optimizer.step()
            p.optimizer.zero_grad()


def by_chunks(run: Run) -> Losses:
    """Right, and reads none of run's sizes by name: the micro-batches are chunks."""
    p, losses = parts(run), []
    batches = list(zip(p.x.chunk(run.micro_batches), p.y.chunk(run.micro_batches), strict=True))
    each = len(batches) // run.windows
    for window in range(run.windows):
        shares = [F.mse_loss(p.model(x), y) / each for x, y in batches[window * each : (window + 1) * each]]
        for share in shares:
            share.backward()  # type: ignore[no-untyped-call]
        p.optimizer.step()
        p.optimizer.zero_grad()
        losses.append(torch.stack([s.detach() for s in shares]).sum())
    return losses


# Accumulators of the loop's own


def summed(
    run: Run, add: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype | None = None, clear: bool = True
) -> None:
    """Gradients of autograd.grad, added by `add` into buffers of the loop's own."""
    p = parts(run)
    weights = list(p.model.parameters())
    held = [torch.zeros_like(w, dtype=dtype or w.dtype) for w in weights]
    for i in range(run.micro_batches):
        loss = p.loss(slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)) / run.accum_steps
        grads = torch.autograd.grad(loss, weights)
        held = [add(h, g) for h, g in zip(held, grads, strict=True)]
        if (i + 1) % run.accum_steps == 0:
            for weight, total in zip(weights, held, strict=True):
                weight.grad = total.to(weight.dtype).clone()
            p.optimizer.step()
            held = [torch.zeros_like(h) for h in held] if clear else held


ADDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plus": lambda h, g: h + g,
    "stack-sum": lambda h, g: torch.stack([h, g.to(h.dtype)]).sum(0),
    "einsum": lambda h, g: torch.einsum("n...->...", torch.stack([h, g.to(h.dtype)])),
    "mean": lambda h, g: torch.stack([h, g.to(h.dtype)]).mean(0) * 2,
    "cat": lambda h, g: torch.cat([h.reshape(1, -1), g.to(h.dtype).reshape(1, -1)]).sum(0).reshape(h.shape),
    "pad": lambda h, g: F.pad(h, (0, 1))[..., :-1] + F.pad(g.to(h.dtype), (0, 1))[..., :-1],
}


def summed_once(run: Run, dtype: torch.dtype = torch.float32) -> None:
    """The losses of a window are summed, and passed backward once."""
    p = parts(run, model=lambda: nn.Linear(8, 1).to(dtype))
    p.model.to(dtype)
    losses: list[Tensor] = []
    for i in range(run.micro_batches):
        rows = slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size)
        losses.append(F.mse_loss(p.model(p.x[rows].to(dtype)).to(run.dtype), p.y[rows]) / run.accum_steps)
        if (i + 1) % run.accum_steps == 0:
            torch.stack(losses).sum().backward()
            p.optimizer.step()
            p.optimizer.zero_grad()
            losses.clear()


# What is reported


@dataclass
class Report:
    """A result as a dataclass."""

    losses: list[float]
    name: str = "linear-8"


def floats(losses: Losses) -> list[float]:
    return [float(loss) for loss in losses]


SHAPES: dict[str, Callable[[Losses], Any]] = {
    "tensors": lambda losses: losses,
    "floats": floats,
    "numpy": lambda losses: np.asarray(floats(losses)),
    "dataclass": lambda losses: Report(floats(losses)),
    "namespace": lambda losses: SimpleNamespace(losses=floats(losses)),
    "mapping": lambda losses: {"losses": floats(losses)},
    "text": lambda losses: ", ".join(f"loss {loss:.9g}" for loss in floats(losses)),
    "millionths": lambda losses: [round(loss * 1e6) for loss in floats(losses)],
}


def each_micro_batch(run: Run, factor: float) -> Iterator[float]:
    """Train rightly, and give every micro-batch's own loss times a factor."""
    p = parts(run)
    for i in range(run.micro_batches):
        loss = p.loss(slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size))
        (loss / run.accum_steps).backward()
        yield float(loss.detach()) * factor
        if (i + 1) % run.accum_steps == 0:
            p.optimizer.step()
            p.optimizer.zero_grad()
