"""`gradproof claims`: every claim of the field with the verdict that the stored evidence gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import engine, output_format, with_options, workspace_option
from gradproof.core.outcome import EXIT_CODE, Exit

if TYPE_CHECKING:
    from gradproof.evidence.record import EvidenceStatus
    from gradproof.extras.claims.document import Claims
    from gradproof.extras.claims.load import ClaimLedger
    from gradproof.session import Options, Session

FILES = ("json", "md", "html")


@click.command("claims")
@workspace_option
@click.option("-k", "select", multiple=True, metavar="TEXT", help="Only rows whose id has TEXT, in full (repeatable).")
@output_format("text", *FILES)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for claims.json, claims.md and claims.html; all rows."
)
@click.option("--run", "first", is_flag=True, help="Run first what has no fresh answer of the checks that rows name.")
@engine
@with_options
def command(options: Options, format_: str, out: Path | None, first: bool) -> int:
    """Judge every row of proofs/claims.yaml on the stored evidence. Runs nothing without --run.

    Exit code 0: every verdict is as expected; 1: one is not; 4: evidence is missing or stale; 5: no such row.
    """
    from gradproof.cli.outputs import open_session
    from gradproof.extras.claims.document import FORMATS, markdown
    from gradproof.extras.claims.load import built

    select, options = options.select, replace(options, select=())
    if out is not None and select:
        raise click.UsageError("--out writes the whole ledger: leave -k out")
    if options.scheduler is not None and not first:
        raise click.UsageError("--engine runs checks: add --run")
    session = open_session(options)
    made = ran(session, select) if first else built(session, select)
    if not made.rows:
        click.echo("nothing selected: no claim has such an id", err=True)
        return EXIT_CODE[Exit.NOTHING]
    if out is not None:
        write(made, out)
    if format_ != "text":
        click.echo(FORMATS[format_](made), nl=False)
        return made.code
    from rich.console import Console

    from gradproof.report.text import draw

    draw(markdown(made, bool(select)), Console())
    return made.code


def ran(session: Session, select: tuple[str, ...]) -> Claims:
    """The rows, after a run of the checks that they name and of the stubs that these rest on."""
    from gradproof.cli.progress import listening
    from gradproof.extras.claims.load import chosen, claims_of, load
    from gradproof.verdict.plan import with_stubs

    ledger = load(session.workspace.root, session.checks)
    names = {check.id for claim in chosen(ledger, select) for _, check in ledger.named[claim.id]}
    with listening(quiet=False) as listener:
        run = session.run(with_stubs(session.checks, names), listener)
    return claims_of(session, ledger, run.statuses, select)


def write(made: Claims, folder: Path) -> None:
    """claims.json, claims.md and claims.html, each whole or not at all. Raises GradproofError GP407."""
    from gradproof.core.files import written
    from gradproof.extras.claims.document import FORMATS

    for ending in FILES:
        written(folder / f"claims.{ending}", FORMATS[ending](made))
    click.echo(f"claims: {folder / 'claims.html'}", err=True)


# -- The ledger of a workspace beside its reports. What judges one is imported for a workspace that has one.


def ledger_of(session: Session) -> ClaimLedger | None:
    """The ledger of a workspace that has one, where every contract was asked for. Raises ContractErrors."""
    from gradproof.extras.claims import FILE

    if session.options.contracts or not (session.workspace.root / FILE).is_file():
        return None
    from gradproof.extras.claims.load import load

    return load(session.workspace.root, session.checks)


def judged(session: Session, ledger: ClaimLedger | None, statuses: Mapping[str, EvidenceStatus]) -> Claims | None:
    """Every claim of a ledger, on evidence that has been read."""
    if ledger is None:
        return None
    from gradproof.extras.claims.load import claims_of

    return claims_of(session, ledger, statuses)
