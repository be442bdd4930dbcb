"""A function on several ranks: processes that multiprocessing forks from one that has imported torch, once.

Each begins without a process group and without the modules of the user's. What they print goes to stderr. They end
with their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from gradproof.core.errors import GradproofError

MODULE = "gradproof.shadow.tape.ranks"
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch._dynamo"]
"""The first optimizer of a process imports it, and it imports torch."""
SAFE = "PYTHONSAFEPATH"


def run_ranks(function: str, payload: Any, ranks: int, seconds: float) -> list[Any]:
    """What `function` (module:attribute) returns on each rank for `payload`; both are pickled.

    It runs inside an initialised process group. Raises GradproofError GP410 when a rank ends without an answer, or
    when there is none after `seconds`.
    """
    return each_rank(f"{MODULE}:in_group", [(function, payload, seconds)] * ranks, seconds)


def each_rank(function: str, payloads: Sequence[Any], seconds: float) -> list[Any]:
    """What `function` returns on each rank for that rank's payload. Raises as `run_ranks` does."""
    ranks, port = len(payloads), free_port()
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder, f"{rank}.out") for rank in range(ranks)]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        common = {**os.environ, **address, "OMP_NUM_THREADS": "1"}  # what a launcher would put there, but for the rank
        jobs = [
            (pickle.dumps((function, payload)), {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, made[rank])
            for rank, payload in enumerate(payloads)
        ]
        ended = _ended(_started(jobs), seconds)
        if ended or not all(path.exists() for path in made):
            raise GradproofError(
                "GP410", ended or "a rank ended without an answer", f"an answer of each of {ranks} ranks",
                "see their output above; the others were ended with it",
            )  # fmt: skip
        return [pickle.loads(path.read_bytes()) for path in made]


def _started(jobs: Sequence[tuple[bytes, Mapping[str, str], Path]]) -> list[Any]:
    """A process for each rank. Raises GradproofError GP410 where there can be none."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    processes = [CONTEXT.Process(target=perform, args=job) for job in jobs]
    try:
        with apart():
            for process in processes:
                process.start()
    except OSError as e:
        found = f"the ranks could not be started: {e}"
        raise GradproofError("GP410", found, "processes of this machine", "try a shorter path as TMPDIR") from e
    return processes


def _ended(processes: Sequence[Any], seconds: float) -> str:
    """Wait for all ranks; what went wrong, by rank. One that fails ends the others, which may wait for it."""
    until = time.monotonic() + seconds
    while running := [process for process in processes if process.exitcode is None]:
        late = not wait([process.sentinel for process in running], max(0.0, until - time.monotonic()))
        died = [f"rank {i} ended with {process.exitcode}" for i, process in enumerate(processes) if process.exitcode]
        if late or died:
            for process in processes:
                process.kill()
                process.join()
            return ", ".join(died) or f"{len(processes)} ranks gave no answer within {seconds:g} s"
    return ""


@contextmanager
def apart() -> Iterator[None]:
    """Processes that start meanwhile import neither the main module, a script perhaps, nor from the present folder."""
    main, flag = sys.modules["__main__"], os.environ.get(SAFE)
    sys.modules["__main__"], os.environ[SAFE] = ModuleType("__main__"), "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        os.environ.pop(SAFE) if flag is None else os.environ.update({SAFE: flag})


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def perform(job: bytes, environment: Mapping[str, str], result: Path) -> None:
    """One rank: call the function of the job, and write its answer whole. Threads of the user's are not waited for."""
    import torch

    code = 1
    try:
        threading.Thread(target=_end_with_parent, daemon=True).start()
        os.dup2(2, 1)
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)
        function, payload = pickle.loads(job)
        part = result.with_suffix(".part")
        part.write_bytes(pickle.dumps(resolve_name(function)(payload)))
        part.rename(result)
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def in_group(job: tuple[str, Any, float]) -> Any:
    """Join a gloo group of all ranks, call the function, and leave the group. `job`: function, payload, seconds."""
    from datetime import timedelta

    import torch.distributed as dist

    function, payload, seconds = job
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    try:
        return resolve_name(function)(payload)
    finally:
        dist.destroy_process_group()
