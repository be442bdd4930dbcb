"""Right training loops that look wrong for what they do with gradients: SAM, and accumulators of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from shadow_false_alarms import LR, End, ignore, net, regression, squared, windows
from torch import Tensor, nn
from torch.nn import functional as F


def sharpness_aware(run: Any, end: End = ignore, scale: bool = True) -> None:
    """SAM: the gradient of a window at the weights moved along the window's gradient."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    for window in windows(run, *regression(run)):
        size = len(window) if scale else 1
        for x, y in window:
            (squared(model, x, y) / size).backward()
        with torch.no_grad():
            moves = [0.05 * w.grad for w in weights if w.grad is not None]
            torch._foreach_add_(weights, moves)
        optimizer.zero_grad()
        for x, y in window:
            (squared(model, x, y) / size).backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def sharpness_aware_by_hand(run: Any) -> nn.Module:
    """SAM with the full batch."""
    model = net()
    weights = list(model.parameters())
    x, y = regression(run)
    size = run.accum_steps * run.micro_batch_size
    for a, b in zip(x.split(size), y.split(size), strict=True):
        first = torch.autograd.grad(squared(model, a, b), weights)
        moved = [(w + 0.05 * g).detach().requires_grad_() for w, g in zip(weights, first, strict=True)]
        grads = torch.autograd.grad(F.mse_loss(F.linear(a, *moved), b), moved)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight.sub_(LR * grad)
    return model


class TwoSteps(torch.optim.SGD):
    """SAM as an optimizer with a first and a second step."""

    moves: list[Tensor]

    @torch.no_grad()
    def first_step(self) -> None:
        """Move the weights along the gradient, and zero it."""
        weights = [w for group in self.param_groups for w in group["params"]]
        self.moves = [0.05 * w.grad for w in weights]
        for w, move in zip(weights, self.moves, strict=True):
            w.add_(move)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Move them back and step."""
        weights = [w for group in self.param_groups for w in group["params"]]
        for w, move in zip(weights, self.moves, strict=True):
            w.sub_(move)
        self.step()
        self.zero_grad()


def sharpness_aware_class(run: Any, end: End = ignore, scale: bool = True) -> None:
    """SAM's two passes, with an optimizer of its own."""
    model = net()
    optimizer = TwoSteps(model.parameters(), lr=LR)
    for window in windows(run, *regression(run)):
        for finish in (optimizer.first_step, optimizer.second_step):
            for x, y in window:
                (squared(model, x, y) / (len(window) if scale else 1)).backward()
            finish()
    end(model)


def flat_buffer(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Gradients are added to one flat buffer, and handed to the step from there."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    flat = torch.zeros(sum(w.numel() for w in weights))
    for window in windows(run, *regression(run)):
        flat.zero_()
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
            at = 0
            for w in weights:
                flat[at : at + w.numel()] += w.grad.reshape(-1)  # type: ignore[union-attr]
                at += w.numel()
                w.grad = None
        for w, part in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
            w.grad = part.view_as(w)
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def flat_by_cat(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The flat buffer is added to by concatenation."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    for window in windows(run, *regression(run)):
        flat = torch.zeros(sum(w.numel() for w in weights))
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
            flat += torch.cat([w.grad.flatten() for w in weights])  # type: ignore[union-attr]
            optimizer.zero_grad()
        at = 0
        for w in weights:
            w.grad = flat[at : at + w.numel()].view_as(w).clone()
            at += w.numel()
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def listed(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The gradients of every micro-batch are kept in a list and averaged."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    for window in windows(run, *regression(run)):
        kept: list[list[Tensor]] = []
        for x, y in window:
            squared(model, x, y).backward()
            kept.append([w.grad.clone() for w in weights if w.grad is not None])
            optimizer.zero_grad()
        for w, *parts in zip(weights, *kept, strict=True):
            total = torch.stack(parts)  # type: ignore[arg-type]
            w.grad = total.mean(0) if scale else total.sum(0)
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def main_grad(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Hooks add every gradient to a buffer beside the weight, as Megatron does."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    held = {w: torch.zeros_like(w) for w in weights}

    def add(weight: Tensor) -> None:
        held[weight].add_(weight.grad)  # type: ignore[index,arg-type]
        weight.grad = None

    for w in weights:
        w.register_post_accumulate_grad_hook(add)
    for window in windows(run, *regression(run)):
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
        for w in weights:
            w.grad = held[w].clone()
        optimizer.step()
        optimizer.zero_grad()
        for buffer in held.values():
            buffer.zero_()
    end(model)


def padded_buffer(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The flat buffer is longer than the gradients, as for several ranks."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    weights = list(model.parameters())
    size = sum(w.numel() for w in weights)
    for window in windows(run, *regression(run)):
        flat = torch.zeros(16)
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
            flat += F.pad(nn.utils.parameters_to_vector([w.grad for w in weights]), (0, 16 - size))  # type: ignore[misc]
            model.zero_grad()
        at = 0
        for w in weights:
            w.grad = flat[at : at + w.numel()].view_as(w)
            at += w.numel()
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def listed_by_hand(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The sums of the gradients are kept in a list, and the step is made by hand."""
    model = net()
    weights = list(model.parameters())
    for window in windows(run, *regression(run)):
        sums = [torch.zeros_like(w) for w in weights]
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
            for total, w in zip(sums, weights, strict=True):
                total += w.grad  # type: ignore[operator]
                w.grad = None
        with torch.no_grad():
            for total, w in zip(sums, weights, strict=True):
                w -= LR * total
    end(model)


def main_grad_views(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Every weight has a view of one buffer, to which a hook adds; the step takes the buffer."""
    model = net()
    weights = list(model.parameters())
    buffer = torch.zeros(sum(w.numel() for w in weights))
    views = [part.view_as(w) for w, part in zip(weights, buffer.split([w.numel() for w in weights]), strict=True)]
    optimizer = torch.optim.SGD(weights, lr=LR)

    def adder(view: Tensor) -> Callable[[Tensor], None]:
        def add(weight: Tensor) -> None:
            view.add_(weight.grad)  # type: ignore[arg-type]
            weight.grad = None

        return add

    for w, view in zip(weights, views, strict=True):
        w.register_post_accumulate_grad_hook(adder(view))
    for window in windows(run, *regression(run)):
        buffer.zero_()
        for x, y in window:
            (squared(model, x, y) / (len(window) if scale else 1)).backward()
        for w, view in zip(weights, views, strict=True):
            w.grad = view
        optimizer.step()
        for w in weights:
            w.grad = None
    end(model)


def foreach_lists(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Lists of gradients from torch.autograd.grad, added at once."""
    model = net()
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=LR)
    for window in windows(run, *regression(run)):
        sums = [torch.zeros_like(w) for w in weights]
        for x, y in window:
            torch._foreach_add_(
                sums, torch.autograd.grad(squared(model, x, y) / (len(window) if scale else 1), weights)
            )
        for w, total in zip(weights, sums, strict=True):
            w.grad = total
        optimizer.step()
        optimizer.zero_grad()
    end(model)
