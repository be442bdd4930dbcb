"""What a reader of a change found: names, labels of which some are known, views that expand, and what is put over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.bounds import rules as rules  # fills RULES
from gradproof.shadow.bounds.domain import RULES, Box, Domain
from gradproof.shadow.tape.run import Run
from tests.checked import check

EQ, HOLDS, REFUTED, UNKNOWN = "GA-EQ-001", Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
CLASSES, LENGTH, IGNORED = 5, 4, -100


def windows(run: Run) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Windows of micro-batches: three numbers a sample, and one."""
    x, y = torch.randn(run.samples, 3), torch.randn(run.samples, 1)
    each = list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))
    for start in range(0, len(each), run.accum_steps):
        yield each[start : start + run.accum_steps]


def step(loss: Callable[[nn.Module, Tensor, Tensor], Tensor], outputs: int = 1) -> Callable[[Run], None]:
    """A right step of a linear model, whose loss is a mean."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, outputs)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(run):
            for x, y in window:
                (loss(model, x, y) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def test_no_two_parameters_have_one_name() -> None:
    """One is called `w#2` by its module, and another would be, as the second that its module calls `w`."""

    class One(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.randn(3, 1)))

    def train(run: Run, wrong: bool) -> None:
        torch.manual_seed(run.seed)
        modules = [One(name) for name in ("w", "w#2", "w")]
        first, second, third = (next(iter(module.parameters())) for module in modules)
        optimizer = torch.optim.SGD([first, second, third], lr=0.1)
        for window in windows(run):
            for x, y in window:
                loss = (F.mse_loss(x @ first, y) + F.mse_loss(x.sin() @ third, y)) / len(window)
                (loss + F.mse_loss(x.cos() @ second, y) / (1 if wrong else len(window))).backward()
            optimizer.step()
            optimizer.zero_grad()

    for fake in (False, True):
        assert check(lambda run: train(run, False), fake=fake).result(EQ).outcome is HOLDS
        assert check(lambda run: train(run, True), fake=fake).result(EQ).outcome is REFUTED


def shifted(labels: Callable[[int], Tensor]) -> Callable[[Run], None]:
    """A loss of shifted labels, divided by the count of the window's labels before the shift."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        ids, wanted = torch.randint(0, CLASSES, (run.samples, LENGTH)), labels(run.samples)
        model = nn.Sequential(nn.Embedding(CLASSES, 6), nn.Linear(6, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in zip(ids.split(run.effective_batch_size), wanted.split(run.effective_batch_size), strict=True):
            window = list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))
            count = torch.stack([(b != IGNORED).sum() for _, b in window]).sum().clamp(min=1)
            for a, b in window:
                scores = model(a)[:, :-1].reshape(-1, CLASSES)
                (F.cross_entropy(scores, b[:, 1:].reshape(-1), reduction="sum") / count).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def put_over(samples: int) -> Tensor:
    """Labels, of which some are drawn and never ignored, and others are put over them."""
    labels = torch.randint(0, CLASSES, (samples, LENGTH))
    labels[::3, 2] = IGNORED
    labels[:3, 0] = IGNORED
    return labels


def beside(samples: int) -> Tensor:
    """The same by joins."""
    labels = torch.randint(0, CLASSES, (samples, LENGTH))
    first = torch.cat([torch.full((3, 1), IGNORED), labels[:3, 1:]], 1)
    return torch.cat([first, labels[3:]], 0)


