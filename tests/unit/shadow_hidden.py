"""Training functions whose bug hides in a running average, in counts of labels, or in one line that makes all data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from shadow_steps import batches
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

KEPT = 0.9
TOKENS, WIDTH, LENGTH = 5, 3, 4
LENGTHS = [1, 3, 2, 2, 3, 1, 2, 2, 2, 4, 3, 3, 4, 2, 3, 3]
"""Valid tokens of each sample: as many in each micro-batch of a window, by accident."""

Advance = Callable[[], None]


def copied(model: nn.Module) -> Advance:
    """The average is overwritten with a temporary."""
    kept = copy.deepcopy(model).requires_grad_(False)

    def advance() -> None:
        for e, p in zip(kept.state_dict().values(), model.state_dict().values(), strict=True):
            e.copy_(KEPT * e + (1 - KEPT) * p)

    return advance


def subtracted(model: nn.Module) -> Advance:
    """The distance to the weight is taken off."""
    kept = [p.detach().clone() for p in model.parameters()]

    def advance() -> None:
        for e, p in zip(kept, model.parameters(), strict=True):
            e.sub_((1 - KEPT) * (e - p))

    return advance


def foreach(model: nn.Module) -> Advance:
    """Several tensors at once."""
    kept = [p.detach().clone() for p in model.parameters()]

    def advance() -> None:
        torch._foreach_mul_(kept, KEPT)
        torch._foreach_add_(kept, [(1 - KEPT) * p for p in model.parameters()])

    return advance


def double(model: nn.Module) -> Advance:
    """In float64."""
    kept = [p.detach().double() for p in model.parameters()]

    def advance() -> None:
        for e, p in zip(kept, model.parameters(), strict=True):
            e.mul_(KEPT).add_(p.double(), alpha=1 - KEPT)

    return advance


def flat(model: nn.Module) -> Advance:
    """All weights in one vector."""
    kept = parameters_to_vector(model.parameters()).detach().clone()

    def advance() -> None:
        kept.mul_(KEPT).add_(parameters_to_vector(model.parameters()), alpha=1 - KEPT)

    return advance


def renewed(model: nn.Module) -> Advance:
    """A new tensor every time."""
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}

    def advance() -> None:
        for n, p in model.named_parameters():
            kept[n] = kept[n] * KEPT + p.detach() * (1 - KEPT)

    return advance


def assigned(model: nn.Module) -> Advance:
    """A new tensor is given to a parameter of another model."""
    kept = copy.deepcopy(model)

    def advance() -> None:
        for e, p in zip(kept.parameters(), model.parameters(), strict=True):
            e.data = e.data * KEPT + p.data * (1 - KEPT)

    return advance


AVERAGES = (copied, subtracted, foreach, double, flat, renewed, assigned)


def averaging(make: Callable[[nn.Module], Advance], each: bool) -> Callable[[Any], None]:
    """A regression whose average advances at every micro-batch, or at every step."""

    def train(run: Any) -> None:
        model, count = nn.Linear(3, 2), 0
        optimizer, advance = torch.optim.SGD(model.parameters(), lr=0.1), make(model)
        for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
            (F.mse_loss(model(x), y) / window).backward()
            count += 1
            if count == window:
                optimizer.step()
                optimizer.zero_grad()
                count = 0
            if each or count == 0:
                with torch.no_grad():
                    advance()

    return train


def ids(run: Any) -> list[list[int]]:
    """Token ids, one row a sample."""
    return [[(3 * i + j * j + i * j) % TOKENS for j in range(LENGTH)] for i in range(run.samples)]


def net(deep: bool = False) -> nn.Module:
    """Logits of every token."""
    inner = [nn.Linear(WIDTH, WIDTH)] if deep else []
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *inner, nn.Linear(WIDTH, TOKENS))


def language(run: Any, model: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> None:
    """Train; `loss` is given logits, labels, and the labels of the window."""
    optimizer, pairs = torch.optim.SGD(model.parameters(), lr=0.1), list(batches(run, x, y))
    for first in range(0, len(pairs), run.accum_steps):
        window = pairs[first : first + run.accum_steps]
        labels = [b for _, b, _ in window]
        for a, b, _ in window:
            loss(model(a).flatten(0, 1), b.flatten(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def masked(run: Any) -> tuple[Tensor, Tensor]:
    """Labels that torch computes from ids and lengths."""
    x, lengths = torch.tensor(ids(run)), torch.tensor(LENGTHS)
    return x, x.masked_fill(torch.arange(LENGTH) >= lengths[:, None], -100)


def attended(run: Any) -> tuple[Tensor, Tensor]:
    """Labels that torch computes from ids and an attention mask."""
    x = torch.tensor(ids(run))
    mask = torch.tensor([[1] * n + [0] * (LENGTH - n) for n in LENGTHS])
    return x, torch.where(mask == 1, x, -100)


def beside_a_table(run: Any) -> tuple[Tensor, Tensor]:
    """Labels from lists, and a table that has nothing to do with the samples."""
    torch.tensor([0, 2, 4])
    rows = ids(run)
    return torch.tensor(rows), torch.tensor([cut(r, n) for r, n in zip(rows, LENGTHS, strict=True)])


def cut(row: Sequence[int], valid: int) -> list[int]:
    """Labels of which the last ones are ignored."""
    return [*row[:valid], *[-100] * (len(row) - valid)]


def mean_of_means(make: Callable[[Any], tuple[Tensor, Tensor]]) -> Callable[[Any], None]:
    """Right at the recorded lengths alone."""
    return lambda run: language(run, net(), *make(run), lambda out, y, ys: F.cross_entropy(out, y) / len(ys))


def counted(labels: Sequence[Tensor]) -> Tensor:
    """Valid tokens of a window."""
    return torch.stack([(y != -100).sum() for y in labels]).sum()


def by_window(out: Tensor, y: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """Right."""
    return F.cross_entropy(out, y, reduction="sum") / counted(labels)


def counted_in_python(run: Any) -> None:
    """Right: the counts come from the lists that the labels are made of."""
    model, rows, size = net(), list(zip(ids(run), LENGTHS, strict=True)), run.micro_batch_size
    optimizer, whole = torch.optim.SGD(model.parameters(), lr=0.1), run.effective_batch_size
    for begin in range(0, len(rows), whole):
        tokens = sum(n for _, n in rows[begin : begin + whole])
        for i in range(begin, begin + whole, size):
            x = torch.tensor([r for r, _ in rows[i : i + size]])
            y = torch.tensor([cut(r, n) for r, n in rows[i : i + size]])
            (F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def hook_by_own_count(run: Any) -> None:
    """A hook rescales the embedding's gradient alone by counts that are equal in the recording."""
    model, counts = net(deep=True), {}
    weight: Tensor = model[0].weight  # type: ignore[index,assignment]
    weight.register_hook(lambda g: g * counts["window"] / counts["own"] / run.accum_steps)

    def loss(out: Tensor, y: Tensor, labels: Sequence[Tensor]) -> Tensor:
        counts.update(window=counted(labels), own=(y != -100).sum())
        return by_window(out, y, labels)

    language(run, model, *masked(run), loss)


