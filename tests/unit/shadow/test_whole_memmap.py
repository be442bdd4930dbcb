"""Batches as nanoGPT draws them: rows of a file at random places, stacked, and labels that are flattened."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run, Step

TOKENS = 7
Batch = tuple[torch.Tensor, torch.Tensor]
Batches = Callable[[Run, Callable[[], Batch]], list[Batch]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.bin"
    np.random.default_rng(0).integers(0, TOKENS, 400).astype(np.uint16).tofile(path)
    return path


def drawn(file: Path, rows: int, length: int) -> Batch:
    data = np.memmap(file, dtype=np.uint16, mode="r")
    places = torch.randint(len(data) - length, (rows,))
    x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in places])
    return x, y


def trained(file: Path, batches: Batches, share: Callable[..., float], length: int = 11) -> Step:
    def step(run: Run) -> None:
        model = nn.Sequential(nn.Embedding(TOKENS, 5), nn.Linear(5, TOKENS))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(run.windows):
            for x, y in batches(run, lambda: drawn(file, run.micro_batch_size, length)):
                loss = functional.cross_entropy(model(x).view(-1, TOKENS), y.view(-1), ignore_index=-1)
                (loss * share(run, x)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def each(run: Run, draw: Callable[[], Batch]) -> list[Batch]:
    return [draw() for _ in range(run.accum_steps)]


def again(run: Run, draw: Callable[[], Batch]) -> list[Batch]:
    """One batch for every micro-batch of the window."""
    return [draw()] * run.accum_steps


def judged(step: Step) -> Verification:
    return check_whole(step, "step", Request())


def outcome(found: Verification, obligation: str) -> Outcome:
    return next(r.outcome for r in found.results if r.obligation == obligation)


@pytest.mark.parametrize("length", [8, 11])
def test_a_right_loop_holds(file: Path, length: int) -> None:
    """Two rows of 8 labels are as many as the run has samples, 16."""
    found = judged(trained(file, each, lambda run, x: 1 / run.accum_steps, length))
    assert {r.obligation: r.outcome for r in found.results if r.applies} == dict.fromkeys(
        [r.obligation for r in found.results if r.applies], Outcome.HOLDS
    )


def test_a_missing_division_is_refuted(file: Path) -> None:
    assert outcome(judged(trained(file, each, lambda run, x: 1.0)), "GA-EQ-001") is Outcome.REFUTED


def test_the_same_batch_again_does_not_hold(file: Path) -> None:
    found = judged(trained(file, again, lambda run, x: 1 / run.accum_steps))
    assert outcome(found, "GA-EQ-001") in (Outcome.REFUTED, Outcome.UNKNOWN, Outcome.OUTSIDE)
    assert outcome(found, "GA-DATA-001") in (Outcome.REFUTED, Outcome.UNKNOWN)


def by_token(run: Run, x: torch.Tensor) -> float:
    """A weight that is read off the data."""
    return 1 / (run.accum_steps * (1 + operator.index(x[0, 0])))


def by_draw(run: Run, x: torch.Tensor) -> float:
    """A weight that is drawn, and read as an index."""
    return 1 / operator.index(torch.randint(1, 9, (2,))[0])


@pytest.mark.parametrize("share", [by_token, by_draw])
def test_a_weight_that_is_a_number_of_one_micro_batch_does_not_hold(file: Path, share: Any) -> None:
    found = outcome(judged(trained(file, each, share)), "GA-EQ-001")
    assert found in (Outcome.REFUTED, Outcome.UNKNOWN, Outcome.OUTSIDE)
