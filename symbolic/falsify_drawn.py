"""What the falsification properties of the training contract share: a grid of names and sizes, seeds and modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import Bound, Case, Cell, Place

SEEDS = 63


class Drawn:
    """Base of the properties. A mode is one of the property's situations; each runs in each cell."""

    clause = ""
    modes: tuple[str, ...] = ()

    def covers(self, place: Place) -> Sequence[str]:
        """Every mode."""
        return self.modes

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The claim's `nets` with each `n`."""
        return [Cell(str(net), int(n)) for net in params["nets"] for n in params["n"]]

    def examples(self, cell: Cell, place: Place, turn: int, turns: int) -> Sequence[Case]:
        """Each mode once."""
        return [Case(cell.net, cell.n, mode=mode, seed=turn) for mode in self.modes]

    def strategy(self, cell: Cell, place: Place) -> SearchStrategy[Case]:
        """Any mode and seed."""
        modes, seeds = st.sampled_from(self.modes), st.integers(0, SEEDS)
        return st.builds(Case, net=st.just(cell.net), n=st.just(cell.n), mode=modes, seed=seeds)

    def absent(self, place: Place) -> Mapping[str, str]:
        """No form is missing: none is asked for."""
        return {}

    def probe(self, cell: Cell, place: Place) -> None:
        """Every cell can run."""

    def bounds(self, place: Place) -> Sequence[Bound]:
        """None beside the claim's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Nothing is measured outside the assumptions."""
        return []


def row(case: Case, place: Place, measured: float, note: str) -> dict[str, Any]:
    """A measurement that has no proven bound."""
    return {
        "column": "end_to_end", "device": place.device, "dtype": place.dtype, "net": case.net, "n": case.n,
        "measured": measured, "l2": None, "relative": None, "bound": None, "ratio": None, "tolerance": None,
        "note": note,
    }  # fmt: skip
