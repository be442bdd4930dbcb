"""Right steps that are proved, each beside a wrong twin that is not, with numbers and without."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Batch
from tests.soundness.tasks import LINEAR

EQ, STALE, WIDE = "GA-EQ-001", "GA-INV-002", "GA-INV-004"
FAKE = pytest.mark.parametrize("fake", [False, True])
Weight = Callable[[int], Tensor]


def outcome(step: Callable[[Run], Any], obligation: str, fake: bool, **options: Any) -> Outcome:
    """What is said of an obligation."""
    return check_whole(step, "step", Request(fake=fake, **options)).result(obligation).outcome


def weighed(weight: Weight) -> Callable[[Run], Any]:
    """A loop that multiplies each loss by what `weight` makes of N."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return F.mse_loss(output, target) * weight(len(window))

    return lambda run: LINEAR.start(run).train(share)


def foreach(n: int, same: bool) -> Tensor:
    """A list operator on two tensors, or twice on one."""
    first, second = torch.full((2,), 1 / n), torch.ones(2)
    torch._foreach_mul_([first, first if same else second], [float(n) if same else 1.0, 1.0])
    return first[0]


WEIGHTS: list[tuple[Weight, Weight]] = [
    (lambda n: torch.full((), 1 / n), lambda n: torch.full((), 1 / n, dtype=torch.int64)),
    (lambda n: torch.full((), 1 / n), lambda n: torch.full((), 1 / n, dtype=torch.bool)),
    (lambda n: torch.zeros(()).fill_(1 / n), lambda n: torch.zeros((), dtype=torch.int32).fill_(1 / n)),
    (lambda n: torch.ones(()).fill_(torch.tensor(1 / n)), lambda n: torch.ones((), dtype=torch.int64).fill_(1 / n)),
    (lambda n: torch.full_like(torch.ones(2), 1 / n)[0], lambda n: torch.full_like(torch.arange(2), 1 / n)[0]),
    (lambda n: foreach(n, same=False), lambda n: foreach(n, same=True)),
]


@FAKE
@pytest.mark.parametrize(("right", "wrong"), WEIGHTS)
def test_weights_of_whole_numbers_and_of_lists(right: Weight, wrong: Weight, fake: bool) -> None:
    """A whole number that is made of a fraction is another one."""
    assert outcome(weighed(right), EQ, fake) is Outcome.HOLDS
    assert outcome(weighed(wrong), EQ, fake) is not Outcome.HOLDS


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_whole_numbers_of_eight_bits_join_micro_batches() -> None:
    """Quantized tensors are narrower than fp32. Without numbers torch makes none."""

    def step(run: Run, narrow: bool) -> None:
        job = LINEAR.start(run)
        for window in job.windows():
            for x, y in window:
                (F.mse_loss(job.model(x), y) / len(window)).backward()
                for p in job.parameters:
                    assert p.grad is not None
                    if narrow:
                        p.grad = torch.quantize_per_tensor(p.grad, 0.01, 0, torch.qint8).dequantize()
            job.apply()

    assert outcome(lambda run: step(run, False), WIDE, False) is Outcome.HOLDS
    assert outcome(lambda run: step(run, True), WIDE, False) is not Outcome.HOLDS


def epochs(emptied: bool, zeroed: bool) -> Callable[[Run], Any]:
    """Two epochs over one window, of a loss without curvature: its gradient is made of no parameter."""

    def step(run: Run) -> None:
        model, inputs = torch.nn.Linear(3, 1, bias=False), torch.randn(run.samples, 3)
        optimizer, total = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(1, 3)
        for _ in range(2):
            for x in inputs.split(run.micro_batch_size):
                total += torch.autograd.grad(model(x).mean() / run.accum_steps, [model.weight])[0]
            model.weight.grad = total.clone()
            optimizer.step()
            if zeroed:
                optimizer.zero_grad()
            if emptied:
                total.zero_()

    return step


@FAKE
def test_a_buffer_that_is_never_emptied_is_stale_where_samples_come_again(fake: bool) -> None:
    assert outcome(epochs(emptied=True, zeroed=True), STALE, fake, windows=1) is Outcome.HOLDS
    assert outcome(epochs(emptied=False, zeroed=True), STALE, fake, windows=1) is not Outcome.HOLDS


