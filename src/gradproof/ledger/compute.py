"""A claim's own arithmetic: decimal numbers, + - * / and brackets, over the rationals."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

LONGEST = 200
_DIGITS = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,3})?|\.[0-9]{1,30}([eE][-+]?[0-9]{1,3})?")
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ComputeError(ValueError):
    """A text that is no such arithmetic, in words."""


def computed(text: str) -> Fraction:
    """The number. Raises ComputeError."""
    if len(text) > LONGEST:
        raise ComputeError(f"longer than {LONGEST} characters")
    try:
        return _value(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ComputeError(str(error).partition("\n")[0]) from error


def _value(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        digits = ast.get_source_segment(text, node) or ""
        if not _DIGITS.fullmatch(digits):
            raise ComputeError(f"{digits[:40]} is no number of at most 30 digits and an exponent of three")
        return Fraction(digits)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, text), _value(node.right, text))
    raise ComputeError(f"{type(node).__name__} is no arithmetic")
