"""Rows of data are samples by their use and content, whatever their size: each right loop beside its wrong twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.tape.run import Run
from tests import checked

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Windows = Iterator[list[tuple[Tensor, Tensor]]]
TEXT = torch.randint(11, (300,), generator=torch.Generator().manual_seed(0))


def parts(run: Run, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))


def drawn_for_each_window(run: Run) -> Windows:
    for _ in range(run.windows):
        yield parts(run, torch.randn(run.effective_batch_size, 3), torch.randn(run.effective_batch_size, 1))


def drawn_once(run: Run) -> Windows:
    made = parts(run, torch.randn(run.effective_batch_size, 3), torch.randn(run.effective_batch_size, 1))
    for _ in range(run.windows):
        yield made


def by_windows(run: Run, x: Tensor, y: Tensor) -> Windows:
    made = parts(run, x, y)
    for at in range(run.windows):
        yield made[at * run.accum_steps : (at + 1) * run.accum_steps]


def counted(run: Run) -> Windows:
    x = torch.arange(run.samples).float()[:, None] / 10
    return by_windows(run, x.expand(-1, 3), torch.sin(x))


def on_a_line(run: Run) -> Windows:
    x = torch.linspace(-1, 1, run.samples)[:, None]
    return by_windows(run, torch.cat([x, x * x, x + 1], 1), x)


def ones(run: Run) -> Windows:
    return by_windows(run, torch.ones(run.samples, 3), torch.full((run.samples, 1), 0.5))


def of_a_larger_set(run: Run) -> Windows:
    return by_windows(run, torch.randn(40, 3)[: run.samples], torch.randn(40, 1)[: run.samples])


def through_a_frozen_map(run: Run) -> Windows:
    """A map that has as many rows as a micro-batch, and one that has as many as a window."""
    first, second = torch.randn(2, 8), torch.randn(8, 3)
    return by_windows(run, torch.randn(run.samples, 2) @ first @ second, torch.randn(run.samples, 1))


SOURCES = (
    drawn_for_each_window, drawn_once, counted, on_a_line, ones, of_a_larger_set, through_a_frozen_map,
)  # fmt: skip


def trains(source: Callable[[Run], Windows], divide: bool) -> Callable[[Run], None]:
    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in source(run):
            for x, y in window:
                (F.mse_loss(model(x), y) / (run.accum_steps if divide else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def said(found: Any) -> list[Any]:
    return [(r.obligation, r.outcome, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS]


@pytest.mark.parametrize("source", SOURCES)
def test_rows_are_samples_by_their_use(source: Callable[[Run], Windows]) -> None:
    right, wrong = checked.check(trains(source, True)), checked.check(trains(source, False))
    assert right.code == 0, said(right)
    assert (wrong.result("GA-EQ-001").outcome, wrong.code) == (REFUTED, 1), said(wrong)


def the_first_window(run: Run) -> Windows:
    """The rows of the first window again and again, and there are others."""
    made = parts(run, torch.randn(run.samples, 3), torch.randn(run.samples, 1))
    for _ in range(run.windows):
        yield made[: run.accum_steps]


OUTSIDE = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))


def the_first_rows_of_others(run: Run) -> Windows:
    made = parts(run, OUTSIDE[: run.effective_batch_size], OUTSIDE[: run.effective_batch_size, :1] * 2)
    for _ in range(run.windows):
        yield made


@pytest.mark.parametrize("source", [the_first_window, the_first_rows_of_others])
def test_rows_that_are_read_again_while_others_are_not_read(source: Callable[[Run], Windows]) -> None:
    assert checked.check(trains(source, True)).result("GA-DATA-001").outcome is not HOLDS


def test_no_data_is_undecided() -> None:
    """Its two runs agree in numbers, so that nothing is refuted."""

    def train(run: Run) -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(run.windows):
            for _ in range(run.accum_steps):
                (sum(p.square().sum() for p in model.parameters()) / run.accum_steps).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = checked.check(train)
    assert (found.code, REFUTED in {r.outcome for r in found.results}) == (4, False)


def windows_of_a_text(run: Run, size: int, divide: bool) -> None:
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(run.windows):
        starts = torch.randint(len(TEXT) - size, (run.effective_batch_size,))
        x, y = (torch.stack([TEXT[i + by : i + by + size] for i in starts]) for by in (0, 1))
        for a, b in parts(run, x, y):
            loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten())
            (loss / (run.accum_steps if divide else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("size", [6, 8])
@pytest.mark.parametrize("divide", [True, False])
def test_pieces_of_a_text_are_samples(size: int, divide: bool) -> None:
    found = checked.check(lambda run: windows_of_a_text(run, size, divide))
    assert found.code == (0 if divide else 1), said(found)


def masked_by_slices(run: Run, own: bool) -> None:
    """The first labels of each row are ignored. `own`: each micro-batch is divided by its own count, and by N."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randint(0, 7, (run.samples, 6)), torch.randint(0, 5, (run.samples, 6))
    for k in range(run.samples):
        y[k, : k % 4] = -100
    for window in by_windows(run, x, y):
        count = sum((b != -100).sum() for _, b in window)
        for a, b in window:
            loss = F.cross_entropy(model(a).flatten(0, 1), b.flatten(), ignore_index=-100, reduction="sum")
            (loss / ((b != -100).sum() * run.accum_steps if own else count)).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("own", [False, True])
