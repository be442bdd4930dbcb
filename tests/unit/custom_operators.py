"""Operators of a user's own, which gradproof knows nothing of: one that maps rows, and ones that mix them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, library, nn

from gradproof.shadow.tape.run import Run

Forward = Callable[[Tensor, Tensor], Tensor]
CALLS = count()


def swish(x: Tensor, w: Tensor) -> Tensor:
    """Each row by itself."""
    return x * torch.sigmoid(x) * w


def centred(x: Tensor, w: Tensor) -> Tensor:
    """The mean over the rows is taken away."""
    return swish(x, w) - x.mean(0)


def leaking(x: Tensor, w: Tensor) -> Tensor:
    """A millionth of the other rows."""
    return swish(x, w) + 1e-6 * x.mean(0)


def first(x: Tensor, w: Tensor) -> Tensor:
    """Row 0 enters every row."""
    return swish(x, w) + x[:1]


def first_if_large(x: Tensor, w: Tensor) -> Tensor:
    """Row 0 enters every row where it is large."""
    return swish(x, w) + x[:1] * (x[:1] > 50)


def first_is_other(x: Tensor, w: Tensor) -> Tensor:
    """Row 0 is doubled."""
    return torch.cat([2 * swish(x[:1], w), swish(x[1:], w)])


def large(x: Tensor, w: Tensor) -> Tensor:
    """Rows are divided by the largest number of all, where that is large."""
    return swish(x, w) / x.max().clamp(min=500)


def sorted_rows(x: Tensor, w: Tensor) -> Tensor:
    """Rows change places where they are not in order."""
    return swish(x[x[:, 0].argsort()], w)


def noisy(x: Tensor, w: Tensor) -> Tensor:
    """Random numbers are added."""
    return swish(x, w) + torch.rand_like(x)


def counting(x: Tensor, w: Tensor) -> Tensor:
    """Each call gives other numbers."""
    return swish(x, w) * (1 + next(CALLS))


def alike(x: Tensor, w: Tensor) -> Tensor:
    """Rows that are one content are averaged with the first of all."""
    return swish(x, w) + (x[0] if bool((x[0] == x[-1]).all()) and len(x) > 1 else 0 * x[0])


def grouped(x: Tensor, w: Tensor) -> Tensor:
    """Rows of one sign share their mean."""
    same = (x[:, :1] > 0) == (x[:, 0] > 0)
    return swish(x, w) - same.to(x) @ x / same.sum(1, keepdim=True)


MIXING: tuple[Forward, ...] = (
    centred, leaking, first, first_if_large, first_is_other, large, sorted_rows, alike, grouped, noisy,
    counting,
)  # fmt: skip


def made(name: str, forward: Forward, backward: Forward = swish) -> Callable[[Tensor, Tensor], Tensor]:
    """An operator `own::NAME` with a backward of its own, `own::NAME_backward`."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        return forward(x, w).clone()

    def back(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        sigmoid = torch.sigmoid(x)
        extra = backward(x, w) - swish(x, w)
        return g * w * (sigmoid + x * sigmoid * (1 - sigmoid)) + extra, (g * x * sigmoid).sum(0)

    plain = library.custom_op(f"own::{name}", run, mutates_args=())
    gradient = library.custom_op(f"own::{name}_backward", back, mutates_args=())
    plain.register_fake(lambda x, w: torch.empty_like(x))
    gradient.register_fake(lambda g, x, w: (torch.empty_like(x), torch.empty_like(w)))

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    plain.register_autograd(lambda ctx, g: gradient(g.contiguous(), *ctx.saved_tensors), setup_context=setup)
    return plain  # type: ignore[no-any-return]


SWISH = made("swish", swish)
MIXED = {forward.__name__: made(forward.__name__, forward) for forward in MIXING}
MIXED_BACK = {f"{f.__name__}_behind": made(f"{f.__name__}_behind", swish, f) for f in MIXING[:-2]}
RELU = made("relu", centred)
"""An operator that mixes rows, and is called as one of torch's is that maps them."""


class Function(torch.autograd.Function):
    """The same operators, called by a function of the user's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """The operator."""
        ctx.save_for_backward(x, w)
        return SWISH(x, w)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        """Its gradients."""
        return torch.ops.own.swish_backward(above, *ctx.saved_tensors)


class Own(nn.Module):
    """A layer of an operator."""

    def __init__(self, operator: Callable[[Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.operator, self.weight = operator, nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The operator on the rows."""
        return self.operator(x, self.weight)


def step_of(operator: Callable[[Tensor, Tensor], Tensor], divided: bool = True) -> Callable[[Run], list[Tensor]]:
    """A training function of an operator; `divided`: by the number of micro-batches, as is right."""

    def step(run: Run) -> list[Tensor]:
        torch.manual_seed(run.seed)
        model = nn.Sequential(nn.Linear(3, 4), Own(operator, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y, losses = torch.randn(run.samples, 3), torch.randn(run.samples, 1), list[Tensor]()
        for window in windows(run, x, y):
            total = torch.zeros(())
            for a, b in window:
                loss = nn.functional.mse_loss(model(a), b) / (len(window) if divided else 1)
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
        return losses

    return step


def windows(run: Run, *data: Tensor) -> Iterator[list[tuple[Tensor, ...]]]:
    """The micro-batches of each window."""
    batches = list(zip(*(part.split(run.micro_batch_size) for part in data), strict=True))
    yield from (batches[i : i + run.accum_steps] for i in range(0, len(batches), run.accum_steps))
