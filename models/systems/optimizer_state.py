"""What an optimizer keeps between its steps, over the events of a window: first and second moment, and a step counter.

SGD with momentum keeps m = a m + b g alone (a = momentum, b = 1); AdamW keeps m, v and t. All of it moves when a step
is performed, and only then: not with a micro-batch, and not with a step that the scaler skips.

Sources: bug class SCHED (optimizer state and EMA frequency); torch.amp.GradScaler.step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradproof.core.protocol import Event
from models.registry import Mutant, registered_for


@dataclass(frozen=True, slots=True)
class Moments:
    """m, v and the step counter t."""

    m: Any
    v: Any
    t: Any


@dataclass(frozen=True, slots=True)
class Decay:
    """m = a m + b g, v = c v + d g g."""

    a: Any
    b: Any
    c: Any
    d: Any


def moved(held: Moments, g: Any, by: Decay) -> Moments:
    """The state after one performed step with gradient g."""
    return Moments(by.a * held.m + by.b * g, by.c * held.v + by.d * g * g, held.t + 1)


class OptimizerState:
    """The reference: the state moves with performed steps alone."""

    def after(self, event: Event, held: Moments, g: Any, by: Decay) -> Moments:
        """The state after an event; `g` is what the buffer holds."""
        return moved(held, g, by) if event is Event.STEP else held


class StillState(OptimizerState):
    """The empty body: nothing moves."""

    def after(self, event: Event, held: Moments, g: Any, by: Decay) -> Moments:
        return held


class PerMicroBatch(OptimizerState):
    """Moves with every micro-batch too."""

    def after(self, event: Event, held: Moments, g: Any, by: Decay) -> Moments:
        if event is Event.ACCUMULATE:
            return moved(held, g, by)
        return super().after(event, held, g, by)


class CountsSkippedSteps(OptimizerState):
    """Counts a step that the scaler skipped."""

    def after(self, event: Event, held: Moments, g: Any, by: Decay) -> Moments:
        if event is Event.SKIP:
            return replace(held, t=held.t + 1)
        return super().after(event, held, g, by)


class DecaysOnSkip(OptimizerState):
    """Zeroes an overflowed gradient and steps with it, so that the moments decay."""

    def after(self, event: Event, held: Moments, g: Any, by: Decay) -> Moments:
        if event is Event.SKIP:
            return moved(held, 0 * g, by)
        return super().after(event, held, g, by)


_ROWS = (
    ("state_per_micro_batch", "DeepSpeed#8443", PerMicroBatch),
    ("counts_skipped_steps", "Speech#3293", CountsSkippedSteps),
    ("decays_on_skip", "keras#19990", DecaysOnSkip),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-STATE-001", _ROWS)
