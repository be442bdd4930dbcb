"""Right training loops that look wrong to heuristics, each beside a twin that is wrong, and a full batch by hand.

`end` is called with the model when a loop has ended; the tests read its weights there. The full batch of a `Case` takes
the gradient of its `loss` on the samples of a whole window and steps by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

End = Callable[[nn.Module], None]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Train = Callable[..., None]
LR = 0.1


def ignore(model: nn.Module) -> None:
    """Nobody asks for the weights."""


def net() -> nn.Module:
    """Three inputs, two outputs."""
    return nn.Linear(3, 2)


def regression(run: Any) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the whole run."""
    return torch.randn(run.samples, 3), torch.randn(run.samples, 2)


def binary(run: Any) -> tuple[Tensor, Tensor]:
    """Inputs, and targets that are 0 or 1."""
    return torch.randn(run.samples, 3), (torch.randn(run.samples, 2) > 0).to(torch.get_default_dtype())


def classes(run: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels, of which every third is to be ignored in the first half of the run only."""
    labels = torch.arange(run.samples) % 2
    first = torch.arange(run.samples) < run.samples // 2
    return torch.randn(run.samples, 3), torch.where(first & (torch.arange(run.samples) % 3 == 0), -100, labels)


def windows(run: Any, x: Tensor, y: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The micro-batches of each window."""
    pairs = list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))
    for first in range(0, len(pairs), run.accum_steps):
        yield pairs[first : first + run.accum_steps]


def looped(loss: Loss, data: Callable[[Any], tuple[Tensor, Tensor]] = regression, factor: float = 0.0) -> Train:
    """A plain loop; a micro-batch's loss is divided by the window's length, or multiplied by `factor`."""

    def train(run: Any, end: End = ignore) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for window in windows(run, *data(run)):
            for x, y in window:
                (loss(model, x, y) * (factor or 1 / len(window))).backward()
            optimizer.step()
            optimizer.zero_grad()
        end(model)

    return train


def full_batch(
    run: Any, loss: Loss, data: Callable[[Any], tuple[Tensor, Tensor]] = regression, epochs: int = 1
) -> nn.Module:
    """The full batch by hand: one gradient of a whole window's samples, one step."""
    model = net()
    x, y = data(run)
    size = run.accum_steps * run.micro_batch_size
    for _ in range(epochs):
        for first in range(0, run.samples, size):
            step_by_hand(model, loss(model, x[first : first + size], y[first : first + size]))
    return model


def step_by_hand(model: nn.Module, loss: Tensor) -> None:
    """One step of gradient descent."""
    weights = list(model.parameters())
    grads = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, grad in zip(weights, grads, strict=True):
            weight.sub_(LR * grad)


# Constants that are made inside the step


def pos_weight(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A weight of the positive class."""
    return F.binary_cross_entropy_with_logits(model(x), y, pos_weight=torch.tensor([2.0, 3.0]))


def pos_weight_alone(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same of one class."""
    return F.binary_cross_entropy_with_logits(model(x)[:, 0], y[:, 0], pos_weight=torch.tensor([2.0]))


def python_list(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Columns that are chosen by a Python list."""
    return F.mse_loss(model(x)[:, [1, 0]], y)


def index_list(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Columns that are chosen by a list."""
    return F.mse_loss(model(x)[:, torch.tensor([1, 0])], y)


def class_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Weights of the classes; the sum is divided by the samples."""
    return F.cross_entropy(model(x), y.clamp(min=0), weight=torch.tensor([1.0, 3.0]), reduction="sum") / len(x)


def image_mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Inputs less their mean over their deviation."""
    mean, deviation = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.2])
    return F.mse_loss(model((x - mean) / deviation), y)


def image_mean_numpy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The same from NumPy."""
    mean = torch.from_numpy(np.array([0.4, 0.5, 0.6])).to(x.dtype)
    return F.mse_loss(model(x - mean), y)


# Normalisers


def mask_times_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Samples of a mask count, divided by all samples."""
    mask = (x[:, 0] > -0.5).to(x.dtype)
    return (F.mse_loss(model(x), y, reduction="none").mean(1) * mask).sum() / len(x)


