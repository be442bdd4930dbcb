"""Every mutant of a file: by the operators of cosmic-ray, and by those of `field_operators`."""

from __future__ import annotations

import ast
import difflib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cosmic_ray.plugins
import parso

from tests.mutation.field_operators import OPERATORS, Scope, table_entry
from tests.mutation.subjects import PROTOCOL, Source, Tree, first_doc, module_of, spans

NEEDS_ARGUMENTS = ("VariableReplacer", "VariableInserter")
"""Operators of cosmic-ray that replace variables which a configuration names: `other_field` and `swap_operands` do."""
STATEFUL = ("models/accumulation/loop.py", "models/adamw/model.py")
"""Models that are run window after window, or step after step, on one instance: `late` operators work on these."""
TABLES = {PROTOCOL: "RULES"}

Place = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class CodeMutant:
    """A module with one change: by which operator, where, in which definition, and the whole text."""

    path: str
    operator: str
    line: int
    within: str
    text: str
    statement: int
    """First line of the innermost statement that the change touches: a run that never reaches it is unchanged."""

    def diff(self, original: str) -> str:
        """The changed lines."""
        lines = difflib.unified_diff(original.splitlines(), self.text.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def mutants(tree: Tree, path: str) -> list[CodeMutant]:
    """All mutants of a file, in the order of their lines; texts with the same syntax tree are one."""
    source = tree.sources[module_of(path)]
    alive = [node for _, node in spans(tree, path) if not is_alias(node)]
    dead = [stretch for node in alive for stretch in dead_text(node)]
    found: dict[str, CodeMutant] = {}
    same = {meaning(node, source.text) for node in alive}
    made = [*library(source), *field(tree, source, alive)]
    for operator, (start, end), text in sorted(made, key=lambda m: (m[1], m[0])):
        node = next((node for node in alive if _within(start, end, node)), None)
        if node is None or any(a <= start and end <= b for a, b in dead):
            continue
        key = meaning(node, text, text.count("\n") - source.text.count("\n"))
        if not key or key in same:
            continue
        same.add(key)
        found[key] = CodeMutant(path, operator, start[0], owner(source, start), text, statement(source, start[0]))
    return list(found.values())


def library(source: Source) -> Iterator[tuple[str, Place, str]]:
    """Mutants of cosmic-ray: every operator of its own list that needs no configuration.

    A node is changed in place, read, and changed back: parsing anew for each mutant, as `mutate_code` does, is slow.
    """
    listed = [name for name in cosmic_ray.plugins.operator_names() if not name.endswith(NEEDS_ARGUMENTS)]
    operators = [(name.rpartition("/")[2], cosmic_ray.plugins.get_operator(name)()) for name in listed]
    lines = source.text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(len(line) for line in lines)]
    for node in _nodes(parso.parse(source.text)):
        for name, operator in operators:
            for index, place in enumerate(list(operator.mutation_positions(node))):
                before = [(part, dict(vars_of(part))) for part in _nodes(node)]
                first, last = (starts[line - 1] + column for line, column in (node.start_pos, node.end_pos))
                changed = operator.mutate(node, index)
                code = "" if changed is None else changed.get_code(include_prefix=False)
                for part, was in before:
                    for key, value in was.items():
                        setattr(part, key, value)
                yield name, place, source.text[:first] + code + source.text[last:]


def vars_of(node: parso.tree.NodeOrLeaf) -> Iterator[tuple[str, Any]]:
    """What an operator may change of a node: its text, or the list of its parts."""
    if hasattr(node, "children"):
        yield "children", list(node.children)
    else:
        yield "value", node.value


def _nodes(node: parso.tree.NodeOrLeaf) -> Iterator[parso.tree.NodeOrLeaf]:
    """A node and all its parts, in the order in which cosmic-ray's own visitor meets them."""
    yield node
    for child in list(getattr(node, "children", ())):
        yield from _nodes(child)


def field(tree: Tree, source: Source, alive: Sequence[ast.stmt]) -> Iterator[tuple[str, Place, str]]:
    """Mutants of `field_operators`."""
    records = _records(tree, source)
    for node in alive:
        for scope in _scopes(node, source, records):
            table = scope.table and isinstance(node, ast.AnnAssign) and scope.of(node.target) == scope.table
            for operator in (table_entry,) if table else OPERATORS:
                for changed, text in operator(scope):
                    place = (
                        (changed.lineno, changed.col_offset),
                        (changed.end_lineno or 0, changed.end_col_offset or 0),
                    )
                    yield operator.__name__, place, spliced(source.text, place, text)


