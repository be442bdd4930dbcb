"""Counts that stay tensors: how untracked numbers depend on integer data, element by element.

Untracked tensors enter the tape by value. Beside them this table keeps *marks*: an element of integer data is an
`Unknown`; a comparison of it with a number is an unknown truth value of its own; sums, products and quotients of these
are a `Count`, which is the value of that expression where every unknown is a keyed random residue (`domains.weight`).
What is not followed here becomes a fresh unknown: whatever is shown for every value of the unknowns holds for the
numbers of every run. An element without a mark depends on no integer data.

A number that leaves for Python has no marks any more. `Ledger.reads` says when that happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch

from gradproof.shadow.algebra import Array, Beyond
from gradproof.shadow.domains.interpreter import places
from gradproof.shadow.domains.marks import (
    EXACT,
    Call,
    Given,
    Ledger,
    Marks,
    Unknown,
    blank,
    objects,
    some,
)
from gradproof.shadow.ops.schema import SHAPE_ONLY, Spec, tensors_in
from gradproof.shadow.record.count_ops import GATHERS, RULES, WIDENED, Rule, by_element
from gradproof.shadow.record.patches import Exports
from gradproof.shadow.record.storages import (
    Held,
    Storages,
    array,
    dtype_name,
    fingerprint,
    storage_of,
)
from gradproof.shadow.tape import Const

MOST = 1 << 16
"""Elements of a storage up to which it is followed."""

SWEEP = 1024


@dataclass(slots=True)
class Marked:
    """Marks of a storage, and what tells that it is still what it was."""

    held: Held
    marks: Array
    dtype: torch.dtype
    print: int


class Counts:
    """The table of one recorder."""

    def __init__(self, storages: Storages, items: Sequence[Any]) -> None:
        self.storages, self.items = storages, items
        self.ledger = Ledger()
        self.table: dict[int, Marked] = {}
        self.numbers = count()
        self.sweep = SWEEP

    # The table

    def born(self, tensor: torch.Tensor, *key: Any) -> None:
        """Integer data: every element of its storage is a variable of its own."""
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        if total > MOST:
            self.ledger.lost = f"integer data of {total} elements"
            return
        truth = tensor.dtype is torch.bool
        made = objects([Unknown((*key, i), truth=truth) for i in range(total)], (total,))
        self._keep(tensor, made)

    def number(self, tensor: torch.Tensor, unseen: bool) -> None:
        """A single number that no operator made. Zero, with which counts begin, is a constant."""
        if storage_of(tensor) is not None and not tensor.is_floating_point() and not tensor.is_complex():
            if unseen and not array(tensor).any():
                return
            self.born(tensor, "number", next(self.numbers))

    def known(self, tensor: torch.Tensor) -> bool:
        """Whether the storage has marks."""
        storage = storage_of(tensor) if self.table else None
        found = None if storage is None else self.table.get(storage._cdata)
        if storage is None or found is None:
            return False
        if self.storages.held.get(storage._cdata) is not found.held:
            del self.table[storage._cdata]
            return False
        return True

    def of(self, tensor: torch.Tensor) -> Array:
        """The marks of a tensor. A storage that something else wrote is all fresh variables."""
        if not self.known(tensor):
            return blank(tensor.shape)
        found = self.table[tensor.untyped_storage()._cdata]
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        if found.print != fingerprint(tensor.untyped_storage()) or total != len(found.marks):
            self.born(tensor, "changed", next(self.numbers))
        elif found.dtype is not tensor.dtype:
            self.ledger.lost = "integers that are read as another type"
        if not self.known(tensor) or len(self.table[tensor.untyped_storage()._cdata].marks) != total:
            return blank(tensor.shape)
        marks = self.table[tensor.untyped_storage()._cdata].marks
        at = places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        return objects([marks[i] for i in at.ravel()], tuple(tensor.shape))

    def put(self, tensor: torch.Tensor, marks: Array) -> None:
        """The marks of a tensor that was just written. The rest of its storage keeps its own."""
        if not self.known(tensor) and not some(marks):
            return
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        if total > MOST:
            self.ledger.lost = f"{total} numbers that depend on integer data"
            return
        held = self.table.get(tensor.untyped_storage()._cdata) if self.known(tensor) else None
        whole = blank((total,)) if held is None or len(held.marks) != total else held.marks.copy()
        at = places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        for i, mark in zip(at.ravel(), np.broadcast_to(marks, at.shape).ravel(), strict=True):
            whole[i] = mark
        self._keep(tensor, whole)

    def _keep(self, tensor: torch.Tensor, marks: Array) -> None:
        storage = tensor.untyped_storage()
        self.table[storage._cdata] = Marked(self.storages.meet(tensor), marks, tensor.dtype, fingerprint(storage))
        if len(self.table) > self.sweep:
            self.table = {k: m for k, m in self.table.items() if not m.held.dead}
            self.sweep = 2 * len(self.table) + SWEEP

    def const(self, tensor: torch.Tensor) -> Const:
        """An untracked tensor by value, with its marks."""
        value, marks = array(tensor), self.of(tensor) if self.known(tensor) else None
        kept = Marks(marks, self.ledger) if marks is not None and some(marks) else None
        return Const(value, dtype_name(tensor.dtype), kept)

    def read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Numbers left for Python."""
        if any(self.known(t) and some(self.of(t)) for t in tensors):
            self.ledger.reads.append(len(self.items))

    # Operators

    def before(self, tensors: Sequence[torch.Tensor]) -> dict[int, Given]:
        """The arguments of an operator; none where no one is marked."""
        if not any(self.known(t) for t in tensors):
            return {}
        wide = [t for t in tensors if storage_of(t) is not None and not t.is_complex()]
        if any(t.numel() > MOST for t in wide):
            self.ledger.lost = "large tensors beside integer data"
            return {}
        found = {id(t): Given(self.of(t), array(t), t.dtype) for t in wide}
        return found if any(some(g.marks) for g in found.values()) else {}

    def after(
        self, spec: Spec, func: Any, args: Any, kwargs: Any, out: Any, written: Sequence[torch.Tensor],
        given: Mapping[int, Given],
    ) -> None:  # fmt: skip
        """An untracked operator ran."""
        results = list(written) or [t for t in tensors_in(out) if storage_of(t) is not None and not t.is_complex()]
        if not given or spec.base in SHAPE_ONLY:
            for tensor in written:
                if storage_of(tensor) is not None and self.known(tensor):
                    self.put(tensor, blank(tensor.shape))
            return
        self.ledger.now = len(self.items)
        self._leaks(func, args, given)
        homes = {t.untyped_storage()._cdata for t in tensors_in((args, kwargs)) if storage_of(t) is not None}
        for tensor in results:
            if not written and tensor.untyped_storage()._cdata in homes:
                continue
            self.put(tensor, self._made(Call(self.ledger, spec, func, args, kwargs, given, tensor), len(results)))

    def _made(self, call: Call, results: int) -> Array:
        rules = [RULES.get(call.name) if call.out.dtype in EXACT else None]
        rules += [by_element] if torch.Tag.pointwise in call.func.tags and not call.spec.random else []
        tries = (_tried(rule, call) for rule in rules if rule is not None and results == 1)
        made = next((m for m in tries if m is not None), None)
        if made is None:
            plain = call.name in GATHERS and call.plain()
            truth = call.out.dtype is torch.bool
            number = next(self.numbers)
            flat = [Unknown(("made", number, i), plain, truth) for i in range(call.out.numel())]
            made = objects(flat, call.out.shape)
        return made

    def _leaks(self, func: Any, args: Any, given: Mapping[int, Given]) -> None:
        """Results whose shape, or which themselves, tell Python a number."""
        bits = (torch.bool, torch.uint8)
        if func is torch.ops.aten.index.Tensor:
            told = any(given[id(t)].dtype in bits and some(given[id(t)].marks) for t in tensors_in(args[1]))
        else:
            told = bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))
        if told:
            self.ledger.reads.append(len(self.items))


def _tried(rule: Rule, call: Call) -> Array | None:
    """What a rule makes, if that has the shape of the result. A rule that cannot go on says nothing."""
    try:
        made = rule(call)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, Beyond):
        return None
    wide = call.name in WIDENED
    return made if made is not None and (wide or made.shape == tuple(call.out.shape)) else None


class Leaving(Exports):
    """The ways out of torch, which integers take too."""

    def left(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor is handed to something that is not torch."""
        self.recorder.leaves.counts.read([tensor])
        super().left(name, tensor)
