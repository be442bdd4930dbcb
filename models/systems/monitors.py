"""Monitors of a training: the arithmetic of `gradproof.monitoring`, and monitors that tell something else.

Sources: bug class LOSS-log, where only the reported value is wrong; class SCHED (steps counted wrongly).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradproof.monitoring import CountRules, Counts
from models.registry import Mutant, registered_for


class MonitorTally(CountRules):
    """The reference."""


class SilentTally(CountRules):
    """The empty body: nothing is counted and nothing stated."""

    def micro_batch(self, c: Counts, size: Any) -> Counts:
        return c

    def attempt(self, c: Counts, skipped: bool) -> Counts:
        return c

    def epoch(self, c: Counts) -> Counts:
        return c

    def effective(self, samples: Any, world: Any) -> Any:
        return 0

    def loss(self, handed: Any, divisor: Any, scale: Any, before: Any) -> Any:
        return 0


class MicroBatchesAsSteps(CountRules):
    """Counts a step with every micro-batch, and none at its end."""

    def micro_batch(self, c: Counts, size: Any) -> Counts:
        return replace(super().micro_batch(c, size), performed=c.performed + 1)

    def attempt(self, c: Counts, skipped: bool) -> Counts:
        return replace(super().attempt(c, skipped), performed=c.performed)


class SkippedAsPerformed(CountRules):
    """Counts a step that the scaler skipped."""

    def attempt(self, c: Counts, skipped: bool) -> Counts:
        return super().attempt(c, False)


class EpochsRunOn(CountRules):
    """Never begins an epoch anew."""

    def epoch(self, c: Counts) -> Counts:
        return c


class OneRank(CountRules):
    """Tells the effective batch of one rank."""

    def effective(self, samples: Any, world: Any) -> Any:
        return samples


class DividedLoss(CountRules):
    """Tells the loss after its division by N."""

    def loss(self, handed: Any, divisor: Any, scale: Any, before: Any) -> Any:
        return handed / scale


class AccumulatedLoss(CountRules):
    """Tells the loss of the window until now."""

    def loss(self, handed: Any, divisor: Any, scale: Any, before: Any) -> Any:
        return (before + handed) * divisor / scale


class ScaledLoss(CountRules):
    """Tells the loss with the loss scale in it."""

    def loss(self, handed: Any, divisor: Any, scale: Any, before: Any) -> Any:
        return handed * divisor


_ROWS = (
    ("monitor_counts_micro_batches", "horovod#2715", MicroBatchesAsSteps),
    ("monitor_counts_skipped", "Speech#3293", SkippedAsPerformed),
    ("monitor_epochs_run_on", "minimind#691", EpochsRunOn),
    ("monitor_one_rank", "fairseq2#793", OneRank),
    ("monitor_divided_loss", "pytorch-lightning#2569", DividedLoss),
    ("monitor_accumulated_loss", "DeepSpeed#3367", AccumulatedLoss),
    ("monitor_scaled_loss", "fastai#3048", ScaledLoss),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-MON-001", _ROWS)
TORCH_ONLY: Mapping[str, str] = {}
"""No mutant is without a twin: the text that is proved is the text that watches."""
