"""What any PyTorch loop does, told as phases: backward passes, clips, steps and zeroes of the optimizers of torch.

For loops that the harness does not watch by hooks of its own. A backward pass tells its loss, a clip the norm before
it, a step the first weights after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradproof.telling import tell

FIRST = 16
"""Weights that a step tells, at most."""


@contextmanager
def phases() -> Iterator[None]:
    """Tell every loop inside the block. What torch does is not changed."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Tensor, "backward", _after(Tensor.backward, "backward", _number)))
        zero = _after(Optimizer.zero_grad, "zero", lambda *_: ())
        stack.enter_context(mock.patch.object(Optimizer, "zero_grad", zero))
        clip = torch.nn.utils.clip_grad_norm_
        norm = _after(clip, "clip", lambda _, result: _number(result, None))
        stack.enter_context(mock.patch.object(torch.nn.utils, "clip_grad_norm_", norm))
        stack.callback(register_optimizer_step_post_hook(_stepped).remove)
        yield


def _after(plain: Callable[..., Any], event: str, state: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The function, telling an event when it has returned; `state` is given its first argument and its result."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        tell(event, state(args[0] if args else None, result), True)
        return result

    return call


def _number(value: Any, _: Any) -> float | None:
    """A tensor of one element as a number."""
    return float(value.detach()) if isinstance(value, Tensor) and value.numel() == 1 else None


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    told: list[float] = []
    for weight in held[:FIRST]:
        told += weight.detach().flatten()[: FIRST - len(told)].tolist()
    tell("step", tuple(told), True)
