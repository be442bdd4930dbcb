"""A batch norm in training: its samples have no gradient and no loss of their own, so neither is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
