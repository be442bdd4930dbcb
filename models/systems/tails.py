"""What a micro-batch of a window weighs when the window is short: the tail of an epoch.

A window holds r <= N micro-batches, with `total` samples (or tokens that carry loss) between them. The share of a
micro-batch with gradient g (of its mean loss) and `count` samples is count g / total, and g / r where all counts are
equal. The documented form divides by the configured N in every window, so a tail's gradient is r/N of the right one.

Sources: minimind#691 and transformers#34198 (tail scaled by N); bug class EQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.registry import Mutant, registered_for


@dataclass(frozen=True, slots=True)
class Held:
    """A window: the configured N, the micro-batches r that it holds, its samples, and those of a full micro-batch."""

    n: Any
    r: Any
    total: Any
    size: Any


class Tail:
    """The reference: samples over the samples that the window holds."""

    def share(self, g: Any, count: Any, held: Held) -> Any:
        """What one micro-batch adds to the buffer."""
        return g * count / held.total


class EmptyTail(Tail):
    """The empty body: nothing is added."""

    def share(self, g: Any, count: Any, held: Held) -> Any:
        return g - g


class ByConfiguredN(Tail):
    """The documented form: every window is divided by N."""

    def share(self, g: Any, count: Any, held: Held) -> Any:
        return g / held.n


class ByFullWindow(Tail):
    """Divides by the samples that a full window would hold."""

    def share(self, g: Any, count: Any, held: Held) -> Any:
        return g * count / (held.n * held.size)


class MeanOfMeans(Tail):
    """Divides by the micro-batches that the window holds, whatever their counts."""

    def share(self, g: Any, count: Any, held: Held) -> Any:
        return g / held.r


_ROWS = (
    ("tail_by_configured_n", "minimind#691", ByConfiguredN),
    ("tail_by_full_window", "torchseq#8", ByFullWindow),
    ("tail_mean_of_means", "transformers#34191", MeanOfMeans),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-TAIL-001", _ROWS)

# Forms whose tail is not r/N of the right one: what the claim about the documented form's scale must tell apart.
OTHERS: Mapping[str, Mutant] = {
    "divided_by_what_it_holds": Mutant("divided_by_what_it_holds", "GA-TAIL-001", "pytorch-lightning#4653", Tail),
    "tail_mean_of_means": MUTANTS["tail_mean_of_means"],
}
