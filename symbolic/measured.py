"""What the measured checks of the training contract share: a grid of nets and N, without optimizer forms of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import Bound, Case, Cell, NoKernel, Place, format_named


class Measured(ABC):
    """A property over `nets` x `n` of the claim; more cases are drawn from `cases`."""

    clause = ""
    reached: Sequence[str] = ()

    def covers(self, place: Place) -> Sequence[str]:
        """What the correct subject must reach."""
        return self.reached

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """Every net of the claim at every N of the claim."""
        return [Cell(net, int(n)) for net in params["nets"] for n in params["n"]]

    @abstractmethod
    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        """The fixed cases of a cell."""

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """All of them, in every walk."""
        return self.cases(cell, place)

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """The fixed cases again, where a property draws no others."""
        return st.sampled_from(self.cases(cell, place))

    def absent(self, place: Place) -> Mapping[str, str]:
        """Nothing is missing."""
        return {}

    def probe(self, cell: Cell, place: Place) -> None:
        """Raises NoKernel where the cell cannot run here: these checks run in fp32."""
        if place.dtype != "fp32":
            raise NoKernel(f"measured in fp32 alone, not in {place.dtype}")

    def bounds(self, place: Place) -> Sequence[Bound]:
        """Thresholds of the property's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Nothing is outside."""
        return []


def gamma(k: int, fmt: str = "fp32") -> Fraction:
    """k u / (1 - k u): what k roundings in a row can make of 1 (Higham, Accuracy and Stability, Lemma 3.1)."""
    ku = k * format_named(fmt).u
    return ku / (1 - ku)
