"""An epoch of accumulation windows as whole numbers: when a step falls due, how many there are, how far schedules go.

Micro-batch number b of B (from 1) closes its window when the window holds N of them, or when the epoch ends. A window
never crosses the end of an epoch, so E epochs make E ceil(B/N) steps and not ceil(E B / N).

Sources: the bug classes STEP and SCHED; torch.optim.lr_scheduler.OneCycleLR, which raises when it is stepped more than
`total_steps` times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradproof.harness import Divide, batches as arithmetic
from models.registry import Mutant, registered


class Epochs:
    """The reference: a step at the N-th micro-batch and at the epoch's end, a schedule for each performed step."""

    def ends(self, held: Any, n: Any, batch: Any, batches: Any) -> Any:
        """Whether the window closes with this micro-batch: `held` of `n` are in, it is `batch` of `batches`."""
        return (held == n) | (batch == batches)

    def steps(self, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        """Planned optimizer steps of an epoch."""
        return arithmetic.steps_per_epoch(batches, n, divide)

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        """Planned scheduler steps of the whole training."""
        return arithmetic.total_steps(epochs, batches, n, divide)

    def schedules(self, closed: bool, skipped: bool) -> int:
        """Scheduler steps after a micro-batch that closed its window or not, with a step that was skipped or not."""
        return int(closed and not skipped)

    def length(self, opened: Any, now: Any) -> Any:
        """Micro-batches of the present window: N when it opened, whatever N is by now."""
        return opened


class EmptyEpochs(Epochs):
    """The empty body: no step, no schedule, nothing planned, and any N."""

    def ends(self, held: Any, n: Any, batch: Any, batches: Any) -> Any:
        return False

    def steps(self, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return 0

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return 0

    def schedules(self, closed: bool, skipped: bool) -> int:
        return 0

    def length(self, opened: Any, now: Any) -> Any:
        return 0


class TailDropped(Epochs):
    """Steps when the window is full, and never at the epoch's end."""

    def ends(self, held: Any, n: Any, batch: Any, batches: Any) -> Any:
        return held == n


class StepsEarly(Epochs):
    """Steps one micro-batch early."""

    def ends(self, held: Any, n: Any, batch: Any, batches: Any) -> Any:
        return (held + 1 == n) | (batch == batches)


class FloorPlanned(Epochs):
    """Plans batches // N steps an epoch and flushes the tail all the same."""

    def steps(self, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return divide(batches, n)[0]

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return epochs * self.steps(batches, n, divide)


class WholeTrainingDivided(Epochs):
    """Plans ceil(epochs x batches / N), as if a window went on into the next epoch."""

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return self.steps(epochs * batches, n, divide)


class AlwaysOneMore(Epochs):
    """Plans batches // N + 1, which is one too many where N divides."""

    def steps(self, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return divide(batches, n)[0] + 1

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return epochs * self.steps(batches, n, divide)


class MicroBatchesPlanned(Epochs):
    """Plans the schedule over micro-batches, which the training never reaches."""

    def total(self, epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
        return epochs * batches


class SchedulePerMicroBatch(Epochs):
    """Advances the schedule after every micro-batch."""

    def schedules(self, closed: bool, skipped: bool) -> int:
        return 1


class ScheduleOnSkip(Epochs):
    """Advances the schedule after a step that the scaler skipped."""

    def schedules(self, closed: bool, skipped: bool) -> int:
        return int(closed)


class ScheduleTwice(Epochs):
    """Advances the schedule twice a step, once by hand and once by a framework."""

    def schedules(self, closed: bool, skipped: bool) -> int:
        return 2 if closed and not skipped else 0


class LengthNow(Epochs):
    """Reads N anew at every micro-batch, so that it changes inside a window."""

    def length(self, opened: Any, now: Any) -> Any:
        return now


_ROWS = (
    ("tail_dropped", "GA-STEP-002", "torchseq#8", TailDropped),
    ("steps_early", "GA-STEP-002", "minimind#691", StepsEarly),
    ("floor_steps", "GA-STEP-002", "trl#2618", FloorPlanned),
    ("always_one_more", "GA-STEP-002", "minimind#691", AlwaysOneMore),
    ("floor_total", "GA-SCHED-001", "diffusers#4387", FloorPlanned),
    ("whole_training_divided", "GA-SCHED-001", "accelerate#1562", WholeTrainingDivided),
    ("micro_batches_planned", "GA-SCHED-001", "axolotl#977", MicroBatchesPlanned),
    ("schedule_per_micro_batch", "GA-SCHED-001", "accelerate#963", SchedulePerMicroBatch),
    ("schedule_on_skip", "GA-SCHED-001", "pytorch-lightning#18828", ScheduleOnSkip),
    ("schedule_twice", "GA-SCHED-001", "diffusion-nbs#49", ScheduleTwice),
    ("tail_unscheduled", "GA-SCHED-001", "torchseq#8", TailDropped),
    ("length_read_anew", "GA-SCHED-002", "mmcv#2093", LengthNow),
)
MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
