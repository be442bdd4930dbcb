"""YAML -> Contract. Every mistake has a code and file:line:col, and all of them are reported at once.

`load` is the only entry. The work is done in three steps, each of which goes on after a mistake so that nothing
stays hidden behind the first: yaml_reader (YAML and duplicate keys), diagnostics (keys and types, from the
shapes in contract_schema), contract_rules (what clauses say about each other).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradproof.contract.diagnostics import shape, uses_ours
from gradproof.contract.requirements import NONE, Demands, demands_of
from gradproof.contract.rules import check, tolerate
from gradproof.contract.schema import (
    CheckShape,
    FieldHarness,
    FieldObligation,
    FieldRoot,
    FieldTest,
    OursGate,
    OursHarness,
    OursObligation,
    OursRoot,
    OursTest,
    StepShape,
    StubShape,
    exact,
)
from gradproof.contract.yaml_reader import ContractErrors, Node, Problem, places, read
from gradproof.core.check import Bound, Tolerance
from gradproof.core.outcome import Expect, Layer

__all__ = [
    "Contract", "ContractErrors", "Equation", "FalsificationTest", "Gate", "Harness", "Metadata", "Obligation", "Phase",
    "Problem", "StepProof", "Stub", "exact", "load",
]  # fmt: skip

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Metadata:
    """Who wrote the contract, and on which contracts it builds."""

    version: str
    description: str
    created: str = ""
    author: str = ""
    references: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    raw: Raw = field(default_factory=dict)


@dataclass(frozen=True)
class Equation:
    """A formula with its invariants and assumptions."""

    name: str
    formula: str
    domain: str = ""
    codomain: str = ""
    invariants: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    raw: Raw = field(default_factory=dict)


@dataclass(frozen=True)
class Obligation:
    """One clause. `layers` gives, for each gate profile, the layers that must discharge it.

    `subjects` names the model, the PyTorch step and their controls that it is about, where they are not the contract's.
    """

    id: str
    type: str
    property: str
    formal: str = ""
    applies_to: str = "all"
    tolerances: tuple[Tolerance, ...] = ()
    assumptions: tuple[str, ...] = ()
    layers: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    raw: Raw = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """A phase of the kernel and what holds after it."""

    name: str
    description: str = ""
    invariant: str = ""
    raw: Raw = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    """What every check of a contract states. `harness` is empty when it names nothing that can be run."""

    id: str
    harness: str = ""
    expect: Expect = Expect.HOLDS
    subject: str = ""
    bounds: tuple[Bound, ...] = ()
    mutants: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    time_limit: float = 60.0
    note: str = ""
    raw: Raw = field(default_factory=dict)


@dataclass(frozen=True)
class Stub(_Row):
    """A rounding stub, itself a claim. `lemmas` are the step contracts that its promise rests on."""

    stub: str = ""
    property: str = ""
    formats: tuple[str, ...] = ()
    lemmas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Harness(_Row):
    """A bounded or unbounded proof. `solver` is z3 or crosshair; `reach` is None when the row does not state it."""

    obligations: tuple[str, ...] = ()
    property: str = ""
    bound: int | None = None
    strategy: str = ""
    solver: str = ""
    stubs: tuple[str, ...] = ()
    reach: str | None = None


@dataclass(frozen=True)
class StepProof(_Row):
    """A proof about the recorded PyTorch step; `params` says in which configurations it is recorded."""

    obligations: tuple[str, ...] = ()
    property: str = ""


@dataclass(frozen=True)
class FalsificationTest(_Row):
    """A measured test with its prediction."""

    obligations: tuple[str, ...] = ()
    rule: str = ""
    prediction: str = ""
    test: str = ""
    if_fails: str = ""


@dataclass(frozen=True)
class Gate:
    """The release gate, and the bugs that must turn it red. `require`: strategies, by what must back their proofs."""

    id: str
    name: str = ""
    description: str = ""
    checks: tuple[str, ...] = ()
    pass_criteria: str = ""
    falsification: str = ""
    criteria: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeded_bugs: tuple[str, ...] = ()
    require: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raw: Raw = field(default_factory=dict)
    demands: Demands = NONE


@dataclass(frozen=True)
class Contract:
    """A loaded contract. `digest` is the sha256 of the file; `raw` of a clause is its YAML as plain data."""

    id: str
    path: Path
    digest: str
    dialect: str
    metadata: Metadata
    equations: tuple[Equation, ...]
    obligations: tuple[Obligation, ...]
    phases: tuple[Phase, ...]
    stubs: tuple[Stub, ...]
    harnesses: tuple[Harness, ...]
    falsification_tests: tuple[FalsificationTest, ...]
    gate: Gate | None
    subjects: Mapping[str, str]
    warnings: list[Problem]
    step_proofs: tuple[StepProof, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def obligation(self, name: str) -> Obligation:
        """The obligation called `name`. Raises KeyError when there is none."""
        for found in self.obligations:
            if found.id == name:
                return found
        raise KeyError(name)


def load(path: Path) -> Contract:
    """Read the contract at `path`. Raises ContractErrors, with every mistake, and nothing else."""
    path = Path(path)
    shown = str(path)
    data, root, problems = read(path, shown)
    if root is None or not isinstance(root.value, dict) or not root.value:
        raise ContractErrors(problems or [_no_contract(root, shown)])
    ours = uses_ours(root)
    typed, wrong = shape(root, ours, shown)
    errors, warnings = check(root, ours, path, shown)
    problems += wrong + errors
    if problems or typed is None:
        raise ContractErrors(problems)
    name = contract_id(path)
    return _build(typed, root, path, name, hashlib.sha256(data).hexdigest(), warnings)


def contract_id(path: Path) -> str:
    """Name of the folder of a contract.yaml, or the file's own name without its ending."""
    full = Path(path).absolute()
    return full.parent.name if full.stem == "contract" else full.stem


