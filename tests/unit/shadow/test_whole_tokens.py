"""GA-TOK-001: every valid token of a window weighs the same, or the rule that is followed instead is named."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Result, Verification
from gradproof.shadow.tape.run import Run
from tests.checked import watch

TOKENS = "GA-TOK-001"
RIGHT, MEANS = "1/(c1 + ... + cN)", "1/(4 c_k): the mean of means"
HOLDS, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
cross_entropy = nn.functional.cross_entropy


def said(made: Verification) -> Result | None:
    """The result, where there is one."""
    return next((result for result in made.results if result.obligation == TOKENS), None)


def step(share: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor], labels: int = 5) -> Any:
    """A training step: `share` makes a micro-batch's part of the loss of scores, labels, the window's labels and N."""

    def train(run: Run) -> list[torch.Tensor]:
        torch.manual_seed(run.seed)
        model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        given = torch.randint(11, (run.samples, labels))
        wanted = torch.randint(11, (run.samples, labels))
        size, losses = run.effective_batch_size, []
        for x, y in zip(given.split(size), wanted.split(size), strict=True):
            total = torch.zeros(())
            for a, b in zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True):
                loss = share(model(a).flatten(0, 1), b.flatten(), y, run.accum_steps)
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
        return losses

    return train


def by_count(scores: torch.Tensor, labels: torch.Tensor, window: torch.Tensor, n: int) -> torch.Tensor:
    """The sum of the losses by the valid tokens of the window."""
    return cross_entropy(scores, labels, ignore_index=0, reduction="sum") / (window != 0).sum()


def of_means(scores: torch.Tensor, labels: torch.Tensor, window: torch.Tensor, n: int) -> torch.Tensor:
    """A mean of the micro-batches' means."""
    return cross_entropy(scores, labels, ignore_index=0) / n


def of_equal(scores: torch.Tensor, labels: torch.Tensor, window: torch.Tensor, n: int) -> torch.Tensor:
    """The same, where no label is ignored."""
    return cross_entropy(scores, labels) / n


@pytest.mark.parametrize("fake", [False, True])
def test_the_tokens_of_a_window_weigh_the_same_for_all_counts(fake: bool) -> None:
    found = said(check_whole(step(by_count), "step", Request(fake=fake)))
    assert found is not None
    assert found.outcome is HOLDS
    assert f"{RIGHT}, for all counts" in found.reason


@pytest.mark.parametrize(("first", "outcome"), [(False, REFUTED), (True, UNKNOWN)])
def test_a_count_of_labels_before_the_shift_is_refuted_where_numbers_show_it(first: bool, outcome: Outcome) -> None:
    """`first`: the first label of each document is ignored in all data, so that both counts are the same number."""

    def train(run: Run) -> list[torch.Tensor]:
        torch.manual_seed(run.seed)
        model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        given, wanted = torch.randint(11, (run.samples, 5)), torch.randint(1, 11, (run.samples, 5))
        wanted = wanted.masked_fill((torch.randint(3, wanted.shape) if not first else torch.arange(5)) == 0, 0)
        for x, y in zip(given.split(run.effective_batch_size), wanted.split(run.effective_batch_size), strict=True):
            count = (y != 0).sum()
            for a, b in zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True):
                scores, labels = model(a)[:, :-1].flatten(0, 1), b[:, 1:].flatten()
                total = cross_entropy(scores, labels, ignore_index=0, reduction="sum")
                (total / count).backward()
            optimizer.step()
            optimizer.zero_grad()
        return []

    made = {result.obligation: result for result in check_whole(train, "train", Request()).results}
    equal = made["GA-EQ-001"]
    assert equal.outcome is outcome
    assert ("its loss leaves some of them out" in equal.reason) is (outcome is REFUTED)
    assert equal.location is not None
    assert "total / count" in linecache.getline(equal.location.file, equal.location.line)


def test_a_mean_of_means_is_named_as_a_formula() -> None:
    """Without numbers it is named and not refuted: the counts may be equal by how the data are made."""
    for fake, outcome in ((False, REFUTED), (True, UNKNOWN)):
        found = said(check_whole(step(of_means), "step", Request(fake=fake)))
        assert found is not None
        assert found.outcome is outcome
        assert MEANS in found.reason
        assert found.counterexample is not None
        assert found.counterexample["weights"]["micro-batch 3"] == "1/(4 c3)"


def by_another_count(scores: torch.Tensor, labels: torch.Tensor, window: torch.Tensor, n: int) -> torch.Tensor:
    """The mean of a micro-batch times how many of its labels are 3."""
    return cross_entropy(scores, labels, ignore_index=0) * (labels == 3).sum()


@pytest.mark.parametrize("fake", [False, True])
def test_means_times_counts_of_their_own_are_no_mean_of_means(fake: bool) -> None:
    found = said(check_whole(step(by_another_count), "step", Request(fake=fake)))
    assert found is not None
    assert (found.outcome, "mean of means" in found.reason) == (UNKNOWN, False)


def test_a_mean_of_means_of_equal_counts_is_right() -> None:
    found = said(check_whole(step(of_equal), "step", Request()))
    assert found is not None
    assert found.outcome is HOLDS


