"""A tape in a domain: one short interpreter, the same for every domain.

Memory is one flat `Value` a storage (a NumPy array for integers). Tensors read it through their offset and strides, and
write it in place, in the order of the run, so that views alias as they did. Only what the wanted events depend on is
evaluated: a backward pass over the tape finds it first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
    Source,
    Tape,
    held_in,
    in_order,
    places,
    renamings,
    sample_axis,
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
            if collective(item) or any(ref.storage in live for ref in item.writes):
                keep.add(index)
                live.difference_update(ref.storage for ref in item.writes if contiguous(ref))
                live.update(ref.storage for ref in held_in((item.args, item.kwargs), Ref))
        elif (item.storage if isinstance(item, Init) else item.ref.storage) in live:
            keep.add(index)
            if isinstance(item, Init) or contiguous(item.ref):
                live.discard(item.storage if isinstance(item, Init) else item.ref.storage)
    return keep


def collective(entry: Entry) -> bool:
    """Whether an operator exchanges tensors with other ranks. All ranks must come to it, whatever is wanted of each."""
    return entry.op.startswith("c10d.")


Havoc = Callable[[Entry, Memory, PathConditions], bool]


class Interpreter:
    """Runs a tape in a domain. `havoc`, where given, may answer for an operator without a row.

    `rename` gives the source of a leaf another name: the same site on another rank may make other data. `follow` are
    the wanted events of a recording; after each observation the memory takes on what their storages held, so that what
    comes next is computed from what the machine had (a gradient that is nothing but rounding decides no later one).
    """

    def __init__(
        self,
        domain: Domain,
        table: Mapping[str, OperatorRow] | None = None,
        havoc: Havoc | None = None,
        rename: Callable[[Source], Source] = lambda source: source,
        follow: Sequence[Event] = (),
    ) -> None:
        self.domain, self.table, self.havoc, self.rename = domain, table, havoc, rename
        self.follow = iter(follow)
        self.memory, self.path = Memory(domain), PathConditions()

    def run(self, tape: Tape, wanted: Callable[[Event], bool] = lambda event: bool(event.refs)) -> Reading:
        """Evaluate the wanted events of one process. Raises NoRow and Beyond; neither is a verdict."""
        turns = self.turns(tape, wanted)
        try:
            entry = next(turns)
        except StopIteration as done:
            return cast(Reading, done.value)
        raise Beyond(f"{entry.place}: {entry.op} needs the recordings of all ranks")

    def turns(self, tape: Tape, wanted: Callable[[Event], bool]) -> Generator[Entry, Any, Reading]:
        """The same, stopping at every collective: it yields the operator, and takes what its outputs become."""
        keep = needed(tape, wanted)
        observations = []
        for index, item in enumerate(tape.items):
            if index not in keep:
                continue
            if isinstance(item, Event):
                observations.append(self.observe(item))
            elif isinstance(item, Entry) and collective(item):
                self.store(item, (yield item))
            else:
                self.do(item)
        return Reading(observations, self.path)

    def observe(self, event: Event) -> Observation:
        """The values that belong to an event."""
        seen = Observation(event, {name: self.value(ref) for name, ref in event.refs.items()})
        actual = next(self.follow, None)
        held = {} if actual is None else actual.values
        for name, ref in event.refs.items():
            if isinstance(ref, Ref) and ref.floating and name in held:
                self.memory.write(ref, lift(self.domain, held[name].reshape(ref.shape)))
        return seen

    def do(self, item: Item) -> None:
        """One item of the tape that is no event. A domain with a method `begin` gets it first."""
        begin = getattr(self.domain, "begin", None)
        if begin is not None:
            begin(item)
        if isinstance(item, Leaf):
            self.memory.write(item.ref, self.leaf(item))
        elif isinstance(item, Init):
            self.memory.flat[item.storage] = self.value(item.content)
        elif isinstance(item, Entry):
            self.operate(item)

    def leaf(self, item: Leaf) -> Value:
        """A leaf, its elements in the order of its stream; micro-batches along a later axis are put side by side."""
        source, shape = self.rename(item.source), item.ref.shape
        if not item.laid:
            return Value(self.domain, self.domain.leaf(source, shape, item.value))
        axis, pieces = sample_axis(item.laid, shape), (-1, *item.laid)
        values = in_order(item.value, item.laid).reshape(pieces)
        made = Value(self.domain, self.domain.leaf(source, values.shape, values))
        return made.move(lambda p: np.concatenate(list(p), axis))

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
            if self.havoc is None or not self.havoc(entry, self.memory, self.path):
                raise NoRow(entry.op, entry.place)
            return
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


# -- Several ranks: at a collective every rank waits for the others, and is given what the exchange gives.
def read_ranks(
    domain: Domain,
    tapes: Sequence[Tape],
    wanted: Callable[[Event], bool],
    havoc: Havoc | None = None,
    follow: Sequence[Sequence[Event]] = (),
) -> list[Reading]:
    """Interpret the tapes of all ranks together. A domain with a `rank` knows whose turn it is.

    Raises NoRow and Beyond.
    """
    names = renamings(tapes)
    followed = list(follow) or [()] * len(names)
    runs = [Interpreter(domain, None, havoc, rename, events) for rename, events in zip(names, followed, strict=True)]
    turns = [run.turns(tape, wanted) for run, tape in zip(runs, tapes, strict=True)]
    answers: list[Any] = [None] * len(turns)
    while True:
        waiting: list[Entry] = []
        readings: list[Reading] = []
        for rank, (turn, answer) in enumerate(zip(turns, answers, strict=True)):
            if hasattr(domain, "rank"):
                domain.rank = rank
            try:
                waiting.append(turn.send(answer))
            except StopIteration as done:
                readings.append(done.value)
        if not waiting:
            return readings
        if readings:
            raise Beyond(f"{waiting[0].place}: {waiting[0].op} is not made by every rank")
        answers = exchange(domain, waiting, runs)


def exchange(domain: Domain, entries: Sequence[Entry], runs: Sequence[Interpreter]) -> list[Any]:
    """What every rank holds after a collective. Raises Beyond for one that is not known here."""
    first = entries[0]
    if {e.op for e in entries} != {first.op}:
        raise Beyond(f"the ranks make different collectives: {sorted({e.op for e in entries})}")
    name = first.op.split(".")[1]
    held = [[_value(run, ref) for ref in _refs(e.args[0])] for run, e in zip(runs, entries, strict=True)]
    if len({tuple(v.shape for v in values) for values in held}) != 1:
        raise Beyond(f"{first.place}: the ranks exchange tensors of different shapes")
    if name in ("allreduce_", "allreduce_coalesced_"):
        total = [_reduced(first, [values[i] for values in held]) for i in range(len(held[0]))]
        return [(list(total),) for _ in entries]
    if name == "broadcast_":
        root = int(first.args[2])
        return [(list(held[root]),) for _ in entries]
    raise Beyond(f"{first.place}: no meaning is known for {first.op} between ranks")


def _reduced(entry: Entry, values: list[Value]) -> Value:
    kind = str(entry.args[2]).upper()
    total = values[0]
    for value in values[1:]:
        total = total + value
    if "SUM" in kind:
        return total
    if "AVG" in kind:
        return total / len(values)
    raise Beyond(f"{entry.place}: an all-reduce that is neither a sum nor an average: {entry.args[2]}")


def _refs(arg: Any) -> list[Any]:
    return list(arg) if isinstance(arg, list | tuple) else [arg]


def _value(run: Interpreter, arg: Any) -> Value:
    value = run.value(arg)
    return value if isinstance(value, Value) else lift(run.domain, value)
