"""The shape of one evidence file: how a run is written down, and what a reader insists on.

Format `gradproof-evidence/2`: check, claim (spec digest, files, imports), finding, environment, times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradproof.core.check import Check, Finding
from gradproof.core.outcome import EVIDENCE_SCHEMA, Outcome

ANSWERS = frozenset({Outcome.HOLDS, Outcome.REFUTED, Outcome.WEAK, Outcome.VACUOUS})
SKEW = timedelta(hours=1)  # by which the clocks of two machines may differ
YEARS = range(1971, 9999)  # with a day to spare on either side of every zone


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


def when(text: str) -> datetime:
    """The time that evidence states. Raises ValueError for a text that is none, has no zone or is out of all bounds."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(f"{text!r} is no time with a zone")
    if found.year not in YEARS:
        raise ValueError(f"{text!r} is no time of a run")
    return found


def misdated(data: Mapping[str, Any]) -> str:
    """Why the times of evidence cannot be true, or an empty text. They order evidence and tell its age."""
    began, ended = when(data["started_at"]), when(data["finished_at"])
    if ended > datetime.now(UTC) + SKEW:
        return f"it ended at {data['finished_at']}, which is in the future"
    return "it ended before it began" if ended < began - SKEW else ""


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


def validate(data: Any) -> Check:
    """The check that an evidence dict speaks about. Raises ValueError with the reason on any other shape."""
    if not isinstance(data, dict) or data.get("schema") != EVIDENCE_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"its schema is {found!r}, not {EVIDENCE_SCHEMA!r}: run gradproof verify")
    from gradproof.core.schemas.evidence import fault_of  # a worker writes evidence and loads no pydantic

    if fault := fault_of(data):
        raise ValueError(f"it has the wrong shape: {fault}")
    when(data["started_at"]), when(data["finished_at"])
    check = Check.from_json(data["check"])
    if check.digest != data["claim"]["spec"]:
        raise ValueError("its claim digest is not the digest of its check")
    return check


@dataclass(frozen=True)
class EvidenceStatus:
    """The evidence that a check has at present: `reason` says why it is missing or not fresh."""

    evidence: dict[str, Any] | None
    fresh: bool
    reason: str = ""
    path: str | None = None
    cached: bool = False

    @property
    def outcome(self) -> Outcome:
        """What the evidence says of the claim as it stands now: NOT_RUN unless it is fresh."""
        if self.evidence is None or not self.fresh:
            return Outcome.NOT_RUN
        return Outcome(self.evidence["finding"]["outcome"])
