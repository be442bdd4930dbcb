"""A workspace of a few lines and a backend that answers at once, for the tests of planning, running and judging.

The toy backend calls the harness in the worker: `harness(check, workspace) -> Finding`. Everything else is real: the
process, its claim, the store, the judge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check, Control, Finding, Scope
from gradproof.core.outcome import Kind, Layer, Outcome, Reach
from gradproof.core.workspace import Finder, Workspace
from gradproof.evidence.record import record

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Evidence

CONTRACT = """\
metadata: {version: "1.0.0", description: toy}
subjects:
  {model: "models.a:VALUE", empty: "models.a:VALUE", mutants: "models.registry:MUTANTS",
   torch: "models.b:VALUE", torch_empty: "models.b:VALUE", torch_mutants: "models.registry:MUTANTS"}
equations: {}
proof_obligations:
  - id: T-1
    type: invariant
    property: toy
    formal: VALUE = 1
    tolerance: [{dtype: fp32, value: "1e-5", metric: linf}]
    layers: {ci: [smt, cpu], release: [smt, cpu, cuda]}
stubs:
  - id: STUB-1
    stub: symbolic.stub
    harness: "symbolic.toy:stub"
    property: a stub
    formats: [fp16]
    bounds: [{name: values, value: 3, reason: toy}]
    mutants: [bug]
kani_harnesses:
  - id: K-1
    obligation: T-1
    property: the model is right
    bound: 2
    strategy: stub_float
    solver: z3
    harness: "symbolic.toy:a_is_one"
    bounds: [{name: micro_batches, value: 2, reason: toy}]
    stubs: [STUB-1]
    mutants: [bug]
    time_limit: 200
  - id: K-2
    obligation: T-1
    property: the wrong model is refuted
    bound: 2
    strategy: exhaustive
    solver: z3
    harness: "symbolic.toy:a_is_two"
    expect: refuted
    bounds: [{name: micro_batches, value: 2, reason: toy}]
    time_limit: 200
falsification_tests:
  - id: F-1
    obligation: T-1
    rule: rule
    prediction: the step is right
    test: run it
    if_fails: bug
    harness: "symbolic.toy:b_is_one"
    bounds: [{name: examples, value: 2, reason: toy}]
    mutants: [bug]
    params: {dtypes: {cpu: [fp32], cuda: [fp32]}}
    time_limit: 200
qa_gate:
  id: GATE-1
  name: toy gate
  checks: [right]
  pass_criteria: all
  falsification: seed the bug
  criteria: {right: [T-1]}
  seeded_bug: bug
"""

HARNESSES = '''\
"""Toy harnesses: they return what a backend would."""

from toy_workspace import answer, refutation

from models import a, b


def note(check, workspace):
    with (workspace.reports.parent / "runs.log").open("a") as f:
        f.write(check.id + "\\n")


def stub(check, workspace):
    note(check, workspace)
    return answer(check)


def a_is_one(check, workspace):
    note(check, workspace)
    value = workspace.resolve(check.subject)
    return answer(check) if value == 1 else refutation(check)


def a_is_two(check, workspace):
    note(check, workspace)
    return answer(check) if a.VALUE == 2 else refutation(check)
'''

RUNS = '''\
"""Toy harnesses that rest on models.b alone."""

from toy_workspace import answer, refutation


def b_is_one(check, workspace):
    with (workspace.reports.parent / "runs.log").open("a") as f:
        f.write(check.id + "\\n")
    value = workspace.resolve(check.subject)
    return answer(check) if value == 1 else refutation(check)
'''

REGISTRY = '''\
"""Toy mutants."""

from dataclasses import dataclass


@dataclass
class Mutant:
    name: str
    obligation: str
    reference: str
    subject: object


MUTANTS = {"bug": Mutant("bug", "T-1", "toy#1", 7)}
'''

WORKER = """\
import sys

from gradproof.execution import methods as backends, worker
from gradproof.core.outcome import Kind

real = backends.run


def run(check, workspace):
    if check.kind is Kind.GATE:
        return real(check, workspace)
    sys.path.append({here!r})
    return workspace.resolve(check.harness)(check, workspace)