def test_labels_that_are_written_over_stay_with_their_sample(own: bool) -> None:
    found = checked.check(lambda run: masked_by_slices(run, own))
    assert found.code == (1 if own else 0), said(found)


@pytest.mark.parametrize("flat", [False, True])
def test_labels_that_are_broadcast_against_scores_are_refuted(flat: bool) -> None:
    """Labels (B,) against scores (B, 1): every sample meets every label."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in by_windows(run, torch.randn(run.samples, 3), torch.randn(run.samples)):
            for x, y in window:
                ((model(x) - (y if flat else y[:, None])).square().mean() / run.accum_steps).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = checked.check(train)
    equal = found.result("GA-EQ-001")
    assert (found.code, equal.outcome) == ((1, REFUTED) if flat else (0, HOLDS)), said(found)
    assert not flat or "sub broadcasts rows of samples along two axes" in equal.reason


Loss = Callable[[Run, Tensor], Tensor]


def bags(run: Run, ids: Tensor, table: Tensor) -> Tensor:
    return F.embedding_bag(ids, table, mode="mean").square().mean()


def alignments(run: Run, ids: Tensor, table: Tensor) -> Tensor:
    scores = table[ids].log_softmax(-1).transpose(0, 1)
    lengths = [torch.full((len(ids),), n) for n in (ids.shape[1], 2)]
    return F.ctc_loss(scores, ids[:, :2] % 3 + 1, *lengths, reduction="sum") / len(ids)


def complex_numbers(run: Run, ids: Tensor, table: Tensor) -> Tensor:
    return (F.one_hot(ids, 10).sum(1).to(torch.complex64) @ table).abs().mean()


def preferences(run: Run, ids: Tensor, table: Tensor) -> Tensor:
    """Numbers of rows of one column: they stay with their samples when these are summed over it."""
    first, second = (F.logsigmoid(table[ids].mean(1)[:, :1] * by).sum(1) for by in (1, -1))
    return -F.logsigmoid(0.1 * (first - second)).mean()


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("loss", [bags, alignments, complex_numbers, preferences])
def test_operators_that_take_samples_apart(loss: Callable[[Run, Tensor, Tensor], Tensor], divide: bool) -> None:
    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        kind = torch.complex64 if loss is complex_numbers else torch.float32
        table = nn.Parameter(torch.randn(10, 4, dtype=kind))
        optimizer = torch.optim.SGD([table], lr=0.1)
        for at, ids in enumerate(torch.randint(0, 10, (run.samples, 5)).split(run.micro_batch_size), 1):
            (loss(run, ids, table) / (run.accum_steps if divide else 1)).backward()
            if at % run.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    found = checked.check(train)
    assert found.code == (0 if divide else 1), said(found)


def test_a_meta_model_beside_the_training_is_no_part_of_it() -> None:
    def train(run: Run) -> None:
        with torch.device("meta"):
            ghost = nn.Linear(3, 1)
            ghost(torch.randn(2, 3)).sum().backward()
        trains(drawn_for_each_window, True)(run)

    assert checked.check(train).code == 0


def test_gradients_that_a_global_keeps_from_window_to_window_are_refuted() -> None:
    kept: dict[Any, Tensor] = {}

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in drawn_for_each_window(run):
            for x, y in window:
                (F.mse_loss(model(x), y) / run.accum_steps).backward()
            for name, p in model.named_parameters():
                p.grad += kept.get((run.accum_steps, name), torch.zeros(()))
                kept[run.accum_steps, name] = p.grad.clone()
            optimizer.step()
            optimizer.zero_grad()

    found = checked.check(train)
    assert (found.result("GA-INV-002").outcome, found.code) == (REFUTED, 1), said(found)
