"""The ledger of a workspace beside its reports. What reads and judges one is imported for a workspace that has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

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
