"""The source of each harness as it stands in its file: read and cut out, never imported.

Where the evidence of a check is fresh, its claim holds the digest of that file, so this is the text that ran.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradproof.workspace import Locator

LONGEST = 6000  # characters of one text; what is cut off is said


def texts(names: Iterable[str], root: Path) -> dict[str, dict[str, Any]]:
    """For each harness `module:function` below `root`: its path from there, its first line and its text.

    A harness that is not found, whose file is not Python, or lies outside `root` has no entry.
    """
    locator, found = Locator(root), {}
    trees: dict[Path, tuple[str, ast.Module | None]] = {}
    for name in dict.fromkeys(names):
        module, _, function = name.partition(":")
        path = locator.locate(module) if module and function else None
        if path is None or path.suffix != ".py" or not path.resolve().is_relative_to(root.resolve()):
            continue
        if path not in trees:
            trees[path] = _tree(path)
        cut = _cut(*trees[path], function)
        if cut is not None:
            found[name] = {"path": path.resolve().relative_to(root.resolve()).as_posix(), **cut}
    return found


def _tree(path: Path) -> tuple[str, ast.Module | None]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return "", None


def _cut(text: str, tree: ast.Module | None, function: str) -> dict[str, Any] | None:
    """The text of the function or class, decorators included; None where the file defines none of that name."""
    node: Any = tree
    for part in function.split("."):
        named = (n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part)
        node = next(named, None)
    if node is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    shown = "\n".join(lines)
    if len(shown) > LONGEST:
        kept = shown[:LONGEST].rpartition("\n")[0]
        shown = f"{kept}\n… {len(lines) - kept.count(chr(10)) - 1} more lines in the file"
    return {"line": first, "text": shown}
