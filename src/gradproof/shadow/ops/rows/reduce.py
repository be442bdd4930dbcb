"""Reductions. Extremes are trees of `where`; where the kernel also gives an index, that is recorded and assumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, axes_of, concatenate, number, where
from gradproof.shadow.ops.rows.common import absolute, constant, fold, larger, power, smaller, truth
from gradproof.shadow.ops.table import Bool, Example, Ops, T, register

X, CUBE = T((2, 3)), T((2, 3, 4))
DIMS = (Example(CUBE), Example(CUBE, [1]), Example(CUBE, [0, -1], True))
Axes = Sequence[int] | int | None


@register("aten.sum", examples=[*DIMS, Example(CUBE, dtype="float64"), Example(Bool((2, 3)), [1]), Example(T(()))])
def sum_(k: Ops, x: Any, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    """The sum."""
    return k.lift(x).sum(dim, keepdim)


@register("aten.mean", examples=[*DIMS, Example(CUBE, dtype="float64")])
def mean(k: Ops, x: Any, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    """The sum over the count."""
    return number(k.lift(x)).mean(dim, keepdim)


@register("aten.nansum", examples=DIMS)
def nansum(k: Ops, x: Any, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    """The sum of what is a number."""
    v = k.lift(x)
    return where(v.same(v), v, 0.0).sum(dim, keepdim)


def moments(x: Value, dim: Axes, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """The variance and the mean."""
    axes = axes_of(x.ndim, dim)
    count = math.prod(x.shape[a] for a in axes)
    free = count - (1.0 if correction is None else float(correction))
    if free <= 0:
        raise Beyond("a variance without a degree of freedom")
    off = x - x.mean(axes, True)
    return (off * off).sum(axes, keepdim) / free, x.mean(axes, keepdim)


VARIANCE = (
    Example(CUBE, overload="correction"), Example(CUBE, [1], correction=0, overload="correction"),
    Example(CUBE, [0, 2], correction=1, keepdim=True, overload="correction"),
)  # fmt: skip


@register("aten.var", examples=VARIANCE)
def var(k: Ops, x: Value, dim: Axes = None, correction: float | None = None, keepdim: bool = False) -> Value:
    """The mean square deviation, with a correction of the count."""
    return moments(x, dim, correction, keepdim)[0]


@register("aten.std", examples=VARIANCE)
def std(k: Ops, x: Value, dim: Axes = None, correction: float | None = None, keepdim: bool = False) -> Value:
    """The root of the variance."""
    return k.fn("sqrt", moments(x, dim, correction, keepdim)[0])


@register("aten.var_mean", examples=VARIANCE)
def var_mean(
    k: Ops, x: Value, dim: Axes = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Both moments."""
    return moments(x, dim, correction, keepdim)


