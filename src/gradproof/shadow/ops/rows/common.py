"""What several families of rows share: powers, extremes and truth values, in the algebra of `Value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, number, where
from gradproof.shadow.ops.table import Ops

POWER = 4096
"""Largest exponent that is unfolded into products (a step count of an optimizer); above it `pow` is a function."""


def constant(k: Ops, shape: Sequence[int], value: float = 0.0, truth: bool = False) -> Value:
    """A constant of a shape."""
    return k.lift(np.full(tuple(shape), bool(value) if truth else value))


def spread(k: Ops, *args: Any) -> list[Value]:
    """Arguments as Values of one shape."""
    values = [k.lift(a) for a in args]
    shape = np.broadcast_shapes(*(v.shape for v in values))
    return [v if v.shape == shape else v.expand(shape) for v in values]


def fn(k: Ops, name: str, *args: Any) -> Value:
    """A function of `algebra.FUNCTIONS` on arguments that broadcast."""
    return k.fn(name, *spread(k, *args))


def truth(k: Ops, x: Any) -> Value:
    """Whether each element differs from zero."""
    value = k.lift(x)
    return value if value.truth else ~value.same(0.0)


def scaled(x: Value, factor: Any) -> Value:
    """A product, without the multiplication by a plain one."""
    return x if isinstance(factor, int | float) and factor == 1 else x * factor


def absolute(x: Value) -> Value:
    """The absolute value."""
    return where(x < 0.0, -x, x)


def larger(a: Any, b: Any) -> Value:
    """The larger of two."""
    return where(a < b, b, a)


def smaller(a: Any, b: Any) -> Value:
    """The smaller of two."""
    return where(b < a, b, a)


def between(x: Value, low: Any = None, high: Any = None) -> Value:
    """As `torch.clamp`: the upper bound wins where the bounds cross. None is no bound."""
    bounded = x if low is None else larger(x, low)
    return bounded if high is None else smaller(bounded, high)


def truncated(k: Ops, x: Value) -> Value:
    """Towards zero."""
    return where(x < 0.0, -k.fn("floor", -x), k.fn("floor", x))


def power(k: Ops, x: Value, exponent: float) -> Value:
    """A constant power: products for whole and half exponents up to `POWER`, else the function `pow`."""
    twice = Fraction(exponent) * 2 if np.isfinite(exponent) else Fraction(1, 2)
    if twice.denominator != 1 or abs(twice) > 2 * POWER:
        return fn(k, "pow", x, float(exponent))
    whole, half = divmod(abs(int(twice)), 2)
    result = product(k, x, whole)
    if half:
        root = k.fn("sqrt", x)
        result = root if whole == 0 else result * root
    return 1.0 / result if twice < 0 else result


def product(k: Ops, x: Value, times: int) -> Value:
    """`x` to a whole power, by squaring."""
    if times == 0:
        return constant(k, x.shape, 1.0)
    result: Value | None = None
    square = number(x)
    while times:
        if times & 1:
            result = square if result is None else result * square
        times >>= 1
        square = square * square if times else square
    assert result is not None
    return result


def fold(x: Value, axes: Sequence[int], join: Callable[[Value, Value], Value], keep: bool) -> Value:
    """Join all elements along some axes, as a balanced tree. Raises Beyond when there is none."""
    for axis in sorted(axes, reverse=True):
        x = fold_axis(x, axis, join, keep)
    return x


def fold_axis(x: Value, axis: int, join: Callable[[Value, Value], Value], keep: bool) -> Value:
    """Join all elements along one axis."""
    if x.shape[axis] == 0:
        raise Beyond("a reduction without an identity over no elements")
    before = (slice(None),) * axis
    while x.shape[axis] > 1:
        n = x.shape[axis]
        joined = join(x[(*before, slice(0, n // 2))], x[(*before, slice(n // 2, 2 * (n // 2)))])
        if n % 2:
            last = x[(*before, slice(n - 1, n))]
            pairs = zip(joined.parts, last.parts, strict=True)
            joined = Value(x.domain, tuple(np.concatenate(p, axis=axis) for p in pairs), joined.truth)
        x = joined
    return x if keep else x[(*before, 0)]
