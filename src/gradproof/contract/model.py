"""YAML -> Contract. Every mistake has a code and file:line:col, and all of them are reported at once.

`load` is the only entry. The work is done in three steps, each of which goes on after a mistake so that nothing
stays hidden behind the first: yaml_reader (YAML and duplicate keys), `shaped` (keys and types, from the clauses of
contract.schema), contract.rules (what clauses say about each other). A contract of the field is then written in our
words. `closure` follows `depends_on` through the files and refuses circles.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gradproof.contract.rules import beside, check, tolerate
from gradproof.contract.schema import (
    BoundShape,
    FalsificationTest,
    FieldHarness,
    FieldObligation,
    FieldRoot,
    FieldStrategy,
    Gate,
    Harness,
    InputsShape,
    LayersShape,
    Metadata,
    Obligation,
    OursRoot,
    StepProof,
    Strategy,
    StubClause,
    Tolerance,
)
from gradproof.contract.yaml_reader import ContractErrors, Exact, Node, Problem, meant, places, read


@dataclass(frozen=True)
class Contract:
    """A loaded contract. `digest` is the sha256 of the file."""

    id: str
    path: Path
    digest: str
    metadata: Metadata
    obligations: Sequence[Obligation]
    stubs: Sequence[StubClause]
    harnesses: Sequence[Harness]
    step_proofs: Sequence[StepProof]
    falsification_tests: Sequence[FalsificationTest]
    gate: Gate | None
    subjects: Mapping[str, str]
    inputs: InputsShape
    warnings: list[Problem]
    places: Mapping[str, tuple[int, int]]

    def obligation(self, name: str) -> Obligation:
        """The obligation called `name`. Raises KeyError when there is none."""
        return {found.id: found for found in self.obligations}[name]


def load(path: Path) -> Contract:
    """Read the contract at `path`. Raises ContractErrors, with every mistake, and nothing else."""
    path = Path(path)
    shown = str(path)
    data, root, problems = read(path, shown)
    if root is None or not isinstance(root.value, dict) or not root.value:
        raise ContractErrors(problems or [_no_contract(root, shown)])
    ours = uses_ours(root)
    name = contract_id(path)
    made: OursRoot | None
    if ours:
        made, wrong = shaped(root, OursRoot, shown)
    else:
        found, wrong = shaped(root, FieldRoot, shown)
        made = None if found is None else _in_our_words(found, name)
    errors, warnings = check(root, ours, path, shown)
    problems += wrong + errors
    if problems or made is None:
        raise ContractErrors(problems)
    return Contract(
        id=name,
        path=path,
        digest=hashlib.sha256(data).hexdigest(),
        metadata=made.metadata,
        obligations=made.proof_obligations,
        stubs=made.stubs,
        harnesses=made.kani_harnesses,
        step_proofs=made.step_proofs,
        falsification_tests=made.falsification_tests,
        gate=made.qa_gate,
        subjects=made.subjects.stated(),
        inputs=made.inputs,
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
    return Problem("GP116", shown, *root.place, found, "a mapping at the top", "start with metadata:")


def _in_our_words(root: FieldRoot, name: str) -> OursRoot:
    """A contract of the field: each obligation gets an id, and nothing is run but what names an attribute."""
    obligations = [_obligation(o, o.id or f"{name.upper()}-{i + 1:03d}") for i, o in enumerate(root.proof_obligations)]
    known = {o.id for o in obligations}
    gate = root.qa_gate
    return OursRoot.model_construct(
        metadata=root.metadata,
        proof_obligations=obligations,
        kani_harnesses=[_harness(h, known) for h in root.kani_harnesses],
        falsification_tests=[FalsificationTest.of(t, harness="", bounds=[]) for t in root.falsification_tests],
        qa_gate=None if gate is None else Gate.of(gate, criteria={}, seeded_bug=[]),
    )


def _obligation(row: FieldObligation, name: str) -> Obligation:
    loose = [Tolerance.model_construct(dtype="", value=row.tolerance, metric="", role="reported")]
    layers = LayersShape.model_construct()
    return Obligation.of(row, id=name, tolerance=[] if row.tolerance is None else loose, layers=layers)


def _harness(row: FieldHarness, known: set[str]) -> Harness:
    bounds = (
        []
        if row.bound is None
        else [BoundShape.model_construct(name="bound", value=row.bound, reason="the contract states none")]
    )
    obligation = row.obligation if row.obligation in known else None
    changes = {"obligation": obligation, "strategy": row.strategy or "", "solver": row.solver or ""}
    return Harness.of(row, harness=tolerate(row.harness), bounds=bounds, **changes)


def closure(contracts: Sequence[Contract], load: Callable[[Path], Contract]) -> dict[str, Contract]:
    """The contracts and all that they build on, by id, dependencies first.

    Raises ContractErrors: what `load` finds in a dependency, or GP220 for a circle, at its `depends_on` entry.
    """
    known = {contract.id: contract for contract in contracts}
    done: dict[str, Contract] = {}

    def visit(contract: Contract, above: tuple[str, ...] = ()) -> None:
        if contract.id in done:
            return
        trail = (*above, contract.id)
        for name in contract.metadata.depends_on:
            if name in trail:
                raise ContractErrors([_circle(contract, name, (*trail[trail.index(name) :], name))])
            if name not in known and (path := beside(contract.path, name)) is not None:
                known[name] = load(path)
            if name in known:
                visit(known[name], trail)
        done[contract.id] = contract

    for contract in contracts:
        visit(contract)
    return done


def _circle(contract: Contract, name: str, names: Sequence[str]) -> Problem:
    _, root, _ = read(contract.path, str(contract.path))
    nodes = root.items("metadata", "depends_on") if root is not None else []
    node = next((n for n in nodes if n.value == name), Node(None, 1, 1))
    found = f"contracts that build on each other: {' -> '.join(names)}"
    help = f"remove {name!r}"
    return Problem("GP220", str(contract.path), *node.place, found, "dependencies without a circle", help)


OURS_CHECK = set(Harness.model_fields) - set(FieldHarness.model_fields)
OURS_TEST = OURS_CHECK | {"harness", "obligation"}
OURS_STRATEGIES = set(typing.get_args(Strategy)) - set(typing.get_args(FieldStrategy))

M = TypeVar("M", bound=BaseModel)
CODES = {
    "extra_forbidden": "GP101",
    "missing": "GP103",
    "literal_error": "GP105",
    "enum": "GP105",
    "greater_than": "GP107",
    "greater_than_equal": "GP107",
}


def uses_ours(root: Node) -> bool:
    """Whether the contract uses any key, or any value, of our dialect."""
    marks = [
        _has(root, {"subjects", "inputs", "stubs", "step_proofs"}),
        any(_has(n, {"assumptions"}) for _, n in root.pairs("equations")),
        any(_has(n, {"assumptions", "layers"}) for n in root.items("proof_obligations")),
        any(isinstance(t.value, list) for n in root.items("proof_obligations") if (t := n.get("tolerance"))),
        any(_has(n, OURS_CHECK) for n in root.items("kani_harnesses")),
        any(n.text("strategy") in OURS_STRATEGIES for n in root.items("kani_harnesses")),
        any(n.text("solver") == "crosshair" for n in root.items("kani_harnesses")),
        any(_has(n, OURS_TEST) for n in root.items("falsification_tests")),
        _has(root.under("qa_gate"), {"criteria", "seeded_bug", "require"}),
        _has(root.under("verification_summary"), {"notes"}),
    ]
    return any(marks)


def _has(node: Node, keys: set[str]) -> bool:
    return isinstance(node.value, dict) and not keys.isdisjoint(node.value)


def shaped(root: Node, model: type[M], shown: str) -> tuple[M | None, list[Problem]]:
    """The tree as a model, or None and every place where its shape is wrong."""
    try:
        return model.model_validate(root.plain()), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [_problem(root, model, dict(d), shown) for d in details]


def _problem(root: Node, model: type[BaseModel], detail: dict[str, Any], shown: str) -> Problem:
    path: tuple[Any, ...] = tuple(step for step in detail["loc"] if step != "[key]")
    kind, value, context = str(detail["type"]), detail.get("input"), detail.get("ctx") or {}
    code = CODES.get(kind, kind if kind.startswith("GP") else "GP104")
    line, col = root.at(path, key=kind == "extra_forbidden")
    name, inside = str(path[-1]), " in " + _spell(path[:-1]) if path[:-1] else ""
    if kind == "extra_forbidden":
        known = keys_at(model, path[:-1])
        help = meant(name, known, "remove it, or correct its name")
        return Problem(code, shown, line, col, f"the unknown key {name!r}{inside}", f"one of: {', '.join(known)}", help)
    if kind == "missing":
        unjustified = name == "reason" or (name == "name" and "bounds" in path)
        code = "GP106" if unjustified else "GP111" if name == "dtype" and "tolerance" in path else "GP103"
        return Problem(code, shown, line, col, f"no {name!r}{inside}", f"the key {name!r}", f"add {name!r}")
    found = f"{_value(value)} as {_spell(path)}"
    if name == "reason" and "bounds" in path and isinstance(value, str | None):
        help = "say why the bound has this value and what reaching it means"
        return Problem("GP106", shown, line, col, found, "a reason that is not blank", help)
    if name == "tolerance" and kind == "list_type" and _is_number(value):
        help = f"write tolerance: [{{dtype: fp32, value: {_text(value)}, metric: linf}}]"
        return Problem("GP111", shown, line, col, found, "a tolerance for each dtype", help)
    if kind in ("literal_error", "enum"):
        expected = str(context.get("expected"))
        words = expected.replace(" or ", ", ").replace("'", "").split(", ")
        help = meant(str(value), words, "use one of these")
        return Problem(code, shown, line, col, found, expected, help)
    if code == "GP104":
        return Problem(code, shown, line, col, found, _expected(detail), _help_type(kind, value))
    return Problem(code, shown, line, col, found, _expected(detail), "correct the value")


def _expected(detail: dict[str, Any]) -> str:
    context = detail.get("ctx") or {}
    text = str(context.get("expected") or detail["msg"])
    for old, new in (
        ("Input should be ", ""),
        ("a valid ", "a "),
        ("a integer", "an integer"),
        ("dictionary", "mapping"),
    ):
        text = text.replace(old, new)
    return text.split(" or instance of ")[0]


def _help_type(kind: str, value: Any) -> str:
    if kind == "string_type" and (_is_number(value) or isinstance(value, bool)):
        return f'put it in quotes: "{_text(value)}"'
    if kind == "int_type" and isinstance(value, str) and value.strip().isdigit():
        return f"write it without quotes: {value.strip()}"
    return "write a value of that type"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Exact)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    if isinstance(value, Exact):
        return value.text
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return f"the {'truth value' if isinstance(value, bool) else 'number'} {_text(value)}"


def _spell(path: tuple[Any, ...]) -> str:
    """proof_obligations[2].tolerance[0]."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.lstrip(".")


def keys_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Keys that the shape allows in the mapping at `path`."""
    kind: Any = model
    for step in path:
        here = _model(kind)
        known = here is not None and step in here.model_fields
        kind = here.model_fields[step].annotation if here and known else (None, *typing.get_args(kind))[-1]
    found = _model(kind)
    return sorted(found.model_fields) if found is not None else []


def _model(kind: Any) -> type[BaseModel] | None:
    options = [kind, *typing.get_args(kind)] if typing.get_origin(kind) not in (list, dict) else []
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
