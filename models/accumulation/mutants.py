"""Bugs that shipped, as small changes of the reference loop; each names its thread and the obligation that it breaks.

The thread numbers are those of the public issue trackers. `torch_mutants.py` beside this file has the same names: there
the same bug is made in a real PyTorch step. Bugs that nobody reported, and that need a crossing, are in
`crossing_mutants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradproof.core.protocol import Event
from gradproof.harness import Setting, accumulated, round_to
from models.accumulation.crossing_mutants import CROSSED
from models.accumulation.loop import Accumulation, Config, MicroBatch, Number, Record, Vector
from models.registry import CROSSING, Mutant, registered


class MissingScale(Accumulation):
    """Gradients are summed; the reported loss is right."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """The gradient of the loss itself, not of its share."""
        return tuple(g * len(window) for g in super().backward(batch, window, config))


class DividedTwice(Accumulation):
    """Loss and framework both divide."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Divide once more."""
        return tuple(g / len(window) for g in super().backward(batch, window, config))


class RescaledBuffer(Accumulation):
    """The whole buffer is divided again at each micro-batch."""

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """An exponential average instead of a sum."""
        return tuple(b / config.n + g for b, g in zip(buffer, grads, strict=True))


class TailByConfiguredN(Accumulation):
    """A short last window is divided by the configured N."""

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """1/N although the window has fewer micro-batches."""
        return value / config.n


class MeanOfMeans(Accumulation):
    """Unequal micro-batches count equally."""


class LossSum(Accumulation):
    """The reported loss is the sum of the micro-batch losses."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Report every window's loss times its size."""
        record = super().run(params, batches, config, buffer)
        sizes = [len(self.window(i, batches, config)) for i in range(0, len(batches), config.n)]
        record.losses = [loss * size for loss, size in zip(record.losses, sizes, strict=True)]
        return record


class LossDividedTwice(Accumulation):
    """The reported loss is divided by N again."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Report loss / N."""
        record = super().run(params, batches, config, buffer)
        record.losses = [loss / config.n for loss in record.losses]
        return record


class LastLossOnly(Accumulation):
    """The reported loss is the last micro-batch's share."""

    def report(self, open_loss: Number, share: Number) -> Number:
        """Overwrites instead of adding."""
        return share


class ZeroSkipped(Accumulation):
    """The buffer is never zeroed."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Never."""
        return False


class ZeroFirstCycleOnly(Accumulation):
    """The buffer is zeroed once, before training."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Before the first micro-batch only."""
        return i == 0


class ZeroPerMicroBatch(Accumulation):
    """The buffer is zeroed before every backward."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Always: only the last micro-batch survives."""
        return True


class ZeroAfterBackward(Accumulation):
    """The buffer is zeroed between the last backward and the step."""

    def update(self, record: Record, config: Config) -> None:
        """Zero first."""
        record.note(Event.ZERO, self.zero(record.buffer))
        super().update(record, config)


class StepPerMicroBatch(Accumulation):
    """The optimizer steps after every micro-batch."""

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Always."""
        return True


class BoundaryAtIndex(Accumulation):
    """The boundary tests i % N instead of (i + 1) % N."""

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Steps on the first micro-batch of each window."""
        return i % config.n == 0


class StepAtNMinus1(Accumulation):
    """The boundary is one micro-batch early."""

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Counts from one, then adds one again."""
        return (i + 2) % config.n == 0 or i + 1 == total


class TailDropped(Accumulation):
    """The last, short window is never stepped."""

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Full windows only."""
        return (i + 1) % config.n == 0


class Fp16Buffer(Accumulation):
    """The buffer has the parameters' fp16."""

    buffer_format = "fp16"

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """Both operands in the 16-bit format, so the sum is rounded to it."""
        low = self.buffer_format
        return tuple(
            (b if isinstance(b, int) else round_to(b, low)) + round_to(g, low)
            for b, g in zip(buffer, grads, strict=True)
        )


class Bf16Buffer(Fp16Buffer):
    """The buffer has the parameters' bf16."""

    buffer_format = "bf16"


class Fp16Sum(Accumulation):
    """The buffer is fp32, but every sum passes through fp16 on its way."""

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """The dtype reads fp32 and the value has 11 bits."""
        sums = super().accumulate(buffer, grads, config)
        return tuple(round_to(round_to(s, "fp16"), config.buffer_format) for s in sums)


class ClipPerMicroBatch(Accumulation):
    """Every micro-batch gradient is clipped on its own, the sum is not."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Clip before accumulating."""
        grads = super().backward(batch, window, config)
        return grads if config.max_norm is None else self.clip(grads, config.max_norm)

    def after_backward(self, i: int, record: Record, batches: Sequence[MicroBatch], config: Config) -> None:
        """The clip that just happened."""
        if config.max_norm is not None:
            record.note(Event.CLIP, record.buffer)

    def prepare(self, record: Record, config: Config) -> None:
        """The sum is unscaled and not clipped."""
        super().prepare(record, replace(config, max_norm=None))


