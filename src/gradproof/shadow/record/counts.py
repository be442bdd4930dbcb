"""Counts that stay tensors: how untracked numbers depend on integer data, element by element.

Untracked tensors enter the tape by value. Beside them this table keeps *marks*: an element of integer data is an
`Unknown`; a comparison of it with a number is an unknown truth value of its own; sums, products and quotients of these
are a `Count`, which is the value of that expression where every unknown is a keyed random residue (`domains.weight`).
What is not followed here becomes a fresh unknown: whatever is shown for every value of the unknowns holds for the
numbers of every run. An element without a mark depends on no integer data.

A number that leaves for Python has no marks any more. `Ledger.reads` says when that happened.

What operators make of marks (see `counts`). A rule is given a `Call` and returns the marks of the result, or None
where it does not follow. Every expression need only be right where the truth values in it are 0 or 1: `a and b` is the
product.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch

from gradproof.shadow.algebra import Array, Beyond
from gradproof.shadow.domains.marks import (
    EXACT,
    Call,
    CountLedger,
    Given,
    Mark,
    Marks,
    SymbolicCount,
    Unknown,
    blank,
    counted,
    elements,
    equals,
    objects,
    plus,
    some,
    times,
)
from gradproof.shadow.domains.weight import PRIME, inverse
from gradproof.shadow.ops.schema import SHAPE_ONLY, Spec, tensors_in
from gradproof.shadow.record.hook_points import Exports
from gradproof.shadow.record.storages import Held, Storages, array, dtype_name, fingerprint, storage_of
from gradproof.shadow.tape import Const, places

# Copies and movement.


def copied(call: Call) -> Array | None:
    """The same elements, in another type perhaps."""
    given = call.get(1 if call.name == "copy" else 0)
    return converted(given, call.out.dtype) if isinstance(given, Given) else blank(())


def converted(given: Given, dtype: torch.dtype) -> Array | None:
    """Marks in another type; None where a number would be cut off."""
    if dtype is given.dtype or (given.dtype in EXACT and dtype.is_floating_point):
        return given.marks
    if dtype is torch.bool:
        return elements(truth_of, given.marks)
    if given.dtype is torch.bool or (given.dtype in (torch.int32, torch.int64) and not dtype.is_floating_point):
        return given.marks
    return given.marks if all(m is None or (isinstance(m, Unknown) and m.truth) for m in given.marks.ravel()) else None


def truth_of(mark: Mark) -> Mark:
    """Whether an element differs from zero."""
    if mark is None or (isinstance(mark, Unknown) and mark.truth):
        return mark
    return equals(mark, 0, negated=True)


def moved(call: Call) -> Array | None:
    """What only moves elements is done once more, with their numbers in the place of the elements."""
    flat: list[Mark] = [None]
    seen: dict[int, torch.Tensor] = {}

    def numbered(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            given = call.given[id(arg)]
            if id(arg) not in seen:
                seen[id(arg)] = torch.arange(len(flat), len(flat) + arg.numel()).reshape(arg.shape)
                flat.extend(given.marks.ravel())
            return seen[id(arg)]
        return [numbered(a) for a in arg] if isinstance(arg, list | tuple) else arg

    if len({given.dtype for given in call.given.values()}) > 1 or call.kwargs:
        return None
    args = [numbered(a) for a in call.args]
    if call.name == "constant_pad_nd":
        args[2:] = [0]
    places = call.func(*args)
    return objects([flat[i] for i in places.ravel().tolist()], tuple(places.shape))


# Comparisons and logic.


def compared(call: Call) -> Array | None:
    """A comparison of elements with a number that has no mark."""
    left, right = call.get(0), call.get(1)
    if not isinstance(left, Given) or left.dtype not in EXACT or left.dtype.is_floating_point:
        return None
    if isinstance(right, Given):
        if right.value.ndim or some(right.marks):
            return None
        right = right.value.item()
    if isinstance(right, float) and not right.is_integer():
        return None
    number, name = int(right), call.name
    if name in ("eq", "ne"):
        return elements(lambda m: equals(m, number, name == "ne"), left.marks)
    at, negated = {"ge": (number, False), "lt": (number, True), "gt": (number + 1, False), "le": (number + 1, True)}[
        name
    ]

    def least(mark: Mark) -> Mark:
        if mark is None:
            return None
        if isinstance(mark, SymbolicCount):
            return Unknown(("ge", mark.residue, at), False, True, negated)
        return Unknown(("ge", mark.key, mark.negated, at), mark.plain, True, negated)

    return elements(least, left.marks)


def opposite(call: Call) -> Array | None:
    """1 less a truth value."""
    given = call.get(0)
    if given.dtype is not torch.bool:
        return None
    return elements(complement, given.marks)


def complement(mark: Mark) -> Mark:
    """1 less it."""
    if isinstance(mark, Unknown):
        return Unknown(mark.key, mark.plain, mark.truth, not mark.negated)
    return None if mark is None else SymbolicCount((1 - mark.residue) % PRIME, mark.degree)


def both(call: Call) -> Array | None:
    """Of truth values."""
    if not _truths(call):
        return None
    return times(call.expression(0), call.expression(1))


def either(call: Call) -> Array | None:
    """Of truth values."""
    if not _truths(call):
        return None
    a, b = call.expression(0), call.expression(1)
    return plus(a, b, times(a, b, MINUS))


def _truths(call: Call) -> bool:
    return call.out.dtype is torch.bool and all(g.dtype is torch.bool for g in call.given.values())


# Arithmetic.


def added(call: Call) -> Array | None:
    """`x + alpha y`, `x - alpha y`, `y - alpha x`."""
    if call.out.dtype is torch.bool:
        return None
    x, y = call.expression(0), call.expression(1)
    alpha = counted(None, call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1))
    x, y = (y, x) if call.name == "rsub" else (x, y)
    if call.name != "add":
        alpha = alpha.times(SymbolicCount(PRIME - 1, 0))
    return plus(x, times(y, objects([alpha], ())))


def multiplied(call: Call) -> Array | None:
    """A product."""
    return times(call.expression(0), call.expression(1))


def divided(call: Call) -> Array | None:
    """A quotient that is not rounded."""
    if call.kwargs.get("rounding_mode") is not None or not call.out.is_floating_point():
        return None
    return times(call.expression(0), elements(lambda c: reciprocal(call.ledger, c), call.expression(1)))


def inverted(call: Call) -> Array | None:
    """1 over it."""
    return elements(lambda c: reciprocal(call.ledger, c), call.expression(0))


def reciprocal(ledger: CountLedger, one: SymbolicCount) -> SymbolicCount:
    """A variable of degree one, whose own degree is kept. Raises Beyond at zero."""
    if not one.residue:
        raise Beyond("a division by zero")
    if one.degree:
        known, _ = ledger.inverted.get(one.residue, (0, 0))
        ledger.inverted[one.residue] = (max(one.degree, known), ledger.now)
    return SymbolicCount(inverse(one.residue), min(one.degree, 1))


def negative(call: Call) -> Array | None:
    """Minus."""
    return times(call.expression(0), MINUS)


def summed(call: Call) -> Array | None:
    """A sum, or a mean, over all or some axes."""
    if call.kwargs.get("dtype") not in (None, torch.int64, torch.float32, torch.float64):
        return None
    values = call.expression(0)
    axes = call.get(1, "dim") if call.spec.name.endswith(("dim_IntList", ".dim")) else None
    if call.name == "count_nonzero" and call.get(0).dtype is not torch.bool:
        return None
    chosen = range(values.ndim) if axes is None or not list(axes) else [a % values.ndim for a in axes if values.ndim]
    keep = bool(call.get(2, "keepdim", False)) if axes is not None and call.name != "count_nonzero" else False
    total = _total(values, tuple(chosen), keep)
    if call.name == "mean":
        size = int(np.prod([values.shape[a] for a in chosen], dtype=np.int64))
        total = elements(lambda c: c.times(reciprocal(call.ledger, SymbolicCount(size % PRIME, 0))), total)
    return total


def _total(values: Array, axes: tuple[int, ...], keep: bool) -> Array:
    moved = np.moveaxis(values, axes, tuple(range(len(axes)))).reshape(-1, *others(values.shape, axes))
    total = blank(moved.shape[1:])
    total[...] = objects([SymbolicCount(0, 0)], ())
    for row in moved:
        total = plus(total, row)
    return total.reshape([1 if a in axes else n for a, n in enumerate(values.shape)]) if keep else total


def others(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The lengths of the axes that are left."""
    return [n for a, n in enumerate(shape) if a not in axes]


