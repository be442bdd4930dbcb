"""Every mutant of the training contract's loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from models.registry import Mutant
from models.systems import (
    torch_ddp as ddp_steps,
    torch_epochs as epoch_steps,
    torch_layouts as layouts,
    torch_memory as memory_steps,
    torch_resume as resume_steps,
    torch_state as state_steps,
)

MUTANTS: Mapping[str, Mutant] = {
    **state_steps.MUTANTS,
    **ddp_steps.MUTANTS,
    **resume_steps.MUTANTS,
    **layouts.MUTANTS,
    **layouts.FEATURED,
    **epoch_steps.MUTANTS,
    **memory_steps.MUTANTS,
}

_ALONE = {
    "what an allocator holds is measured, and no model stands for it": memory_steps.MUTANTS,
    "where no_sync stands is a matter of DDP; the model has bugs of the window table": ddp_steps.MUTANTS,
    "what a file must hold is measured, and no model stands for it": resume_steps.MUTANTS,
    "its proofs are those of the kernel contract, with mutants of their own": {**layouts.MUTANTS, **layouts.FEATURED},
}
TORCH_ONLY: Mapping[str, str] = {name: reason for reason, mutants in _ALONE.items() for name in mutants}
