"""Rows that a run reads before a micro-batch takes them, as labels are that are counted for a whole window.

Which micro-batch takes a row shows only then. Until then it is a sample of its own; once a micro-batch meets the same
place of the same storage, it is that micro-batch's sample, in every term that was made of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from gradproof.shadow.whole.interpreter import within
from gradproof.shadow.whole.memory import Meetings, geometry_of, weakly
from gradproof.shadow.whole.terms import Shape
from gradproof.shadow.whole.unseen import digest
from gradproof.shadow.whole.values import Value

if TYPE_CHECKING:
    from gradproof.shadow.whole.recorded import Recorded

MICRO = 1 << 20
"""Samples are numbered by micro-batch: `MICRO` times its number, plus the row."""
AHEAD = 1 << 30
"""From this number on micro-batches are rows, one each, that no other has taken yet."""
UNITS = 32
"""A micro-batch of more rows is followed in this many blocks of rows, where it has as many."""
MOST = 512
"""So many rows are followed one by one; a tensor of more is a table."""
Place = tuple[int, int, int]
"""A row: its storage, the distance of two rows in elements, and its number."""


class RowsAhead:
    """The rows that were read ahead, and the sample that each of them is for now.

    `trains`: whether anything was trained on; `taking`: whether the present micro-batch has begun.
    """

    def __init__(self, engine: Recorded) -> None:
        self.engine, self.terms = engine, engine.terms
        self.trains = self.taking = False
        self._rows: dict[Place, tuple[Any, int]] = {}
        self._since: list[tuple[torch.Tensor, str, list[Place]]] = []
        self._made: dict[int, Any] = {}
        self._count, self._first = 0, 1 << 62

    def reads(self, tensor: torch.Tensor) -> bool:
        """Whether integers are met before the forward pass of a micro-batch: it may be that of another one."""
        self.engine.opened()
        return not (self.taking or tensor.is_floating_point() or not tensor.dim() or not tensor.numel())

    def read(self, tensor: torch.Tensor) -> Value:
        """A line reads a tensor of integers: each row of it is a sample."""
        if tensor.shape[0] > MOST:
            return self.engine.leaf("constant", (digest(tensor),), tuple(tensor.shape))
        storage, by, site = tensor.untyped_storage(), max(tensor.stride(0), 1), self.engine.site()
        places = [(storage._cdata, by, tensor.storage_offset() // by + row) for row in range(tensor.shape[0])]
        self._since.append((tensor, site, places))
        self._first = min(self._first, len(self.terms))
        leaves = []
        for place in places:
            weak, owner = self._rows.get(place, (None, 0))
            if weak is None or weak.expired():
                self._count, owner = self._count + 1, (AHEAD + self._count) * MICRO
                self._rows[place] = weakly(storage), owner
            name = (site, False, str(tensor.dtype), owner, within(tensor))
            leaves.append(self.terms.of(self.terms.make("data", name, (), (1, *tensor.shape[1:]), owner)))
        return Value(tuple(leaves), 0, 1)

    def table_rows(self) -> int:
        """How many rows were met before anything trains: none of a data loader, and none that were read ahead."""
        engine = self.engine
        return 0 if self.trains or engine.fetch in engine.marked else engine.rows.get(engine.fetch) or 0

    def moved(self, tensors: Iterable[torch.Tensor]) -> None:
        """Before anything trains, what was met is taken apart: a part of it may be a micro-batch."""
        most = max([self.table_rows(), *(len(places) for _, _, places in self._since)])
        if any(t.dim() and 0 < t.shape[0] < most for t in tensors):
            self.begin_anew()

    def meets(self, shape: Shape) -> None:
        """A tensor of fewer rows than those before it: they were no micro-batch, and what was met is met anew."""
        if shape and shape[0] < self.table_rows():
            self.begin_anew()

    def begin_anew(self) -> None:
        """Before anything trains, what was met was no micro-batch if a part of it, or of what it became, is one.

        What was made of it is data, as it would be if it had been made before the optimizer.
        """
        engine = self.engine
        for number, held in engine.memory.held.items():
            terms = [term for region in held.regions for part in region.value.parts for term in part]
            if not held.data and not held.weak.expired() and self.terms.samples(terms):
                self._made[number] = held.weak
        engine.memory.held.clear()
        engine.rows.pop(engine.fetch, None)
        engine.turns.clear()
        engine.used.clear()
        engine.meetings = Meetings()
        self._rows.clear()
        self._since.clear()

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made of data before anything trained."""
        weak = self._made.get(tensor.untyped_storage()._cdata)
        return weak is not None and not weak.expired()

    def just_read(self, tensor: torch.Tensor) -> bool:
        """Whether this part of a storage was read since the last micro-batch began."""
        return any(is_part(tensor, other) for other, _, _ in self._since)

    def begins(self, number: int) -> None:
        """A micro-batch begins. What was read since the last is its own, or is met anew by the one that takes it.

        It is its own where each line read as many rows as the micro-batch has.
        """
        since, self._since = self._since, []
        rows, by_site = self.engine.rows.get(number) or 0, dict[str, dict[Place, int]]()
        for _, site, places in since:
            own = by_site.setdefault(site, {})
            for place in places:
                own.setdefault(place, len(own))
        if not rows or any(len(own) != rows for own in by_site.values()):
            for tensor, _, _ in since:
                self.engine.memory.of(tensor).views.clear()
            return
        first, each = number * MICRO, rows // blocks(rows)
        self._are({place: first + at // each for own in by_site.values() for place, at in own.items()})
        for tensor, _, _ in since:
            value = self.engine.memory.read(tensor)
            if value is not None:
                steps, line = len(self.engine.facts.updates), self.engine.location()
                self.engine.meetings.data(tensor, value, steps, number, line, True)

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


def blocks(rows: int) -> int:
    """In how many blocks the rows of a micro-batch are followed."""
    if rows <= UNITS:
        return max(rows, 1)
    return next((n for n in range(UNITS, UNITS // 4, -1) if rows % n == 0), rows)
