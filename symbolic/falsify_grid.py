"""What the falsification properties share: the grid of net and N, the modes of a dtype, and the drawn cases.

Seeds, optimizers and their forms, learning rates and loss scales are drawn; the grid never is. Every fixed case
runs in every optimizer and form once a walk, spread over the cells so that the cost does not grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gradproof.harness import PAIRS, Bound, Case, Cell, Place
from models.torch_nets import NETS
from symbolic.falsify_measure import forms_missing, probe_kernels

MODES: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp32-tf32": ("fp32",),
    "bf16": ("bf16",),
    "fp16": ("fp16", "fp16_params"),
}
LOSS_SCALE = 1024.0
LEARNING_RATE = 2.0**-6
APART = (0, 3, 1, 4)


def scale_of(mode: str) -> float | None:
    """The loss scale that a mode needs."""
    return LOSS_SCALE if mode.startswith("fp16") else None


def _case(pair: tuple[str, str], **fields: Any) -> Case:
    return Case(optimizer=pair[0], form=pair[1], **fields)


class Grid:
    """Base of the properties: every net of the claim at every N of the claim."""

    clause = ""

    def reaches(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach beside the optimizers and their forms."""
        return ()

    def covers(self, place: Place) -> Sequence[str]:
        """Names of what the correct subject must reach: every optimizer in every form that exists here too."""
        return (*self.reaches(place), *(f"{optimizer} {form}" for optimizer, form in self.pairs(place)))

    def absent(self, place: Place) -> Mapping[str, str]:
        """Optimizer forms that this device does not have, and what PyTorch says of them."""
        return forms_missing(place.device)

    def pairs(self, place: Place) -> list[tuple[str, str]]:
        """Optimizers and forms that exist here."""
        missing = self.absent(place)
        return [(optimizer, form) for optimizer, form in PAIRS if f"{optimizer} {form}" not in missing]

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
                "loss_scale": scales,
                "pair": st.sampled_from(self.pairs(place)),
            }
            fixed = {"net": st.just(cell.net), "n": st.just(cell.n), "mode": st.just(mode)}
            return st.builds(_case, **{**fixed, **common, **fields})

        return st.one_of([of_mode(mode) for mode in self.modes(place)])

    def fixed(self, cell: Cell, place: Place, turn: int, turns: int, *cases: Mapping[str, Any]) -> list[Case]:
        """The mappings of fields as cases, in each mode, in the optimizers and forms that fall to this turn.

        Case j takes pair p in the turn that is p - APART[j] modulo the turns or the pairs, whichever are fewer: over
        a whole walk each case runs in each pair at least once.
        """
        made, pairs = [], self.pairs(place)
        period = min(turns, len(pairs))
        for j, fields in enumerate(cases):
            for m, mode in enumerate(self.modes(place)):
                due = (turn + APART[j] + m) % period
                for p, (optimizer, form) in enumerate(pairs):
                    if p % period == due:
                        head = {"net": cell.net, "n": cell.n, "mode": mode, "loss_scale": scale_of(mode)}
                        made.append(Case(**{**head, "optimizer": optimizer, "form": form, **fields}))
        return made
