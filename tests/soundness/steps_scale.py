"""Steps about the 1/N: missing, wrong on a tail, applied twice; and steps that read none of run's numbers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Batch, Job, blind, right, windows_losses, wrong
from tests.soundness.tasks import (
    BCE,
    CONV,
    FIXED,
    LINEAR,
    MLP,
    SAMPLE_TOKENS,
    SUMMED,
    TOKENS,
    WHOLE_TOKENS,
    token_mean,
    token_sum,
)

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


@blind("ignores run", LINEAR, "GA-EQ-001")
def right_numbers_of_its_own(run: Run) -> None:
    """Its own N and batch size, and the 1/N: nothing about run can be decided."""
    job = LINEAR.start(Run(4, 2, 2, dtype=run.dtype))
    for i, (x, y) in enumerate(zip(job.inputs.split(2), job.targets.split(2), strict=True)):
        (F.mse_loss(job.model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            job.apply()


@blind("ignores run", LINEAR, "GA-EQ-001")
def right_numbers_that_are_not_runs(run: Run) -> None:
    """Right with N = 2 and three samples a micro-batch, whatever run asks for."""
    job = LINEAR.start(Run(2, 3, 2, dtype=run.dtype))
    job.train()


@wrong("ignores run", MLP, "GA-EQ-001")
def numbers_that_are_not_runs(run: Run) -> None:
    """N = 2, three samples a micro-batch, and no 1/N."""
    job = MLP.start(Run(2, 3, 2, dtype=run.dtype))
    job.train(lambda output, target, window: F.cross_entropy(output, target))


@wrong("ignores run", LINEAR, "GA-EQ-001")
def windows_of_its_own(run: Run) -> None:
    """Five windows of its own, and no 1/N."""
    job = LINEAR.start(Run(4, 2, 5, dtype=run.dtype))
    job.train(lambda output, target, window: F.mse_loss(output, target))


@wrong("ignores run", CONV, "GA-EQ-001")
def only_windows_are_read(run: Run) -> None:
    """It reads how many windows there are, and has N and batch size of its own; no 1/N."""
    job = CONV.start(Run(4, 2, run.windows, dtype=run.dtype))
    job.train(lambda output, target, window: F.cross_entropy(output, target))


@wrong("ignores run", BCE, "GA-EQ-001")
def constants_of_a_module(run: Run) -> None:
    """N and batch size stand above the loop, as most scripts have them; divided by another N."""
    accumulate, batch_size = 4, 2
    job = BCE.start(Run(accumulate, batch_size, 2, dtype=run.dtype))
    for i in range(8):
        x, y = job.inputs[i * batch_size : (i + 1) * batch_size], job.targets[i * batch_size : (i + 1) * batch_size]
        (F.binary_cross_entropy_with_logits(job.model(x), y) / 2).backward()
        if i % accumulate == accumulate - 1:
            job.apply()


@wrong("ignores run", LINEAR, "GA-INV-002")
def numbers_of_its_own_and_no_zeroing(run: Run) -> None:
    """Right 1/N, and never zeroed."""
    job = LINEAR.start(Run(4, 2, 2, dtype=run.dtype))
    for i, (x, y) in enumerate(zip(job.inputs.split(2), job.targets.split(2), strict=True)):
        (F.mse_loss(job.model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            job.optimizer.step()


@blind("one micro-batch", LINEAR, "GA-EQ-001", accum_steps=1)
def one_micro_batch_a_window(run: Run) -> None:
    """The 1/N is missing, and N is 1: nothing about equality can be decided."""
    LINEAR.start(run).train(lambda output, target, window: F.mse_loss(output, target))


@blind("one window", LINEAR, "GA-INV-002", windows=1)
def one_window(run: Run) -> None:
    """Never zeroed, and there is one window: nothing about staleness can be decided."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.optimizer.step()


# More wrong ones


