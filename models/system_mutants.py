"""Every mutant of the training contract: of its models, and of its loops on real PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from models import epochs, tails
from models.registry import Mutant

MUTANTS: Mapping[str, Mutant] = {**epochs.MUTANTS, **epochs.CHANGING, **tails.MUTANTS}
