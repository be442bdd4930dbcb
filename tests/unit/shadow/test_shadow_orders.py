"""Ragged labels in other orders of the samples: a normaliser that is right at the recorded counts by accident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.record.run import Run, record
from gradproof.shadow.tape import Tape
from gradproof.shadow.verify import verifier as verify
from gradproof.shadow.verify.token_weights import Labels, chosen, labels_of, like_right, rows_of

IGNORED, LENGTH = -100, 4
RAGGED = (4, 2, 1, 3)
"""Valid labels of the samples, again and again."""
Total = Callable[[Any, Sequence[Tensor]], Any]


def batch(run: Any, first: int, counts: Sequence[int]) -> Tensor:
    """Labels of one micro-batch; a sample has as many valid ones as `counts` says."""
    rows = [counts[(first + i) % len(counts)] for i in range(run.micro_batch_size)]
    return torch.tensor([[1] * n + [IGNORED] * (LENGTH - n) for n in rows])


def train(run: Any, total: Total, counts: Sequence[int] = RAGGED) -> None:
    """Cross-entropy summed over tokens, divided by what `total` makes of a window's labels."""
    model = nn.Linear(3, 5)
    optimizer, first = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for _ in range(run.windows):
        labels = []
        for _ in range(run.accum_steps):
            labels.append(batch(run, first, counts))
            first += run.micro_batch_size
        for y in labels:
            x = torch.randn(run.micro_batch_size, LENGTH, 3)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum")
            (loss / total(run, labels)).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_tokens(run: Any) -> None:
    """Right."""
    train(run, lambda _, labels: torch.stack([(y != IGNORED).sum() for y in labels]).sum())


def by_tokens_of_even_batches(run: Any) -> None:
    """Right; every micro-batch of the recorded run has five valid labels."""
    train(run, lambda _, labels: torch.stack([(y != IGNORED).sum() for y in labels]).sum(), (4, 1, 3, 2))


def by_the_first(run: Any) -> None:
    """The first micro-batch's count for all: right where every micro-batch has as many."""
    train(run, lambda _, labels: len(labels) * (labels[0] != IGNORED).sum(), (4, 1, 3, 2))


def whole(run: Any) -> None:
    """No label is ignored."""
    train(run, lambda run, labels: run.effective_batch_size * LENGTH, (LENGTH,))


def tape(function: Callable[[Any], None]) -> Tape:
    return record(function, Run(4, 2, 2, "cpu", torch.float32, 0)).tape


def test_a_right_normaliser_is_proved_at_every_order() -> None:
    found = verify.check(by_tokens_of_even_batches)
    assert found.outcome is Outcome.HOLDS, [(r.obligation, r.reason) for r in found.results]
    assert sum("in another order" in text for text in found.paths) >= 1
    assert not any("rules give the right weights" in text for text in found.uncovered)


def test_counts_that_tell_the_rules_apart_need_no_other_order() -> None:
    found = verify.check(by_tokens)
    assert (found.outcome, found.paths) == (Outcome.HOLDS, [])
    assert not any("rules give the right weights" in text for text in found.uncovered)


def test_a_normaliser_that_is_right_by_accident_is_refuted() -> None:
    recorded = verify.check(by_the_first, domains=("real", "field"))
    assert recorded.result("GA-EQ-001").outcome is Outcome.HOLDS, recorded.result("GA-EQ-001").reason
    found = verify.check(by_the_first)
    assert found.result("GA-EQ-001").outcome is Outcome.REFUTED
    assert found.code == 1


def test_without_other_orders_the_accident_would_be_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "reordered", lambda session: iter(()))
    found = verify.check(by_the_first)
    assert found.result("GA-EQ-001").outcome is Outcome.HOLDS
    assert any("count of the first micro-batch" in text for text in found.uncovered)


def test_labels_that_ignore_nothing_have_no_other_orders() -> None:
    assert labels_of(tape(whole), 16) is None
    assert labels_of(tape(by_tokens), 16) is not None


def test_every_site_moves_with_its_samples() -> None:
    [rows] = rows_of(tape(by_tokens), 16).values()
    assert [(row != IGNORED).sum() for row in rows] == list(RAGGED) * 4
    assert rows_of(tape(by_tokens), 15) == {}


def test_an_order_is_recorded_with_its_own_counts() -> None:
    one = tape(by_tokens)
    [site] = one.integers
    from gradproof.shadow.tape import Injection, Streams

    order = np.argsort([row.sum() for row in rows_of(one, 16)[site]])
    values = Streams({}, {}, {site: rows_of(one, 16)[site][order].ravel()})
    other = record(by_tokens, Run(4, 2, 2, "cpu", torch.float32, 0), Injection(values)).tape
    assert (rows_of(other, 16)[site] == rows_of(one, 16)[site][order]).all()


def test_the_orders_leave_fewer_rules_that_look_right() -> None:
    labels, run = Labels(np.tile([[True, True], [True, False]], (8, 1))), Run(4, 2, 2, "cpu", torch.float32, 0)
    recorded = labels.counts(run, np.arange(16))
    assert "mean of means" in like_right(recorded)
    more = [c for order in chosen(labels, run) for c in labels.counts(run, order)]
    assert "mean of means" not in like_right([*recorded, *more])
