"""One step of left-to-right accumulation, s' = fl(s + x), and steps that lose more: subjects of the inductions.

`fl` rounds: over the reals it gives a number within the step contract's error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models.registry import Mutant, registered_for

Round = Callable[[Any], Any]
Divide = Callable[[Any, Any], Any]


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


STEPS: Mapping[str, Mutant] = registered_for(
    "GA-EQ-001",
    (
        ("rounds_twice", "microsoft/DeepSpeed#2768", RoundsTwice),
        ("adds_twice", "", AddsTwice),
        ("unscaled", "huggingface/transformers#35207", Unscaled),
    ),
)


class Means(Step):
    """The reference: 1/N applied once to a gradient, by an operation `divide`, and one addition."""

    def term(self, g: Any, n: Any, divide: Divide) -> Any:
        """What reaches the buffer."""
        return divide(g, n)


class EmptyMeans(Empty, Means):
    """Drops every term."""


class MeansRoundTwice(RoundsTwice, Means):
    """The sum is rounded, and rounded again as by a second buffer of the same width."""


class MeansUnscaled(Means):
    """The 1/N is missing."""

    def term(self, g: Any, n: Any, divide: Divide) -> Any:
        """The gradient as it is."""
        return g


class MeansDividedTwice(Means):
    """The 1/N is applied by the loss, and again by the loop."""

    def term(self, g: Any, n: Any, divide: Divide) -> Any:
        """Two quotients."""
        return divide(divide(g, n), n)


MEANS: Mapping[str, Mutant] = registered_for(
    "GA-EQ-001",
    (
        ("rounds_twice", "DeepSpeed#2768", MeansRoundTwice),
        ("unscaled_terms", "nanoGPT#206", MeansUnscaled),
        ("terms_divided_twice", "Megatron-DeepSpeed#42", MeansDividedTwice),
    ),
)


class Layout:
    """The reference: the gradient of an element is what its own buffer holds."""

    def element(self, own: Any, beside: Any) -> Any:
        """The value, of its own buffer and the neighbour's."""
        return own


class EmptyLayout(Layout):
    """Leaves the gradient at zero."""

    def element(self, own: Any, beside: Any) -> Any:
        """Nothing."""
        return 0 * own


class Leaks(Layout):
    """Elements overlap in a flat buffer, so that the neighbour is added."""

    def element(self, own: Any, beside: Any) -> Any:
        """Both."""
        return own + beside


class OtherElementsRescaled(Layout):
    """Only the first element is scaled: this one is still the sum of two micro-batches."""

    def element(self, own: Any, beside: Any) -> Any:
        """Twice the mean."""
        return 2 * own


LAYOUTS: Mapping[str, Mutant] = registered_for(
    "GA-EQ-001",
    (
        ("scale_first_element_only", "keras#19534", OtherElementsRescaled),
        ("leaks", "", Leaks),
    ),
)
