"""`gradproof merge`: evidence of other folders of reports, taken into this workspace's store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import output_format, place, with_options
from gradproof.core.outcome import EXIT_CODE, Exit

if TYPE_CHECKING:
    from gradproof.evidence.merge import Merged
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
    from gradproof.evidence.merge import merge
    from gradproof.evidence.store import Store

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
