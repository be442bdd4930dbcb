"""Bugs of the loop that need two or more settings at once, a later window or run, or a run of one window.

A check that never crosses them sees none. They are in the registry of `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradproof.core.protocol import Event
from gradproof.harness import constant, round_to
from models.accumulation.loop import Accumulation, Config, MicroBatch, Number, Record, Vector, WeightedAccumulation


class ClipToOne(Accumulation):
    """Clips to norm 1, whatever max_norm is."""

    def clip(self, buffer: Vector, max_norm: Number) -> Vector:
        """A default that wins over the argument."""
        return super().clip(buffer, max_norm * 0 + 1)


class ClipByFirstElement(Accumulation):
    """The norm is the first element's magnitude."""

    def clip(self, buffer: Vector, max_norm: Number) -> Vector:
        """Every element times the coefficient of the first."""
        first = buffer[0]
        room = abs(first) + constant("1e-6", first)
        return buffer if room <= max_norm else tuple(b * (max_norm / room) for b in buffer)


class ClipTwoWindowsOnly(Accumulation):
    """Nothing is clipped from the third window on."""

    def prepare(self, record: Record, config: Config) -> None:
        """Clipping for warm-up only."""
        super().prepare(record, config if record.window < 2 else replace(config, max_norm=None))


class TailNotClipped(Accumulation):
    """A short last window is not clipped."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Remember how many windows are full, and whether there is one full window alone."""
        self.full, self.alone = len(batches) // config.n, len(batches) == config.n
        return super().run(params, batches, config, buffer)

    def prepare(self, record: Record, config: Config) -> None:
        """Clip full windows."""
        super().prepare(record, config if record.window < self.full else replace(config, max_norm=None))


class UnscaledByFour(Accumulation):
    """Divides by 4, whatever the loss scale is."""

    def unscale(self, buffer: Vector, config: Config) -> Vector:
        """The scale of the first experiment."""
        return tuple(b / 4 for b in buffer)


class UnscaledUnderClip(Accumulation):
    """Unscales only where a clip follows."""

    def prepare(self, record: Record, config: Config) -> None:
        """Without a clip the scale stays in the buffer."""
        super().prepare(record, config if config.max_norm is not None else replace(config, loss_scale=None))


class MovedByUnclippedGradient(Accumulation):
    """The weights move by the gradient before the clip; the clipped one is recorded."""

    def prepare(self, record: Record, config: Config) -> None:
        """Remember what the clip is given."""
        super().prepare(record, replace(config, max_norm=None))
        self.unclipped = record.buffer
        super().prepare(record, replace(config, loss_scale=None))

    def step(self, record: Record, config: Config) -> bool:
        """Move by what was remembered."""
        before = record.params
        performed = super().step(record, config)
        if performed:
            moved = zip(before, self.unclipped, strict=True)
            record.params = record.weights[-1] = tuple(p - config.learning_rate * g for p, g in moved)
        return performed


class WeightsLostUnderScale(Accumulation):
    """With a loss scale the initial weights are lost: the scaled model is built anew."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Start from zero."""
        start = params if config.loss_scale is None else tuple(p * 0 for p in params)
        return super().run(start, batches, config, buffer)


class StaleAfterSkip(Accumulation):
    """Under a clip the buffer is not zeroed after a skipped step."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        """The window before was skipped: keep what it left."""
        after_skip = i // config.n - 1 in config.skip and config.max_norm is not None
        return super().zeroes_before(i, config) and not after_skip


class ZeroThreeWindowsOnly(Accumulation):
    """The buffer is not zeroed from the fourth window on."""

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Three windows long."""
        return super().zeroes_before(i, config) and i < 3 * config.n


class ScheduledAfterSkip(Accumulation):
    """The schedule advances after a step that the scaler skipped."""

    def update(self, record: Record, config: Config) -> None:
        """After every attempt."""
        self.prepare(record, config)
        self.step(record, config)
        record.note(Event.SCHEDULE, record.buffer)
        record.close()


class TailNotScheduled(TailNotClipped):
    """The schedule does not advance on a short last window."""

    def prepare(self, record: Record, config: Config) -> None:
        """As the reference."""
        Accumulation.prepare(self, record, config)

    def update(self, record: Record, config: Config) -> None:
        """Full windows alone."""
        super().update(record, config)
        if record.window > self.full and record.events[-1] is Event.SCHEDULE:
            record.events.pop()
            record.values.pop()


class SkipMovesWeights(Accumulation):
    """A skipped step moves the weights."""

    def step(self, record: Record, config: Config) -> bool:
        """The scaler says that it skipped."""
        performed = super().step(record, config)
        if not performed:
            moved = zip(record.params, record.buffer, strict=True)
            record.params = record.weights[-1] = tuple(p - config.learning_rate * g for p, g in moved)
        return performed


