"""Marks: how an untracked number depends on integer data (see `counts`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import torch

from gradproof.shadow.algebra import Array
from gradproof.shadow.domains.weight import PRIME, residue
from gradproof.shadow.ops.schema import Spec

EXACT = frozenset({torch.bool, torch.int32, torch.int64, torch.float32, torch.float64})
"""Types in which a count is followed; in others it may overflow, or lose its last digits soon."""


@dataclass(slots=True)
class Ledger:
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
class Count:
    """An expression: its residue at the random point, and its degree in unknowns and in reciprocals of divisors."""

    residue: int
    degree: int

    def plus(self, other: Count) -> Count:
        """Sum."""
        return Count((self.residue + other.residue) % PRIME, max(self.degree, other.degree))

    def times(self, other: Count) -> Count:
        """Product."""
        return Count(self.residue * other.residue % PRIME, self.degree + other.degree)


Mark = Unknown | Count | None


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
    ledger: Ledger


@lru_cache(maxsize=1 << 18)
def hashed(key: tuple[Any, ...]) -> int:
    """The random residue of a variable."""
    return int.from_bytes(hashlib.shake_128(repr(key).encode()).digest(80)) % PRIME


def counted(mark: Mark, value: Any) -> Count:
    """A mark as an expression; without a mark, the number itself."""
    if isinstance(mark, Count):
        return mark
    if mark is None:
        return Count(int(residue(value)), 0)
    found = hashed(mark.key)
    return Count((1 - found) % PRIME if mark.negated else found, 1)


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
    return reduce(lambda a, b: elements(Count.plus, a, b), arrays)


def times(*arrays: Array) -> Array:
    """Product, element by element."""
    return reduce(lambda a, b: elements(Count.times, a, b), arrays)


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

    ledger: Ledger
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
    if isinstance(mark, Count):
        return Unknown(("eq", mark.residue, number), False, True, negated)
    if mark.truth and number in (0, 1):
        return Unknown(mark.key, mark.plain, True, mark.negated ^ (number == 0) ^ negated)
    return Unknown(("eq", mark.key, mark.negated, number), mark.plain, True, negated)
