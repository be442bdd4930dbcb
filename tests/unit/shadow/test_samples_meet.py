"""Samples that meet: in a batch norm nothing is decided, and rows that torch did not make are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.by_terms import APART
from tests import checked

NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(16),
    "batch norm in eval mode": lambda: nn.BatchNorm1d(16).eval(),
    "group norm": lambda: nn.GroupNorm(4, 16),
}


def trains(norm: str, wrong: bool = False) -> Callable[[Any], list[Any]]:
    """A right loop that returns the loss of each window; `wrong`: that of its last micro-batch alone."""

    def train(run: Any) -> list[Any]:
        model = nn.Sequential(nn.Linear(8, 16), NORMS[norm](), nn.Linear(16, 1))
        optimizer, losses, total = torch.optim.SGD(model.parameters(), 0.1), list[Any](), torch.zeros(())
        parts = (torch.randn(run.samples, size).split(run.micro_batch_size) for size in (8, 1))
        for i, (x, y) in enumerate(zip(*parts, strict=True), 1):
            loss = nn.functional.mse_loss(model(x), y) / run.accum_steps
            loss.backward()
            total = loss.detach() * run.accum_steps if wrong else total + loss.detach()
            if i % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                losses.append(total)
                total = torch.zeros(())
        return losses

    return train


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_loss_is_refuted_only_where_samples_stand_apart(norm: str, wrong: bool) -> None:
    found = checked.check(trains(norm, wrong))
    loss, equal = found.result("GA-INV-001"), found.result("GA-EQ-001")
    if norm == "batch norm":
        assert (equal.outcome, equal.help) == (Outcome.OUTSIDE, APART)
        assert (found.outcome, loss.outcome) == (Outcome.OUTSIDE, Outcome.UNKNOWN)
    else:
        assert equal.outcome is Outcome.HOLDS
        assert loss.outcome is (Outcome.REFUTED if wrong else Outcome.HOLDS)


def test_watch_says_what_to_do_about_a_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train() -> None:
        for i in range(12):
            (nn.functional.mse_loss(model(torch.randn(2, 8)), torch.randn(2, 1)) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    equal = checked.watch(train).result("GA-EQ-001")
    assert (equal.outcome, equal.help) == (Outcome.OUTSIDE, APART)


def test_a_check_without_a_tail_names_it() -> None:
    """README's loop is right where no window is short, so that no tail is recorded unasked."""
    said = "a short last window: --tail 2 records one"
    assert said in checked.check(trains("group norm")).uncovered
    asked = checked.check(trains("group norm"), tail=2)
    assert (asked.outcome, said in asked.uncovered) == (Outcome.REFUTED, False)


def centred(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose mean is taken off: its rows meet before the model."""
    x, y = (torch.stack(part) for part in zip(*rows, strict=True))
    return x - x.mean(0), y


class Arrays(torch.utils.data.Dataset[Any]):
    """Samples as arrays of NumPy's."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> Any:
        made = numpy.random.default_rng(at).standard_normal(9, dtype=numpy.float32)
        return made[:8], made[8:]


X, Y = torch.randn(24, 8), torch.randn(24, 1)
TABLE = X.numpy().copy()


def of_a_loader(loader: Any) -> Callable[[], Any]:
    """The batches of a data loader."""
    return lambda: iter(loader)


def in_turn(batch: Callable[[slice], Any]) -> Callable[[], Any]:
    """The micro-batches of two samples, each by its rows."""
    return lambda: (batch(slice(at, at + 2)) for at in range(0, 24, 2))


PAIRS = torch.utils.data.TensorDataset(X, Y)
OUTSIDE: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "numpy moves labels": (in_turn(lambda at: (X[at], torch.from_numpy(numpy.roll(Y[at].numpy(), 1, 0)))), ["[2, 1]"]),
    "a list of numbers": (in_turn(lambda at: (X[at], torch.tensor([*reversed(Y[at].tolist())]))), ["[2, 1]"]),
    "numpy makes a batch": (in_turn(lambda at: (torch.from_numpy(TABLE[at] * 2), Y[at])), ["[2, 8]"]),
    "numpy, and torch goes on": (in_turn(lambda at: (torch.from_numpy(TABLE[at]).float().clone(), Y[at])), ["[2, 8]"]),
    "a worker's own function": (
        of_a_loader(torch.utils.data.DataLoader(PAIRS, 2, num_workers=1, collate_fn=centred)), ["[2, 8]"],
    ),
    "a worker": (of_a_loader(torch.utils.data.DataLoader(PAIRS, 2, num_workers=1)), []),
    "arrays, one by one": (of_a_loader(torch.utils.data.DataLoader(Arrays(), 2)), []),
    "a table of numpy's": (in_turn(lambda at: (torch.from_numpy(TABLE)[at], Y[at])), []),
    "rows, one by one": (in_turn(lambda at: (torch.stack([torch.from_numpy(row) for row in TABLE[at]]), Y[at])), []),
    "torch alone": (in_turn(lambda at: (X[at], Y[at])), []),
    "labels of other rows": (in_turn(lambda at: (X[at], torch.stack([Y[at.start + 1], Y[at.start]]))), ["[2, 1]"]),
    "rows in another order": (in_turn(lambda at: (X[[at.start + 1, at.start]], Y[[at.start + 1, at.start]])), []),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_rows_that_torch_did_not_make_are_named(name: str) -> None:
    """What NumPy, Python or a worker did to the rows of a batch is not seen: that each is a sample is said first."""
    batches, shapes = OUTSIDE[name]

    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for i, (x, y) in enumerate(batches()):
            (nn.functional.mse_loss(model(x), y) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    found = checked.watch(train)
    said = [line for line in found.taken if line.startswith("for one sample each: ")]
    assert found.result("GA-EQ-001").outcome is Outcome.HOLDS
    assert [line.rpartition(": ")[2].rpartition(" at ")[0] for line in said] == shapes
