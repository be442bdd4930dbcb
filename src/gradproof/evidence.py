"""The shape of one evidence file: how a run is written down, and what a reader insists on.

Format `gradproof-evidence/1`: check, claim (spec digest, files, modules, absent, search), finding, environment, times.
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

from gradproof.core import EVIDENCE_SCHEMA, Check, Finding, Outcome, Reach

NO_SEARCH: Mapping[str, Any] = {"start": [], "found": {}}  # of gradproof.search: every module is at the root
ANSWERS = frozenset({Outcome.HOLDS, Outcome.REFUTED, Outcome.WEAK, Outcome.VACUOUS})
SKEW = timedelta(hours=1)  # by which the clocks of two machines may differ

_SHAPE: Mapping[str, type | tuple[type, ...]] = {
    "schema": str,
    "check": dict,
    "claim": dict,
    "claim.spec": str,
    "claim.files": dict,
    "claim.modules": dict,
    "claim.absent": list,
    "claim.search": dict,
    "finding": dict,
    "finding.outcome": str,
    "finding.reason": str,
    "finding.reach": (str, type(None)),
    "finding.domain": str,
    "finding.clauses": dict,
    "finding.assumptions": list,
    "finding.covers": list,
    "finding.controls": list,
    "finding.counterexample": (dict, type(None)),
    "finding.replays": list,
    "finding.measurements": list,
    "finding.stats": dict,
    "environment": dict,
    "started_at": str,
    "finished_at": str,
    "seconds": (int, float),
}


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
    """The time that evidence states. Raises ValueError for a text that is none, or has no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(f"{text!r} is no time with a zone")
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
    claim: Mapping[str, Any] | None = None,
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
        "claim": {"spec": check.digest, "files": {}, "modules": {}, "absent": [], "search": NO_SEARCH, **(claim or {})},
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
        raise ValueError(f"its schema is {found!r}, not {EVIDENCE_SCHEMA!r}")
    top = {key.partition(".")[0] for key in _SHAPE}
    if set(data) != top:
        raise ValueError(f"its keys differ from the schema's: {sorted(set(data) ^ top)}")
    for path, kind in _SHAPE.items():
        _typed(data, path, kind)
    _listed(data["finding"])
    _named(data)
    when(data["started_at"]), when(data["finished_at"])
    Outcome(data["finding"]["outcome"])
    if data["finding"]["reach"] is not None:
        Reach(data["finding"]["reach"])
    try:
        check = Check.from_json(data["check"])
    except (TypeError, KeyError, ValueError) as e:
        raise ValueError(f"its check has the wrong shape: {e}") from e
    if check.digest != data["claim"]["spec"]:
        raise ValueError("its claim digest is not the digest of its check")
    return check


def _typed(data: Mapping[str, Any], path: str, kind: type | tuple[type, ...]) -> None:
    value: Any = data
    for part in path.split("."):
        if part not in value:
            raise ValueError(f"{path} is missing")
        value = value[part]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{path} is a {type(value).__name__}")


def _listed(finding: Mapping[str, Any]) -> None:
    """Every row of the lists is a mapping, with the fields that the judge reads."""
    needed = {
        "covers": ("name", "reached"),
        "controls": ("name", "kind", "outcome", "killed"),
        "replays": ("reproduced",),
    }
    for key in ("covers", "controls", "replays", "measurements"):
        for row in finding[key]:
            missing = [k for k in needed.get(key, ()) if not isinstance(row, dict) or k not in row]
            if not isinstance(row, dict) or missing:
                raise ValueError(f"a row of finding.{key} lacks {', '.join(missing) or 'its mapping'}")
    if not all(isinstance(row["name"], str) for key in ("covers", "controls") for row in finding[key]):
        raise ValueError("a row of finding.covers or finding.controls has no name")
    for control in finding["controls"]:
        Outcome(control["outcome"])


_NAMED = (("claim", "files"), ("claim", "modules"), ("finding", "clauses"), ("environment", "distributions"))


def _named(data: Mapping[str, Any]) -> None:
    """What is compared by name is text under text."""
    for part, key in _NAMED:
        held = data[part].get(key, {})
        if not isinstance(held, dict) or not all(isinstance(v, str) for v in held.values()):
            raise ValueError(f"{part}.{key} is not text by name")
    if not all(isinstance(name, str) for name in data["claim"]["absent"]):
        raise ValueError("claim.absent is not a list of names")
    if not _is_search(data["claim"]["search"]):
        raise ValueError("claim.search is no list of folders with homes by name")
    if not isinstance(data["environment"].get("variables", {}), dict):
        raise ValueError("environment.variables is not by name")
    if not isinstance(data["check"].get("id"), str):
        raise ValueError("its check has no id")


def _is_search(search: Mapping[str, Any]) -> bool:
    """Whether this has the shape that gradproof.search writes."""
    found = search.get("found")
    if set(search) != {"start", "found"} or not isinstance(found, dict):
        return False
    rows = [row if isinstance(row, dict) else {} for row in found.values()]
    lists = [search["start"], *(row.get("before") for row in rows)]
    homes = [row.get("home") for row in rows]
    texts = isinstance(lists[0], list) and all(isinstance(names, list) for names in lists)
    return texts and all(isinstance(name, str) for name in [*homes, *(n for names in lists for n in names)])


@dataclass(frozen=True)
class Standing:
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
