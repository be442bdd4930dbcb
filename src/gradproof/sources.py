"""Which source files a measured document depends on, and their digests: a closure of imports, nothing is imported.

Imports inside of functions count too, so a change anywhere that a run may reach makes its document stale. The rounding
study has a closure of its own, `gradproof.rounding.sources`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradproof.rounding.sources import imported
from gradproof.workspace import PACKAGE, sha256_of


def closure(root: Path, starts: Sequence[str], folders: Sequence[str]) -> dict[str, str]:
    """sha256 in hex of every file below `folders` that the modules `starts` import, directly or not.

    `root` is a workspace: modules of gradproof are looked for in this package, all others there. Keys are places
    with forward slashes, such as models/epochs.py and gradproof/arith/soft.py. A module that is not there is left out.
    Raises OSError, SyntaxError and UnicodeDecodeError.
    """
    found: dict[str, str] = {}
    waiting = list(starts)
    while waiting:
        place = _place(root, waiting.pop())
        if place is None or (key := place[1]) in found:
            continue
        found[key] = sha256_of(place[0])
        waiting += [n for n in imported(place[0]) if any(n == f or n.startswith(f"{f}.") for f in folders)]
    return dict(sorted(found.items()))


def _place(root: Path, name: str) -> tuple[Path, str] | None:
    """The file of a module and its key; None where the name is no module."""
    base = PACKAGE.parent if name.partition(".")[0] == PACKAGE.name else root
    inside = base.joinpath(*name.split("."))
    places = (inside / "__init__.py", inside.with_name(f"{inside.name}.py"))
    return next(((p, p.relative_to(base).as_posix()) for p in places if p.is_file()), None)
