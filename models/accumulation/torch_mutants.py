"""Mutants of the PyTorch step: bugs that somebody shipped or could, named after the obligation that each must break.

Names, obligations and threads are those of `mutants.py` beside this file, except for those of TORCH_ONLY, which has no
twin there. A property never learns which mutant it is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradproof.harness import Batch, Job, Report
from models.accumulation.torch_steps import TorchStep
from models.registry import CROSSING, Mutant, registered


class MissingScale(TorchStep):
    """The 1/N is missing."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss


class DividedTwice(TorchStep):
    """The share is divided by the window's length once more."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return super().scale_loss(loss, batch, window, job) / len(window)


class RescaledBuffer(TorchStep):
    """The loss is not scaled; the whole buffer is, after every micro-batch."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss

    def after_backward(self, i: int, job: Job) -> None:
        for master in job.masters:
            if master.grad is not None:
                master.grad.div_(len(self.window(i, job)))


class TailByConfiguredN(TorchStep):
    """A short last window is divided by the configured N."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss / job.config.n


class MeanOfMeans(TorchStep):
    """Micro-batches of unequal counts are averaged equally."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss / len(window)


class ShrunkSingle(TorchStep):
    """The mean is taken over one micro-batch more than there are."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss / (len(window) + 1)


class FusedForgetsScale(TorchStep):
    """The 1/N is missing, but only where the optimizer is fused."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        return loss if job.config.form == "fused" else super().scale_loss(loss, batch, window, job)


class ScaleFirstElementOnly(TorchStep):
    """The share is taken of the first element; the others are summed."""

    def after_backward(self, i: int, job: Job) -> None:
        if not self.boundary(i, job):
            return
        for k, master in enumerate(job.masters):
            if master.grad is not None:
                flat = master.grad.reshape(-1).clone()
                flat[1 if k == 0 else 0 :] *= len(self.window(i, job))
                master.grad.copy_(flat.reshape(master.grad.shape))


class LossSum(TorchStep):
    """The reported loss is the sum of the micro-batch losses."""

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        report.open_loss += float(loss.detach())


class LossDividedTwice(TorchStep):
    """The reported loss is divided by the window's length once more."""

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        report.open_loss += float(share.detach()) / len(window)


class LastLossOnly(TorchStep):
    """The reported loss is the last micro-batch's share."""

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        report.open_loss = 0.0 + float(share.detach())


class ZeroSkipped(TorchStep):
    """zero_grad is never called."""

    def zero(self, job: Job) -> None:
        """Nothing."""


class ZeroFirstElementOnly(TorchStep):
    """Only the first element of the first buffer is zeroed."""

    def zero(self, job: Job) -> None:
        held = job.masters[0].grad
        if held is not None:
            flat = held.reshape(-1).clone()
            flat[0] = 0
            held.copy_(flat.reshape(held.shape))


class ZeroPerMicroBatch(TorchStep):
    """zero_grad runs before every micro-batch: only the last survives."""

    def zeroes_before(self, i: int, job: Job) -> bool:
        return True


class ZeroAfterBackward(TorchStep):
    """The buffer is zeroed between the last backward and the step."""

    def update(self, job: Job) -> None:
        job.optimizer.zero_grad(set_to_none=False)
        super().update(job)


class ZeroFirstCycleOnly(TorchStep):
    """zero_grad runs once, before the first cycle."""

    def zeroes_before(self, i: int, job: Job) -> bool:
        return i == 0


class StepPerMicroBatch(TorchStep):
    """The optimizer steps after every micro-batch."""

    def boundary(self, i: int, job: Job) -> bool:
        return True


class BoundaryAtIndex(TorchStep):
    """The boundary is `idx % N == 0`: it steps on the first micro-batch of a window, not on its last."""

    def boundary(self, i: int, job: Job) -> bool:
        return i % job.config.n == 0


