"""Counts that Python takes from a tensor. A mean of token means is never proved, however equal the counts of a run are.

In these runs every label is valid, and that is not known. Each step divides the sum of a loss by a count: of its
window, which is right, or of its micro-batch.
"""

from __future__ import annotations

import copy
import math
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run
from tests.soundness.tasks import IGNORED, WHOLE_TOKENS

Divided = Callable[[Tensor, Tensor], Tensor]
TAKEN: dict[str, Divided] = {
    "a tensor": lambda loss, n: loss / n,
    "an item": lambda loss, n: loss / n.item(),
    "a copy": lambda loss, n: loss / copy.deepcopy(n),
    "a keyword": lambda loss, n: torch.div(loss, other=n.item()),
    "alpha": lambda loss, n: torch.add(torch.zeros_like(loss), loss, alpha=1 / n.item()),
    "a weight": lambda loss, n: torch.lerp(torch.zeros_like(loss), loss, 1 / n.item()),
    "a list": lambda loss, n: loss / torch.tensor([n.item()])[0],
    "whole division": lambda loss, n: loss / (n.item() // 1),
    "a remainder": lambda loss, n: loss / (n.item() % 10**6),
    "a size": lambda loss, n: loss / abs(n.item()),
    "a power": lambda loss, n: loss / n.item() ** 1,
    "bits": lambda loss, n: loss / (n.item() | 0),
    "a sign": lambda loss, n: loss / +(n.item() * 1),
    "bytes": lambda loss, n: loss / int.from_bytes((n.item() * 1).to_bytes(8, "big"), "big"),
    "hexadecimal digits": lambda loss, n: loss / float.fromhex((n.double().item() * 1).hex()),
    "a floor": lambda loss, n: loss / math.floor(n.double().item()),
    "a pickle": lambda loss, n: loss / pickle.loads(pickle.dumps(n.item())),
    "a float": lambda loss, n: loss / float(n.double()),
    "an int of a float": lambda loss, n: loss / int(n.double()),
    "an array": lambda loss, n: loss / n.double().numpy().item(),
    "an int of a part": lambda loss, n: loss / (float(n / 10.0) * 10),
    "a complex number": lambda loss, n: loss / (n.item() + 0j).real,
    "a shape": lambda loss, n: loss / len(torch.ones(n.item())),
    "a split": lambda loss, n: loss / len(torch.tensor_split(torch.zeros(100), n.view(1))[0]),
    "a range": lambda loss, n: loss / len(range(n.item())),
    "text of C": lambda loss, n: loss / float("%d" % n.item()),  # noqa: UP031
    "a sum of floats": lambda loss, n: loss / math.fsum([n.double().item()]),
    "packed bytes": lambda loss, n: loss / struct.unpack("q", struct.pack("q", n.item()))[0],
    "a repeated list": lambda loss, n: loss / len([0] * n.item()),
    "an array of NumPy": lambda loss, n: loss / int(np.array([n.item()])[0]),
    "lengths": lambda loss, n: loss / len(torch._VF._pack_padded_sequence(torch.zeros(1, 100), n.view(1), True)[0]),
}
PROVED = ("a tensor", "an item", "a copy")


def step(run: Run, divided: Divided, whole: bool) -> Any:
    """A loop that divides by the count of each window, or of each micro-batch."""
    job = WHOLE_TOKENS.start(run)
    job.targets = job.targets.masked_fill(torch.rand(job.targets.shape) < 0, IGNORED)
    for window in job.windows():
        counts = [(y != IGNORED).sum() for _, y in window]
        for (x, y), count in zip(window, counts, strict=True):
            loss = F.cross_entropy(job.model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum")
            of_all = sum(counts[1:], counts[0])
            (divided(loss, of_all) if whole else divided(loss, count) / len(window)).backward()
        job.apply()


@pytest.mark.parametrize("name", TAKEN)
def test_a_mean_of_token_means_is_not_proved(name: str) -> None:
    def outcome(whole: bool) -> Outcome:
        return check_whole(lambda run: step(run, TAKEN[name], whole), "step", Request()).result("GA-EQ-001").outcome

    assert outcome(False) is not Outcome.HOLDS
    assert outcome(True) is Outcome.HOLDS or name not in PROVED


def test_a_count_that_is_only_printed_keeps_the_proof() -> None:
    def train(run: Run) -> None:
        job = WHOLE_TOKENS.start(run)
        for window in job.windows():
            for x, y in window:
                count = (y != IGNORED).sum().item()
                print(f"{count} tokens", count)
                (F.cross_entropy(job.model(x).flatten(0, 1), y.flatten()) / len(window)).backward()
            job.apply()

    assert check_whole(train, "step", Request()).result("GA-EQ-001").outcome is Outcome.HOLDS


def test_the_line_that_took_a_count_is_named() -> None:
    def train(run: Run) -> None:
        step(run, TAKEN["a range"], False)

    found = check_whole(train, "step", Request()).result("GA-EQ-001")
    assert (found.outcome, found.location and found.location.line) == (
        Outcome.UNKNOWN,
        TAKEN["a range"].__code__.co_firstlineno,
    )


MASKED: dict[str, Callable[[Tensor], int]] = {
    "an array": lambda valid: int(valid.numpy().sum()),
    "a list": lambda valid: sum(map(sum, valid.tolist())),
    "places": lambda valid: valid.nonzero().shape[0],
    "what is chosen": lambda valid: valid.float().masked_select(valid).numel(),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mean_of_token_means_by_a_mask_that_left_is_not_proved(name: str) -> None:
    def train(run: Run) -> None:
        job = WHOLE_TOKENS.start(run)
        for window in job.windows():
            for x, y in window:
                loss = F.cross_entropy(job.model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum")
                (loss / MASKED[name](y != IGNORED) / len(window)).backward()
            job.apply()

    assert check_whole(train, "step", Request()).result("GA-EQ-001").outcome is not Outcome.HOLDS


def test_a_proof_beside_a_count_that_was_read_says_what_it_assumes() -> None:
    found = check_whole(lambda run: step(run, TAKEN["an item"], True), "step", Request())
    line = TAKEN["an item"].__code__.co_firstlineno
    assert any("code in C" in one and f"{__file__}:{line}" in one for one in found.assumptions)
