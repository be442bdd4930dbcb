"""Rows that a mask chooses of a batch, as in `logits[mask]`: whose they are stays known on the recorded path."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.interpreter import Call
from gradproof.shadow.follow.laws import RULES
from gradproof.shadow.follow.values import Value, shared
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.tape.run import Run
from tests.checked import check
from tests.laws.numbers import Traced, Wrong
from tests.laws.trials import compare, cut_up

IGNORED, CLASSES, WORDS, LENGTH = -100, 5, 11, 7
HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


class Tagger(nn.Module):
    """Scores of each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)
        self.late = nn.Linear(CLASSES, CLASSES)

    def forward(self, given: Tensor) -> Tensor:
        return torch.tanh(self.head(torch.tanh(self.words(given))))


def chosen(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y != IGNORED
    return F.cross_entropy(model(x)[mask], y[mask], reduction="sum") / total


def flattened(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y.view(-1) != IGNORED
    return F.cross_entropy(model(x).view(-1, CLASSES)[mask], y.view(-1)[mask], reduction="sum") / total


def each_loss(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
    return loss[y != IGNORED].sum() / total


def later(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y != IGNORED
    scores = torch.relu(model.late(model(x)[mask])) + 0.5  # type: ignore[operator]
    return -scores.log_softmax(-1).gather(1, y[mask].unsqueeze(1)).squeeze(1).sum() / total


def squares(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y != IGNORED
    return F.mse_loss(model(x)[mask], F.one_hot(y[mask], CLASSES).float(), reduction="sum") / total


def own_means(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y != IGNORED
    return F.cross_entropy(model(x)[mask], y[mask])


def of_another(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    mask = y != IGNORED
    return F.cross_entropy(model(x.flip(0))[mask], y[mask], reduction="sum") / total


def mask_of_another(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none", ignore_index=-7)
    return loss[y.flip(0) != IGNORED].sum() / total


def trained(loss: Loss, run: Run, of_window: bool = True, ignored: float = 0.4, means: bool = False) -> None:
    """Train with sums over chosen words, divided by those of the window, or of each micro-batch; or with means."""
    model = Tagger().to(run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randint(WORDS, (run.samples, LENGTH)), torch.randint(CLASSES, (run.samples, LENGTH))
    y = y.masked_fill(torch.rand(y.shape) < ignored, IGNORED)
    batches = list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))
    for start in range(0, len(batches), run.accum_steps):
        window = batches[start : start + run.accum_steps]
        total = torch.stack([(b != IGNORED).sum() for _, b in window]).sum()
        for a, b in window:
            by = total if of_window else (b != IGNORED).sum() * len(window)
            loss(model, a, b, torch.tensor(float(len(window))) if means else by).backward()
        optimizer.step()
        optimizer.zero_grad()


def outcome(loss: Loss, of_window: bool = True, micro_batch: int = 2) -> Outcome:
    found = check(lambda run: trained(loss, run, of_window), micro_batch=micro_batch)
    return found.result("GA-EQ-001").outcome


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("loss", [chosen, flattened, each_loss, later, squares])
def test_what_a_mask_chooses_is_proved_and_by_another_count_refuted(loss: Loss, samples: int) -> None:
    assert outcome(loss, True, samples) is HOLDS
    assert outcome(loss, False, samples) is REFUTED


@pytest.mark.parametrize("loss", [own_means, of_another, mask_of_another])
def test_what_is_wrong_is_not_proved(loss: Loss) -> None:
    assert outcome(loss) is not HOLDS


def mean_of_chosen(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
    return loss[y != IGNORED].mean() / total


def mean_of_places(model: nn.Module, x: Tensor, y: Tensor, total: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)
    return loss[(y[:, 0] != IGNORED).nonzero().squeeze(1)].mean() / total


@pytest.mark.parametrize("loss", [mean_of_chosen, mean_of_places])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
def test_a_mean_over_what_data_choose_is_not_proved_by_equal_counts(loss: Loss, ignored: float) -> None:
    """Where no label of this run is ignored, the mean of means is the mean by chance."""
    found = check(lambda run: trained(loss, run, True, ignored, True), micro_batch=3)
    assert found.result("GA-EQ-001").outcome is not HOLDS


# -- The rules, against the real numbers.


def traced() -> Traced:
    x = Traced()
    x.looked = lambda tensor: tensor.tolist()
    return x


def call_of(x: Traced, name: str, args: tuple[Any, ...], values: list[Value]) -> tuple[Call, Tensor]:
    """A call of a kernel with these values, and its result."""
    func = getattr(torch.ops.aten, name).default if name == "index_put" else torch.ops.aten.index.Tensor
    tensors, out = tensors_in(args), func(*args)
    return Call(name, args, {}, (), tensors, values, [tuple(t.shape) for t in tensors], [out]), out


def compared(x: Traced, name: str, args: tuple[Any, ...], values: list[Value]) -> tuple[Value, Tensor]:
    """What a rule says of a call, after it was compared with the kernel."""
    call, out = call_of(x, name, args, values)
    found = RULES[name](x, call)
    assert found is not None
    compare(name, x, found, [out])
    return found[0], out


def drawn(seed: int) -> tuple[Traced, list[Tensor], list[Value]]:
    """A tensor and a mask of its first axes, cut into samples."""
    by = random.Random(seed)
    torch.manual_seed(seed)
    x, parts, shape = traced(), by.choice([1, 2, 4]), (4, *by.choice([(), (3,), (3, 2)]))
    given, mask = torch.randn(*shape, 2, dtype=torch.float64), torch.rand(shape) < by.choice([0.2, 0.5, 0.9])
    mask[:1] |= not mask.any()
    return x, [given, mask], [cut_up(x, given, 0, parts, 1, True), cut_up(x, mask, 0, parts, 2, False)]


@pytest.mark.parametrize("seed", range(40))
def test_a_choice_and_its_gradient_are_those_of_the_kernel(seed: int) -> None:
    x, (given, mask), values = drawn(seed)
    rows, out = compared(x, "index", (given, [mask]), values)
    assert (laid := x.chosen(rows.parts[0])) is not None
    assert (laid[0], sum(laid[1])) == (0, len(out))
    back = [shared({}), values[1], rows.scaled(Fraction(2))]
    put, _ = compared(x, "index_put", (torch.zeros_like(given), [mask], out * 2, True), back)
    assert put.layout == values[0].layout


def test_a_mask_of_other_rows_is_seen() -> None:
    x, (given, mask), values = drawn(1)
    mask[:] = torch.tensor([True, False, False, True]).view(4, *[1] * (mask.dim() - 1))
    wrong = cut_up(x, mask.flip(0).roll(1, 0), 0, len(values[1].parts), 3, False)
    with pytest.raises(Wrong):
        compared(x, "index", (given, [mask]), [values[0], wrong])


def test_rows_that_another_mask_chose_are_put_where_the_mask_says() -> None:
    x, (given, mask), values = drawn(5)
    rows, out = compared(x, "index", (given, [mask]), values)
    other = mask.flip(0)
    back = [shared({}), cut_up(x, other, 0, len(values[1].parts), 3, False), rows]
    compared(x, "index_put", (torch.zeros_like(given), [other], out, True), back)


def test_one_number_is_put_where_the_mask_says() -> None:
    x, (given, mask), values = drawn(3)
    args = (torch.zeros_like(given), [mask], torch.full((int(mask.sum()), 2), 0.5, dtype=torch.float64), True)
    compared(x, "index_put", args, [shared({}), values[1], x.ones(Fraction(1, 2))])