class StepAtNMinus1(TorchStep):
    """The index starts at 1 but the test adds 1 again: it steps one micro-batch early."""

    def boundary(self, i: int, job: Job) -> bool:
        return (i + 2) % job.config.n == 0 or i + 1 == len(job.batches)


class TailDropped(TorchStep):
    """A short last window is never applied."""

    def boundary(self, i: int, job: Job) -> bool:
        return (i + 1) % job.config.n == 0


class NoMove(TorchStep):
    """The step is called and the weights stay: it acts on another copy of them."""

    def step(self, job: Job) -> bool:
        held = [p.detach().clone() for p in (*job.masters, *job.leaves)]
        taken = super().step(job)
        with torch.no_grad():
            for p, before in zip((*job.masters, *job.leaves), held, strict=True):
                p.copy_(before)
        return taken


class SchedulePerMicroBatch(TorchStep):
    """The learning-rate schedule advances with every micro-batch."""

    def after_backward(self, i: int, job: Job) -> None:
        with warnings.catch_warnings():  # PyTorch warns of the first call, which precedes the first step
            warnings.simplefilter("ignore", UserWarning)
            job.scheduler.step()

    def update(self, job: Job) -> None:
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
        self.clip(job)
        self.step(job)


class NarrowBuffer(TorchStep):
    """Accumulates in `dtype` beside autograd, and hands the sum back for the step."""

    dtype = torch.float16

    def __init__(self) -> None:
        self.buffer: dict[int, Tensor] = {}

    def zero(self, job: Job) -> None:
        super().zero(job)
        self.buffer = {}

    def accumulate(self, job: Job) -> None:
        for k, (leaf, master) in enumerate(zip(job.leaves, job.masters, strict=True)):
            if leaf.grad is not None:
                self.buffer[k] = self.add(self.buffer.get(k), leaf.grad)
                leaf.grad = None
            master.grad = None

    def add(self, held: Tensor | None, arrived: Tensor) -> Tensor:
        """The buffer after one more micro-batch."""
        arrived = arrived.to(self.dtype)
        return arrived if held is None else held + arrived

    def update(self, job: Job) -> None:
        for k, held in self.buffer.items():
            job.masters[k].grad = held.to(job.masters[k].dtype)
        super().update(job)


class Fp16Buffer(NarrowBuffer):
    """The accumulation buffer is fp16."""


class Bf16Buffer(NarrowBuffer):
    """The accumulation buffer is bf16."""

    dtype = torch.bfloat16


class Fp16Sum(NarrowBuffer):
    """The buffer is typed fp32, but every sum passes through fp16."""

    def add(self, held: Tensor | None, arrived: Tensor) -> Tensor:
        wide = arrived.float() if held is None else held + arrived.float()
        return wide.to(self.dtype).float()


class ClipPerMicroBatch(NarrowBuffer):
    """Every micro-batch's gradient is clipped on its own; the sum, in fp32, is not."""

    dtype = torch.float32

    def backward(self, share: Tensor, job: Job) -> None:
        super().backward(share, job)
        if job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.leaves, job.config.max_norm)

    def clip(self, job: Job) -> None:
        """Done already."""


class ClipBeforeUnscale(TorchStep):
    """The buffer is clipped while it still carries the loss scale."""

    def update(self, job: Job) -> None:
        self.clip(job)
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
        if self.step(job):
            job.scheduler.step()


class ClipBeforeLast(TorchStep):
    """The buffer is clipped before the last micro-batch arrives, and not after it."""

    def before_forward(self, i: int, job: Job) -> None:
        if self.boundary(i, job) and job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.masters, job.config.max_norm)

    def clip(self, job: Job) -> None:
        """Done already."""


class ClipNotForAdamW(TorchStep):
    """The clip is left to the optimizer, and AdamW has none."""

    def clip(self, job: Job) -> None:
        if job.config.optimizer != "adamw":
            super().clip(job)


# -- Bugs of crossings: each shows only where several windows, a tail, a loss scale, a clip, a skipped step or unequal
# counts meet. None is from a thread: they were put in one by one, to see which check notices.


