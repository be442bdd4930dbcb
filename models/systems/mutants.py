"""Every mutant of the training contract: of its models, and of its loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.accumulation.window_bugs import BROKEN, WINDOW_BUGS
from models.registry import Mutant, registered
from models.systems import batch_plans, epochs, optimizer_state, tails


class LengthGrows(epochs.Epochs):
    """A larger N counts at once, inside the window; a smaller one from the next window on."""

    def length(self, opened: Any, now: Any) -> Any:
        return now if bool(now > opened) else opened


class LengthShrinks(epochs.Epochs):
    """A smaller N counts at once, inside the window; a larger one from the next window on."""

    def length(self, opened: Any, now: Any) -> Any:
        return now if bool(now < opened) else opened


LENGTHS = (
    ("length_grows", "GA-SCHED-002", "mmcv#2093", LengthGrows),
    ("length_shrinks", "GA-SCHED-002", "mmcv#2093", LengthShrinks),
)
SYNCHRONISING: Mapping[str, Mutant] = {
    name: replace(WINDOW_BUGS[name], obligation="GA-SYNC-001") for name, _, _ in BROKEN["one_sync_a_window"][1]
}

MUTANTS: Mapping[str, Mutant] = {
    **batch_plans.MUTANTS,
    **optimizer_state.MUTANTS,
    **epochs.MUTANTS,
    **registered(LENGTHS),
    **tails.MUTANTS,
    **SYNCHRONISING,
}
