"""What `check` says of a wrong step: elements that differ, fractions only where they are exact, names."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.process.watch import Events
from gradproof.shadow.record.hooks import Hooks
from gradproof.shadow.tape import Tape
from gradproof.shadow.verify import verifier as verify
from gradproof.shadow.verify.diagnosis import scale
from gradproof.shadow.verify.obligations import differing


@pytest.mark.parametrize(("factor", "words"), [
    (4.0, "4 times"), (0.25, "1/4 times"), (1 / 3, "1/3 times"), (float(Fraction(7, 3)), "7/3 times"),
    (0.3334, "about 0.3334 times"), (0.7502, "about 0.7502 times"), (np.pi, "about 3.142 times"),
])  # fmt: skip
def test_a_fraction_is_shown_only_where_it_is_exact(factor: float, words: str) -> None:
    full = np.array([1.0, -2.0, 3.0])
    assert str(scale(factor * full, full)) == f"{words} the full batch's"
    assert str(scale(4.0 * full + [0, 0, 0.01], full)).startswith("about ")


def test_a_counterexample_has_the_elements_that_differ() -> None:
    full = np.zeros(40)
    ours = full.copy()
    ours[[20, 33]] = 0.5, -1.0
    ours[3] = 1e-9
    assert differing(ours, full) == {"elements": [20, 33], "accumulated": [0.5, -1.0], "full_batch": [0.0, 0.0]}
    assert len(differing(np.ones(40), full)["elements"]) == 8


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


def test_the_refutation_of_a_step_shows_no_zeros() -> None:
    shown = verify.check(sparse, domains=["real"]).result("GA-EQ-001").counterexample
    assert shown is not None
    assert all(shown["accumulated"])
    assert all(place >= 6 for place in shown["elements"]) or len(shown["elements"]) == 1


def test_a_learning_rate_set_in_each_micro_batch_is_a_schedule() -> None:
    found = verify.check(by_hand, domains=["real"]).result("GA-INV-003")
    assert (found.outcome, "learning rate was changed by hand" in found.reason) == (Outcome.REFUTED, True)
    assert found.place is not None
    assert found.place.function == "by_hand"
    assert verify.check(a_window, domains=["real"]).outcome is Outcome.HOLDS


def test_a_parameter_has_its_name_after_the_model_was_moved() -> None:
    tape = Tape()
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    with Hooks(Events(tape)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for p in model.parameters():
            p.grad = None
        model.to(torch.float64).to(torch.float32)
        model(torch.randn(2, 3)).mean().backward()
        optimizer.step()
    named = {name for event in tape.events("accumulate") for name in event.detail["params"]}
    assert named == {"0.weight", "0.bias", "1.weight", "1.bias"}
