"""Steps about the 1/N: missing, wrong on a tail, applied twice; and steps that read none of run's numbers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.shadow.run import Run
from tests.soundness.kit import blind, right, windows_losses, wrong
from tests.soundness.tasks import BCE, CONV, LINEAR, MLP, TOKENS, WHOLE_TOKENS, token_mean, token_sum

# Right ones


@right("1/N", LINEAR, reports=windows_losses)
def divided_by_the_window(run: Run) -> list[Tensor]:
    """Each loss is divided by the length of its window."""
    job, losses = LINEAR.start(run), []
    for window in job.windows():
        total = torch.zeros((), dtype=run.dtype)
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            loss.backward()
            total += loss.detach()
        job.apply()
        losses.append(total)
    return losses


@right("1/N", LINEAR)
def gradients_divided_at_the_end(run: Run) -> None:
    """Losses are whole; the gradients are divided once, before the step."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            F.mse_loss(job.model(x), y).backward()
        for gradient in job.gradients:
            gradient.div_(len(window))
        job.apply()


@right("1/N", CONV)
def sums_over_the_samples(run: Run) -> None:
    """Losses are sums; they are divided by the samples of the window."""
    job = CONV.start(run)
    for window in job.windows():
        samples = sum(len(x) for x, _ in window)
        for x, y in window:
            (F.cross_entropy(job.model(x), y, reduction="sum") / samples).backward()
        job.apply()


@right("1/N", BCE)
def an_index_over_the_micro_batches(run: Run) -> None:
    """The modulo of an index says when to step."""
    job = BCE.start(run)
    for i, (x, y) in enumerate(job.batches()):
        loss = F.binary_cross_entropy_with_logits(job.model(x), y)
        (loss / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            job.optimizer.step()
            job.optimizer.zero_grad()


@right("tail", LINEAR, tail=2)
def a_tail_divided_by_its_own_length(run: Run) -> None:
    """The short last window is divided by its own length."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@right("token means", TOKENS)
def tokens_of_the_window(run: Run) -> None:
    """Sums over tokens, divided by the tokens of the window."""
    job = TOKENS.start(run)
    for window in job.windows():
        count = sum((y != -100).sum() for _, y in window)
        for x, y in window:
            (token_sum(job.model(x), y) / count).backward()
        job.apply()


# Wrong ones


@wrong("1/N", LINEAR, "GA-EQ-001")
def never_divided(run: Run) -> None:
    """The 1/N is missing."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            F.mse_loss(job.model(x), y).backward()
        job.apply()


@wrong("1/N", MLP, "GA-EQ-001")
def divided_twice(run: Run) -> None:
    """The loss is divided by N, and so are the gradients."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        for gradient in job.gradients:
            gradient /= len(window)
        job.apply()


@wrong("1/N", LINEAR, "GA-EQ-001")
def divided_by_one_too_many(run: Run) -> None:
    """N is off by one."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / (run.accum_steps + 1)).backward()
        job.apply()


@wrong("1/N", LINEAR, "GA-EQ-001")
def divided_in_the_first_window_only(run: Run) -> None:
    """The second window is not divided."""
    job = LINEAR.start(run)
    for number, window in enumerate(job.windows()):
        for x, y in window:
            (F.mse_loss(job.model(x), y) / (len(window) if number == 0 else 1)).backward()
        job.apply()


@wrong("tail", LINEAR, "GA-EQ-001", tail=2)
def a_tail_divided_by_n(run: Run) -> None:
    """The short last window is divided by the length of a whole one."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        job.apply()


@wrong("token means", TOKENS, "GA-EQ-001")
def a_mean_of_token_means(run: Run) -> None:
    """Each micro-batch has a mean over its own tokens."""
    job = TOKENS.start(run)
    for window in job.windows():
        for x, y in window:
            (token_mean(job.model(x), y) / len(window)).backward()
        job.apply()


@right("token means", WHOLE_TOKENS)
def token_means_of_equal_counts(run: Run) -> None:
    """Every token counts, so that the mean of means is the mean."""
    job = WHOLE_TOKENS.start(run)
    for window in job.windows():
        for x, y in window:
            (token_mean(job.model(x), y) / len(window)).backward()
        job.apply()


# Steps that read none of run's numbers, or only some


@wrong("ignores run", LINEAR, "GA-EQ-001")
def numbers_of_its_own(run: Run) -> None:
    """Its own N and batch size, and no 1/N."""
    job = LINEAR.start(Run(4, 2, 2, dtype=run.dtype))
    for i, (x, y) in enumerate(zip(job.inputs.split(2), job.targets.split(2), strict=True)):
        F.mse_loss(job.model(x), y).backward()
        if (i + 1) % 4 == 0:
            job.apply()


@blind("ignores run", LINEAR)
def right_numbers_of_its_own(run: Run) -> None:
    """Its own N and batch size, and the 1/N: nothing about run can be decided."""
    job = LINEAR.start(Run(4, 2, 2, dtype=run.dtype))
    for i, (x, y) in enumerate(zip(job.inputs.split(2), job.targets.split(2), strict=True)):
        (F.mse_loss(job.model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            job.apply()
