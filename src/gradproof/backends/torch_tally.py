"""What a property's walk over its grid gave: cells judged, covers reached, and the worst measured row of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradproof.backends.torch_property import Case, Cell, Observed


@dataclass
class Tally:
    """What the reference's walk over the grid gave."""

    judged: dict[str, int] = field(default_factory=dict)
    covers: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    runs: int = 0

    def add(self, case: Case, seen: Observed) -> None:
        """Count one passed case; keep the worst row of each kind."""
        self.runs += 1
        cell = str(Cell(case.net, case.n))
        self.judged[cell] = self.judged.get(cell, 0) + seen.judged
        self.notes |= seen.notes
        optimizer = {f"{case.optimizer} {case.form}"} if seen.judged else set()
        for name in seen.covers | optimizer:
            self.covers.setdefault(name, case.to_json())
        for row in seen.rows:
            key = (row["column"], row["net"], row["n"], row["note"])
            held = self.rows.get(key)
            if held is None or _badness(row) > _badness(held):
                self.rows[key] = {**row, "case": case.to_json()}


def _badness(row: Mapping[str, Any]) -> tuple[float, float]:
    return (row["ratio"] if row["ratio"] is not None else 0.0, row["measured"])
