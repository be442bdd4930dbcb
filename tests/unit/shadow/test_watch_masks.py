"""Rows that a mask of labels chooses in a watched script: a sum over them is divided by those of the window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from tests.checked import watch

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
N, WINDOWS, WORDS, LENGTH, IGNORED = 4, 4, 20, 8, -100
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Reader(nn.Module):
    """Scores of each word, with a layer behind that a loss may use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(WORDS, 8), nn.Tanh(), nn.Linear(8, WORDS))
        self.late = nn.Linear(WORDS, WORDS)

    def forward(self, given: Tensor) -> Tensor:
        scores: Tensor = self.body(given)
        return scores


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="sum")


def shifted(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return summed(scores[:, :-1][mask], labels[:, 1:][mask]) / total


def flat(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:].flatten() != IGNORED
    return summed(scores[:, :-1].flatten(0, 1)[mask], labels[:, 1:].flatten()[mask]) / total


def bent(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return summed(torch.tanh(scores[:, :-1][mask]) * 2 + 0.5, labels[:, 1:][mask]) / total


def undivided(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return F.cross_entropy(scores[:, :-1][mask], labels[:, 1:][mask])


def own_mean(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    return undivided(scores, labels, total) / N


def own_count(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return shifted(scores, labels, mask.sum() * N)


def own_length(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    chosen = labels[:, 1:][labels[:, 1:] != IGNORED]
    return summed(scores[:, :-1][labels[:, 1:] != IGNORED], chosen) / (len(chosen) * N)


def of_another(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    return shifted(scores.flip(0), labels, total)


def mask_of_another(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:].flip(0) != IGNORED
    return summed(scores[:, :-1][mask], labels[:, 1:][mask]) / total


def centred(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    chosen = scores[:, :-1][mask]
    return summed(chosen - chosen.mean(0), labels[:, 1:][mask]) / total


def across(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return summed(scores[:, :-1][mask].softmax(0), labels[:, 1:][mask]) / total


def by_place(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    chosen = scores[:, :-1][mask]
    return summed(chosen * torch.arange(len(chosen)).unsqueeze(1), labels[:, 1:][mask]) / total


def first_rows(scores: Tensor, labels: Tensor, total: Tensor) -> Tensor:
    mask = labels[:, 1:] != IGNORED
    return summed(scores[:, :-1][mask][:4], labels[:, 1:][mask][:4]) / total


def trained(loss: Loss, size: int = 2, alike: bool = False, late: bool = False) -> None:
    """A language model that predicts the next word. `alike`: each row has as many labels that count."""
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (N * size * WINDOWS, LENGTH))
    lengths = torch.full((len(words), 1), 5) if alike else torch.randint(3, LENGTH + 1, (len(words), 1))
    labels = words.masked_fill(torch.arange(LENGTH) >= lengths, IGNORED)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = list(zip(words.split(size), labels.split(size), strict=True))
    for start in range(0, len(batches), N):
        window = batches[start : start + N]
        after = batches[start + N : start + 2 * N] or batches[:N]
        total = torch.stack([(one[:, 1:] != IGNORED).sum() for _, one in (after if late else window)]).sum()
        for given, wanted in window:
            loss(model(given), wanted, total).backward()
        optimizer.step()
        optimizer.zero_grad()


def outcome(loss: Loss, size: int = 2, alike: bool = False, late: bool = False) -> Outcome:
    return watch(lambda: trained(loss, size, alike, late), N, 3).result("GA-EQ-001").outcome


@pytest.mark.parametrize("loss", [shifted, flat, bent])
def test_a_sum_over_what_a_mask_chooses_is_that_of_the_window(loss: Loss) -> None:
    found = watch(lambda: trained(loss), N, 3)
    assert (found.result("GA-EQ-001").outcome, found.result("GA-TOK-001").outcome) == (HOLDS, HOLDS)
    assert "on the recorded path" in found.result("GA-EQ-001").reach
    assert outcome(loss, late=True) is not HOLDS


@pytest.mark.parametrize("loss", [own_mean, own_count, own_length])
def test_the_own_number_of_each_micro_batch_is_refuted(loss: Loss) -> None:
    assert outcome(loss) is REFUTED


WRONG = [undivided, own_mean, own_count, own_length, of_another, mask_of_another, centred, across, by_place, first_rows]


@pytest.mark.parametrize("loss", WRONG)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("alike", [False, True])
def test_what_is_wrong_with_a_mask_does_not_hold(loss: Loss, size: int, alike: bool) -> None:
    """`alike`: a micro-batch has as many rows as each other one, and a mean of means is the mean by chance."""
    if loss not in (of_another, mask_of_another) or size > 1:
        assert outcome(loss, size, alike) is not HOLDS
