"""Optimizers that count their steps in tensors; torch runs them on accelerators only, so its check is widened here."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from shadow_steps import batches
from torch import nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from tests import checked as verify


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adam", "rmsprop", "nadam"):
        module = import_module(f"torch.optim.{name}")
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"])


def train(run: Any, name: str, foreach: bool, scaled: bool) -> None:
    """A regression whose optimizer counts its steps in a tensor."""
    model, count = nn.Linear(3, 2), 0
    optimizer = getattr(torch.optim, name)(model.parameters(), capturable=True, foreach=foreach)
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        loss = F.mse_loss(model(x), y)
        (loss / window if scaled else loss).backward()
        count += 1
        if count == window:
            optimizer.step()
            optimizer.zero_grad()
            count = 0


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["Adam", "RMSprop", "NAdam"])
def test_a_capturable_optimizer(name: str, foreach: bool) -> None:
    right = verify.check(partial(train, name=name, foreach=foreach, scaled=True))
    assert right.outcome is Outcome.HOLDS, [(r.obligation, r.reason) for r in right.results]
    wrong = verify.check(partial(train, name=name, foreach=foreach, scaled=False)).result("GA-EQ-001")
    assert (wrong.outcome, " 4 times " in wrong.reason) == (Outcome.REFUTED, True)
