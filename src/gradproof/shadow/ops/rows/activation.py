"""Activation functions and their derivatives, with the constants of torch's own kernels.

Formulas: torch/_decomp/decompositions.py and aten/src/ATen/native/cpu/Activation.cpp. A backward operator uses the
same functions of the same arguments as its forward operator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value, concatenate, where
from gradproof.shadow.ops.rows.common import absolute, between, constant
from gradproof.shadow.ops.rows.geometry import concrete
from gradproof.shadow.ops.rows.movement import number_of
from gradproof.shadow.ops.table import Bool, Example, Ops, T, register

X = T((2, 3))
WIDE = T((2, 4), -5.0, 5.0)
UNIT = T((2, 3), 0.1, 0.9)
SQRT1_2 = math.sqrt(0.5)
TWO_SQRTPI = 2.0 / math.sqrt(math.pi)
KAPPA = 0.044715
SIXTH = float(np.float32(1.0 / 6.0))
BETA = math.sqrt(2.0) * TWO_SQRTPI * 0.5


def either(condition: Value, a: Any, b: Any) -> Value:
    """A choice by element."""
    return where(condition, a, b)


@register("aten.relu", examples=[Example(X)])
def relu(k: Ops, x: Value) -> Value:
    """The positive part."""
    return either(x < 0.0, constant(k, x.shape), x)


@register("aten.threshold", examples=[Example(X, 0.5, -1.0)])
def threshold(k: Ops, x: Value, limit: float, value: float) -> Value:
    """A number where at most a limit."""
    return either(x <= limit, constant(k, x.shape, value), x)


@register("aten.threshold_backward", examples=[Example(X, X, 0), Example(X, X, 0.5)])
def threshold_backward(k: Ops, grad: Any, x: Any, limit: float) -> Value:
    """Zero where at most the limit."""
    g, v = k.lift(grad), k.lift(x)
    return either(v <= limit, constant(k, v.shape), g)


@register("aten.sigmoid", examples=[Example(X)])
def sigmoid(k: Ops, x: Value) -> Value:
    """The logistic function."""
    return k.fn("sigmoid", x)


@register("aten.sigmoid_backward", examples=[Example(X, UNIT)])
def sigmoid_backward(k: Ops, grad: Any, out: Any) -> Value:
    """From the result."""
    g, y = k.lift(grad), k.lift(out)
    return g * (y * (1.0 - y))


@register("aten.tanh", examples=[Example(X)])
def tanh(k: Ops, x: Value) -> Value:
    """The hyperbolic tangent."""
    return k.fn("tanh", x)


@register("aten.tanh_backward", examples=[Example(X, UNIT)])
def tanh_backward(k: Ops, grad: Any, out: Any) -> Value:
    """From the result."""
    g, y = k.lift(grad), k.lift(out)
    return g * (1.0 - y * y)


@register("aten.logit", examples=[Example(UNIT), Example(T((2, 3), -0.2, 1.2), 0.25)])
def logit(k: Ops, x: Value, eps: float | None = None) -> Value:
    """The inverse of the logistic function."""
    v = x if eps is None else between(x, eps, 1.0 - eps)
    return k.fn("log", v / (1.0 - v))


@register("aten.logit_backward", examples=[Example(X, UNIT), Example(X, UNIT, 0.25)])
def logit_backward(k: Ops, grad: Any, x: Any, eps: float | None = None) -> Value:
    """Zero outside the bounds."""
    g, v = k.lift(grad), k.lift(x)
    slope = g / (v * (1.0 - v))
    if eps is None:
        return slope
    return either((v < eps) | (v > 1.0 - eps), constant(k, v.shape), slope)


def _inner(x: Value) -> Value:
    return BETA * (x + KAPPA * (x * x * x))


@register("aten.gelu", examples=[Example(X), Example(X, approximate="tanh")])
def gelu(k: Ops, x: Value, approximate: str = "none") -> Value:
    """By the error function, or by the hyperbolic tangent."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + k.fn("tanh", _inner(x)))
    return x * 0.5 * (1.0 + k.fn("erf", x * SQRT1_2))


