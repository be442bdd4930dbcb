"""YAML -> Contract. Every mistake has a code and file:line:col, and all of them are reported at once.

`load` is the only entry. The work is done in three steps, each of which goes on after a mistake so that nothing
stays hidden behind the first: yaml_reader (YAML and duplicate keys), diagnostics (keys and types, from the
shapes in contract.schema), contract.rules (what clauses say about each other). A contract of the field is then written
in our words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradproof.contract.diagnostics import shaped, uses_ours
from gradproof.contract.rules import check, tolerate
from gradproof.contract.schema import (
    BoundShape,
    FalsificationTest,
    FieldHarness,
    FieldObligation,
    FieldRoot,
    Gate,
    Harness,
    LayersShape,
    Metadata,
    Obligation,
    OursRoot,
    StepProof,
    Stub,
    Tolerance,
)
from gradproof.contract.yaml_reader import ContractErrors, Node, Problem, places, read


@dataclass(frozen=True)
class Contract:
    """A loaded contract. `digest` is the sha256 of the file."""

    id: str
    path: Path
    digest: str
    dialect: str
    metadata: Metadata
    obligations: Sequence[Obligation]
    stubs: Sequence[Stub]
    harnesses: Sequence[Harness]
    step_proofs: Sequence[StepProof]
    falsification_tests: Sequence[FalsificationTest]
    gate: Gate | None
    subjects: Mapping[str, str]
    warnings: list[Problem]
    places: Mapping[str, tuple[int, int]]

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
    name = contract_id(path)
    made, wrong = _typed(root, ours, name, shown)
    errors, warnings = check(root, ours, path, shown)
    problems += wrong + errors
    if problems or made is None:
        raise ContractErrors(problems)
    return Contract(
        id=name,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        dialect="gradproof" if ours else "field",
        metadata=made.metadata,
        obligations=made.proof_obligations,
        stubs=made.stubs,
        harnesses=made.kani_harnesses,
        step_proofs=made.step_proofs,
        falsification_tests=made.falsification_tests,
        gate=made.qa_gate,
        subjects=made.subjects.stated(),
        warnings=warnings,
        places=places(root),
    )


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


def _typed(root: Node, ours: bool, name: str, shown: str) -> tuple[OursRoot | None, list[Problem]]:
    """The clauses, or None and every place where their shape is wrong."""
    if ours:
        return shaped(root, OursRoot, shown)
    found, wrong = shaped(root, FieldRoot, shown)
    return None if found is None else _in_our_words(found, name), wrong


def _in_our_words(root: FieldRoot, name: str) -> OursRoot:
    """A contract of the field: each obligation gets an id, and nothing is run but what names an attribute."""
    obligations = [_obligation(o, o.id or assigned_id(name, i)) for i, o in enumerate(root.proof_obligations)]
    known = {o.id for o in obligations}
    gate = root.qa_gate
    return OursRoot.model_construct(
        metadata=root.metadata,
        proof_obligations=obligations,
        kani_harnesses=[_harness(h, known) for h in root.kani_harnesses],
        falsification_tests=[FalsificationTest.of(t, harness="", bounds=[]) for t in root.falsification_tests],
        qa_gate=None if gate is None else Gate.of(gate, criteria={}, seeded_bug=[]),
    )


def assigned_id(name: str, index: int) -> str:
    """Id of obligation number `index` (from 0) of a contract that states none."""
    return f"{name.upper()}-{index + 1:03d}"


def _obligation(row: FieldObligation, name: str) -> Obligation:
    loose = [Tolerance.model_construct(dtype="", value=row.tolerance, metric="", role="reported")]
    layers = LayersShape.model_construct()
    return Obligation.of(row, id=name, tolerance=[] if row.tolerance is None else loose, layers=layers)


def _harness(row: FieldHarness, known: set[str]) -> Harness:
    bounds = [] if row.bound is None else [BoundShape.model_construct(name="bound", value=row.bound, reason="")]
    obligation = row.obligation if row.obligation in known else None
    changes = {"obligation": obligation, "strategy": row.strategy or "", "solver": row.solver or ""}
    return Harness.of(row, harness=tolerate(row.harness), bounds=bounds, **changes)