@register("aten.std_mean", examples=VARIANCE)
def std_mean(
    k: Ops, x: Value, dim: Axes = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """The root of the variance, and the mean."""
    variance, middle = moments(x, dim, correction, keepdim)
    return k.fn("sqrt", variance), middle


def vector_norm(k: Ops, x: Value, order: float, dim: Axes, keepdim: bool) -> Value:
    """The norm of a vector: 2, 1, 0, the infinities, and any power."""
    axes = axes_of(x.ndim, dim)
    if order == 2:
        return k.fn("sqrt", (x * x).sum(axes, keepdim))
    if order == 0:
        return truth(k, x).sum(axes, keepdim)
    size = absolute(x)
    if math.isinf(order):
        return fold(size, axes, larger if order > 0 else smaller, keepdim)
    if order == 1:
        return size.sum(axes, keepdim)
    return power(k, power(k, size, order).sum(axes, keepdim), 1.0 / order)


NORMS = tuple(Example(CUBE, p) for p in (2, 1, 0, math.inf, -math.inf, 3.0))


@register(
    "aten.linalg_vector_norm",
    examples=[*NORMS, Example(CUBE), Example(CUBE, 2, [1], True), Example(CUBE, 2, dtype="float64")],
)
def linalg_vector_norm(
    k: Ops, x: Value, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Value:
    """The norm of a vector."""
    return vector_norm(k, x, ord, dim, keepdim)


@register("aten.norm", examples=[*NORMS[:2], Example(CUBE), Example(CUBE, 2, [1]), Example(CUBE, None, [1], True)])
def norm(
    k: Ops, x: Value, p: float | None = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Value:
    """The older form."""
    return vector_norm(k, x, 2 if p is None else p, dim, keepdim)


@register("aten.amax", examples=DIMS)
def amax(k: Ops, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The largest, on every path."""
    return fold(x, axes_of(x.ndim, dim), larger, keepdim)


@register("aten.amin", examples=DIMS)
def amin(k: Ops, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
    """The smallest, on every path."""
    return fold(x, axes_of(x.ndim, dim), smaller, keepdim)


@register("aten.aminmax", examples=[Example(X), Example(X, dim=1), Example(X, dim=0, keepdim=True)])
def aminmax(k: Ops, x: Value, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    """The smallest and the largest."""
    axes = axes_of(x.ndim, dim)
    return fold(x, axes, smaller, keepdim), fold(x, axes, larger, keepdim)


def gathered(x: Value, index: Any, axis: int, keepdim: bool) -> Value:
    """The elements at one index along an axis, which stays with length one where `keepdim`."""
    if x.ndim == 0:
        return x
    at = np.asarray(index, dtype=np.int64)
    kept = at if keepdim else np.expand_dims(at, axis)
    return x.move(lambda p: np.take_along_axis(p, kept, axis).reshape(at.shape))


def chosen(k: Ops, x: Value, dim: int, keepdim: bool, position: int, most: bool) -> Value:
    """The extreme along an axis at the recorded index, which is assumed to be the machine's for these numbers."""
    axis = dim % x.ndim if x.ndim else 0
    found = gathered(x, k.seen(position), axis, keepdim)
    if x.ndim:
        wide = found if keepdim else found.reshape((*found.shape[:axis], 1, *found.shape[axis:]))
        k.assume(x <= wide if most else x >= wide, f"the {'largest' if most else 'smallest'} element is where it was")
    return found


EXTREMES = (Example(CUBE), Example(X, X), Example(CUBE, 1), Example(CUBE, -1, True))


def extreme(k: Ops, x: Value, other: Any, keepdim: bool, most: bool) -> Any:
    """Three forms: of all elements, of two tensors, along an axis with the index."""
    join = larger if most else smaller
    if isinstance(other, Value):
        return join(x, other)
    if other is None:
        return fold(x, axes_of(x.ndim, None), join, False)
    return chosen(k, x, other, keepdim, 1, most), k.seen(1)


@register("aten.max", examples=EXTREMES)
def max_(k: Ops, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest."""
    return extreme(k, x, dim, keepdim, True)


@register("aten.min", examples=EXTREMES)
def min_(k: Ops, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest."""
    return extreme(k, x, dim, keepdim, False)


WHERE = (Example(CUBE), Example(CUBE, 1), Example(CUBE, -1, True))


def _index_of(k: Ops, x: Value, dim: int | None, keepdim: bool, most: bool) -> Any:
    if dim is None:
        flat = x.reshape(-1)
        place = np.asarray(k.seen(0), dtype=np.int64).reshape(())
        found = flat[int(place)]
        k.assume(flat <= found if most else flat >= found, "the extreme element is where it was")
    else:
        chosen(k, x, dim, keepdim, 0, most)
    return k.seen(0)


@register("aten.argmax", examples=WHERE)
def argmax(k: Ops, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The recorded index, assumed."""
    return _index_of(k, x, dim, keepdim, True)


@register("aten.argmin", examples=WHERE)
def argmin(k: Ops, x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The recorded index, assumed."""
    return _index_of(k, x, dim, keepdim, False)


@register("aten.logsumexp", examples=[Example(CUBE, [1]), Example(CUBE, [0, 2], True)])
def logsumexp(k: Ops, x: Value, dim: Axes, keepdim: bool = False) -> Value:
    """The logarithm of the sum of exponentials."""
    return k.fn("log", k.fn("exp", x).sum(dim, keepdim))


def running(x: Value, dim: int, join: Callable[[Value, Value], Value]) -> Value:
    """All partial results along an axis."""
    if x.ndim == 0 or x.size == 0:
        return x
    axis = dim % x.ndim
    before = (slice(None),) * axis
    steps = [x[(*before, slice(0, 1))]]
    for i in range(1, x.shape[axis]):
        steps.append(join(steps[-1], x[(*before, slice(i, i + 1))]))
    return concatenate(steps, axis)


ALONG = (Example(CUBE, 1), Example(CUBE, -1), Example(T(()), 0))


@register("aten.cumsum", examples=ALONG)
def cumsum(k: Ops, x: Any, dim: int, dtype: str | None = None) -> Value:
    """Partial sums."""
    return running(number(k.lift(x)), dim, lambda a, b: a + b)


@register("aten.cumprod", examples=ALONG)
def cumprod(k: Ops, x: Any, dim: int, dtype: str | None = None) -> Value:
    """Partial products."""
    return running(number(k.lift(x)), dim, lambda a, b: a * b)


@register("aten.prod", examples=[Example(X), Example(CUBE, 1), Example(CUBE, -1, True)])
def prod(k: Ops, x: Any, dim: int | None = None, keepdim: bool = False, dtype: str | None = None) -> Value:
    """The product."""
    v = number(k.lift(x))
    return fold(v, axes_of(v.ndim, dim), lambda a, b: a * b, keepdim)


QUESTIONS = (Example(Bool((2, 3))), Example(Bool((2, 3)), 1), Example(X, 0, True), Example(Bool((2, 3)), [0, 1]))


@register("aten.any", examples=QUESTIONS)
def any_(k: Ops, x: Any, dim: Axes = None, keepdim: bool = False) -> Value:
    """Whether some element differs from zero."""
    v = truth(k, x)
    return fold(v, axes_of(v.ndim, dim), lambda a, b: a | b, keepdim) if v.size else constant(k, (), 0.0, True)


@register("aten.all", examples=QUESTIONS)
def all_(k: Ops, x: Any, dim: Axes = None, keepdim: bool = False) -> Value:
    """Whether every element differs from zero."""
    v = truth(k, x)
    return fold(v, axes_of(v.ndim, dim), lambda a, b: a & b, keepdim) if v.size else constant(k, (), 1.0, True)


@register("aten.count_nonzero", examples=[Example(X), Example(X, 1)])
def count_nonzero(k: Ops, x: Any, dim: Axes = None) -> Value:
    """How many elements differ from zero."""
    return truth(k, x).sum(dim)
