"""`gradproof report` and `gradproof gate`: the stored evidence, rendered again, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gradproof.cli.options import baseline, place, with_options
from gradproof.cli.outputs import formats as output_formats

if TYPE_CHECKING:
    from gradproof.extras.claims.document import Claims
    from gradproof.session import Options, Outcomes, Session


@click.command("report")
@place
@baseline
@output_formats
@with_options
def command(options: Options, formats: tuple[str, ...], json_: bool) -> int:
    """Judge the stored evidence, write the report files, and print one format. Runs nothing.

    json, md and html files are written in every case.
    """
    from gradproof.cli.outputs import Outputs, asked, begun, published
    from gradproof.core.outcome import Exit, worst

    wanted = asked(formats, json_)
    session = begun(options, wanted, reports=True)
    run = session.stored()
    claims = claimed(session, run)
    with Outputs(wanted, len(session.contracts), session.workspace.warning) as outputs:
        made = published(session, run, claims, outputs.table)
        outputs.finish(made)
    return worst(Exit(report["verdict"]["exit"]) for report in made)


def claimed(session: Session, run: Outcomes) -> Claims | None:
    """The workspace's ledger, written beside the reports; `gradproof claims` has its exit code."""
    from gradproof.cli.claims import judged, ledger_of

    claims = judged(session, ledger_of(session), run.statuses)
    if claims is not None:
        from gradproof.cli.claims import write

        write(claims, session.workspace.reports)
    return claims


# -- `gradproof gate`: the verdict on the stored evidence.

MOST = 20


@click.command("gate")
@place
@baseline
@output_formats
@with_options
def gate(options: Options, formats: tuple[str, ...], json_: bool) -> int:
    """Judge the stored evidence against the contract as it stands. Runs nothing, writes what --format names.

    With --baseline, a report.json or a folder of reports, nothing may be weaker than it was there.
    """
    from gradproof.cli.outputs import Outputs, asked, begun
    from gradproof.core.outcome import Exit, worst

    wanted = asked(formats, json_)
    session = begun(options, wanted)
    run = session.stored()
    reports = session.reports(run)
    with Outputs(wanted, len(reports), session.workspace.warning) as outputs:
        if outputs.table:
            stated(reports, None if session.options.baselines else MOST)
        outputs.finish(reports)
    return worst(Exit(r["verdict"]["exit"]) for r in reports)


def stated(reports: Sequence[dict[str, Any]], most: int | None = MOST) -> None:
    """Criteria, reasons and verdict of each contract in words.

    `most`: that many reasons at most, for `gradproof report` shows all; None for all of them, as where a baseline was
    given that no other command has.
    """
    from gradproof.core.outcome import EXIT_MEANING, Exit
    from gradproof.report.views import waiver_words

    for report in reports:
        verdict, gate = report["verdict"], report["gate"] or {}
        click.echo(f"{report['contract']['id']} {report['contract']['version']}, profile {report['profile']}")
        for criterion in gate.get("criteria", []):
            click.echo(f"  {'met' if criterion['met'] else 'NOT MET':<8} {criterion['name']}: {criterion['why']}")
        for waiver in report["waivers"]:
            click.echo(f"  {waiver_words(waiver)}")
        for reason in verdict["reasons"][:most]:
            click.echo(f"  - {reason}")
        if most is not None and len(verdict["reasons"]) > most:
            click.echo(f"  - and {len(verdict['reasons']) - most} more: gradproof report shows all")
        click.echo(f"{EXIT_MEANING[Exit(verdict['exit'])]} (exit {verdict['code']})")
