"""The harness of the step proofs: small nets, one job, and the real training step under the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradproof.harness import AUTOCAST, Batch, Job, Maker, StepConfig, StepSetting as Setting
from models.accumulation.torch_nets import NETS

LEARNING_RATE = 0.125
BINDING = "a clip that binds"


def batches_of(setting: Setting, run: Any) -> list[Batch]:
    """The run's samples, cut into its micro-batches; with a window as large, the same samples in one."""
    net, generator = NETS[setting.net], torch.Generator().manual_seed(run.seed)
    inputs, targets = net.data(generator, run.samples)
    if setting.mode == "fp16_params" and inputs.is_floating_point():
        inputs = inputs.half()
    rows = [slice(i * run.micro_batch_size, (i + 1) * run.micro_batch_size) for i in range(run.micro_batches)]
    return [Batch(i, inputs[at], targets[at], net.count(targets[at])) for i, at in enumerate(rows)]


def job_of(setting: Setting, run: Any) -> Job:
    """The net, its data and everything else that a step is handed."""
    net = NETS[setting.net]

    def criterion(output: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
        return net.loss(output, batch.targets, reduction)

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
    }
    """These leave something out, or change when the reference's own line runs: the line is not in their class."""

    def step(self, subject: Any, setting: Setting) -> Callable[[Any], list[float]]:
        """Build the job, run the subject, return the losses that it reports."""

        def train(run: Any) -> list[float]:
            losses: list[float] = subject().run(job_of(setting, run)).losses
            return losses

        return train

    def covers(self, settings: Sequence[Setting]) -> list[str]:
        """What the configurations call for: short windows, clips that bind, unequal weights."""
        rows = {
            "a short last window": any(s.tail for s in settings),
            BINDING: any(s.max_norm is not None for s in settings),
            "micro-batches of unequal counts": any(s.weighting == "count" for s in settings),
        }
        return [name for name, asked in rows.items() if asked]

    def reached(self, setting: Setting) -> Iterable[str]:
        """By the data and the initial weights alone, without the subject."""
        from gradproof.harness import Run

        if setting.tail:
            yield "a short last window"
        if setting.max_norm is not None and full_norm(setting) > setting.max_norm:
            yield BINDING
        first = batches_of(setting, Run(setting.n, setting.micro_batch, 1))
        if setting.weighting == "count" and len({b.count for b in first}) > 1:
            yield "micro-batches of unequal counts"


accumulates = Accumulates()
