"""`gradproof merge` and `diff`: other folders of reports, taken into this workspace's store, and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import output_format, place, with_options
from gradproof.core.outcome import EXIT_CODE, Exit
from gradproof.report.text import compact

if TYPE_CHECKING:
    from gradproof.evidence.store import Merged
    from gradproof.report.diff import ComparedShape, Diff
    from gradproof.report.diff_rules import ChangeShape
    from gradproof.session import Options


@click.command("merge")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FOLDER...")
@place
@output_format("text", "json")
@with_options
def command(options: Options, folders: tuple[Path, ...], format_: str) -> int:
    """Take the evidence of other folders of reports into this workspace; `gradproof gate` judges it.

    Evidence is taken where it would be believed here: whole, of a planned check, and of the claim as it stands. Two
    answers to one claim that differ are an error, and nothing is taken. Exit code 4: a check has only evidence that was
    refused; 5: there was no evidence.
    """
    from gradproof.cli.outputs import open_session
    from gradproof.evidence.store import Store, merge

    session = open_session(options)
    checks = [check for checks in session.plans.values() for check in checks]
    merged = merge(checks, Store(session.workspace), folders)
    exit_ = Exit.NOTHING if merged.nothing else Exit.OPEN if merged.missing else Exit.MET
    if format_ == "json":
        click.echo(json.dumps(_data(merged, exit_), indent=1, ensure_ascii=False))
    else:
        _words(merged, exit_)
    return EXIT_CODE[exit_]


def _data(merged: Merged, exit_: Exit) -> dict[str, Any]:
    rows = {
        name: [{"check": f.check.id, "outcome": str(f.outcome), "path": str(f.path)} for f in found]
        for name, found in (("taken", merged.taken), ("kept", merged.kept))
    }
    refused = [{"path": str(path), "reason": reason} for path, reason in merged.refused]
    left = {"refused": refused, "strange": [str(p) for p in merged.strange], "missing": list(merged.missing)}
    return {"schema": "gradproof-merge/1", "exit": str(exit_), "code": EXIT_CODE[exit_], **rows, **left}


def _words(merged: Merged, exit_: Exit) -> None:
    for found in merged.taken:
        click.echo(f"taken    {found.outcome:<9} {found.check.id}")
    for path, reason in merged.refused:
        click.echo(f"refused  {path}: {reason}")
    for path in merged.strange:
        click.echo(f"passed   {path}: of no planned check")
    for name in merged.missing:
        click.echo(f"missing  {name}: no evidence of it is fresh")
    counts = f"{len(merged.taken)} taken, {len(merged.kept)} stored already, {len(merged.refused)} refused"
    click.echo(f"{counts} (exit {EXIT_CODE[exit_]}); gradproof gate judges")


# -- `gradproof diff`: what changed between two contracts or two sets of reports, and what became weaker.

SHOWN = 160


@click.command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@output_format("text", "json")
def diff(old: Path, new: Path, format_: str) -> int:
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
        yield from _compared(row)
    yield from (f"not compared: {reason}" for reason in found.open)
    counts = ", ".join(f"{count} {name}" for name, count in found.totals.items())
    said = {"met": "nothing became weaker", "broken": "something became weaker", "open": "not decided"}[found.exit]
    yield f"{counts}: {said} (exit {found.code})"


def _compared(row: ComparedShape) -> Iterator[str]:
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
