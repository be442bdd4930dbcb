"""Mutation operators for arithmetic on windows of samples, which no general library has.

Each yields replacements of a stretch of a module's text. `late` ones act from the third time on that their place is
reached on one instance of the model: the third micro-batch, window or step, as the place is.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

AFTER = 2
"""A late mutant behaves as the original this many times."""

Edit = tuple[ast.AST, str]
"""A node of the tree, and the text that takes its place."""


@dataclass(frozen=True)
class Scope:
    """Where an operator works: a definition, its text, and what is known of its surroundings."""

    node: ast.AST
    text: str
    records: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stateful: bool = False
    table: str = ""

    def of(self, node: ast.AST) -> str:
        """The text of a node."""
        return ast.get_source_segment(self.text, node) or ""


Operator = Callable[[Scope], Iterator[Edit]]


def _paren(text: str) -> str:
    return f"({text})"


def _arithmetic(scope: Scope) -> Iterator[ast.BinOp]:
    for node in ast.walk(scope.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            yield node


def drop_term(scope: Scope) -> Iterator[Edit]:
    """A sum without one of its terms, a product without one of its factors, a quotient without its divisor."""
    for node in _arithmetic(scope):
        yield node, _paren(scope.of(node.left))
        if isinstance(node.op, ast.Sub):
            yield node, f"(-({scope.of(node.right)}))"
        elif not isinstance(node.op, ast.Div):
            yield node, _paren(scope.of(node.right))
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            yield node, _paren(scope.of(node.value))


def swap_operands(scope: Scope) -> Iterator[Edit]:
    """b - a for a - b, b / a for a / b; arguments of a call, and members of a tuple, the other way round."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div)):
            sign = "-" if isinstance(node.op, ast.Sub) else "/"
            yield node, f"(({scope.of(node.right)}) {sign} ({scope.of(node.left)}))"
        elif isinstance(node, ast.Call):
            for one, two in zip(node.args, node.args[1:], strict=False):
                yield from _exchanged(scope, node, one, two)
        elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            for one, two in zip(node.elts, node.elts[1:], strict=False):
                yield from _exchanged(scope, node, one, two)


def _exchanged(scope: Scope, whole: ast.expr, one: ast.expr, two: ast.expr) -> Iterator[Edit]:
    if isinstance(one, ast.Starred) or isinstance(two, ast.Starred) or ast.dump(one) == ast.dump(two):
        return
    first, between, last = _around(scope, whole, one, two)
    yield whole, f"{first}{scope.of(two)}{between}{scope.of(one)}{last}"


def _around(scope: Scope, whole: ast.expr, one: ast.expr, two: ast.expr) -> tuple[str, str, str]:
    """The text of a node before, between and after two of its parts."""
    lines = scope.text.encode().splitlines(keepends=True)

    def at(line: int, column: int) -> int:
        return sum(len(x) for x in lines[: line - 1]) + column

    data = scope.text.encode()
    ends = [
        at(whole.lineno, whole.col_offset),
        at(one.lineno, one.col_offset),
        at(one.end_lineno or 0, one.end_col_offset or 0),
        at(two.lineno, two.col_offset),
        at(two.end_lineno or 0, two.end_col_offset or 0),
        at(whole.end_lineno or 0, whole.end_col_offset or 0),
    ]
    cut = [data[a:b].decode() for a, b in itertools.pairwise(ends)]
    return cut[0], cut[2], cut[4]


def other_field(scope: Scope) -> Iterator[Edit]:
    """Another field of the same record, or another member of the same enumeration, is read."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
            for names in scope.records.values():
                if node.attr in names and node.value.id != "self":
                    yield from ((node, f"{node.value.id}.{name}") for name in names if name != node.attr)
                    break


def first_element(scope: Scope) -> Iterator[Edit]:
    """Index 0 for i, and the first sample or element for each, in loops and comprehensions."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.For):
            yield from _first(scope, node.target, node.iter, node.body)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            for made in node.generators:
                yield from _first(scope, made.target, made.iter, [node.elt, *made.ifs])
    if isinstance(scope.node, ast.FunctionDef):
        whole = [a.arg for a in scope.node.args.args if a.annotation is not None and scope.of(a.annotation) == "int"]
        for use in ast.walk(scope.node):
            if isinstance(use, ast.Name) and isinstance(use.ctx, ast.Load) and use.id in whole:
                yield use, "0"
                yield use, f"min({use.id}, 2)"


