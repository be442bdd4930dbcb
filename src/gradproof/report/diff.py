"""What is compared, as trees of plain data: contracts with the settings beside them, or reports.

A tree holds what says something: empty values and defaults are left out, rows are found by their ids.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from gradproof import __version__
from gradproof.core.check import digest_of
from gradproof.core.errors import GradproofError
from gradproof.core.outcome import EXIT_CODE, Effect, Exit, Expect, Outcome
from gradproof.core.schemas.base import DocumentModel, Sha256, Tally
from gradproof.report.diff_rules import ABSENT, CHECKS, CONTRACT, RULES, SETTINGS, ChangeShape, Direction, Rule, compare

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
        wanted = _concluded(self.contracts, self.open)
        if self.totals != wanted["totals"]:
            raise ValueError("the totals do not count the changes")
        if (self.exit, self.code) != (wanted["exit"], wanted["code"]):
            raise ValueError(f"the exit is {self.exit}, and the changes make it {wanted['exit']}")
        return self


def _concluded(rows: Iterable[ComparedShape], reasons: Sequence[str]) -> dict[str, Any]:
    """The totals of the changes, and the exit that they and the reasons make."""
    directions = [change.direction for row in rows for change in row.changes]
    totals = {direction: directions.count(direction) for direction in Direction}
    undecided = totals[Direction.UNDECIDED] or reasons
    exit_ = Exit.BROKEN if totals[Direction.WEAKENED] else Exit.OPEN if undecided else Exit.MET
    return {"totals": totals, "exit": str(exit_), "code": EXIT_CODE[exit_]}


# -- The two sides, read.
OBLIGATIONS, WAIVER = "proof_obligations", ("obligation", "layer")
Tree = Mapping[str, Any]


class Item(NamedTuple):
    """One contract, or what was shown of it. `open`: why nothing can be said of it; else an empty text."""

    name: str
    version: str
    tree: Any
    open: str = ""


class Side(NamedTuple):
    """One side: its place, kind and digest, its items by contract id, and the settings of a workspace."""

    shape: SideShape
    items: Mapping[str, Item]
    settings: Tree


def side(path: Path) -> Side:
    """What lies at a path. Raises GradproofError GP481, and ContractErrors for a contract that is wrong."""
    if not path.is_dir():
        return side_of(path, [path]) if path.suffix == ".json" else _side(path, "contract", [_contract_tree(path)], {})
    if contracts := sorted(path.glob("proofs/*/contract.yaml")):
        return _side(path, "contract", [_contract_tree(p) for p in contracts], _settings(path / "pyproject.toml"))
    return side_of(path, [p for p in [path / "report.json", *sorted(path.glob("*/report.json"))] if p.is_file()])


def side_of(path: Path, reports: Iterable[Path | Tree]) -> Side:
    """Reports, in files or as they are before they are written. Raises GradproofError GP481."""
    return _side(path, "report", [_report(report) for report in reports], {})


def _side(path: Path, kind: str, items: Sequence[Item], settings: Tree) -> Side:
    found = {item.name: item for item in items}
    if len(found) < len(items) or not items:
        raise unreadable(path, "two contracts have one name" if items else "it holds no contract and no report")
    digest = digest_of([*([i.name, i.version, i.open, i.tree] for i in items), settings])
    shape = SideShape.model_validate({"path": str(path), "kind": kind, "digest": digest})
    return Side(shape, found, settings)


def unreadable(path: Path, why: str) -> GradproofError:
    """GP481: nothing at this path can be compared."""
    expected = "a contract.yaml, a workspace, a report.json, or a folder of reports"
    return GradproofError("GP481", f"{path}: {why}", expected, "name one of these")


def _trimmed(table: Tree) -> dict[str, Any]:
    """Without what says nothing: None, empty texts, lists and mappings, at every depth of mappings."""
    kept = {key: _trimmed(x) if isinstance(x, Mapping) else x for key, x in table.items()}
    return {key: x for key, x in kept.items() if x not in (None, "", [], {})}


def _without(row: Tree, *names: str) -> dict[str, Any]:
    return {key: x for key, x in row.items() if key not in names}


def _picked(row: Tree, must: str, may: str = "") -> dict[str, Any]:
    """Fields of a row: those that must be there, and those that may."""
    return {key: row[key] for key in must.split()} | {key: row[key] for key in may.split() if key in row}


def keyed(rows: Iterable[Any], *names: str) -> dict[str, Any]:
    """Rows by these fields of theirs; a second one of a name has a number."""
    found: dict[str, Any] = {}
    for row in rows:
        base = " ".join(str(row[n]) for n in names if row.get(n)) or "unnamed"
        numbered = (f"{base} #{number}" if number > 1 else base for number in count(1))
        found[next(key for key in numbered if key not in found)] = row
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
    gate = raw.get("qa_gate") or {}
    bugs, waivers = gate.get("seeded_bug", []), keyed(gate.get("waivers", []), *WAIVER)
    tree = {
        **raw,
        "metadata": _without(raw["metadata"], "version"),
        OBLIGATIONS: {o.id: _obligation(o.raw) for o in contract.obligations},
        **{at: {key: _check(row) for key, row in keyed(raw.get(at, []), "id").items()} for at in CHECKS},
        "kernel_structure": {"phases": keyed(raw.get("kernel_structure", {}).get("phases", []), "name")},
        "qa_gate": {**gate, "seeded_bug": bugs if isinstance(bugs, list) else [bugs], "waivers": waivers},
    }
    return Item(contract.id, contract.metadata.version, _trimmed(tree) | {"text": contract.digest})


def _obligation(row: Tree) -> dict[str, Any]:
    given = row.get("tolerance", row.get("tolerances", []))
    given = given if isinstance(given, list) else [{"value": given}]
    rows = [{**r, "role": r.get("role", "required")} for r in given]
    alone = len({r.get("dtype") for r in rows}) == len(rows)
    tolerance = keyed(rows, "dtype", *([] if alone else ["metric", "domain"]))
    return _without(row, "id", "tolerances") | {"tolerance": tolerance, "applies_to": row.get("applies_to", "all")}


def _check(row: Tree) -> dict[str, Any]:
    """A check of a contract. What a row of the field names as one obligation is a list of one."""
    obligations = [*filter(None, [row.get("obligation")]), *row.get("obligations", [])]
    bounds = {name: _without(b, "name") for name, b in keyed(row.get("bounds", []), "name").items()}
    own = {"obligations": obligations, "expect": row.get("expect", str(Expect.HOLDS)), "bounds": bounds}
    return _without(row, "id", "obligation") | own


def _settings(path: Path) -> Tree:
    """`[tool.gradproof]`; empty where there is none. Raises GradproofError GP481."""
    if not os.path.lexists(path):
        return {}
    try:
        if not path.is_file():
            raise OSError("it is no file")
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("gradproof", {})
        waivers = keyed(table.get("waivers", []), *WAIVER)
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise unreadable(path, f"it has no [tool.gradproof] that can be read: {e}") from e
    return _trimmed({**table, "waivers": json.loads(json.dumps(waivers, default=str))})


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
        running = report["run_state"] == "running"
        why = f"{path}: its run has not finished, or it was killed" if running else ""
        contract = report["contract"]
        return Item(contract["id"], str(contract["version"]), {} if running else _of_report(report), why)
    except GradproofError as e:
        raise unreadable(path, e.found) from e
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise unreadable(path, f"it is no whole report: {type(e).__name__}: {e}") from e


def _of_report(report: Tree) -> Tree:
    contract, gate = report["contract"], report["gate"] or {}
    shown = gate.get("falsification", {})
    tree = {
        "depends_on": contract.get("depends_on", []),
        "gate": gate
        and {
            **_picked(gate, "", "id name description pass_criteria"),
            "criteria": {c["name"]: _picked(c, "obligations met") for c in gate.get("criteria", [])},
            "falsification": shown.get("text"),
            "turned_red": shown.get("turned_red") is True,
        },
        "obligations": {o["id"]: _ruled(o) for o in report["obligations"]},
        "checks": {c["id"]: _judged(c) for c in report["checks"]},
        "mutants": {m["name"]: {"killed": bool(m["killed_by"]) and not m["survived"]} for m in report["mutants"]},
        "waivers": keyed([_without(w, "state", "cells") for w in report.get("waivers", [])], *WAIVER),
        "run_state": report["run_state"],
        "rounding": report["rounding"]["status"],
        "text": contract.get("digest", ""),
    }
    return {**_trimmed(tree), "profile": report["profile"]}


def _ruled(row: Tree) -> dict[str, Any]:
    """A row of the coverage matrix. Its reach counts where it is discharged; elsewhere the effect says enough."""
    cells = {}
    for layer, cell in row["cells"].items():
        reach = "reach" if cell["effect"] == Effect.DISCHARGED else ""
        cells[layer] = _picked(cell, "required effect", f"subject {reach}")
    return _obligation(_picked(row, "", "type formal property assumptions tolerances effect")) | {"cells": cells}


def _judged(row: Tree) -> dict[str, Any]:
    """A check of a report. `shown`, `taken`, `covers`, `killed` and `domain` are of evidence that counts."""
    names = "obligations expect strategy stubs mutants harness title kind layer params subject required"
    bounds = {b["name"]: _picked(b, "value reason") for b in row["bounds"]}
    own = {**_picked(row, "", names), "bounds": bounds, **_picked(row, "", "time_limit")}
    own["status"] = f"{row['outcome']}, {row['effect']}"
    if row["effect"] != Effect.DISCHARGED:
        return own
    killed = [c["name"] for c in row["controls"] if c["killed"] is True and c["outcome"] == Outcome.REFUTED]
    covers = {c["name"]: _picked(c, "reached") for c in row["covers"]}
    more = {"shown": row["reach"], "taken": row["assumptions"], "covers": covers, "killed": killed}
    return {**own, **more, **_picked(row, "", "domain")}


# -- Two sides compared: the changes of each contract, what semver asks of its version, and the exit.
STEPS = ("lowered", "none", "patch", "minor", "major")
NEEDED = dict(zip(Direction, ("major", "major", "minor", "patch"), strict=True))
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})", re.ASCII)


def difference(old: Path, new: Path) -> Diff:
    """What changed from `old` to `new`. Raises GradproofError GP481, and ContractErrors."""
    return between(side(old), side(new))


def between(before: Side, after: Side) -> Diff:
    """What changed from one side to the other."""
    pairs = _pairs(before, after)
    reasons = list(_open(before, after, pairs))
    contracts = [] if reasons else [_compared(*pair) for pair in pairs]
    if contracts and (before.settings or after.settings):
        old, new = (Item("pyproject.toml", "", one.settings) for one in (before, after))
        contracts.append(_compared(old, new, SETTINGS))
    reasons = reasons or [item.open for pair in pairs for item in pair if item.open]
    sides = {"old": before.shape, "new": after.shape, "contracts": contracts, "open": reasons}
    return Diff.model_validate({"schema": DIFF, "gradproof": __version__, **sides, **_concluded(contracts, reasons)})


def _pairs(before: Side, after: Side) -> list[tuple[Item, Item]]:
    """What has one name. Two single contracts with a common obligation are one contract that was renamed."""
    old, new = (list(one.items.values()) for one in (before, after))
    if len(old) == len(new) == 1 and {*old[0].tree.get(OBLIGATIONS, {})} & {*new[0].tree.get(OBLIGATIONS, {})}:
        return [(old[0], new[0])]
    names = dict.fromkeys([*before.items, *after.items])
    return [(before.items.get(n, Item(n, "", ABSENT)), after.items.get(n, Item(n, "", ABSENT))) for n in names]


def _open(before: Side, after: Side, pairs: Iterable[tuple[Item, Item]]) -> Iterator[str]:
    """Why two sides cannot be compared at all."""
    both = [(old, new) for old, new in pairs if ABSENT not in (old.tree, new.tree)]
    if before.shape.kind != after.shape.kind:
        yield f"{before.shape.kind} and {after.shape.kind} do not say the same things"
    elif not both:
        yield f"no contract is on both sides: {', '.join(before.items)}; {', '.join(after.items)}"
    for old, new in both:
        one, other = old.tree.get("profile"), new.tree.get("profile")
        if one != other and not (old.open or new.open):
            yield f"{new.name}: a report of profile {one} and one of profile {other} demand different things"


def _compared(old: Item, new: Item, rules: tuple[Rule, ...] = RULES) -> ComparedShape:
    """One contract, or the settings. A contract that is gone or new is one change."""
    if ABSENT in (old.tree, new.tree):
        found = [*compare(old.tree, new.tree, CONTRACT, (new.name,))]
    else:
        found = [] if old.open or new.open else [*compare(old.tree, new.tree, rules)]
    claimed = any(c.of == "claim" and c.place != "text" for c in found)  # a changed claim changes the text
    found = [c for c in found if not claimed or (c.kind, c.place) != ("words", "text")]
    found.sort(key=lambda c: list(Direction).index(c.direction))
    needed = next((NEEDED[c.direction] for c in found if c.of == "claim"), "none")
    up = raised(old.version, new.version)
    enough = None if up is None else STEPS.index(up) >= STEPS.index(needed)
    version = {"old": old.version, "new": new.version, "needed": needed, "raised": up, "accordingly": enough}
    return ComparedShape.model_validate({"contract": new.name, "version": version, "changes": found})


def raised(old: str, new: str) -> str | None:
    """Which part of X.Y.Z was raised: major, minor, patch, none, or `lowered`; None where one is no X.Y.Z."""
    before, after = ([*map(int, m.groups())] if (m := _VERSION.fullmatch(text)) else [] for text in (old, new))
    if not before or not after:
        return None
    parts = zip(STEPS[:1:-1], before, after, strict=True)
    return "lowered" if after < before else next((name for name, a, b in parts if a != b), "none")
