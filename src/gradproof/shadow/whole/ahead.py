"""Rows that a run reads before a micro-batch takes them, as labels are that are counted for a whole window.

Which micro-batch takes a row shows only then. Until then it is a sample of its own; once a micro-batch meets the same
place of the same storage, it is that micro-batch's sample, in every term that was made of it.
"""

from __future__ import annotations

from typing import Any

import torch

from gradproof.shadow.whole.memory import geometry_of, weakly
from gradproof.shadow.whole.terms import Terms
from gradproof.shadow.whole.values import Value

AHEAD = 1 << 40
"""From here on samples are rows that no micro-batch has taken yet."""
MOST = 512
"""So many rows are followed one by one; a tensor of more is a table."""
Place = tuple[int, int, int]
"""A row: its storage, the distance of two rows in elements, and its number."""


class RowsAhead:
    """The rows that were read ahead, and the sample that each of them is for now."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._rows: dict[Place, tuple[Any, int]] = {}
        self._since: list[tuple[torch.Tensor, str, list[Place]]] = []
        self._count, self._first = 0, 1 << 62

    def read(self, tensor: torch.Tensor, site: str, within: Any) -> Value:
        """A line reads a tensor of integers: each row of it is a sample."""
        storage, by = tensor.untyped_storage(), max(tensor.stride(0), 1)
        places = [(storage._cdata, by, tensor.storage_offset() // by + row) for row in range(tensor.shape[0])]
        self._since.append((tensor, site, places))
        self._first = min(self._first, len(self.terms))
        leaves = []
        for place in places:
            weak, owner = self._rows.get(place, (None, 0))
            if weak is None or weak.expired():
                self._count, owner = self._count + 1, AHEAD + self._count
                self._rows[place] = weakly(storage), owner
            name = (site, False, str(tensor.dtype), owner, within)
            leaves.append(self.terms.of(self.terms.make("data", name, (), (1, *tensor.shape[1:]), owner)))
        return Value(tuple(leaves), 0, 1)

    @property
    def most(self) -> int:
        """The most rows that were read at once since the last micro-batch began."""
        return max((len(places) for _, _, places in self._since), default=0)

    def just_read(self, tensor: torch.Tensor) -> bool:
        """Whether this part of a storage was read since the last micro-batch began."""
        return any(is_part(tensor, other) for other, _, _ in self._since)

    def begins(self, rows: int | None, owners: range) -> tuple[bool, list[torch.Tensor]]:
        """A micro-batch begins. Whether what was read since the last is its own, and what that was.

        It is where each line read as many rows as the micro-batch has.
        """
        since, self._since = self._since, []
        by_site: dict[str, dict[Place, int]] = {}
        for _, site, places in since:
            own = by_site.setdefault(site, {})
            for place in places:
                own.setdefault(place, len(own))
        alike = bool(rows) and all(len(own) == rows for own in by_site.values())
        if alike and rows:
            self._are({p: owners[at // (rows // len(owners))] for own in by_site.values() for p, at in own.items()})
        return alike, [tensor for tensor, _, _ in since]

    def met(self, tensor: torch.Tensor, owners: range) -> None:
        """A micro-batch takes a tensor: the rows of it that were read ahead are its samples."""
        storage, by, size = tensor.untyped_storage()._cdata, tensor.stride(0), tensor.shape[0] // len(owners)
        first, found = tensor.storage_offset() // by * by if by else 0, dict[Place, int]()
        for place in self._rows if by else ():
            row = (place[1] * place[2] - first) // by
            if place[0] == storage and 0 <= row < tensor.shape[0]:
                found[place] = owners[row // size]
        self._are(found)

    def _are(self, found: dict[Place, int]) -> None:
        """These rows are these samples. Rows that share a sample already have it."""
        new = {self._rows.pop(place)[1]: owner for place, owner in found.items() if place in self._rows}
        owners = self.terms.owners
        for term in range(self._first, len(owners)) if new else ():
            owners[term] = new.get(owners[term], owners[term])


def is_part(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of one storage."""
    same = tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    return same and geometry_of(tensor) == geometry_of(other)
