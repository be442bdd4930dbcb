"""Steps that change gradients or weights beside the optimizer: clipping, scaling, averages, two passes, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Job, hand_over, keeps, right, wrong
from tests.soundness.tasks import CLIPPED, LINEAR, SUMMED


def whole(output: Tensor, target: Tensor, window: Any) -> Tensor:
    """The loss of a micro-batch, not divided."""
    return F.mse_loss(output, target)


# Clipping


def clip(job: Job, norm: float = 0.5, kind: float = 2.0) -> None:
    """torch's clip."""
    nn.utils.clip_grad_norm_(job.parameters, norm, kind)


def clip_values(model: nn.Module) -> None:
    """Each number by itself."""
    nn.utils.clip_grad_value_(model.parameters(), 0.05)


def clip_largest(model: nn.Module) -> None:
    """By the largest number."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.05, float("inf"))


BY_VALUE = replace(LINEAR, prepare=clip_values)
BY_LARGEST = replace(LINEAR, prepare=clip_largest)


@right("clipping", CLIPPED)
def clipped_once(run: Run) -> None:
    """After the last micro-batch."""
    CLIPPED.start(run).train(None, clip)


@wrong("clipping", CLIPPED, "GA-INV-005")
def clipped_with_each_micro_batch(run: Run) -> None:
    """After each backward pass."""
    job = CLIPPED.start(run)
    for window in job.windows():
        for x, y in window:
            F.mse_loss(job.model(x), y).div(len(window)).backward()
            clip(job, 0.2 if len(window) > 1 else 0.5)
        job.apply()


@wrong("clipping", CLIPPED, "GA-INV-005")
def clipped_before_the_last_micro_batch(run: Run) -> None:
    """Too early."""
    job = CLIPPED.start(run)
    for window in job.windows():
        for i, (x, y) in enumerate(window):
            if i == len(window) - 1:
                nn.utils.clip_grad_norm_([p for p in job.parameters if p.grad is not None], 0.1)
            F.mse_loss(job.model(x), y).div(len(window)).backward()
        job.apply()


@right("clipping", BY_VALUE)
def clipped_by_value(run: Run) -> None:
    """Each number, after the last micro-batch."""
    BY_VALUE.start(run).train(None, lambda job: clip_values(job.model))


@wrong("clipping", BY_VALUE, "GA-INV-005")
def clipped_by_value_with_each_micro_batch(run: Run) -> None:
    """Each number, after each backward pass."""
    job = BY_VALUE.start(run)
    for window in job.windows():
        for x, y in window:
            F.mse_loss(job.model(x), y).div(len(window)).backward()
            clip_values(job.model)
        job.apply()


@right("clipping", BY_LARGEST)
def clipped_by_the_largest(run: Run) -> None:
    """The infinity norm."""
    BY_LARGEST.start(run).train(None, lambda job: clip_largest(job.model))


@wrong("clipping", BY_LARGEST, "GA-EQ-001")
def clipped_by_the_largest_without_a_share(run: Run) -> None:
    """Nothing is divided, and the clip hides most of it."""
    BY_LARGEST.start(run).train(whole, lambda job: nn.utils.clip_grad_norm_(job.parameters, 5.0, float("inf")))


@right("clipping", CLIPPED)
def clipped_by_hand(run: Run) -> None:
    """The norm is made by hand, without a branch."""

    def before(job: Job) -> None:
        norm = torch.stack([g.square().sum() for g in job.gradients]).sum().sqrt()
        for gradient in job.gradients:
            gradient.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))

    CLIPPED.start(run).train(None, before)


# Loss scaling


def unscaled(job: Job) -> Any:
    """A gradient scaler."""
    return torch.amp.GradScaler("cpu", init_scale=64.0)


@right("loss scaling", CLIPPED)
def unscaled_before_the_clip(run: Run) -> None:
    """scale, unscale_, clip, step, update."""
    job = CLIPPED.start(run)
    scaler = unscaled(job)
    for window in job.windows():
        for x, y in window:
            scaler.scale(F.mse_loss(job.model(x), y) / len(window)).backward()
        scaler.unscale_(job.optimizer)
        clip(job)
        scaler.step(job.optimizer)
        scaler.update()
        job.zero()


@wrong("loss scaling", CLIPPED, "GA-INV-005")
def clipped_before_it_is_unscaled(run: Run) -> None:
    """The clip sees gradients that are 64 times as large."""
    job = CLIPPED.start(run)
    scaler = unscaled(job)
    for window in job.windows():
        for x, y in window:
            scaler.scale(F.mse_loss(job.model(x), y) / len(window)).backward()
        clip(job)
        scaler.step(job.optimizer)
        scaler.update()
        job.zero()


@wrong("loss scaling", LINEAR, "GA-EQ-001")
def scaled_by_hand_and_never_unscaled(run: Run) -> None:
    """A scale of N times two over N micro-batches, and division by two."""
    job = LINEAR.start(run)

    def before(job: Job) -> None:
        for gradient in job.gradients:
            gradient.div_(2)

    job.train(lambda output, target, window: F.mse_loss(output, target) * 2, before)


@wrong("loss scaling", LINEAR, "GA-EQ-001")
def scaled_in_the_second_half_of_a_window(run: Run) -> None:
    """The scale is changed in the middle of a window."""
    job = LINEAR.start(run)
    for window in job.windows():
        for i, (x, y) in enumerate(window):
            scale = 8.0 if i < 2 else 4.0
            (F.mse_loss(job.model(x), y) / len(window) * scale).backward()
        for gradient in job.gradients:
            gradient.div_(8.0)
        job.apply()


# By hand


@right("by hand", LINEAR)
def sgd_by_hand(run: Run) -> None:
    """No optimizer."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        hand_over(job.gradients, [job.lr])
        with torch.no_grad():
            for p in job.parameters:
                p -= job.lr * p.grad
                p.grad = None


