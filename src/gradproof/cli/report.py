"""`gradproof report`: the report, rendered again from the stored evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradproof.cli.options import baseline, place, with_options
from gradproof.cli.outputs import formats as output_formats

if TYPE_CHECKING:
    from gradproof.extras.claims.document import Claims
    from gradproof.session import Options, Run, Session


@click.command("report")
@place
@baseline
@output_formats
@with_options
def command(options: Options, formats: tuple[str, ...], json_: bool) -> int:
    """Judge the stored evidence, write the report files, and print one format. Runs nothing.

    json, md and html files are written in every case.
    """
    from gradproof.cli.outputs import Outputs, asked, begun
    from gradproof.cli.show import verdict_line
    from gradproof.cli.verify import FORMATS, table
    from gradproof.core.outcome import Exit, worst
    from gradproof.extras.claims.stored import about

    wanted = asked(formats, json_)
    session = begun(options, wanted, reports=True)
    run = session.at_hand()
    claims, made = claimed(session, run), []
    with Outputs(wanted, len(session.contracts), session.workspace.warning) as outputs:
        for contract, report in zip(session.contracts, session.reports(run), strict=True):
            report |= about(claims, report)
            paths = session.write(contract, report, FORMATS)
            if outputs.table:
                table(report)
            verdict_line(report, paths["html"])
            made.append(report)
        outputs.finish(made)
    return worst(Exit(report["verdict"]["exit"]) for report in made)


def claimed(session: Session, run: Run) -> Claims | None:
    """The workspace's ledger, written beside the reports; `gradproof claims` has its exit code."""
    from gradproof.extras.claims.stored import judged, ledger_of

    claims = judged(session, ledger_of(session), run.statuses)
    if claims is not None:
        from gradproof.cli.claims import write

        write(claims, session.workspace.reports)
    return claims
