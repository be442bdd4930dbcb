"""`gradproof diff`: what changed between two contracts or two sets of reports, and what became weaker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import output_format
from gradproof.report.text import compact

if TYPE_CHECKING:
    from gradproof.report.diff import ComparedShape, Diff
    from gradproof.report.diff_rules import ChangeShape

SHOWN = 160


@click.command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@output_format("text", "json")
def command(old: Path, new: Path, format_: str) -> int:
    """Say what changed from OLD to NEW, and call a weakening a weakening.

    Both are contracts (contract.yaml, or workspaces), or both are reports (report.json, or folders of them). Exit
    code 0: nothing became weaker; 1: something did; 4: something cannot be compared, or no order decides it.
    """
    from gradproof.report.diff import difference

    found = difference(old, new)
    click.echo(found.model_dump_json(by_alias=True, indent=1) if format_ == "json" else "\n".join(stated(found)))
    return found.code


def stated(found: Diff) -> Iterator[str]:
    """A comparison in words, weakenings first."""
    for row in found.contracts:
        yield from _contract(row)
    yield from (f"not compared: {reason}" for reason in found.open)
    counts = ", ".join(f"{count} {name}" for name, count in found.totals.items())
    said = {"met": "nothing became weaker", "broken": "something became weaker", "open": "not decided"}[found.exit]
    yield f"{counts}: {said} (exit {found.code})"


def _contract(row: ComparedShape) -> Iterator[str]:
    version = row.version
    yield f"{row.contract} {version.old} -> {version.new}" if version.old or version.new else row.contract
    yield from (f"  {_change(change)}" for change in row.changes)
    if not row.changes:
        yield "  no change was seen"
    elif version.raised is not None:
        enough = "which is enough" if version.accordingly else "which is NOT enough"
        yield f"  version: the claims ask for {version.needed}; raised: {version.raised}, {enough}"
    elif version.old or version.new:
        yield f"  version: the claims ask for {version.needed}; these two are not both X.Y.Z"


def _change(change: ChangeShape) -> str:
    way = change.direction.upper() if change.direction in ("weakened", "undecided") else change.direction
    sides = ["nothing" if x is None else compact(x, SHOWN) for x in (change.old, change.new)]
    values = "" if {change.old, change.new} <= {None, "it"} else f": {sides[0]} -> {sides[1]}"
    return f"{way:<12} {change.kind} {change.place}, {change.word}{values}"