def clamped(call: Call) -> Array | None:
    """A lower bound that does not bind, of a count: that it does not is an assumption."""
    given: Given = call.get(0)
    low, high = call.get(1, "min"), call.get(2, "max")
    if high is not None or not isinstance(low, int | float) or call.out.dtype is not given.dtype:
        return None
    if not all(isinstance(m, SymbolicCount) for m in given.marks.ravel()) or not (given.value >= low).all():
        return None
    note = f"a value that clamp(min={low}) takes is at least {low}"
    if note not in call.ledger.notes:
        call.ledger.notes.append(note)
    return given.marks


def chosen(call: Call) -> Array | None:
    """A choice between floats by truth values."""
    if not call.out.is_floating_point():
        return None
    if call.name == "where":
        c, a, b = call.expression(0), call.expression(1), call.expression(2)
    else:
        c, a, b = call.expression(1), call.expression(2), call.expression(0)
    return plus(times(c, a), times(elements(complement, c), b))


def filled(call: Call) -> Array | None:
    """One element everywhere."""
    value = call.get(1) if call.name == "fill" else 0
    return converted(value, call.out.dtype) if isinstance(value, Given) else blank(())


def by_element(call: Call) -> Array | None:
    """A function of the elements at one place: a variable that is named by them, the same for the same ones."""
    if any(isinstance(a, list | tuple) for a in call.args):
        return None
    truth, fixed = call.out.dtype is torch.bool, []
    given = []
    for at, arg in [*enumerate(call.args), *sorted(call.kwargs.items())]:
        if isinstance(arg, torch.Tensor):
            given.append(call.given[id(arg)])
        else:
            fixed.append((at, dtype_name(arg) if isinstance(arg, torch.dtype) else arg))
    name = (call.name, repr(fixed), str(call.out.dtype))
    plain = call.plain()

    def one(*tokens: Any) -> Mark:
        if all(not isinstance(t, Unknown | SymbolicCount) for t in tokens):
            return None
        return Unknown((short(name, [token(t) for t in tokens]),), plain, truth)

    return elements(one, *(elements(lambda m, v: v if m is None else m, g.marks, g.value) for g in given))


