"""Verdict -> report dict, schema gradproof-report/2, and the files that hold it.

`report.json` is replaced by a marker before a run starts, so that a run that was killed cannot read as clean.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof import __version__
from gradproof.core.check import Finding
from gradproof.core.files import replace_whole
from gradproof.core.outcome import EXIT_CODE, MEANING, REPORT_SCHEMA, Effect, Exit, Kind, Layer, Outcome
from gradproof.core.workspace import Locator
from gradproof.evidence.environment import environment
from gradproof.evidence.record import now, plain
from gradproof.report import studies
from gradproof.verdict.judge import ObligationCell, ObligationRuling, Ruling, Verdict, subject_of
from gradproof.verdict.plan import falsification_id, vars_of

if TYPE_CHECKING:
    from gradproof.contract.model import Contract
    from gradproof.core.workspace import Workspace


# -- The source of each harness as it stands in its file: read and cut out, never imported.
LONGEST = 6000  # characters of one text; what is cut off is said


def texts(names: Iterable[str], root: Path) -> dict[str, dict[str, Any]]:
    """For each harness `module:function` below `root`: its path from there, its first line and its text.

    A harness that is not found, whose file is not Python, or lies outside `root` has no entry.
    """
    locator, tree_of, found = Locator(root), cache(_tree), {}
    for name in dict.fromkeys(names):
        module, _, function = name.partition(":")
        file = locator.file(module, [str(root)]) if module and function else None
        path = Path(file or "")
        if path.suffix != ".py" or not path.resolve().is_relative_to(root.resolve()):
            continue
        cut = _cut(*tree_of(path), function)
        if cut is not None:
            found[name] = {"path": path.resolve().relative_to(root.resolve()).as_posix(), **cut}
    return found


def _tree(path: Path) -> tuple[str, ast.Module | None]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return "", None


def _cut(text: str, tree: ast.Module | None, function: str) -> dict[str, Any] | None:
    """The text of the function or class, decorators included; None where the file defines none of that name."""
    node: Any = tree
    for part in function.split("."):
        named = (n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part)
        node = next(named, None)
    if node is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    shown = "\n".join(lines)
    if len(shown) > LONGEST:
        kept = shown[:LONGEST].rpartition("\n")[0]
        shown = f"{kept}\n… {len(lines) - kept.count(chr(10)) - 1} more lines in the file"
    return {"line": first, "text": shown}


def build(
    contract: Contract, workspace: Workspace, verdict: Verdict, *, profile: str, run_state: str, seconds: float
) -> dict[str, Any]:
    """The report of one contract. A run that is not complete cannot be met: its report says so."""
    exit_, reasons = verdict.exit, list(verdict.reasons)
    if run_state != "complete":
        reasons.insert(0, f"the run is {run_state}: not every check was run")
        exit_ = Exit.OPEN if exit_ is Exit.MET else exit_
    rulings = list(verdict.rulings.values())
    checks = [_check(r, workspace) for r in rulings]
    begun = _begun(_contract(contract, workspace), str(workspace.root), profile, reasons, run_state, exit_)
    return begun | {
        "gate": _gate(contract, verdict),
        "waivers": [
            {**row.waiver.model_dump(mode="json"), "state": row.state, "cells": list(row.cells)}
            for row in verdict.waivers
        ],
        "obligations": [_obligation(contract, row) for row in verdict.obligations.values()],
        "checks": checks,
        "mutants": _mutants(rulings),
        "measurements": [row for r in rulings for row in _measured(r)],
        "rounding": studies.rounding(workspace),
        "kernels": studies.kernels(workspace, checks, begun["environment"]),
        "studies": studies.training(workspace),
        "harnesses": texts((r.check.harness for r in rulings), workspace.root),
        "totals": _totals(rulings),
        "seconds": round(seconds, 3),
    }


def marker(contract: Contract, workspace: Workspace, profile: str) -> dict[str, Any]:
    """What stands in report.json while a run is under way."""
    why = "the run has not finished, or it was killed"
    return _begun(_contract(contract, workspace), str(workspace.root), profile, [why])


def contract_of(place: Path) -> str | None:
    """The contract that a report.json is about; None for what is no report."""
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["contract"]["id"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None


def outdate(folder: Path, why: str, only: Collection[str] | None = None) -> None:
    """Make a marker of the report that lies in a folder, if one does, and take its renderings away. Raises OSError.

    `only`: where it is of one of these contracts.
    """
    path = folder / "report.json"
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        old = None
    if isinstance(old, dict) and old.get("schema") == REPORT_SCHEMA and isinstance(old.get("contract"), dict):
        if only is not None and old["contract"].get("id") not in only:
            return
        said = str(old.get("workspace", "")), str(old.get("profile", ""))
        write_json(path, _begun(old["contract"], *said, [why]))
        for ending in ("md", "html"):
            path.with_suffix(f".{ending}").unlink(missing_ok=True)


def _begun(
    contract: Mapping[str, Any],
    workspace: str,
    profile: str,
    reasons: list[str],
    run_state: str = "running",
    exit_: Exit = Exit.OPEN,
) -> dict[str, Any]:
    """A report without a check, in the order of its keys."""
    return {
        "schema": REPORT_SCHEMA,
        "run_state": run_state,
        "generated_at": now(),
        "gradproof": __version__,
        "profile": profile,
        "workspace": workspace,
        "contract": contract,
        "verdict": {"exit": str(exit_), "code": EXIT_CODE[exit_], "met": exit_ is Exit.MET, "reasons": reasons},
        "gate": None,
        "waivers": [],
        "obligations": [],
        "checks": [],
        "mutants": [],
        "measurements": [],
        "rounding": studies.section(studies.ABSENT, "the run has not finished"),
        "kernels": {"documents": [], "relies": []},
        "studies": [],
        "harnesses": {},
        "totals": _totals([]),
        "environment": environment(),
        "seconds": 0.0,
    }


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report as JSON, whole or not at all. Raises OSError."""
    replace_whole(path, json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _contract(contract: Contract, workspace: Workspace) -> dict[str, Any]:
    warnings = [workspace.warning] if workspace.warning else []
    warnings += [f"{w.file}:{w.line}:{w.col}: {w.code}: {w.found}; expected {w.expected}" for w in contract.warnings]
    return {
        "id": contract.id,
        "version": contract.metadata.version,
        "description": contract.metadata.description,
        "digest": contract.digest,
        "path": str(contract.path),
        "depends_on": list(contract.metadata.depends_on),
        "warnings": warnings,
        "places": {name: list(place) for name, place in contract.places.items()},
    }


def _gate(contract: Contract, verdict: Verdict) -> dict[str, Any] | None:
    gate = contract.gate
    if gate is None:
        return None
    ruling = verdict.rulings.get(falsification_id(gate))
    turned = {Outcome.HOLDS: True, Outcome.WEAK: False}.get(ruling.outcome) if ruling else None
    why = ruling.reason if ruling else "it was not planned"
    return {
        "id": gate.id,
        "name": gate.name,
        "description": gate.description,
        "pass_criteria": gate.pass_criteria,
        "criteria": [plain(asdict(criterion)) for criterion in verdict.criteria],
        "falsification": {"text": gate.falsification, "turned_red": turned, "why": why},
    }


def _obligation(contract: Contract, row: ObligationRuling) -> dict[str, Any]:
    source = contract.obligation(row.id)
    about = {**contract.subjects, **source.subjects.stated()}
    return {
        "id": row.id,
        "type": source.type,
        "property": source.property,
        "formal": source.formal,
        "tolerances": [vars_of(t) for t in source.tolerance],
        "assumptions": list(source.assumptions),
        "effect": str(row.effect),
        "waived": bool(row.waived),
        "counts": {"discharged": row.discharged, "required": row.required},
        "cells": {str(layer): _cell(row.cells[layer], subject_of(about, layer)) for layer in Layer},
    }


def _cell(cell: ObligationCell, subject: str) -> dict[str, Any]:
    beyond = [{"subject": other, "reach": str(reach)} for other, reach in cell.beyond]
    return {**plain(asdict(cell)), "subject": subject, "beyond": beyond}


SOLVER = {Kind.STUB: "z3", Kind.SMT: "z3", Kind.TRACE: "gradproof", Kind.GATE: "gradproof"}
_NOTHING = asdict(Finding(Outcome.NOT_RUN, ""))


def _check(ruling: Ruling, workspace: Workspace) -> dict[str, Any]:
    check, status = ruling.check, ruling.status
    evidence = status.evidence if status.fresh else None
    finding = evidence.finding.stated() if evidence else _NOTHING
    seen = evidence.environment.stated() if evidence else {}
    solver = SOLVER.get(check.kind, str(check.kind))
    data = check.to_json()
    row = {key: data[key] for key in ("id", "kind", "layer", "title", "obligations", "expect", "strategy", "bounds")}
    row |= {key: data[key] for key in ("stubs", "harness", "subject", "mutants", "time_limit")}
    row["params"] = check.text.get("row", {}).get("params", {})
    row |= {key: finding[key] for key in ("domain", "covers", "controls", "counterexample", "replays", "clauses")}
    row |= {key: finding[key] for key in ("measurements", "stats")}
    return row | {
        "outcome": str(ruling.outcome),
        "effect": str(ruling.effect),
        "required": ruling.required,
        "reason": ruling.reason,
        "meaning": MEANING[ruling.outcome],
        "reach": None if ruling.reach is None else str(ruling.reach),
        "assumptions": list(dict.fromkeys([*check.assumptions, *finding["assumptions"]])),
        "solver": f"{solver} {seen[solver]}" if solver in seen else solver,
        "seconds": evidence.seconds if evidence else 0.0,
        "fresh": status.fresh,
        "cached": status.cached,
        "evidence": None if status.path is None else status.path.removeprefix(f"{workspace.reports}/"),
        "environment": seen,
        "finished_at": evidence.finished_at if evidence else None,
    }


def _measured(ruling: Ruling) -> list[dict[str, Any]]:
    if ruling.status.evidence is None or not ruling.status.fresh:
        return []
    rows = ruling.status.evidence.finding.measurements
    return [{**row.stated(), "check": ruling.check.id} for row in rows if row.measured is not None]


def _mutants(rulings: Sequence[Ruling]) -> list[dict[str, Any]]:
    """Every mutant that some check names, with the checks that killed it, let it live, or have not tried it."""
    rows: dict[str, dict[str, Any]] = {}
    for ruling in rulings:
        for name in ruling.check.mutants:
            lists: dict[str, list[str]] = {"killed_by": [], "survived": [], "not_tried": []}
            rows.setdefault(name, {"name": name, "obligation": "", "reference": "", **lists})
        evidence = ruling.status.evidence if ruling.status.fresh else None
        controls = {c.name: c for c in evidence.finding.controls} if evidence else {}
        for name in ruling.check.mutants:
            control = controls.get(name)
            if control is None:
                rows[name]["not_tried"].append(ruling.check.id)
                continue
            rows[name]["killed_by" if control.shows else "survived"].append(ruling.check.id)
            rows[name]["obligation"] = rows[name]["obligation"] or control.clause
            rows[name]["reference"] = rows[name]["reference"] or control.reference
    return list(rows.values())


def _totals(rulings: Sequence[Ruling]) -> dict[str, int]:
    effects = [r.effect for r in rulings]
    mutants = _mutants(rulings)
    return {
        "checks": len(rulings),
        "discharged": effects.count(Effect.DISCHARGED),
        "broken": effects.count(Effect.BROKEN),
        "open": effects.count(Effect.OPEN),
        "mutants_killed": sum(bool(m["killed_by"]) and not m["survived"] for m in mutants),
        "mutants_total": len(mutants),
    }
