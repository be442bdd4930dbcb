"""`gradproof report` and `gradproof gate`: the stored evidence, rendered again, and its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradproof.cli.options import baseline, place, verbose_option, with_options
from gradproof.cli.outputs import formats as output_formats

if TYPE_CHECKING:
    from gradproof.session import Options


@click.command("report")
@place
@baseline
@output_formats
@verbose_option
@with_options
def command(options: Options, formats: tuple[str, ...], json_: bool, verbose: bool) -> int:
    """Judge the stored evidence, write the report files, and print one format. Runs nothing.

    json, md and html files are written in every case.
    """
    from gradproof.cli.claims import judged, ledger_of, write
    from gradproof.cli.outputs import Outputs, asked, begun, earlier, published
    from gradproof.core.outcome import Exit, worst

    wanted = asked(formats, json_)
    session = begun(options, wanted, reports=True)
    run = session.stored()
    claims = judged(session, ledger_of(session), run.statuses)
    if claims is not None:  # `gradproof claims` has its exit code
        write(claims, session.workspace.reports)
    with Outputs(wanted, session.workspace.warning) as outputs:
        made = published(session, run, claims, earlier(session), outputs.table, verbose)
        outputs.finish(made)
    return worst(Exit(report["verdict"]["exit"]) for report in made)


# -- `gradproof gate`: the verdict on the stored evidence.


@click.command("gate")
@place
@baseline
@output_formats
@verbose_option
@with_options
def gate(options: Options, formats: tuple[str, ...], json_: bool, verbose: bool) -> int:
    """Judge the stored evidence against the contract as it stands. Runs nothing, writes what --format names.

    With --baseline, a report.json or a folder of reports, nothing may be weaker than it was there.
    """
    from rich.console import Console

    from gradproof.cli.outputs import Outputs, asked, begun, earlier
    from gradproof.core.outcome import Exit, worst
    from gradproof.report.formats import summary

    wanted = asked(formats, json_)
    session = begun(options, wanted)
    run = session.stored()
    reports = session.reports(run)
    with Outputs(wanted, session.workspace.warning) as outputs:
        if outputs.table:
            summary.render(reports, Console(), earlier(session), most=None if verbose else summary.LINES)
        outputs.finish(reports)
    return worst(Exit(r["verdict"]["exit"]) for r in reports)
