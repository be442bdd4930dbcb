"""What a save touched: the files that evidence rests on, looked at again and again, and the checks that must run again.

Files are told by inode, size and the time of their last change, which no program can set back. They are looked at
before a round reads them, so that a file that is saved during a round makes another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gradproof.claim import place_of
from gradproof.core import Check, Outcome
from gradproof.evidence import ANSWERS, Standing
from gradproof.workspace import FOLDERS, Workspace

Seen = Mapping[Path, tuple[int, int, int]]


def seen(workspace: Workspace, standings: Iterable[Standing], also: Iterable[Path] = ()) -> Seen:
    """Every file of the workspace's content, of the claims of this evidence, and `also`, as it is now."""
    return _stats({*_content(workspace.root), *_claimed(workspace.root, standings), *also})


def _stats(paths: Iterable[Path]) -> Seen:
    found: dict[Path, tuple[int, int, int]] = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue
        found[path] = (stat.st_ino, stat.st_size, stat.st_ctime_ns)
    return found


def named(workspace: Workspace, standings: Iterable[Standing], before: Seen) -> Seen:
    """`before`, and the files outside the content that claims name for the first time: those were read just now."""
    found = _stats(set(_claimed(workspace.root, standings)) - set(_content(workspace.root)) - set(before))
    return {**before, **found}


def _content(root: Path) -> Iterator[Path]:
    yield root / "pyproject.toml"
    yield from root.glob("*.py")
    for folder in FOLDERS:
        for home, below, names in os.walk(root / folder):
            below[:] = [name for name in below if name != "__pycache__" and not name.startswith(".")]
            yield from (Path(home) / name for name in names if not name.startswith("."))


def _claimed(root: Path, standings: Iterable[Standing]) -> Iterator[Path]:
    for standing in standings:
        if standing.evidence is not None:
            yield from (place for key in standing.evidence["claim"]["files"] if (place := place_of(key, root)))


def touched(checks: Sequence[Check], standings: Mapping[str, Standing]) -> list[Check]:
    """What must run again, and the stubs that it rests on: what has no fresh evidence, by the digests of its claim.

    A crash, and a run that ended without a word on its files, may rest on any file: they are run again too.
    """
    names = {check.id for check in checks if _due(standings[check.id])}
    while more := {d for c in checks if c.id in names for d in c.depends} - names:
        names |= more
    return [check for check in checks if check.id in names]


def _due(standing: Standing) -> bool:
    if standing.evidence is None or not standing.fresh:
        return True
    silent = standing.outcome not in ANSWERS and not standing.evidence["claim"]["files"]
    return silent or standing.outcome is Outcome.ERROR
