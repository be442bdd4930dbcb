"""Measured rows of a report, gathered for a plot and its tables.

Three columns that are never mixed: accumulation error (has a proven bound), end-to-end difference (has none), and
what lies outside the contract's assumptions. Errors are absolute, L-infinity, in units of the gradient (|g| <= 1).
Every other column is a quantity of the workspace's own, such as peak bytes, beside the limit that its harness states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradproof.render.consistency import Report, exceeds
from gradproof.render.fmt import one_line

Row = Mapping[str, Any]
COLUMNS = ("accumulation", "end_to_end", "outside_assumptions")


@dataclass(frozen=True)
class Group:
    """All rows of one dtype, device and N: the row with the largest error, and the worst ratio of any of them."""

    dtype: str
    device: str
    n: int
    rows: int
    largest: Row
    worst_ratio: float | None
    above: int

    @property
    def verdict(self) -> str:
        """In words, against the bound."""
        if self.above:
            return f"ABOVE the bound in {self.above} of {self.rows} rows"
        return "no proven bound" if self.largest.get("bound") is None else "within"


@dataclass(frozen=True)
class Summary:
    """Differences without a proven bound of one device, dtype and note: the row with the largest, and what was run."""

    device: str
    dtype: str
    note: str
    rows: int
    nets: tuple[str, ...]
    sizes: tuple[int, ...]
    largest: Row


@dataclass(frozen=True)
class Quantity:
    """A quantity of the workspace's own, on one device and dtype: the row that comes nearest to its limit, and more."""

    name: str
    device: str
    dtype: str
    rows: int
    nets: tuple[str, ...]
    sizes: tuple[int, ...]
    nearest: Row
    above: int

    @property
    def verdict(self) -> str:
        """In words, against the limit."""
        if self.above:
            return f"ABOVE the limit in {self.above} of {self.rows} rows"
        return "no limit is stated" if self.nearest.get("bound") is None else "within"


def column(report: Report, name: str) -> list[Row]:
    """The rows of one column."""
    return [r for r in report["measurements"] if r["column"] == name]


def size(row: Row) -> float:
    """Measured error for ordering: a NaN sorts above everything."""
    value = float(row["measured"])
    return math.inf if math.isnan(value) else value


def groups(rows: Iterable[Row]) -> list[Group]:
    """One group for each dtype, device and N, in that order."""
    made = _gathered(rows, lambda r: (r["dtype"], r["device"], r["n"]))
    order = {dtype: place for place, dtype in enumerate(dict.fromkeys(key[0] for key in made))}
    found = []
    for (dtype, device, n), members in sorted(made.items(), key=lambda kv: (order[kv[0][0]], kv[0][1], kv[0][2])):
        ratios = [r["ratio"] for r in members if r.get("ratio") is not None]
        above = sum(exceeds(r) for r in members)
        top = max(members, key=size)
        found.append(Group(dtype, device, n, len(members), top, max(ratios, default=None), above))
    return found


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """One summary for each device, dtype and note (what was compared, and in which mode), in order of appearance."""
    made = _gathered(rows, lambda r: (r["device"], r["dtype"], one_line(r.get("note") or "")))
    return [
        Summary(device, dtype, note, len(members), *_ran(members), max(members, key=size))
        for (device, dtype, note), members in made.items()
    ]


def quantities(report: Report) -> list[Quantity]:
    """One for each column of the workspace's own, device and dtype, in order of appearance, without rows not run."""
    own = [r for r in report["measurements"] if r["column"] not in COLUMNS and r["measured"] is not None]
    made = _gathered(own, lambda r: (one_line(r["column"]), r["device"], r["dtype"]))
    return [
        Quantity(
            name, device, dtype, len(members), *_ran(members), max(members, key=_share), sum(map(exceeds, members))
        )
        for (name, device, dtype), members in made.items()
    ]


def _gathered(rows: Iterable[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their keys, in order of appearance."""
    made: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        made.setdefault(key(row), []).append(row)
    return made


def _ran(rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The nets of some rows in order of appearance, and their N in rising order."""
    return tuple(dict.fromkeys(r["net"] for r in rows)), tuple(sorted({r["n"] for r in rows}))


def _share(row: Row) -> tuple[float, float]:
    """How much of its limit a row takes, for ordering; a row above it comes before all others."""
    limit, value = row.get("bound"), size(row)
    if exceeds(row):
        return math.inf, value
    return (value / limit if limit else 0.0), value
