"""`python -m tests.bench_speed`: how long the commands take that people wait for, against a bare interpreter.

A workspace of 500 checks is made with evidence for each of them, written through the store as a worker would write it.
Every command is started several times and the best time counts, so that a machine that is busy meanwhile counts less.
The first start compiles the package, as an installer does; it keeps the code in a folder of its own.
Each bar is shown with what was measured. What the pytest plugin costs a suite that does not use it is the difference of
medians of CPU time of runs in turn, with the plugin and without. Nothing here is a test, and nothing is asserted.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradproof.contract.model import load
from gradproof.core.check import Check, Control, Finding, Scope
from gradproof.core.outcome import Kind, Outcome, Reach
from gradproof.core.schemas.evidence import evidence_of
from gradproof.core.workspace import PACKAGE, Workspace, sha256_of
from gradproof.evidence.environment import environment
from gradproof.evidence.record import record
from gradproof.evidence.store import Store
from gradproof.verdict.plan import plan

CHECKS, SHARE = 500, 125  # checks in all, and in one contract
FILES = 40  # files of the engine that one claim names: about as many as a proof rests on
HEAD = """\
metadata: {{version: "1.0.0", description: "contract {place} of a workspace with many checks"}}
subjects:
  model: "models.a:VALUE"
  empty: "models.a:VALUE"
  mutants: "models.registry:MUTANTS"
  torch: "models.a:VALUE"
  torch_empty: "models.a:VALUE"
  torch_mutants: "models.registry:MUTANTS"
equations: {{}}
proof_obligations:
"""
CLAUSE = """\
  - id: T-{n}
    type: invariant
    property: the accumulated gradient of window {n} is the mean of its micro-batch gradients
    formal: "G = (1/N) sum g_i, {n}"
    tolerance: [{{dtype: fp32, value: "1e-5", metric: linf}}]
    layers: {{ci: [smt], release: [smt]}}
"""
HARNESS = """\
  - id: K-{n}
    obligation: T-{group}
    property: for every gradient, the model accumulates as clause {group} says, harness {n}
    bound: 4
    strategy: exhaustive
    solver: z3
    harness: "symbolic.toy:harness"
    bounds:
      - {{name: micro_batches, value: 4, reason: "the contract's own bound; one more adds no kind of event"}}
      - {{name: paths, value: 64, reason: the branches of four micro-batches are 40 paths}}
    mutants: [bug]
    time_limit: 20
"""
GATE = """\
qa_gate:
  id: GATE-{place}
  name: gate {place}
  checks: [right]
  pass_criteria: all
  falsification: seed the bug
  seeded_bug: bug
  criteria: {{right: [{ids}]}}
