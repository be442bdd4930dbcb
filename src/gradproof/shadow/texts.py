"""The text of a script as it stands in its file: what its names are given, and what they shape.

A number says nothing of itself; where it stands does. The modulus of a loop, a comparison or a range is N of something,
and the length of a slice is the rows of something. Nothing of the script is run for this.
"""

from __future__ import annotations

import ast
import linecache
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

MODULUS, COMPARED, RANGE, SLICE, ROWS, MIXED = "modulus", "compared", "range", "slice", "rows", "mixed"
ITERATED, TORCH, LOADER = "iterated", "torch", "loader"
"""What a number shapes: a loop (a modulus, a comparison, a range), or a batch (a slice, its size).

MIXED: it is made of such a number by something else than a power, as a sum. ITERATED: of a list that a loop goes over.
TORCH: a function of torch's own made it.
"""
SHAPING = frozenset({MODULUS, COMPARED, RANGE})
PRIMES = (7.0, 11.0, 13.0, 17.0, 19.0, 23.0)
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


class UnreadError(Exception):
    """An expression of which a part is not known."""


class Names:
    """A function of a file, or the file itself: what its names are given, and what they shape."""

    def __init__(self, tree: ast.AST, outer: Names | None) -> None:
        self.outer, self.given = outer, dict[str, list[tuple[ast.expr | None, int | None]]]()
        self.lines = dict[str, list[int]]()
        self.uses: dict[str, set[str]] = {} if outer is None else outer.uses
        self.own: dict[str, set[str]] = {}
        args = getattr(tree, "args", None)
        self.parameters = {one.arg for one in (*args.args, *args.kwonlyargs, *args.posonlyargs)} if args else set[str]()
        for node in inside(tree):
            for target, value in assigned(node):
                self._gives(target, value)
                for one in (one for one in ast.walk(target) if isinstance(one, ast.Name)):
                    self.lines.setdefault(one.id, []).append(one.lineno)
            for kind, part in shaping(node):
                for name in names(part, calls=kind != COMPARED):
                    self.own.setdefault(name, set()).add(kind)
                    self.uses.setdefault(name, set()).add(kind)

    def every(self) -> set[str]:
        """The names that are given a value here, or in the file."""
        return {*self.given, *(self.outer.every() if self.outer is not None else ())}

    def values(self, name: str) -> list[ast.expr | None]:
        """The expressions that a name is given, here or in the file; None for one that counts, as that of a loop."""
        scope: Names | None = self
        while scope is not None and name not in scope.given:
            scope = scope.outer
        return [] if scope is None else [value for value, _ in scope.given[name]]

    def apart(self, name: str, other: str) -> bool:
        """Whether a name is another one's equal by chance: it takes no values in turn, and is not made of it."""
        values = self.values(name)
        return None not in values and all(other not in names(value, True) for value in values if value is not None)

    def _gives(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.given.setdefault(target.id, []).append((value, None))
        elif isinstance(target, ast.Tuple | ast.List):
            for at, one in enumerate(target.elts):
                if isinstance(one, ast.Name):
                    apart = isinstance(value, ast.Tuple | ast.List) and at < len(value.elts)
                    made = (value.elts[at], None) if apart and isinstance(value, ast.Tuple | ast.List) else (value, at)
                    self.given.setdefault(one.id, []).append(made)

    def local(self, name: str) -> bool:
        """Whether a name is the function's own."""
        return self.outer is not None and (name in self.given or name in self.parameters)

    def shapes(self, name: str) -> frozenset[str]:
        """What a name, or an attribute or a key after a dot, shapes: a local one in its function, others anywhere."""
        return frozenset((self.own if self.local(name) else self.uses).get(name, ()))

    def made(self, name: str, function: bool) -> list[tuple[ast.expr, int | None]]:
        """The one expression that a name is given, and which part of it; nothing where there are several.

        What it is made of has to be what it was then: no name in it is given another value below it. `function`: the
        frame is that of a function, of which no name may stand in an expression of the file.
        """
        scope: Names | None = self
        while scope is not None and name not in scope.given and name not in scope.parameters:
            scope = scope.outer
        found = [] if scope is None or name in scope.parameters else scope.given[name]
        one = [(value, index) for value, index in found if value is not None] if len(found) == 1 else []
        return [(value, index) for value, index in one if scope is not None and self._still(value, scope, function)]

    def _still(self, value: ast.expr, scope: Names, function: bool) -> bool:
        """Whether the names of an expression stand for what they stood for."""
        for name in (part.id for part in ast.walk(value) if isinstance(part, ast.Name)):
            if function and scope.outer is None and self.local(name):
                return False
            if any(line > value.lineno for line in scope.lines.get(name, ())):
                return False
        return True


def inside(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or a file, without those of functions inside it."""
    stack = [*ast.iter_child_nodes(tree)]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            stack += ast.iter_child_nodes(node)


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement gives a value to, and the expression of it; None where it is no plain one."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None


def shaping(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The expressions that shape a loop or a batch, and how."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mod):
        by = node.right if isinstance(node, ast.BinOp) else node.value
        if not (isinstance(by, ast.BinOp) and isinstance(by.op, ast.Mult)):  # of a product no factor is N
            yield MODULUS, by
    elif isinstance(node, ast.For):
        over = (node.iter, *getattr(node.iter, "args", ()))  # a list, as it is or by enumerate and zip
        yield from ((ITERATED, one) for one in over if isinstance(one, ast.Name))
    elif isinstance(node, ast.Compare):
        yield from ((COMPARED, part) for part in (node.left, *node.comparators))
    elif isinstance(node, ast.Slice) and node.lower is not None and node.upper is not None:
        yield from ((SLICE, name) for name in width(node.lower, node.upper))
    elif isinstance(node, ast.Call):
        func = node.func
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        if name in ("range", "islice", "chunk"):
            yield from ((ROWS if at == 2 and name == "range" else RANGE, arg) for at, arg in enumerate(node.args))
        if name == "split" or name.endswith("DataLoader"):
            yield from ((ROWS, arg) for arg in node.args[:2])
        yield from ((ROWS, one.value) for one in node.keywords if one.arg in ("batch_size", "split_size"))


def width(lower: ast.expr, upper: ast.expr) -> Iterator[ast.expr]:
    """The name that is the length of a slice, as B of x[k * B : (k + 1) * B]; none where it is a product, or a sum."""
    parts = (one for side in (lower, upper) for one in ast.walk(side) if isinstance(one, ast.Name | ast.Attribute))
    own = {ast.unparse(one): one for one in parts}
    # square roots of primes: no sum or product of some is another
    numbers = {name: prime**0.5 for prime, name in zip(PRIMES, own, strict=False)}
    try:
        length = worked_out(upper, numbers) - worked_out(lower, numbers)
    except (UnreadError, ArithmeticError):
        return
    yield from (own[name] for name, number in numbers.items() if math.isclose(length, number))


def worked_out(node: ast.expr, numbers: Mapping[str, float]) -> float:
    """The value of an expression by numbers for its names. Raises UnreadError for another expression."""
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return float(ARITHMETIC[type(node.op)](worked_out(node.left, numbers), worked_out(node.right, numbers)))
    found = numbers.get(ast.unparse(node), getattr(node, "value", None))
    if not isinstance(found, int | float):
        raise UnreadError
    return float(found)


def names(node: ast.expr, calls: bool) -> Iterator[str]:
    """The names in an expression, attributes and keys after a dot. `calls`: also those that a function is given."""
    stack: list[ast.AST] = [node]
    while stack:
        one = stack.pop()
        stack += ast.iter_child_nodes(one) if calls or not isinstance(one, ast.Call) else ()
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield f".{one.attr}"
        elif isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant):
            yield f".{one.slice.value!s}"


class File:
    """The text of a file as a tree: its nodes by their places, and its scopes by their first lines."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = dict[tuple[Any, ...], ast.AST]()
        self.scopes = dict[tuple[str, int], Names]()
        self.whole = Names(tree, None)
        self._enter(tree, self.whole)

    def _enter(self, tree: ast.AST, scope: Names) -> None:
        for node in inside(tree):
            if isinstance(node, ast.BinOp | ast.AugAssign | ast.Call):
                self.nodes[node.lineno, node.end_lineno, node.col_offset, node.end_col_offset] = node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                own = Names(node, scope)
                first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
                self.scopes[getattr(node, "name", "<lambda>"), first] = own
                self._enter(node, own)


@lru_cache(maxsize=512)
def parsed_text(text: str) -> File | None:
    """The text of a file; None where it is no Python."""
    try:
        return File(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=65536)
def file_of(code: CodeType) -> File | None:
    """The file of some code, as it is when it is asked for first; None where its text is not there."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    return parsed_text(text) if text else None


def scope_of(frame: FrameType) -> Names:
    """The scope of a frame's function."""
    file, code = file_of(frame.f_code), frame.f_code
    if file is None:
        raise UnreadError
    return file.scopes.get((code.co_name, code.co_firstlineno), file.whole)


@lru_cache(maxsize=65536)
def node_at(code: CodeType, instruction: int) -> ast.AST | None:
    """The expression that an instruction belongs to."""
    file = file_of(code)
    place = next(islice(code.co_positions(), instruction // 2, None), None)
    return None if file is None or place is None else file.nodes.get((place[0], place[1], place[2], place[3]))


def operands(node: ast.AST) -> list[ast.expr]:
    """The expressions that may have given a number to an operator."""
    if isinstance(node, ast.BinOp):
        return [node.right, node.left]
    if isinstance(node, ast.AugAssign):
        return [node.value]
    return [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
