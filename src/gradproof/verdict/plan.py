"""Contract -> checks. Pure: no file is read and nothing is imported from the workspace.

One check for each stub, each harness, each step proof, each falsification test on each device and dtype, and one that
executes the gate's own falsification. CUDA checks are planned everywhere; without a GPU they are not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Bound, Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Expect, Kind, Layer

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
    from gradproof.contract.schema import CheckEntry, FalsificationTest, Gate, Harness, StepProof, Stub

DEVICES = (Layer.CPU, Layer.CUDA)
DEFAULT_DTYPE = "fp32"
LONGEST = 3600.0


def plan(contract: Contract, *, devices: Sequence[Layer] = DEVICES) -> list[Check]:
    """Every check of a contract, in the contract's order. Raises GradproofError GP210 for an id planned twice."""
    checks = [_stub(contract, row) for row in contract.stubs]
    checks += [_harness(contract, row) for row in contract.harnesses]
    checks += [_step(contract, row) for row in contract.step_proofs]
    for row in contract.falsification_tests:
        checks += [_test(contract, row, device, dtype) for device in devices for dtype in _dtypes(row, device)]
    if contract.gate is not None:
        checks.append(_gate(contract, contract.gate, checks))
    seen: set[str] = set()
    for check in checks:
        if check.id in seen:
            raise GradproofError("GP210", f"check {check.id} is planned twice", "unique ids", "rename one of them")
        seen.add(check.id)
    return checks


def falsification_id(gate: Gate) -> str:
    """Id of the check that executes the gate's own falsification."""
    return f"{gate.id}/falsification"


def _text(contract: Contract, names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The clauses that a check speaks about, in full, and the tolerances of the others, which harnesses may use."""
    clauses = []
    for obligation in contract.obligations:
        rows = [vars_of(t) for t in obligation.tolerance]
        if obligation.id in names:
            clauses.append({**obligation.raw, "id": obligation.id, "tolerance": rows})
        elif rows:
            clauses.append({"id": obligation.id, "tolerance": rows})
    return {"contract": contract.id, "obligations": clauses, "row": row}


def vars_of(tolerance: Any) -> dict[str, str]:
    """A tolerance as plain data."""
    return {key: getattr(tolerance, key) for key in ("dtype", "value", "metric", "domain", "role")}


def _about(contract: Contract, row: CheckEntry) -> dict[str, str]:
    """The contract's subjects, those of the row's obligations before them, the first obligation's first."""
    about = dict(contract.subjects)
    for name in reversed(_named(row)):
        about.update(contract.obligation(name).subjects.stated())
    return about


def _named(row: CheckEntry) -> tuple[str, ...]:
    return getattr(row, "named", ())


def _check(contract: Contract, row: CheckEntry, about: str, raw: Mapping[str, Any], **rest: Any) -> Check:
    """A check of an entry. `about`: the subject of the contract that it has where the entry names none."""
    subjects, named = _about(contract, row), _named(row)
    fields = {"id": row.id, "text": _text(contract, named, raw), **rest}
    return Check(
        obligations=named,
        harness=row.harness,
        subject=row.subject or subjects.get(about, ""),
        expect=row.expect,
        bounds=tuple(Bound(b.name, b.value, b.reason) for b in row.bounds),
        mutants=tuple(row.mutants),
        assumptions=tuple(row.assumptions),
        time_limit=row.time_limit,
        **fields | {"params": {**rest["params"], "subjects": subjects}},
    )


def _stub(contract: Contract, row: Stub) -> Check:
    lemmas = {"lemmas": row.lemmas} if row.lemmas else {}
    found = _check(
        contract,
        row,
        "",
        row.raw,
        kind=Kind.STUB,
        layer=Layer.SMT,
        title=row.property,
        strategy="exhaustive",
        params={**row.params, "stub": row.stub, "formats": row.formats, **lemmas},
        text={"contract": contract.id, "row": row.raw},
    )
    return replace(found, subject=row.subject or row.stub)


def _harness(contract: Contract, row: Harness) -> Check:
    kind = Kind.CROSSHAIR if row.solver == "crosshair" else Kind.SMT
    more = {} if row.reach is None else {"reach": str(row.reach)}
    stubs = [s.raw for name in row.stubs for s in contract.stubs if s.id == name]
    return _check(
        contract,
        row,
        "model",
        row.raw,
        kind=kind,
        layer=Layer.CROSSHAIR if kind is Kind.CROSSHAIR else Layer.SMT,
        title=row.property,
        strategy=row.strategy,
        stubs=tuple(row.stubs),
        params={**row.params, **more},
        text={**_text(contract, row.named, row.raw), "stubs": stubs},
        depends=tuple(row.stubs),
    )


def _step(contract: Contract, row: StepProof) -> Check:
    return _check(
        contract,
        row,
        "torch",
        row.raw,
        kind=Kind.TRACE,
        layer=Layer.STEP,
        title=row.property,
        strategy="recorded step",
        params=row.params.stated(),
    )


def _dtypes(row: FalsificationTest, device: Layer) -> list[str]:
    """The dtypes that a test names for a device; a test that names none at all runs on the CPU in fp32."""
    named = row.params.get("dtypes")
    if not isinstance(named, Mapping):
        return [DEFAULT_DTYPE] if device is Layer.CPU else []
    return [str(dtype) for dtype in named.get(str(device), ())]


def _test(contract: Contract, row: FalsificationTest, device: Layer, dtype: str) -> Check:
    params = {k: v for k, v in row.params.items() if k != "dtypes"}
    return _check(
        contract,
        row,
        "torch",
        {**row.raw, "params": params},
        id=f"{row.id}@{device}-{dtype}",
        kind=Kind.TORCH,
        layer=device,
        title=row.prediction or row.rule,
        strategy="property test",
        params={**params, "device": str(device), "dtype": dtype},
    )


def _gate(contract: Contract, gate: Gate, checks: Sequence[Check]) -> Check:
    """Re-runs, on each seeded bug, every proof and every fp32 run on the CPU that is meant to kill it."""
    seeded = [_seeded(check, bug) for bug in gate.seeded_bug for check in checks if _kills(check, bug)]
    params = {
        "seeded_bugs": gate.seeded_bug,
        "criteria": gate.criteria,
        "subchecks": [check.to_json() for check in seeded],
    }
    return Check(
        id=falsification_id(gate),
        kind=Kind.GATE,
        layer=Layer.SMT,
        obligations=(),
        title=f"the gate turns red on its own falsification: {gate.falsification}",
        harness="",
        subject=next((check.subject for check in seeded), ""),
        strategy="seeded bug",
        params=params,
        text={"contract": contract.id, "row": gate.raw},
        depends=tuple(dict.fromkeys(name for check in seeded for name in check.depends)),
        time_limit=min(LONGEST, sum(check.time_limit for check in seeded) or 60.0),
    )


def _kills(check: Check, bug: str) -> bool:
    if check.expect is not Expect.HOLDS or not bug or bug not in check.mutants:
        return False
    return check.kind in (Kind.SMT, Kind.TRACE) or (
        check.layer is Layer.CPU and check.params.get("dtype") == DEFAULT_DTYPE
    )


def _seeded(check: Check, bug: str) -> Check:
    """The check with the bug in place of its subject, and without controls of its own."""
    key = "torch_mutants" if check.kind in (Kind.TRACE, Kind.TORCH) else "mutants"
    registry = check.params.get("mutants") or check.params["subjects"].get(key, "")
    return replace(check, subject=f"{registry}[{bug}]", mutants=(), params={**check.params, "controls_off": True})
