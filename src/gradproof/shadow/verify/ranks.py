"""Several ranks of one step: each records in a process of its own, and their tapes are interpreted together.

At a collective every rank waits for the others; the operator then gives each rank what the exchange gives. Leaves of
the same site are the same number on two ranks where the ranks made the same data, and others where they did not.
"""

from __future__ import annotations

import pickle
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradproof.core.errors import GradproofError
from gradproof.shadow.algebra import Beyond, Domain, Value, lift
from gradproof.shadow.domains.interpreter import Havoc, Interpreter, Reading
from gradproof.shadow.ops.table import OperatorRow
from gradproof.shadow.streams import Array, Key
from gradproof.shadow.tape import Entry, Event, Source, Tape
from gradproof.shadow.verify.compare import streams
from gradproof.shadow.verify.rank_pool import POOL

SECONDS = 300.0


def record_ranks(
    file: str, name: str, run: Any, ranks: int, values: Sequence[Mapping[Key, Array]] | None = None
) -> list[Any]:
    """Record `name` of `file` in `ranks` processes; `values` are leaves to inject, one mapping a rank.

    Raises GradproofError GP410 when a rank ends without a recording.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            job = {"file": file, "name": name, "run": run, "values": None if values is None else values[rank]}
            Path(folder, f"{rank}.in").write_bytes(pickle.dumps(job))
        codes = POOL.run(Path(folder), [environment_of(rank, ranks, port) for rank in range(ranks)], SECONDS)
        made = [Path(folder, f"{rank}.out") for rank in range(ranks)]
        if any(codes) or not all(path.exists() for path in made):
            raise GradproofError(
                "GP410", f"ranks ended with {codes}", "a recording of every rank",
                "see their output above; a rank that waits for another is ended after five minutes",
            )  # fmt: skip
        return [pickle.loads(path.read_bytes()) for path in made]


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment_of(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What a launcher would put into the environment of a rank."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def main(folder: str, rank: str) -> None:
    """One rank: read the job, record, write the recording."""
    from gradproof.shadow.record.run import Recording, record
    from gradproof.shadow.record.user_code import load
    from gradproof.shadow.request import function_of
    from gradproof.shadow.streams import Injection

    job = pickle.loads(Path(folder, f"{rank}.in").read_bytes())
    values = job["values"]
    function = function_of(load(Path(job["file"])), job["name"], job["file"])
    made = record(function, job["run"], None if values is None else Injection(values))
    tape = replace(made.tape, returned=None)
    out = Path(folder, f"{rank}.out")
    out.with_suffix(".part").write_bytes(pickle.dumps(Recording(tape, made.error, made.raised)))
    out.with_suffix(".part").rename(out)


# Interpretation


def read_ranks(
    domain: Domain,
    tapes: Sequence[Tape],
    wanted: Callable[[Event], bool],
    havoc: Havoc | None = None,
    follow: Sequence[Sequence[Event]] = (),
    rows: Mapping[str, OperatorRow] | None = None,
) -> list[Reading]:
    """Interpret the tapes of all ranks together. A domain with a `rank` knows whose turn it is.

    Raises NoRow and Beyond.
    """
    names = renamings(tapes)
    followed = list(follow) or [()] * len(names)
    runs = [Interpreter(domain, rows, havoc, rename, events) for rename, events in zip(names, followed, strict=True)]
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


def renamings(tapes: Sequence[Tape]) -> list[Callable[[Source], Source]]:
    """For each rank, what a leaf is called: as on rank 0 where the data are the same, else by the rank too."""
    first = streams(tapes[0])
    found: list[Callable[[Source], Source]] = []
    for rank, tape in enumerate(tapes):
        own = {key for key, values in streams(tape).items() if not _alike(values, first.get(key))}
        found.append(_renaming(rank, own))
    return found


def _alike(values: Array, other: Array | None) -> bool:
    return other is not None and np.array_equal(values, other)


def _renaming(rank: int, own: set[Key]) -> Callable[[Source], Source]:
    def rename(source: Source) -> Source:
        if rank and (source.kind, source.name) in own:
            return replace(source, name=f"rank {rank}: {source.name}")
        return source

    return rename


if __name__ == "__main__":
    main(*sys.argv[1:])
