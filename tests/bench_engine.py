"""`python -m tests.bench_engine`: two dask workers of one thread against one, and what the engine costs a check.

A workspace is made whose checks each compute for a few seconds, and a scheduler with worker processes is started on
this machine. Each side runs every check, from the first look at the scheduler to the last evidence. The sides take
turns, and the sums over all rounds count, so that a machine that is busy meanwhile slows both. `--out docs/scale.md`
writes the figures into that page, with the plan that follows from them. Nothing is asserted.
"""

from __future__ import annotations

import json
import math
import operator
import os
import pkgutil
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from gradproof.core.check import Check
from gradproof.core.schemas.evidence import Evidence, evidence_of
from gradproof.core.workspace import Workspace, reference
from gradproof.evidence.store import Store, written
from gradproof.execution import engine_remote
from gradproof.execution.engine_dask import DaskWorkers
from gradproof.execution.pool import Pool
from gradproof.session import Options, Session
from tests.clusters import Cluster, write_slow_workspace

WORK = "sum(i * i for i in range({}))"
TASKS = 300
BEGIN, END = (
    "<!-- measured: python -m tests.bench_engine --out docs/scale.md -->",
    "<!-- the end of what was measured -->",
)
PLANNED, MACHINES = 10_000, 100
Row = tuple[str, str]


def timed(
    cluster: Cluster, workspace: Workspace, checks: Sequence[Check], workers: int
) -> tuple[float, dict[str, Evidence]]:
    """Seconds of a run, and its evidence. Raises RuntimeError where a check is not as expected."""
    store = Store(workspace)
    processes = [cluster.worker(f"{workers}-{n}-{time.monotonic_ns()}") for n in range(workers)]
    clock = time.monotonic()
    try:
        pool = Pool(workspace, engine=DaskWorkers(cluster.address, workspace))
        pool.refused = lambda check, evidence: store.fresh(check, evidence)[1]
        result = pool.run(checks, store.write)
        seconds = time.monotonic() - clock
    finally:
        cluster.close(*processes)
    outcomes = {str(evidence.finding.outcome) for evidence in result.evidence.values()}
    if outcomes != {"HOLDS", "REFUTED"} or not result.complete:
        raise RuntimeError(f"outcomes {sorted(outcomes)}")
    return seconds, result.evidence


def of_a_task(cluster: Cluster) -> tuple[float, float]:
    """Milliseconds on the clock, and of this process's CPU, that a job takes which does nothing; one after another."""
    from distributed import Client

    worker = cluster.worker("tasks")
    with Client(cluster.address, set_as_default=False) as client:
        client.submit(abs, -1, pure=False).result()
        clock, own = time.monotonic(), time.process_time()
        for n in range(TASKS):
            found = client.submit(pkgutil.resolve_name, "operator:neg", pure=False)
            client.submit(operator.call, found, n, pure=False).result()
        seconds, spent = time.monotonic() - clock, time.process_time() - own
    cluster.close(worker)
    return 1000 * seconds / TASKS, 1000 * spent / TASKS


def of_the_client(workspace: Workspace, check: Check, evidence: Evidence) -> float:
    """Milliseconds of this process's CPU for reading, comparing and storing the evidence of one check."""
    store, text = Store(workspace), written(evidence)
    own = time.process_time()
    for _ in range(TASKS):
        read = evidence_of(json.loads(text))
        store.fresh(check, read)
        store.write(read)
    return 1000 * (time.process_time() - own) / TASKS


def of_the_workspace(root: Path) -> list[Row]:
    """Bytes of the archive, and what packing, unpacking and comparing it take."""
    with tempfile.TemporaryDirectory() as folder:
        files, marks = sum(1 for _ in engine_remote.shipped(root)), [time.process_time()]
        archive = engine_remote.packed(root)
        marks.append(time.process_time())
        place = engine_remote.unpacked(archive, Path(folder))
        marks.append(time.process_time())
        engine_remote.name_of(place)
        marks.append(time.process_time())
    packing, unpacking, comparing = (b - a for a, b in pairwise(marks))
    return [
        ("this repository as an archive, to each worker once", f"{len(archive.data) / 1e6:.1f} MB, {files} files"),
        ("to pack it, once a run (CPU)", f"{packing:.2f} s"),
        ("to unpack it, once a worker (CPU)", f"{unpacking:.2f} s"),
        ("to compare the copy with its name, once a check (CPU)", f"{comparing:.2f} s"),
    ]


