"""Contract -> checks, and the policy by which they are judged. Pure: nothing is read, or imported from the workspace.

One check for each stub, each harness, each step proof, each falsification test on each device and dtype, and one that
executes the gate's own falsification. CUDA checks are planned everywhere; without a GPU they are not run.

A contract whose dependency is not discharged is not discharged. It is OPEN and never BROKEN for that reason, even where
the dependency is BROKEN: nothing of its own was refuted, only what it rests on, as with a check and its stub. The
dependency shows its own verdict, and the worst of all is the exit code. A dependency that is not there counts as one
that is not discharged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from gradproof.contract.schema import InputsShape, Least, Required
from gradproof.contract.settings import NONE, PROOFS, REACHES, Demands, demands_of, together
from gradproof.core.check import Bound, Check
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import Exit, Expect, Kind, Layer, Reach

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
    from gradproof.contract.schema import CheckEntry, FalsificationTest, Gate, Harness, StepProof, StubClause
    from gradproof.core.schemas.evidence import Evidence

DEVICES = (Layer.CPU, Layer.CUDA)
DEFAULT_DTYPE = "fp32"
LONGEST = 3600.0


def plan(contract: Contract) -> list[Check]:
    """Every check of a contract, in the contract's order. Raises GradproofError GP210 for an id planned twice."""
    checks = [_stub(contract, row) for row in contract.stubs]
    checks += [_harness(contract, row) for row in contract.harnesses]
    checks += [_step(contract, row) for row in contract.step_proofs]
    for row in contract.falsification_tests:
        checks += [_test(contract, row, device, dtype) for device in DEVICES for dtype in _dtypes(row, device)]
    if contract.gate is not None:
        checks.append(_gate(contract, contract.gate, checks))
    seen: set[str] = set()
    for check in checks:
        if check.id in seen:
            raise GradproofError("GP210", f"check {check.id} is planned twice", "unique ids", "rename one of them")
        seen.add(check.id)
    return checks


def with_stubs(checks: Iterable[Check], names: set[str]) -> list[Check]:
    """The checks of these names and the stubs that they rest on, in the order given."""
    known = {check.id: check for check in checks}
    while more := {d for name in names & known.keys() for d in known[name].depends} - names:
        names = names | more
    return [check for name, check in known.items() if name in names]


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


def _named(row: CheckEntry) -> tuple[str, ...]:
    return getattr(row, "named", ())


def _check(contract: Contract, row: CheckEntry, about: str, **rest: Any) -> Check:
    """A check of an entry. `about`: the subject of the contract that it has where the entry names none.

    The subjects of its obligations come before the contract's, the first obligation's first.
    """
    subjects, named = dict(contract.subjects), _named(row)
    for name in reversed(named):
        subjects.update(contract.obligation(name).subjects.stated())
    fields = {"id": row.id, "text": _text(contract, named, row.raw), **rest}
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


