"""Every mutant of the training contract: of its models, and of its loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.accumulation.window_bugs import BROKEN, WINDOW_BUGS
from models.registry import Mutant
from models.systems import batch_plans, epochs, optimizer_state, tails

SYNCHRONISING: Mapping[str, Mutant] = {
    name: replace(WINDOW_BUGS[name], obligation="GA-SYNC-001") for name, _, _ in BROKEN["one_sync_a_window"][1]
}

MUTANTS: Mapping[str, Mutant] = {
    **batch_plans.MUTANTS,
    **optimizer_state.MUTANTS,
    **epochs.MUTANTS,
    **tails.MUTANTS,
    **SYNCHRONISING,
}
