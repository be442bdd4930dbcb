"""Gradient accumulation as a real PyTorch training step: real autograd, optimizers, GradScaler and clipping.

The phases are those of `models.accumulation.loop`: zero, scale the loss, backward, accumulate, unscale, clip, step,
schedule. fp32, autocast fp16 with GradScaler and autocast bf16 accumulate in the `.grad` of fp32 parameters; with
`fp16_params` each fp16 gradient is added to the fp32 `.grad` of a master weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradproof.harness import Batch, Job, Report


def copy_back(job: Job) -> None:
    """Copy each master weight into the model's parameter of fewer bits."""
    with torch.no_grad():
        for leaf, master in zip(job.leaves, job.masters, strict=True):
            if leaf is not master:
                leaf.copy_(master)


class TorchStep:
    """The reference step: one optimizer step a window, the tail flushed, the loss weighted as the job says."""

    def run(self, job: Job) -> Report:
        """Train over the job's micro-batches."""
        report = Report()
        for i, batch in enumerate(job.batches):
            if self.zeroes_before(i, job):
                self.zero(job)
            self.before_forward(i, job)
            loss = self.forward(batch, job)
            share = self.scale_loss(loss, batch, self.window(i, job), job)
            self.log(report, loss, share, self.window(i, job))
            self.backward(share, job)
            self.accumulate(job)
            self.after_backward(i, job)
            if self.boundary(i, job):
                self.update(job)
                report.close()
        return report

    def window(self, i: int, job: Job) -> Sequence[Batch]:
        """The micro-batches that share a step with number `i`."""
        start = i - i % job.config.n
        return job.batches[start : start + job.config.n]

    def zeroes_before(self, i: int, job: Job) -> bool:
        """Whether the buffer is zeroed before micro-batch `i`."""
        return i % job.config.n == 0

    def boundary(self, i: int, job: Job) -> bool:
        """Whether the optimizer steps after micro-batch `i`."""
        return (i + 1) % job.config.n == 0 or i + 1 == len(job.batches)

    def zero(self, job: Job) -> None:
        """Phase zero_gradients: the buffers and, where they differ, the leaves."""
        job.optimizer.zero_grad()
        for leaf in job.leaves:
            leaf.grad = None

    def before_forward(self, i: int, job: Job) -> None:
        """Nothing: the reference touches the buffer at the boundary only."""

    def forward(self, batch: Batch, job: Job) -> Tensor:
        """Mean loss of the micro-batch."""
        with job.autocast():
            output = job.model(batch.inputs)
        return job.criterion(output, batch)

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        """Equation loss_scaling: 1/N, or the micro-batch's samples or tokens over the window's."""
        if job.config.weighting == "equal":
            return loss / len(window)
        return loss * (batch.count / sum(b.count for b in window))

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        """The window's loss so far."""
        report.open_loss += float(share.detach())

    def backward(self, share: Tensor, job: Job) -> None:
        """Backward of the share, times the loss scale."""
        if job.scaler is not None:
            share = job.scaler.scale(share)
        share.backward()  # type: ignore[no-untyped-call]

    def accumulate(self, job: Job) -> None:
        """Phase accumulate: autograd has done it, unless the buffer is a master weight's."""
        for leaf, master in zip(job.leaves, job.masters, strict=True):
            if leaf is master or leaf.grad is None:
                continue
            arrived = leaf.grad.to(master.dtype)
            master.grad = arrived if master.grad is None else master.grad.add_(arrived)
            leaf.grad = None

    def after_backward(self, i: int, job: Job) -> None:
        """Nothing: the reference touches the buffer at the boundary only."""

    def update(self, job: Job) -> None:
        """Unscale, clip, step, schedule: once, at the boundary."""
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
        self.clip(job)
        if self.step(job):
            job.scheduler.step()

    def clip(self, job: Job) -> None:
        """Phase clip: the norm of the whole gradient."""
        if job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.masters, job.config.max_norm)

    def step(self, job: Job) -> bool:
        """Phase step: one attempt. False when the scaler suppressed it; then the weights stay."""
        if job.scaler is None:
            job.optimizer.step()
            taken = True
        else:
            scale = job.scaler.get_scale()
            job.scaler.step(job.optimizer)
            job.scaler.update()
            taken = job.scaler.get_scale() >= scale
        copy_back(job)
        return taken


class EmptyStep(TorchStep):
    """The empty body: it has the reference's interface and does nothing. Every property must refute it."""

    def run(self, job: Job) -> Report:
        """Return at once."""
        return Report()


class DividedOnce(TorchStep):
    """Correct: sums the micro-batches' gradients and divides the buffer once before the step."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        """The loss as it is, or times its count."""
        return loss if job.config.weighting == "equal" else loss * batch.count

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        """The window's mean so far."""
        weighted = share is not loss
        total = sum(b.count for b in window) if weighted else len(window)
        report.open_loss += float(share.detach()) / total

    def after_backward(self, i: int, job: Job) -> None:
        """Divide at the boundary."""
        if not self.boundary(i, job):
            return
        window = self.window(i, job)
        weighted = job.config.weighting != "equal"
        total = sum(b.count for b in window) if weighted else len(window)
        for master in job.masters:
            if master.grad is not None:
                master.grad.div_(total)


class SummedOverTokens(TorchStep):
    """Correct: `reduction="sum"`, divided by the samples or tokens of the window."""

    def forward(self, batch: Batch, job: Job) -> Tensor:
        """Summed loss of the micro-batch."""
        with job.autocast():
            output = job.model(batch.inputs)
        return job.criterion(output, batch, "sum")

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        """Over the window's count."""
        return loss / sum(b.count for b in window)