@register("aten.gelu_backward", examples=[Example(X, X), Example(X, X, approximate="tanh")])
def gelu_backward(k: Ops, grad: Any, x: Any, approximate: str = "none") -> Value:
    """Of either form."""
    g, v = k.lift(grad), k.lift(x)
    if approximate == "tanh":
        t = k.fn("tanh", _inner(v))
        slope = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * (BETA * (1.0 + 3.0 * KAPPA * (v * v)))
        return g * slope
    cdf = 0.5 * (1.0 + k.fn("erf", v * SQRT1_2))
    pdf = k.fn("exp", v * v * -0.5) * (TWO_SQRTPI * SQRT1_2 * 0.5)
    return g * (cdf + v * pdf)


@register("aten.silu", examples=[Example(X)])
def silu(k: Ops, x: Value) -> Value:
    """`x sigmoid(x)`."""
    return x * k.fn("sigmoid", x)


@register("aten.silu_backward", examples=[Example(X, X)])
def silu_backward(k: Ops, grad: Any, x: Any) -> Value:
    """From the argument."""
    g, v = k.lift(grad), k.lift(x)
    s = k.fn("sigmoid", v)
    return g * (s * (1.0 + v * (1.0 - s)))


@register("aten.mish", examples=[Example(X)])
def mish(k: Ops, x: Value) -> Value:
    """`x tanh(softplus(x))`."""
    return x * k.fn("tanh", k.fn("softplus", x))


@register("aten.mish_backward", examples=[Example(X, X)])
def mish_backward(k: Ops, grad: Any, x: Any) -> Value:
    """From the argument."""
    g, v = k.lift(grad), k.lift(x)
    t, s = k.fn("tanh", k.fn("softplus", v)), k.fn("sigmoid", v)
    return g * (t + v * s * (1.0 - t * t))


@register("aten.softplus", examples=[Example(X), Example(T((2, 3), -4, 4), 0.5, 1.0)])
def softplus(k: Ops, x: Value, beta: float = 1.0, limit: float = 20.0) -> Value:
    """`log(1 + exp(beta x)) / beta`, the argument itself beyond the limit."""
    z = x * beta
    return either(z > limit, x, k.fn("softplus", z) / beta)


@register("aten.softplus_backward", examples=[Example(X, X, 1.0, 20.0), Example(X, T((2, 3), -4, 4), 0.5, 1.0)])
def softplus_backward(k: Ops, grad: Any, x: Any, beta: float, limit: float) -> Value:
    """From the argument."""
    g, z = k.lift(grad), k.lift(x) * beta
    return either(z > limit, g, g * k.fn("sigmoid", z))


@register("aten.log_sigmoid_forward", examples=[Example(X)])
def log_sigmoid_forward(k: Ops, x: Value) -> tuple[Value, Value]:
    """`-softplus(-x)`, and `exp(-|x|)`, which CPU kernels keep."""
    buffer = k.fn("exp", -absolute(x)) if k.entry.outs[1].count else constant(k, k.entry.outs[1].shape)
    return -k.fn("softplus", -x), buffer


@register("aten.log_sigmoid_backward", examples=[Example(X, T((2, 3)), T((2, 3), 0.1, 1.0))])
def log_sigmoid_backward(k: Ops, grad: Any, x: Any, buffer: Any) -> Value:
    """From the argument, and from `exp(-|x|)` where the kernel kept it."""
    g, v, kept = k.lift(grad), k.lift(x), k.lift(buffer)
    e = kept if kept.shape == v.shape else k.fn("exp", -absolute(v))
    tail = e / (1.0 + e)
    return g * either(v < 0.0, 1.0 - tail, tail)


@register("aten.elu", examples=[Example(X), Example(X, 1.5, 1.25, 0.5)])
def elu(k: Ops, x: Value, alpha: float = 1.0, scale: float = 1.0, inside: float = 1.0) -> Value:
    """Exponential below zero (`selu` and `celu` too)."""
    return either(x < 0.0, k.fn("expm1", x * inside) * (alpha * scale), x * scale)


