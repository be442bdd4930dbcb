"""What `check` says of a wrong step: elements that differ, fractions only where they are exact, names."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from gradproof.core.outcome import Outcome
from tests import checked as verify


def sparse(run: Any) -> None:
    """The last output alone gets a gradient, and the 1/N is missing."""
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(run.samples, 6)
    for window in data.split(run.accum_steps * run.micro_batch_size):
        for batch in window.split(run.micro_batch_size):
            model(batch)[:, 1].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def by_hand(run: Any) -> None:
    """A learning rate that is set in each micro-batch."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(run.samples, 3)
    count = 0
    for window in data.split(run.accum_steps * run.micro_batch_size):
        for batch in window.split(run.micro_batch_size):
            count += 1
            optimizer.param_groups[0]["lr"] = 0.1 / count
            (model(batch).square().mean() / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_window(run: Any) -> None:
    """A learning rate that is set before each window, as nanoGPT does."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(run.samples, 3)
    for number, window in enumerate(data.split(run.accum_steps * run.micro_batch_size)):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 2)
        for batch in window.split(run.micro_batch_size):
            (model(batch).square().mean() / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_gradient_of_one_output_alone_is_refuted() -> None:
    result = verify.check(sparse).result("GA-EQ-001")
    assert (result.outcome, " 4 times " in result.reason) == (Outcome.REFUTED, True), result.reason


def test_a_learning_rate_set_in_each_micro_batch_is_refuted() -> None:
    found = verify.check(by_hand).result("GA-INV-003")
    assert found.outcome is Outcome.REFUTED
    assert re.search(r"learning rate 0\.025, .* 0\.1$", found.reason)
    assert found.location is not None
    assert found.location.function == "by_hand"
    assert verify.check(a_window).outcome is Outcome.HOLDS
