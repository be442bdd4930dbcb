"""Copies, conversions, constants, choices and logic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, number, where
from gradproof.shadow.ops.rows.common import constant, truncated, truth
from gradproof.shadow.ops.rows.pointwise import endless, tell
from gradproof.shadow.ops.table import Bool, Example, Int, Ops, T, register
from gradproof.shadow.tape import FLOATS, Ref

X = T((2, 3))
LARGEST = {
    "float64": float(np.finfo(np.float64).max), "float32": float(np.finfo(np.float32).max), "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}  # fmt: skip


def converted(k: Ops, x: Any, dtype: str) -> Any:
    """A tensor in another dtype. A number that becomes an integer is recorded, and its size assumed."""
    value = k.lift(x)
    if dtype == "bool":
        return truth(k, value)
    if dtype in FLOATS or value.truth or not isinstance(x, Value):
        return number(value)
    seen = k.seen(0)
    k.assume(truncated(k, value).same(seen.astype(float)), f"the whole parts are those of this run ({dtype})")
    return seen


def made(k: Ops) -> str:
    """The dtype of the first output."""
    out = k.entry.outs[0]
    return out.dtype if isinstance(out, Ref) else "float64"


@register("aten.clone", examples=[Example(X)])
def clone(k: Ops, x: Any) -> Any:
    """The same."""
    return x


@register(
    "aten._to_copy",
    examples=[Example(X, dtype="float64"), Example(X, dtype="float16"), Example(X, dtype="int64"), Example(X)],
)
def to_copy(k: Ops, x: Any, dtype: str | None = None) -> Any:
    """A copy, in another dtype perhaps."""
    return converted(k, x, dtype or made(k))


@register("aten.copy", examples=[Example(X, T((3,))), Example(X, Int((2, 3), 5)), Example(Int((2, 3), 5), X)])
def copy(k: Ops, x: Any, source: Any) -> Any:
    """Another tensor's elements."""
    found = converted(k, source, made(k))
    return found.expand(x.shape) if isinstance(found, Value) else np.broadcast_to(found, x.shape)


@register("aten.fill", examples=[Example(X, 2.5), Example(X, T(()))])
def fill(k: Ops, x: Any, value: Any) -> Any:
    """One element everywhere."""
    found = converted(k, value, made(k))
    return found.expand(x.shape) if isinstance(found, Value) else np.broadcast_to(found, x.shape)


@register("aten.zero", examples=[Example(X)])
def zero(k: Ops, x: Any) -> Any:
    """Zeros in the place of a tensor."""
    return filled(k, x.shape, 0.0)


def filled(k: Ops, shape: Sequence[int], value: Any) -> Any:
    """A constant in the dtype of the output."""
    dtype = made(k)
    if dtype in FLOATS or dtype == "bool":
        return constant(k, shape, value, truth=dtype == "bool")
    return np.full(tuple(shape), value, dtype=np.int64)


@register("aten.zeros_like", examples=[Example(X), Example(X, dtype="int64")])
def zeros_like(k: Ops, x: Any, **_: Any) -> Any:
    """Zeros beside a tensor."""
    return filled(k, x.shape, 0.0)


@register("aten.new_zeros", examples=[Example(X, [2, 2])])
def new_zeros(k: Ops, x: Any, size: Any, **_: Any) -> Any:
    """Zeros of another shape."""
    return filled(k, size, 0.0)


@register("aten.ones_like", examples=[Example(X), Example(X, dtype="int64")])
def ones_like(k: Ops, x: Any, **_: Any) -> Any:
    """Ones beside a tensor."""
    return filled(k, x.shape, 1.0)


@register("aten.full_like", examples=[Example(X, 0.5), Example(X, 3, dtype="int64")])
def full_like(k: Ops, x: Any, value: Any, **_: Any) -> Any:
    """One number beside a tensor."""
    return filled(k, x.shape, value)


@register("aten.new_ones", examples=[Example(X, [2, 2])])
def new_ones(k: Ops, x: Any, size: Any, **_: Any) -> Any:
    """Ones of another shape."""
    return filled(k, size, 1.0)


@register("aten.new_full", examples=[Example(X, [2, 2], 0.5)])
def new_full(k: Ops, x: Any, size: Any, value: Any, **_: Any) -> Any:
    """One number in another shape."""
    return filled(k, size, value)


@register("aten.where", examples=[Example(Bool((2, 3)), X, T((3,))), Example(Bool((3,)), X, -1.0)])
def where_(k: Ops, condition: Any, x: Any, y: Any) -> Value:
    """A choice by element."""
    return where(truth(k, condition), k.lift(x), k.lift(y))


@register("aten.masked_fill", examples=[Example(X, Bool((2, 3)), -1.5), Example(X, Bool((3,)), T(()))])
def masked_fill(k: Ops, x: Any, mask: Any, value: Any) -> Value:
    """A number where a mask holds."""
    return where(truth(k, mask), k.lift(value), k.lift(x))


@register("aten.isfinite", examples=[Example(X)])
def isfinite(k: Ops, x: Any) -> Value:
    """Neither infinite nor NaN."""
    value = k.lift(x)
    return ~endless(k, value) & value.same(value)


@register("aten.nan_to_num", examples=[Example(X), Example(X, 0.5, 1.0, -1.0)])
def nan_to_num(
    k: Ops, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """Numbers in the place of NaN and the infinities; by default the largest of the dtype."""
    value, most = k.lift(x), LARGEST.get(made(k), LARGEST["float64"])
    above = tell(k, value, lambda v: v.same(math.inf))
    below = tell(k, value, lambda v: v.same(-math.inf))
    found = where(above, most if posinf is None else posinf, value)
    found = where(below, -most if neginf is None else neginf, found)
    return where(value.same(value), found, nan or 0.0)


TWO = (Example(Bool((2, 3)), X), Example(X, X))


@register("aten.logical_and", examples=TWO)
def logical_and(k: Ops, x: Any, y: Any) -> Value:
    """Both differ from zero."""
    return truth(k, x) & truth(k, y)


@register("aten.logical_or", examples=TWO)
def logical_or(k: Ops, x: Any, y: Any) -> Value:
    """One differs from zero."""
    return truth(k, x) | truth(k, y)


@register("aten.logical_xor", examples=TWO)
def logical_xor(k: Ops, x: Any, y: Any) -> Value:
    """Exactly one differs from zero."""
    a, b = truth(k, x), truth(k, y)
    return (a & ~b) | (~a & b)


def _bits(k: Ops, *args: Any) -> list[Value]:
    values = [k.lift(a) for a in args]
    if not all(v.truth for v in values):
        raise Beyond("bits of integers that depend on a leaf")
    return values


@register("aten.bitwise_not", examples=[Example(Bool((2, 3)))])
def bitwise_not(k: Ops, x: Any) -> Value:
    """Of truth values."""
    return ~_bits(k, x)[0]


@register("aten.bitwise_and", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_and(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return a & b


@register("aten.bitwise_or", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_or(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return a | b


@register("aten.bitwise_xor", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_xor(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return (a & ~b) | (~a & b)
