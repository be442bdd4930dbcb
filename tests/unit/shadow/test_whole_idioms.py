"""What people write in training loops: right forms are proved, and without the share of a micro-batch refuted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.result import Verification
from gradproof.shadow.tape.run import Run

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
CLASSES, LENGTH = 5, 4
Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def decided(step: Callable[[Any], Any], fake: bool = False) -> Verification:
    return check_whole(step, "step", Request(fake=fake))


def trained(run: Run, loss: Loss, share: bool = True) -> None:
    """A loop with a loss of a micro-batch: scores of a linear model, labels, and which of them count."""
    torch.manual_seed(run.seed)
    model = nn.Linear(3, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(run.samples, LENGTH, 3), torch.randint(CLASSES, (run.samples, LENGTH))
    mask, rows = torch.rand(run.samples, LENGTH) < 0.7, run.micro_batch_size
    for start in range(0, run.samples, rows * run.accum_steps):
        for at in range(start, start + rows * run.accum_steps, rows):
            part = loss(model, x[at : at + rows], y[at : at + rows], mask[at : at + rows])
            (part / run.accum_steps if share else part).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_rows(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return -F.log_softmax(model(x)[:, 0], -1)[torch.arange(len(y)), y[:, 0]].mean()


def by_rows_and_columns(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    rows, columns = torch.arange(len(y)).unsqueeze(1), torch.arange(LENGTH).unsqueeze(0)
    return -F.log_softmax(model(x), -1)[rows, columns, y].mean()


def the_last_that_counts(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    last = mask.sum(1).clamp(min=1) - 1
    return F.cross_entropy(model(x)[torch.arange(len(x)), last], y[:, 0])


def labels_put_by_a_mask(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    labels = y.clone()
    labels[~mask] = -100
    return F.cross_entropy(model(x).transpose(1, 2), labels, reduction="sum") / (LENGTH * len(x))


def smoothed_labels(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), label_smoothing=0.1)


def one_hot(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return -(F.one_hot(y, CLASSES).float() * F.log_softmax(model(x), -1)).sum(-1).mean()


def rolled(model: nn.Module, x: Tensor, _: Tensor, __: Tensor) -> Tensor:
    made: Tensor = model(x)
    return (made * made.roll(1, 1)).mean()


LOSSES = (by_rows, by_rows_and_columns, the_last_that_counts, labels_put_by_a_mask, smoothed_labels, one_hot, rolled)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_is_proved_and_without_its_share_refuted(loss: Loss) -> None:
    for fake in (False, True):
        right = decided(lambda run: trained(run, loss), fake)
        assert right.outcome is HOLDS, [(fake, r.obligation, r.reason) for r in right.results]
    wrong = decided(lambda run: trained(run, loss, share=False)).result("GA-EQ-001")
    assert (wrong.outcome, " 4 times " in wrong.reason) == (REFUTED, True), wrong.reason


def in_another_order(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return -F.log_softmax(model(x)[:, 0], -1)[torch.arange(len(y)).flip(0), y[:, 0]].mean()


def the_first_for_all(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    return -F.log_softmax(model(x)[:, 0], -1)[torch.zeros(len(y), dtype=torch.long), y[:, 0]].mean()


def from_the_second(model: nn.Module, x: Tensor, y: Tensor, _: Tensor) -> Tensor:
    scores = F.log_softmax(torch.cat([model(x)[:1, 0], model(x)[:, 0]]), -1)
    return -scores[torch.arange(len(y)), y[:, 0]].mean()


def rolled_over_samples(model: nn.Module, x: Tensor, _: Tensor, __: Tensor) -> Tensor:
    made: Tensor = model(x)
    return (made * made.roll(1, 0)).mean()


def rolled_as_one_row(model: nn.Module, x: Tensor, _: Tensor, __: Tensor) -> Tensor:
    made: Tensor = model(x)
    return (made * made.roll(1)).mean()


COUPLED = (in_another_order, the_first_for_all, from_the_second, rolled_over_samples, rolled_as_one_row)


@pytest.mark.parametrize("loss", COUPLED, ids=lambda loss: loss.__name__)
def test_a_loss_that_looks_at_other_samples_does_not_hold(loss: Loss) -> None:
    for fake in (False, True):
        assert decided(lambda run: trained(run, loss), fake).result("GA-EQ-001").outcome is not HOLDS


def adversaries(run: Run, share: bool = True, zero: bool = True) -> None:
    """Two models that train in turn, each by the passes of its own window."""
    torch.manual_seed(run.seed)
    maker, judge = nn.Linear(2, 3), nn.Linear(3, 1)
    makes, judges = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (maker, judge))
    x, z, rows = torch.randn(run.samples, 3), torch.randn(run.samples, 2), run.micro_batch_size
    for start in range(0, run.samples, rows * run.accum_steps):
        window = [slice(at, at + rows) for at in range(start, start + rows * run.accum_steps, rows)]
        for part in window:
            loss = F.softplus(-judge(x[part])).mean() + F.softplus(judge(maker(z[part]).detach())).mean()
            (loss / run.accum_steps if share else loss).backward()
        judges.step()
        judges.zero_grad()
        for part in window:
            (F.softplus(-judge(maker(z[part]))).mean() / run.accum_steps).backward()
        makes.step()
        makes.zero_grad()
        if zero:
            judges.zero_grad()


def test_two_models_in_turn() -> None:
    right = decided(adversaries)
    assert right.outcome is HOLDS, [(r.obligation, r.reason) for r in right.results]
    assert decided(lambda run: adversaries(run, share=False)).result("GA-EQ-001").outcome is REFUTED
    assert decided(lambda run: adversaries(run, zero=False)).result("GA-EQ-001").outcome is not HOLDS


def adapted(run: Run, drawn_anew: bool = False) -> None:
    """A frozen weight of random numbers, which is no parameter, with a factor that is trained beside it."""
    torch.manual_seed(run.seed)
    frozen = torch.randn(4, 3)
    inner, outer = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.zeros(4, 2))
    optimizer = torch.optim.AdamW([inner, outer], lr=0.01)
    x, y, rows = torch.randn(run.samples, 3), torch.randn(run.samples, 4), run.micro_batch_size
    for start in range(0, run.samples, rows * run.accum_steps):
        for at in range(start, start + rows * run.accum_steps, rows):
            if drawn_anew:
                frozen = torch.randn(4, 3)
            made = x[at : at + rows] @ frozen.T + x[at : at + rows] @ inner.T @ outer.T
            (F.mse_loss(made, y[at : at + rows]) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_frozen_weight_is_no_sample() -> None:
    right = decided(adapted)
    assert right.outcome is HOLDS, [(r.obligation, r.reason) for r in right.results]
    assert decided(lambda run: adapted(run, drawn_anew=True)).result("GA-EQ-001").outcome is not HOLDS


def clipped(run: Run, by: int) -> None:
    """The first layer alone is clipped; `by`: the layer whose norm is taken."""
    torch.manual_seed(run.seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, rows = torch.randn(run.samples, 3), torch.randn(run.samples, 2), run.micro_batch_size
    for start in range(0, run.samples, rows * run.accum_steps):
        for at in range(start, start + rows * run.accum_steps, rows):
            (F.mse_loss(model(x[at : at + rows]), y[at : at + rows]) / run.accum_steps).backward()
        norm = torch.stack([p.grad.norm() for p in model[by].parameters() if p.grad is not None]).norm()
        for p in model[0].parameters():
            assert p.grad is not None
            p.grad.mul_((0.1 / norm).clamp(max=1.0))
        optimizer.step()
        optimizer.zero_grad()


def test_a_part_of_the_parameters_may_be_clipped_by_its_own_norm() -> None:
    assert decided(lambda run: clipped(run, by=0)).result("GA-INV-005").outcome is HOLDS
    assert decided(lambda run: clipped(run, by=2)).result("GA-INV-005").outcome is not HOLDS


class Orthogonal(torch.optim.Optimizer):
    """Rounds the whole gradient to bfloat16 inside of its step; `sums`: it sums there by itself, over several steps."""

    def __init__(self, params: Any, sums: int = 1) -> None:
        super().__init__(params, {"sums": sums})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """p -= 0.1 * the sign of the gradient, in bfloat16."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["sum"] = state.get("sum", torch.zeros_like(p, dtype=torch.bfloat16)) + p.grad.bfloat16()
                if state["count"] % group["sums"] == 0:
                    p.sub_(0.1 * (state["sum"] / state["sum"].norm()).float())
                    state["sum"] = torch.zeros_like(p, dtype=torch.bfloat16)


def stepped(run: Run, inside: bool) -> None:
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 2)
    optimizer = Orthogonal(model.parameters(), run.accum_steps if inside else 1)
    x, y, rows = torch.randn(run.samples, 3), torch.randn(run.samples, 2), run.micro_batch_size
    for at in range(0, run.samples, rows):
        (F.mse_loss(model(x[at : at + rows]), y[at : at + rows]) / run.accum_steps).backward()
        if inside or (at // rows + 1) % run.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_an_optimizer_may_round_a_whole_gradient_and_not_sum_in_bfloat16() -> None:
    assert decided(lambda run: stepped(run, inside=False)).result("GA-INV-004").outcome is HOLDS
    assert decided(lambda run: stepped(run, inside=True)).result("GA-INV-004").outcome is not HOLDS
