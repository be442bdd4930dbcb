"""Every mutant of the training contract's loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from models import ddp_steps, epoch_steps, layouts, memory_steps, resume_steps, state_steps
from models.registry import Mutant

MUTANTS: Mapping[str, Mutant] = {
    **state_steps.MUTANTS,
    **ddp_steps.MUTANTS,
    **resume_steps.MUTANTS,
    **layouts.MUTANTS,
    **epoch_steps.MUTANTS,
    **memory_steps.MUTANTS,
}
