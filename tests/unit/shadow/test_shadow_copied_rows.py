"""Labels that are counted for a window, and copied before a micro-batch takes them: into one tensor, or by a shift."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradproof.core.outcome import Outcome
from tests.checked import watch

HOLDS = Outcome.HOLDS
N, SIZE, WINDOWS, WORDS, LENGTH, IGNORED = 4, 2, 4, 20, 8, -100
Window = list[Tensor]
Count = Callable[[Window, Window], Tensor]


def valid(labels: Tensor) -> Tensor:
    """How many labels count."""
    return (labels != IGNORED).sum()


def added(window: Window) -> Tensor:
    """The count of each micro-batch's labels, after the shift, summed."""
    return torch.stack([valid(labels[:, 1:]) for labels in window]).sum()


def shifted(labels: Tensor) -> Tensor:
    return labels[:, 1:]


def changed(window: Window, writes: Callable[[Tensor], object]) -> Tensor:
    """The count of labels that were copied, and that the script writes over before it trains: none is ignored then."""
    held = torch.cat(window)
    for labels in window:
        writes(labels)
    return valid(held[:, 1:])


RIGHT: dict[str, Count] = {
    "summed": lambda window, _: added(window),
    "side by side, then shifted": lambda window, _: valid(torch.cat(window)[:, 1:]),
    "shifted, then side by side": lambda window, _: valid(torch.cat([shifted(one) for one in window])),
    "flat and side by side": lambda window, _: valid(torch.cat([shifted(one).flatten() for one in window])),
    "before the shift, as a full batch is counted as well": lambda window, _: valid(torch.cat(window)),
}
WRONG: dict[str, Count] = {
    "the window after": lambda _, after: added(after),
    "the window after, side by side": lambda _, after: valid(torch.cat(after)[:, 1:]),
    "all but the last": lambda window, _: added(window[:-1]),
    "all but the last, side by side": lambda window, _: valid(torch.cat(window[:-1])[:, 1:]),
    "the last of another window": lambda window, after: valid(torch.cat([*window[:-1], after[0]])[:, 1:]),
    "the first twice": lambda window, _: valid(torch.cat([*window, window[0]])[:, 1:]),
    "the first row of each": lambda window, _: added([one[:1] for one in window]),
    "written over by the window after": lambda window, after: valid(torch.cat(window).copy_(torch.cat(after))[:, 1:]),
    "copied, and then written over": lambda window, _: changed(window, lambda labels: labels.fill_(1)),
    "copied, and then written by NumPy": lambda window, _: changed(window, lambda labels: labels.numpy().fill(1)),
}


def trained(count: Count, moved: bool, own: bool = False, windows: int = WINDOWS, loader: bool = False) -> None:
    """A language model that predicts the next word. `moved`: each micro-batch is copied, as to a device.

    `own`: divide by the count of each micro-batch instead. `loader`: a data loader gives all batches beforehand.
    """
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (N * SIZE * windows, LENGTH))
    lengths = torch.randint(3, LENGTH + 1, (len(words), 1))
    labels = words.masked_fill(torch.arange(LENGTH) >= lengths, IGNORED)
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Tanh(), nn.Linear(8, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = list(zip(words.split(SIZE), labels.split(SIZE), strict=True))
    batches = list(DataLoader(TensorDataset(words, labels), batch_size=SIZE)) if loader else batches
    for start in range(0, len(batches), N):
        window, after = batches[start : start + N], batches[start + N : start + 2 * N] or batches[:N]
        total = count([one for _, one in window], [one for _, one in after]).clamp(min=1)
        for given, wanted in window:
            given, wanted = (given.clone(), wanted.clone()) if moved else (given, wanted)
            scores = model(given)[:, :-1].reshape(-1, WORDS)
            loss = F.cross_entropy(scores, shifted(wanted).reshape(-1), reduction="sum")
            (loss / (valid(shifted(wanted)) * N if own else total)).backward()
        optimizer.step()
        optimizer.zero_grad()


def outcome(count: Count, moved: bool, own: bool = False) -> Outcome:
    return watch(lambda: trained(count, moved, own), N, 3).result("GA-EQ-001").outcome


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("how", RIGHT)
def test_a_count_of_copied_labels_is_that_of_their_window(how: str, moved: bool) -> None:
    assert outcome(RIGHT[how], moved) is HOLDS


@pytest.mark.parametrize("how", WRONG)
def test_a_count_of_other_labels_is_not_that_of_the_window(how: str) -> None:
    assert outcome(WRONG[how], False) is not HOLDS
    assert outcome(WRONG[how], True) is not HOLDS


@pytest.mark.parametrize("moved", [False, True])
def test_each_micro_batch_by_its_own_count_is_refuted(moved: bool) -> None:
    assert outcome(RIGHT["summed"], moved, own=True) is Outcome.REFUTED


@pytest.mark.parametrize("loader", [False, True])
def test_labels_are_counted_in_windows_after_a_gap(loader: bool) -> None:
    """All batches were read before the first window: those that are left are micro-batches of their own."""

    def found(count: Count, own: bool = False) -> Outcome:
        watched = watch(lambda: trained(count, False, own, 6, loader), N, windows_at="0,4,5")
        assert "windows 1, 5 to 6 of 6" in watched.result("GA-EQ-001").reach
        return watched.result("GA-EQ-001").outcome

    assert found(RIGHT["summed"]) is HOLDS
    assert found(RIGHT["summed"], own=True) is Outcome.REFUTED
    assert HOLDS not in {found(WRONG["the window after"]), found(WRONG["all but the last"])}
