"""What a monitor of a training counts, and the one call by which a script tells it a loss.

CountRules are plain arithmetic over the events of one optimizer; the text that is proved (KANI-GT-411) is the text that
`gradproof watch` runs. The call is `report_loss`: outside of a watched run it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gradproof.core import batches

LISTENERS: list[Callable[[Any, str, bool], None]] = []
KINDS = ("batch", "window")


@dataclass(frozen=True, slots=True)
class Counts:
    """Whole numbers of one optimizer.

    passes, performed and skipped: backward passes and optimizer steps of the present epoch. held and samples:
    micro-batches of the open window, and their samples on this rank.
    """

    passes: Any = 0
    performed: Any = 0
    skipped: Any = 0
    held: Any = 0
    samples: Any = 0

    def plus(self, other: Counts) -> Counts:
        """The sum of two epochs; the window is the later one's."""
        performed, skipped = self.performed + other.performed, self.skipped + other.skipped
        return Counts(self.passes + other.passes, performed, skipped, other.held, other.samples)


class CountRules:
    """How the counts move, and what is shown of them."""

    def micro_batch(self, c: Counts, size: Any) -> Counts:
        """A backward pass over `size` samples."""
        return replace(c, passes=c.passes + 1, held=c.held + 1, samples=c.samples + size)

    def attempt(self, c: Counts, skipped: bool) -> Counts:
        """An optimizer step at the end of a window: performed, or skipped by a loss scaler."""
        made = {"skipped": c.skipped + 1} if skipped else {"performed": c.performed + 1}
        return replace(c, held=c.held * 0, samples=c.samples * 0, **made)

    def epoch(self, c: Counts) -> Counts:
        """A new epoch; a window that is open stays so."""
        return Counts(held=c.held, samples=c.samples)

    def effective(self, samples: Any, world: Any) -> Any:
        """The effective batch of a window of `samples` samples on each of `world` ranks."""
        return batches.effective(samples, 1, world)

    def loss(self, handed: Any, divisor: Any, scale: Any, before: Any) -> Any:
        """A micro-batch's own loss: what backward was handed, without loss scale and division.

        `before` is the sum of the losses that the window's earlier micro-batches handed over.
        """
        return handed * divisor / scale


def report_loss(value: Any, of: str = "batch", *, divided: bool = False) -> None:
    """Tell `gradproof watch` a loss as your script logs it, a number or a tensor of one element.

    `of` is "batch" for the loss of the micro-batch that was last handed to backward or is handed to it next, or
    "window" for the mean over the window's micro-batches until now. `divided` says that the value is the one after the
    division by N. Raises ValueError for another `of`.
    """
    if of not in KINDS:
        raise ValueError(f"report_loss of {of!r}; known: {', '.join(KINDS)}")
    for listener in list(LISTENERS):
        listener(value, of, divided)
