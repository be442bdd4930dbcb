"""Seconds of every proof with its controls, each in a worker of its own, one at a time, nothing cached."""

from __future__ import annotations

from typing import Any


def harnesses() -> list[dict[str, Any]]:
    """One row a proof of the contract: outcome, seconds, solver queries, controls."""
    from gradproof.core.outcome import Kind
    from gradproof.execution.local import Worker
    from gradproof.session import Options, Session

    session = Session(Options())
    rows = []
    for check in session.selected((Kind.STUB, Kind.SMT, Kind.CROSSHAIR)):
        evidence = Worker(check, session.workspace, check.time_limit).run()
        finding = evidence.finding
        row = {
            "check": check.id,
            "strategy": check.strategy,
            "outcome": finding.outcome,
            "seconds": round(evidence.seconds, 2),
            "queries": finding.stats.queries,
            "controls": len(finding.controls),
        }
        rows.append(row)
    return rows
