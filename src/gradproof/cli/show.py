"""What commands print besides a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradproof.core.outcome import EXIT_MEANING, Exit

if TYPE_CHECKING:
    from gradproof.session import Options, Session
    from gradproof.verdict.judge import Verdict


def opened(options: Options) -> Session:
    """A session; one line on stderr, whatever else is quiet, where it judges another workspace than the caller's."""
    from gradproof.session import Session

    return warned(Session(options))


def warned(session: Session) -> Session:
    """The session, after its warning on stderr where it has one."""
    if session.workspace.warning:
        click.echo(f"warning: {session.workspace.warning}", err=True)
    return session


def problems(session: Session, quiet: bool) -> None:
    """The contracts' warnings, one line each."""
    if quiet:
        return
    for contract in session.contracts:
        for w in contract.warnings:
            click.echo(f"{w.where}: warning {w.code}: {w.found}", err=True)


def verdict_line(report: Mapping[str, Any], page: Path) -> None:
    """The verdict in one line on stderr, how much was run, and where the page is."""
    verdict, rows = report["verdict"], report["checks"]
    cached = sum(row["cached"] for row in rows)
    ran = sum(row["fresh"] and not row["cached"] for row in rows)
    click.echo(
        f"{report['contract']['id']}: {EXIT_MEANING[Exit(verdict['exit'])]} (exit {verdict['code']}); "
        f"{cached} on stored evidence, {ran} run now, {len(rows) - cached - ran} not run, {report['seconds']:.1f} s",
        err=True,
    )
    click.echo(f"report: {page}", err=True)


def selection(verdict: Verdict, json_: bool, shard: str | None = None, warning: str | None = None) -> None:
    """The result of a selection, or of a shard of it: no report, only its checks and what they add up to."""
    import json

    rows = [
        {
            "id": r.check.id,
            "outcome": str(r.outcome),
            "effect": str(r.effect),
            "reason": r.reason,
            "reach": None if r.reach is None else str(r.reach),
            "cached": r.status.cached,
            "evidence": r.status.path,
        }
        for r in verdict.rulings.values()
    ]
    if json_:
        data = {"schema": "gradproof-selection/1", "exit": str(verdict.exit), "code": verdict.code}
        data |= {} if shard is None else {"shard": shard}
        data |= {} if warning is None else {"warning": warning}
        click.echo(json.dumps({**data, "reasons": list(verdict.reasons), "checks": rows}, indent=1))
        return
    for row in rows:
        seen = "  (cached)" if row["cached"] else ""
        click.echo(f"{row['effect']:<10} {row['outcome']:<9} {row['id']}{seen}")
        if row["effect"] != "DISCHARGED":
            click.echo(f"           {row['reason']}")
    good = sum(row["effect"] == "DISCHARGED" for row in rows)
    words = {Exit.MET: "as expected"}.get(verdict.exit, EXIT_MEANING[verdict.exit])
    click.echo(f"{good} of {len(rows)} selected checks DISCHARGED: {words} (exit {verdict.code})")
    what = "a selection" if shard is None else f"shard {shard}"
    click.echo(f"This is {what} and says nothing about the gate; gradproof gate does.")
