"""Every mutant of the training contract's loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from models import epoch_steps, memory_steps
from models.registry import Mutant

MUTANTS: Mapping[str, Mutant] = {**epoch_steps.MUTANTS, **memory_steps.MUTANTS}
