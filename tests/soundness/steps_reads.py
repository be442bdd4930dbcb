"""Steps that read values, make constants, validate, prefetch, and take the data in other orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import right, wrong
from tests.soundness.tasks import BCE, CONV, LINEAR, MLP

# Reads


@right("reads", LINEAR)
def an_item_that_is_logged(run: Run) -> None:
    """A loss is read and formatted."""
    lines = []
    for loss in LINEAR.start(run).train():
        lines.append(f"loss {loss.item():.3f}")
    print("\n".join(lines))


@right("reads", LINEAR)
def a_gradient_as_a_list(run: Run) -> None:
    """Gradients are read as a list and thrown away."""
    seen: list[Any] = []
    LINEAR.start(run).train(None, lambda job: seen.append(job.gradients[0].tolist()))


@right("reads", LINEAR)
def a_gradient_as_an_array(run: Run) -> None:
    """Gradients are read as an array and thrown away."""
    seen: list[float] = []
    LINEAR.start(run).train(None, lambda job: seen.append(float(np.abs(job.gradients[0].numpy()).max())))


@right("reads", LINEAR)
def a_branch_on_a_list(run: Run) -> None:
    """A gradient that is not finite would not be used."""

    def before(job: Any) -> None:
        if any(abs(g) > 1e6 for g in job.gradients[1].tolist()):
            job.zero()

    LINEAR.start(run).train(None, before)


@wrong("reads", LINEAR, "GA-EQ-001")
def a_factor_from_a_list(run: Run) -> None:
    """Each micro-batch is divided by its own largest gradient, which is read."""
    job = LINEAR.start(run)
    for window in job.windows():
        sums = [torch.zeros_like(p) for p in job.parameters]
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            largest = max(abs(g) for g in job.gradients[1].tolist())
            for s, g in zip(sums, job.gradients, strict=True):
                s += g / largest
            job.zero()
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s
        job.apply()


@wrong("reads", LINEAR, "GA-EQ-001")
def a_branch_on_an_item(run: Run) -> None:
    """A micro-batch whose loss is small does not train."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            if loss.item() > 0.3 or len(window) == 1:
                loss.backward()
        job.apply()


@wrong("reads", LINEAR, "GA-EQ-001")
def a_branch_on_an_array(run: Run) -> None:
    """The same, read through NumPy."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            loss = F.mse_loss(job.model(x), y) / len(window)
            if np.asarray(loss.detach()) > 0.3 or len(window) == 1:
                loss.backward()
        job.apply()


@wrong("reads", MLP, "GA-EQ-001")
def a_branch_on_nonzero(run: Run) -> None:
    """Samples with a large loss are found by nonzero, and divided by their own number."""
    job = MLP.start(run)
    for window in job.windows():
        for x, y in window:
            each = F.cross_entropy(job.model(x), y, reduction="none")
            hard = torch.nonzero(each.detach() > 1.0).flatten()
            if len(hard):
                (each[hard].mean() / len(window)).backward()
        job.apply()


def gated(output: Tensor, target: Tensor) -> Tensor:
    """Samples with a large loss count twice."""
    each = F.cross_entropy(output, target, reduction="none")
    return (each * (1 + (each.detach() > 1.3).to(each.dtype))).mean()


GATED = replace(MLP, loss=gated)


@right("gates", GATED)
def a_gate_on_each_sample(run: Run) -> None:
    """A weight from the sample's own loss: every sample by itself."""
    GATED.start(run).train()


def first_masked(output: Tensor, target: Tensor) -> Tensor:
    """Outputs are masked by the sign of the target."""
    return ((output - target).square() * (target > 0)).mean()


MASKED = replace(LINEAR, loss=first_masked)


@right("gates", MASKED)
def a_mask_times_the_loss(run: Run) -> None:
    """The mean over all elements of a masked loss."""
    MASKED.start(run).train()


def masked_mean(output: Tensor, target: Tensor) -> Tensor:
    """The mean over those elements that the mask leaves."""
    mask = (target > 0).to(output.dtype)
    return ((output - target).square() * mask).sum() / mask.sum()


MASKED_MEAN = replace(LINEAR, loss=masked_mean)