def given(first: bool, ended: bool) -> Callable[[int], Tensor]:
    """`first`: the first label is ignored in each sample. `ended`: all labels of the second half of samples are."""

    def made(samples: int) -> Tensor:
        labels = np.random.RandomState(0).randint(0, CLASSES, (samples, LENGTH))
        labels[: samples if first else 3, 0] = IGNORED
        labels[5:, 2] = IGNORED
        labels[samples // 2 if ended else samples :] = IGNORED
        return torch.from_numpy(labels)

    return made


@pytest.mark.parametrize("labels", [put_over, beside])
def test_a_wrong_count_of_labels_of_which_some_are_known_is_not_proved(labels: Callable[[int], Tensor]) -> None:
    found = check(shifted(labels))
    assert found.result(EQ).outcome is not HOLDS
    assert found.result("GA-TOK-001").outcome is not HOLDS


@pytest.mark.parametrize(
    ("first", "ended", "outcome"), [(True, False, UNKNOWN), (True, True, UNKNOWN), (False, False, REFUTED)]
)
def test_a_window_without_valid_labels_shows_no_wrong_count(first: bool, ended: bool, outcome: Outcome) -> None:
    assert check(shifted(given(first, ended))).result(EQ).outcome is outcome


def expanded(shape: tuple[int, ...], to: tuple[int, ...]) -> Callable[[Run], None]:
    """The base of a view that repeats it is written while the view lives."""

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model, base = nn.Linear(3, 1), torch.ones(shape)
        wide = base.expand(to)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(run):
            base.add_(1.0)
            for x, y in window:
                (F.mse_loss(model(x * wide.reshape(-1, 3).sum(0)), y) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.mark.parametrize(("shape", "to"), [((1,), (3,)), ((), (3,)), ((1, 3), (2, 3))])
def test_the_base_of_an_expanded_view_is_written(shape: tuple[int, ...], to: tuple[int, ...]) -> None:
    assert check(expanded(shape, to)).result(EQ).outcome is HOLDS


def over(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A part of an activation is put over twice."""
    made = model(x)
    other = made.clone()
    other[:, 3] = made[:, 0] * 2
    other[:, 2:] = 0.0
    return (other * y).pow(2).mean()


def through(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A column is written through a view that has one row of samples."""
    wide = torch.cat([x, x[:, :1]], 1).unsqueeze(0).expand(3, x.shape[0], 4)
    other = torch.ones(3, x.shape[0], 4)
    other[:, :, 3:] = wide[:, :, 3:]
    return F.mse_loss(model(other.movedim(1, 0).sum(1)[:, 1:]), y)


@pytest.mark.parametrize(("loss", "outputs", "micro_batch"), [(over, 4, 2), (through, 1, 1), (through, 1, 2)])
def test_what_is_written_over_leaves_no_part(loss: Any, outputs: int, micro_batch: int) -> None:
    found = check(step(loss, outputs), micro_batch=micro_batch, accum_steps=3)
    assert [found.result(name).outcome for name in (EQ, "GA-INV-002", "GA-INV-003", "GA-DATA-001")] == [HOLDS] * 4


def test_a_step_that_moves_nothing_is_refuted() -> None:
    class Idle(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.clone().sub_(0.1 * p.grad)

    def train(run: Run) -> None:
        torch.manual_seed(run.seed)
        model = nn.Linear(3, 1)
        optimizer = Idle(model.parameters())
        for window in windows(run):
            for x, y in window:
                (F.mse_loss(model(x), y) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = check(train).result("GA-INV-003")
    assert (found.outcome, found.reason) == (REFUTED, "step 1 moves no parameter")


def box(domain: Domain, number: float, error: float, kind: torch.dtype) -> Box:
    """An enclosure of one number."""
    return Box(domain, tuple(torch.tensor([one], dtype=torch.float64) for one in (number, number, error)), kind)


@pytest.mark.parametrize(
    ("kind", "exact", "machine", "by"),
    [(torch.float16, 2.0**-10, 2.0**-15 + 2.0**-24, 0.5), (torch.float64, 3 * 2.0**-1074, 3 * 2.0**-1074, 0.3)],
)
def test_a_product_below_the_normal_numbers_is_inside_its_bound(
    kind: torch.dtype, exact: float, machine: float, by: float
) -> None:
    """The machine's operand may be subnormal where the exact one is not; half of the least float64 is none."""
    domain = Domain()
    domain.begin(("mul", domain.key[1]), [kind])
    held = box(domain, exact, abs(machine - exact), kind)
    bound = float(RULES["mul"](domain, held, by if by == 0.5 else box(domain, by, 0.0, kind)).parts[2])
    made = float(torch.tensor([machine], dtype=kind) * by)
    assert abs(made - exact * by) <= bound
    assert bound > 0