def gate_times_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A gate of each sample."""
    return (F.cross_entropy(model(x), y.clamp(min=0), reduction="none") * torch.sigmoid(x[:, 1])).mean()


def fixed_normaliser(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A sum over the labels that count, divided by a number that is the same in every window, per sample."""
    return F.cross_entropy(model(x), y, reduction="sum", ignore_index=-100) / len(x)


def share_of_a_number(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A sum over the labels that count, over a constant; a window's micro-batches are added, not averaged."""
    return F.cross_entropy(model(x), y, reduction="sum", ignore_index=-100) / 32


# Batches ahead, validation, epochs


class Ahead:
    """Batches that are made one ahead, and one more at the end."""

    def __init__(self, run: Any) -> None:
        self.size, self.source = run.micro_batch_size, np.random.RandomState(run.seed)
        self.ready = self.make()

    def make(self) -> tuple[Tensor, Tensor]:
        """The next batch."""
        rows = torch.from_numpy(self.source.randn(self.size, 5)).to(torch.get_default_dtype())
        return rows[:, :3], rows[:, 3:]

    def take(self) -> tuple[Tensor, Tensor]:
        """The batch that is ready; the next is made."""
        batch, self.ready = self.ready, self.make()
        return batch


def rows_of(run: Any) -> tuple[Tensor, Tensor]:
    """The samples of `Ahead`."""
    rows = torch.from_numpy(np.random.RandomState(run.seed).randn(run.samples, 5)).to(torch.get_default_dtype())
    return rows[:, :3], rows[:, 3:]


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error."""
    return F.mse_loss(model(x), y)


def prefetched(run: Any, end: End = ignore, scale: bool = True) -> None:
    """A batch more is made than is trained on."""
    model, batches = net(), Ahead(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = batches.take()
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def prefetched_and_read(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The batch that is made ahead is converted, too."""
    model, batches = net(), Ahead(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = (t * 1.0 for t in batches.take())
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
            x, y = (t * 1.0 for t in batches.take())
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def validated(run: Any, end: End = ignore, scale: bool = True) -> None:
    """After every window the model is tried on a batch of other samples."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = regression(run)
    for window in windows(run, x, y):
        for a, b in window:
            (squared(model, a, b) / (len(window) if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        squared(model, torch.randn(run.micro_batch_size, 3), torch.randn(run.micro_batch_size, 2)).detach()
    end(model)


def validated_by_rows(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Validation samples from NumPy, before training, cut as the training's."""
    model, batches, tried = net(), Ahead(run), np.random.RandomState(9).randn(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def validate() -> None:
        for first in range(0, len(tried), run.micro_batch_size):
            rows = torch.from_numpy(tried[first : first + run.micro_batch_size]).to(torch.get_default_dtype())
            squared(model, rows[:, :3], rows[:, 3:]).detach()

    validate()
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = batches.take()
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        validate()
    end(model)


def counted_right(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The accuracy of every window is counted with argmax."""
    model, right = net(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for window in windows(run, *classes(run)):
        for x, y in window:
            output = model(x)
            loss = F.cross_entropy(output, y.clamp(min=0))
            (loss / (len(window) if scale else 1)).backward()
            right += int((output.argmax(1) == y).sum())
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The cross entropy of labels that all count."""
    return F.cross_entropy(model(x), y.clamp(min=0))


def two_epochs(run: Any, end: End = ignore, scale: bool = True) -> None:
    """The same samples twice."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = regression(run)
    for _ in range(2):
        for window in windows(run, x, y):
            for a, b in window:
                (squared(model, a, b) / (len(window) if scale else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    end(model)


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


# Accumulators of the user's own


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
            loss = squared(model, x, y) / (len(window) if scale else 1)
            torch._foreach_add_(sums, torch.autograd.grad(loss, weights))
        for w, total in zip(weights, sums, strict=True):
            w.grad = total
        optimizer.step()
        optimizer.zero_grad()
    end(model)


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


def several_batches(source: np.random.RandomState, size: int) -> tuple[Tensor, Tensor]:
    """Rows for training and for validation come from one line."""
    rows = torch.from_numpy(source.randn(size, 5)).to(torch.get_default_dtype())
    return rows[:, :3], rows[:, 3:]


def validated_from_one_line(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Training and validation draw from streams of their own, with one helper."""
    model = net()
    train, valid = np.random.RandomState(run.seed), np.random.RandomState(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = several_batches(train, run.micro_batch_size)
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        x, y = several_batches(valid, run.micro_batch_size)
        squared(model, x, y).detach()
    end(model)


def labels_ahead(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Labels and inputs are made one batch ahead, as integers and floats."""
    model, source = net(), np.random.RandomState(run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def make() -> tuple[Tensor, Tensor]:
        rows = source.randn(run.micro_batch_size, 4)
        inputs = torch.from_numpy(rows[:, :3].copy()).to(torch.get_default_dtype())
        return inputs, torch.from_numpy((rows[:, 3] > 0).astype("int64"))

    x, y = make()
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            (F.cross_entropy(model(x), y) / (run.accum_steps if scale else 1)).backward()
            x, y = make()
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def labelled_rows(run: Any) -> tuple[Tensor, Tensor]:
    """The samples of `labels_ahead`."""
    rows = np.random.RandomState(run.seed).randn(run.samples, 4)
    inputs = torch.from_numpy(rows[:, :3].copy()).to(torch.get_default_dtype())
    return inputs, torch.from_numpy((rows[:, 3] > 0).astype("int64"))


def drawn_in_turn(run: Any, end: End = ignore, scale: bool = True) -> None:
    """NumPy draws inputs and targets of each micro-batch in turn."""
    model, source = net(), np.random.RandomState(run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = (torch.from_numpy(source.randn(run.micro_batch_size, n)).to(model.bias.dtype) for n in (3, 2))  # type: ignore[arg-type]
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(model)


def rows_in_turn(run: Any) -> tuple[Tensor, Tensor]:
    """The samples of `drawn_in_turn`."""
    source, parts = np.random.RandomState(run.seed), []
    for _ in range(run.windows * run.accum_steps):
        parts.append([torch.from_numpy(source.randn(run.micro_batch_size, n)) for n in (3, 2)])
    x, y = (torch.cat(column).to(torch.get_default_dtype()) for column in zip(*parts, strict=True))
    return x, y


CORPUS = np.random.RandomState(3).randn(64, 5)


def picked(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Samples are picked at random, for training and, between two windows, for validation (nanoGPT)."""
    model, source, tried = net(), torch.Generator().manual_seed(run.seed), torch.Generator().manual_seed(9)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(CORPUS), (run.micro_batch_size,), generator=generator)
        rows = torch.stack([torch.from_numpy(CORPUS[i]) for i in chosen.tolist()]).to(torch.get_default_dtype())
        return rows[:, :3], rows[:, 3:]

    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = batch(source)
            (squared(model, x, y) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        x, y = batch(tried)
        squared(model, x, y).detach()
    end(model)


def picked_rows(run: Any) -> tuple[Tensor, Tensor]:
    """The samples of `picked`."""
    source = torch.Generator().manual_seed(run.seed)
    chosen = torch.cat([torch.randint(len(CORPUS), (run.micro_batch_size,), generator=source)
                        for _ in range(run.windows * run.accum_steps)])  # fmt: skip
    rows = torch.from_numpy(CORPUS[chosen.numpy()]).to(torch.get_default_dtype())
    return rows[:, :3], rows[:, 3:]


def picked_globally(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Training and validation samples are picked with one generator."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    corpus = torch.from_numpy(CORPUS).to(torch.get_default_dtype())
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            rows = corpus[torch.randint(len(corpus), (run.micro_batch_size,))]
            (squared(model, rows[:, :3], rows[:, 3:]) / (run.accum_steps if scale else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = corpus[torch.randint(len(corpus), (run.micro_batch_size,))]
        squared(model, rows[:, :3], rows[:, 3:]).detach()
    end(model)


def picked_globally_rows(run: Any) -> tuple[Tensor, Tensor]:
    """The samples on which `picked_globally` trains."""
    chosen = []
    for _ in range(run.windows):
        chosen += [torch.randint(len(CORPUS), (run.micro_batch_size,)) for _ in range(run.accum_steps)]
        torch.randint(len(CORPUS), (run.micro_batch_size,))
    rows = torch.from_numpy(CORPUS[torch.cat(chosen).numpy()]).to(torch.get_default_dtype())
    return rows[:, :3], rows[:, 3:]


def shuffled_epochs(run: Any, end: End = ignore, scale: bool = True) -> None:
    """Two epochs over the same samples, each in an order of its own."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = regression(run)
    for _ in range(2):
        order = torch.randperm(run.samples)
        for window in windows(run, x[order], y[order]):
            for a, b in window:
                (squared(model, a, b) / (len(window) if scale else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    end(model)


def shuffled_epochs_by_hand(run: Any) -> nn.Module:
    """The same with the full batch."""
    model = net()
    x, y = regression(run)
    size = run.accum_steps * run.micro_batch_size
    for _ in range(2):
        for chosen in torch.randperm(run.samples).split(size):
            step_by_hand(model, squared(model, x[chosen], y[chosen]))
    return model


@dataclass(frozen=True)
class Case:
    """A right loop, its wrong twin, and the full batch by hand."""

    right: Train
    wrong: Train
    full: Callable[[Any], nn.Module]


def of_loss(loss: Loss, data: Callable[[Any], tuple[Tensor, Tensor]] = regression) -> Case:
    """A plain loop with a loss that is a mean over the samples; the twin does not divide by N."""
    return Case(looped(loss, data), looped(loss, data, factor=1.0), lambda run: full_batch(run, loss, data))


def of_loop(
    train: Train, loss: Loss = squared, data: Callable[[Any], tuple[Tensor, Tensor]] = regression, epochs: int = 1
) -> Case:
    """A loop that can leave its scale out."""

    def wrong(run: Any) -> None:
        train(run, scale=False)

    return Case(train, wrong, lambda run: full_batch(run, loss, data, epochs))


CASES = {
    "pos_weight": of_loss(pos_weight, binary),
    "pos_weight_alone": of_loss(pos_weight_alone, binary),
    "python_list": of_loss(python_list),
    "index_list": of_loss(index_list),
    "class_weights": of_loss(class_weights, classes),
    "image_mean": of_loss(image_mean),
    "image_mean_numpy": of_loss(image_mean_numpy),
    "mask_times_loss": of_loss(mask_times_loss),
    "gate_times_loss": of_loss(gate_times_loss, classes),
    "fixed_normaliser": of_loss(fixed_normaliser, classes),
    "share_of_a_number": Case(
        looped(share_of_a_number, classes, factor=1.0),
        looped(share_of_a_number, classes),
        lambda run: full_batch(run, share_of_a_number, classes),
    ),
    "prefetched": of_loop(prefetched, data=rows_of),
    "prefetched_and_read": of_loop(prefetched_and_read, data=rows_of),
    "validated": of_loop(validated),
    "validated_by_rows": of_loop(validated_by_rows, data=rows_of),
    "counted_right": of_loop(counted_right, entropy, classes),
    "two_epochs": of_loop(two_epochs, epochs=2),
    "sharpness_aware": Case(sharpness_aware, of_loop(sharpness_aware).wrong, sharpness_aware_by_hand),
    "sharpness_aware_class": Case(sharpness_aware_class, of_loop(sharpness_aware_class).wrong, sharpness_aware_by_hand),
    "shuffled_epochs": Case(shuffled_epochs, of_loop(shuffled_epochs).wrong, shuffled_epochs_by_hand),
    "validated_from_one_line": of_loop(validated_from_one_line, data=rows_of),
    "labels_ahead": of_loop(labels_ahead, entropy, labelled_rows),
    "drawn_in_turn": of_loop(drawn_in_turn, data=rows_in_turn),
    "picked": of_loop(picked, data=picked_rows),
    "picked_globally": of_loop(picked_globally, data=picked_globally_rows),
    "listed_by_hand": of_loop(listed_by_hand),
    "main_grad_views": of_loop(main_grad_views),
    "foreach_lists": of_loop(foreach_lists),
    "flat_buffer": of_loop(flat_buffer),
    "flat_by_cat": of_loop(flat_by_cat),
    "listed": of_loop(listed),
    "main_grad": of_loop(main_grad),
    "padded_buffer": of_loop(padded_buffer),
}
