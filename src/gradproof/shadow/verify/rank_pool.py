"""Processes for the ranks of one recording: forks of one process that has imported torch, once.

`python -P -m gradproof.shadow.verify.rank_pool` reads jobs, one JSON line each (folder, environment of every rank,
working directory), forks a child a rank, and answers with their exit codes. A fork begins without a process group and
without the modules of the user's, as a new process would. The end of stdin means that the parent is gone: the children
are killed. Each rank's output goes to a file, and from there to the parent's stderr.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gradproof.core.workspace import PACKAGE

POLL = 0.005
MAIN = "gradproof.shadow.verify.ranks:main"


class RankPool:
    """The process that forks, started when the first recording needs it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, folder: Path, environments: Sequence[Mapping[str, str]], seconds: float, main: str = MAIN
    ) -> list[int]:
        """Exit codes of all ranks; a single -1 when they did not end in time, or the pool itself ended.

        Each rank calls `main` (module:function) with the folder and its number.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        ranks = [dict(e) for e in environments]
        job = {"folder": str(folder), "ranks": ranks, "cwd": str(Path.cwd()), "path": sys.path, "main": main}
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
        command = [sys.executable, "-P", "-m", "gradproof.shadow.verify.rank_pool"]
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
        module, _, name = str(job["main"]).partition(":")
        getattr(import_module(module), name)(job["folder"], str(rank))
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
