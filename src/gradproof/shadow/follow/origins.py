"""Where a plain number comes from that scales a tensor: read off the expression at the line that uses it.

A number that reaches an operator is a float, and says nothing of itself: 0.25 is 1/N, one over the rows, or a factor of
the loss. The expression that made it does. Its leaves are named numbers, written numbers and sizes of tensors. It is
evaluated again with other numbers for its leaves; where it is a product of powers of them, these are the origin.

Nothing of the script is run for this: names are looked up in the frame, and only arithmetic is evaluated. What an
expression gives has to be the number that the operator was given; else the number has no origin.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, product
from numbers import Real
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from gradproof.shadow.follow.terms import NAMED, SIZE, UNREAD, WRITTEN, Number
from gradproof.shadow.locations import by_torch, frames, user_location
from gradproof.shadow.texts import (
    ARITHMETIC,
    COMPARED,
    ITERATED,
    LOADER,
    MIXED,
    MODULUS,
    RANGE,
    SHAPING,
    TORCH,
    Names,
    UnreadError,
    node_at,
    operands,
    scope_of,
)

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("sqrt", "log", "exp", "pow", "prod", "floor", "ceil", "log2")},
    "float": float, "abs": abs, "round": round, "min": min, "max": max, "Fraction": lambda a, b=1: a / b,
}  # fmt: skip
PASSING = frozenset({
    "int", "tensor", "as_tensor", "scalar_tensor", "int32", "int64", "float16", "float32", "float64", "item", "to",
    "Decimal", "bfloat16", "double", "half", "clone", "detach", "cpu", "cuda",
})  # fmt: skip
"""Functions and methods that hand on the number that they are given."""
TEXTS = ("int", "float", "getenv")
"""What makes a number of a text, as of an argument or the environment."""
SCALING = frozenset({"mul", "div", "multiply", "divide", "true_divide", "foreach_mul", "foreach_div"})
"""Functions of which an argument that is not understood is the number by which they scale."""
HANDING = ("torch/_ops.py", "torch/functional.py")
"""Files whose functions hand on what they are given, as einsum does."""
DEPTH = 8
MOST = 4
"""So many readings of one expression are tried, as of the two sides of a condition."""
CLOSE = 1e-6


Leaf = tuple[Number, int]
"""A number of an expression, and its place where each place is a number of its own: two numbers may have one text."""
Expression = Callable[[Mapping[Leaf, float]], Any]
"""A value, by those of its leaves."""


@dataclass
class Evaluated:
    """One reading of an expression: its leaves, and its value by them."""

    leaves: tuple[Leaf, ...]
    value: Expression

    def now(self) -> float:
        """Its value in this run."""
        return float(self.value({leaf: leaf[0].value for leaf in self.leaves}))

    def gives(self, number: float) -> bool:
        """Whether it is this number in this run."""
        try:
            return math.isclose(self.now(), number, rel_tol=CLOSE)
        except (ArithmeticError, ValueError, TypeError):
            return False

    def powers(self) -> tuple[Fraction, dict[Number, int]] | None:
        """The value as a rational times powers of its leaves; None where it is no such product."""
        own = {leaf: leaf[0].value for leaf in self.leaves}
        try:
            each = {leaf: self._power(leaf, own) for leaf in own if leaf[0].value not in (0, 1, -1)}
            powers = {leaf: power for leaf, power in each.items() if power}
            if None in each.values():
                return None
            rest = self.now() / math.prod(leaf[0].value ** power for leaf, power in powers.items())
            others = own | {leaf: own[leaf] * (1 + (1 + at) / 64) for at, leaf in enumerate(powers)}
            due = rest * math.prod(others[leaf] ** power for leaf, power in powers.items())
            if not math.isclose(float(self.value(others)), due):
                return None
        except (ArithmeticError, ValueError, TypeError):
            return None
        found = dict[Number, int]()
        for (number, _), power in powers.items():
            found[number] = found.get(number, 0) + power
        near = Fraction(rest).limit_denominator(10**6)
        return near if math.isclose(float(near), rest, rel_tol=1e-12) else Fraction(rest), found

    def _power(self, leaf: Leaf, own: Mapping[Leaf, float]) -> int | None:
        """The power of a leaf; 0 for a number in the text that stays as it is, as an exponent; None for another."""
        whole = self.now()
        for factors in ((2.0, 6.0), (1.0625, 1.125)):  # far, and near: a minimum is one of its sides
            by = {times: float(self.value({**own, leaf: own[leaf] * times})) / whole for times in factors}
            power = round(math.log(by[factors[0]], factors[0])) if by[factors[0]] > 0 else 0
            if all(math.isclose(one, times**power) for times, one in by.items()) and (power or factors[0] == 2):
                return power
        return None if leaf[0].shapes or leaf[0].kind in (SIZE, UNREAD) else 0


class Origins:
    """Reads numbers of the run of an engine. `rows`: those of a micro-batch that an axis of a tensor has, or 0."""

    def __init__(self, rows: Callable[[torch.Tensor, int], int]) -> None:
        self.rows = rows

    def of(self, number: float, single: bool) -> tuple[Fraction, dict[Number, int]]:
        """The origin of a number that the present operator is given; one that is unread where none is known.

        `single`: it scales one number, which may be a loss.
        """
        frame = next((one for one in frames() if not one.f_code.co_filename.endswith(HANDING)), None)
        node = None if frame is None else node_at(frame.f_code, frame.f_lasti)
        whole = single or (node is not None and ".grad" in ast.unparse(node))
        found = None if frame is None or node is None else self._read(number, frame, node)
        if found is None:
            at, sign = user_location(), -1 if number < 0 else 1
            shapes = frozenset({TORCH} if by_torch() else ())
            found = Fraction(sign), {Number(UNREAD, f"{abs(number):g}", at.file, at.line, abs(number), shapes): 1}
        by, leaves = found
        return by, {replace(n, whole=whole): power for n, power in leaves.items()}

    def _read(self, number: float, frame: FrameType, node: ast.AST) -> tuple[Fraction, dict[Number, int]] | None:
        func = node.func if isinstance(node, ast.Call) else None
        scales = func is None or (isinstance(func, ast.Attribute) and func.attr.strip("_") in SCALING)
        for alone, given in product((False, True) if scales else (False,), operands(node)):
            for reading in islice(_Resolver(self, number, alone).resolve(given, frame), MOST):
                if reading.gives(number):
                    return reading.powers() or self._whole(reading, given, frame, number)
        return None

    def _whole(
        self, reading: Evaluated, node: ast.expr, frame: FrameType, number: float
    ) -> tuple[Fraction, dict[Number, int]] | None:
        """The origin of what is not a product of powers: a number of its own, MIXED where N or rows are in it."""
        if not number:
            return None
        mixed = any(leaf.shapes or leaf.kind in (SIZE, UNREAD) for leaf, _ in reading.leaves)
        kind, shapes = (UNREAD, frozenset({MIXED})) if mixed else (WRITTEN, frozenset[str]())
        made = Number(kind, ast.unparse(node), frame.f_code.co_filename, node.lineno, abs(number), shapes)
        return Fraction(1 if number > 0 else -1), {made: 1}


class _Resolver:
    """Resolves one expression: what each name in it stands for. `whole`: the number that all of it has to be.

    `alone`: an expression of which nothing is known is taken for that number.
    """

    def __init__(self, origins: Origins, whole: float, alone: bool) -> None:
        self.origins, self.whole, self.alone = origins, whole, alone

    def resolve(self, node: ast.expr, frame: FrameType, depth: int = 0) -> Iterator[Evaluated]:
        """The readings of an expression."""
        if depth > DEPTH:
            return
        rule = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            yield from rule(node, frame, depth + 1) if rule is not None else ()
        except UnreadError:
            return

    # -- Leaves

    def _leaf(self, kind: str, node: ast.AST, frame: FrameType, value: Any, text: str = "", **more: Any) -> Evaluated:
        text, line, column = text or ast.unparse(node), getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        number = Number(kind, text, frame.f_code.co_filename, line, float(value), **more)
        leaf = number, (line << 12) + column if kind == WRITTEN else 0
        return Evaluated((leaf,), lambda by: by[leaf])

    def _constant(self, node: ast.Constant, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            plain = node.value
            yield Evaluated((), lambda _: plain) if plain in (0, 1) else self._leaf(WRITTEN, node, frame, plain)

    def _name(self, node: ast.Name, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        value, scope = looked_up(frame, node.id), scope_of(frame)
        number = plain(value)
        if number is None:
            return
        shapes, made = scope.shapes(node.id), scope.made(node.id, frame.f_locals is not frame.f_globals)
        if MODULUS not in shapes and self._rivals(scope, frame, node.id, number, MODULUS):
            shapes -= {COMPARED, RANGE}  # it is by the other one that the loop counts its micro-batches
        readings = [one for of, index in made for one in self._indexed(of, index, frame, depth) if one.gives(number)]
        sizes = [one for one in readings if one.leaves and all(leaf.kind == SIZE for leaf, _ in one.leaves)]
        constant = next((of for of, index in made if index is None and isinstance(of, ast.Constant)), None)
        text = any(isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id in TEXTS for of, _ in made)
        if sizes:
            yield sizes[0]
        elif shapes & {MODULUS, COMPARED} or constant is not None:
            alone = {RANGE} if not shapes and not self._rivals(scope, frame, node.id, number) else set[str]()
            yield self._leaf(NAMED, constant or node, frame, number, node.id, shapes=shapes | alone)
        elif readings:
            yield shaped(readings[0], shapes & SHAPING)
        elif text:
            yield self._leaf(NAMED, node, frame, number, shapes=shapes)
        else:
            given = self._given(node.id, frame, depth) if node.id in scope.parameters and not made else ()
            found = next((one for one in given if one.gives(number)), None)
            yield found or self._leaf(UNREAD, node, frame, number, shapes=shapes)

    def _rivals(self, scope: Names, frame: FrameType, name: str, number: float, *kinds: str) -> bool:
        """Whether another name has this value: of those that shape a loop in one of these ways, or of all."""
        others = (one for one in scope.every() if one != name and scope.apart(one, name))
        shaping = (one for one in others if not kinds or not scope.uses.get(one, set()).isdisjoint(kinds))
        return any(plain(looked_up(frame, one)) == number for one in shaping)

    def _indexed(self, of: ast.expr, index: int | None, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        """What a name was given: an expression, or one of several sizes."""
        if index is None:
            yield from self.resolve(of, frame, depth)
        elif isinstance(of, ast.Tuple | ast.List):
            yield from self.resolve(of.elts[index], frame, depth) if index < len(of.elts) else ()
        elif (tensor := self._sized(of, frame)) is not None and index < tensor.dim():
            yield self._size(tensor, index, of, frame)

    def _given(self, name: str, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        """What a parameter of a function was given by its caller."""
        caller, code = frame.f_back, frame.f_code
        call = None if caller is None else node_at(caller.f_code, caller.f_lasti)
        if caller is None or not isinstance(call, ast.Call):
            return
        named = [keyword.value for keyword in call.keywords if keyword.arg == name]
        at = code.co_varnames.index(name) - (code.co_varnames[:1] == ("self",))
        placed = call.args[at : at + 1] if not any(isinstance(arg, ast.Starred) for arg in call.args) else []
        for arg in named or placed:
            yield from self.resolve(arg, caller, depth)

    def _attribute(self, node: ast.Attribute, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        yield from self._part(node, node.attr, parsed(self._object(node.value, frame)), frame, depth)

    def _subscript(self, node: ast.Subscript, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else integer(node.slice)
        tensor = self._sized(node.value, frame)
        if tensor is not None and isinstance(key, int) and -tensor.dim() <= key < tensor.dim():
            yield self._size(tensor, key % tensor.dim(), node, frame)
            return
        yield from self._part(node, key, isinstance(self._object(node.value, frame), Mapping), frame, depth)

    def _part(
        self, node: ast.Attribute | ast.Subscript, key: Any, config: bool, frame: FrameType, depth: int
    ) -> Iterator[Evaluated]:
        """A number that an object holds by an attribute, or by a key. `config`: the object was given to the script."""
        number = plain(self._object(node, frame))
        if number is not None or (self.alone and depth == 1):
            shapes = scope_of(frame).shapes(f".{key!s}")
            kind = NAMED if shapes or config else UNREAD
            yield self._leaf(kind, node, frame, self.whole if number is None else number, shapes=shapes)

    def _object(self, node: ast.expr, frame: FrameType) -> Any:
        """What names, attributes and keys stand for; nothing of the script runs for it."""
        if isinstance(node, ast.Name):
            return looked_up(frame, node.id)
        if isinstance(node, ast.Attribute):
            return held(self._object(node.value, frame), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self._object(node.value, frame)
            try:
                return owner[node.slice.value] if type(owner) in (dict, list, tuple) else None
            except (LookupError, TypeError):
                return None
        return None

    # -- Sizes

    def _sized(self, node: ast.expr, frame: FrameType) -> torch.Tensor | None:
        """The tensor of `x.shape`, or of `x.size()`."""
        if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            node = node.func
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            found = self._object(node.value, frame)
            return found if isinstance(found, torch.Tensor) else None
        return None

    def _size(self, tensor: torch.Tensor, axis: int, node: ast.AST, frame: FrameType) -> Evaluated:
        with torch._C.DisableTorchFunction():
            size, rows = int(tensor.shape[axis]), self.origins.rows(tensor, axis)
        return self._leaf(SIZE, node, frame, size, axis=axis, rows=rows)

    # -- Arithmetic

    def _joined(
        self, make: Callable[..., Any], parts: list[ast.expr], frame: FrameType, depth: int
    ) -> Iterator[Evaluated]:
        """A function of expressions."""
        found: list[list[Evaluated]] = [[]]
        for part in parts:
            own = [*islice(self.resolve(part, frame, depth), MOST)]
            found = [[*before, reading] for before in found for reading in own][:MOST]
        for readings in found:
            leaves = tuple(leaf for reading in readings for leaf in reading.leaves)
            yield Evaluated(leaves, lambda by, own=readings: make(*(one.value(by) for one in own)))  # type: ignore[misc]

    def _binop(self, node: ast.BinOp, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        if type(node.op) in ARITHMETIC:
            yield from self._joined(ARITHMETIC[type(node.op)], [node.left, node.right], frame, depth)

    def _unaryop(self, node: ast.UnaryOp, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        if isinstance(node.op, ast.USub):
            yield from self._joined(operator.neg, [node.operand], frame, depth)

    def _ifexp(self, node: ast.IfExp, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        for side in (node.body, node.orelse):
            yield from self.resolve(side, frame, depth)

    def _namedexpr(self, node: ast.NamedExpr, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        yield from self.resolve(node.value, frame, depth)

    def _list(self, node: ast.List, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        if len(node.elts) == 1:
            yield from self.resolve(node.elts[0], frame, depth)

    def _call(self, node: ast.Call, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        func = node.func
        name = func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""
        given = [*node.args, *([func.value] if isinstance(func, ast.Attribute) and not node.args else [])]
        if name == "len" and len(node.args) == 1:
            yield from self._length(node, frame, depth)
        elif name in ("size", "numel") and isinstance(func, ast.Attribute):
            yield from self._of_tensor(node, func, frame)
        elif name in FUNCTIONS and node.args and not node.keywords:
            yield from self._joined(FUNCTIONS[name], node.args, frame, depth)
        elif name in PASSING and given:
            found = [*islice(self.resolve(given[0], frame, depth), MOST)]
            yield from found
            text = name in ("int", "float") and self.alone and depth == 1  # a number of it, as of an environment
            if text and not found:
                yield self._leaf(NAMED, node, frame, self.whole)
        elif name in ("full", "full_like") and len(node.args) > 1:
            yield from self.resolve(node.args[1], frame, depth)
        elif self.alone and depth == 1:
            yield self._leaf(UNREAD, node, frame, self.whole)

    def _length(self, node: ast.Call, frame: FrameType, depth: int) -> Iterator[Evaluated]:
        of = self._object(node.args[0], frame)
        if isinstance(of, torch.Tensor) and of.dim():
            yield self._size(of, 0, node, frame)
        elif isinstance(of, list | tuple | dict | set | range):
            name = node.args[0].id if isinstance(node.args[0], ast.Name) else ""
            iterated = ITERATED in scope_of(frame).shapes(name)
            yield self._leaf(UNREAD, node, frame, len(of), shapes=frozenset({RANGE} if iterated else ()))
        elif isinstance(of, DataLoader) and depth == 1:
            yield self._leaf(NAMED, node, frame, self.whole, shapes=frozenset({RANGE, LOADER}))
        elif self.alone and depth == 1:
            yield self._leaf(UNREAD, node, frame, self.whole)

    def _of_tensor(self, node: ast.Call, func: ast.Attribute, frame: FrameType) -> Iterator[Evaluated]:
        tensor = self._object(func.value, frame)
        if not isinstance(tensor, torch.Tensor):
            return
        axis = next((integer(one) for one in (*node.args, *(key.value for key in node.keywords))), None)
        if func.attr == "size" and axis is not None and tensor.dim():
            yield self._size(tensor, axis % tensor.dim(), node, frame)
        if func.attr == "numel":
            sizes = [self._size(tensor, axis, node, frame) for axis in range(tensor.dim())]
            leaves = tuple(leaf for one in sizes for leaf in one.leaves)
            yield Evaluated(leaves, lambda by: math.prod(one.value(by) for one in sizes))


# -- Values.


def shaped(reading: Evaluated, shapes: frozenset[str]) -> Evaluated:
    """A reading that is one number by a name of its own, which shapes what that name shapes."""
    if len(reading.leaves) != 1 or reading.leaves[0][0].kind != NAMED or not shapes:
        return reading
    (number, at), value = reading.leaves[0], reading.value
    leaf = replace(number, shapes=number.shapes | shapes), at
    return Evaluated((leaf,), lambda by: value({(number, at): by[leaf]}))


def integer(node: ast.AST) -> int | None:
    """A whole number as it is written, with its sign."""
    sign = -1 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1
    value = getattr(node.operand if isinstance(node, ast.UnaryOp) else node, "value", None)
    return sign * value if type(value) is int else None


def plain(value: Any) -> float | None:
    """A plain number, or that of a tensor of one element without a gradient."""
    if isinstance(value, torch.Tensor):
        odd = value.requires_grad or value.is_complex() or value.layout is not torch.strided
        if odd or value.numel() != 1 or value.device.type == "meta":
            return None
        with torch.no_grad(), _disable_current_modes():
            value = value.detach().reshape(()).tolist()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return None
    return float(value)


def looked_up(frame: FrameType, name: str) -> Any:
    """What a name stands for in a frame."""
    return frame.f_locals.get(name, frame.f_globals.get(name))


def held(owner: Any, name: str) -> Any:
    """An attribute that an object, or its class, holds as it is: no property is run."""
    own = getattr(owner, "__dict__", None)
    if isinstance(own, dict) and name in own:
        return own[name]
    kinds: tuple[type, ...] = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    found = next((vars(kind)[name] for kind in kinds if vars(kind).get(name) is not None), None)
    return None if plain(found) is None else found


def parsed(owner: Any) -> bool:
    """Whether an object holds what a parser, or a config, gave: a namespace, a dataclass, a class of numbers."""
    known = type(owner).__name__ in ("Namespace", "SimpleNamespace") or hasattr(type(owner), "__dataclass_fields__")
    return known or isinstance(owner, type)
