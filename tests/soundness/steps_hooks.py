"""Steps that accumulate in hooks, and steps that add up losses and go back once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import accumulates, right, windows_losses, wrong
from tests.soundness.tasks import LINEAR, MLP


@right("main_grad", MLP)
def main_grad(run: Run) -> None:
    """A hook adds each gradient to a wide one of its own, as Megatron does."""
    job = MLP.start(run)
    sums = {p: torch.zeros_like(p) for p in job.parameters}

    def add(p: Tensor) -> None:
        sums[p].add_(p.grad)
        p.grad = None

    for p in job.parameters:
        p.register_post_accumulate_grad_hook(add)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        for p in job.parameters:
            p.grad = sums[p].clone()
            sums[p].zero_()
        job.apply()


@wrong("main_grad", MLP, "GA-INV-002")
def main_grad_that_is_never_zeroed(run: Run) -> None:
    """The wide gradients keep the last window."""
    job = MLP.start(run)
    sums = {p: torch.zeros_like(p) for p in job.parameters}

    def add(p: Tensor) -> None:
        sums[p].add_(p.grad)
        p.grad = None

    for p in job.parameters:
        p.register_post_accumulate_grad_hook(add)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        for p in job.parameters:
            p.grad = sums[p].clone()
        job.apply()


@wrong("main_grad", LINEAR, "GA-EQ-001")
def main_grad_that_is_overwritten(run: Run) -> None:
    """The hook copies where it should add."""
    job = LINEAR.start(run)
    sums = {p: torch.zeros_like(p) for p in job.parameters}

    def keep(p: Tensor) -> None:
        sums[p].copy_(p.grad)
        p.grad = None

    for p in job.parameters:
        p.register_post_accumulate_grad_hook(keep)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        for p in job.parameters:
            p.grad = sums[p].clone()
        job.apply()


@wrong("main_grad", LINEAR, "GA-INV-004")
def main_grad_in_bf16(run: Run) -> None:
    """The hook adds to a narrow gradient."""
    job = LINEAR.start(run)
    sums = {p: torch.zeros_like(p, dtype=torch.bfloat16) for p in job.parameters}
    accumulates(*sums.values())

    def add(p: Tensor) -> None:
        sums[p] += p.grad.bfloat16()
        p.grad = None

    for p in job.parameters:
        p.register_post_accumulate_grad_hook(add)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        for p in job.parameters:
            p.grad = sums[p].to(p.dtype)
            sums[p].zero_()
        job.apply()


@right("hooks", LINEAR)
def a_hook_that_divides(run: Run) -> None:
    """The 1/N is in a hook on each parameter."""
    job = LINEAR.start(run)
    for p in job.parameters:
        p.register_hook(lambda gradient: gradient / run.accum_steps)
    job.train(lambda output, target, window: F.mse_loss(output, target))


@wrong("hooks", LINEAR, "GA-EQ-001")
def a_hook_that_divides_once_more(run: Run) -> None:
    """Loss and hook both divide."""
    job = LINEAR.start(run)
    for p in job.parameters:
        p.register_hook(lambda gradient: gradient / run.accum_steps)
    job.train()


@wrong("hooks", MLP, "GA-EQ-001")
def a_hook_on_one_layer(run: Run) -> None:
    """The hook that divides is on the first layer only."""
    job = MLP.start(run)
    for p in job.parameters[:2]:
        p.register_hook(lambda gradient: gradient / run.accum_steps)
    job.train(lambda output, target, window: F.cross_entropy(output, target))


@right("hooks", MLP)
def hooks_that_collect(run: Run) -> None:
    """Tensor hooks keep each gradient; their sum is what is applied."""
    job = MLP.start(run)
    kept: dict[int, list[Tensor]] = {}
    for i, p in enumerate(job.parameters):
        p.register_hook(lambda gradient, i=i: kept.setdefault(i, []).append(gradient.clone()))
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        for i, p in enumerate(job.parameters):
            p.grad = torch.stack(kept.pop(i)).sum(0)
        job.apply()


@right("one backward pass", LINEAR)
def losses_summed(run: Run) -> None:
    """The losses of a window are added up and go back once."""
    job = LINEAR.start(run)
    for window in job.windows():
        (sum(F.mse_loss(job.model(x), y) for x, y in window) / len(window)).backward()
        job.apply()


@wrong("one backward pass", LINEAR, "GA-EQ-001")
def losses_summed_and_not_divided(run: Run) -> None:
    """The same without the 1/N."""
    job = LINEAR.start(run)
    for window in job.windows():
        sum(F.mse_loss(job.model(x), y) for x, y in window).backward()
        job.apply()


@right("one backward pass", MLP, reports=windows_losses)
def losses_stacked(run: Run) -> list[Tensor]:
    """The mean of the stacked losses goes back once."""
    job, losses = MLP.start(run), []
    for window in job.windows():
        loss = torch.stack([F.cross_entropy(job.model(x), y) for x, y in window]).mean()
        loss.backward()
        job.apply()
        losses.append(loss.detach())
    return losses


@wrong("one backward pass", LINEAR, "GA-INV-002")
def a_loss_that_is_never_reset(run: Run) -> None:
    """The sum keeps the losses of earlier windows, whose graphs go back once more."""
    job = LINEAR.start(run)
    total = torch.zeros((), dtype=run.dtype)
    for window in job.windows():
        for x, y in window:
            copies = {name: p.clone() for name, p in job.model.named_parameters()}
            total = total + F.mse_loss(torch.func.functional_call(job.model, copies, (x,)), y) / len(window)
        total.backward(retain_graph=True)
        job.apply()
