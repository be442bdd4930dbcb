"""What a script reads of its data before a micro-batch takes them: counts of labels, and what is made of all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import Verification
from tests.checked import watch

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
N, SIZE, WINDOWS, WORDS, LENGTH = 4, 2, 4, 20, 6
Count = Callable[[Tensor, int, int], object]


def labelled() -> tuple[Tensor, Tensor]:
    """Rows of words, and their labels; each row ignores another number of them."""
    words = torch.randint(0, WORDS, (N * SIZE * WINDOWS, LENGTH))
    labels = words.clone()
    for row in range(len(labels)):
        labels[row, : 1 + row % 5] = -100
    return words, labels


def tokens(count: Count, kept: bool = False) -> None:
    """A language model whose sums of losses are divided by a count; `kept`: by another one for each micro-batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    words, labels = labelled()
    for window in range(WINDOWS):
        for micro in range(N):
            first = (window * N + micro) * SIZE
            if not micro or kept:
                total = count(labels, window * N * SIZE, micro)
            rows = slice(first, first + SIZE)
            scores = model(words[rows]).flatten(0, 1)
            (F.cross_entropy(scores, labels[rows].flatten(), reduction="sum") / total).backward()
        optimizer.step()
        optimizer.zero_grad()


def valid(labels: Tensor) -> Tensor:
    """How many labels count."""
    return (labels != -100).sum()


RIGHT: dict[str, Count] = {
    "the window at once": lambda labels, at, _: valid(labels[at : at + N * SIZE]),
    "by micro-batch": lambda labels, at, _: sum(valid(labels[at + k * SIZE : at + k * SIZE + SIZE]) for k in range(N)),
    "as a number": lambda labels, at, _: valid(labels[at : at + N * SIZE]).item(),
}
WRONG: dict[str, Count] = {
    "the window after": lambda labels, at, _: valid(labels[at + N * SIZE : at + 2 * N * SIZE]).clamp(min=1),
    "all but the last": lambda labels, at, _: valid(labels[at : at + (N - 1) * SIZE]),
    "all rows": lambda labels, at, _: valid(labels),
    "the first row twice": lambda labels, at, _: valid(labels[at : at + N * SIZE]) + valid(labels[at : at + 1]),
}


def weighed(found: Verification) -> tuple[Outcome, Outcome]:
    return found.result("GA-EQ-001").outcome, found.result("GA-TOK-001").outcome


@pytest.mark.parametrize("how", RIGHT)
def test_the_labels_of_a_window_are_counted_before_its_first_micro_batch(how: str) -> None:
    found = watch(lambda: tokens(RIGHT[how]), N, 3)
    assert weighed(found) == (HOLDS, HOLDS), found.results
    assert ("on the recorded path" in found.result("GA-EQ-001").reach) is (how == "as a number")


@pytest.mark.parametrize("how", WRONG)
def test_a_count_of_other_rows_is_not_that_of_the_window(how: str) -> None:
    found = watch(lambda: tokens(WRONG[how]), N, 3)
    assert HOLDS not in weighed(found), found.results


def test_each_micro_batch_counted_alone_is_a_mean_of_means() -> None:
    def own(labels: Tensor, at: int, micro: int) -> Tensor:
        first = at + micro * SIZE
        return valid(labels[first : first + SIZE]) * N

    assert weighed(watch(lambda: tokens(own, kept=True), N, 3)) == (REFUTED, REFUTED)


def prepared(data: Callable[[Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]], share: int = N) -> None:
    """A regression whose optimizer is there before the data are made."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = N * SIZE * WINDOWS
    for at, (inputs, targets) in enumerate(data(torch.randn(rows, 3), torch.randn(rows, 1)), 1):
        (F.mse_loss(model(inputs), targets) / share).backward()
        if at % N == 0:
            optimizer.step()
            optimizer.zero_grad()


def parts(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Micro-batches, as slices."""
    return zip(inputs.split(SIZE), targets.split(SIZE), strict=True)


def scaled(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """All rows are scaled by their mean and deviation, once."""
    return parts((inputs - inputs.mean(0)) / inputs.std(0), targets)


def scaled_late(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each micro-batch is scaled by the mean and the deviation of all rows."""
    mean, deviation = inputs.mean(0), inputs.std(0)
    return (((one - mean) / deviation, target) for one, target in parts(inputs, targets))


def printed(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A number of all targets is shown."""
    print((targets > 0).sum())
    return parts(inputs, targets)


def loaded(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A data loader gives rows of what was computed."""
    return iter(DataLoader(TensorDataset(inputs * 2, targets.abs()), batch_size=SIZE))


def scaled_alone(inputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each micro-batch is scaled by its own mean: samples meet."""
    return ((one - one.mean(0), target) for one, target in parts(inputs, targets))


@pytest.mark.parametrize("data", [parts, scaled, scaled_late, printed, loaded])
def test_what_is_made_of_all_rows_before_training_is_data(data: Callable[..., Iterator[tuple[Tensor, Tensor]]]) -> None:
    found = watch(lambda: prepared(data), N, 3)
    assert found.result("GA-EQ-001").outcome is HOLDS, found.results
    wrong = watch(lambda: prepared(data, 1), N, 3)
    assert wrong.result("GA-EQ-001").outcome is REFUTED, wrong.results


def test_micro_batches_that_are_scaled_alone_are_not_the_full_batch() -> None:
    found = watch(lambda: prepared(scaled_alone), N, 3)
    assert found.result("GA-EQ-001").outcome not in (HOLDS, REFUTED), found.results


def test_a_number_that_is_made_of_all_rows_is_read() -> None:
    def steps() -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = torch.randn(N * SIZE * 4, 3), torch.randn(N * SIZE * 4, 1)
        size = targets.abs().mean()
        for at, (one, target) in enumerate(parts(inputs, targets), 1):
            (F.mse_loss(model(one) / size, target / size) / N).backward()
            if at % N == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = watch(steps, N, 3).result("GA-EQ-001")
    assert found.outcome is not HOLDS or "on the recorded path" in found.reach, found
