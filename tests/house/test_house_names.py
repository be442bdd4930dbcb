"""What a test takes from a module is there: a moved name shows here, not first when its slow test is drawn."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
from house_rules import Source, violations

OURS = ("gradproof", "models", "symbolic", "tests")
MISSING = {
    "of a module": "from gradproof.cli import verify as saves\nsaves.seen(1)\n",
    "of a module, where it is replaced": "from gradproof.cli import verify\nm.setattr(verify, 'seen', print)\n",
    "inside a function": "def f():\n    from gradproof.cli.verify import seen\n",
    "a module": "def f():\n    import gradproof.cli.verified\n",
}


@cache
def is_module(name: str) -> bool:
    """Whether a module of this name can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def has(module: str, name: str) -> bool:
    """Whether a module has a name, be it a module below it."""
    return is_module(module) and (hasattr(importlib.import_module(module), name) or is_module(f"{module}.{name}"))


def imported(node: ast.AST) -> Iterator[tuple[str, str, str | None]]:
    """What one import binds: name, module, and the name in the module."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or "", alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from ((alias.asname or alias.name, node.module, alias.name) for alias in node.names)


def taken(node: ast.AST) -> tuple[str, str] | None:
    """`module.name`, and the same of `setattr(module, "name", ...)`."""
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return module, name
        case ast.Call(
            func=ast.Attribute(attr="setattr"),
            args=[ast.Name(id=module), ast.Constant(value=str(name)), _],
            keywords=[],
        ):
            return module, name
    return None


def missing(source: Source) -> Iterator[str]:
    """Names that a file takes of this project's modules and that are not there. A corpus has models of its own."""
    if source.name.startswith("tests/corpus/"):
        return
    modules, nodes = defaultdict(set), list(ast.walk(source.tree))
    for node in nodes:
        for bound, module, name in imported(node):
            if module.partition(".")[0] in OURS and not (has(module, name) if name else is_module(module)):
                yield f"{source.name}:{node.lineno}: {module} has no {name or 'such module'}"
            inner = f"{module}.{name}" if name else module
            modules[bound].add(inner if module.partition(".")[0] in OURS and is_module(inner) else None)
    names = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    other = {n.id for n in names} | {a.arg for a in nodes if isinstance(a, ast.arg)}
    for node in nodes:
        of, name = taken(node) or ("", "")
        one = modules[of] if of in modules and of not in other else set()
        if len(one) == 1 and (module := next(iter(one))) and not has(module, name):
            yield f"{source.name}:{node.lineno}: {module} has no {name}"


def test_what_a_test_takes_from_a_module_is_there() -> None:
    assert violations(missing, ("tests",)) == []


@pytest.mark.parametrize("name", MISSING)
def test_a_name_that_is_gone_is_seen(name: str) -> None:
    assert len(list(missing(Source.of("a.py", MISSING[name])))) == 1
