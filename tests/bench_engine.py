"""`python -m tests.bench_engine`: two dask workers of one thread against one, and what the engine costs a check.

A workspace is made whose checks each compute for a few seconds, and a scheduler with worker processes is started on
this machine. Each side runs every check, from the first look at the scheduler to the last evidence; the sides take
turns, and the best of each counts, so that a machine that is busy meanwhile counts less. The figures of docs/scale.md
are the other lines. Nothing here is a test, and nothing is asserted.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser
from itertools import pairwise
from pathlib import Path

from gradproof.core.check import Check
from gradproof.core.workspace import Workspace, reference
from gradproof.evidence.store import Store
from gradproof.execution import engine_remote
from gradproof.execution.engine_dask import DaskWorkers
from gradproof.execution.local import Worker
from gradproof.execution.pool import Pool
from gradproof.session import Options, Session
from tests.clusters import Cluster, write_slow_workspace

WORK = "sum(i * i for i in range({}))"
TASKS = 300


def timed(cluster: Cluster, workspace: Workspace, checks: list[Check], workers: int) -> tuple[float, float, int]:
    """Seconds of a run, seconds of CPU time that this process spent on it, and bytes of the evidence."""
    store = Store(workspace)
    processes = [cluster.worker(f"{workers}-{n}-{time.monotonic_ns()}") for n in range(workers)]
    clock, own = time.monotonic(), time.process_time()
    try:
        pool = Pool(workspace, engine=DaskWorkers(cluster.address, workspace))
        pool.refused = lambda check, evidence: store.fresh(check, evidence)[1]
        places: list[Path] = []
        result = pool.run(checks, lambda evidence: places.append(store.write(evidence)))
        seconds, spent = time.monotonic() - clock, time.process_time() - own
    finally:
        cluster.close(*processes)
    outcomes = {str(evidence.finding.outcome) for evidence in result.evidence.values()}
    if outcomes != {"HOLDS", "REFUTED"} or len(places) != len(checks):
        raise RuntimeError(f"{len(places)} of {len(checks)} checks, {sorted(outcomes)}")
    return seconds, spent, sum(place.stat().st_size for place in places)


def of_a_task(cluster: Cluster) -> float:
    """Seconds that one task takes that does nothing, one after the other: client, scheduler, worker and back."""
    from distributed import Client

    worker = cluster.worker("tasks")
    with Client(cluster.address, set_as_default=False) as client:
        client.submit(abs, -1, pure=False).result()
        clock = time.monotonic()
        for n in range(TASKS):
            client.submit(abs, -n, pure=False).result()
        seconds = (time.monotonic() - clock) / TASKS
    cluster.close(worker)
    return seconds


def of_the_workspace(root: Path) -> str:
    """Bytes of the archive, and what packing, unpacking and comparing it take."""
    with tempfile.TemporaryDirectory() as folder:
        marks, files = [time.monotonic()], sum(1 for _ in engine_remote.shipped(root))
        archive = engine_remote.packed(root)
        marks.append(time.monotonic())
        place = engine_remote.unpacked(archive, Path(folder))
        marks.append(time.monotonic())
        engine_remote.name_of(place)
        marks.append(time.monotonic())
    packing, unpacking, comparing = (b - a for a, b in pairwise(marks))
    return (
        f"{files} files, {len(archive.data):,} bytes; {packing:.2f} s to pack, {unpacking:.2f} s to unpack, "
        f"{comparing:.3f} s to compare at each use"
    )


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(prog="tests.bench_engine", description=__doc__)
    parser.add_argument("--checks", type=int, default=12)
    parser.add_argument("--size", type=int, default=3_000_000, help="terms that each path of each subject sums")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    best: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="gradproof-bench-") as folder:
        home = Path(folder)
        workspace = write_slow_workspace(home / "workspace", given.checks, WORK.format(given.size))
        checks = Session(Options(workspace=workspace.root)).checks
        (home / "cluster").mkdir()
        with Cluster(home / "cluster") as cluster:
            for _ in range(given.rounds):
                for workers in (1, 2):
                    seconds, spent, size = timed(cluster, workspace, checks, workers)
                    best[workers] = min(seconds, best.get(workers, seconds))
                    each = f"{spent / len(checks):.3f} s of this process a check, {size // len(checks):,} bytes back"
                    print(f"{workers} worker(s): {len(checks)} checks in {seconds:6.1f} s; {each}", flush=True)
            print(f"two workers are {best[1] / best[2]:.2f} times as fast as one (load {os.getloadavg()[0]:.0f})")
            print(f"a task that does nothing: {of_a_task(cluster) * 1000:.1f} ms", flush=True)
        alone = min((_seconds(check, workspace) for check in checks[:2]), default=0.0)
        print(f"one check alone, in a process of its own: {alone:.1f} s")
    root = reference()
    if root is not None:
        print(f"the reference workspace: {of_the_workspace(root)}")


def _seconds(check: Check, workspace: Workspace) -> float:
    clock = time.monotonic()
    Worker(check, workspace, check.time_limit).run()
    return time.monotonic() - clock


if __name__ == "__main__":
    main()
