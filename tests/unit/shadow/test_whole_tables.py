"""Tensors with more rows than a window has samples, beside a whole data set: constants of both runs, or samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run

ROWS, CLASSES = 64, 10
HOLDS, UNKNOWN, REFUTED = Outcome.HOLDS, Outcome.UNKNOWN, Outcome.REFUTED
Loss = Callable[[Tensor, Tensor, slice], Tensor]
"""The loss of scores, labels, and where they are in the data set."""


@dataclass
class Data:
    """The data set, what was computed from it before training, and how a micro-batch is taken."""

    x: Tensor
    y: Tensor
    loss: Loss = lambda scores, labels, _: F.cross_entropy(scores, labels)
    inputs: Callable[[Tensor, slice], Tensor] = lambda rows, _: rows


def entropy(weight: Tensor) -> Loss:
    """A weighted loss that is divided by the number of samples."""
    return lambda scores, labels, _: F.cross_entropy(scores, labels, weight=weight, reduction="none").mean()


def plain(data: Data) -> None:
    """Nothing else."""


def drawn_weights(data: Data) -> None:
    data.loss = entropy(torch.rand(CLASSES) + 0.5)


def listed_weights(data: Data) -> None:
    data.loss = entropy(torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1, 1, 4]))


def weights_made_anew(data: Data) -> None:
    data.loss = lambda *given: entropy(torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1, 1, 4]))(*given)


def weights_of_all_labels(data: Data) -> None:
    counts = torch.bincount(data.y, minlength=CLASSES).float()
    data.loss = entropy(counts.sum() / (CLASSES * counts))


def normalized(data: Data) -> None:
    data.x = (data.x - data.x.mean(0)) / data.x.std(0)


def normalized_by_batches(data: Data) -> None:
    mean, std = data.x.mean(), data.x.std()
    data.inputs = lambda rows, _: (rows - mean) / std


def taught(data: Data) -> None:
    scores = data.x @ torch.randn(8, CLASSES) + torch.randn(CLASSES)
    data.loss = lambda found, _, at: F.mse_loss(found, scores[at])


def looked_up(data: Data) -> None:
    table, ids = torch.randn(20, 8), torch.randint(0, 20, (ROWS,))
    data.inputs = lambda rows, at: rows + F.embedding(ids[at], table)


def looked_up_outside(data: Data) -> None:
    table = torch.from_numpy(np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32))
    ids = torch.randint(0, 20, (ROWS,))
    data.inputs = lambda rows, at: rows + F.embedding(ids[at], table)


def of_positives(data: Data) -> None:
    targets = (data.y > 4).float()
    weight = (targets == 0).sum() / (targets == 1).sum()
    data.loss = lambda scores, _, at: F.binary_cross_entropy_with_logits(scores[:, 0], targets[at], pos_weight=weight)


def in_order(data: Data) -> None:
    order = data.x.sum(1).argsort()
    data.x, data.y = data.x[order], data.y[order]


def by_an_order(data: Data) -> None:
    order = data.x.sum(1).argsort()
    data.inputs = lambda _, at: data.x[order[at]]
    data.loss = lambda scores, _, at: F.cross_entropy(scores, data.y[order[at]])


def normalized_in_the_loop(data: Data) -> None:
    data.inputs = lambda rows, _: (rows - data.x.mean(0)) / data.x.std(0)


RIGHT = (
    plain, drawn_weights, listed_weights, weights_made_anew, weights_of_all_labels, normalized, normalized_by_batches,
    taught, looked_up, looked_up_outside, of_positives, in_order, by_an_order, normalized_in_the_loop,
)  # fmt: skip


def weights_of_the_micro_batch(data: Data) -> None:
    def loss(scores: Tensor, labels: Tensor, at: slice) -> Tensor:
        return entropy(1 / (1 + torch.bincount(labels, minlength=CLASSES).float()))(scores, labels, at)

    data.loss = loss


def a_mean_by_weights(data: Data) -> None:
    weight = torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 1, 1, 4])
    data.loss = lambda scores, labels, _: F.cross_entropy(scores, labels, weight=weight)


def the_first_window_again(data: Data) -> None:
    data.inputs = lambda rows, at: data.x[slice(at.start % 8, at.start % 8 + len(rows))]
    data.loss = lambda scores, _, at: F.cross_entropy(scores, data.y[slice(at.start % 8, at.start % 8 + len(scores))])


def the_first_window_again_normalized(data: Data) -> None:
    normalized(data)
    the_first_window_again(data)


def all_data_in_each_micro_batch(data: Data) -> None:
    data.inputs = lambda rows, at: data.x
    data.loss = lambda scores, _, at: F.cross_entropy(scores, data.y)


def a_memory_of_all_data(data: Data) -> None:
    """The rows of the data set meet the samples, each row alike; but the samples are rows of it as well."""
    data.inputs = lambda rows, at: rows + torch.softmax(rows @ data.x.T, 1) @ data.x


def picked_again_beside_all_data(data: Data) -> None:
    """Rows are picked by lists of Python, the first eight again and again. Each window meets all rows as well."""
    labels, weight = data.y.tolist(), nn.Parameter(torch.randn(8, CLASSES))

    def picked(at: slice) -> Tensor:
        return torch.tensor([i % 8 for i in range(at.start, at.stop)])

    data.inputs = lambda _, at: data.x[picked(at)]
    data.loss = lambda scores, _, at: F.cross_entropy(
        scores - (data.x @ weight).mean(0), torch.tensor([labels[i] for i in picked(at).tolist()])
    )


def by_a_growing_mean(data: Data) -> None:
    """A window is normalized by samples of the windows before and after it."""
    data.inputs = lambda rows, at: rows - data.x[: at.start // 8 * 8 + 16].mean(0)


def sorted_again(data: Data) -> None:
    """The rows are taken in the order of a number that each has, and the first eight again and again."""
    order = data.x.sum(1).argsort()
    data.inputs = lambda rows, at: data.x[order[slice(at.start % 8, at.start % 8 + len(rows))]]
    data.loss = lambda scores, _, at: F.cross_entropy(
        scores, data.y[order[slice(at.start % 8, at.start % 8 + len(scores))]]
    )


def by_counts_that_grow(data: Data) -> None:
    """The loss of a window is divided by what the windows before had as well."""
    mask = torch.from_numpy((np.arange(ROWS) % 3 > 0).astype(np.float32))
    totals = [mask[: (window + 1) * 8].sum() for window in range(ROWS // 8)]

    def loss(scores: Tensor, labels: Tensor, at: slice) -> Tensor:
        each = F.cross_entropy(scores, labels, reduction="none") * mask[at]
        return each.sum() / totals[at.start // 8] * (8 // len(scores)) + scores.square().mean()

    data.loss = loss


WRONG = (
    weights_of_the_micro_batch, a_mean_by_weights, the_first_window_again, the_first_window_again_normalized,
    all_data_in_each_micro_batch, by_counts_that_grow, picked_again_beside_all_data, sorted_again,
    by_a_growing_mean,
)  # fmt: skip


def checked(change: Callable[[Data], None], share: Callable[[int], float] = lambda n: 1 / n) -> Verification:
    """The verification of a loop over a data set of 64 rows, of which two windows are seen."""

    def train(run: Run) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        data = Data(torch.randn(ROWS, 8), torch.randint(0, CLASSES, (ROWS,)))
        change(data)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(run.micro_batches):
            at = slice(number * run.micro_batch_size, (number + 1) * run.micro_batch_size)
            loss = data.loss(model(data.inputs(data.x[at], at)), data.y[at], at)
            (loss * share(run.accum_steps)).backward()
            if (number + 1) % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return check_whole(train, "train", Request(tables=True))


def said(found: Verification) -> list[Any]:
    """What does not hold."""
    return [(r.obligation, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS]


@pytest.mark.parametrize("change", RIGHT)
def test_a_constant_of_both_runs_is_no_sample(change: Callable[[Data], None]) -> None:
    found = checked(change)
    assert found.outcome is HOLDS, said(found)
    assert any("constants of both runs" in text for text in found.assumptions) == (change is not plain)


@pytest.mark.parametrize("change", RIGHT)
def test_the_twin_that_does_not_divide_is_refuted(change: Callable[[Data], None]) -> None:
    found = checked(change, lambda _: 1.0)
    assert found.result("GA-EQ-001").outcome is REFUTED, said(found)


@pytest.mark.parametrize("change", [*WRONG, a_memory_of_all_data])
def test_samples_are_not_taken_for_constants(change: Callable[[Data], None]) -> None:
    found = checked(change)
    assert found.outcome is not HOLDS
    assert (found.outcome is REFUTED) == change.__name__.startswith(("a_mean", "the_first", "sorted"))
    if change in (picked_again_beside_all_data, by_a_growing_mean):
        assert not any("constants of both runs" in text for text in found.assumptions)


def test_a_table_that_python_indexes_is_not_shown_to_be_a_constant() -> None:
    """An index of samples and one of constants are alike; an embedding is one of constants."""

    def indexed(data: Data) -> None:
        table, ids = torch.randn(20, 8), torch.randint(0, 20, (ROWS,))
        data.inputs = lambda rows, at: rows + table[ids[at]]

    assert checked(indexed).outcome is UNKNOWN


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("tables", [False, True])
def test_samples_in_any_order_are_one_micro_batch_below_fp32(tables: bool, summed: bool) -> None:
    """Samples 5 and 2 are of one micro-batch where the loop takes them together."""

    def train(run: Run) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 1).to(torch.bfloat16 if summed else torch.float32)
        x, order = torch.randn(run.samples, 8), torch.randperm(run.samples)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, rows in enumerate(order.split(run.micro_batch_size), 1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x[rows]).square().mean() / run.accum_steps
            loss.backward()
            if number % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = check_whole(train, "train", Request(tables=tables)).result("GA-INV-004")
    assert found.outcome is (REFUTED if summed else HOLDS), found.reason


@pytest.mark.parametrize("right", [True, False])
def test_the_largest_score_is_a_label_that_counts(right: bool) -> None:
    def scored(data: Data) -> None:
        data.y = (data.x @ torch.randn(8, CLASSES)).argmax(1)

    found = checked(scored, (lambda n: 1 / n) if right else (lambda _: 1.0))
    assert found.outcome is (HOLDS if right else REFUTED), said(found)
