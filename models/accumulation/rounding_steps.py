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

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """The value of every element, of the buffers of all of them."""
        return buffers


class EmptyLayout(Layout):
    """Leaves the gradient at zero."""

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Nothing."""
        return tuple(0 * x for x in buffers)


class Leaks(Layout):
    """Elements overlap in a flat buffer, so that the neighbour is added."""

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Each with the one before; the first one is alone."""
        return (buffers[0], *(own + beside for own, beside in zip(buffers[1:], buffers, strict=False)))


class FirstForAll(Layout):
    """A view that is not advanced: every element reads the first one's buffer."""

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """The first."""
        return (buffers[0],) * len(buffers)


class LastDropped(Layout):
    """The flat buffer is one element short."""

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """All but the last, which stays zero."""
        return (*buffers[:-1], 0 * buffers[-1])


class OtherElementsRescaled(Layout):
    """Only the first element is scaled: the others are still sums of two micro-batches."""

    def gradient(self, buffers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Twice the mean."""
        return (buffers[0], *(2 * x for x in buffers[1:]))


LAYOUTS: Mapping[str, Mutant] = registered_for(
    "GA-EQ-001",
    (
        ("scale_first_element_only", "keras#19534", OtherElementsRescaled),
        ("leaks", "", Leaks),
        ("first_for_all", "", FirstForAll),
        ("last_dropped", "", LastDropped),
    ),
)
