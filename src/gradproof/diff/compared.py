"""Two sides compared: the changes of each contract, what semver asks of its version, and the exit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradproof import __version__
from gradproof.core import EXIT_CODE, Effect, Exit
from gradproof.diff import rules
from gradproof.diff.document import DIFF, Diff
from gradproof.diff.orders import Direction
from gradproof.diff.rules import Change, compare
from gradproof.diff.sources import CONTRACT, Item, Side, side

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
    before, after = side(old), side(new)
    reasons = list(_open(before, after))
    contracts: list[dict[str, Any]] = []
    if not reasons:
        pairs = _pairs(before, after)
        contracts = [_contract(*pair, before, after) for pair in pairs]
        reasons = [i.open for pair in pairs for i in pair if i is not None and i.open]
        if before.settings or after.settings:
            changes = list(compare(before.settings, after.settings, rules.SETTINGS))
            contracts.append(_row("pyproject.toml", "", "", changes))
    found = [change["direction"] for row in contracts for change in row["changes"]]
    totals = {str(d): found.count(str(d)) for d in Direction}
    exit_ = Exit.BROKEN if totals["weakened"] else Exit.OPEN if totals["undecided"] or reasons else Exit.MET
    sides = {
        name: {"path": str(path), "kind": s.kind, "digest": s.digest}
        for name, path, s in (("old", old, before), ("new", new, after))
    }
    told = {"schema": DIFF, "gradproof": __version__, **sides, "exit": str(exit_), "code": EXIT_CODE[exit_]}
    return Diff.model_validate({**told, "open": reasons, "contracts": contracts, "totals": totals})


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


def _pairs(before: Side, after: Side) -> list[tuple[Item | None, Item | None]]:
    if _alone(before, after):
        return [(next(iter(before.items.values())), next(iter(after.items.values())))]
    names = dict.fromkeys([*before.items, *after.items])
    return [(before.items.get(name), after.items.get(name)) for name in names]


def _contract(old: Item | None, new: Item | None, before: Side, after: Side) -> dict[str, Any]:
    """One contract. One that is gone or new is one change."""
    there = new or old
    assert there is not None
    if old is None or new is None:
        way, word = (Direction.WEAKENED, "dropped") if new is None else (Direction.STRENGTHENED, "new")
        sides = (None if old is None else "it", None if new is None else "it")
        change = Change("contract", there.name, way, word, *sides, "claim")
        return _row(there.name, old.version if old else "", new.version if new else "", [change])
    if old.open or new.open:
        return _row(there.name, old.version, new.version, [])
    table = rules.CONTRACT if before.kind == after.kind == CONTRACT else rules.EVIDENCE
    changes = list(compare(*_shared(old.tree, new.tree), table))
    told = [c for c in changes if c.place != "text"]
    claims = any(c.of == "claim" for c in told)
    return _row(there.name, old.version, new.version, told if claims else changes)


def _shared(old: Any, new: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both trees. What is of evidence that counts is compared where it counts on both sides: else the effect tells."""
    trees = [{k: v for k, v in t.items() if k != "profile"} for t in (old, new)]
    checks: list[dict[str, Any]] = [dict(t.get("checks", {})) for t in trees]
    for name in checks[0].keys() & checks[1].keys():
        if all(str(rows[name].get("standing")).endswith(f", {Effect.DISCHARGED}") for rows in checks):
            continue
        for rows in checks:
            gone = ("shown", "taken", "covers", "killed", "domain")
            rows[name] = {k: v for k, v in rows[name].items() if k not in gone}
    for tree, rows in zip(trees, checks, strict=True):
        if rows:
            tree["checks"] = rows
    cells = [t.get("obligations", {}) for t in trees]
    for name in cells[0].keys() & cells[1].keys():
        _same_cells(cells[0], cells[1], name)
    return trees[0], trees[1]


def _same_cells(old: dict[str, Any], new: dict[str, Any], name: str) -> None:
    """Reach of a cell is compared where it is discharged on both sides."""
    both = [dict(side[name].get("cells", {})) for side in (old, new)]
    for layer in both[0].keys() & both[1].keys():
        if any(cells[layer].get("effect") != Effect.DISCHARGED for cells in both):
            for cells in both:
                cells[layer] = {k: v for k, v in cells[layer].items() if k != "reach"}
    for side_, cells in zip((old, new), both, strict=True):
        side_[name] = {**side_[name], "cells": cells}


def _row(name: str, old: str, new: str, changes: Sequence[Change]) -> dict[str, Any]:
    order = list(Direction)
    ranked = sorted(changes, key=lambda c: order.index(c.direction))
    claims = [NEEDED[c.direction] for c in changes if c.of == "claim"]
    needed = max(claims, key=STEPS.index, default="none")
    up = raised(old, new)
    enough = None if up is None else up != "lowered" and STEPS.index(up) >= STEPS.index(needed)
    version = {"old": old, "new": new, "needed": needed, "raised": up, "accordingly": enough}
    return {"contract": name, "version": version, "changes": [_plain(c) for c in ranked]}


def _plain(change: Change) -> dict[str, Any]:
    return {**asdict(change), "direction": str(change.direction)}


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
