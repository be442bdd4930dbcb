"""What builds on what: contracts, their dependencies, obligations and checks, each with how it stands on the evidence
at hand. Plain data, schema gradproof-graph/1; `gradproof.render.graph` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradproof.core import EXIT_MEANING, Effect, Exit, Layer

if TYPE_CHECKING:
    from gradproof.contract import Contract
    from gradproof.judge import Ruling, Verdict
    from gradproof.session import Session

GRAPH_SCHEMA = "gradproof-graph/1"
ABSENT = "ABSENT"
STATE: Mapping[Exit, Effect] = {Exit.MET: Effect.DISCHARGED, Exit.BROKEN: Effect.BROKEN}


def built(session: Session) -> dict[str, Any]:
    """The graph of the session's contracts and of what they build on; who depends on others comes first."""
    verdicts = session.verdicts({})
    rows = [_contract(session.known[name], verdict, verdicts) for name, verdict in reversed(verdicts.items())]
    return {"schema": GRAPH_SCHEMA, "profile": session.options.profile, "contracts": rows}


def state_of(verdict: Verdict | None) -> str:
    """DISCHARGED, BROKEN or OPEN; ABSENT for a contract that is not there."""
    return ABSENT if verdict is None else str(STATE.get(verdict.exit, Effect.OPEN))


def _contract(contract: Contract, verdict: Verdict, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    names = {o.id: o.property for o in contract.obligations}
    loose = [r for r in verdict.rulings.values() if not r.check.obligations]
    return {
        "id": contract.id,
        "version": contract.metadata.version,
        "path": str(contract.path),
        "state": state_of(verdict),
        "says": EXIT_MEANING[verdict.exit],
        "depends_on": [{"id": n, "state": state_of(verdicts.get(n))} for n in contract.metadata.depends_on],
        "obligations": [
            {
                "id": row.id,
                "property": names[row.id],
                "state": str(row.effect),
                "checks": [_check(r) for r in verdict.rulings.values() if row.id in r.check.obligations],
            }
            for row in verdict.obligations.values()
        ],
        "others": [_check(r) for r in loose],
    }


def _check(ruling: Ruling) -> dict[str, Any]:
    check = ruling.check
    return {
        "id": check.id,
        "layer": str(check.layer),
        "required": ruling.required,
        "expect": str(check.expect),
        "outcome": str(ruling.outcome),
        "state": str(ruling.effect),
        "depends_on": list(check.depends),
    }


def optional(row: Mapping[str, Any]) -> bool:
    """Whether a check is open and nothing demands it here: a GPU row in profile ci."""
    return row["state"] == Effect.OPEN and row["layer"] == Layer.CUDA and not row["required"]