def test_a_loss_that_counts_no_tokens_has_no_result() -> None:
    assert said(check_whole(step(of_equal, 1), "step", Request())) is None


HEAD = """
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
A, B = torch.randint(11, (64, 5)), torch.randint(11, (64, 5))
for i in range(64): B[i, : {ignored}] = -100
batches = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(A, B), batch_size=2))
for w in range(4):
    window = [next(batches) for _ in range(4)]
    c = sum(int((y != -100).sum()) for _, y in window)
    for x, y in window:
        scores = model(x).flatten(0, 1)
        ({loss}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SUM = "nn.functional.cross_entropy(scores, y.flatten(), reduction='sum')"
MEAN = "nn.functional.cross_entropy(scores, y.flatten())"
WATCHED = {
    "tokens": (f"{SUM} / c", "i % 4", HOLDS, RIGHT),
    "sums": (SUM, "i % 4", HOLDS, "1: the loss is a sum"),
    "means": (f"{MEAN} / 4", "(i // 2) % 4", REFUTED, MEANS),
    "means by hand": (f"{SUM} / int((y != -100).sum()) / 4", "(i // 2) % 4", REFUTED, MEANS),
    "a fixed number": (f"{SUM} / (2 * 5 * 4)", "i % 4", UNKNOWN, "the same, 1/40"),
    "means of equal counts": (f"{MEAN} / 4", "2", UNKNOWN, MEANS),
    "no label is ignored": (f"{MEAN} / 4", "0", HOLDS, RIGHT),
}


def watched(text: str) -> Result | None:
    """What is said of a script."""
    linecache.cache["tokens.py"] = (len(text), None, text.splitlines(True), "tokens.py")
    return said(watch(lambda: exec(compile(text, "tokens.py", "exec"), {"torch": torch, "nn": nn}), 4))


def test_a_second_step_in_a_window_leaves_the_tokens_judged() -> None:
    text = HEAD.format(loss=f"{SUM} / c", ignored="i % 4")
    found = watched(text.replace("optimizer.step()", "optimizer.step(); optimizer.step()"))
    assert found is not None
    assert found.outcome is UNKNOWN


@pytest.mark.parametrize("name", WATCHED)
def test_one_run_tells_what_a_token_weighs(name: str) -> None:
    loss, ignored, outcome, words = WATCHED[name]
    text = HEAD.format(loss=loss, ignored=ignored)
    found = watched(text)
    assert found is not None
    assert (found.outcome, words in found.reason) == (outcome, True), found.reason
    if outcome is REFUTED:
        assert found.location is not None
        assert ".backward()" in text.splitlines()[found.location.line - 1]


def after_the_sum(count: Callable[[torch.Tensor, list[int]], Any], repeat: bool = False) -> Any:
    """A step whose gradients are divided at the end of a window, and whose losses are read as plain numbers.

    `count`: of the marks of a window, and of the counts of the windows before. `repeat`: the first loss is reported for
    every window.
    """

    def train(run: Run) -> list[float]:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
        losses, before, size = list[float](), list[int](), run.effective_batch_size
        for a, b in zip(x.split(size), y.split(size), strict=True):
            total, mine = count(b > 0, before), 0.0
            for part, label in zip(a.split(run.micro_batch_size), b.split(run.micro_batch_size), strict=True):
                loss = ((model(part) - label).square() * (label > 0)).sum()
                loss.backward()
                mine += float(loss.detach())
            for p in model.parameters():
                p.grad /= total
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mine / float(total))
            before.append(int((b > 0).sum()))
        return [losses[0]] * len(losses) if repeat else losses

    return train


@pytest.mark.parametrize(("name", "outcome"), [("own", HOLDS), ("first", UNKNOWN), ("so far", UNKNOWN)])
def test_a_plain_count_after_the_sum_is_shown_by_the_gradients(name: str, outcome: Outcome) -> None:
    """Two windows of unlike counts that weigh each token alike show it; a count of another window does not hold."""
    counts: dict[str, Callable[[torch.Tensor, list[int]], Any]] = {
        "own": lambda marks, _: marks.sum(), "first": lambda marks, before: (before or [int(marks.sum())])[0],
        "so far": lambda marks, before: sum(before) + int(marks.sum()),
    }  # fmt: skip
    made = check_whole(after_the_sum(counts[name]), "train", Request(accum_steps=2, micro_batch=2))
    assert made.result("GA-EQ-001").outcome in ((HOLDS,) if outcome is HOLDS else (UNKNOWN, REFUTED))
    if outcome is HOLDS:
        assert made.result("GA-INV-001").outcome is HOLDS
        assert any("counts" in one for one in made.assumptions), made.assumptions


def test_the_first_loss_for_every_window_is_refuted() -> None:
    """Both runs report the same: the loss of another window."""
    made = check_whole(after_the_sum(lambda *_: 1, repeat=True), "train", Request(accum_steps=2, micro_batch=2))
    found = made.result("GA-INV-001")
    assert found.outcome is REFUTED, found.reason
    assert "returned loss 2 is" in found.reason
