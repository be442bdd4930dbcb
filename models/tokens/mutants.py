"""Every mutant of the training contract that a harness over a Python model must kill, by name."""

from __future__ import annotations

from collections.abc import Mapping

from models.registry import Mutant
from models.tokens.bias import BIAS_MUTANTS
from models.tokens.cross_entropy import CE_MUTANTS
from models.tokens.scaling import SCALING_MUTANTS
from models.tokens.window_mutants import TOKEN_MUTANTS

MUTANTS: Mapping[str, Mutant] = dict(TOKEN_MUTANTS) | dict(BIAS_MUTANTS) | dict(CE_MUTANTS) | dict(SCALING_MUTANTS)
