"""Running averages of weights: numbers made of weights alone, kept in a tensor that is not trained.

What an operator makes of weights (and constants) outside of a backward pass and of autograd's graph is followed, with
the numbers of weight updates that went before. An average is an untrained tensor of a weight's size that such a value
was written into, or a new tensor that is made of weights at two different times, as `e = d * e + (1 - d) * p` is. It is
kept alive to the end of the run, where both runs must agree in it: no later event of a training loop reads an average,
so that an update too many, or a decay that depends on N, would show nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.record.names import NAMES
from gradproof.shadow.record.storages import Held, State, Storages, storage_of
from gradproof.shadow.tape import Location

MIXED = " in line "
"""Between the weight and the line in the name of an average that is a new tensor each time."""


@dataclass(frozen=True, slots=True)
class Average:
    """The tensor, the weight that it averages, and the line that wrote it first."""

    tensor: torch.Tensor
    of: str
    place: Location


@dataclass(frozen=True, slots=True)
class MadeAverage:
    """What a value is made of: its first weight, the size of its largest, the updates before the weights were read."""

    of: str
    size: int
    oldest: int
    newest: int


class Averages:
    """The averages of one recording: kept in place by storage and offset, kept as new tensors by weight and line."""

    def __init__(self, storages: Storages) -> None:
        self.storages, self.updates = storages, 0
        self._found: dict[tuple[int, int], Average] = {}
        self._fresh: dict[tuple[str, Location], Average] = {}

    def look(
        self, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor], out: object, place: Location,
        gradients: set[int], backward: bool,
    ) -> None:  # fmt: skip
        """A tracked operator read `given` and ran; `gradients` are storages of gradients."""
        if any(weight(self._held(t)) is not None for t in written):
            self.updates += not backward
        elif written:
            for target, sources in paired(written, given):
                self._write(target, sources, place, gradients, backward)
        else:
            made = None if backward else self.made_of(given)
            for tensor in tensors_in(out):
                if storage_of(tensor) is not None:
                    self._make(tensor, None if tensor.requires_grad else made, place)

    def _make(self, tensor: torch.Tensor, made: MadeAverage | None, place: Location) -> None:
        self._held(tensor).made = made
        if made is not None and made.oldest < made.newest and tensor.numel() >= made.size:
            self._fresh[made.of, place] = Average(tensor, made.of, place)

    def _write(
        self,
        target: torch.Tensor,
        sources: Sequence[torch.Tensor],
        place: Location,
        gradients: set[int],
        backward: bool,
    ) -> None:
        """One tensor that is no weight was written."""
        held, storage = self._held(target), target.untyped_storage()._cdata
        trained = target.requires_grad and (not NAMES.optimized or id(target) in NAMES.optimized)
        made = None if backward or trained or storage in gradients else self.made_of(sources)
        held.made = made
        apart = [t for t in sources if t is not target]
        kept = made is not None and any(t.shape == target.shape and self.made_of([t]) for t in apart)
        if made is not None and kept and target.numel() >= made.size:
            self._found.setdefault((storage, int(target.storage_offset())), Average(target, made.of, place))

    def made_of(self, given: Sequence[torch.Tensor]) -> MadeAverage | None:
        """What a value of these is made of; None where one is neither a weight, nor made of some, nor constant."""
        found = []
        for tensor in given:
            known = self._held(tensor)
            owner = weight(known)
            if not tensor.is_floating_point() or (owner is None and known.state is not State.KNOWN and not known.made):
                return None
            if owner is not None:
                found.append(MadeAverage(known.label, owner.numel(), self.updates, self.updates))
            elif isinstance(known.made, MadeAverage):
                found.append(known.made)
        if not found:
            return None
        oldest, newest = min(m.oldest for m in found), max(m.newest for m in found)
        return MadeAverage(found[0].of, max(m.size for m in found), oldest, newest)

    def _held(self, tensor: torch.Tensor) -> Held:
        return self.storages.meet(tensor)

    def named(self) -> dict[str, Average]:
        """Every average that is kept in place under the name of its weight; further ones of a weight are numbered."""
        found: dict[str, Average] = {}
        for average in self._found.values():
            name, number = average.of, 2
            while name in found:
                name, number = f"{average.of}#{number}", number + 1
            found[name] = average
        return found

    def mixed(self) -> dict[str, Average]:
        """The last new tensor of each line that was made of a weight at different times, under names of its own."""
        return {f"{a.of}{MIXED}{a.place.line}": a for a in self._fresh.values()}


def paired(
    written: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:  # fmt: skip
    """Each written tensor with what is read for it: of several, itself and the next other one of its shape."""
    if len(written) == 1:
        return [(written[0], list(given))]
    own = {id(t) for t in written}
    others, pairs = [t for t in given if id(t) not in own], []
    for target in written:
        source = next((t for t in others if t.shape == target.shape), None)
        others = [t for t in others if t is not source]
        read = [t for t in given if t is target]
        pairs.append((target, read if source is None else [*read, source]))
    return pairs


def weight(held: Held) -> torch.Tensor | None:
    """A parameter that is trained and lives in a storage: where optimizers were made, one that they were given."""
    owners = (ref() for ref in held.owners)
    trained = NAMES.optimized
    return next((p for p in owners if p is not None and p.requires_grad and (not trained or id(p) in trained)), None)
