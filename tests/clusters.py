"""A dask scheduler and worker processes on this machine, and a small workspace whose checks take some seconds each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gradproof.core.workspace import PACKAGE, Workspace

MODELS = '''\
"""The mean, and the bug."""

from types import SimpleNamespace


def mean(grads):
    return sum(grads) / len(grads)


def empty(grads):
    return 0


def summed(grads):
    return sum(grads)


MUTANTS = {"missing_scale": SimpleNamespace(obligation="T-1", reference="nanoGPT#206", subject=summed)}
'''
SYMBOLIC = '''\
"""Harnesses that do some work for each subject, and functions that are called."""

import os
import time
from pathlib import Path

import psutil


def exact(k, mean):
    work(k)
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))


def wrong(k, mean):
    work(k)
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads), sum(grads)))


def work(k):
    {work}


def doubled(argument):
    return {{"doubled": 2 * argument["x"], "root": str(Path.cwd())}}


def writes(argument):
    Path("symbolic/left_behind.py").write_text("X = 1")


def fails(argument):
    raise ValueError("no such number")


def ends_its_worker(argument):
    """Kill the process that started this one, as a machine that breaks under a job would."""
    psutil.Process().parent().kill()


def waits(argument):
    Path(argument).write_text(str(os.getpid()))
    time.sleep(600)
'''
HEAD = """\
metadata: {version: "1.0.0", description: "checks that take a while"}
subjects: {model: "models:mean", empty: "models:empty", mutants: "models:MUTANTS"}
proof_obligations:
  - id: T-1
    type: invariant
    property: mean
    formal: "mean(g_1..g_n) * n = g_1 + ... + g_n"
    layers: {ci: [smt], release: [smt]}
kani_harnesses:
"""
HARNESS = """\
  - id: K-{n}
    obligation: T-1
    property: the mean is exact, {n}
    bound: 3
    strategy: exhaustive
    solver: z3
    harness: "symbolic:{harness}"
    expect: {expect}
    bounds:
      - {{name: micro_batches, value: 3, reason: "a first, an inner and a last micro-batch"}}
      - {{name: branches, value: 4, reason: "the number of micro-batches is the only choice"}}
      - {{name: paths, value: 8, reason: "one path for each number of micro-batches"}}
    mutants: {mutants}
    time_limit: 200
"""
TAIL = """\
qa_gate:
  id: GATE-1
  name: mean
  checks: [mean]
  pass_criteria: every obligation is discharged
  falsification: sum without dividing
  criteria: {mean: [T-1]}
  seeded_bug: missing_scale
"""


def write_slow_workspace(root: Path, checks: int, work: str = "pass") -> Workspace:
    """A workspace of so many checks, the last of which is to be refuted. `work`: a statement for each path of each."""
    rows = [
        HARNESS.format(n=n, harness="exact", expect="holds", mutants="[missing_scale]") for n in range(1, checks)
    ] + [HARNESS.format(n=checks, harness="wrong", expect="refuted", mutants="[]")]
    files = {
        "models/__init__.py": MODELS,
        "symbolic/__init__.py": SYMBOLIC.format(work=work),
        "proofs/mean-v1/contract.yaml": HEAD + "".join(rows) + TAIL,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Workspace(root.resolve(), root.resolve() / "reports")


SCHEDULER = """\
import sys
sys.modules["gradproof"] = None
from distributed.cli.dask_scheduler import main
main()
"""


class Cluster:
    """A scheduler that cannot import gradproof. Workers are processes of one thread. `folder`: for logs and files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(folder / "scheduler.json"))
        place, ends = folder / "scheduler.json", time.monotonic() + 120
        while not place.exists() or not place.read_text():
            if time.monotonic() > ends or self.scheduler.poll() is not None:
                raise RuntimeError((folder / "scheduler.log").read_text())
            time.sleep(0.05)
        self.address = str(json.loads(place.read_text())["address"])

    def _start(self, what: str, *arguments: str, package: Path = PACKAGE, name: str = "") -> subprocess.Popen[bytes]:
        start = ("-c", SCHEDULER) if what == "scheduler" else ("-m", "distributed.cli.dask_worker")
        command = [sys.executable, *start, *arguments, "--host", "127.0.0.1", "--no-dashboard"]
        with (self.folder / f"{name or what}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(package.parent)},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, name: str, package: Path = PACKAGE, port: int = 0) -> subprocess.Popen[bytes]:
        """Start a worker process, with the gradproof of this folder, and wait until the scheduler knows it."""
        once = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder / name), "--name", name)
        once += ("--worker-port", str(port))
        process, log = (
            self._start("worker", self.address, *once, package=package, name=name),
            self.folder / f"{name}.log",
        )
        while process.poll() is None and "Registered to" not in log.read_text():
            time.sleep(0.05)
        return process

    def close(self, *processes: subprocess.Popen[bytes]) -> None:
        """End these processes, or all."""
        for process in processes or self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
