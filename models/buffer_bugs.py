"""Subjects of the enumerations of 16-bit buffers: sums in other orders, and loops that err in the buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradproof.harness import Setting, accumulated
from models.accumulation import Accumulation, Config, MicroBatch, Number, Record, Vector
from models.mutants import MUTANTS
from models.registry import Mutant

DOWN = 2**14


class Summed:
    """Gradients scaled and summed in an order: the text of `gradproof.rounding.accumulation`."""

    def result(self, grads: Sequence[Number], fmt: str, order: str, scale: str) -> Number:
        """The mean, as a buffer of the format holds it. Raises ValueError for an unknown order or scale."""
        return accumulated(Setting(len(grads), fmt, order=order, scale=scale), grads)


class Underflows(Accumulation):
    """The loss is scaled down where it should be scaled up: shares of gradients are lost below the smallest number."""

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Shares divided by the scale, in the format of the buffer."""
        return tuple(g / DOWN for g in super().backward(batch, window, config))

    def step(self, record: Record, config: Config) -> None:
        """The scale is taken out again before the step."""
        record.buffer = tuple(b * DOWN for b in record.buffer)
        super().step(record, config)


_SAME = ("missing_scale", "divided_twice", "rescaled_buffer", "scale_first_element_only")
BUFFER_BUGS: Mapping[str, Mutant] = {name: MUTANTS[name] for name in _SAME} | {
    "underflows": Mutant("underflows", "GA-EQ-001", "a loss scale that divides", Underflows)
}
