"""`gradproof report`: the report, rendered again from the evidence at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradproof.cli.options import place, with_options

if TYPE_CHECKING:
    from gradproof.session import Options

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
    return worst(exits)
