"""What is compared, as trees of plain data: contracts with the settings beside them, reports, or evidence files.

A tree holds what says something: empty values and defaults are left out, rows are found by their ids.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.audit import audit
from gradproof.core import DECISION, Check, Effect, Expect, GradproofError, Outcome, digest_of
from gradproof.diff.rules import CHECKS

Tree = Mapping[str, Any]
CONTRACT, REPORT, EVIDENCE = "contract", "report", "evidence"
SETTINGS = "pyproject.toml"


@dataclass(frozen=True)
class Item:
    """One contract, or what was shown of it. `open`: why nothing can be said of it; else an empty text."""

    name: str
    version: str
    tree: Tree
    open: str = ""


@dataclass(frozen=True)
class Side:
    """One side: its kind, its items by contract id, the settings of a workspace, and a digest of it all."""

    kind: str
    items: Mapping[str, Item]
    settings: Tree
    digest: str


def side(path: Path) -> Side:
    """What lies at a path. Raises GradproofError GP481, and ContractErrors for a contract that is wrong."""
    settings: Tree = {}
    if path.is_dir():
        contracts = sorted(path.glob("proofs/*/contract.yaml"))
        reports = [p for p in [path / "report.json", *sorted(path.glob("*/report.json"))] if p.is_file()]
        if contracts:
            kind, items, settings = CONTRACT, [_contract(p) for p in contracts], _settings(path / SETTINGS)
        elif reports:
            kind, items = REPORT, [_report(p) for p in reports]
        else:
            kind, items = EVIDENCE, _evidence(path)
    elif path.suffix == ".json":
        kind, items = REPORT, [_report(path)]
    else:
        kind, items = CONTRACT, [_contract(path)]
    found = {item.name: item for item in items}
    if len(found) < len(items):
        raise unreadable(path, "two contracts have one name")
    return Side(kind, found, settings, digest_of([[i.name, i.version, i.open, i.tree] for i in items] + [settings]))


def unreadable(path: Path, why: str) -> GradproofError:
    """GP481: nothing at this path can be compared."""
    expected = "a contract.yaml, a workspace, a report.json, or a folder of reports"
    return GradproofError("GP481", f"{path}: {why}", expected, "name one of these")


def _trimmed(value: Any) -> Any:
    """Without what says nothing: None, empty texts, lists and mappings, at every depth of mappings."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _trimmed(x) for key, x in value.items()}
    return {key: x for key, x in kept.items() if x is not None and x not in ("", [], {})}


def keyed(rows: Iterable[Any], *names: str) -> dict[str, Any]:
    """Rows by these fields of theirs; a second one of a name has a number."""
    found: dict[str, Any] = {}
    for row in rows:
        base = key = " ".join(str(row[n]) for n in names if row.get(n)) or "unnamed"
        number = 2
        while key in found:
            key, number = f"{base} #{number}", number + 1
        found[key] = row
    return found


def _contract(path: Path) -> Item:
    """A contract's YAML. It is loaded first, so that only a contract without a mistake is compared."""
    from gradproof.contract import load
    from gradproof.contract_tree import read

    if not path.is_file():
        raise unreadable(path, "there is no such file")
    contract = load(path)
    _, root, _ = read(path, str(path))
    raw = root.plain(floats=False) if root is not None else {}
    tree: dict[str, Any] = {**raw, "metadata": {k: v for k, v in raw["metadata"].items() if k != "version"}}
    rows = zip(raw.get("proof_obligations", []), contract.obligations, strict=True)
    tree["proof_obligations"] = {o.id: _obligation(row) for row, o in rows}
    for section in CHECKS:
        tree[section] = {key: _row(row) for key, row in keyed(raw.get(section, []), "id").items()}
    structure = raw.get("kernel_structure", {})
    tree["kernel_structure"] = {"phases": keyed(structure.get("phases", []), "name")}
    tree["qa_gate"] = _gate(raw.get("qa_gate") or {})
    return Item(contract.id, contract.metadata.version, _trimmed(tree) | {"text": contract.digest})


def _obligation(row: Tree) -> dict[str, Any]:
    given = row.get("tolerance", row.get("tolerances", []))
    rows = given if isinstance(given, list) else [{"value": given}]
    found = {**row, "tolerance": _tolerances(rows), "applies_to": row.get("applies_to", "all")}
    return {k: v for k, v in found.items() if k not in ("id", "tolerances")}


def _tolerances(rows: list[Any]) -> dict[str, Any]:
    whole = [{**r, "role": r.get("role", "required")} for r in rows]
    alone = len({r.get("dtype") for r in whole}) == len(whole)
    return keyed(whole, *(["dtype"] if alone else ["dtype", "metric", "domain"]))


def _row(row: Tree) -> dict[str, Any]:
    """A check of a contract. What a row of the field names as one obligation is a list of one."""
    obligations = [*([row["obligation"]] if row.get("obligation") else []), *row.get("obligations", [])]
    left = {k: v for k, v in row.items() if k not in ("id", "obligation")}
    bounds = keyed(row.get("bounds", []), "name")
    bounds = {name: {k: v for k, v in b.items() if k != "name"} for name, b in bounds.items()}
    own = {"obligations": obligations, "expect": row.get("expect", str(Expect.HOLDS)), "bounds": bounds}
    return {**left, **own}


def _gate(gate: Tree) -> dict[str, Any]:
    bugs = gate.get("seeded_bug", [])
    listed = bugs if isinstance(bugs, list) else [bugs]
    return {**gate, "seeded_bug": listed, "waivers": keyed(gate.get("waivers", []), "obligation", "layer")}


