"""A tape in a domain: one short interpreter, the same for every domain.

Memory is one flat `Value` a storage (a NumPy array for integers). Tensors read it through their offset and strides, and
write it in place, in the order of the run, so that views alias as they did. Only what the wanted events depend on is
evaluated: a backward pass over the tape finds it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Domain, Value, lift, number
from gradproof.shadow.ops.rows import lookup
from gradproof.shadow.ops.table import OperatorRow, Ops, PathConditions
from gradproof.shadow.tape import (
    Const,
    Entry,
    Event,
    Init,
    Item,
    Leaf,
    Location,
    Ref,
    Tape,
    held_in,
    places,
)


@dataclass(slots=True)
class Observation:
    """An event, and the values in the domain of the tensors that belong to it."""

    event: Event
    values: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class Reading:
    """What came of an interpretation."""

    observations: list[Observation]
    path: PathConditions


class NoRow(Exception):
    """An operator that was needed has no row: its name and the user's line."""

    def __init__(self, op: str, place: Location) -> None:
        self.op, self.place = op, place
        super().__init__(f"{place}: no row for {op}; add one with gradproof.shadow.register({op!r}, examples=[...])")


class Memory:
    """Flat storages; tensors are windows on them."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.flat: dict[int, Any] = {}

    def read(self, ref: Ref) -> Any:
        """A Value, or a NumPy array for integers. Raises Beyond when nothing was ever written there."""
        if ref.storage not in self.flat:
            raise Beyond(f"a tensor of {ref.dtype} {ref.shape} is read before anything was written to it")
        held = self.flat[ref.storage]
        at = places(ref.offset, ref.shape, ref.stride)
        return held[at]

    def write(self, ref: Ref, value: Any) -> None:
        """Overwrite the elements of a tensor."""
        value = self._fit(ref, value)
        whole = contiguous(ref)
        if whole:
            self.flat[ref.storage] = value.reshape(-1)
            return
        held = self.flat.get(ref.storage)
        held = self._blank(ref, value) if held is None else held
        if isinstance(held, Value) or isinstance(value, Value):
            held, value = lifted(self.domain, held), lifted(self.domain, value)
        if sort(held) != sort(value):
            held, value = number(held), number(value)
        at = places(ref.offset, ref.shape, ref.stride)
        if isinstance(held, Value):
            self.flat[ref.storage] = held.put(at, value)
        else:
            self.flat[ref.storage] = np.array(held)
            self.flat[ref.storage][at] = value

    def _fit(self, ref: Ref, value: Any) -> Any:
        if not isinstance(value, Value) and ref.floating:
            value = lift(self.domain, value)
        if isinstance(value, Value):
            return value if value.shape == ref.shape else value.expand(ref.shape)
        return np.broadcast_to(np.asarray(value), ref.shape)

    def _blank(self, ref: Ref, value: Any) -> Any:
        if not isinstance(value, Value):
            return np.zeros(ref.size, dtype=np.asarray(value).dtype)
        return lift(self.domain, np.zeros(ref.size, dtype=bool if value.truth else float))


def lifted(domain: Domain, x: Any) -> Value:
    """A Value, of plain integers too."""
    return x if isinstance(x, Value) else lift(domain, x)


def sort(held: Any) -> bool:
    """Whether a Value is of truth values."""
    return isinstance(held, Value) and held.truth


def contiguous(ref: Ref) -> bool:
    """Whether a tensor is its whole storage, in order."""
    if ref.offset or ref.count != ref.size:
        return False
    expected = 1
    for n, step in zip(reversed(ref.shape), reversed(ref.stride), strict=True):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


def needed(tape: Tape, wanted: Callable[[Event], bool]) -> set[int]:
    """Indices of the items on which the wanted events depend."""
    live: set[int] = set()
    keep: set[int] = set()
    for index in range(len(tape.items) - 1, -1, -1):
        item = tape.items[index]
        if isinstance(item, Event):
            if wanted(item):
                keep.add(index)
                live.update(ref.storage for ref in held_in(item.refs, Ref))
        elif isinstance(item, Entry):
            if any(ref.storage in live for ref in item.writes):
                keep.add(index)
                live.difference_update(ref.storage for ref in item.writes if contiguous(ref))
                live.update(ref.storage for ref in held_in((item.args, item.kwargs), Ref))
        elif (item.storage if isinstance(item, Init) else item.ref.storage) in live:
            keep.add(index)
            if isinstance(item, Init) or contiguous(item.ref):
                live.discard(item.storage if isinstance(item, Init) else item.ref.storage)
    return keep


class Interpreter:
    """Runs a tape in a domain."""

    def __init__(self, domain: Domain, table: Mapping[str, OperatorRow] | None = None) -> None:
        self.domain, self.table = domain, table
        self.memory, self.path = Memory(domain), PathConditions()

    def run(self, tape: Tape, wanted: Callable[[Event], bool] = lambda event: bool(event.refs)) -> Reading:
        """Evaluate the wanted events. Raises NoRow and Beyond; neither is a verdict."""
        keep = needed(tape, wanted)
        observations = []
        for index, item in enumerate(tape.items):
            if index not in keep:
                continue
            if isinstance(item, Event):
                observations.append(self.observe(item))
            else:
                self.do(item)
        return Reading(observations, self.path)

    def observe(self, event: Event) -> Observation:
        """The values that belong to an event."""
        return Observation(event, {name: self.value(ref) for name, ref in event.refs.items()})

    def do(self, item: Item) -> None:
        """One item of the tape that is no event. A domain with a method `begin` gets it first."""
        begin = getattr(self.domain, "begin", None)
        if begin is not None:
            begin(item)
        if isinstance(item, Leaf):
            self.memory.write(item.ref, Value(self.domain, self.domain.leaf(item.source, item.ref.shape, item.value)))
        elif isinstance(item, Init):
            self.memory.flat[item.storage] = self.value(item.content)
        elif isinstance(item, Entry):
            self.operate(item)

    def value(self, arg: Any) -> Any:
        """An argument as a row takes it."""
        if isinstance(arg, Ref):
            return self.memory.read(arg)
        if isinstance(arg, Const):
            return lift(self.domain, arg.value) if arg.value.dtype.kind == "f" else arg.value
        if isinstance(arg, list | tuple):
            return [self.value(a) for a in arg]
        return arg

    def operate(self, entry: Entry) -> None:
        """Evaluate one operator and write its outputs. Integers made of integers alone are as recorded."""
        if self.recorded(entry):
            self.store(entry, tuple(entry.seen[i] for i in range(len(entry.outs))))
            return
        row = lookup(entry.op, self.table)
        if row is None:
            raise NoRow(entry.op, entry.place)
        k = Ops(self.domain, entry, self.path)
        args = [self.value(a) for a in entry.args]
        kwargs = {name: self.value(a) for name, a in entry.kwargs.items() if name not in IGNORED}
        try:
            result = row.rule(k, *args, **kwargs)
        except Beyond as error:
            raise Beyond(f"{entry.op}: {error}", entry.place) from error
        self.store(entry, result)

    def recorded(self, entry: Entry) -> bool:
        """Whether every output was recorded, and no argument but integers on the path was read."""
        known = all(isinstance(o, Ref) and not o.floating and i in entry.seen for i, o in enumerate(entry.outs))
        if not known or not entry.outs:
            return False
        held = [self.memory.flat.get(ref.storage) for ref in held_in((entry.args, entry.kwargs), Ref)]
        return all(isinstance(h, np.ndarray) for h in held)

    def store(self, entry: Entry, result: Any) -> None:
        """Write the outputs of a row where the operator wrote its own."""
        results = list(result) if isinstance(result, tuple) else [result]
        if len(results) != len(entry.outs):
            raise Beyond(f"{entry.op}: the row gives {len(results)} outputs, the operator {len(entry.outs)}")
        for out, value in zip(entry.outs, results, strict=True):
            self._store(entry, out, value)

    def _store(self, entry: Entry, out: Any, value: Any) -> None:
        if isinstance(out, list | tuple):
            for o, v in zip(out, value, strict=True):
                self._store(entry, o, v)
        elif isinstance(out, Ref):
            if isinstance(value, Value) and not value.truth and out.floating:
                value = Value(self.domain, self.domain.rounded(value.parts, out.dtype, entry))
            self.memory.write(out, value)


IGNORED = frozenset({"out", "layout", "device", "pin_memory", "non_blocking", "memory_format", "generator"})
