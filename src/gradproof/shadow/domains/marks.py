"""Marks: how an untracked number depends on integer data (see `counts`), and the weight domain over them.

Symbolic: the weight domain where truth values that integer data gave are variables, with the degree of every value.
Two components: residues, and the degree in the unknowns of `counts` and in reciprocals of what they make. Truth values
are `bool`, or residues like numbers where one of them is a variable; every operation on them is right at 0 and 1. A
value that rests on a comparison of variables is right at the random point only: its degree is `POISON`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import torch

from gradproof.shadow.algebra import Array, Beyond, Parts, Value
from gradproof.shadow.domains.weight import PRIME, Weight, inverse, residue
from gradproof.shadow.ops.schema import Spec
from gradproof.shadow.tape import Const, Entry

EXACT = frozenset({torch.bool, torch.int32, torch.int64, torch.float32, torch.float64})
"""Types in which a count is followed; in others it may overflow, or lose its last digits soon."""


@dataclass(slots=True)
class CountLedger:
    """What the marks of one recording rest on.

    `reads`: places on the tape at which a marked number left for Python. `now`: the place on the tape.
    `inverted`: divisors, with their degrees and the last place on the tape.
    `notes`: assumptions in words. `lost`: why marks are no longer complete, if they are not.
    """

    reads: list[int] = field(default_factory=list)
    inverted: dict[int, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost: str = ""
    now: int = 0


@dataclass(frozen=True, slots=True)
class Unknown:
    """A free variable. `plain`: no sum was made on the way to it. `truth`: it is 0 or 1. `negated`: 1 less it."""

    key: tuple[Any, ...]
    plain: bool = True
    truth: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True)
class SymbolicCount:
    """An expression: its residue at the random point, and its degree in unknowns and in reciprocals of divisors."""

    residue: int
    degree: int

    def plus(self, other: SymbolicCount) -> SymbolicCount:
        """Sum."""
        return SymbolicCount((self.residue + other.residue) % PRIME, max(self.degree, other.degree))

    def times(self, other: SymbolicCount) -> SymbolicCount:
        """Product."""
        return SymbolicCount(self.residue * other.residue % PRIME, self.degree + other.degree)


Mark = Unknown | SymbolicCount | None


@dataclass(slots=True)
class Given:
    """A tensor argument before the operator ran."""

    marks: Array
    value: Array
    dtype: torch.dtype


@dataclass(slots=True)
class Marks:
    """The marks of a `Const`, one an element, and the ledger of its recording."""

    marks: Array
    ledger: CountLedger


@lru_cache(maxsize=1 << 18)
def hashed(key: tuple[Any, ...]) -> int:
    """The random residue of a variable."""
    return int.from_bytes(hashlib.shake_128(repr(key).encode()).digest(80)) % PRIME


def counted(mark: Mark, value: Any) -> SymbolicCount:
    """A mark as an expression; without a mark, the number itself."""
    if isinstance(mark, SymbolicCount):
        return mark
    if mark is None:
        return SymbolicCount(int(residue(value)), 0)
    found = hashed(mark.key)
    return SymbolicCount((1 - found) % PRIME if mark.negated else found, 1)


def expressions(given: Given) -> Array:
    """Every element as an expression."""
    return elements(counted, given.marks, given.value)


def elements(f: Callable[..., Any], *arrays: Any) -> Array:
    """Apply a function element by element."""
    wide = np.broadcast_arrays(*(np.asarray(a, dtype=object) for a in arrays))
    out = np.frompyfunc(f, len(wide), 1)(*wide)
    return objects([out] if wide[0].ndim == 0 else list(out.ravel()), wide[0].shape)


def plus(*arrays: Array) -> Array:
    """Sum, element by element."""
    return reduce(lambda a, b: elements(SymbolicCount.plus, a, b), arrays)


def times(*arrays: Array) -> Array:
    """Product, element by element."""
    return reduce(lambda a, b: elements(SymbolicCount.times, a, b), arrays)


def objects(flat: Sequence[Any], shape: Sequence[int]) -> Array:
    """An array of objects."""
    made = np.empty(len(flat), dtype=object)
    for i, one in enumerate(flat):
        made[i] = one
    return made.reshape(tuple(shape))


def blank(shape: Sequence[int]) -> Array:
    """No marks."""
    return np.full(tuple(shape), None, dtype=object)


def some(marks: Array) -> bool:
    """Whether an element is marked."""
    return any(m is not None for m in marks.ravel())


@dataclass(slots=True)
class Call:
    """One operator with a marked argument, after it ran."""

    ledger: CountLedger
    spec: Spec
    func: Any
    args: Any
    kwargs: Any
    given: Mapping[int, Given]
    out: torch.Tensor

    @property
    def name(self) -> str:
        """Of the functional form."""
        base = self.spec.base.removeprefix("aten.")
        return base[:-1] if base.endswith("_") else base

    def get(self, at: int, name: str = "", default: Any = None) -> Any:
        """An argument: a `Given` for a tensor."""
        value = self.args[at] if at < len(self.args) else self.kwargs.get(name, default)
        return self.given[id(value)] if isinstance(value, torch.Tensor) else value

    def expression(self, at: int, name: str = "", default: Any = None) -> Array:
        """An argument as expressions."""
        value = self.get(at, name, default)
        return expressions(value) if isinstance(value, Given) else objects([counted(None, value)], ())

    def plain(self) -> bool:
        """Whether no argument has a sum in it."""
        marks = [m for g in self.given.values() for m in g.marks.ravel() if m is not None]
        return all(isinstance(m, Unknown) and m.plain for m in marks)


def equals(mark: Mark, number: Any, negated: bool) -> Mark:
    """Whether an element equals a number: an unknown truth value, the same one for the same element and number."""
    if mark is None:
        return None
    if isinstance(mark, SymbolicCount):
        return Unknown(("eq", mark.residue, number), False, True, negated)
    if mark.truth and number in (0, 1):
        return Unknown(mark.key, mark.plain, True, mark.negated ^ (number == 0) ^ negated)
    return Unknown(("eq", mark.key, mark.negated, number), mark.plain, True, negated)


POISON = 1 << 40
"""The degree of a value that is right at the random point only."""


class Symbolic(Weight):
    """The weight domain with a second component: the degree of every element in the unknowns of the recording."""

    def __init__(self, markers: Mapping[int, int] | None = None, seed: int = 0) -> None:
        super().__init__(markers, seed)
        self.inverted: dict[int, int] = {}
        self.valid: list[Array | None] = []
        self.degrees: list[int] = []
        self._targets: Array | None = None

    def begin(self, item: Any) -> None:
        """Take note of which targets are valid."""
        super().begin(item)
        if isinstance(item, Entry) and item.op.split(".")[1] in ("nll_loss_backward", "nll_loss2d_backward"):
            self._targets = None if self._uneven else validity(item.args[2], item.args[5])

    def probe(self, name: str, value: Value, entry: Entry) -> Value:
        """As the weight domain does."""
        number = len(self.seen)
        made = super().probe(name, Value(self, value.parts[:1]), entry)
        if len(self.seen) > number:
            size = self.seen[-1].weights.size
            fits = self._targets is not None and self._targets.size == size
            self.valid.append(self._targets if fits else None)
            self.degrees.append(int(value.parts[1].max(initial=0)))
            self._targets = None
        return Value(self, (made.parts[0], value.parts[1]))

    def const(self, x: Array) -> Parts:
        """Of degree zero."""
        return _plain(super().const(x))

    def truth(self, x: Array) -> Parts:
        """Of degree zero."""
        return _plain(super().truth(x))

    def leaf(self, source: Any, shape: tuple[int, ...], value: Array) -> Parts:
        """Leaves are fixed numbers here."""
        return _plain(super().leaf(source, shape, value))

    def add(self, a: Parts, b: Parts) -> Parts:
        """The larger degree."""
        return (*super().add(a, b), _largest(a[1], b[1]))

    def sub(self, a: Parts, b: Parts) -> Parts:
        """The larger degree."""
        return (*super().sub(a, b), _largest(a[1], b[1]))

    def mul(self, a: Parts, b: Parts) -> Parts:
        """Both degrees."""
        return (*super().mul(a, b), _both(a[1], b[1]))

    def div(self, a: Parts, b: Parts) -> Parts:
        """The reciprocal is a variable. Raises Beyond where a divisor is zero for all counts."""
        for divisor, degree in zip(b[0].ravel(), b[1].ravel(), strict=True):
            if degree and (isinstance(divisor, float) or not divisor):
                raise Beyond("a division by a count that is zero")
            if 0 < degree < POISON:
                self.inverted[divisor] = max(int(degree), self.inverted.get(divisor, 0))
        degrees = np.where(b[1] >= POISON, POISON, np.minimum(b[1], 1))
        inverses = np.frompyfunc(lambda x: 0 if isinstance(x, float) or not x else inverse(x), 1, 1)(b[0])
        return self.mul(a, (np.asarray(inverses, dtype=object).reshape(np.shape(b[0])), degrees))

    def neg(self, a: Parts) -> Parts:
        """The same degree."""
        return (*super().neg(a), a[1])

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """The largest degree."""
        return (*super().sum(a, axes), np.asarray(a[1].max(axis=axes, initial=0) if axes else a[1]))

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """The largest of a row and that of a column."""
        rows, columns = a[1].max(axis=-1, initial=0), b[1].max(axis=-2, initial=0)
        return (*super().matmul(a, b), _both(rows[..., :, None], columns[..., None, :]))

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """A variable of its own where an argument is none of the constants."""
        most = np.asarray(np.maximum.reduce(np.broadcast_arrays(*(a[1] for a in args))))
        return (*super().function(name, args), np.where(most >= POISON, POISON, np.minimum(most, 1)))

    def less(self, a: Parts, b: Parts) -> Parts:
        """Poisoned where it depends on the counts."""
        return (*super().less(a, b), _decided(a, b))

    def equal(self, a: Parts, b: Parts) -> Parts:
        """Poisoned where it depends on the counts."""
        return (*super().equal(a, b), _decided(a, b))

    def logic(self, name: str, args: Sequence[Parts]) -> Parts:
        """As arithmetic where a truth value is a variable."""
        if all(a[0].dtype == bool for a in args):
            most = np.maximum.reduce(np.broadcast_arrays(*(a[1] for a in args)))
            return (*super().logic(name, args), np.asarray(most))
        one, *rest = (_numbers(a) for a in args)
        if name == "not":
            return self.sub(self.const(np.asarray(1)), one)
        product = self.mul(one, rest[0])
        return product if name == "and" else self.sub(self.add(one, rest[0]), product)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """`c a + (1 - c) b` where `c` is a variable."""

        def one(c: Any, p: Any, x: int, a: Any, y: int, b: Any, z: int) -> Any:
            if c in (0, 1):
                value, degree = (a, y) if c else (b, z)
                return value, max(degree, x)
            if isinstance(a, float) or isinstance(b, float):
                raise Beyond("infinity where a mask holds")
            return (c * a + (1 - c) * b) % PRIME, min(x + max(y, z), POISON)

        wide = np.broadcast_arrays(c[0], c[0], c[1], a[0], a[1], b[0], b[1])
        flat = [one(*each) for each in zip(*(w.ravel().tolist() for w in wide), strict=True)]
        values, degrees = np.empty(len(flat), dtype=object), np.zeros(len(flat), dtype=np.int64)
        for i, (value, degree) in enumerate(flat):
            values[i], degrees[i] = value, degree
        return values.reshape(wide[0].shape), degrees.reshape(wide[0].shape)


class Rest(Symbolic):
    """Without the losses: what is zero at the random point is zero, and has no degree."""

    def add(self, a: Parts, b: Parts) -> Parts:
        """The larger degree, but for zeros."""
        return _cleared(super().add(a, b))

    def sub(self, a: Parts, b: Parts) -> Parts:
        """The larger degree, but for zeros."""
        return _cleared(super().sub(a, b))

    def mul(self, a: Parts, b: Parts) -> Parts:
        """Both degrees, but for zeros."""
        return _cleared(super().mul(a, b))

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """As `mul`."""
        return _cleared(super().matmul(a, b))

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """As in the domain above, but for zeros."""
        return _cleared(super().where(c, a, b))


def _cleared(parts: Parts) -> Parts:
    zero = np.frompyfunc(lambda x: not isinstance(x, float) and not x, 1, 1)(parts[0])
    return parts[0], np.where(np.asarray(zero, dtype=bool), 0, parts[1])


def _plain(parts: Parts) -> Parts:
    return (*parts, np.zeros(parts[0].shape, dtype=np.int64))


def _largest(a: Array, b: Array) -> Array:
    return np.asarray(np.maximum(a, b))


def _both(a: Array, b: Array) -> Array:
    return np.asarray(np.minimum(a + b, POISON))


def _decided(a: Parts, b: Parts) -> Array:
    """A comparison of one expression with itself depends on nothing."""
    apart = np.asarray(np.frompyfunc(lambda x, y: x != y, 2, 1)(a[0], b[0]), dtype=bool)
    return np.where(apart & (_largest(a[1], b[1]) > 0), POISON, 0)


def _numbers(parts: Parts) -> Parts:
    values = parts[0].astype(int).astype(object) if parts[0].dtype == bool else parts[0]
    return values, parts[1]


def expression(found: Sequence[SymbolicCount], shape: tuple[int, ...]) -> Parts:
    """Expressions as components of the domain."""
    values = np.empty(len(found), dtype=object)
    values[:] = [c.residue for c in found]
    return values.reshape(shape), np.asarray([c.degree for c in found], dtype=np.int64).reshape(shape)


def validity(target: Any, ignored: int) -> Array | None:
    """Whether each target is valid, as an expression; None where the targets are no integer data."""
    marks = target.marks if isinstance(target, Const) else None
    if not isinstance(marks, Marks):
        return None
    made = np.empty(target.value.size, dtype=object)
    for i, (mark, value) in enumerate(zip(marks.marks.ravel(), target.value.ravel().tolist(), strict=True)):
        if isinstance(mark, SymbolicCount):
            return None
        made[i] = (
            SymbolicCount(int(value != ignored), 0) if mark is None else counted(equals(mark, ignored, negated=True), 0)
        )
    return made