def _stub(contract: Contract, row: StubClause) -> Check:
    lemmas = {"lemmas": row.lemmas} if row.lemmas else {}
    found = _check(
        contract,
        row,
        "",
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
    stubs = [s.raw for name in row.stubs for s in contract.stubs if s.id == name]
    return _check(
        contract,
        row,
        "model",
        kind=kind,
        layer=Layer.CROSSHAIR if kind is Kind.CROSSHAIR else Layer.SMT,
        title=row.property,
        strategy=row.strategy,
        stubs=tuple(row.stubs),
        params=row.params,
        text={**_text(contract, row.named, row.raw), "stubs": stubs},
        depends=tuple(row.stubs),
    )


def _step(contract: Contract, row: StepProof) -> Check:
    return _check(
        contract,
        row,
        "torch",
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
        text=_text(contract, row.named, {**row.raw, "params": params}),
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


SKEW = timedelta(hours=1)


def shortcoming(asked: Least, layer: Layer, proofs: Sequence[tuple[Check, Reach | None]]) -> str:
    """Why proofs that hold do not reach as far as is asked; an empty text where one of them does.

    Bounds are asked of the layers of proofs, and count where a check states a bound of that name.
    """
    wanted = asked.reach.get(layer)
    far = [(c, r) for c, r in proofs if wanted is None or (r is not None and REACHES.index(r) <= REACHES.index(wanted))]
    if not far:
        best = min((r for _, r in proofs if r is not None), key=REACHES.index, default="not stated")
        return f"its reach is {best}, and {wanted} is asked for"
    for name, least in asked.bounds.items() if layer in PROOFS else ():
        held = [b.value for c, r in far for b in c.bounds if b.name == name]
        everything = any(r is Reach.ALL_INPUTS for _, r in far)
        if not everything and max(held, default=0) < least:
            return f"its largest bound {name} is {max(held, default=0)}, and {least} is asked for"
    return ""


def outdated(evidence: Evidence, layer: Layer, demands: Demands) -> str:
    """Why evidence of that date does not count; an empty text where it does. A date ahead of the clock never counts."""
    if demands.now is None:
        return ""
    if evidence.ended > demands.now + SKEW:
        return f"it is dated {evidence.finished_at}, ahead of this machine's clock"
    if layer is Layer.CUDA and demands.gpu_max_age is not None and demands.now - evidence.ended > demands.gpu_max_age:
        return f"it is of {evidence.finished_at}, and at most {demands.gpu_max_age.days} days are allowed"
    return ""


@dataclass(frozen=True)
class Clause:
    """An obligation, the layers that must discharge it, and the subjects that it is about beside the contract's."""

    id: str
    layers: tuple[Layer, ...]
    subjects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateCriterion:
    """A named part of the gate: met when all its obligations are discharged."""

    name: str
    obligations: tuple[str, ...]


NOTHING, NO_INPUTS = Required(), InputsShape()


@dataclass(frozen=True)
class KnownLemma:
    """A lemma that there is: `solvers`, `exhaustion` or `derivation`, and the lemmas that a derivation rests on."""

    method: str
    premises: tuple[str, ...]


@cache
def known_lemmas() -> Mapping[str, KnownLemma]:
    """Every lemma by its name, in the order of the table."""
    from gradproof.rounding.step_contracts import LEMMAS, method, premises

    return {name: KnownLemma(method(lemma), premises(lemma)) for name, lemma in LEMMAS.items()}


@dataclass(frozen=True)
class Policy:
    """What is demanded. `restricted`: only the given checks are judged, on the layers in `demanded`.

    `justification`: what must stand behind the proofs of some strategies. `dependencies`: how each contract that this
    one builds on stands, None where it is not there; one that is not MET keeps the gate open. `demands`: what is asked
    and waived beyond the contract. `inputs`: what some harness must free. `lemmas`: those that there are, so that
    judging asks for nothing.
    """

    profile: str
    clauses: tuple[Clause, ...]
    criteria: tuple[GateCriterion, ...] = ()
    gate_check: str | None = None
    restricted: bool = False
    demanded: frozenset[Layer] = frozenset(Layer)
    justification: Required = NOTHING
    dependencies: Mapping[str, Exit | None] = field(default_factory=dict)
    demands: Demands = NONE
    inputs: InputsShape = NO_INPUTS
    lemmas: Mapping[str, KnownLemma] = field(default_factory=known_lemmas)


def policy_of(contract: Contract, profile: str, more: Demands = NONE) -> Policy:
    """What the contract's gate demands in a profile, `ci` or `release`, with what a release demands beside it.

    The clock of `more` is the one by which evidence and waivers are judged; without one neither is.
    """
    gate = contract.gate
    own = NONE if gate is None else demands_of(gate.least, gate.gpu_max_age_days, gate.waivers)
    demands = together([own, more], more.now)
    clauses = _clauses(contract, profile, demands)
    if gate is None:
        return Policy(profile, clauses, demands=demands, inputs=contract.inputs)
    names = dict.fromkeys([*gate.checks, *gate.criteria])
    criteria = tuple(GateCriterion(name, tuple(gate.criteria.get(name, ()))) for name in names)
    return Policy(
        profile, clauses, criteria, falsification_id(gate), justification=gate.require or NOTHING, demands=demands,
        inputs=contract.inputs,
    )  # fmt: skip


def _clauses(contract: Contract, profile: str, demands: Demands) -> tuple[Clause, ...]:
    """Each obligation with the layers that must discharge it: the contract's own, and those that a demand needs.

    A least reach needs its layer, but for a GPU's where the profile asks for no GPU at all. A least bound needs a
    layer of proofs: the first that has a check of the obligation, else the solver's.
    """
    least = demands.least
    own = {o.id: o.layers.stated().get(profile, ()) for o in contract.obligations}
    named = {name: [*layers, *least.get(name, Least()).layers] for name, layers in own.items()}
    gpu = any(Layer.CUDA in layers for layers in named.values())
    for name, asked in least.items():
        layers = named.setdefault(name, [])
        layers += [layer for layer in asked.reach if gpu or layer is not Layer.CUDA]
        if asked.bounds and not set(layers) & set(PROOFS):
            held = {check.layer for check in plan(contract) if name in check.obligations}
            layers.append(next((layer for layer in PROOFS if layer in held), Layer.SMT))
    return tuple(Clause(o.id, tuple(dict.fromkeys(named[o.id])), o.subjects.stated()) for o in contract.obligations)