"""
GROUP = 5  # harnesses of one obligation


@dataclass(frozen=True)
class Bar:
    """A command line, the most seconds it should take beyond `bare` starts of the interpreter, and what it says."""

    name: str
    arguments: tuple[str, ...]
    limit: float
    bare: int = 0


BARS = (
    Bar("--help", ("--help",), 0.1, bare=1),
    Bar("list", ("list",), 0.3),
    Bar("explain GP101", ("explain", "GP101"), 0.3),
    Bar("explain CHECK", ("explain", "KANI-GA-001"), 0.3),
)
MANY = (
    Bar(f"gate, {CHECKS} checks", ("gate",), 2.0),
    Bar(f"report, {CHECKS} checks", ("report", "--format", "text={reports}/said.txt"), 3.0),
)


def contract(place: int, first: int) -> str:
    """A contract of SHARE harnesses, numbered from `first`."""
    numbers = range(first, first + SHARE)
    groups = sorted({n // GROUP for n in numbers})
    parts = [HEAD.format(place=place), *(CLAUSE.format(n=g) for g in groups), "kani_harnesses:\n"]
    parts += [HARNESS.format(n=n, group=n // GROUP) for n in numbers]
    return "".join([*parts, GATE.format(place=place, ids=", ".join(f"T-{g}" for g in groups))])


def workspace(root: Path) -> Workspace:
    """A workspace of CHECKS checks and their evidence below `root`."""
    texts = {f"proofs/many-{i}-v1/contract.yaml": contract(i, i * SHARE) for i in range(CHECKS // SHARE)}
    texts |= {"models/__init__.py": "", "models/a.py": "VALUE = 1\n", "symbolic/__init__.py": ""}
    texts |= {"symbolic/toy.py": "def harness(check, workspace):\n    return None\n"}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    made = Workspace(root.resolve(), root.resolve() / "reports")
    store = Store(made)
    for path in made.contracts():
        for check in plan(load(path)):
            store.write(
                evidence_of(record(check, finding(check), inputs=claim(made), environment=environment(), seconds=1.0))
            )
    return made


def claim(made: Workspace) -> dict[str, Any]:
    """What every check is said to rest on."""
    names = {"models.a": "ws:models/a.py", "symbolic.toy": "ws:symbolic/toy.py"}
    files = {key: sha256_of(made.root / key[3:]) for key in names.values()}
    engine = sorted(PACKAGE.rglob("*.py"))[:FILES]
    files |= {f"gp:{p.relative_to(PACKAGE).as_posix()}": sha256_of(p) for p in engine}
    names |= {f"models.absent_{i}": "" for i in range(20)}
    return {"files": files, "imports": [{"path": ["ws:.", "start"], "names": names}]}


def finding(check: Check) -> Finding:
    """A HOLDS with its controls and covers."""
    if check.kind is Kind.GATE:
        return Finding(Outcome.HOLDS, "the gate turned red", reach=None)
    controls = [_killed("empty body", "empty_body"), *(_killed(name, "mutant") for name in check.mutants)]
    return Finding(
        Outcome.HOLDS,
        "12 paths, 310 checks, none falsifiable",
        reach=Reach.BOUNDED,
        domain="|g| <= 1, four micro-batches",
        clauses=dict.fromkeys(check.obligations, "HOLDS"),
        covers=[{"name": n, "reached": True, "witness": {"x": "1/2"}} for n in ("second window", "clip branch")],
        controls=controls,
        stats={"paths": 12, "queries": 310, "scope": asdict(Scope(8, ("micro_batches",), other=310))},
    )


def _killed(name: str, kind: str) -> Control:
    example = {"clause": "T-1", "values": {"g_1": "1", "g_2": "-1/2"}, "found_by": "solver"}
    replays = [{"on": "Python model, exact rationals", "reproduced": True, "detail": "broken"}]
    return Control(name, kind, "T-1", Outcome.REFUTED, True, "toy#1", "refuted", example, replays)


def best(command: Sequence[str], folder: Path, rounds: int, compiled: Path) -> float:
    """The least of several wall times of a command, in seconds, after a start that compiles into `compiled`."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
    times = []
    for _ in range(1 + rounds):
        clock = time.perf_counter()
        subprocess.run(command, cwd=folder, capture_output=True, check=False, env=environment)
        times.append(time.perf_counter() - clock)
    return min(times[1:])


def measure(bars: Sequence[Bar], folder: Path, bare: float, rounds: int, compiled: Path) -> None:
    """Print each bar with what was measured."""
    for bar in bars:
        words = [a.format(reports=folder / "reports") for a in bar.arguments]
        took = best([sys.executable, "-m", "gradproof", *words], folder, rounds, compiled)
        limit = bar.limit + bar.bare * bare
        state = "within" if took <= limit else "ABOVE"
        print(f"{bar.name:<20} {took:7.3f} s  {took / bare:5.1f} bare starts  {state} {limit:.3f} s")


STRANGER = "import pytest\n\n\n@pytest.mark.parametrize('n', range(200))\ndef test_it(n):\n    assert n >= 0\n"
"""A suite of somebody who has the plugin installed and does not use it."""
PLUGIN_LIMIT = 0.05


def plugin(folder: Path, rounds: int) -> tuple[float, float]:
    """Medians of the CPU seconds of a stranger's suite, without the pytest plugin and with it, in turn."""
    (folder / "test_stranger.py").write_text(STRANGER, encoding="utf-8")
    base = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    commands = ([*base, "-p", "no:gradproof"], base)
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(1 + rounds):
        for command, taken in zip(commands, times, strict=True):
            began = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            subprocess.run(command, cwd=folder, capture_output=True, check=True)
            taken += [sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - began] if i else []  # the first compiles
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measure and print."""
    parser = ArgumentParser(prog="tests.bench_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="starts of each command")
    rounds = parser.parse_args().rounds
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        compiled = Path(cache)
        bare = best([sys.executable, "-c", "pass"], here, 2 * rounds, compiled)
        print(f"{'bare interpreter':<20} {bare:7.3f} s")
        measure(BARS, here, bare, rounds, compiled)
        made = workspace(Path(folder))
        measure(MANY, made.root, bare, rounds, compiled)
        (Path(folder) / "suite").mkdir()
        without, beside = plugin(Path(folder) / "suite", max(7, rounds))
        state = "within" if beside - without <= PLUGIN_LIMIT else "ABOVE"
        costs = f"{1000 * (beside - without):+.0f} ms, {beside / without:.3f} times"
        print(f"{'pytest, 200 tests':<20} {without:7.3f} s, {beside:.3f} s with the plugin: {costs}  {state} 50 ms")


if __name__ == "__main__":
    main()
