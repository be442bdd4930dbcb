"""Softmax and its logarithm, forward and backward.

Written without the shift by the maximum, over the reals the same; minus infinity (a mask) is a constant whose
exponential is zero. A domain of machine numbers may offer `shift(parts, axis)`, any number a row that keeps
exponentials in range: no result depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value, where
from gradproof.shadow.rows.geometry import concrete
from gradproof.shadow.rows.movement import number_of
from gradproof.shadow.table import Bool, Example, Ops, T, register

X = T((2, 3, 4))


def shifted(k: Ops, x: Value, dim: int) -> Value:
    """`x`, less whatever number a row the domain asks for."""
    shift = getattr(k.domain, "shift", None)
    return x if shift is None or not x.ndim else x - Value(k.domain, shift(x.parts, dim % x.ndim))


def no_mass(k: Ops, total: Value) -> Any:
    """Where a sum of exponentials is certainly the constant zero: a row that is masked out whole.

    A concrete Boolean array where the domain tells constants (`zero(parts)`); else the comparison in the domain.
    """
    zero = getattr(k.domain, "zero", None)
    return total.same(0.0) if zero is None else np.asarray(zero(total.parts), dtype=bool)


def normalised(k: Ops, weights: Value, dim: int, safe: bool) -> Value:
    """Weights over their sum; `safe`: zeros where there is none."""
    total = weights.sum(dim, keep=True) if weights.ndim else weights
    if not safe:
        return weights / total
    none = no_mass(k, total)
    return where(none, k.lift(np.zeros(total.shape)), weights / where(none, k.lift(np.ones(total.shape)), total))


@register("aten._softmax", examples=[Example(X, -1, False), Example(X, 1, False), Example(T(()), 0, False)])
def softmax(k: Ops, x: Any, dim: int, half_to_float: bool) -> Value:
    """exp(x) / sum exp(x)."""
    return normalised(k, k.fn("exp", shifted(k, number_of(k, k.lift(x)), dim)), dim, safe=False)


@register("aten._safe_softmax", examples=[Example(X, -1), Example(X, 1)])
def safe_softmax(k: Ops, x: Any, dim: int, dtype: str | None = None) -> Value:
    """Softmax; a row of minus infinities gives zeros."""
    return normalised(k, k.fn("exp", shifted(k, k.lift(x), dim)), dim, safe=True)


@register("aten._masked_softmax", examples=[Example(T((2, 4)), Bool((2, 4)), -1, 2)])
def masked_softmax(k: Ops, x: Value, mask: Any, dim: int | None = None, mask_type: int | None = None) -> Value:
    """Softmax over the elements that a recorded mask does not hide."""
    hidden = concrete(mask, "a mask")
    hidden = hidden[:, None, None, :] if mask_type == 1 and x.ndim == 4 else hidden
    axis = -1 if dim is None else dim
    wide = np.broadcast_to(hidden, x.shape)
    weights = where(wide, k.lift(np.zeros(x.shape)), k.fn("exp", shifted(k, x, axis)))
    return normalised(k, weights, axis, safe=True)


@register("aten._softmax_backward_data", examples=[Example(X, T((2, 3, 4), 0.0, 1.0), -1, "float32")])
def softmax_backward(k: Ops, grad: Value, output: Value, dim: int, dtype: str) -> Value:
    """p (g - sum p g)."""
    g = k.probe("softmax_grad", grad)
    if not g.ndim:
        return output * (g - g * output)
    return output * (g - (g * output).sum(dim, keep=True))


@register("aten._masked_softmax_backward", examples=[Example(T((2, 4)), T((2, 4), 0.0, 1.0), Bool((2, 4)), -1)])
def masked_softmax_backward(k: Ops, grad: Value, output: Value, mask: Any, dim: int | None = None) -> Value:
    """The same, zero under the mask."""
    hidden = np.broadcast_to(concrete(mask, "a mask"), grad.shape)
    axis = -1 if dim is None else dim
    kept = where(hidden, k.lift(np.zeros(grad.shape)), grad * output)
    result = kept - output * kept.sum(axis, keep=True)
    return where(hidden, k.lift(np.zeros(grad.shape)), result)


@register("aten._log_softmax", examples=[Example(X, -1, False), Example(X, 1, False), Example(T((5, 3)), 1, False)])
def log_softmax(k: Ops, x: Any, dim: int, half_to_float: bool) -> Value:
    """x - log sum exp(x)."""
    y = shifted(k, number_of(k, k.lift(x)), dim)
    weights = k.fn("exp", y)
    return y - k.fn("log", weights.sum(dim, keep=True) if y.ndim else weights)


@register("aten._log_softmax_backward_data", examples=[Example(X, T((2, 3, 4), -3.0, 0.0), 1, "float32")])
def log_softmax_backward(k: Ops, grad: Value, output: Value, dim: int, dtype: str) -> Value:
    """g - p sum g. The probe finds the axis of the classes in the entry."""
    g = k.probe("token_grad", grad)
    return g - k.fn("exp", output) * (g.sum(dim, keep=True) if g.ndim else g)
