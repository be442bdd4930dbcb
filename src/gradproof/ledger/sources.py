"""The documents that a figure may be read from, and whether one is fresh, stale, rejected or absent.

A document is believed for a figure only where it carries the digests of the files that made it (`sources`) and all of
them are as they were: a number that may be anybody's decides nothing. Where the workspace makes the document itself, it
is fresh as the report calls it (gradproof.studies). Keys of `sources` are places below the package,
below the workspace, or below the checkout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gradproof.studies import (
    ABSENT,
    FRESH,
    REJECTED,
    STALE,
    TRAINING,
    differing,
    makes,
    places,
    rounding,
    standing_of,
)  # fmt: skip
from gradproof.workspace import PACKAGE, Workspace, sha256_of

LARGEST = 1 << 24


@dataclass(frozen=True)
class Study:
    """A document in `reports/`, the command that makes it, and its strict shape as `module:Class` where it has one."""

    file: str
    make: str
    shape: str = ""


STUDIES: Mapping[str, Study] = {
    "deterministic": Study(
        "deterministic.json",
        "python -m gradproof.subjects.deterministic --out reports/deterministic.json",
        "gradproof.subjects.document:Deterministic",
    ),
    "rounding": Study("rounding.json", "python -m gradproof.rounding.study --out reports/rounding.json"),
    "scaling": Study("scaling.json", "make throughput"),
    "speedup": Study("speedup.json", "make throughput"),
    "sweep": Study("sweep.json", "make throughput"),
    "tokens": Study("tokens.json", "python -m symbolic.token_study --out reports/tokens.json --plots docs"),
}


@dataclass(frozen=True)
class Found:
    """A document as it stands; `content` is empty unless it is fresh."""

    standing: str
    reason: str
    content: Mapping[str, Any]


def document(workspace: Workspace, name: str) -> Found:
    """One of STUDIES, with its standing."""
    if name == "rounding":
        section = rounding(workspace)
        fresh = section["standing"] == FRESH
        return Found(section["standing"], section["reason"], section["document"] if fresh else {})
    study = STUDIES[name]
    path = next((f / study.file for f in places(workspace) if (f / study.file).exists()), None)
    if path is None:
        return Found(ABSENT, f"there is no reports/{study.file}", {})
    try:
        content = _read(path, name, study)
    except ValueError as error:
        return Found(REJECTED, f"reports/{study.file} is rejected: {error}", {})
    for made in TRAINING:
        if made.file == study.file and makes(made, workspace):
            standing, reason = standing_of(made, workspace, path)
            return Found(standing, reason, content if standing == FRESH else {})
    sources = content.get("sources")
    if not isinstance(sources, dict) or not sources:
        return Found(STALE, f"reports/{study.file} does not say which sources made it", {})
    now = {key: digest for key in sources if (digest := _digest(workspace, key)) is not None}
    changed = differing({key: str(digest) for key, digest in sources.items()}, now)
    return Found(STALE, f"reports/{study.file}: {changed}", {}) if changed else Found(FRESH, "", content)


def _read(path: Path, name: str, study: Study) -> dict[str, Any]:
    """The document as JSON values. Raises ValueError with the reason why it is not to be believed."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    try:
        content = json.loads(data, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    head = f"gradproof-{name}/"
    if not isinstance(content, dict) or not str(content.get("schema", "")).startswith(head):
        raise ValueError(f"its schema is not {head}N")
    if study.shape:
        from gradproof.documents import read

        module, _, attribute = study.shape.partition(":")
        read(path, getattr(import_module(module), attribute))
    return content


def _refused(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _digest(workspace: Workspace, key: str) -> str | None:
    """sha256 of a source file as it is now; None where it is gone."""
    if ".." in Path(key).parts or Path(key).is_absolute():
        return None
    for root in (PACKAGE, workspace.root, PACKAGE.parent, PACKAGE.parent.parent):
        if (root / key).is_file():
            return sha256_of(root / key)
    return None
