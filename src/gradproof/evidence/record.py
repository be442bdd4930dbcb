"""How a run is written down, as plain data: a worker loads no pydantic. What a reader insists on is the shape in
gradproof.core.schemas.evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import EVIDENCE_SCHEMA, Outcome

if TYPE_CHECKING:
    from gradproof.core.schemas.evidence import Evidence

ANSWERS = frozenset({Outcome.HOLDS, Outcome.REFUTED, Outcome.WEAK, Outcome.VACUOUS})


class NotPlain(ValueError):
    """A value that evidence cannot hold: its place and what it is."""


def plain(value: Any, place: str = "finding") -> Any:
    """JSON form of what a backend returned. Raises NotPlain for other types and for NaN and infinity."""
    if isinstance(value, Enum):
        return plain(value.value, place)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise NotPlain(f"{place} is {value}, not a finite number")
    if isinstance(value, Mapping):
        return {_key(k, place): plain(v, f"{place}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, f"{place}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v, place) for v in value)
    if isinstance(value, (Fraction, Path)):
        return str(value)
    raise NotPlain(f"{place} is a {type(value).__module__}.{type(value).__name__}")


def _key(key: Any, place: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, (str, int)):
        return str(key)
    raise NotPlain(f"{place} has a key of type {type(key).__name__}")


def now() -> str:
    """UTC time, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def record(
    check: Check,
    finding: Finding,
    *,
    inputs: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    started_at: str = "",
    seconds: float = 0.0,
) -> dict[str, Any]:
    """One run as an evidence dict. A finding that is not plain data becomes an ERROR that says where."""
    try:
        found = plain(asdict(finding))
    except NotPlain as e:
        found = plain(asdict(Finding(Outcome.ERROR, f"the backend returned no plain data: {e}")))
    finished = now()
    return {
        "schema": EVIDENCE_SCHEMA,
        "check": plain(check.to_json(), "check"),
        "claim": {"spec": check.digest, "files": {}, "imports": [], **(inputs or {})},
        "finding": found,
        "environment": dict(environment or {}),
        "started_at": started_at or finished,
        "finished_at": finished,
        "seconds": round(float(seconds), 3),
    }


@dataclass(frozen=True)
class EvidenceStatus:
    """The evidence that a check has at present: `reason` says why it is missing or not fresh."""

    evidence: Evidence | None
    fresh: bool
    reason: str = ""
    path: str | None = None
    cached: bool = False

    @property
    def outcome(self) -> Outcome:
        """What the evidence says of the claim as it stands now: NOT_RUN unless it is fresh."""
        if self.evidence is None or not self.fresh:
            return Outcome.NOT_RUN
        return self.evidence.finding.outcome
