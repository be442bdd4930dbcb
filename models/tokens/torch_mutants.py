"""Every mutant of the training contract on real PyTorch, by name."""

from __future__ import annotations

from collections.abc import Mapping

from models.registry import Mutant
from models.tokens.torch_cross_entropy import CE_MUTANTS
from models.tokens.torch_scaling import SCALING_MUTANTS
from models.tokens.torch_window import TOKEN_MUTANTS

MUTANTS: Mapping[str, Mutant] = dict(TOKEN_MUTANTS) | dict(CE_MUTANTS) | dict(SCALING_MUTANTS)

TORCH_ONLY: Mapping[str, str] = {}
"""Mutants without a twin among `models.tokens.mutants`, and why: none."""
