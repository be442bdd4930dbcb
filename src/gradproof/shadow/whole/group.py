"""The ranks of a run, each in a process with an engine of its own: what they tell each other, and collectives.

A rank knows what the tensors of the others are made of where a collective brings them to it: the terms are sent with
the values, each once, and made again in its own store. Terms have one key in all stores (`Terms.order`), so that the
sum of all ranks is one combination on each of them. Messages are files of one folder; a rank that has ended leaves word
of it, so that nobody waits for it.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradproof.shadow.record.ranks import free_port
from gradproof.shadow.whole.memory import Region
from gradproof.shadow.whole.terms import Combination, Shape, Terms, plus, times
from gradproof.shadow.whole.values import Value, shared

if TYPE_CHECKING:
    from gradproof.shadow.whole.engine import Engine

POLL, SETTLES = 0.0005, 0.05
"""Seconds between two looks for a message, and until the threads of a process group hold no tensor any more."""
SUM, MEAN = 0, 1
"""Numbers of reductions (`torch.distributed.ReduceOp.RedOpType`)."""
APART = 1 << 40
"""Samples that a rank drew for itself are numbered from `APART` times one more than its number on."""


PATIENCE = 20.0
"""Seconds after an error on one rank until the others, which may wait for it, are ended."""
UNHEARD = "gradproof itself: Ended: "
"""How an error of a rank begins that is another rank's."""


class Ended(RuntimeError):
    """Another rank has ended, or does something else: nothing can be exchanged with it."""


