"""Which integer data an untracked tensor holds: for every element its number among all integer data of the run.

Token ids and labels enter the tape by value. Beside the value a `Const` keeps these numbers (`Tape.origins` tells site
and place of each), so that two runs can be asked which samples they read. Views share their storage; what only moves
elements is done once more with the numbers. Whatever else writes or makes a storage leaves it without numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradproof.shadow.ops.schema import Spec
from gradproof.shadow.record.storages import Storages, array, dtype_name, fingerprint, storage_of
from gradproof.shadow.tape import Const, Tape, places

COPIES = frozenset({"aten.clone", "aten._to_copy", "aten.lift", "aten.lift_fresh_copy", "aten.expand_copy"})
MOVES = frozenset({"aten.stack", "aten.cat", "aten.flip", "aten.roll", "aten.repeat"})
ELSEWHERE = -1
"""The number of an element that is no integer data."""
MOST = 1 << 16
"""Elements of a storage up to which it is followed."""


class Origins:
    """The numbers of one recording, which lie beside the storages with the fingerprint of their bytes."""

    def __init__(self, tape: Tape, storages: Storages) -> None:
        self.tape, self.storages, self.count = tape, storages, 0

    def born(self, tensor: torch.Tensor, site: str, first: int) -> None:
        """Integer data: every element of its storage has a number of its own."""
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        self.tape.origins.append((self.count, site, first))
        self._keep(tensor, np.arange(self.count, self.count + total) if total <= MOST else None)
        self.count += total

    def of(self, tensor: torch.Tensor) -> NDArray[np.int64] | None:
        """The numbers of a tensor's elements; None for a tensor that was written since, or never had any."""
        held = self.storages.get(tensor)
        if held is None or held.origin is None:
            return None
        numbers, dtype, seen = held.origin
        if dtype is not tensor.dtype or seen != fingerprint(tensor.untyped_storage()):
            held.origin = None
            return None
        at = places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        return np.asarray(numbers[at])

    def const(self, tensor: torch.Tensor) -> Const:
        """An untracked tensor by value, with its numbers."""
        return Const(array(tensor), dtype_name(tensor.dtype), self.of(tensor))

    def after(self, spec: Spec, func: Any, args: Any, kwargs: Any, out: Any, written: Sequence[torch.Tensor]) -> None:
        """An untracked operator ran."""
        for tensor in written:
            if (held := self.storages.get(tensor)) is not None:
                held.origin = None
        if written or not isinstance(out, torch.Tensor) or storage_of(out) is None or out.is_floating_point():
            return
        copied = spec.base in COPIES
        if not copied and (spec.base not in MOVES or kwargs):
            return
        given = list(args[0]) if isinstance(args[0], list | tuple) else [args[0]]
        found = [self.of(t) for t in given]
        if all(f is None for f in found) or any(t.dtype is not out.dtype for t in given if not copied):
            return
        numbers = [
            torch.from_numpy(np.full(t.shape, ELSEWHERE) if f is None else f) for t, f in zip(given, found, strict=True)
        ]
        made = numbers[0] if copied else func(numbers if isinstance(args[0], list | tuple) else numbers[0], *args[1:])
        self._put(out, made)

    def _put(self, tensor: torch.Tensor, numbers: torch.Tensor) -> None:
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        if numbers.shape != tensor.shape or total > MOST:
            return
        whole = np.full(total, ELSEWHERE)
        whole[places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))] = numbers.numpy()
        self._keep(tensor, whole)

    def _keep(self, tensor: torch.Tensor, numbers: NDArray[np.int64] | None) -> None:
        known = None if numbers is None else (numbers, tensor.dtype, fingerprint(tensor.untyped_storage()))
        self.storages.meet(tensor).origin = known