@wrong("gates", MASKED_MEAN, "GA-EQ-001")
def a_mean_over_masked_elements(run: Run) -> None:
    """Each micro-batch is divided by its own number of unmasked elements."""

    def share(output: Tensor, target: Tensor, window: Any) -> Tensor:
        mask = (target > 0).to(output.dtype)
        return ((output - target).square() * mask).sum() / mask.sum().clamp(min=1) / len(window)

    MASKED_MEAN.start(run).train(share)


@right("gates", MASKED_MEAN)
def a_mean_over_the_masked_elements_of_the_window(run: Run) -> None:
    """Divided by the unmasked elements of the window."""

    def share(output: Tensor, target: Tensor, window: Any) -> Tensor:
        mask = (target > 0).to(output.dtype)
        count = sum((y > 0).sum() for _, y in window)
        return ((output - target).square() * mask).sum() / count

    MASKED_MEAN.start(run).train(share)


# Validation


@right("validation", MLP)
def accuracy_by_argmax(run: Run) -> None:
    """Accuracy under no_grad after each window."""
    job, hits = MLP.start(run), 0
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.apply()
        with torch.no_grad():
            hits += int((job.model(job.inputs).argmax(1) == job.targets).sum())
    print(f"{hits} hits")


@right("validation", LINEAR)
def a_validation_loss_of_other_data(run: Run) -> None:
    """A validation set of its own, under no_grad, after the training."""
    job = LINEAR.start(run)
    job.train()
    with torch.no_grad():
        F.mse_loss(job.model(torch.randn(5, 3, dtype=run.dtype)), torch.randn(5, 2, dtype=run.dtype))


@right("validation", LINEAR)
def a_forward_before_training(run: Run) -> None:
    """One forward pass under no_grad before the loop."""
    job = LINEAR.start(run)
    with torch.no_grad():
        job.model(job.inputs[:2])
    job.train()


# Constants


def weighed_truths(output: Tensor, target: Tensor) -> Tensor:
    """Positive targets count twice."""
    return F.binary_cross_entropy_with_logits(output, target, pos_weight=torch.tensor([2.0], dtype=output.dtype))


WEIGHED = replace(BCE, loss=weighed_truths)


@right("constants", WEIGHED)
def pos_weight_made_in_the_step(run: Run) -> None:
    """torch.tensor in the loss."""
    WEIGHED.start(run).train()


@wrong("constants", WEIGHED, "GA-EQ-001")
def pos_weight_and_no_share(run: Run) -> None:
    """The same without the 1/N."""
    WEIGHED.start(run).train(lambda output, target, window: weighed_truths(output, target))


def chosen(output: Tensor, target: Tensor) -> Tensor:
    """One output of two, by a list of indices."""
    return F.mse_loss(output[:, torch.tensor([1])], target[:, torch.tensor([1])])


CHOSEN = replace(LINEAR, loss=chosen)


@right("constants", CHOSEN)
def a_list_of_indices(run: Run) -> None:
    """torch.tensor as an index."""
    CHOSEN.start(run).train()


def class_weights(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with weights: a weighted mean."""
    return F.cross_entropy(output, target, weight=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=output.dtype))


CLASS_WEIGHTS = replace(MLP, loss=class_weights)


@wrong("constants", CLASS_WEIGHTS, "GA-EQ-001")
def a_weighted_mean_for_each_micro_batch(run: Run) -> None:
    """cross_entropy divides by the weights of the micro-batch's classes."""
    CLASS_WEIGHTS.start(run).train()


@right("constants", CLASS_WEIGHTS)
def a_weighted_mean_of_the_window(run: Run) -> None:
    """Divided by the weights of the window's classes."""

    def share(output: Tensor, target: Tensor, window: Any) -> Tensor:
        weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=output.dtype)
        total = weight[torch.cat([y for _, y in window])].sum()
        return F.cross_entropy(output, target, weight=weight, reduction="sum") / total

    CLASS_WEIGHTS.start(run).train(share)


def normalised(x: Tensor) -> Tensor:
    """Images less a mean, by a deviation."""
    return (x - torch.tensor([0.2], dtype=x.dtype)[:, None, None]) / torch.tensor([0.7], dtype=x.dtype)[:, None, None]


