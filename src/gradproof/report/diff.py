"""What is compared, as trees of plain data: contracts with the settings beside them, or reports.

A tree holds what says something: empty values and defaults are left out, rows are found by their ids.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from gradproof import __version__
from gradproof.core.check import digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Expect, Outcome
from gradproof.core.schemas.base import DocumentModel, Sha256, Tally
from gradproof.report import diff_rules
from gradproof.report.diff_rules import ABSENT, CHECKS, ChangeShape, Direction, FieldChange, changed, compare

# -- The result of a comparison, format `gradproof-diff/1`; its JSON Schema is `reports/diff.schema.json`.
DIFF = "gradproof-diff/1"
Step = Literal["none", "patch", "minor", "major"]


class VersionShape(DocumentModel):
    """`needed` is what semver asks for the changes of claims, `raised` what happened; null where no X.Y.Z is read."""

    old: str
    new: str
    needed: Step
    raised: Step | Literal["lowered"] | None
    accordingly: bool | None


class ComparedShape(DocumentModel):
    """One contract on both sides."""

    contract: str
    version: VersionShape
    changes: list[ChangeShape]


class SideShape(DocumentModel):
    """What was compared: its place as it was given, and a digest of what was read there."""

    path: str
    kind: Literal["contract", "report"]
    digest: Sha256


class Diff(DocumentModel):
    """What changed between two contracts or two sets of reports.

    Only `exit` met says that nothing is weaker. `open` are the reasons why something could not be compared. History:
    1, the first.
    """

    document: Literal["gradproof-diff/1"] = Field(alias="schema")
    gradproof: str
    old: SideShape
    new: SideShape
    exit: Literal["met", "broken", "open"]
    code: int
    open: list[str]
    contracts: list[ComparedShape]
    totals: dict[Direction, Tally]

    @model_validator(mode="after")
    def _consistent(self) -> Diff:
        found = [change.direction for row in self.contracts for change in row.changes]
        if any(found.count(name) != count for name, count in self.totals.items()) or len(self.totals) != 4:
            raise ValueError("the totals do not count the changes")
        undecided = Direction.UNDECIDED in found or self.open
        wanted = "broken" if Direction.WEAKENED in found else "open" if undecided else "met"
        if self.exit != wanted or self.code != {"met": 0, "broken": 1, "open": 4}[wanted]:
            raise ValueError(f"the exit is {self.exit}, and the changes make it {wanted}")
        return self


Tree = Mapping[str, Any]
CONTRACT, REPORT = "contract", "report"
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
    """One side: where it lies, its kind, its items by contract id, the settings of a workspace, and a digest of all."""

    path: Path
    kind: str
    items: Mapping[str, Item]
    settings: Tree
    digest: str


def side(path: Path) -> Side:
    """What lies at a path. Raises GradproofError GP481, and ContractErrors for a contract that is wrong."""
    contracts = sorted(path.glob("proofs/*/contract.yaml")) if path.is_dir() else []
    if contracts:
        return _side(path, CONTRACT, [_contract_tree(p) for p in contracts], _settings(path / SETTINGS))
    if path.is_dir():
        return side_of(path, [p for p in [path / "report.json", *sorted(path.glob("*/report.json"))] if p.is_file()])
    return side_of(path, [path]) if path.suffix == ".json" else _side(path, CONTRACT, [_contract_tree(path)], {})


def side_of(path: Path, reports: Iterable[Path | Tree]) -> Side:
    """Reports, in files or as they are before they are written. Raises GradproofError GP481."""
    return _side(path, REPORT, [_report(report) for report in reports], {})


def _side(path: Path, kind: str, items: Sequence[Item], settings: Tree) -> Side:
    found = {item.name: item for item in items}
    if not items:
        raise unreadable(path, "it holds no contract and no report")
    if len(found) < len(items):
        raise unreadable(path, "two contracts have one name")
    digest = digest_of([[i.name, i.version, i.open, i.tree] for i in items] + [settings])
    return Side(path, kind, found, settings, digest)


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


def _contract_tree(path: Path) -> Item:
    """A contract's YAML. It is loaded first, so that only a contract without a mistake is compared."""
    from gradproof.contract.model import load
    from gradproof.contract.yaml_reader import read

    if not path.is_file():
        raise unreadable(path, "there is no such file")
    contract = load(path)
    _, root, _ = read(path, str(path))
    raw = root.plain(floats=False) if root is not None else {}
    tree: dict[str, Any] = {**raw, "metadata": {k: v for k, v in raw["metadata"].items() if k != "version"}}
    rows = zip(raw.get("proof_obligations", []), contract.obligations, strict=True)
    tree["proof_obligations"] = {o.id: _obligation(row) for row, o in rows}
    for section in CHECKS:
        tree[section] = {key: _row_tree(row) for key, row in keyed(raw.get(section, []), "id").items()}
    structure = raw.get("kernel_structure", {})
    tree["kernel_structure"] = {"phases": keyed(structure.get("phases", []), "name")}
    tree["qa_gate"] = _gate(raw.get("qa_gate") or {})
    return Item(contract.id, contract.metadata.version, _trimmed(tree) | {"text": contract.digest})