class Numbered(TorchStep):
    """Knows the micro-batch that came last, and how many windows were stepped."""

    def __init__(self) -> None:
        self.last, self.stepped = 0, 0

    def after_backward(self, i: int, job: Job) -> None:
        self.last = i

    def update(self, job: Job) -> None:
        super().update(job)
        self.stepped += 1

    def short(self, job: Job) -> bool:
        """Whether this window is a short last one."""
        return (self.last + 1) % job.config.n != 0


class Misscaled(TorchStep):
    """Takes another loss scale out than the loss was given."""

    def wrong(self, job: Job, scale: float) -> float:
        """What the gradients are too large by, when the loss scale is `scale`."""
        return 1.0

    def clip(self, job: Job) -> None:
        if job.scaler is not None:
            for master in job.masters:
                if master.grad is not None:
                    master.grad.mul_(self.wrong(job, float(job.scaler.get_scale())))
        super().clip(job)


class UnscaledByFour(Misscaled):
    """The gradients are divided by 4, whatever the loss scale is."""

    def wrong(self, job: Job, scale: float) -> float:
        return scale / 4.0


class UnscaledUnderClip(Misscaled):
    """The loss scale is taken out only where a clip follows."""

    def wrong(self, job: Job, scale: float) -> float:
        return scale if job.config.max_norm is None else 1.0


class FirstScaleKept(Misscaled):
    """The loss scale of the first window is taken out of every window; a suppressed step has halved it since."""

    def wrong(self, job: Job, scale: float) -> float:
        return scale / (job.config.loss_scale or 1.0)


class FirstCountsKept(TorchStep):
    """Every window is weighted by the counts of the first one."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        if job.config.weighting == "equal":
            return super().scale_loss(loss, batch, window, job)
        first = job.batches[: job.config.n]
        at = next(k for k, one in enumerate(window) if one is batch)
        return loss * (first[at].count / sum(b.count for b in first[: len(window)]))


class TailCutShort(TorchStep):
    """The last micro-batch of a short last window is dropped."""

    def run(self, job: Job) -> Report:
        short = len(job.batches) % job.config.n
        return super().run(replace(job, batches=job.batches[:-1]) if short else job)


class LossSumLater(TorchStep):
    """From the third window on the reported loss is the sum of the micro-batch losses."""

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        report.open_loss += float((share if len(report.losses) < 2 else loss).detach())


class StaleAfterSkip(TorchStep):
    """Under a clip the buffer is not zeroed after a step that the scaler suppressed."""

    taken = True

    def step(self, job: Job) -> bool:
        self.taken = super().step(job)
        return self.taken

    def zero(self, job: Job) -> None:
        if self.taken or job.config.max_norm is None:
            super().zero(job)


class ZeroThreeWindowsOnly(TorchStep):
    """zero_grad is never called from the fourth window on."""

    def zeroes_before(self, i: int, job: Job) -> bool:
        return i < 3 * job.config.n and super().zeroes_before(i, job)


class WeightsLostUnderScale(TorchStep):
    """Under a loss scale the weights that the model came with are lost: training begins at zero."""

    def before_forward(self, i: int, job: Job) -> None:
        if i == 0 and job.scaler is not None:
            with torch.no_grad():
                for p in (*job.masters, *job.leaves):
                    p.zero_()


class TailNotScheduled(Numbered):
    """The schedule does not advance after the step of a short last window."""

    def update(self, job: Job) -> None:
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
        self.clip(job)
        if self.step(job) and not self.short(job):
            job.scheduler.step()


class ScheduledAfterSkip(TorchStep):
    """The schedule advances after a step that the scaler suppressed, too."""

    def step(self, job: Job) -> bool:
        with warnings.catch_warnings():  # PyTorch warns where the first step was suppressed
            warnings.simplefilter("ignore", UserWarning)
            if not super().step(job):
                job.scheduler.step()
                return False
        return True


class Fp16BufferLater(NarrowBuffer):
    """The accumulation buffer is fp16 from the second window on."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = 0

    def update(self, job: Job) -> None:
        super().update(job)
        self.windows += 1

    def add(self, held: Tensor | None, arrived: Tensor) -> Tensor:
        return super().add(held, arrived) if self.windows else arrived.float() if held is None else held + arrived


