"""Digests of the files that a measured document was made with, and how a document stands beside them now.

A closure of imports from the starting modules over `gradproof.subjects` and `models`; nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradproof.studies import ABSENT, FRESH, REJECTED, STALE, differing
from gradproof.workspace import PACKAGE, reference, sha256_of

FOLDERS = ("gradproof.subjects", "models")


def sources(starts: Sequence[str]) -> dict[str, str]:
    """sha256 in hex of every file that the starting modules import, directly or not, by dotted name.

    Raises GradproofError GP201 without the reference workspace, OSError and SyntaxError.
    """
    found: dict[str, str] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is None or name in found:
            continue
        found[name] = sha256_of(path)
        waiting += [n for n in _imports(path) if n.startswith(FOLDERS)]
    return dict(sorted(found.items()))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(name: str) -> Path | None:
    package, *parts = name.split(".")
    root = PACKAGE if package == "gradproof" else (reference() or PACKAGE) / package
    inside = root.joinpath(*parts)
    places = (inside / "__init__.py", inside.with_suffix(".py")) if parts else (inside / "__init__.py",)
    return next((p for p in places if p.is_file()), None)


def standing(path: Path, kind: type[Any], starts: Sequence[str]) -> tuple[str, str]:
    """Whether a document is fresh, stale, rejected or absent, and why. `kind` is its class, with `sources`."""
    from gradproof.documents import read

    if not path.exists():
        return ABSENT, f"there is no {path.name}"
    try:
        made = read(path, kind)
    except ValueError as error:
        return REJECTED, f"{path.name} is rejected: {error}"
    changed = differing(made.sources, sources(starts))
    return (STALE, changed) if changed else (FRESH, "no file that it was made with has changed")
