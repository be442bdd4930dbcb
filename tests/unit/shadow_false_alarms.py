"""Right training loops that look wrong for their constants, their normaliser, or the data that they read.

`end` is called with the model when a loop has ended; the tests read its weights there. Without its `scale` a loop is
wrong. `full_batch` takes the gradient of a loss on the samples of a whole window and steps by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
