"""The ledger of a workspace beside its reports. What reads and judges one is imported for a workspace that has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradproof.extras.claims import FILE

if TYPE_CHECKING:
    from gradproof.evidence.record import EvidenceStatus
    from gradproof.extras.claims.document import Claims
    from gradproof.extras.claims.load import ClaimLedger
    from gradproof.session import Session


def ledger_of(session: Session) -> ClaimLedger | None:
    """The ledger of a workspace that has one, where every contract was asked for. Raises ContractErrors."""
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


def about(claims: Claims | None, report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report says of claims: those that one of its checks decides. Nothing without a ledger."""
    if claims is None:
        return {}
    ids = {check["id"] for check in report["checks"]}
    rows = [row for row in claims.rows if ids & {check.id for check in row.checks}]
    keys = ("id", "claim", "verdict", "effect")
    return {"claims": [{k: getattr(r, k) for k in keys} | {"checks": [c.id for c in r.checks]} for r in rows]}