def _first(scope: Scope, target: ast.expr, over: ast.expr, where: list[ast.AST] | list[ast.stmt]) -> Iterator[Edit]:
    places = dict(_sources(scope, target, over))
    for part in where:
        for use in ast.walk(part):
            if isinstance(use, ast.Name) and isinstance(use.ctx, ast.Load) and use.id in places:
                yield use, places[use.id]


def _sources(scope: Scope, target: ast.expr, over: ast.expr) -> Iterator[tuple[str, str]]:
    """For each name that a loop binds, the text of its first value."""
    called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
    if isinstance(target, ast.Name):
        if target.id != "_":
            yield target.id, f"list({scope.of(over)})[0]"
    elif isinstance(target, ast.Tuple) and isinstance(over, ast.Call):
        if called == "enumerate":
            index, inner = target.elts
            yield scope.of(index), "0"
            yield from _sources(scope, inner, over.args[0])
        elif called == "zip":
            for part, one in zip(target.elts, over.args, strict=True):
                yield from _sources(scope, part, one)


def first_value(scope: Scope) -> Iterator[Edit]:
    """The value of the first window, step or call stands for all later ones."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.For):
            for inner in node.body:
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                    name = inner.targets[0].id
                    yield inner.value, f'(locals()["{name}"] if "{name}" in locals() else ({scope.of(inner.value)}))'
    if not scope.stateful:
        return
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value, f'self.__dict__.setdefault("first_value", ({scope.of(node.value)}))'


def _late(before: str, after: str) -> str:
    counts = 'self.__dict__.update(times=self.__dict__.get("times", 0) + 1)'
    return f"(({after}) if {counts} or self.times > {AFTER} else ({before}))"


def late_term(scope: Scope) -> Iterator[Edit]:
    """A term, factor or divisor is dropped, or its sign turned, from the third time on."""
    if not scope.stateful:
        return
    for node in _arithmetic(scope):
        if _inside_comprehension(scope.node, node):
            continue
        before = scope.of(node)
        yield node, _late(before, scope.of(node.left))
        if isinstance(node.op, (ast.Mult, ast.Add)):
            yield node, _late(before, scope.of(node.right))
        if isinstance(node.op, ast.Sub):
            yield node, _late(before, f"({scope.of(node.left)}) + ({scope.of(node.right)})")
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "tuple":
            inner = node.args[0] if node.args else None
            if isinstance(inner, ast.GeneratorExp) and isinstance(inner.elt, ast.BinOp):
                left = inner.elt.left
                shorter = scope.of(node).replace(scope.of(inner.elt), _paren(scope.of(left)), 1)
                yield node, _late(scope.of(node), shorter)


def _inside_comprehension(root: ast.AST, node: ast.AST) -> bool:
    for made in ast.walk(root):
        inner = isinstance(made, (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.Lambda)) and made is not node
        if inner and any(part is node for part in ast.walk(made)):
            return True
    return False


def late_condition(scope: Scope) -> Iterator[Edit]:
    """A condition that holds never, or always, from the third time on: k > 2."""
    if not scope.stateful:
        return
    for node in ast.walk(scope.node):
        tests = [node.test] if isinstance(node, ast.If) else []
        if isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.BoolOp)):
            tests = [node.value]
        for test in tests:
            before = scope.of(test)
            yield test, _late(before, "False")
            yield test, _late(before, "True")


def on_count(scope: Scope) -> Iterator[Edit]:
    """A condition or a result that is another one where a whole number in scope is greater than 2."""
    if not isinstance(scope.node, ast.FunctionDef):
        return
    names = [a.arg for a in scope.node.args.args if a.annotation is not None and scope.of(a.annotation) == "int"]
    for name in names:
        for node in ast.walk(scope.node):
            if isinstance(node, ast.If):
                yield node.test, f"({scope.of(node.test)}) and {name} <= {AFTER}"
                yield node.test, f"({scope.of(node.test)}) or {name} > {AFTER}"
        for node in _arithmetic(scope):
            if not _inside_comprehension(scope.node, node):
                yield node, f"(({scope.of(node)}) if {name} <= {AFTER} else ({scope.of(node.left)}))"


def drop_statement(scope: Scope) -> Iterator[Edit]:
    """A statement is left out: a call for its effect, or an assignment to a field."""
    for node in _effects(scope):
        yield node, "pass"


def late_statement(scope: Scope) -> Iterator[Edit]:
    """The same from the third time on."""
    if not scope.stateful:
        return
    for node in _effects(scope):
        inner = scope.of(node)
        if isinstance(node, ast.Expr):
            yield node, _late(inner, "None")
        elif isinstance(node, ast.Assign):
            target, value = scope.of(node.targets[0]), scope.of(node.value)
            if isinstance(node.targets[0], ast.Attribute):
                yield node, f"{target} = {_late(value, target)}"


def _effects(scope: Scope) -> Iterator[ast.stmt]:
    for node in ast.walk(scope.node):
        calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        sets = isinstance(node, (ast.Assign, ast.AugAssign)) and not isinstance(_target(node), ast.Name)
        if calls or (sets and not isinstance(_target(node), ast.Tuple)) or isinstance(node, ast.AugAssign):
            yield node  # type: ignore[misc]


def _target(node: ast.AST) -> ast.AST:
    return node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)


def drop_member(scope: Scope) -> Iterator[Edit]:
    """A tuple, list or dictionary that is written out lacks one member; a call lacks an optional argument."""
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and node.elts:
            for i in range(len(node.elts)):
                kept = [scope.of(e) for j, e in enumerate(node.elts) if j != i]
                yield node, f"({', '.join(kept)}{',' if len(kept) == 1 else ''})"
        elif isinstance(node, ast.Dict):
            pairs = [f"{scope.of(k)}: {scope.of(v)}" for k, v in zip(node.keys, node.values, strict=True) if k]
            for i in range(len(pairs)):
                yield node, "{" + ", ".join(p for j, p in enumerate(pairs) if j != i) + "}"
        elif isinstance(node, ast.Call) and node.keywords:
            for i in range(len(node.keywords)):
                parts = [scope.of(a) for a in node.args]
                parts += [f"{k.arg}={scope.of(k.value)}" for j, k in enumerate(node.keywords) if j != i and k.arg]
                if node.keywords[i].arg != "strict":
                    yield node, f"{scope.of(node.func)}({', '.join(parts)})"


def table_entry(scope: Scope) -> Iterator[Edit]:
    """Each entry of the window table leads elsewhere: to each state, to a filling one, or breaks each obligation."""
    node = scope.node
    if not scope.table or not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Dict):
        return
    if scope.of(node.target) != scope.table:
        return
    clauses = ("GA-EQ-001", "GA-INV-002", "GA-INV-003", "GA-INV-005")
    others = [*(f"_S.{name}" for name in scope.records["State"]), "FILL"]
    for value in node.value.values:
        breaks = obligation(scope, value)
        yield from ((value, other) for other in others if other != scope.of(value))
        yield from ((value, f'Breaks("{clause}", "another reason")') for clause in clauses if clause != breaks)


def obligation(scope: Scope, value: ast.AST) -> str:
    """The obligation that an entry of the window table breaks; empty where it breaks none."""
    if isinstance(value, ast.Name):
        for node in ast.parse(scope.text).body:
            if isinstance(node, ast.Assign) and scope.of(node.targets[0]) == value.id:
                return obligation(scope, node.value)
    if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Constant):
        first = value.args[0].value
        return first if isinstance(first, str) else f"GA-INV-{first:03d}"
    return ""


OPERATORS: tuple[Operator, ...] = (
    drop_term,
    swap_operands,
    other_field,
    first_element,
    first_value,
    late_term,
    late_condition,
    on_count,
    drop_statement,
    late_statement,
    drop_member,
    table_entry,
)