@wrong("by hand", LINEAR, "GA-EQ-001")
def sgd_by_hand_without_a_share(run: Run) -> None:
    """No optimizer and no 1/N."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            F.mse_loss(job.model(x), y).backward()
        hand_over(job.gradients, [job.lr])
        with torch.no_grad():
            for p in job.parameters:
                p -= job.lr * p.grad
                p.grad = None


@wrong("by hand", LINEAR, "GA-INV-003")
def decay_by_hand_for_each_micro_batch(run: Run) -> None:
    """The weights shrink with each micro-batch."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            with torch.no_grad():
                for p in job.parameters:
                    p.mul_(1 - 0.1 * job.lr)
        job.apply()


def decayed(run: Run) -> None:
    """The plain full batch; the weights shrink before each step."""
    job = LINEAR.start(run)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x), y).backward()
        with torch.no_grad():
            for p in job.parameters:
                p.mul_(0.99)
        job.apply()


@right("by hand", decayed)
def decay_by_hand_for_each_window(run: Run) -> None:
    """The weights shrink before each step."""
    job = LINEAR.start(run)

    def before(job: Job) -> None:
        with torch.no_grad():
            for p in job.parameters:
                p.mul_(0.99)

    job.train(None, before)


# Averages, two passes, closures


def averaged(run: Run) -> None:
    """The plain full batch with an average of the weights."""
    job = LINEAR.start(run)
    average = [p.detach().clone() for p in job.parameters]
    keeps(*average)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x), y).backward()
        job.apply()
        for a, p in zip(average, job.parameters, strict=True):
            a.lerp_(p.detach(), 0.1)


@right("averages", averaged)
def an_average_for_each_window(run: Run) -> None:
    """After each step."""
    job = LINEAR.start(run)
    average = [p.detach().clone() for p in job.parameters]
    keeps(*average)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()
        for a, p in zip(average, job.parameters, strict=True):
            a.lerp_(p.detach(), 0.1)


@wrong("averages", averaged, "GA-INV-003")
def an_average_for_each_micro_batch(run: Run) -> None:
    """After each backward pass."""
    job = LINEAR.start(run)
    average = [p.detach().clone() for p in job.parameters]
    keeps(*average)
    for window in job.windows():
        for i, (x, y) in enumerate(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            if i == len(window) - 1:
                job.apply()
            for a, p in zip(average, job.parameters, strict=True):
                a.lerp_(p.detach(), 0.1)


def ascend(job: Job, sign: float, ascents: list[Tensor]) -> None:
    """Move the weights along the ascents, or back."""
    with torch.no_grad():
        for p, a in zip(job.parameters, ascents, strict=True):
            p.add_(a, alpha=sign)


def two_passes(run: Run) -> None:
    """The plain full batch of sharpness-aware minimisation."""
    job = LINEAR.start(run)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x), y).backward()
        ascents = [0.05 * g.clone() for g in job.gradients]
        ascend(job, 1.0, ascents)
        job.zero()
        F.mse_loss(job.model(x), y).backward()
        ascend(job, -1.0, ascents)
        job.apply()


