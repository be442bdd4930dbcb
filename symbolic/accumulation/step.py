"""The harness of the step proofs: small nets, one job, and the real training step under the recorder.

`FullBatch` is the specification: what a window is to give, by the whole batch and without a loss scale, in another text
than the subjects'. So a subject that errs alike with any N, or under any loss scale, is refuted too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.harness import AUTOCAST, Batch, Job, Maker, Report, StepConfig, StepSetting as Setting
from models.accumulation.torch_nets import NETS
from models.accumulation.torch_steps import copy_back

LEARNING_RATE = 0.125
BINDING, LOOSE = "a clip that binds", "a clip that does not bind"
SUPPRESSED = "a step that the loss scaler suppresses"
CLIPS = ("clip_to_one", "clip_two_windows_only", "tail_not_clipped", "clip_without_first")
SHOWN_BY = {
    **dict.fromkeys((*CLIPS, "weights_lost_under_scale"), "GA-EQ-001"),
    "stale_after_skip": "GA-INV-003",
}
"""A clip to another length, and lost weights, show in the gradient: it is not the specification's. What a window that
overflowed leaves behind is not finite: the scaler suppresses every later step."""
OVERFLOW = -1
"""The index of a micro-batch whose gradients overflow."""


def overflowing(like: Batch, setting: Setting, run: Any) -> list[Batch]:
    """A window whose first micro-batch overflows, of constants: none of its samples may reach a gradient."""
    size = run.micro_batch_size
    inputs = torch.full((size, *like.inputs.shape[1:]), 0.5, dtype=like.inputs.dtype)
    targets = torch.zeros((size, *like.targets.shape[1:]), dtype=like.targets.dtype)
    return [Batch(OVERFLOW - i, inputs, targets, size) for i in range(run.accum_steps)]


def batches_of(setting: Setting, run: Any) -> list[Batch]:
    """The run's samples, cut into its micro-batches; with a window as large, the same samples in one."""
    net, generator = NETS[setting.net], torch.Generator().manual_seed(run.seed)
    inputs, targets = net.data(generator, run.samples)
    if setting.mode == "fp16_params" and inputs.is_floating_point():
        inputs = inputs.half()
    rows = [slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size) for i in range(run.micro_batches)]
    made = [Batch(i, inputs[at], targets[at], net.count(targets[at])) for i, at in enumerate(rows)]
    if setting.overflow is None:
        return made
    at = setting.overflow * run.accum_steps
    return [*made[:at], *overflowing(made[0], setting, run), *made[at:]]


def job_of(setting: Setting, run: Any) -> Job:
    """The net, its data and everything else that a step is handed."""
    net = NETS[setting.net]

    def criterion(output: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
        loss = net.loss(output, batch.targets, reduction)
        return loss * math.inf if batch.index == OVERFLOW else loss

    config = StepConfig(
        run.accum_steps, setting.mode, setting.optimizer, setting.form, setting.weighting, setting.max_norm,
        setting.loss_scale, LEARNING_RATE,
    )  # fmt: skip
    return Maker(criterion).make(net.build(run.seed), config, batches_of(setting, run))


def full_norm(setting: Setting) -> float:
    """Norm of the gradient of the first window as one batch, at the initial weights."""
    from gradproof.harness import Run

    run = Run(setting.n, setting.micro_batch, 1).full_batch()
    job = job_of(setting, run)
    dtype = AUTOCAST.get(setting.mode)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        output = job.model(job.batches[0].inputs)
    grads = torch.autograd.grad(job.criterion(output, job.batches[0]), job.leaves)
    return float(torch.cat([g.double().flatten() for g in grads]).norm())


class FullBatch:
    """The specification: the gradient of each window's mean loss, clipped once, one step and one of the schedule."""

    def run(self, job: Job) -> Report:
        """Train over the windows, each of which is one batch; one that overflows is left out."""
        report = Report()
        for batch in job.batches:
            if batch.index != OVERFLOW:
                report.losses.append(0.0 + self.window(batch, job))
        return report

    def window(self, batch: Batch, job: Job) -> float:
        """The loss of one window; its gradient is applied."""
        with job.autocast():
            output = job.model(batch.inputs)
        loss = job.criterion(output, batch)
        grads = torch.autograd.grad(loss, job.leaves)
        for master, grad in zip(job.masters, grads, strict=True):
            master.grad = grad.to(master.dtype)
        if job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.masters, job.config.max_norm)
        job.optimizer.step()
        job.scheduler.step()
        copy_back(job)
        for master in job.masters:
            master.grad = None
        return float(loss.detach())