@wrong("1/N", LINEAR, "GA-EQ-001")
def divided_by_the_batch_size_only(run: Run) -> None:
    """Sums over samples, divided by those of the micro-batch."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return (output - target).square().mean(1).sum() / run.micro_batch_size

    LINEAR.start(run).train(share)


@wrong("1/N", SUMMED, "GA-EQ-001")
def a_sum_that_is_divided(run: Run) -> None:
    """The loss is a sum over samples, and is divided by N all the same."""
    SUMMED.start(run).train()


@right("1/N", SUMMED)
def a_sum_that_is_not_divided(run: Run) -> None:
    """The loss of the full batch is a sum: there is nothing to divide by."""
    SUMMED.start(run).train(lambda output, target, window: SUMMED.loss(output, target))


@right("fixed normaliser", FIXED)
def a_fixed_normaliser(run: Run) -> None:
    """The sum over samples is divided by a number that is always the same."""
    FIXED.start(run).train(lambda output, target, window: (output - target).square().sum() / 10.0)


@right("fixed normaliser", FIXED, tail=2)
def a_fixed_normaliser_on_a_tail(run: Run) -> None:
    """The short window is divided by the same number: its loss is smaller, with the full batch as well."""
    FIXED.start(run).train(lambda output, target, window: (output - target).square().sum() / 10.0)


@wrong("1/N", LINEAR, "GA-EQ-001")
def only_the_weight_is_divided(run: Run) -> None:
    """The gradients are divided at the end, all but the bias."""
    job = LINEAR.start(run)

    def before(job: Job) -> None:
        job.gradients[0].div_(run.accum_steps)

    job.train(lambda output, target, window: F.mse_loss(output, target), before)


@wrong("1/N", MLP, "GA-EQ-001")
def the_first_micro_batch_counts_twice(run: Run) -> None:
    """Backward twice through the first graph of a window."""
    job = MLP.start(run)
    for window in job.windows():
        for i, (x, y) in enumerate(window):
            loss = F.cross_entropy(job.model(x), y) / len(window)
            if i == 0 and len(window) > 1:
                loss.backward(retain_graph=True)
            loss.backward()
        job.apply()


@wrong("1/N", LINEAR, "GA-EQ-001")
def only_the_last_micro_batch(run: Run) -> None:
    """Every forward pass is made, and only the last loss goes back."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            loss = F.mse_loss(job.model(x), y)
        loss.backward()
        job.apply()


@wrong("tail", CONV, "GA-EQ-001", tail=1)
def a_tail_of_one_divided_at_the_end(run: Run) -> None:
    """The gradients of the tail are divided by the whole N before the step."""
    job = CONV.start(run)

    def before(job: Job) -> None:
        for gradient in job.gradients:
            gradient.div_(run.accum_steps)

    job.train(lambda output, target, window: F.cross_entropy(output, target), before)


@wrong("tail", LINEAR, "GA-EQ-001", tail=3)
def a_tail_that_is_not_divided(run: Run) -> None:
    """Whole windows are divided, the short one is not."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return F.mse_loss(output, target) / (len(window) if len(window) == run.accum_steps else 1)

    LINEAR.start(run).train(share)


@wrong("tail", LINEAR, "GA-INV-003", tail=2)
def a_tail_that_is_never_stepped(run: Run) -> None:
    """Only whole windows are stepped."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        if len(window) == run.accum_steps and len(window[-1][0]) == run.micro_batch_size:
            job.apply()


@right("tail", MLP, tail=3, reports=windows_losses)
def a_tail_of_three(run: Run) -> list[Tensor]:
    """Divided by three."""
    return MLP.start(run).train()


@right("tail", TOKENS, tail=1)
def a_tail_of_tokens(run: Run) -> None:
    """The tokens of the short window."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return token_sum(output, target) / sum(int((y != -100).sum()) for _, y in window)

    TOKENS.start(run).train(share)


@wrong("token means", TOKENS, "GA-EQ-001")
def the_tokens_of_the_first_window(run: Run) -> None:
    """Every window is divided by the tokens of the first."""
    job = TOKENS.start(run)
    first = (job.targets[: run.effective_batch_size] != -100).sum()
    job.train(lambda output, target, window: token_sum(output, target) / first)


@wrong("token means", TOKENS, "GA-EQ-001")
def a_token_count_that_is_never_reset(run: Run) -> None:
    """The tokens of all windows so far."""
    job, count = TOKENS.start(run), torch.zeros(())
    for window in job.windows():
        count += sum((y != -100).sum() for _, y in window)
        for x, y in window:
            (token_sum(job.model(x), y) / count).backward()
        job.apply()


@wrong("token means", TOKENS, "GA-EQ-001")
def tokens_of_the_micro_batch_times_n(run: Run) -> None:
    """Divided by N times the tokens of the micro-batch."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return token_sum(output, target) / ((target != -100).sum() * len(window))

    TOKENS.start(run).train(share)


@right("token means", TOKENS)
def a_token_count_that_is_clamped(run: Run) -> None:
    """The tokens of the window, at least one."""

    def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
        return token_sum(output, target) / torch.cat([y for _, y in window]).ne(-100).sum().clamp(min=1)

    TOKENS.start(run).train(share)


@right("token means", SAMPLE_TOKENS)
def token_means_of_each_sample(run: Run) -> None:
    """A mean over the tokens of each sample, then over samples."""
    SAMPLE_TOKENS.start(run).train()
