"""The ranks of a run, each in a process with an engine of its own: what they tell each other, and collectives.

A rank knows what the tensors of the others are made of where a collective brings them to it: the terms are sent with
the values, each once, and made again in its own store. Terms have one key in all stores (`Terms.order`), so that the
sum of all ranks is one combination on each of them. Messages are files of one folder; a rank that has ended leaves word
of it, so that nobody waits for it.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradproof.shadow.follow.memory import Region
from gradproof.shadow.follow.terms import Shape, Terms, added, times
from gradproof.shadow.follow.values import Value, shared
from gradproof.shadow.ops.schema import tensors_in
from gradproof.shadow.tape.ranks import free_port

if TYPE_CHECKING:
    from gradproof.shadow.follow.engine import Engine

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
        self.run, self.alone, self.turns, self.kept = 0, False, Counter[tuple[int, ...]](), list[Any]()

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


Row = tuple[int, str, tuple[Any, ...], tuple[int, ...], Shape | None, int]
"""A term that is sent: number, operator, attributes, kids, shape, owner."""
Parcel = tuple[Any, list[Row], Sequence[Value]]
"""What sends values, which has to be the same on every member; the terms that were not sent before; the values."""


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
        other = next((sent for sent, _, _ in parcels if sent != what), None)
        if other is not None:
            raise Ended(f"one rank calls {what[0]} and another {other[0]}, or tensors of other shapes")
        return [
            list(own) if rank == self.group.rank else self._unpacked(rank, parcel)
            for rank, parcel in zip(ranks, parcels, strict=True)
        ]

    def _packed(self, what: Any, own: Sequence[Value], ranks: tuple[int, ...]) -> Parcel:
        terms, sent = self.terms, self.sent.setdefault(ranks, {self.terms.one})
        given = [term for value in own for part in value.parts for term in part]
        new = terms.walked(given, lambda term: () if term in sent else terms.kids[term]) - sent
        sent |= new
        rows = [
            (t, terms.operators[t], terms.attributes[t], terms.kids[t], terms.shapes[t], terms.owners[t])
            for t in sorted(new)
        ]
        return what, rows, own

    def _unpacked(self, rank: int, parcel: Parcel) -> list[Value]:
        known = self.known.setdefault(rank, {self.terms.one: self.terms.one})
        _, rows, values = parcel
        for number, operator, attributes, kids, shape, owner in rows:
            own = tuple(known[kid] for kid in kids)
            known[number] = self.terms.make(operator, attributes, own, shape, owner)
        return [
            value.holding([{known[term]: by for term, by in part.items()} for part in value.parts]) for value in values
        ]


# -- Collectives of torch.distributed, as operators: what each writes, by what all members of its group have.

REDUCTIONS = {"allreduce_": 2, "allreduce_coalesced_": 2, "reduce_": 2, "all_reduce": 1}
"""Collectives that reduce, each with the place of the reduction among its arguments."""
APIECE = ("allreduce_", "broadcast_")
FOLLOWED = (*REDUCTIONS, "broadcast_", "allgather_", "_allgather_base_")


class Collectives:
    """What the collectives of one run make of values."""

    def __init__(self, exchange: Exchange, engine: Engine) -> None:
        self.exchange, self.engine = exchange, engine
        self.algebra, self.terms = engine.laws, engine.terms

    def settle(self, name: str, args: Any) -> Callable[[Any], None]:
        """Exchange what a collective is given; the function that puts its results in place, when it has run.

        One of c10d writes its first argument; a functional one gives its result.
        """
        if name in ("barrier", "monitored_barrier_"):
            return lambda _: None
        if name in ("wait_tensor", "_wrap_tensor_autograd"):
            made = [self.engine.value(args[0])]
        elif name in APIECE and all(pieces := [self._pieces(tensor) for tensor in args[0]]):
            return self._apiece(name, args, list(itertools.chain(*pieces)))
        elif name in FOLLOWED:
            made = self._made(name, args)
        else:
            self.engine.lose(f"torch.distributed: {name.strip('_')} is not followed")
            return lambda _: None

        def put(out: Any) -> None:
            for tensor, value in zip(tensors_in(args[0] if name.endswith("_") else out), made, strict=True):
                self.engine.put(tensor, value)

        return put

    def _pieces(self, tensor: torch.Tensor) -> list[Region]:
        """The regions of a flat buffer that is as large as its storage and was filled piece by piece; else nothing."""
        held = self.engine.memory.of(tensor)
        sizes = [region.stop - region.start for region in held.regions]
        whole = tensor.dim() == 1 and tensor.numel() * held.width == tensor.untyped_storage().nbytes()
        return held.regions if whole and len(sizes) > 1 and sum(sizes) == tensor.numel() else []

    def _apiece(self, name: str, args: Any, pieces: list[Region]) -> Callable[[Any], None]:
        """A collective on each piece of flat buffers, which are then filled with the results."""
        what = (name, [(piece.start, piece.shape, piece.stride) for piece in pieces])
        found = self.exchange.values(what, [piece.value for piece in pieces], self._members(args))

        def fill(_: Any) -> None:
            for piece, values in zip(pieces, zip(*found, strict=True), strict=True):
                summed = name in REDUCTIONS
                piece.value = self._reduced(values, piece.shape, args[2]) if summed else values[int(args[2])]
            for tensor in args[0]:
                self.engine.memory.of(tensor).views.clear()

        return fill

    def _made(self, name: str, args: Any) -> list[Value]:
        """The values of a collective's results, by what all members of its group have."""
        given = tensors_in(args[1] if "allgather" in name else args[0])
        own, members = [self.engine.value(t) for t in given], self._members(args)
        found = self.exchange.values((name, [(tuple(t.shape), str(t.dtype)) for t in given]), own, members)
        if name == "broadcast_":
            return found[int(args[2])]
        each = list(zip(*found, strict=True))
        if name == "allgather_":
            return [value for values in each for value in values]
        if name == "_allgather_base_":
            out, size = tuple(args[0].shape), tuple(args[1].shape)
            wholes = [self.algebra.fitted(self.algebra.whole(value, size), size) for value in each[0]]
            small = size if out[1:] == size[1:] else (1, *size)
            return [shared(self.algebra.laid(wholes, [small] * len(wholes), 0, out))]
        if name == "reduce_" and members[int(args[3])] != self.exchange.group.rank:
            return own
        op = args[REDUCTIONS[name]]
        return [self._reduced(values, tuple(t.shape), op) for values, t in zip(each, given, strict=True)]

    def _members(self, args: Any) -> list[int]:
        """The ranks of the group of a collective."""
        group = next((arg for arg in args if isinstance(arg, torch.ScriptObject)), None)
        if group is None:
            found = torch.distributed.distributed_c10d._resolve_process_group(args[2])  # type: ignore[attr-defined]
        else:
            found = torch.distributed.ProcessGroup.unbox(group)
        return list(torch.distributed.get_process_group_ranks(found))

    def _reduced(self, values: Sequence[Value], shape: Shape, op: Any) -> Value:
        """What a reduction makes of the values of all members. Only sums and means are more than a function of them."""
        kind = {"sum": SUM, "avg": MEAN}.get(op, op) if isinstance(op, str) else int(op.op())
        first = values[0]
        if kind in (SUM, MEAN) and not first.shared and all(value.layout == first.layout for value in values):
            every = [value.parts for value in values]
        else:
            every = [(self.algebra.fitted(self.algebra.whole(value, shape), shape),) for value in values]
            first = shared(every[0][0])
        if kind not in (SUM, MEAN):
            kids = tuple(self.terms.named(whole, shape) for (whole,) in every)
            return shared(self.terms.of(self.terms.make(f"reduction {kind} of ranks", (), kids, shape)))
        by = Fraction(1, len(values)) if kind == MEAN else Fraction(1)
        return first.holding([times(added(part), by) for part in zip(*every, strict=True)])