backends.run = run
worker.main()
"""


def write_workspace(root: Path) -> Workspace:
    """A fresh toy workspace at `root`."""
    files = {
        "proofs/toy/contract.yaml": CONTRACT.replace("symbolic.toy:b_is_one", "symbolic.runs:b_is_one"),
        "models/__init__.py": "",
        "models/a.py": "VALUE = 1\n",
        "models/b.py": "VALUE = 1\n",
        "models/registry.py": REGISTRY,
        "symbolic/__init__.py": "",
        "symbolic/stub.py": "STUB = 1\n",
        "symbolic/toy.py": HARNESSES.replace("from models import a, b\n", "from models import a\n"),
        "symbolic/runs.py": RUNS,
        "toy_worker.py": WORKER.format(here=str(Path(__file__).parent)),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Workspace(root.resolve(), root.resolve() / "reports")


def worker_command(root: Path) -> list[str]:
    """How the toy worker is started."""
    return [sys.executable, "-P", str(root / "toy_worker.py")]


def runs(root: Path) -> list[str]:
    """Ids of the checks that were run since the last call."""
    log = root / "runs.log"
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(lines)


def control(name: str = "bug", kind: str = "mutant", **changed: Any) -> Control:
    """A control that was killed, except for what is changed."""
    data: dict[str, Any] = {"clause": "T-1", "outcome": Outcome.REFUTED, "killed": True, "reference": "toy#1"}
    return Control(name, kind, **{**data, **changed})


SCOPES = {
    Reach.ALL_INPUTS: Scope(1, ("transitions",), base=1, step=1),
    Reach.BOUNDED: Scope(1, ("micro_batches",), other=1),
    Reach.CHOSEN: Scope(0, other=1),
}
"""What a harness did whose answer has this reach."""


def answer(check: Check, **changed: Any) -> Finding:
    """A HOLDS with all that it needs, except for what is changed; of a solver's proof also why it reaches so far."""
    reach = changed.get("reach", Reach.SAMPLED if check.kind is Kind.TORCH else Reach.BOUNDED)
    if check.kind in (Kind.SMT, Kind.STUB) and reach in SCOPES:
        changed["stats"] = {"scope": asdict(SCOPES[reach]), **changed.get("stats", {})}
    data: dict[str, Any] = {
        "reach": reach,
        "domain": "toy",
        "clauses": dict.fromkeys(check.obligations, "HOLDS") or {"stub": "HOLDS"},
        "covers": [{"name": "reached", "reached": True, "witness": {"x": "1"}}],
        "controls": [control("empty body", "empty_body"), *(control(name) for name in check.mutants)],
    }
    return Finding(Outcome.HOLDS, "every clause held", **{**data, **changed})


def refutation(check: Check, **changed: Any) -> Finding:
    """A REFUTED with all that it needs, except for what is changed."""
    clause = check.obligations[0] if check.obligations else check.id
    data: dict[str, Any] = {
        "counterexample": {"clause": clause, "values": {"x": "7"}, "found_by": "toy"},
        "replays": [{"on": "toy", "reproduced": True, "detail": "broken"}],
    }
    return Finding(Outcome.REFUTED, "x = 7 breaks it", **{**data, **changed})


def check(id_: str = "K-1", **changed: Any) -> Check:
    """A proof of T-1, except for what is changed."""
    data: dict[str, Any] = {
        "kind": Kind.SMT,
        "layer": Layer.SMT,
        "obligations": ("T-1",),
        "title": "toy",
        "harness": "symbolic.toy:a_is_one",
        "subject": "models.a:VALUE",
        "mutants": ("bug",),
        "time_limit": 200.0,
        "params": {"subjects": {"model": "models.a:VALUE", "torch": "models.a:VALUE"}},
    }
    return Check(id=id_, **{**data, **changed})


MEASURED = {"device": "cpu", "dtype": "fp32", "net": "mlp", "n": 4}
"""What a row of a measurement has beside its numbers."""


def recorded(check: Check, finding: Finding, **more: Any) -> Evidence:
    """Evidence of a run, as its readers have it."""
    return taken(record(check, finding, **more))


def taken(data: Any) -> Evidence:
    """Plain data as evidence. A worker, which imports this module, loads no pydantic."""
    from gradproof.core.schemas.evidence import evidence_of

    return evidence_of(data)


def fresh(of: Check, evidence: Evidence, workspace: Workspace) -> tuple[bool, str]:
    """Whether evidence speaks of the claim as it stands, and why not."""
    from gradproof.evidence.store import Store

    return Store(workspace).fresh(of, evidence)


def fault_of(data: Any) -> str:
    """Why data is no evidence, or an empty text."""
    try:
        taken(data)
    except ValueError as error:
        return str(error)
    return ""


@contextmanager
def only(workspace: Workspace) -> Iterator[Workspace]:
    """The workspace as the only one of this process; other workspaces' modules are put back afterwards."""
    held = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("models", "symbolic")}
    finders = [f for f in sys.meta_path if not isinstance(f, Finder)]
    before, sys.meta_path[:] = list(sys.meta_path), finders
    for name in held:
        del sys.modules[name]
    try:
        yield workspace
    finally:
        workspace.leave()
        for name in [n for n in sys.modules if n.partition(".")[0] in ("models", "symbolic")]:
            del sys.modules[name]
        sys.modules.update(held)
        sys.meta_path[:] = before
