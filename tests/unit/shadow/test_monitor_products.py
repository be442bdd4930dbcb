"""What a monitor must not tell: a loss whose product may be 1/N, a validation's rows, a log that is no number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradproof.core.outcome import Outcome
from gradproof.monitoring import CountRules, report_loss
from gradproof.shadow.judge.by_events import reported
from gradproof.shadow.tape.handed import handed
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.monitor_report import DROPPED, heard, monitored

N = 4

pytestmark = pytest.mark.usefixtures("one_thread")


def train(share: Callable[[Tensor], Tensor], log: Callable[[Tensor, list[float]], Any] | None = None) -> Monitor:
    """Three windows of four micro-batches of two rows; `share` makes what backward starts from of squared errors."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Monitor() as monitor:
        for _ in range(3):
            seen: list[float] = []
            for _ in range(N):
                handed = share(model(torch.randn(2, 3)).square())
                handed.backward()  # type: ignore[no-untyped-call]
                seen.append(float(handed.detach()))
                if log is not None:
                    log(handed, seen)
            optimizer.step()
            optimizer.zero_grad()
    return monitor


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a product": lambda x: x.mean() * (1 / N),
    "a product with a tensor": lambda x: torch.tensor(1 / N) * x.mean(),
    "another product": lambda x: x.mean() * 0.5,
    "two means, each with its product": lambda x: x.mean() * (1 / N) + x.abs().mean() * (1 / N),
    "weights that add up to it": lambda x: x.mean() * (0.7 / N) + x.abs().mean() * (0.3 / N),
    "a division below the mean": lambda x: (x / N).mean(),
    "a product below the mean": lambda x: (x * (1 / N)).mean(),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_divided_loss_is_not_told_as_the_micro_batch_s_own(name: str) -> None:
    made = train(HIDDEN[name], lambda handed, seen: report_loss(handed))
    assert {row["loss"] for row in monitored(made)["losses"]} == {None}
    [note] = heard(made)
    assert re.search(r"\b12 reported losses 0\b", note)


def test_the_mean_of_losses_that_a_product_divided_does_not_hold() -> None:
    def log(handed: Tensor, seen: list[float]) -> None:
        if len(seen) == N:
            report_loss(sum(seen) / N, "window")

    made = train(HIDDEN["a product"], log)
    decided = reported(made, True)
    assert decided is not None
    assert decided.outcome is Outcome.UNKNOWN


TOLD: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "a quotient": (lambda x: x.mean() / N, N),
    "a quotient of a weighted loss": (lambda x: 0.5 * x.mean() / N, N),
    "a loss and a share of another": (lambda x: (x.mean() + 0.1 * x.abs().mean()) / N, N),
    "two weights that add up to one": (lambda x: 0.7 * x.mean() + 0.3 * x.abs().mean(), 1),
    "half of a square": (lambda x: (0.5 * x).mean(), 1),
    "twice the loss": (lambda x: 2 * x.mean(), 1),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_no_division_by_n_is_told(name: str) -> None:
    share, divisor = TOLD[name]
    right: list[float] = []
    made = train(share, lambda handed, seen: right.append(seen[-1] * divisor))
    assert [row["loss"] for row in monitored(made)["losses"]] == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("value", [None, "x", [1.0], {"loss": 1.0}, torch.ones(2), torch.tensor(1j)], ids=repr)
def test_a_log_that_is_no_number_stops_no_training_and_decides_nothing(value: Any) -> None:
    made = train(lambda x: x.mean() / N, lambda handed, seen: report_loss(value))
    decided = reported(made, True)
    assert decided is not None
    assert (decided.outcome, decided.reason.endswith("no number")) == (Outcome.UNKNOWN, True)


def test_a_validation_that_forgot_no_grad_tells_no_micro_batch() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor() as monitor:
        assert model.eval()(torch.ones(100, 3)).shape == (100, 2)
        model.train()
        for _ in range(N):
            (model(torch.ones(2, 3)).mean() / N).backward()
        optimizer.step()
    assert monitored(monitor)["effective"]["sizes"] == [2] * N


def test_a_model_that_trains_in_evaluation_mode_tells_its_rows() -> None:
    model = nn.Linear(3, 2).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor() as monitor:
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
    assert monitored(monitor)["effective"]["sizes"] == [2]


SCALED: dict[str, tuple[Callable[[Any, Tensor], Tensor], bool]] = {
    "scaled last": (lambda scaler, loss: scaler.scale(loss / N), True),
    "a product below the scale": (lambda scaler, loss: scaler.scale(loss * (1 / N)), False),
    "a product above the scale": (lambda scaler, loss: scaler.scale(loss) * (1 / N), False),
    "a quotient above the scale": (lambda scaler, loss: scaler.scale(loss) / N, False),
}


@pytest.mark.parametrize("name", SCALED)
def test_only_the_scaler_s_own_product_is_taken_out(name: str) -> None:
    share, stated = SCALED[name]
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    right = []
    with Monitor() as monitor:
        for _ in range(N):
            loss = model(torch.randn(2, 3)).square().mean()
            share(scaler, loss).backward()  # type: ignore[no-untyped-call]
            right.append(float(loss.detach()))
        scaler.step(optimizer)
    due = pytest.approx(right, rel=1e-6) if stated else [None] * N
    assert [row["loss"] for row in monitored(monitor)["losses"]] == due


@pytest.mark.parametrize("of", ["optimizer", "model"])
def test_gradients_that_were_zeroed_inside_a_window_have_no_effective_batch(of: str) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    owner: Any = {"optimizer": optimizer, "model": model}[of]
    for wrong in (True, False):
        owner.zero_grad()
        with Monitor() as monitor:
            for _ in range(N):
                (model(torch.ones(2, 3)).mean() / N).backward()
                (owner if wrong else other).zero_grad()
            optimizer.step()
            owner.zero_grad()
        stated = monitored(monitor)["effective"]
        assert (stated["samples"], stated["why"]) == ((None, DROPPED) if wrong else (2 * N, ""))


def test_a_closure_that_is_called_again_has_no_effective_batch() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 3)) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    with Monitor() as monitor:
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert monitored(monitor)["effective"]["why"] == DROPPED


def test_a_loss_that_overflows_by_a_product_is_still_the_loss() -> None:
    """A loop that makes a window overflow multiplies its loss by infinity; a quotient by it is no division by N."""
    loss = torch.ones(3, requires_grad=True).square().mean()
    over = handed([loss * math.inf], None, 1, "")
    assert over.own(CountRules(), 0.0, [4]) == math.inf
    assert handed([loss / math.inf], None, 1, "").divisor == 1