@register(
    "aten.elu_backward", examples=[Example(X, 1.5, 1.25, 0.5, flag, T((2, 3), -1.0, 1.0)) for flag in (True, False)]
)
def elu_backward(k: Ops, grad: Any, alpha: float, scale: float, inside: float, is_result: bool, kept: Any) -> Value:
    """From the result or from the argument."""
    g, v = k.lift(grad), k.lift(kept)
    below = (v + alpha * scale) if is_result else k.fn("exp", v * inside) * (alpha * scale)
    return either(v < 0.0, g * below * inside, g * scale)


@register("aten.leaky_relu", examples=[Example(X), Example(X, 0.25)])
def leaky_relu(k: Ops, x: Value, slope: float = 0.01) -> Value:
    """A slope below zero."""
    return either(x > 0.0, x, x * slope)


@register("aten.leaky_relu_backward", examples=[Example(X, X, 0.25, False)])
def leaky_relu_backward(k: Ops, grad: Any, x: Any, slope: float, is_result: bool) -> Value:
    """From the argument or the result."""
    g, v = k.lift(grad), k.lift(x)
    return either(v > 0.0, g, g * slope)


@register("aten._prelu_kernel", examples=[Example(X, T((1, 3)))])
def prelu(k: Ops, x: Any, weight: Any) -> Value:
    """A learned slope below zero."""
    v = k.lift(x)
    return either(v > 0.0, v, v * k.lift(weight))


@register("aten._prelu_kernel_backward", examples=[Example(X, X, T((1, 3)))])
def prelu_backward(k: Ops, grad: Any, x: Any, weight: Any) -> tuple[Value, Value]:
    """Of the argument and of the slope."""
    g, v, w = k.lift(grad), k.lift(x), k.lift(weight)
    return either(v > 0.0, g, g * w), either(v > 0.0, constant(k, v.shape), v * g)