def normalised_images(run: Run) -> None:
    """The plain full batch of normalised images."""
    job, size = CONV.start(run), run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.cross_entropy(job.model(normalised(x)), y).backward()
        job.apply()


@right("constants", normalised_images)
def image_mean_and_deviation(run: Run) -> None:
    """Constants of the transform, made in the step."""
    job = CONV.start(run)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(normalised(x)), y) / len(window)).backward()
        job.apply()


# Data


@right("data", LINEAR)
def a_prefetched_batch(run: Run) -> None:
    """The next micro-batch is taken before the present one is used."""
    job = LINEAR.start(run)
    stream = iter(job.batches())
    following, count = next(stream), 0
    while following is not None:
        (x, y), following = following, next(stream, None)
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        count += 1
        if count % run.accum_steps == 0:
            job.apply()


@right("data", LINEAR)
def a_loader(run: Run) -> None:
    """torch's loader."""
    job = LINEAR.start(run)
    loader = DataLoader(TensorDataset(job.inputs, job.targets), batch_size=run.micro_batch_size)
    for i, (x, y) in enumerate(loader):
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            job.apply()


def two_epochs(run: Run) -> None:
    """The plain full batch, twice over the data."""
    job, size = LINEAR.start(run), run.effective_batch_size
    for _ in range(2):
        for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
            F.mse_loss(job.model(x), y).backward()
            job.apply()


@right("epochs", two_epochs)
def two_epochs_over_the_data(run: Run) -> None:
    """Every sample twice."""
    job = LINEAR.start(run)
    for _ in range(2):
        job.train()


@wrong("epochs", two_epochs, "GA-EQ-001")
def two_epochs_without_a_share(run: Run) -> None:
    """Every sample twice, and no 1/N."""
    job = LINEAR.start(run)
    for _ in range(2):
        job.train(lambda output, target, window: F.mse_loss(output, target))


@right("data", LINEAR)
def a_window_in_reverse(run: Run) -> None:
    """The micro-batches of a window in another order."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in reversed(window):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@right("data", MLP)
def shuffled_inside_the_window(run: Run) -> None:
    """The samples of a window are shuffled before they are cut."""
    job, generator = MLP.start(run), torch.Generator().manual_seed(3)
    for window in job.windows():
        inputs, targets = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
        order = torch.randperm(len(inputs), generator=generator)
        size = run.micro_batch_size
        for part in order.split(size):
            (F.cross_entropy(job.model(inputs[part]), targets[part]) / len(window)).backward()
        job.apply()


@wrong("data", LINEAR, "GA-DATA-001")
def overlapping_micro_batches(run: Run) -> None:
    """Each begins with the last sample of the one before."""
    job, size = LINEAR.start(run), run.micro_batch_size
    for i in range(run.micro_batches):
        first = max(i * size - (1 if run.accum_steps > 1 else 0), 0)
        x, y = job.inputs[first : first + size], job.targets[first : first + size]
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            job.apply()


@wrong("data", LINEAR, "GA-DATA-001")
def the_last_sample_is_skipped(run: Run) -> None:
    """The last sample of each micro-batch is cut off."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x[:-1]), y[:-1]) / len(window)).backward()
        job.apply()


@wrong("data", MLP, "GA-DATA-001")
def the_first_micro_batch_again_and_again(run: Run) -> None:
    """One micro-batch of a window is used N times."""
    job = MLP.start(run)
    for window in job.windows():
        x, y = window[0]
        for _ in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        job.apply()


@wrong("data", LINEAR, "GA-EQ-001")
def targets_of_the_neighbour(run: Run) -> None:
    """The targets of the first two micro-batches are exchanged."""
    job = LINEAR.start(run)
    for window in job.windows():
        targets = [y for _, y in window]
        targets[:2] = reversed(targets[:2])
        for (x, _), y in zip(window, targets, strict=True):
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@wrong("data", LINEAR, "GA-DATA-001")
def the_second_window_repeats_the_first(run: Run) -> None:
    """The index starts again with each window, where there is more than one micro-batch."""
    job = LINEAR.start(run)
    made = list(job.windows())
    for number in range(len(made)):
        window = made[0] if run.accum_steps > 1 else made[number]
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()
