"""A function in several real processes with one gloo group between them, under a time limit.

Every rank is a fork of one process that has imported torch (`gradproof.shadow.verify.rank_pool`). A rank that ends
without an answer ends the others, which may be waiting for it.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.shadow.verify.rank_pool import POOL
from gradproof.shadow.verify.ranks import environment_of, free_port

MAIN = "gradproof.execution.methods.ranks:main"


def run_ranks(function: str, payload: Any, ranks: int, seconds: float) -> list[Any]:
    """What `function` (module:attribute) returns on each rank for `payload`; both are pickled.

    It runs inside an initialised process group. Raises GradproofError GP410 when a rank ends without an answer, or
    when there is none after `seconds`.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job").write_bytes(pickle.dumps({"function": function, "payload": payload, "seconds": seconds}))
        port = free_port()
        codes = POOL.run(Path(folder), [environment_of(rank, ranks, port) for rank in range(ranks)], seconds, MAIN)
        made = [Path(folder, f"{rank}.out") for rank in range(ranks)]
        if codes != [0] * ranks or not all(path.exists() for path in made):
            raise GradproofError(
                "GP410", _ended(codes, ranks, seconds), f"an answer of each of {ranks} ranks",
                "see their output above; the others were ended with it",
            )  # fmt: skip
        return [pickle.loads(path.read_bytes()) for path in made]


def _ended(codes: Sequence[int], ranks: int, seconds: float) -> str:
    """What went wrong, by rank."""
    if len(codes) != ranks:
        return f"{ranks} ranks gave no answer within {seconds:g} s"
    died = [f"rank {rank} ended with {code}" for rank, code in enumerate(codes) if code]
    return ", ".join(died) or "a rank ended without an answer"


def main(folder: str, rank: str) -> None:
    """One rank: join the group, call, leave it, write the answer whole."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    job = pickle.loads(Path(folder, "job").read_bytes())
    module, _, name = str(job["function"]).partition(":")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job["seconds"]))
    try:
        answer = getattr(import_module(module), name)(job["payload"])
    finally:
        dist.destroy_process_group()
    out = Path(folder, f"{rank}.out")
    out.with_suffix(".part").write_bytes(pickle.dumps(answer))
    out.with_suffix(".part").rename(out)