class Group:
    """The ranks of a run as one of them sees them: `rank` of `size`. One rank alone exchanges nothing."""

    def __init__(self, rank: int = 0, size: int = 1, folder: Path = Path()) -> None:
        self.rank, self.size, self.folder = rank, size, folder
        self.run, self.turns = 0, Counter[tuple[int, ...]]()
        self.alone = False
        self.kept: list[Any] = []

    def keep(self) -> None:
        """Let the process groups live until the call has ended.

        A process group whose thread still holds a tensor must not be freed: both wait for each other for ever.
        """
        if self.size > 1 and torch.distributed.is_initialized():
            self.kept += torch.distributed.distributed_c10d._world.pg_map

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks that take part in the present call of the function."""
        return (self.rank,) if self.alone else tuple(range(self.size))

    def gather(self, data: Any, members: Sequence[int] = ()) -> list[Any]:
        """What each member gave, in the order of the ranks. Raises Ended."""
        ranks = tuple(members) or tuple(range(self.size))
        if ranks == (self.rank,):
            return [data]
        self.turns[ranks] += 1
        name = f"{self.run}-{'.'.join(map(str, ranks))}-{self.turns[ranks]}"
        self._leave(f"{name}@{self.rank}", data)
        return [data if rank == self.rank else self._await(f"{name}@{rank}", rank) for rank in ranks]

    def _leave(self, name: str, data: Any) -> None:
        part = self.folder / f"{name}.part"
        part.write_bytes(pickle.dumps(data))
        part.rename(self.folder / name)

    def _await(self, name: str, rank: int, seconds: float = math.inf) -> Any:
        path, ended, late = self.folder / name, self.folder / f"{self.run}-end@{rank}", time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > late:
                raise Ended(f"rank {rank} does not end, and rank {self.rank} has")
            if ended.exists() and not path.exists():
                raise Ended(f"rank {rank} has ended, and rank {self.rank} waits for it in a collective")
            time.sleep(POLL)
        return pickle.loads(path.read_bytes())

    def begin(self, alone: bool = False) -> None:
        """The function is about to be called: on every rank, or on this one `alone`."""
        if self.size == 1:
            return
        self.alone = alone
        port = free_port() if alone else self.gather(free_port())[0]
        world = 1 if alone else self.size
        os.environ |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}

    def end(self, error: str) -> str:
        """The call has ended, with an error or none. The error that it ended with on some rank, the first one first."""
        if self.size == 1:
            return error
        if torch.distributed.is_initialized():
            self.keep()
            torch.distributed.destroy_process_group()
        if self.kept:
            time.sleep(SETTLES)
            self.kept.clear()
        if self.alone:
            self.alone = False
            return error
        self._leave(f"{self.run}-end@{self.rank}", error)
        patience = PATIENCE if error else math.inf
        errors = [self._await(f"{self.run}-end@{rank}", rank, patience) for rank in range(self.size)]
        self.run += 1
        self.turns.clear()
        own = [f"{one} (on rank {rank})" for rank, one in enumerate(errors) if one and UNHEARD not in one]
        return (own or [one.replace(UNHEARD, "") for one in errors if one] or [""])[0]

    def some(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        return any(self.gather(flag))

    def every(self, flag: bool) -> bool:
        """Whether it is so on every rank."""
        return all(self.gather(flag))

    def total(self, number: int) -> int:
        """The sum over the ranks."""
        return sum(self.gather(number))


@dataclass(frozen=True, slots=True)
class Parcel:
    """Values, with the terms that the receiver has not been sent yet: number, operator, attributes, kids, shape, owner.

    `what`: the operator that sends them; every member of a group has to send the same.
    """

    what: Any
    terms: list[tuple[int, str, tuple[Any, ...], tuple[int, ...], Shape | None, int]]
    values: Sequence[Value]


class Exchange:
    """Sends values to other ranks, and makes theirs anew in the own store of terms."""

    def __init__(self, group: Group, terms: Terms) -> None:
        self.group, self.terms = group, terms
        self.sent: dict[tuple[int, ...], set[int]] = {}
        self.known: dict[int, dict[int, int]] = {}

    def values(self, what: Any, own: Sequence[Value], members: Sequence[int] = ()) -> list[list[Value]]:
        """The values that each member sends, in the order of the ranks. Raises Ended."""
        ranks = tuple(members) or self.group.everyone
        if ranks == (self.group.rank,):
            return [list(own)]
        parcels = self.group.gather(self._packed(what, own, ranks), ranks)
        other = next((parcel.what for parcel in parcels if parcel.what != what), None)
        if other is not None:
            raise Ended(f"one rank calls {what[0]} and another {other[0]}, or tensors of other shapes")
        return [
            list(own) if rank == self.group.rank else self._unpacked(rank, parcel)
            for rank, parcel in zip(ranks, parcels, strict=True)
        ]

    def _packed(self, what: Any, own: Sequence[Value], ranks: tuple[int, ...]) -> Parcel:
        terms, sent = self.terms, self.sent.setdefault(ranks, {self.terms.one})
        new: list[int] = []
        stack = [term for value in own for part in value.parts for term in part]
        while stack:
            term = stack.pop()
            if term not in sent:
                sent.add(term)
                new.append(term)
                stack.extend(terms.kids[term])
        rows = [
            (t, terms.operators[t], terms.attributes[t], terms.kids[t], terms.shapes[t], terms.owners[t])
            for t in sorted(new)
        ]
        return Parcel(what, rows, own)

    def _unpacked(self, rank: int, parcel: Parcel) -> list[Value]:
        known = self.known.setdefault(rank, {self.terms.one: self.terms.one})
        for number, operator, attributes, kids, shape, owner in parcel.terms:
            own = tuple(known[kid] for kid in kids)
            known[number] = self.terms.make(operator, attributes, own, shape, owner)
        return [
            value.holding([{known[term]: by for term, by in part.items()} for part in value.parts])
            for value in parcel.values
        ]


# -- Collectives of torch.distributed, as operators: what each writes, by what all members of its group have.

APIECE = ("allreduce_", "allreduce_coalesced_", "broadcast_")
"""Collectives that treat each element apart: a flat buffer of several gradients is taken piece by piece."""
Results = Iterable[tuple[torch.Tensor, Value]]
Rule = Callable[["Collectives", Any, list[int], list[list[Value]]], Results]


class Collectives:
    """What the collectives of one run make of values."""

    def __init__(self, exchange: Exchange, engine: Engine) -> None:
        self.exchange, self.engine = exchange, engine
        self.algebra, self.terms = engine.laws, engine.terms

    def settle(self, name: str, args: Any) -> Callable[[Any], None]:
        """Exchange what a collective is given; the function that writes its results, when it has run."""
        if name in ("barrier", "monitored_barrier_"):
            return lambda _: None
        if name in ("wait_tensor", "_wrap_tensor_autograd", "all_reduce"):
            return self._functional(name, args)
        rule = RULES.get(name)
        group = next((arg for arg in args if isinstance(arg, torch.ScriptObject)), None)
        if rule is None or group is None:
            self.engine.lose(f"torch.distributed: {name.strip('_')} is not followed")
            return lambda _: None
        members = torch.distributed.get_process_group_ranks(torch.distributed.ProcessGroup.unbox(group))
        sends, makes = rule
        given = sends(args)
        if name in APIECE and all(self._pieces(t) for t in given):
            return self._apiece(name, args, members, [piece for t in given for piece in self._pieces(t)])
        found = self._exchanged(name, given, members)

        def write(_: Any) -> None:
            for tensor, value in makes(self, args, members, found):
                self.engine.put(tensor, value)

        return write

    def _exchanged(self, name: str, given: Sequence[torch.Tensor], members: Sequence[int]) -> list[list[Value]]:
        what = (name, [(tuple(t.shape), str(t.dtype)) for t in given])
        return self.exchange.values(what, [self.engine.value(t) for t in given], members)

    def _functional(self, name: str, args: Any) -> Callable[[Any], None]:
        """A collective that writes nothing, and gives its result."""
        given = args[0]
        value = self.engine.value(given)
        if name == "all_reduce":
            group = torch.distributed.distributed_c10d._resolve_process_group(args[2])  # type: ignore[attr-defined]
            found = self._exchanged(name, [given], torch.distributed.get_process_group_ranks(group))
            value = self.reduced([values[0] for values in found], tuple(given.shape), args[1])
        return lambda out: self.engine.put(out, value)

    def _pieces(self, tensor: torch.Tensor) -> list[Region]:
        """The regions of a flat buffer that is as large as its storage and was filled piece by piece; else nothing."""
        held = self.engine.memory.of(tensor)
        sizes = [region.stop - region.start for region in held.regions]
        whole = tensor.dim() == 1 and tensor.numel() * held.width == tensor.untyped_storage().nbytes()
        return held.regions if whole and len(sizes) > 1 and sum(sizes) == tensor.numel() else []

    def _apiece(self, name: str, args: Any, members: list[int], pieces: list[Region]) -> Callable[[Any], None]:
        """A collective on each piece of flat buffers, which are then filled with the results."""
        what = (name, [(piece.start, piece.shape, piece.stride) for piece in pieces])
        found = self.exchange.values(what, [piece.value for piece in pieces], members)

        def fill(_: Any) -> None:
            for at, piece in enumerate(pieces):
                values = [each[at] for each in found]
                summed = name.startswith("allreduce")
                piece.value = self.reduced(values, piece.shape, args[2]) if summed else values[int(args[2])]
            for tensor in args[0]:
                self.engine.memory.of(tensor).views.clear()

        return fill

    def whole(self, value: Value, shape: Shape) -> Combination:
        """A value as one combination of a tensor's shape."""
        return self.algebra.fitted(self.algebra.whole(value, shape), shape)

    def reduced(self, values: Sequence[Value], shape: Shape, op: Any) -> Value:
        """What a reduction makes of the values of all members. Only sums and means are more than a function of them."""
        kind = {"sum": SUM, "avg": MEAN}.get(op, op) if isinstance(op, str) else int(op.op())
        if kind not in (SUM, MEAN):
            kids = tuple(self.terms.named(self.whole(value, shape), shape) for value in values)
            return shared(self.terms.of(self.terms.make(f"reduction {kind} of ranks", (), kids, shape)))
        by = Fraction(1, len(values)) if kind == MEAN else Fraction(1)
        first = values[0]
        if not first.shared and all(value.layout == first.layout for value in values):
            parts = zip(*(value.parts for value in values), strict=True)
            return first.holding([times(reduce(plus, part), by) for part in parts])
        return shared(times(reduce(plus, [self.whole(value, shape) for value in values]), by))

    def joined(self, values: Sequence[Value], tensor: torch.Tensor, piece: torch.Tensor) -> Value:
        """The values of all members one after the other, or beside each other along a new axis."""
        shape, small = tuple(tensor.shape), tuple(piece.shape)
        wholes = [self.whole(value, small) for value in values]
        if shape[1:] != small[1:]:
            small = (1, *small)
        return shared(self.algebra.laid(wholes, [small] * len(wholes), 0, shape))