class Accumulates:
    """Training with micro-batches is training with the full batch, obligation by obligation."""

    blamed: Mapping[str, str] = {
        "missing_scale": "models.accumulation.torch_nets:_squares",
        "fused_forgets_scale": "models.accumulation.torch_nets:_squares",
        "zero_skipped": "models.accumulation.torch_steps:TorchStep.backward",
        "zero_first_cycle_only": "models.accumulation.torch_steps:TorchStep.backward",
        "zero_first_element_only": "models.accumulation.torch_steps:TorchStep.backward",
        "zero_per_micro_batch": "models.accumulation.torch_steps:TorchStep.zero",
        "step_per_micro_batch": "models.accumulation.torch_steps:TorchStep.step",
        "boundary_at_index": "models.accumulation.torch_steps:TorchStep.step",
        "step_at_n_minus_1": "models.accumulation.torch_steps:TorchStep.step",
        "no_move": "models.accumulation.torch_steps:TorchStep.step",
        "tail_dropped": "models.accumulation.torch_steps:TorchStep.step",
        "clip_before_unscale": "models.accumulation.torch_steps:TorchStep.clip",
        "moved_by_unclipped": "models.accumulation.torch_steps:TorchStep.clip",
        "zero_three_windows_only": "models.accumulation.torch_steps:TorchStep.backward",
        **dict.fromkeys((*CLIPS, "weights_lost_under_scale"), "models.accumulation.torch_steps:TorchStep.backward"),
        **dict.fromkeys(("mean_of_means", "first_counts_kept"), "models.accumulation.torch_steps:TorchStep.backward"),
        **dict.fromkeys(
            ("tail_cut_short", "loss_sum_later", "stale_after_skip"), "models.accumulation.torch_steps:TorchStep.step"
        ),
    }
    """These leave something out, or change when the reference's own line runs: the line is not in their class."""
    shown_by: Mapping[str, str] = SHOWN_BY

    def step(self, subject: Any, setting: Setting) -> Callable[[Any], list[float]]:
        """Build the job, run the subject, return the losses that it reports."""

        def train(run: Any) -> list[float]:
            losses: list[float] = subject().run(job_of(setting, run)).losses
            at = setting.overflow
            return losses if at is None else losses[:at] + losses[at + 1 :]

        return train

    def specification(self, setting: Setting) -> Callable[[Any], list[float]]:
        """Train by the full batch, in the same configuration."""

        def train(run: Any) -> list[float]:
            return FullBatch().run(job_of(setting, run)).losses

        return train

    def covers(self, settings: Sequence[Setting]) -> list[str]:
        """What the configurations call for: short windows, clips that bind, unequal weights."""
        rows = {
            "a short last window": any(s.tail for s in settings),
            BINDING: any(s.max_norm is not None for s in settings),
            LOOSE: len({s.max_norm for s in settings if s.max_norm is not None}) > 1,
            SUPPRESSED: any(s.overflow is not None for s in settings),
            "micro-batches of unequal counts": any(s.weighting == "count" for s in settings),
        }
        return [name for name, asked in rows.items() if asked]

    def reached(self, setting: Setting) -> Iterable[str]:
        """By the data and the initial weights alone, without the subject."""
        from gradproof.harness import Run

        if setting.tail:
            yield "a short last window"
        if setting.max_norm is not None:
            yield BINDING if full_norm(setting) > setting.max_norm else LOOSE
        if setting.overflow is not None:
            yield SUPPRESSED
        first = batches_of(setting, Run(setting.n, setting.micro_batch, 1))
        if setting.weighting == "count" and len({b.count for b in first}) > 1:
            yield "micro-batches of unequal counts"


accumulates = Accumulates()