def test_a_gradient_that_is_replaced_by_an_equal_one_is_not_stale() -> None:
    assert outcome(epochs(emptied=True, zeroed=False), STALE, False, windows=1) is not Outcome.REFUTED
    assert outcome(epochs(emptied=False, zeroed=False), STALE, False, windows=1) is Outcome.REFUTED


@FAKE
def test_one_number_that_is_added_at_several_places(fake: bool) -> None:
    """A count of labels by hand: the labels of a micro-batch meet in it."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        label = (target[:, 0] > 0).long()
        counts = torch.zeros(2).index_put((label,), torch.ones(1), accumulate=True)
        return (output * counts).mean() / len(window)

    assert outcome(lambda run: LINEAR.start(run).train(share), EQ, fake) not in (Outcome.HOLDS, Outcome.ERROR)


# -- What the function keeps beside its gradients.


def averaged(run: Run, inside: bool) -> None:
    """An average of the parameters in tensors of its own, after each micro-batch or after each step."""
    job = LINEAR.start(run)
    params = list(job.model.parameters())
    kept = [p.detach().clone() for p in params]
    for window in job.windows():
        for at, (x, y) in enumerate(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            if inside or at == len(window) - 1:
                kept = [0.9 * old + 0.1 * p.detach() for old, p in zip(kept, params, strict=True)]
        job.optimizer.step()
        job.optimizer.zero_grad()


@FAKE
def test_an_average_in_new_tensors_is_seen(fake: bool) -> None:
    assert outcome(lambda run: averaged(run, False), "GA-INV-003", fake) is Outcome.HOLDS
    assert outcome(lambda run: averaged(run, True), "GA-INV-003", fake) is not Outcome.HOLDS


def half_sums(run: Run) -> None:
    """Gradients are added up in lists of numbers of half precision."""
    job = LINEAR.start(run)
    params = list(job.model.parameters())
    for window in job.windows():
        total: list[float] = []
        for x, y in window:
            found = torch.autograd.grad(F.mse_loss(job.model(x), y) / len(window), params)
            own = [number for one in found for number in one.flatten().tolist()]
            sums = [a + b for a, b in zip(total or [0.0] * len(own), own, strict=True)]
            total = [struct.unpack("e", struct.pack("e", one))[0] for one in sums]
        for p, part in zip(params, torch.tensor(total).split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p).to(run.dtype)
        job.optimizer.step()


def test_numbers_of_gradients_that_lists_hold_are_not_known_to_be_wide() -> None:
    assert outcome(half_sums, WIDE, False) is not Outcome.HOLDS


def by_a_count(run: Run, how: str) -> list[float]:
    """Sums over tokens, and the gradients divided by the window's count, or wrongly in a way that `how` names."""
    torch.manual_seed(run.seed)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels = torch.randint(5, (run.samples, 7)).masked_fill(torch.rand(run.samples, 7) < 0.3, -100)
    data = [part.split(run.micro_batch_size) for part in (torch.randint(11, (run.samples, 7)), labels)]
    batches, losses, before = list(zip(*data, strict=True)), list[float](), torch.zeros(())
    for start in range(0, len(batches), run.accum_steps):
        window, own = batches[start : start + run.accum_steps], 0.0
        total = torch.stack([(y != -100).sum() for _, y in window]).sum() + (before if how == "running" else 0)
        for x, y in window:
            if how == "zeroed":
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
            loss = loss / total if how == "running" else loss
            loss.backward()
            own += float(loss.detach())
        for p in model.parameters() if how != "running" else ():
            assert p.grad is not None
            p.grad /= before if how == "before" and start else total
        if how == "zeroed":
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        before = total
        optimizer.step()
        optimizer.zero_grad()
        losses.append(own if how == "running" else own / float(total))
    return losses


def test_gradients_that_are_divided_afterwards_by_a_count() -> None:
    for name in (EQ, "GA-INV-001"):
        assert outcome(lambda run: by_a_count(run, "own"), name, False) is Outcome.HOLDS
    assert outcome(lambda run: by_a_count(run, "before"), EQ, False) is not Outcome.HOLDS


def test_reported_losses_by_a_running_count_do_not_hold_by_a_full_batch_that_is_wrong_as_well() -> None:
    for name in (EQ, "GA-INV-001"):
        assert outcome(lambda run: by_a_count(run, "running"), name, False) is not Outcome.HOLDS


def test_samples_that_are_only_in_a_count_are_in_no_gradient() -> None:
    assert outcome(lambda run: by_a_count(run, "zeroed"), STALE, False) is not Outcome.HOLDS