def _all_reduce(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    return [(t, run.reduced([values[at] for values in found], tuple(t.shape), args[2])) for at, t in enumerate(args[0])]


def _reduce(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    return _all_reduce(run, args, members, found) if members[int(args[3])] == run.exchange.group.rank else []


def _broadcast(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    return zip(args[0], found[int(args[2])], strict=True)


def _all_gather(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    return [(t, values[at]) for at, outs in enumerate(args[0]) for t, values in zip(outs, found, strict=True)]


def _all_gather_base(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    return [(args[0], run.joined([values[0] for values in found], args[0], args[1]))]


def _reduce_scatter(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    own, count = members.index(run.exchange.group.rank), len(members)
    parts = [[values[at * count + own] for values in found] for at in range(len(args[0]))]
    return [(t, run.reduced(part, tuple(t.shape), args[3])) for t, part in zip(args[0], parts, strict=True)]


def _reduce_scatter_base(run: Collectives, args: Any, members: list[int], found: list[list[Value]]) -> Results:
    own = members.index(run.exchange.group.rank)
    shape, rows = tuple(args[1].shape), args[0].shape[0]
    total = run.whole(run.reduced([values[0] for values in found], shape, args[3]), shape)
    return [(args[0], run.algebra.cut(shared(total), shape, 0, own * rows, rows))]


RULES: dict[str, tuple[Callable[[Any], list[torch.Tensor]], Rule]] = {
    "allreduce_": (lambda args: args[0], _all_reduce),
    "allreduce_coalesced_": (lambda args: args[0], _all_reduce),
    "broadcast_": (lambda args: args[0], _broadcast),
    "reduce_": (lambda args: args[0], _reduce),
    "allgather_": (lambda args: args[1], _all_gather),
    "_allgather_base_": (lambda args: [args[1]], _all_gather_base),
    "reduce_scatter_": (lambda args: [t for each in args[1] for t in each], _reduce_scatter),
    "_reduce_scatter_base_": (lambda args: [args[1]], _reduce_scatter_base),
}
"""By operator: the tensors that a rank sends, and which tensors hold what then, made of what all of them sent."""