def _no_contract(root: Node | None, shown: str) -> Problem:
    if root is None or root.value in (None, {}):
        return Problem(
            "GP115", shown, 1, 1, "an empty contract", "at least metadata and one obligation", "write the contract"
        )
    found = "a list" if isinstance(root.value, list) else "a single value"
    return Problem("GP116", shown, root.line, root.col, found, "a mapping at the top", "start with metadata:")


def _build(
    typed: OursRoot | FieldRoot, root: Node, path: Path, name: str, digest: str, warnings: list[Problem]
) -> Contract:
    ours = isinstance(typed, OursRoot)
    meta = typed.metadata
    obligations = [
        _obligation(o, n, i, name) for i, (o, n) in enumerate(_with(typed.proof_obligations, root, "proof_obligations"))
    ]
    known = {o.id for o in obligations}
    return Contract(
        id=name,
        path=path,
        digest=digest,
        dialect="gradproof" if ours else "field",
        metadata=Metadata(
            meta.version,
            meta.description,
            meta.created,
            meta.author,
            tuple(meta.references),
            tuple(meta.depends_on),
            _raw(root, "metadata"),
        ),
        equations=tuple(
            _equation(key, e, node)
            for (key, e), (_, node) in zip(typed.equations.items(), root.pairs("equations"), strict=True)
        ),
        obligations=tuple(obligations),
        phases=tuple(
            Phase(p.name, p.description, p.invariant, n.plain(floats=False))
            for p, n in zip(typed.kernel_structure.phases, root.items("kernel_structure", "phases"), strict=True)
        ),
        stubs=tuple(_stub(s, n) for s, n in _with(typed.stubs, root, "stubs")) if isinstance(typed, OursRoot) else (),
        harnesses=tuple(_harness(h, n, known) for h, n in _with(typed.kani_harnesses, root, "kani_harnesses")),
        falsification_tests=tuple(
            _test(t, n) for t, n in _with(typed.falsification_tests, root, "falsification_tests")
        ),
        gate=_gate(typed, root),
        subjects=typed.subjects.model_dump(exclude_none=True) if isinstance(typed, OursRoot) else {},
        warnings=warnings,
        places=places(root),
        step_proofs=tuple(_step(s, n) for s, n in _with(typed.step_proofs, root, "step_proofs"))
        if isinstance(typed, OursRoot)
        else (),
    )


def _with(rows: Sequence[Any], root: Node, section: str) -> list[tuple[Any, Node]]:
    return list(zip(rows, root.items(section), strict=True))


def _raw(root: Node, key: str) -> Raw:
    node = root.get(key)
    return node.plain(floats=False) if node is not None else {}


def _equation(key: str, shaped: Any, node: Node) -> Equation:
    assumptions = tuple(getattr(shaped, "assumptions", ()))
    invariants = tuple(shaped.invariants)
    return Equation(
        key, shaped.formula, shaped.domain, shaped.codomain, invariants, assumptions, node.plain(floats=False)
    )


