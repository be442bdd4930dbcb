"""What was measured, as tables and as JSON. Rationals are strings in the JSON, with a float beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rich.table import Table

from tests.bench.measure import HOLDS, UNSOUND, Said
from tests.bench.sides import Row

Attained = Callable[[int], Fraction]


def said_json(said: Said, reached: Fraction | None = None) -> dict[str, Any]:
    """One measurement; `ratio` is the bound over what is attained."""
    found: dict[str, Any] = {"word": said.word, "seconds": round(said.seconds, 4), "reason": said.reason}
    if said.bound is not None:
        found |= {"bound": str(said.bound), "bound_float": float(said.bound)}
        found["ratio"] = float(said.bound / reached) if reached else None
    return found


def rows_json(rows: Sequence[Row], attained: Attained) -> list[dict[str, Any]]:
    """The rows of the comparison."""
    return [
        {
            "tool": row.tool,
            "largest_n": row.largest,
            "answers": {str(n): said_json(said, attained(n)) for n, said in sorted(row.answers.items())},
        }
        for row in rows
    ]


def cell(said: Said, reached: Fraction) -> str:
    """Bound, ratio and seconds; without a bound the word and the seconds."""
    lines = [] if said.word == HOLDS else [said.word]
    if said.bound is not None:
        lines += [f"{float(said.bound):.3e}", f"ratio {float(said.bound / reached):.3f}"]
    return "\n".join([*lines, f"{said.seconds:.2f} s" if said.seconds else "-"])


def side_table(rows: Sequence[Row], sizes: Sequence[int], attained: Attained, limit: float) -> Table:
    """Tools below each other, N beside each other, what is attained on top."""
    table = Table(title=f"GA-EQ-001, fp32, |g| <= 1, g / N, left to right; {limit:g} s a claim", show_lines=True)
    table.add_column("tool")
    for n in sizes:
        table.add_column(f"N={n}", justify="right")
    table.add_column(f"largest N\nin {limit:g} s", justify="right")
    table.add_row("attained by an input", *(f"{float(attained(n)):.3e}" for n in sizes), "")
    for row in rows:
        cells = [cell(row.answers[n], attained(n)) for n in sizes]
        table.add_row(row.tool, *cells, str(row.largest or "none"), style="red" if row.unsound() else "")
    return table


def rung_lines(built: Mapping[int, Said], against: Mapping[str, Any], lemmas: Said) -> list[str]:
    """The rows of our own, one line each."""
    lines = []
    for n, said in built.items():
        what = f"{said.seconds:.2f} s" if said.word == HOLDS else f"{said.word}: {said.reason}"
        lines.append(f"linear chain, N = {n}, certificate built and checked, imports apart: {what}")
    faster = against["times_faster"]
    times = "not known" if faster is None else f"{faster:.0f} times faster than Gappa"
    lines.append(f"N = {against['n']}: {times} (Gappa {against['gappa_seconds']:.1f} s, {against['gappa_from']})")
    took = f", {lemmas.seconds:.0f} s" if lemmas.seconds else ""
    lines.append(f"step contracts from nothing: {lemmas.word}{took} ({lemmas.reason})")
    return lines


def harness_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Time per proof."""
    table = Table("check", "strategy", "outcome", "seconds", "solver queries", "controls", title="Time per harness")
    for row in rows:
        table.add_row(*("-" if v is None else str(v) for v in row.values()))
    return table


def wrong(built: Mapping[int, Said]) -> list[str]:
    """One line for each certificate whose bound is wrong."""
    return [f"linear chain at N = {n}: {said.reason}" for n, said in built.items() if said.word == UNSOUND]
