"""Operators without a row, by the decompositions that torch ships.

The decomposition runs once on placeholders of the same shapes and dtypes, and the operators of which it consists are
interpreted instead, in storages of their own. Integers and constants keep their real values. A decomposition that
looks at a placeholder's value, or that leads to an operator without a row, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value, lift
from gradproof.shadow.interpret import Interpreter, Memory
from gradproof.shadow.table import Path, Row
from gradproof.shadow.tape import Entry, Init, Ref


@dataclass(slots=True)
class Pieces:
    """What an operator consists of. `inputs` pairs its tensors with the storages that stand for them.

    `results` stand for the tensors that the operator wrote or made, in the order of `Entry.outs`.
    """

    items: list[Entry | Init] = field(default_factory=list)
    inputs: list[tuple[Ref, Ref]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)


def decompose(
    entry: Entry, integers: Mapping[Ref, Any] | None = None, table: Mapping[str, Row] | None = None
) -> Pieces | None:
    """The pieces of an operator, or None where torch ships no decomposition that could be followed.

    `integers`: arrays for those of its tensors whose elements are known on the path (int or bool, of the Ref's shape).
    What has a row in `table` (by default gradproof's own) is a piece; what has none is decomposed further.
    """
    from gradproof.shadow import pieces

    return pieces.trace(entry, dict(integers or {}), table)


class Decomposer:
    """A `Havoc` for `Interpreter`: answers for an operator without a row by its decomposition, or not at all.

    `used` counts, by operator, how often it did. A decomposition is equal to its kernel over the reals, not in its
    roundings, so that the rounding domain gets no answer.
    """

    def __init__(self, table: Mapping[str, Row] | None = None) -> None:
        self.table = table
        self.used: dict[str, int] = {}

    def __call__(self, entry: Entry, memory: Memory, path: Path) -> bool:
        """Interpret the pieces in `memory`. Raises Beyond where a row of a piece does."""
        known = {ref: memory.read(ref) for ref in _refs((entry.args, entry.kwargs)) if ref.storage in memory.flat}
        whole = {ref: np.asarray(v) for ref, v in known.items() if not isinstance(v, Value)}
        pieces = None if memory.domain.name == "rounding" else decompose(entry, whole, self.table)
        if pieces is None:
            return False
        self._interpret(entry, pieces, memory, path)
        self.used[entry.op] = self.used.get(entry.op, 0) + 1
        return True

    def _interpret(self, entry: Entry, pieces: Pieces, memory: Memory, path: Path) -> None:
        machine = Interpreter(memory.domain, self.table)
        machine.path = path
        for ref, stand_in in pieces.inputs:
            machine.memory.write(stand_in, memory.read(ref))
        for item in pieces.items:
            machine.do(item)
        for out, result in zip(_flat(entry.outs), _flat(pieces.results), strict=True):
            if isinstance(out, Ref):
                memory.write(out, _value(machine, result))


def _value(machine: Interpreter, result: Any) -> Any:
    if isinstance(result, Ref):
        return machine.memory.read(result)
    constant = result.value
    return lift(machine.domain, constant) if constant.dtype.kind == "f" else constant


def _flat(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, list | tuple) else [value]
    return found


def _refs(arg: Any) -> list[Ref]:
    if isinstance(arg, Mapping):
        return [r for a in arg.values() for r in _refs(a)]
    if isinstance(arg, list | tuple):
        return [r for a in arg for r in _refs(a)]
    return [arg] if isinstance(arg, Ref) else []