def of_stored(folder: Path) -> dict[str, float]:
    """Of the evidence below a folder of reports: how many checks, their mean seconds and bytes, the longest."""
    places = sorted(folder.glob("evidence/*/*.json"))
    seconds = [float(json.loads(place.read_text(encoding="utf-8"))["seconds"]) for place in places]
    if not seconds:
        raise SystemExit(f"no evidence below {folder}: run gradproof verify, or name other reports with --evidence")
    sizes = [place.stat().st_size for place in places]
    return {"checks": len(places), "mean": mean(seconds), "longest": max(seconds), "bytes": mean(sizes)}


def plan(found: dict[str, float], client: float, archive: float) -> list[Row]:
    """What PLANNED checks on MACHINES machines take. `client`: milliseconds of its CPU a check; `archive`: MB."""
    work, feed = PLANNED * found["mean"], PLANNED * client / 1000
    rows = []
    for threads in (1, 8):
        share = work / (MACHINES * threads)
        bound = max(share, feed, found["longest"])
        name = {share: "the work", feed: "the client", found["longest"]: "the longest check"}[bound]
        rows.append((
            f"{PLANNED:,} checks, {MACHINES} machines with {threads} thread{'s' * (threads > 1)}",
            f"{math.ceil(bound)} s ({name}); the work {share:.0f} s, the client {feed:.0f} s, "
            f"the longest check {found['longest']:.0f} s",
        ))  # fmt: skip
    return [
        ("work in all", f"{work / 3600:.1f} h of one thread"),
        *rows,
        ("sent to the workers, and back", f"{archive * MACHINES:.0f} MB, and {PLANNED * found['bytes'] / 1e6:.0f} MB"),
    ]


def table(rows: Sequence[Row]) -> str:
    """Rows as Markdown."""
    return "\n".join(["| measured | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def measured(given: Any) -> list[Row]:
    """Every figure, printed as it is found."""
    rows: list[Row] = []

    def note(name: str, value: str) -> None:
        rows.append((name, value))
        print(f"{name}: {value}", flush=True)

    spent_on = {1: 0.0, 2: 0.0}
    with tempfile.TemporaryDirectory(prefix="gradproof-bench-") as folder:
        workspace = write_slow_workspace(Path(folder) / "workspace", given.checks, WORK.format(given.size))
        checks = Session(Options(workspace=workspace.root)).checks
        (Path(folder) / "cluster").mkdir()
        with Cluster(Path(folder) / "cluster") as cluster:
            for workers in (1, 2) * given.rounds:
                seconds, evidence = timed(cluster, workspace, checks, workers)
                spent_on[workers] += seconds
                print(f"{workers} workers, {len(checks)} checks: {seconds:.1f} s", flush=True)
            load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
            one, two = (spent_on[workers] / given.rounds for workers in (1, 2))
            ratio = f"{one / two:.2f} times as fast as one ({two:.1f} s, {one:.1f} s; {load})"
            note(f"two workers with one thread, {len(checks)} checks", ratio)
            clock, spent = of_a_task(cluster)
        client = of_the_client(workspace, checks[0], evidence[checks[0].id])
    note("a job that does nothing, there and back", f"{clock:.0f} ms, of which {spent:.1f} ms are the client's CPU")
    note("evidence read, compared and stored (client's CPU)", f"{client:.1f} ms a check")
    for row in of_the_workspace(root := reference() or Path.cwd()):
        note(*row)
    found = of_stored(given.evidence or root / "reports")
    note(
        f"a check of this repository, mean of {found['checks']}",
        f"{found['mean']:.1f} s and {found['bytes'] / 1000:.0f} kB of evidence; the longest {found['longest']:.0f} s",
    )
    for row in plan(found, client + spent, float(rows[3][1].split()[0])):
        note(*row)
    return rows


def main() -> None:
    """Measure, print, and write the page."""
    parser = ArgumentParser(prog="tests.bench_engine", description=__doc__)
    parser.add_argument("--checks", type=int, default=11)
    parser.add_argument("--size", type=int, default=3_000_000, help="terms that each path of each subject sums")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--evidence", type=Path, help="reports with evidence of this repository's checks")
    parser.add_argument("--out", type=Path, help="write the figures into this page")
    given = parser.parse_args()
    rows = measured(given)
    if given.out is not None:
        head, _, rest = given.out.read_text(encoding="utf-8").partition(BEGIN)
        given.out.write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