def second_loss_by_own_count(run: Any) -> None:
    """A regulariser of the logits is averaged over the valid tokens of its micro-batch."""

    def loss(out: Tensor, y: Tensor, labels: Sequence[Tensor]) -> Tensor:
        valid = y != -100
        more = (out.logsumexp(-1).square() * valid).sum() / valid.sum()
        return by_window(out, y, labels) + 0.01 * more / len(labels)

    language(run, net(), *masked(run), loss)


def drawn(*shape: int) -> Tensor:
    """One line that draws all data."""
    return torch.randn(*shape)


def tensor_of(rows: Sequence[Sequence[float]]) -> Tensor:
    """One line that makes all data."""
    return torch.tensor(rows)


def one_line_draws(run: Any, scaled: bool = True) -> None:
    """Right: inputs and targets of every micro-batch come from one line."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            x, y = drawn(run.micro_batch_size, 2), None
            y = drawn(run.micro_batch_size, 2)
            loss = F.mse_loss(model(x), y)
            (loss / run.accum_steps if scaled else loss).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_line_draws_unscaled(run: Any) -> None:
    """The 1/N is missing."""
    one_line_draws(run, scaled=False)


def one_line_makes(run: Any) -> None:
    """Right: ids and labels of every micro-batch come from one line."""
    model, rows, size = net(), ids(run), run.micro_batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for begin in range(0, len(rows), run.effective_batch_size):
        for i in range(begin, begin + run.effective_batch_size, size):
            x = tensor_of([r[:-1] for r in rows[i : i + size]])
            y = tensor_of([r[1:] for r in rows[i : i + size]])
            (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def epochs_with_a_rest(run: Any) -> None:
    """Right: every window is an epoch over the same samples; others are kept for an evaluation."""
    model, count = nn.Linear(3, 2), run.effective_batch_size
    x, y = torch.randn(count + count // 2, 3), torch.randn(count + count // 2, 2)
    optimizer, size = torch.optim.SGD(model.parameters(), lr=0.1), run.micro_batch_size
    for _ in range(run.windows):
        for a, b in zip(x[:count].split(size), y[:count].split(size), strict=True):
            (F.mse_loss(model(a), b) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        F.mse_loss(model(x[count:]), y[count:])


def sorted_inside(run: Any, swapped: bool = False) -> None:
    """Right: the samples of each micro-batch are sorted by a number of theirs; `swapped`: two windows change places."""
    model, size = nn.Linear(1, 1), run.micro_batch_size
    rows = [((5 * i + 3) % 16 / 16, (7 * i + 1) % 16 / 16) for i in range(run.samples)]
    optimizer, whole = torch.optim.SGD(model.parameters(), lr=0.1), run.effective_batch_size
    if swapped and run.accum_steps > 1:
        rows = rows[whole:] + rows[:whole]
    for begin in range(0, len(rows), whole):
        for i in range(begin, begin + whole, size):
            taken = sorted(rows[i : i + size])
            x = torch.tensor([[a] for a, _ in taken])
            y = torch.tensor([[b] for _, b in taken])
            (F.mse_loss(model(x), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def windows_swapped(run: Any) -> None:
    """The micro-batches of the second window come first."""
    sorted_inside(run, swapped=True)


def ids_sorted_inside(run: Any) -> None:
    """Right: token ids, the rows of each micro-batch sorted."""
    model, rows, size = net(), ids(run), run.micro_batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for begin in range(0, len(rows), run.effective_batch_size):
        for i in range(begin, begin + run.effective_batch_size, size):
            taken = torch.tensor(sorted(rows[i : i + size]))
            (F.cross_entropy(model(taken[:, :-1]).flatten(0, 1), taken[:, 1:].flatten()) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