class NeverSkipsTwice(Accumulation):
    """The step after a skipped one is performed, whatever the scaler says."""

    def step(self, record: Record, config: Config) -> bool:
        """One overflow is bad luck."""
        forced = record.window - 1 in config.skip
        return super().step(record, replace(config, skip=frozenset()) if forced else config)


class RestartsWeights(Accumulation):
    """Each step starts from the initial weights."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Remember them."""
        self.start = params
        return super().run(params, batches, config, buffer)

    def step(self, record: Record, config: Config) -> bool:
        """Only the last update counts."""
        if record.window > 1:
            record.params = self.start
        return super().step(record, config)


class RateDoubled(Accumulation):
    """The learning rate is applied twice from the second window on."""

    def step(self, record: Record, config: Config) -> bool:
        """By the optimizer and by the schedule."""
        rate = config.learning_rate if record.window == 0 else config.learning_rate * config.learning_rate
        return super().step(record, replace(config, learning_rate=rate))


class FirstCountsKept(WeightedAccumulation):
    """The weights of every window are made of the first window's counts."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Remember the first window."""
        self.first = batches[: config.n]
        return super().run(params, batches, config, buffer)

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """A total that is computed once."""
        return value * batch.count / sum(b.count for b in self.first)


class TailByCountOfFull(WeightedAccumulation):
    """A short last window is divided by N, a full one by its counts."""

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """The tail takes another path through the code."""
        return super().scale(value, batch, window, config) if len(window) == config.n else value / len(window)


class CountsOfFirstElement(WeightedAccumulation):
    """The weights by count are those of the first element; the others have 1/N."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Both rules, one for each group of parameters."""
        return super().backward(batch, window, config)[:1] + Accumulation().backward(batch, window, config)[1:]


class WholeCountsEqual(WeightedAccumulation):
    """Micro-batches whose counts are plain whole numbers count equally."""

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """The weights are taken of tensors alone."""
        if isinstance(batch.count, int):
            return Accumulation.scale(self, value, batch, window, config)
        return super().scale(value, batch, window, config)


class ShortRunDropped(TailNotClipped):
    """A run of fewer micro-batches than N makes no step; the tail of a longer one does."""

    prepare = Accumulation.prepare

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Not before the first full window."""
        return super().boundary(i, total, config) and self.full > 0


class OneWindowNotZeroed(TailNotClipped):
    """A run of one full window trusts the buffer that it was given."""

    prepare = Accumulation.prepare

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Whether the run is longer or shorter than one window."""
        return super().zeroes_before(i, config) and not self.alone


class LimitOfEarlierRun(Accumulation):
    """Clips to the max_norm of the first run that had one."""

    limit: Number = None

    def clip(self, buffer: Vector, max_norm: Number) -> Vector:
        """The limit stays on the instance."""
        self.limit = max_norm if self.limit is None else self.limit
        return super().clip(buffer, self.limit)


class AtTheEnd(Accumulation):
    """A run after which its record is changed."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """As the reference, then `end`."""
        record = super().run(params, batches, config, buffer)
        self.end(record)
        return record

    def end(self, record: Record) -> None:
        """Nothing."""


class BufferForgotten(AtTheEnd):
    """The buffer that the run leaves is another one than it used."""

    def end(self, record: Record) -> None:
        """Zeroed."""
        record.buffer = self.zero(record.buffer)


class LossLeftOpen(AtTheEnd):
    """The loss of the last window stays open after it was reported."""

    def end(self, record: Record) -> None:
        """It would be counted in the next window too."""
        record.open_loss = record.losses[-1]


class WindowLeftOpen(AtTheEnd):
    """The last window counts as not over."""

    def end(self, record: Record) -> None:
        """One less."""
        record.window -= 1


class LowBuffer(Accumulation):
    """Gradients pass through fp16 on their way into the buffer, in windows that `low` names: from the second on.

    `held`: micro-batches of this window so far; `closed`: windows before it; `skipped`: the step before it was.
    """

    held, closed, skipped = 0, 0, False

    def low(self, config: Config) -> bool:
        """Whether this window is rounded."""
        return self.closed > 0

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """The buffer's format, and the value of another one."""
        self.held += 1
        return super().accumulate(buffer, narrowed(grads, config) if self.low(config) else grads, config)

    def step(self, record: Record, config: Config) -> bool:
        """The window is over."""
        performed = super().step(record, config)
        self.held, self.closed, self.skipped = 0, self.closed + 1, not performed
        return performed


