"""A Verification as JSON and back: format `gradproof-step/1`, described by reports/step.schema.json.

Exact numbers (Fraction) are text, and so is a float that is not finite. The verdict (outcome, exit, code) is written
for readers without this package; reading compares it with the verdict that follows from the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from gradproof import __version__
from gradproof.core import Outcome
from gradproof.shadow.tape import Place
from gradproof.shadow.verdict import Result, Verification

STEP_SCHEMA = "gradproof-step/1"
_PLACE = frozenset({"file", "line", "function", "via"})
_VERDICT = ("outcome", "exit", "code")
_RESULT: Mapping[str, type | tuple[type, ...]] = {
    "obligation": str,
    "outcome": str,
    "reason": str,
    "place": (dict, type(None)),
    "mend": str,
    "domain": str,
    "reach": str,
    "details": dict,
    "counterexample": (dict, type(None)),
}
_LISTS = ("events", "weights", "rounding", "assumptions", "paths", "uncovered", "havocked", "notes", "allow_undecided")
_MAPPINGS = ("config", "operators", "shapes", "versions", "seconds", "monitoring")


def plain(value: Any, where: str = "verification") -> Any:
    """JSON form of plain data, with NumPy numbers and arrays among it. Raises ValueError with the place of the rest."""
    if isinstance(value, Enum):
        return plain(value.value, where)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Fraction | Path | Place):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), where)
    if isinstance(value, Mapping):
        return {_key(k, where): plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(v, where) for v in value), key=str)
    raise ValueError(f"{where} is a {type(value).__module__}.{type(value).__name__}, which is no plain data")


def _key(key: Any, where: str) -> str:
    if isinstance(key, str | int | Fraction | np.integer | tuple):
        return str(key.value if isinstance(key, Enum) else key)
    raise ValueError(f"{where} has a key of type {type(key).__name__}")


def to_json(verification: Verification) -> dict[str, Any]:
    """The JSON form. Raises ValueError where something is no plain data."""
    made: dict[str, Any] = {
        "schema": STEP_SCHEMA,
        "gradproof": __version__,
        "subject": verification.subject,
        "outcome": str(verification.outcome),
        "exit": str(verification.exit),
        "code": verification.code,
        "results": [_result(result, f"results[{i}]") for i, result in enumerate(verification.results)],
    }
    for name in (*_MAPPINGS, *_LISTS):
        made[name] = plain(getattr(verification, name), name)
    return made


def _result(result: Result, where: str) -> dict[str, Any]:
    made = {f.name: getattr(result, f.name) for f in fields(result)}
    place = result.place
    if place is not None:
        made["place"] = {"file": place.file, "line": place.line, "function": place.function, "via": place.via}
    return {name: plain(value, f"{where}.{name}") for name, value in made.items()}


def from_json(data: Any) -> Verification:
    """Inverse of `to_json`. Raises ValueError on any other shape, and when the verdict does not follow."""
    if not isinstance(data, dict) or data.get("schema") != STEP_SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"its schema is {found!r}, not {STEP_SCHEMA!r}")
    kinds: dict[str, type] = {"subject": str, "results": list}
    kinds |= dict.fromkeys(_MAPPINGS, dict) | dict.fromkeys(_LISTS, list)
    _shaped(data, kinds, "it")
    known = {"schema", "gradproof", *_VERDICT, *kinds}
    if set(data) != known:
        raise ValueError(f"its keys differ: {', '.join(sorted(set(data) ^ known))}")
    results = [_read(row, f"results[{i}]") for i, row in enumerate(data["results"])]
    rest = {name: data[name] for name in (*_MAPPINGS, *_LISTS)}
    made = Verification(data["subject"], results=results, **rest)
    follows = (str(made.outcome), str(made.exit), made.code)
    stated = tuple(data[name] for name in _VERDICT)
    if stated != follows:
        raise ValueError(f"it states {stated}, and its results say {follows}")
    return made


def _read(row: Any, where: str) -> Result:
    if not isinstance(row, dict) or set(row) != set(_RESULT):
        raise ValueError(f"{where} is no result")
    _shaped(row, _RESULT, where)
    place = row["place"]
    if place is not None:
        if set(place) != _PLACE or not isinstance(place["line"], int):
            raise ValueError(f"{where}.place is no place")
        place = Place(**place)
    return Result(**{**row, "outcome": Outcome(row["outcome"]), "place": place})


def _shaped(data: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    for name, kind in kinds.items():
        if not isinstance(data.get(name), kind):
            raise ValueError(f"{where} has {name} of type {type(data.get(name)).__name__}")
