"""Comparisons: truth values of the domain, or plain ones of integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value
from gradproof.shadow.rows.common import absolute
from gradproof.shadow.table import Example, Int, Ops, T, register

X = T((2, 3))
CASES = (
    Example(X, T((3,)), overload="Tensor"), Example(X, 0.5, overload="Scalar"),
    Example(Int((2, 3), 3), T((2, 3)), overload="Tensor", untracked=(0,)),
)  # fmt: skip


def compared(k: Ops, a: Any, b: Any, f: Callable[[Any, Any], Any]) -> Any:
    """A comparison in the domain when either side is tracked."""
    if isinstance(a, Value) or isinstance(b, Value):
        left, right = k.lift(a), k.lift(b)
        shape = np.broadcast_shapes(left.shape, right.shape)
        result = f(left, right)
        return result if result.shape == shape else result.expand(shape)
    return np.asarray(f(np.asarray(a), np.asarray(b)))


def same(a: Any, b: Any) -> Any:
    """Equality."""
    return a.same(b) if isinstance(a, Value) else a == b


def different(a: Any, b: Any) -> Any:
    """Inequality."""
    return ~same(a, b)


def comparison(name: str, f: Callable[[Any, Any], Any]) -> None:
    """The row of one comparison."""

    @register(f"aten.{name}", examples=CASES)
    def rule(k: Ops, a: Any, b: Any) -> Any:
        return compared(k, a, b, f)


for _name, _f in {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": same, "ne": different,
}.items():  # fmt: skip
    comparison(_name, _f)


@register("aten.isclose", examples=[Example(X, X), Example(X, T((3,)), 0.1, 0.2)])
def isclose(k: Ops, a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """|a - b| <= atol + rtol |b|."""
    left, right = k.lift(a), k.lift(b)
    return absolute(left - right) <= absolute(right) * rtol + atol
