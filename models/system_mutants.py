"""Every mutant of the training contract: of its models, and of its loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from models import batch_plans, epochs, optimizer_state, tails
from models.registry import Mutant

MUTANTS: Mapping[str, Mutant] = {
    **batch_plans.MUTANTS,
    **optimizer_state.MUTANTS,
    **epochs.MUTANTS,
    **epochs.CHANGING,
    **tails.MUTANTS,
}