def _obligation(row: Tree) -> dict[str, Any]:
    given = row.get("tolerance", row.get("tolerances", []))
    given = given if isinstance(given, list) else [{"value": given}]
    rows = [{**r, "role": r.get("role", "required")} for r in given]
    alone = len({r.get("dtype") for r in rows}) == len(rows)
    tolerance = keyed(rows, *(["dtype"] if alone else ["dtype", "metric", "domain"]))
    found = {**row, "tolerance": tolerance, "applies_to": row.get("applies_to", "all")}
    return {k: v for k, v in found.items() if k not in ("id", "tolerances")}


def _row_tree(row: Tree) -> dict[str, Any]:
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


def _report(given: Path | Tree) -> Item:
    """A report that concludes no more than its parts carry. Raises GradproofError GP481."""
    from gradproof.report.consistency import require

    path = given if isinstance(given, Path) else Path(given["contract"]["id"])
    try:
        report = json.loads(path.read_text(encoding="utf-8") if given is path else json.dumps(given))
    except (OSError, ValueError, RecursionError) as e:
        raise unreadable(path, f"it cannot be read: {e}") from e
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
        "rounding": report["rounding"]["status"],
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
    own |= {"time_limit": row.get("time_limit"), "status": f"{row['outcome']}, {row['effect']}"}
    if row["effect"] != Effect.DISCHARGED:
        return own
    killed = [c["name"] for c in row["controls"] if c["killed"] is True and c["outcome"] == Outcome.REFUTED]
    covers = {c["name"]: {"reached": c["reached"]} for c in row["covers"]}
    more = {"shown": row["reach"], "taken": row["assumptions"], "covers": covers, "killed": killed}
    return {**own, **more, "domain": row.get("domain")}


# -- Two sides compared: the changes of each contract, what semver asks of its version, and the exit.
NEEDED = {
    Direction.WEAKENED: "major",
    Direction.UNDECIDED: "major",
    Direction.STRENGTHENED: "minor",
    Direction.NEUTRAL: "patch",
}
STEPS = ("none", "patch", "minor", "major")
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


def difference(old: Path, new: Path) -> Diff:
    """What changed from `old` to `new`. Raises GradproofError GP481, and ContractErrors."""
    return between(side(old), side(new))


def between(before: Side, after: Side) -> Diff:
    """What changed from one side to the other."""
    reasons = list(_open(before, after))
    contracts: list[dict[str, Any]] = []
    if not reasons:
        names = dict.fromkeys([*before.items, *after.items])
        pairs = [(before.items.get(name), after.items.get(name)) for name in names]
        if _alone(before, after):
            pairs = [(next(iter(before.items.values())), next(iter(after.items.values())))]
        contracts = [_contract(*pair, before, after) for pair in pairs]
        reasons = [i.open for pair in pairs for i in pair if i is not None and i.open]
        if before.settings or after.settings:
            changes = list(compare(before.settings, after.settings, diff_rules.SETTINGS))
            contracts.append(_row("pyproject.toml", "", "", changes))
    found = [change.direction for row in contracts for change in row["changes"]]
    totals = {direction: found.count(direction) for direction in Direction}
    undecided = totals[Direction.UNDECIDED] or reasons
    exit_ = Exit.BROKEN if totals[Direction.WEAKENED] else Exit.OPEN if undecided else Exit.MET
    named = (("old", before), ("new", after))
    sides = {name: {"path": str(s.path), "kind": s.kind, "digest": s.digest} for name, s in named}
    stated = {"schema": DIFF, "gradproof": __version__, **sides, "exit": str(exit_), "code": EXIT_CODE[exit_]}
    return Diff.model_validate({**stated, "open": reasons, "contracts": contracts, "totals": totals})


