"""Which source files a measured document depends on, and their digests: a closure of imports, nothing is imported.

Imports inside of functions count too, so a change anywhere that the study may reach makes its document stale.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gradproof.core.workspace import PACKAGE, sha256_of

START = "gradproof.extras.studies.rounding"
FACADE = "gradproof.harness"
FOLDERS = ("gradproof.rounding", "gradproof.arith")
WITH_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")  # parts of a statement; an import is in no other


def sources(root: Path = PACKAGE) -> dict[str, str]:
    """sha256 in hex of every file of gradproof.rounding and gradproof.arith that the study imports, directly or not.

    Keys are places below the package, with forward slashes. Raises OSError and SyntaxError.
    """
    found: dict[str, str] = {}
    waiting = [START]
    while waiting:
        name = waiting.pop()
        path = _file(root, name)
        if path is None or (place := path.relative_to(root).as_posix()) in found:
            continue
        found[place] = sha256_of(path)
        waiting += [n for n in imported(path) if n.startswith(FOLDERS)]
    return dict(sorted(found.items()))


def imported(path: Path) -> tuple[str, ...]:
    """Names of modules, and of what might be modules, that a file imports. Raises OSError and SyntaxError."""
    return _imported(path.read_text(encoding="utf-8"))


@cache
def _imported(text: str) -> tuple[str, ...]:
    found: list[str] = []
    waiting: list[ast.AST] = [ast.parse(text)]
    for node in waiting:
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                module = _facade().get(alias.name, FACADE) if node.module == FACADE else node.module
                found += (module, f"{module}.{alias.name}")
        for part in WITH_STATEMENTS:
            waiting += getattr(node, part, ())
    return tuple(found)


@cache
def _facade() -> dict[str, str]:
    """The module of each name that models and harnesses take from the facade, as its imports for type checkers say."""
    tree = ast.parse((PACKAGE / "harness.py").read_text(encoding="utf-8"))
    lines = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: line.module or "" for line in lines for alias in line.names}


def _file(root: Path, name: str) -> Path | None:
    """The file of a module of this package; None where the name is none."""
    inside = root.joinpath(*name.split(".")[1:])
    places = (inside / "__init__.py", inside.with_suffix(".py"))
    return next((p for p in places if p.is_file()), None)


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