def _scopes(node: ast.stmt, source: Source, records: dict[str, tuple[str, ...]]) -> Iterator[Scope]:
    table = TABLES.get(source.path, "")
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                own = bool(inner.args.args) and inner.args.args[0].arg == "self"
                yield Scope(inner, source.text, records, own and source.path in STATEFUL)
    else:
        yield Scope(node, source.text, records, table=table)


def _records(tree: Tree, source: Source) -> dict[str, tuple[str, ...]]:
    """Fields of one type of the data classes, and members of the enumerations that a module defines or imports."""
    found = {}
    modules = [source, *(tree.sources[m] for m, _ in source.imports().values() if m in tree.sources)]
    for one in modules:
        for name, node in one.definitions().items():
            if not isinstance(node, ast.ClassDef):
                continue
            fields: dict[str, list[str]] = {}
            for n in node.body:
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
                    fields.setdefault(ast.unparse(n.annotation), []).append(n.target.id)
            members = [
                n.targets[0].id for n in node.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
            ]
            if members and any("Enum" in ast.unparse(base) for base in node.bases):
                found[name] = tuple(members)
            else:
                found |= {f"{name}: {kind}": tuple(names) for kind, names in fields.items() if len(names) > 1}
    return found


def spliced(text: str, place: Place, replacement: str) -> str:
    """The text with one stretch replaced; columns count bytes, as those of `ast` do."""
    (line, column), (last, end) = place
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: line - 1]) + lines[line - 1][:column]
    after = lines[last - 1][end:] + b"".join(lines[last:])
    return (before + replacement.encode() + after).decode()


def meaning(node: ast.stmt, text: str, more: int = 0) -> str:
    """The syntax tree of a top-level statement in a text with `more` lines, as text; empty where it does not parse."""
    lines = text.splitlines()[_first_line(node) - 1 : (node.end_lineno or 0) + more]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse("\n".join(lines)))
        except (SyntaxError, ValueError):
            return ""


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


# -- What is not mutated


def is_alias(node: ast.stmt) -> bool:
    """Whether a top-level statement only names a type."""
    value = getattr(node, "value", None)
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    return isinstance(value, ast.Subscript) or (isinstance(value, ast.Name) and value.id == "Any")


def dead_text(node: ast.AST) -> Iterator[Place]:
    """Docstrings, annotations, decorators of data classes, `strict=`, and what only a reader of a message sees."""
    for part in ast.walk(node):
        doc = first_doc(part)
        noted = [doc] if doc is not None else []
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            noted += part.decorator_list
        if isinstance(part, ast.FunctionDef):
            noted += [part.returns] if part.returns is not None else []
        if isinstance(part, (ast.arg, ast.AnnAssign)) and part.annotation is not None:
            noted.append(part.annotation)
        if isinstance(part, ast.Raise):
            noted.append(part)
        if isinstance(part, ast.keyword) and part.arg == "strict":
            noted.append(part)
        if isinstance(part, ast.JoinedStr):
            noted.append(part)
        for dead in noted:
            yield (dead.lineno, dead.col_offset), (dead.end_lineno or 0, dead.end_col_offset or 0)


def _within(start: tuple[int, int], end: tuple[int, int], node: ast.stmt) -> bool:
    return (_first_line(node), 0) <= start and end <= (node.end_lineno or 0, node.end_col_offset or 0)


def owner(source: Source, start: tuple[int, int]) -> str:
    """The class and function, or the name, that a place lies in."""
    for name, node in source.definitions().items():
        if _within(start, start, node):
            for inner in getattr(node, "body", ()):
                if isinstance(inner, ast.FunctionDef) and _within(start, start, inner):
                    return f"{name}.{inner.name}" if isinstance(node, ast.ClassDef) else name
            return name
    return ""


def statement(source: Source, line: int) -> int:
    """First line of the innermost statement that holds a line; 0 where it runs as the module is imported."""
    best = 0
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.stmt) and inner is not node and inner.lineno <= line <= (inner.end_lineno or 0):
                best = max(best, inner.lineno)
    return best
