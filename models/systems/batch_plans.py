"""Effective batch and its inverses, as a subject: `gradproof.core.batches`, and what goes wrong with its arithmetic.

Sources: bug class DATA (batch-size metrics, resume positions and planned steps multiplied or divided wrongly).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradproof.harness import Divide, batches
from models.registry import Mutant, registered_for


class BatchPlan:
    """The reference."""

    def effective(self, micro: Any, accum: Any, world: Any) -> Any:
        """Samples a step."""
        return batches.effective(micro, accum, world)

    def accumulation(self, target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
        """Micro-batches a window, or None."""
        return batches.accumulation(target, micro, world, divide)

    def micro_batch(self, target: Any, accum: Any, world: Any, divide: Divide = divmod) -> Any:
        """Samples a micro-batch, or None."""
        return batches.micro_batch(target, accum, world, divide)


class EmptyPlan(BatchPlan):
    """The empty body: nothing is planned."""

    def effective(self, micro: Any, accum: Any, world: Any) -> Any:
        return 0

    def accumulation(self, target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
        return None

    def micro_batch(self, target: Any, accum: Any, world: Any, divide: Divide = divmod) -> Any:
        return None


class WorldForgotten(BatchPlan):
    """Counts one rank."""

    def effective(self, micro: Any, accum: Any, world: Any) -> Any:
        return micro * accum


class RoundedDown(BatchPlan):
    """Takes the quotient whatever the rest is, so that the effective batch is smaller than was asked."""

    def accumulation(self, target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
        return divide(target, micro * world)[0]


class WorldNotDivided(BatchPlan):
    """Divides by the micro-batch alone, so that every rank accumulates the whole."""

    def accumulation(self, target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
        return batches.accumulation(target, micro, 1, divide)

    def micro_batch(self, target: Any, accum: Any, world: Any, divide: Divide = divmod) -> Any:
        return batches.micro_batch(target, accum, 1, divide)


_ROWS = (
    ("world_forgotten", "fairseq2#793", WorldForgotten),
    ("accumulation_rounded_down", "diffusers#2632", RoundedDown),
    ("world_not_divided", "diffusers#3467", WorldNotDivided),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-BATCH-001", _ROWS)