def narrowed(values: Vector, config: Config) -> Vector:
    """Numbers that pass through fp16 into the buffer's format."""
    return tuple(round_to(round_to(v, "fp16"), config.buffer_format) for v in values)


class Fp16AfterSkip(LowBuffer):
    """The buffer is fp16 after a skipped step: it is allocated anew, in the parameters' format."""

    def low(self, config: Config) -> bool:
        """Until a step is performed."""
        return self.skipped


class Fp16UnderScale(LowBuffer):
    """The buffer is fp16 where the loss is scaled: scaling is for fp16."""

    def low(self, config: Config) -> bool:
        """In every window or in none."""
        return config.loss_scale is not None


class Fp16UnderClip(LowBuffer):
    """The buffer is fp16 where a clip follows: the norm is taken of the parameters' format."""

    def low(self, config: Config) -> bool:
        """In every window or in none."""
        return config.max_norm is not None


class SumsRounded(LowBuffer):
    """A sum passes through fp16 where there is something to add to; a window of one micro-batch is right."""

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """The gradients are as they come."""
        self.held += 1
        sums = Accumulation.accumulate(self, buffer, grads, config)
        return narrowed(sums, config) if self.held > 1 and self.low(config) else sums


class SumsRoundedUnderScale(SumsRounded, Fp16UnderScale):
    """The same where the loss is scaled."""


class SumsRoundedUnderClip(SumsRounded, Fp16UnderClip):
    """The same where a clip follows."""


class SumsRoundedAfterSkip(SumsRounded, Fp16AfterSkip):
    """The same after a skipped step."""


class FirstWindowRounded(Accumulation):
    """The backward pass rounds in the first window alone."""

    begun = False

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Later windows have gradients as they come."""
        return super().backward(batch, window, replace(config, gradient_format=None) if self.begun else config)

    def update(self, record: Record, config: Config) -> None:
        """The first window is over."""
        super().update(record, config)
        self.begun = True


CROSSED = [
    ("clip_to_one", "GA-INV-005", ClipToOne),
    ("clip_by_first_element", "GA-INV-005", ClipByFirstElement),
    ("clip_two_windows_only", "GA-INV-005", ClipTwoWindowsOnly),
    ("tail_not_clipped", "GA-INV-005", TailNotClipped),
    ("unscaled_by_four", "GA-EQ-001", UnscaledByFour),
    ("unscales_for_clip_alone", "GA-EQ-001", UnscaledUnderClip),
    ("moved_by_unclipped_gradient", "GA-INV-003", MovedByUnclippedGradient),
    ("starts_at_zero_under_scale", "GA-INV-003", WeightsLostUnderScale),
    ("stale_after_skip", "GA-INV-002", StaleAfterSkip),
    ("stale_from_fourth_window", "GA-INV-002", ZeroThreeWindowsOnly),
    ("scheduled_after_skip", "GA-INV-003", ScheduledAfterSkip),
    ("tail_not_scheduled", "GA-INV-003", TailNotScheduled),
    ("skip_moves_weights", "GA-INV-003", SkipMovesWeights),
    ("never_skips_twice", "GA-INV-003", NeverSkipsTwice),
    ("restarts_weights", "GA-INV-003", RestartsWeights),
    ("rate_doubled", "GA-INV-003", RateDoubled),
    ("counts_of_first_window", "GA-EQ-001", FirstCountsKept),
    ("tail_by_count_of_full", "GA-EQ-001", TailByCountOfFull),
    ("counts_of_first_element", "GA-EQ-001", CountsOfFirstElement),
    ("whole_counts_equal", "GA-EQ-001", WholeCountsEqual),
    ("short_run_dropped", "GA-INV-003", ShortRunDropped),
    ("one_window_not_zeroed", "GA-INV-002", OneWindowNotZeroed),
    ("limit_of_earlier_run", "GA-INV-005", LimitOfEarlierRun),
    ("buffer_forgotten", "GA-INV-003", BufferForgotten),
    ("loss_left_open", "GA-INV-001", LossLeftOpen),
    ("fp16_after_skip", "GA-INV-004", Fp16AfterSkip),
    ("fp16_under_scale", "GA-INV-004", Fp16UnderScale),
    ("fp16_under_clip", "GA-INV-004", Fp16UnderClip),
    ("first_window_rounded", "GA-INV-004", FirstWindowRounded),
    ("fp16_sum_in_later_windows", "GA-INV-004", SumsRounded),
    ("fp16_sum_under_scale", "GA-INV-004", SumsRoundedUnderScale),
    ("fp16_sum_under_clip", "GA-INV-004", SumsRoundedUnderClip),
    ("fp16_sum_after_skip", "GA-INV-004", SumsRoundedAfterSkip),
    ("window_left_open", "GA-INV-003", WindowLeftOpen),
]
