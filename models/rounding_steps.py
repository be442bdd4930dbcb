"""One step of left-to-right accumulation, s' = fl(s + x), and steps that lose more: subjects of the inductions.

`fl` rounds: over the reals it gives a number within the step contract's error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.registry import Mutant

Round = Callable[[Any], Any]


class Step:
    """The reference: one addition, one rounding."""

    def add(self, s: Any, x: Any, fl: Round) -> Any:
        """The partial sum after one more term."""
        return fl(s + x)


class Empty(Step):
    """Drops every term."""

    def add(self, s: Any, x: Any, fl: Round) -> Any:
        """The partial sum before."""
        return s


class RoundsTwice(Step):
    """The sum is rounded, and rounded again as by a second buffer of the same width."""

    def add(self, s: Any, x: Any, fl: Round) -> Any:
        """Two roundings of one addition."""
        return fl(fl(s + x))


class AddsTwice(Step):
    """The term is added in two rounded halves."""

    def add(self, s: Any, x: Any, fl: Round) -> Any:
        """Two rounded additions."""
        return fl(fl(s + x / 2) + x / 2)


class Unscaled(Step):
    """The 1/N is missing for two micro-batches."""

    def add(self, s: Any, x: Any, fl: Round) -> Any:
        """Twice the term."""
        return fl(s + 2 * x)


STEPS: Mapping[str, Mutant] = {
    name: Mutant(name, "GA-EQ-001", thread, subject)
    for name, thread, subject in (
        ("rounds_twice", "microsoft/DeepSpeed#2768", RoundsTwice),
        ("adds_twice", "", AddsTwice),
        ("unscaled", "huggingface/transformers#35207", Unscaled),
    )
}
