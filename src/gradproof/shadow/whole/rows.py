"""Rows of data: where each lies, and which row it is a copy of.

A row that was copied, as to a device or into one tensor with others, is the same row for whoever takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradproof.shadow.whole.memory import extent, weakly

MOST = 512
"""So many rows are followed one by one; a tensor of more is a table."""
COPIED = frozenset({"clone", "_to_copy", "cat", "_pin_memory"})
"""Operators that copy rows in their order; `cat` along the first axis."""
Place = tuple[int, int, int]
"""A row: its storage, the distance of two rows in elements, and its number."""


class Rows:
    """Where the rows of tensors lie.

    A weak reference to each storage that a place names keeps its number from being given to another.
    """

    def __init__(self) -> None:
        self._weak: dict[int, Any] = {}
        self._copies: dict[int, tuple[int, int, list[Place]]] = {}  # bytes of an element, elements of a row, originals

    def places(self, tensor: torch.Tensor) -> list[Place]:
        """The place of each row; of a row of a copy, that of the original."""
        storage, by, start = tensor.untyped_storage(), max(tensor.stride(0), 1), int(tensor.storage_offset())
        self._weak.setdefault(storage._cdata, weakly(storage))
        found = [(storage._cdata, by, start // by + row) for row in range(tensor.shape[0])]
        width, size, originals = self._copies.get(storage._cdata, (0, 1, []))
        if width != tensor.element_size():
            return found
        last = extent((0, tuple(tensor.shape[1:]), tensor.stride()[1:]))[1] - 1
        firsts = [start + row * tensor.stride(0) for row in range(tensor.shape[0])]
        return [
            originals[first // size] if first // size == (first + last) // size else own
            for first, own in zip(firsts, found, strict=True)
        ]

    def copy(self, tensors: Sequence[torch.Tensor], made: torch.Tensor) -> None:
        """The rows of some tensors were copied, one tensor after the other."""
        counts = [one.shape[0] if one.dim() and one.numel() and one.stride(0) else MOST + 1 for one in tensors]
        if made.dim() and sum(counts) == made.shape[0] <= MOST and made.is_contiguous() and not made.storage_offset():
            originals = [place for one in tensors for place in self.places(one)]
            self.places(made)
            number = made.untyped_storage()._cdata
            self._copies[number] = made.element_size(), made.numel() // made.shape[0], originals

    def written(self, tensor: torch.Tensor) -> None:
        """A storage may hold other numbers now: its rows are no copies, and none are copies of them."""
        number, copies = tensor.untyped_storage()._cdata, self._copies.items()
        kept = ((one, held) for one, held in copies if one != number and all(at[0] != number for at in held[2]))
        self._copies = dict(kept)
