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


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """sha256 in hex of every file of gradproof.rounding and gradproof.arith that the study imports, directly or not.

    Keys are places below the package, with forward slashes. Raises OSError and SyntaxError.
    """
    found = closure(package.parent, [START], FOLDERS, package)
    return {place.partition("/")[2]: digest for place, digest in found.items()}


@cache
def _imported(text: str) -> tuple[str, ...]:
    """Names of modules, and of what might be modules, that a file imports. Raises SyntaxError."""
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


def closure(root: Path, starts: Sequence[str], folders: Sequence[str], package: Path = PACKAGE) -> dict[str, str]:
    """sha256 in hex of every file below `folders` that the modules `starts` import, directly or not.

    `root` is a workspace: modules of gradproof are looked for in `package`, all others there. Keys are places
    with forward slashes, such as models/registry.py, gradproof/arith/soft.py. A module that is not there is left out.
    Raises OSError, SyntaxError and UnicodeDecodeError.
    """
    found: dict[str, str] = {}
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        first, _, rest = name.partition(".")
        base, name = (package, rest) if first == PACKAGE.name else (root, name)
        place = _place(base, name)
        if place is None or (key := f"{PACKAGE.name}/{place}" if base is package else place) in found:
            continue
        path = base / place
        found[key] = sha256_of(path)
        names = _imported(path.read_text(encoding="utf-8"))
        waiting += [n for n in names if any(n == f or n.startswith(f"{f}.") for f in folders)]
    return dict(sorted(found.items()))


def _place(base: Path, name: str) -> str | None:
    """The file of a module below a folder; None where the name is no module."""
    inside = base.joinpath(*filter(None, name.split(".")))
    places = (inside / "__init__.py", inside.with_name(f"{inside.name}.py"))
    return next((p.relative_to(base).as_posix() for p in places if p.is_file()), None)
