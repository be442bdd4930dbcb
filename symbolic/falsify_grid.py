"""What the falsification properties share: the grid of net and N, the modes of a dtype, and the drawn cases.

Seeds, optimizers and their forms, learning rates and loss scales are drawn; the grid never is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.backends.torch_job import FORMS, OPTIMIZERS
from gradproof.backends.torch_property import Case, Cell, Place
from gradproof.core import Bound
from models.torch_nets import NETS
from symbolic.falsify_measure import probe_kernels

MODES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp32-tf32": ("fp32",),
    "bf16": ("bf16",),
    "fp16": ("fp16", "fp16_params"),
}
LOSS_SCALE = 1024.0
LEARNING_RATE = 2.0**-6


def scale_of(mode: str) -> float | None:
    """The loss scale that a mode needs."""
    return LOSS_SCALE if mode.startswith("fp16") else None


class Grid:
    """Base of the properties: every net of the claim at every N of the claim."""

    clause = ""

    def covers(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach."""
        return ()

    def cells(self, place: Place, params: Mapping[str, Any]) -> Sequence[Cell]:
        """The grid of the claim's `nets` and `n`. Raises KeyError for a net that does not exist."""
        return [Cell(NETS[name].name, int(n)) for name in params["nets"] for n in params["n"]]

    def modes(self, place: Place) -> tuple[str, ...]:
        """The step's modes that the contract's dtype stands for."""
        return MODES[place.dtype]

    def probe(self, cell: Cell, place: Place) -> None:
        """Raise NoKernel when the device lacks a kernel that the cell needs."""
        probe_kernels(Case(cell.net, 1), place, self.modes(place))

    def bounds(self, place: Place) -> Sequence[Bound]:
        """Bounds that the property judges by, beside the claim's own."""
        return ()

    def outside(self, subject: Any, place: Place, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows measured outside the assumptions: none, unless the property says so."""
        return []

    def drawn(self, cell: Cell, place: Place, **fields: SearchStrategy[Any]) -> SearchStrategy[Case]:
        """Cases of the cell with the given fields drawn beside the common ones."""

        def of_mode(mode: str) -> SearchStrategy[Case]:
            needed = scale_of(mode)
            scales = st.just(needed) if needed else st.sampled_from((None, LOSS_SCALE))
            common: dict[str, SearchStrategy[Any]] = {
                "seed": st.integers(0, 63),
                "optimizer": st.sampled_from(OPTIMIZERS),
                "form": st.sampled_from(FORMS),
                "loss_scale": scales,
            }
            return st.builds(Case, net=st.just(cell.net), n=st.just(cell.n), mode=st.just(mode), **{**common, **fields})

        return st.one_of([of_mode(mode) for mode in self.modes(place)])

    def fixed(self, cell: Cell, place: Place, *cases: Mapping[str, Any]) -> list[Case]:
        """One case a mode for each mapping of fields."""
        return [
            Case(**{"net": cell.net, "n": cell.n, "mode": mode, "loss_scale": scale_of(mode), **fields})
            for fields in cases
            for mode in self.modes(place)
        ]