def token(one: Any) -> Any:
    """What tells an element from others."""
    return (
        one.residue if isinstance(one, SymbolicCount) else (one.key, one.negated) if isinstance(one, Unknown) else one
    )


def short(*parts: Any) -> str:
    """A digest."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


Rule = Callable[[Call], Array | None]
MINUS = objects([SymbolicCount(PRIME - 1, 0)], ())
GATHERS = frozenset(
    ("index", "index_select", "gather", "take", "index_put", "_index_put_impl", "scatter", "slice_scatter")
)
"""Operators that choose among elements, or write some: what they make of plain data is plain."""

WIDENED = frozenset({"copy", "fill", "zero"})
"""Operators whose source is spread over what they write."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(("clone", "_to_copy", "copy", "lift", "lift_fresh_copy", "expand_copy"), copied),
    **dict.fromkeys(("stack", "cat", "flip", "roll", "repeat", "constant_pad_nd"), moved),
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), compared),
    **dict.fromkeys(("logical_not", "bitwise_not"), opposite),
    **dict.fromkeys(("logical_and", "bitwise_and"), both),
    **dict.fromkeys(("logical_or", "bitwise_or"), either),
    **dict.fromkeys(("add", "sub", "rsub"), added),
    **dict.fromkeys(("sum", "mean", "count_nonzero"), summed),
    **dict.fromkeys(("clamp", "clamp_min"), clamped),
    **dict.fromkeys(("where", "masked_fill"), chosen),
    **dict.fromkeys(("fill", "zero"), filled),
    "mul": multiplied, "div": divided, "reciprocal": inverted, "neg": negative,
}  # fmt: skip
"""Rules of functional forms; the others follow."""

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


class CountTable:
    """The table of one recorder."""

    def __init__(self, storages: Storages, items: Sequence[Any]) -> None:
        self.storages, self.items = storages, items
        self.ledger = CountLedger()
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
            stated = any(given[id(t)].dtype in bits and some(given[id(t)].marks) for t in tensors_in(args[1]))
        else:
            stated = bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))
        if stated:
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
