"""Random numbers that are drawn by others: a probability, a mean, a deviation. Each right step has a wrong twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gradproof
from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run
from tests.soundness.tasks import LINEAR

EQ, STEP = "GA-EQ-001", "GA-INV-003"
Noise = Callable[[Tensor, int], Tensor]


def outcomes(step: Callable[[Run], Any], fake: bool) -> dict[str, Outcome]:
    """What is said of each obligation."""
    return {result.obligation: result.outcome for result in check_whole(step, "step", Request(fake=fake)).results}


def noisy(noise: Noise) -> Callable[[Run], Any]:
    """A loop that trains on what `noise` makes of the inputs of a micro-batch and of their number N."""

    def step(run: Run) -> None:
        job = LINEAR.start(run)
        for window in job.windows():
            for x, y in window:
                (F.mse_loss(job.model(noise(x, len(window))), y) / len(window)).backward()
            job.apply()

    return step


SAMPLES: list[tuple[Noise, Noise]] = [
    (lambda x, n: torch.normal(x, 0.1), lambda x, n: torch.normal(x - x.mean(0, keepdim=True), 0.1)),
    (lambda x, n: torch.normal(x, 0.1), lambda x, n: torch.normal(x * n, 0.1)),
    (lambda x, n: torch.normal(x, 0.1), lambda x, n: torch.normal(x, 0.1 * n)),
    (lambda x, n: x * torch.bernoulli(x.sigmoid()), lambda x, n: x * torch.bernoulli((x - x.mean(0)).sigmoid())),
    (
        lambda x, n: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x, n: x * torch.bernoulli(torch.full_like(x, 0.5 / n)),
    ),
    (
        lambda x, n: x + torch.normal(0.0, 1.0, (len(x), 3)),
        lambda x, n: x + torch.normal(0.0, float(n), (len(x), 3)),
    ),
]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize(("right", "wrong"), SAMPLES)
def test_numbers_that_are_drawn_by_others_for_each_sample(right: Noise, wrong: Noise, fake: bool) -> None:
    assert outcomes(noisy(right), fake)[EQ] is Outcome.HOLDS
    assert outcomes(noisy(wrong), fake)[EQ] is not Outcome.HOLDS


Draw = Callable[[Tensor, float], Any]


def drawn(draw: Draw, scaled: bool) -> Callable[[Run], Any]:
    """A loop that lets `draw` change each gradient before the step, by 1 or by the number of micro-batches."""

    def step(run: Run) -> None:
        job = LINEAR.start(run)
        for window in job.windows():
            for x, y in window:
                (F.mse_loss(job.model(x), y) / len(window)).backward()
            for gradient in job.gradients:
                draw(gradient, float(len(window)) if scaled else 1.0)
            job.apply()

    return step


GRADIENTS: list[Draw] = [
    lambda g, by: g.add_(torch.empty_like(g).normal_(0.0, by)),
    lambda g, by: g.mul_(torch.zeros_like(g).bernoulli_(0.5 / by)),
    lambda g, by: g.add_(torch.empty_like(g).uniform_(-by, by)),
    lambda g, by: g.mul_(torch.bernoulli(torch.full_like(g, 0.5 / by))),
]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("draw", GRADIENTS)
def test_numbers_that_are_drawn_for_each_gradient(draw: Draw, fake: bool) -> None:
    assert outcomes(drawn(draw, False), fake)[EQ] is Outcome.HOLDS
    assert outcomes(drawn(draw, True), fake)[EQ] is not Outcome.HOLDS


@pytest.mark.parametrize("fake", [False, True])
def test_noise_on_the_weights(fake: bool) -> None:
    def step(run: Run, scaled: bool) -> None:
        job = LINEAR.start(run)
        for window in job.windows():
            for x, y in window:
                (F.mse_loss(job.model(x), y) / len(window)).backward()
            job.apply()
            with torch.no_grad():
                for p in job.parameters:
                    p.add_(torch.empty_like(p).normal_(0.0, 0.1 * len(window) if scaled else 0.1))

    assert outcomes(lambda run: step(run, False), fake)[STEP] is Outcome.HOLDS
    assert outcomes(lambda run: step(run, True), fake)[STEP] is not Outcome.HOLDS


def shuffled(divide: bool = True, lengths: Callable[[int], Any] | None = None) -> Callable[[Run], None]:
    """A loop over a loader that shuffles. `lengths`: by their sum, as a plain number, each micro-batch is divided."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        x, y = torch.randn(run.samples, 4), torch.randint(0, 3, (run.samples,))
        own = range(run.samples) if lengths is None else lengths(run.samples)
        data = torch.utils.data.TensorDataset(x, y)
        loader = torch.utils.data.DataLoader(data, batch_size=run.micro_batch_size, shuffle=True)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (a, b) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(a), b, reduction="mean" if lengths is None else "sum")
            if lengths is not None:
                loss = loss / sum(own[i * len(a) : (i + 1) * len(a)])
            (loss / (run.accum_steps if divide else 1)).backward()
            if (i + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


def test_an_order_that_is_drawn_and_read_is_no_count() -> None:
    found = gradproof.check(shuffled())
    assert found.outcome is Outcome.HOLDS, [r.reason for r in found.results]
    assert gradproof.check(shuffled(divide=False)).result("GA-EQ-001").outcome is Outcome.REFUTED


@pytest.mark.parametrize(
    "lengths",
    [
        lambda n: torch.randint(1, 5, (n,)).tolist(),
        lambda n: torch.randint(3, 4, (n,)).tolist(),
        lambda n: torch.randint(1, 5, (n,)).clamp(3, 3).tolist(),
        lambda n: torch.randperm(n).clamp(3, 3).tolist(),
        lambda n: torch.randperm(n).tolist(),
    ],
)
def test_numbers_by_which_a_loss_is_divided_are_still_counts(lengths: Callable[[int], Any]) -> None:
    """Each micro-batch is divided by a number of its own: where all are equal, that is by chance."""
    found = gradproof.check(shuffled(lengths=lengths))
    assert found.result("GA-EQ-001").outcome is not Outcome.HOLDS


def indexed(order: Callable[[int], Any], divide: bool = True) -> Callable[[Run], None]:
    """A loop that takes the rows of a table which an order names."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        x, y, rows = torch.randn(run.samples, 4), torch.randn(run.samples, 1), order(run.samples)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(run.micro_batches):
            own = rows[i * run.micro_batch_size : (i + 1) * run.micro_batch_size]
            (F.mse_loss(model(x[own]), y[own]) / (run.accum_steps if divide else 1)).backward()
            if (i + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


ORDERS = {
    "a permutation": torch.randperm,
    "a list": lambda n: [*range(n)][::-1],
    "a tensor from outside": lambda n: torch.tensor([*range(n)][::-1]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_rows_that_an_order_names_are_those_samples(name: str) -> None:
    found = gradproof.check(indexed(ORDERS[name]))
    assert found.outcome is Outcome.HOLDS, [r.reason for r in found.results]
    assert gradproof.check(indexed(ORDERS[name], divide=False)).result("GA-EQ-001").outcome is Outcome.REFUTED


@pytest.mark.parametrize("divide", [True, False])
def test_rows_that_a_draw_names_twice_are_not_every_sample_once(divide: bool) -> None:
    found = gradproof.check(indexed(lambda n: torch.randint(n // 2, (n,)), divide))
    assert found.result("GA-DATA-001").outcome is not Outcome.HOLDS
    assert found.result("GA-EQ-001").outcome is not Outcome.HOLDS


READERS = {"tolist": lambda y: sum(n != 99 for n in y.tolist()), "numpy": lambda y: int((y.numpy() < 99).sum())}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("draw", [torch.randperm, lambda n: torch.randint(0, 16, (n,))])
def test_labels_that_are_counted_are_no_order(name: str, draw: Callable[[int], Tensor]) -> None:
    """Each micro-batch is divided by a count of its own; labels that are all different are no order."""

    def train(run: Run) -> None:
        model = torch.nn.Linear(4, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(run.samples, 4), draw(run.samples)
        parts = zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True)
        for i, (a, b) in enumerate(parts, 1):
            loss = F.cross_entropy(model(a), b, ignore_index=99, reduction="sum") / READERS[name](b)
            (loss / run.accum_steps).backward()
            if i % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    assert gradproof.check(train).result("GA-EQ-001").outcome is not Outcome.HOLDS
