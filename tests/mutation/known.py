"""What the committed document says of a sweep: which checks killed how many mutants of a file, and which survive."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

DOCUMENT = Path("reports/mutation.json")


@dataclass(frozen=True)
class Known:
    """The files of the sweep, kills by file and check, seconds by check, and the keys of survivors and equivalents."""

    files: frozenset[str] = frozenset()
    kills: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()


def known(root: Path) -> Known:
    """What `reports/mutation.json` of a workspace says; nothing where it is not there."""
    path = root / DOCUMENT
    if not path.is_file():
        return Known()
    found = json.loads(path.read_text(encoding="utf-8"))
    kills = {(row["file"], row["check"]): row["first"] for row in found["checks"]}
    seconds = {row["check"]: row["seconds"] for row in found["checks"]}
    files = frozenset(row["file"] for row in found["files"])
    return Known(files, kills, seconds, frozenset(row["key"] for row in found["kept"]))
