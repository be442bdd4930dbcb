"""`gradproof report`: the report, rendered again from the evidence at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradproof.cli.options import place, with_options

if TYPE_CHECKING:
    from gradproof.session import Options, Session

FILES = ("json", "md", "html")


@click.command("report")
@place
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", *FILES]),
    default="text",
    show_default=True,
    help="What to print; json, md and html files are written in every case.",
)
@with_options
def command(options: Options, format_: str) -> int:
    """Judge the evidence at hand, write the report files, and print one format. Runs nothing."""
    from gradproof.cli.show import verdict_line
    from gradproof.cli.verify import table
    from gradproof.core import Exit
    from gradproof.session import Run, Session, rendering, worst

    session = Session(options)
    run = Run(session.standings(session.checks), frozenset(), True, False, 0.0)
    exits = []
    for contract in session.contracts:
        report = session.reported(contract, run)
        paths = session.write(contract, report, FILES)
        if format_ == "text":
            table(report)
        else:
            click.echo(rendering(format_)(report), nl=False)
        verdict_line(report, paths["html"])
        exits.append(Exit(report["verdict"]["exit"]))
    if not options.contracts:
        claimed(session)
    return worst(exits)


def claimed(session: Session) -> None:
    """The workspace's ledger, written beside the reports; `gradproof claims` has its exit code."""
    from gradproof.ledger.build import built
    from gradproof.ledger.read import FILE

    if (session.workspace.root / FILE).is_file():
        from gradproof.cli.claims import write

        write(built(session), session.workspace.reports)
