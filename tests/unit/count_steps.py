"""Training loops whose counts are tensors, or look as if they were: right for every mask, or at one alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gradproof.shadow.record.run import Run, record
from gradproof.shadow.tape import Tape

IGNORED, CLASSES, LENGTH = -100, 4, 5
SUM: dict[str, Any] = {"reduction": "sum"}
Batches = list[tuple[torch.Tensor, torch.Tensor]]
Rule = Callable[[nn.Module, Batches], None]


def made(counts: Sequence[int], length: int = LENGTH) -> Batches:
    """One micro-batch a count, with that many valid labels."""
    found = []
    for count in counts:
        labels = torch.randint(0, CLASSES, (2, length))
        labels.view(-1)[torch.arange(2 * length) >= count] = IGNORED
        found.append((torch.randn(2, length, 3), labels))
    return found


Finish = Callable[[nn.Module], None]


def recorded(
    rule: Rule,
    counts: Sequence[int] = (3, 7, 4),
    windows: int = 1,
    finish: Finish | None = None,
    data: Callable[..., Batches] = made,
) -> Tape:
    def step(run: Run) -> None:
        model = nn.Linear(3, CLASSES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        for _ in range(windows):
            optimizer.zero_grad()
            rule(model, data(counts))
            if finish is not None:
                finish(model)
            optimizer.step()

    run = record(step, Run())
    assert not run.error, run.error
    return run.tape


def entropy(model: nn.Module, x: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(model(x).reshape(-1, CLASSES), labels.reshape(-1), **options)


def whole(batches: Batches) -> torch.Tensor:
    return torch.stack([(labels != IGNORED).sum() for _, labels in batches]).sum()


# Right for every mask.


def tensors(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def accumulated(model: nn.Module, batches: Batches) -> None:
    total = torch.tensor(0)
    for _, labels in batches:
        total += labels.ne(IGNORED).sum().long()
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) * (1.0 / total)).backward()


def by_complement(model: nn.Module, batches: Batches) -> None:
    total = sum(labels.numel() - torch.eq(labels, IGNORED).float().sum(dim=1).sum() for _, labels in batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def rescaled(model: nn.Module, batches: Batches) -> None:
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) * 1024.0).backward()
    total = torch.cat([(~labels.eq(IGNORED)).sum().view(1) for _, labels in batches]).sum()
    for p in model.parameters():
        p.grad.div_(total * 1024)


def masked(model: nn.Module, batches: Batches) -> None:
    masks = [(labels != IGNORED).float() for _, labels in batches]
    total = torch.stack([m.sum() for m in masks]).sum()
    for (x, labels), mask in zip(batches, masks, strict=True):
        each = entropy(model, x, labels, reduction="none")
        ((each * mask.view(-1)).sum() / total).backward()


def means_by_count(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels) * ((labels != IGNORED).sum() / total)).backward()


def clamped(model: nn.Module, batches: Batches) -> None:
    total = whole(batches).clamp(min=1)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def smoothed(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels, label_smoothing=0.1, **SUM) / total).backward()


def shifted(model: nn.Module, batches: Batches) -> None:
    total = torch.stack([(labels[:, 1:] != IGNORED).sum() for _, labels in batches]).sum()
    for x, labels in batches:
        (entropy(model, x[:, :-1], labels[..., 1:].contiguous(), **SUM) / total).backward()


def padded(model: nn.Module, batches: Batches) -> None:
    total = torch.stack([labels[:, 1:].ne(IGNORED).sum() for _, labels in batches]).sum()
    for x, labels in batches:
        moved = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
        (entropy(model, x, moved, **SUM) / total).backward()


RIGHT = [
    tensors, accumulated, by_complement, rescaled, masked, means_by_count, clamped, smoothed, shifted, padded,
]  # fmt: skip


# Right at the recorded counts alone, or not known: never proved.


def by_item(model: nn.Module, batches: Batches) -> None:
    total = whole(batches).item()
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def by_numpy(model: nn.Module, batches: Batches) -> None:
    total = sum(int((labels.numpy() != IGNORED).sum()) for _, labels in batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def ratio_in_python(model: nn.Module, batches: Batches) -> None:
    """A factor that is one at equal counts, and was computed outside of torch."""
    total = whole(batches)
    for x, labels in batches:
        factor = int((labels != IGNORED).sum()) * len(batches) / int(total)
        (entropy(model, x, labels, **SUM) / total * factor).backward()


def ratio_unfollowed(model: nn.Module, batches: Batches) -> None:
    """A factor that is one at equal counts, by operators that have no rule."""
    total = whole(batches)
    counts = torch.stack([(labels != IGNORED).sum() for _, labels in batches])
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total * (counts.max() / counts.min())).backward()


def means(model: nn.Module, batches: Batches) -> None:
    for x, labels in batches:
        (entropy(model, x, labels) / len(batches)).backward()


def unshifted(model: nn.Module, batches: Batches) -> None:
    """Counts the labels before they are shifted: right where the first column is ignored."""
    for _, labels in batches:
        labels[:, 0] = IGNORED
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x[:, :-1], labels[:, 1:], **SUM) / total).backward()


def unshifted_data(counts: Sequence[int]) -> Batches:
    found = made(counts)
    columns = torch.arange(LENGTH) == 0
    return [(x, labels.masked_fill(columns, IGNORED)) for x, labels in found]


def unshifted_count(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x[:, :-1], labels[:, 1:], **SUM) / total).backward()


def one_batch(model: nn.Module, batches: Batches) -> None:
    total = (batches[0][1] != IGNORED).sum() * len(batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def branch_on_counts(model: nn.Module, batches: Batches) -> None:
    """Another factor on the side of a comparison that the recorded counts do not take."""
    total = whole(batches)
    factor = torch.where(total > 1000, 2.0, 1.0)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total * factor).backward()


def branch_on_tracked(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        share = entropy(model, x, labels, **SUM) / total
        weight = share.detach() * 0 + total
        (share * torch.where(weight > 1000, 2.0, 1.0)).backward()


def python_branch(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        loss = entropy(model, x, labels, **SUM) / total
        if total > 1000:
            loss = loss * 2
        loss.backward()


def by_shape(model: nn.Module, batches: Batches) -> None:
    """The number of valid tokens as a shape."""
    total = whole(batches)
    for x, labels in batches:
        kept = labels[labels != IGNORED]
        factor = 3 * len(kept) / sum(len(b[b != IGNORED]) for _, b in batches)
        (entropy(model, x, labels, **SUM) / total * factor).backward()


def rounded(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / ((total // 3) * 3)).backward()


def overflowing(model: nn.Module, batches: Batches) -> None:
    """Eight bits are too few for counts."""
    total = torch.stack([(labels != IGNORED).sum() for _, labels in batches]).to(torch.uint8).sum(dtype=torch.uint8)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def other_label(model: nn.Module, batches: Batches) -> None:
    """Counts what differs from another number, which is no label here."""
    total = torch.stack([(labels >= 0).sum() for _, labels in batches]).sum()
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def equal_data(model: nn.Module, batches: Batches) -> None:
    """A mask that is other data, with the same numbers."""
    masks = [torch.randint(0, 1, (2 * LENGTH,)) + (labels.view(-1) != IGNORED) for _, labels in batches]
    total = torch.stack([m.sum() for m in masks]).sum()
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()


def one_buffer(model: nn.Module, batches: Batches) -> None:
    """A count of memory that NumPy writes anew for each micro-batch, taken once."""
    memory = np.zeros((2, LENGTH), dtype=np.int64)
    labels = torch.from_numpy(memory)
    total = (labels != IGNORED).sum() * len(batches)
    for x, _ in batches:
        memory[:] = np.random.randint(0, CLASSES, memory.shape)
        (entropy(model, x, labels, **SUM) / total).backward()


def ratio_of_python(model: nn.Module, batches: Batches) -> None:
    """A factor that is one at equal counts, of numbers that were never in torch."""
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total * (5 * len(batches) / 15)).backward()


def power_of_counts(model: nn.Module, batches: Batches) -> None:
    """A power whose exponent is zero at equal counts."""
    total, first = whole(batches), (batches[0][1] != IGNORED).sum()
    for x, labels in batches:
        loss = entropy(model, x, labels, **SUM) / total
        exponent = (labels != IGNORED).sum() - first
        (loss * (loss.detach() * 0 + 2) ** exponent).backward()


def changed_later(model: nn.Module, batches: Batches) -> None:
    """Labels that are ignored only after they were counted; in this run they were before."""
    total = whole(batches)
    for x, labels in batches:
        labels[1] = IGNORED
        (entropy(model, x, labels, **SUM) / total).backward()


def dropped(model: nn.Module, batches: Batches) -> None:
    """A micro-batch without valid labels that is counted and not trained on."""
    total = whole(batches)
    for x, labels in batches[:-1]:
        (entropy(model, x, labels, **SUM) / total).backward()


def integers_of_tracked(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        share = entropy(model, x, labels, **SUM) / total
        (share * ((share.detach() * 0 + total).long() // 14)).backward()


def another_ratio(model: nn.Module, batches: Batches) -> None:
    total = whole(batches)
    for x, labels in batches:
        (entropy(model, x, labels, **SUM) / total).backward()
    first, second = ((labels != IGNORED).sum() for _, labels in batches[:2])
    for p in model.parameters():
        p.grad.mul_(first).div_(second)


EQUAL = (5, 5, 5)
READ = [by_item, by_numpy, ratio_in_python, python_branch, by_shape]
UNPROVED: list[tuple[Rule, Sequence[int]]] = [
    (power_of_counts, EQUAL),
    (changed_later, (3, 5, 4)),
    (dropped, (3, 4, 0)),
    (integers_of_tracked, (3, 7, 4)),
    (another_ratio, EQUAL),
    (ratio_of_python, EQUAL),
    (by_item, (3, 7, 4)), (by_numpy, (3, 7, 4)), (ratio_in_python, EQUAL), (ratio_unfollowed, EQUAL), (means, EQUAL),
    (unshifted, (3, 7, 4)), (one_batch, EQUAL), (branch_on_counts, (3, 7, 4)), (branch_on_tracked, (3, 7, 4)),
    (python_branch, (3, 7, 4)), (by_shape, EQUAL), (rounded, (3, 3, 3)), (overflowing, (3, 7, 4)),
    (other_label, (3, 7, 4)), (equal_data, (3, 7, 4)), (one_buffer, (10, 10, 10)),
]  # fmt: skip