@right("two passes", two_passes)
def sharpness_aware(run: Run) -> None:
    """Both passes over the whole window."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        ascents = [0.05 * g.clone() for g in job.gradients]
        ascend(job, 1.0, ascents)
        job.zero()
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        ascend(job, -1.0, ascents)
        job.apply()


@wrong("two passes", two_passes, "GA-EQ-001")
def sharpness_aware_without_zeroing(run: Run) -> None:
    """The gradients of the first pass stay in the second."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        ascents = [0.05 * g.clone() for g in job.gradients]
        ascend(job, 1.0, ascents)
        if len(window) == 1:
            job.zero()
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        ascend(job, -1.0, ascents)
        job.apply()


@right("closures", LINEAR)
def a_closure(run: Run) -> None:
    """The window's passes are in a closure."""
    job = LINEAR.start(run)
    for window in job.windows():

        def closure(window: Any = window) -> float:
            job.zero()
            total = 0.0
            for x, y in window:
                loss = F.mse_loss(job.model(x), y) / len(window)
                loss.backward()
                total += float(loss)
            hand_over(job.gradients, [job.lr])
            return total

        job.optimizer.step(closure)


@wrong("closures", LINEAR, "GA-INV-002")
def a_closure_that_does_not_zero(run: Run) -> None:
    """The closure never zeroes."""
    job = LINEAR.start(run)
    for window in job.windows():

        def closure(window: Any = window) -> float:
            for x, y in window:
                (F.mse_loss(job.model(x), y) / len(window)).backward()
            hand_over(job.gradients, [job.lr])
            return 0.0

        job.optimizer.step(closure)


# What is done to gradients before a step


def signs(model: nn.Module) -> None:
    """Gradients become signs."""
    for p in model.parameters():
        assert p.grad is not None
        p.grad.sign_()


SIGNS = replace(SUMMED, prepare=signs)


@right("gradients changed", SIGNS)
def signs_of_the_window(run: Run) -> None:
    """The sign of the sum."""
    SIGNS.start(run).train(lambda output, target, window: SUMMED.loss(output, target), lambda job: signs(job.model))


@wrong("gradients changed", SIGNS, "GA-EQ-001")
def signs_of_each_micro_batch(run: Run) -> None:
    """The sum of the signs."""
    job = SIGNS.start(run)
    for window in job.windows():
        sums = [torch.zeros_like(p) for p in job.parameters]
        for x, y in window:
            SUMMED.loss(job.model(x), y).backward()
            for s, g in zip(sums, job.gradients, strict=True):
                s += g.sign()
            job.zero()
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s
        job.apply()


def noisy(run: Run) -> None:
    """The plain full batch with noise on each step's gradients."""
    job, generator = LINEAR.start(run), torch.Generator().manual_seed(7)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x), y).backward()
        for g in job.gradients:
            g.add_(torch.randn(g.shape, generator=generator, dtype=g.dtype), alpha=0.01)
        job.apply()


@right("gradients changed", noisy)
def noise_for_each_window(run: Run) -> None:
    """From a seeded generator, before each step."""
    job, generator = LINEAR.start(run), torch.Generator().manual_seed(7)

    def before(job: Job) -> None:
        for g in job.gradients:
            g.add_(torch.randn(g.shape, generator=generator, dtype=g.dtype), alpha=0.01)

    job.train(None, before)


@wrong("gradients changed", noisy, "GA-EQ-001")
def noise_for_each_micro_batch(run: Run) -> None:
    """From the same generator, after each backward pass."""
    job, generator = LINEAR.start(run), torch.Generator().manual_seed(7)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            for g in job.gradients:
                g.add_(torch.randn(g.shape, generator=generator, dtype=g.dtype), alpha=0.01)
        job.apply()