def _obligation(shaped: OursObligation | FieldObligation, node: Node, index: int, name: str) -> Obligation:
    raw = node.plain(floats=False)
    if isinstance(shaped, FieldObligation):
        given = shaped.id or assigned_id(name, index)
        loose = () if shaped.tolerance is None else (Tolerance("", shaped.tolerance, "", "", "reported"),)
        return Obligation(given, shaped.type, shaped.property, shaped.formal, shaped.applies_to, loose, raw=raw)
    tolerances = tuple(Tolerance(t.dtype, t.value, t.metric, t.domain, t.role) for t in shaped.tolerance)
    layers = {p: tuple(Layer(x) for x in getattr(shaped.layers, p)) for p in ("ci", "release")}
    return Obligation(
        shaped.id,
        shaped.type,
        shaped.property,
        shaped.formal,
        shaped.applies_to,
        tolerances,
        tuple(shaped.assumptions),
        layers,
        raw,
        {k: v for k, v in shaped.subjects.model_dump().items() if v is not None},
    )


def assigned_id(name: str, index: int) -> str:
    """Id of obligation number `index` (from 0) of a contract that states none."""
    return f"{name.upper()}-{index + 1:03d}"


def _row(shaped: CheckShape, node: Node) -> dict[str, Any]:
    return {
        "id": shaped.id,
        "harness": shaped.harness,
        "expect": Expect(shaped.expect),
        "subject": shaped.subject or "",
        "bounds": tuple(Bound(b.name, b.value, b.reason) for b in shaped.bounds),
        "mutants": tuple(shaped.mutants),
        "assumptions": tuple(shaped.assumptions),
        "params": shaped.params,
        "time_limit": shaped.time_limit,
        "note": shaped.note,
        "raw": node.plain(floats=False),
    }


def _stub(shaped: StubShape, node: Node) -> Stub:
    rest: dict[str, Any] = {"stub": shaped.stub, "property": shaped.property, "formats": tuple(shaped.formats)}
    return Stub(**_row(shaped, node), **rest, lemmas=tuple(shaped.lemmas))


def _step(shaped: StepShape, node: Node) -> StepProof:
    row = {**_row(shaped, node), "params": shaped.params.model_dump(exclude_none=True)}
    return StepProof(**row, obligations=_named(shaped), property=shaped.property)


def _named(shaped: OursHarness | StepShape | OursTest) -> tuple[str, ...]:
    single = [shaped.obligation] if shaped.obligation else []
    return tuple(dict.fromkeys([*single, *shaped.obligations]))


def _harness(shaped: OursHarness | FieldHarness, node: Node, known: set[str]) -> Harness:
    if isinstance(shaped, FieldHarness):
        named = tuple(name for name in (shaped.obligation,) if name in known)
        bounds = () if shaped.bound is None else (Bound("bound", shaped.bound, ""),)
        return Harness(
            shaped.id, tolerate(shaped.harness), bounds=bounds, raw=node.plain(floats=False), obligations=named,
            property=shaped.property, bound=shaped.bound, strategy=shaped.strategy or "", solver=shaped.solver or "",
        )  # fmt: skip
    return Harness(
        **_row(shaped, node), obligations=_named(shaped), property=shaped.property, bound=shaped.bound,
        strategy=shaped.strategy, solver=shaped.solver, stubs=tuple(shaped.stubs), reach=shaped.reach,
    )  # fmt: skip


def _test(shaped: OursTest | FieldTest, node: Node) -> FalsificationTest:
    texts: dict[str, Any] = {key: getattr(shaped, key) for key in ("rule", "prediction", "test", "if_fails")}
    if isinstance(shaped, FieldTest):
        return FalsificationTest(shaped.id, raw=node.plain(floats=False), **texts)
    return FalsificationTest(**_row(shaped, node), obligations=_named(shaped), **texts)


def _gate(typed: OursRoot | FieldRoot, root: Node) -> Gate | None:
    shaped = typed.qa_gate
    if shaped is None:
        return None
    criteria = {key: tuple(value) for key, value in getattr(shaped, "criteria", {}).items()}
    stated = shaped.require if isinstance(shaped, OursGate) else None
    required = {key: tuple(value) for key, value in stated.model_dump(exclude_none=True).items()} if stated else {}
    return Gate(
        shaped.id, shaped.name, shaped.description, tuple(shaped.checks), shaped.pass_criteria, shaped.falsification,
        criteria, tuple(getattr(shaped, "seeded_bug", ())), required, _raw(root, "qa_gate"),
        demands_of(shaped.least, shaped.gpu_max_age_days, shaped.waivers) if isinstance(shaped, OursGate) else NONE,
    )  # fmt: skip