def _settings(path: Path) -> Tree:
    """`[tool.gradproof]`; empty where there is none. Raises GradproofError GP481."""
    if not os.path.lexists(path):
        return {}
    try:
        if not path.is_file():
            raise OSError("it is no file")
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("gradproof", {})
        waivers = keyed(table.get("waivers", []), "obligation", "layer")
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise unreadable(path, f"it has no [tool.gradproof] that can be read: {e}") from e
    found: Tree = _trimmed({**table, "waivers": json.loads(json.dumps(waivers, default=str))})
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise unreadable(path, f"it cannot be read: {e}") from e


def _report(path: Path) -> Item:
    """A report that concludes no more than its parts carry. Raises GradproofError GP481."""
    from gradproof.render.consistency import require

    report = _json(path)
    try:
        require(report)
        if report["run_state"] == "running":
            why = f"{path}: its run has not finished, or it was killed"
            return Item(report["contract"]["id"], str(report["contract"]["version"]), {}, why)
        return _of_report(report)
    except GradproofError as e:
        raise unreadable(path, e.found) from e
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise unreadable(path, f"it is no whole report: {type(e).__name__}: {e}") from e


def _of_report(report: Tree) -> Item:
    contract, gate = report["contract"], report["gate"] or {}
    tree = {
        "depends_on": contract.get("depends_on", []),
        "gate": {
            **{k: gate.get(k) for k in ("id", "name", "description", "pass_criteria")},
            "criteria": {c["name"]: {k: c[k] for k in ("obligations", "met")} for c in gate.get("criteria", [])},
            "falsification": gate.get("falsification", {}).get("text"),
            "turned_red": gate.get("falsification", {}).get("turned_red") is True,
        }
        if gate
        else {},
        "obligations": {o["id"]: _ruled(o) for o in report["obligations"]},
        "checks": {c["id"]: _judged(c) for c in report["checks"]},
        "mutants": {m["name"]: {"killed": bool(m["killed_by"]) and not m["survived"]} for m in report["mutants"]},
        "waivers": keyed(
            [{k: v for k, v in w.items() if k not in ("state", "cells")} for w in report.get("waivers", [])],
            "obligation",
            "layer",
        ),
        "run_state": report["run_state"],
        "rounding": report["rounding"]["standing"],
        "text": contract.get("digest", ""),
    }
    kept = _trimmed(tree)
    return Item(contract["id"], str(contract["version"]), {**kept, "profile": report["profile"]})


def _ruled(row: Tree) -> dict[str, Any]:
    """A row of the coverage matrix. Its reach counts where it is discharged; elsewhere the effect says enough."""
    cells = {}
    for layer, cell in row["cells"].items():
        done = cell["effect"] == Effect.DISCHARGED
        own = {"required": cell["required"], "effect": cell["effect"], "subject": cell.get("subject")}
        cells[layer] = {**own, "reach": cell.get("reach") if done else None}
    names = ("type", "formal", "property", "assumptions", "tolerances", "effect")
    return {**_obligation({k: row[k] for k in names if k in row}), "cells": cells}


def _judged(row: Tree) -> dict[str, Any]:
    """A check of a report. `shown`, `taken`, `covers`, `killed` and `domain` are of evidence that counts."""
    names = ("obligations", "expect", "strategy", "stubs", "mutants", "harness", "title", "kind", "layer", "params")
    own = {**{k: row[k] for k in names if k in row}, "subject": row.get("subject"), "required": row.get("required")}
    own["bounds"] = {b["name"]: {k: b[k] for k in ("value", "reason")} for b in row["bounds"]}
    own["time_limit"] = row.get("time_limit")
    return own | _shown(row, row["outcome"], row["effect"])


def _shown(finding: Tree, outcome: str, effect: str) -> dict[str, Any]:
    found: dict[str, Any] = {"standing": f"{outcome}, {effect}"}
    if effect != Effect.DISCHARGED:
        return found
    killed = [c["name"] for c in finding["controls"] if c["killed"] is True and c["outcome"] == Outcome.REFUTED]
    covers = {c["name"]: {"reached": c["reached"]} for c in finding["covers"]}
    more = {"shown": finding["reach"], "taken": finding["assumptions"], "covers": covers, "killed": killed}
    return {**found, **more, "domain": finding.get("domain")}


def _evidence(folder: Path) -> list[Item]:
    """The evidence below a folder of reports, by contract: the later of two files of one check. Raises GP481."""
    from gradproof.store import read

    found: dict[str, dict[str, tuple[str, Any]]] = {}
    for path in [p for kind in ("evidence", "gpu") for p in sorted(folder.glob(f"{kind}/*/*.json"))]:
        try:
            evidence = read(path)
        except (ValueError, RecursionError) as e:
            raise unreadable(path, str(e)) from e
        check, finished = Check.from_json(evidence["check"]), str(evidence["finished_at"])
        rows = found.setdefault(str(check.text.get("contract", "unnamed")), {})
        if check.id not in rows or finished > rows[check.id][0]:
            rows[check.id] = (finished, _found(check, evidence["finding"]))
    if not found:
        raise unreadable(folder, "it holds no contract, no report.json and no evidence")
    trees = {name: {"checks": {c: row for c, (_, row) in sorted(rows.items())}} for name, rows in found.items()}
    return [Item(name, "", _trimmed(tree)) for name, tree in sorted(trees.items())]


def _found(check: Check, finding: Tree) -> dict[str, Any]:
    outcome, _ = audit(check, finding)
    data = json.loads(json.dumps(check.to_json()))
    names = ("obligations", "expect", "strategy", "stubs", "mutants", "harness", "title", "kind", "layer", "subject",
             "params", "assumptions")  # fmt: skip
    own = {k: data[k] for k in names}
    own["bounds"] = {b["name"]: {k: b[k] for k in ("value", "reason")} for b in data["bounds"]}
    return own | _shown(finding, str(outcome), str(DECISION[check.expect, outcome]))