def _open(before: Side, after: Side) -> Iterator[str]:
    """Why two sides cannot be compared at all."""
    if before.kind != after.kind:
        yield f"{before.kind} and {after.kind} do not say the same things"
    elif not (set(before.items) & set(after.items)) and not _alone(before, after):
        yield f"no contract is on both sides: {', '.join(before.items)}; {', '.join(after.items)}"
    for name in before.items.keys() & after.items.keys():
        one, other = before.items[name].tree.get("profile"), after.items[name].tree.get("profile")
        if one != other and not (before.items[name].open or after.items[name].open):
            yield f"{name}: a report of profile {one} and one of profile {other} demand different things"


def _alone(before: Side, after: Side) -> bool:
    """Two single contracts under different names are one contract that was renamed, where an obligation is on both."""
    if before.kind != CONTRACT or len(before.items) != 1 or len(after.items) != 1:
        return False
    one, other = (next(iter(s.items.values())).tree.get("proof_obligations", {}) for s in (before, after))
    return bool(set(one) & set(other))


def _contract(old: Item | None, new: Item | None, before: Side, after: Side) -> dict[str, Any]:
    """One contract. One that is gone or new is one change."""
    there = new or old
    assert there is not None
    if old is None or new is None:
        way, word = (Direction.WEAKENED, "dropped") if new is None else (Direction.STRENGTHENED, "new")
        sides = (ABSENT if old is None else "it", ABSENT if new is None else "it")
        change = changed("contract", there.name, FieldChange(way, word, *sides))
        return _row(there.name, old.version if old else "", new.version if new else "", [change])
    if old.open or new.open:
        return _row(there.name, old.version, new.version, [])
    table = diff_rules.CONTRACT if before.kind == CONTRACT else diff_rules.EVIDENCE
    was, now = _shared(old.tree, new.tree)
    changes = list(compare(was, now, table))
    stated = [c for c in changes if c.place != "text"]
    claims = any(c.of == "claim" for c in stated)
    return _row(there.name, old.version, new.version, stated if claims else changes)


def _shared(*both: Tree) -> list[dict[str, Any]]:
    """Both trees. What is of evidence that counts is compared where it counts on both sides: else the effect tells.

    Of a check that is what its evidence shows, of a cell its reach.
    """
    trees = [deepcopy({k: v for k, v in tree.items() if k != "profile"}) for tree in both]
    for rows in _on_both(trees, "checks"):
        if not all(str(row.get("status")).endswith(f", {Effect.DISCHARGED}") for row in rows):
            _without(rows, "shown", "taken", "covers", "killed", "domain")
    for obligation in _on_both(trees, "obligations"):
        for cells in _on_both(obligation, "cells"):
            if any(cell.get("effect") != Effect.DISCHARGED for cell in cells):
                _without(cells, "reach")
    return trees


def _on_both(trees: Sequence[dict[str, Any]], key: str) -> list[list[dict[str, Any]]]:
    """The entries of a table that both trees have, each as a pair."""
    one, other = (tree.get(key, {}) for tree in trees)
    return [[one[name], other[name]] for name in one.keys() & other.keys()]


def _without(rows: Iterable[dict[str, Any]], *keys: str) -> None:
    for row in rows:
        for key in keys:
            row.pop(key, None)


def _row(name: str, old: str, new: str, changes: Sequence[ChangeShape]) -> dict[str, Any]:
    order = list(Direction)
    ranked = sorted(changes, key=lambda c: order.index(c.direction))
    claims = [NEEDED[c.direction] for c in changes if c.of == "claim"]
    needed = max(claims, key=STEPS.index, default="none")
    up = raised(old, new)
    enough = None if up is None else up != "lowered" and STEPS.index(up) >= STEPS.index(needed)
    version = {"old": old, "new": new, "needed": needed, "raised": up, "accordingly": enough}
    return {"contract": name, "version": version, "changes": ranked}


def raised(old: str, new: str) -> str | None:
    """Which part of X.Y.Z was raised: major, minor, patch, none, or `lowered`; None where one is no X.Y.Z."""
    found = [_VERSION.fullmatch(text) for text in (old, new)]
    if found[0] is None or found[1] is None:
        return None
    before, after = (tuple(map(int, m.groups())) for m in found if m is not None)
    if after < before:
        return "lowered"
    pairs = zip(("major", "minor", "patch"), before, after, strict=True)
    return next((name for name, a, b in pairs if a != b), "none")