class ClipBeforeUnscale(Accumulation):
    """The norm is measured while the gradient still carries the loss scale."""

    def prepare(self, record: Record, config: Config) -> None:
        """Clip, then unscale."""
        super().prepare(record, replace(config, loss_scale=None))
        super().prepare(record, replace(config, max_norm=None))


class ClipBeforeLast(Accumulation):
    """The partial sum is clipped before the last micro-batch arrives, the total is not."""

    def after_backward(self, i: int, record: Record, batches: Sequence[MicroBatch], config: Config) -> None:
        """Clip at the last but one."""
        if config.max_norm is not None and (i + 2) % config.n == 0:
            record.note(Event.CLIP, self.clip(record.buffer, config.max_norm))

    def prepare(self, record: Record, config: Config) -> None:
        """The total is unscaled and not clipped."""
        super().prepare(record, replace(config, max_norm=None))


class ShrunkSingle(Accumulation):
    """A window of one is averaged with nothing: (N + 1) in the denominator."""

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """Dividing by micro_step + 1, as was once proposed as a fix."""
        return value / (len(window) + 1)


class ScaleFirstElementOnly(Accumulation):
    """The share is taken of the first element; the others are summed."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """A list of gradients out of step with the list of parameters."""
        first, *others = super().backward(batch, window, config)
        return (first, *(g * len(window) for g in others))


class ZeroFirstElementOnly(Accumulation):
    """Only the first element of the buffer is zeroed."""

    def zero(self, buffer: Vector) -> Vector:
        """The others keep what they had."""
        return (0, *buffer[1:])


class Fp16OtherElements(Fp16Buffer):
    """The first element's buffer is fp32, the others have the parameters' fp16."""

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """One buffer of each kind."""
        wide = Accumulation.accumulate(self, buffer[:1], grads[:1], config)
        return wide + super().accumulate(buffer[1:], grads[1:], config)


class NoMove(Accumulation):
    """The step is called and the weights stay: it acts on another copy of them."""

    def step(self, record: Record, config: Config) -> bool:
        """Put the weights back."""
        before = record.params
        performed = super().step(record, config)
        record.params = record.weights[-1] = before
        return performed


class SchedulePerMicroBatch(Accumulation):
    """The learning-rate schedule advances with every micro-batch."""

    def after_backward(self, i: int, record: Record, batches: Sequence[MicroBatch], config: Config) -> None:
        """Advance, whether or not a step follows."""
        record.note(Event.SCHEDULE, record.buffer)


_ROWS = [
    ("missing_scale", "GA-EQ-001", "nanoGPT#206", MissingScale),
    ("divided_twice", "GA-EQ-001", "Megatron-DeepSpeed#42", DividedTwice),
    ("rescaled_buffer", "GA-EQ-001", "torchtitan#1732", RescaledBuffer),
    ("tail_by_configured_n", "GA-EQ-001", "transformers#38837", TailByConfiguredN),
    ("mean_of_means", "GA-EQ-001", "transformers#34191", MeanOfMeans),
    ("shrunk_single", "GA-EQ-001", "nanoGPT#605", ShrunkSingle),
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
    ("fp16_other_elements", "GA-INV-004", "DeepSpeed#2768", Fp16OtherElements),
    ("clip_per_micro_batch", "GA-INV-005", "transformers#986", ClipPerMicroBatch),
    ("clip_before_unscale", "GA-INV-005", "waifu-diffusion#64", ClipBeforeUnscale),
    ("clip_before_last", "GA-INV-005", "nano-world-model#22", ClipBeforeLast),
]

MUTANTS: Mapping[str, Mutant] = registered([*_ROWS, *((n, clause, CROSSING, made) for n, clause, made in CROSSED)])


# -- Subjects of the enumerations of 16-bit buffers: sums in other orders, and loops that err in the buffer.

DOWN = 2**14


class Summed:
    """Gradients scaled and summed in an order: the text of `gradproof.rounding.accumulation`."""

    def result(self, grads: Sequence[Number], fmt: str, order: str, scale: str) -> Number:
        """The mean, as a buffer of the format holds it. Raises ValueError for an unknown order or scale."""
        return accumulated(Setting(len(grads), fmt, order=order, scale=scale), grads)


class Underflows(Accumulation):
    """The loss is scaled down where it should be scaled up: shares of gradients are lost below the smallest number."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Shares divided by the scale, in the format of the buffer."""
        return tuple(g / DOWN for g in super().backward(batch, window, config))

    def step(self, record: Record, config: Config) -> bool:
        """The scale is taken out again before the step."""
        record.buffer = tuple(b * DOWN for b in record.buffer)
        return super().step(record, config)


_SAME = ("missing_scale", "divided_twice", "rescaled_buffer", "scale_first_element_only")
BUFFER_BUGS: Mapping[str, Mutant] = {name: MUTANTS[name] for name in _SAME} | {
    "underflows": Mutant("underflows", "GA-EQ-001", "a loss scale that divides", Underflows)
}
