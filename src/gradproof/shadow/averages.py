"""Running averages of weights: found when an operator writes a weight's numbers into a tensor that is not trained.

They are kept alive to the end of the run, where both runs must agree in them: no later event of a training loop reads
an average, so that an update too many, or a decay that depends on N, would show nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gradproof.shadow.storages import Held
from gradproof.shadow.tape import Place


@dataclass(frozen=True, slots=True)
class Average:
    """The tensor, the weight that it averages, and the line that wrote it first."""

    tensor: torch.Tensor
    of: str
    place: Place


class Averages:
    """The averages of one recording, by storage and offset."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Average] = {}

    def look(
        self, written: Sequence[torch.Tensor], given: Sequence[torch.Tensor], held: Mapping[int, Held], place: Place,
        gradients: set[int],
    ) -> None:  # fmt: skip
        """An operator outside of a backward pass wrote to some tensors; `gradients` are storages of gradients."""
        sources = [t for t in given if all(t is not w for w in written) and weight(held[id(t)]) is not None]
        for target in written if sources else ():
            storage = target.untyped_storage()._cdata
            source = next((t for t in sources if t.shape == target.shape), None)
            if source is None or storage in gradients or target.requires_grad or weight(held[id(target)]) is not None:
                continue
            sources = [t for t in sources if t is not source] if len(written) > 1 else sources
            of = held[id(source)].label
            self._found.setdefault((storage, int(target.storage_offset())), Average(target, of, place))

    def named(self) -> dict[str, Average]:
        """Every average under the name of its weight; further ones of a weight are numbered."""
        found: dict[str, Average] = {}
        for average in self._found.values():
            name, number = average.of, 2
            while name in found:
                name, number = f"{average.of}#{number}", number + 1
            found[name] = average
        return found


def weight(held: Held) -> torch.Tensor | None:
    """A parameter that is trained and lives in a storage."""
    owners = (ref() for ref in held.owners)
    return next((p for p in owners if p is not None and p.requires_grad), None)
