"""`gradproof gate`: the verdict on the evidence at hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gradproof.cli.options import as_json, place, with_options

if TYPE_CHECKING:
    from gradproof.session import Options

MOST = 20


@click.command("gate")
@place
@as_json
@with_options
def command(options: Options, json_: bool) -> int:
    """Judge the evidence at hand against the contract as it stands. Runs nothing, writes nothing."""
    from gradproof.core import EXIT_MEANING, Exit
    from gradproof.session import Run, Session, worst

    session = Session(options)
    run = Run(session.standings(session.checks), frozenset(), True, False, 0.0)
    reports = [session.reported(contract, run) for contract in session.contracts]
    if json_:
        keys = ("schema", "run_state", "profile", "contract", "verdict", "gate", "totals")
        made = [{key: report[key] for key in keys} for report in reports]
        click.echo(json.dumps(made[0] if len(made) == 1 else made, indent=1, ensure_ascii=False))
        return worst(Exit(r["verdict"]["exit"]) for r in reports)
    for report in reports:
        verdict, gate = report["verdict"], report["gate"] or {}
        click.echo(f"{report['contract']['id']} {report['contract']['version']}, profile {report['profile']}")
        for criterion in gate.get("criteria", []):
            click.echo(f"  {'met' if criterion['met'] else 'NOT MET':<8} {criterion['name']}: {criterion['why']}")
        for reason in verdict["reasons"][:MOST]:
            click.echo(f"  - {reason}")
        if len(verdict["reasons"]) > MOST:
            click.echo(f"  - and {len(verdict['reasons']) - MOST} more: gradproof report shows all")
        click.echo(f"{EXIT_MEANING[Exit(verdict['exit'])]} (exit {verdict['code']})")
    return worst(Exit(r["verdict"]["exit"]) for r in reports)