class ClipToOne(TorchStep):
    """The gradient is clipped to 1, whatever max_norm is."""

    def clip(self, job: Job) -> None:
        if job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.masters, 1.0)


class MovedByUnclipped(TorchStep):
    """A copy of the gradient is clipped; the weights are moved by the gradient itself."""

    def clip(self, job: Job) -> None:
        held = [None if p.grad is None else p.grad.clone() for p in job.masters]
        super().clip(job)
        for master, grad in zip(job.masters, held, strict=True):
            master.grad = grad


class ClipTwoWindowsOnly(Numbered):
    """No clip from the third window on."""

    def clip(self, job: Job) -> None:
        if self.stepped < 2:
            super().clip(job)


class TailNotClipped(Numbered):
    """A short last window is not clipped."""

    def clip(self, job: Job) -> None:
        if not self.short(job):
            super().clip(job)


class FirstNormKept(TorchStep):
    """Every window is shrunk as the norm of the first one asked for."""

    shrink: Tensor | None = None

    def clip(self, job: Job) -> None:
        if job.config.max_norm is None:
            return
        grads = [p.grad for p in job.masters if p.grad is not None]
        if self.shrink is None:
            norm = torch.nn.utils.get_total_norm(grads)
            self.shrink = (job.config.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(self.shrink)


class ClipWithoutFirst(TorchStep):
    """The first parameter is neither counted in the norm nor clipped."""

    def clip(self, job: Job) -> None:
        if job.config.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(job.masters[1:] or job.masters, job.config.max_norm)


_ROWS = [
    ("missing_scale", "GA-EQ-001", "nanoGPT#206", MissingScale),
    ("divided_twice", "GA-EQ-001", "Megatron-DeepSpeed#42", DividedTwice),
    ("rescaled_buffer", "GA-EQ-001", "torchtitan#1732", RescaledBuffer),
    ("tail_by_configured_n", "GA-EQ-001", "transformers#38837", TailByConfiguredN),
    ("mean_of_means", "GA-EQ-001", "transformers#34191", MeanOfMeans),
    ("shrunk_single", "GA-EQ-001", "nanoGPT#605", ShrunkSingle),
    ("fused_forgets_scale", "GA-EQ-001", "pytorch#96755", FusedForgetsScale),
    ("scale_first_element_only", "GA-EQ-001", "keras#19534", ScaleFirstElementOnly),
    ("loss_sum", "GA-INV-001", "axolotl#2262", LossSum),
    ("loss_divided_twice", "GA-INV-001", "pytorch-lightning#2569", LossDividedTwice),
    ("last_loss_only", "GA-INV-001", "minimind#632", LastLossOnly),
    ("zero_skipped", "GA-INV-002", "DeepSpeed#5154", ZeroSkipped),
    ("zero_first_cycle_only", "GA-INV-002", "ignite#583", ZeroFirstCycleOnly),
    ("zero_per_micro_batch", "GA-INV-002", "torchtitan#3575", ZeroPerMicroBatch),
    ("zero_after_backward", "GA-INV-002", "accelerate#1299", ZeroAfterBackward),
    ("zero_first_element_only", "GA-INV-002", "keras#19534", ZeroFirstElementOnly),
    ("step_per_micro_batch", "GA-INV-003", "trl#2618", StepPerMicroBatch),
    ("boundary_at_index", "GA-INV-003", "LLMs-from-scratch#300", BoundaryAtIndex),
    ("step_at_n_minus_1", "GA-INV-003", "minimind#691", StepAtNMinus1),
    ("tail_dropped", "GA-INV-003", "transformers#14309", TailDropped),
    ("no_move", "GA-INV-003", "DeepSpeed#5154", NoMove),
    ("schedule_per_micro_batch", "GA-INV-003", "accelerate#963", SchedulePerMicroBatch),
    ("fp16_buffer", "GA-INV-004", "DeepSpeed#1800", Fp16Buffer),
    ("bf16_buffer", "GA-INV-004", "optax#1567", Bf16Buffer),
    ("fp16_sum", "GA-INV-004", "mxnet#17703", Fp16Sum),
    ("clip_per_micro_batch", "GA-INV-005", "transformers#986", ClipPerMicroBatch),
    ("clip_before_unscale", "GA-INV-005", "waifu-diffusion#64", ClipBeforeUnscale),
    ("clip_before_last", "GA-INV-005", "nano-world-model#22", ClipBeforeLast),
    ("clip_not_for_adamw", "GA-INV-005", "transformers#887", ClipNotForAdamW),
]

_CROSSED = [
    ("unscaled_by_four", "GA-EQ-001", UnscaledByFour),
    ("unscaled_under_clip", "GA-EQ-001", UnscaledUnderClip),
    ("first_scale_kept", "GA-EQ-001", FirstScaleKept),
    ("first_counts_kept", "GA-EQ-001", FirstCountsKept),
    ("tail_cut_short", "GA-EQ-001", TailCutShort),
    ("loss_sum_later", "GA-INV-001", LossSumLater),
    ("stale_after_skip", "GA-INV-002", StaleAfterSkip),
    ("zero_three_windows_only", "GA-INV-002", ZeroThreeWindowsOnly),
    ("weights_lost_under_scale", "GA-INV-003", WeightsLostUnderScale),
    ("tail_not_scheduled", "GA-INV-003", TailNotScheduled),
    ("scheduled_after_skip", "GA-INV-003", ScheduledAfterSkip),
    ("fp16_buffer_later", "GA-INV-004", Fp16BufferLater),
    ("clip_to_one", "GA-INV-005", ClipToOne),
    ("moved_by_unclipped", "GA-INV-005", MovedByUnclipped),
    ("clip_two_windows_only", "GA-INV-005", ClipTwoWindowsOnly),
    ("tail_not_clipped", "GA-INV-005", TailNotClipped),
    ("first_norm_kept", "GA-INV-005", FirstNormKept),
    ("clip_without_first", "GA-INV-005", ClipWithoutFirst),
]
MUTANTS: Mapping[str, Mutant] = registered(
    [*_ROWS, *((name, clause, CROSSING, subject) for name, clause, subject in _CROSSED)]
)

TORCH_ONLY: Mapping[str, str] = {
    "fused_forgets_scale": "the model has no optimizer forms; in the thread the fused form alone trains worse, in fp16",
    "clip_not_for_adamw": "the model has one optimizer; in the thread the clip was lost with the change to AdamW",
    "unscaled_under_clip": "the model's unscales_for_clip_alone, whose counterexamples may be of events alone",
    "weights_lost_under_scale": "the model's starts_at_zero_under_scale, whose counterexamples may be of events alone",
    "zero_three_windows_only": "the model's stale_from_fourth_window, whose counterexamples may be of events alone",
    "first_counts_kept": "the model's counts_of_first_window, whose counterexamples may be of events alone",
    "first_scale_kept": "the model has one loss scale for a run; here the scaler's changes",
    "tail_cut_short": "the model is tail_dropped's; here the loop ends inside of the last window",
    "loss_sum_later": "the model's loss_sum is of every window",
    "fp16_buffer_later": "the model's fp16_buffer is of every window",
    "moved_by_unclipped": "the model's moved_by_unclipped_gradient; here it is the clip that is lost",
    "first_norm_kept": "the model computes each norm anew",
    "clip_without_first": "the model's clip_by_first_element; here a parameter is left out of the norm",
}
"""Mutants without a twin in `models.accumulation.mutants`, each with the reason."""
