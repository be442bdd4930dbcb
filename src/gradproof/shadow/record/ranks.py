"""A function on several ranks: forks of one process that has imported torch, once.

`python -P -m gradproof.shadow.record.ranks` reads jobs, one JSON line each (folder, environment of every rank, working
directory), forks a child a rank, and answers with their exit codes. A fork begins without a process group and
without the modules of the user's, as a new process would. The end of stdin means that the parent is gone: the children
are killed. Each rank's output goes to a file, and from there to the parent's stderr.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gradproof.core.errors import GradproofError
from gradproof.core.workspace import PACKAGE

POLL = 0.005
MODULE = "gradproof.shadow.record.ranks"


class RankPool:
    """The process that forks, started when the first recording needs it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, folder: Path, environments: Sequence[Mapping[str, str]], seconds: float) -> list[int]:
        """Exit codes of all ranks; a single -1 when they did not end in time, or the pool itself ended."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        ranks = [dict(e) for e in environments]
        job = {"folder": str(folder), "ranks": ranks, "cwd": str(Path.cwd()), "path": sys.path}
        late = threading.Timer(seconds, process.stdin.close)
        late.start()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            late.cancel()
            tell(folder)
        if not answer:
            self.stop()
            return [-1]
        return [int(code) for code in json.loads(answer)]

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "gradproof.shadow.record.ranks"]
        own = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": own}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the process, and with it every rank."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


POOL = RankPool()


def run_ranks(function: str, payload: Any, ranks: int, seconds: float) -> list[Any]:
    """What `function` (module:attribute) returns on each rank for `payload`; both are pickled.

    It runs inside an initialised process group. Raises GradproofError GP410 when a rank ends without an answer, or
    when there is none after `seconds`.
    """
    return each_rank(f"{MODULE}:in_group", [(function, payload, seconds)] * ranks, seconds)


def each_rank(function: str, payloads: Sequence[Any], seconds: float) -> list[Any]:
    """What `function` returns on each rank for that rank's payload. Raises as `run_ranks` does."""
    ranks = len(payloads)
    with tempfile.TemporaryDirectory() as folder:
        for rank, payload in enumerate(payloads):
            Path(folder, f"{rank}.in").write_bytes(pickle.dumps((function, payload)))
        port = free_port()
        codes = POOL.run(Path(folder), [environment_of(rank, ranks, port) for rank in range(ranks)], seconds)
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


def perform(folder: Path, rank: int) -> None:
    """One rank: call the function that the job names, and write its answer whole."""
    function, payload = pickle.loads((folder / f"{rank}.in").read_bytes())
    answer = attribute(function)(payload)
    part = folder / f"{rank}.part"
    part.write_bytes(pickle.dumps(answer))
    part.rename(folder / f"{rank}.out")


def attribute(name: str) -> Any:
    """What `module:attribute` names."""
    module, _, inner = name.partition(":")
    return getattr(import_module(module), inner)


def in_group(job: tuple[str, Any, float]) -> Any:
    """Join a gloo group of all ranks, call the function, and leave the group. `job`: function, payload, seconds."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    function, payload, seconds = job
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    try:
        return attribute(function)(payload)
    finally:
        dist.destroy_process_group()


def tell(folder: Path) -> None:
    """What the ranks printed, on stderr."""
    for path in sorted(folder.glob("*.log")):
        sys.stderr.write(path.read_text(encoding="utf-8", errors="replace"))


def serve() -> None:
    """Fork for every job until stdin ends."""
    import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it

    while line := sys.stdin.readline():
        job = json.loads(line)
        children = [_fork(job, rank, environment) for rank, environment in enumerate(job["ranks"])]
        print(json.dumps(_codes(children)), flush=True)


def _fork(job: Mapping[str, Any], rank: int, environment: Mapping[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with open(Path(job["folder"], f"{rank}.log"), "wb", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(environment)
        os.chdir(job["cwd"])
        sys.path[:] = job["path"]
        perform(Path(job["folder"]), rank)
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _codes(children: Sequence[int]) -> list[int]:
    """Exit codes in the order of the ranks; one that fails ends the others, which may wait for it."""
    codes: dict[int, int] = {}
    while len(codes) < len(children):
        if select.select([sys.stdin], [], [], POLL)[0]:  # nothing is sent meanwhile: it is the end of stdin
            _kill(children, codes)
            os._exit(1)
        for child in [c for c in children if c not in codes]:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
        if any(codes.values()) and len(codes) < len(children):
            time.sleep(1)
            _kill(children, codes)
    return [codes[child] for child in children]


def _kill(children: Sequence[int], codes: Mapping[int, int]) -> None:
    for child in children:
        if child not in codes:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    serve()