@register("aten.hardtanh", examples=[Example(X), Example(X, 0.0, 1.5)])
def hardtanh(k: Ops, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    """Between two bounds."""
    return between(x, low, high)


@register("aten.hardtanh_backward", examples=[Example(X, X, -1.0, 1.0)])
def hardtanh_backward(k: Ops, grad: Any, x: Any, low: float, high: float) -> Value:
    """Zero at and beyond the bounds."""
    g, v = k.lift(grad), k.lift(x)
    return either((v <= low) | (v >= high), constant(k, v.shape), g)


@register("aten.hardsigmoid", examples=[Example(WIDE)])
def hardsigmoid(k: Ops, x: Value) -> Value:
    """`clamp(x + 3, 0, 6) / 6`."""
    return between(x + 3.0, 0.0, 6.0) / 6.0


@register("aten.hardsigmoid_backward", examples=[Example(WIDE, WIDE)])
def hardsigmoid_backward(k: Ops, grad: Any, x: Any) -> Value:
    """A sixth between -3 and 3."""
    g, v = k.lift(grad), k.lift(x)
    return either((v > -3.0) & (v < 3.0), g * SIXTH, constant(k, v.shape))


@register("aten.hardswish", examples=[Example(WIDE)])
def hardswish(k: Ops, x: Value) -> Value:
    """`x clamp(x + 3, 0, 6) / 6`."""
    return x * between(x + 3.0, 0.0, 6.0) / 6.0


@register("aten.hardswish_backward", examples=[Example(WIDE, WIDE)])
def hardswish_backward(k: Ops, grad: Any, x: Any) -> Value:
    """In three pieces."""
    g, v = k.lift(grad), k.lift(x)
    return either(v <= -3.0, constant(k, v.shape), either(v < 3.0, g * (v / 3.0 + 0.5), g))


def _halves(x: Value, dim: int) -> tuple[Value, Value]:
    axis = dim % x.ndim
    half, before = x.shape[axis] // 2, (slice(None),) * axis
    return x[(*before, slice(0, half))], x[(*before, slice(half, 2 * half))]


@register("aten.glu", examples=[Example(WIDE), Example(WIDE, 0)])
def glu(k: Ops, x: Value, dim: int = -1) -> Value:
    """One half gated by the other."""
    a, b = _halves(x, dim)
    return a * k.fn("sigmoid", b)


@register("aten.glu_backward", examples=[Example(T((2, 2)), WIDE, -1)])
def glu_backward(k: Ops, grad: Any, x: Any, dim: int) -> Value:
    """Of both halves."""
    g, v = k.lift(grad), k.lift(x)
    a, b = _halves(v, dim)
    s = k.fn("sigmoid", b)
    return concatenate([g * s, g * a * (s * (1.0 - s))], dim % v.ndim)


@register("aten.softshrink", examples=[Example(X), Example(X, 0.25)])
def softshrink(k: Ops, x: Value, limit: float = 0.5) -> Value:
    """Towards zero by a limit."""
    return either(x > limit, x - limit, either(x < -limit, x + limit, x * 0.0))


@register("aten.hardshrink", examples=[Example(X)])
def hardshrink(k: Ops, x: Value, limit: float = 0.5) -> Value:
    """Zero within a limit."""
    return either((x >= -limit) & (x <= limit), constant(k, x.shape), x)


@register("aten.softshrink_backward", "aten.hardshrink_backward", examples=[Example(X, X, 0.5)])
def shrink_backward(k: Ops, grad: Any, x: Any, limit: float) -> Value:
    """Zero within the limit."""
    g, v = k.lift(grad), k.lift(x)
    return either((v >= -limit) & (v <= limit), constant(k, v.shape), g)


# -- Softmax and its logarithm, forward and backward.
CUBE = T((2, 3, 4))


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


@register("aten._softmax", examples=[Example(CUBE, -1, False), Example(CUBE, 1, False), Example(T(()), 0, False)])
def softmax(k: Ops, x: Any, dim: int, half_to_float: bool) -> Value:
    """exp(x) / sum exp(x)."""
    return normalised(k, k.fn("exp", shifted(k, number_of(k, k.lift(x)), dim)), dim, safe=False)


@register("aten._safe_softmax", examples=[Example(CUBE, -1), Example(CUBE, 1)])
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


@register("aten._softmax_backward_data", examples=[Example(CUBE, T((2, 3, 4), 0.0, 1.0), -1, "float32")])
def softmax_backward(k: Ops, grad: Value, output: Value, dim: int, dtype: str) -> Value:
    """p (g - sum p g)."""
    if not grad.ndim:
        return output * (grad - grad * output)
    return output * (grad - (grad * output).sum(dim, keep=True))


@register("aten._masked_softmax_backward", examples=[Example(T((2, 4)), T((2, 4), 0.0, 1.0), Bool((2, 4)), -1)])
def masked_softmax_backward(k: Ops, grad: Value, output: Value, mask: Any, dim: int | None = None) -> Value:
    """The same, zero under the mask."""
    hidden = np.broadcast_to(concrete(mask, "a mask"), grad.shape)
    axis = -1 if dim is None else dim
    kept = where(hidden, k.lift(np.zeros(grad.shape)), grad * output)
    result = kept - output * kept.sum(axis, keep=True)
    return where(hidden, k.lift(np.zeros(grad.shape)), result)


@register(
    "aten._log_softmax", examples=[Example(CUBE, -1, False), Example(CUBE, 1, False), Example(T((5, 3)), 1, False)]
)
def log_softmax(k: Ops, x: Any, dim: int, half_to_float: bool) -> Value:
    """x - log sum exp(x)."""
    y = shifted(k, number_of(k, k.lift(x)), dim)
    weights = k.fn("exp", y)
    return y - k.fn("log", weights.sum(dim, keep=True) if y.ndim else weights)


@register("aten._log_softmax_backward_data", examples=[Example(CUBE, T((2, 3, 4), -3.0, 0.0), 1, "float32")])
def log_softmax_backward(k: Ops, grad: Value, output: Value, dim: int, dtype: str) -> Value:
    """g - p sum g."""
    return grad - k.fn("exp", output) * (grad.sum(dim, keep=True) if grad.ndim else grad)
