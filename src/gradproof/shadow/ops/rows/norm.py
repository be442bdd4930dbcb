"""Normalisation over layers, groups, batches and root mean squares. Statistics are exact: biased variance, no rounding.

`native_batch_norm` and cuDNN's form write the running statistics without saying so in their schema; the recorder lists
them as written outputs, first, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value
from gradproof.shadow.ops.table import Example, Ops, T, register

X = T((2, 3, 4))
C = T((2, 4, 3, 2))
CHANNEL = T((4,))
POSITIVE = T((4,), 0.5, 2.0)
ALL = [True, True, True]


def statistics(k: Ops, x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value, Value]:
    """Mean, biased variance and 1 / sqrt(variance + eps) over some axes, which are kept."""
    mean = x.mean(axes, keep=True)
    d = x - mean
    variance = (d * d).mean(axes, keep=True)
    return mean, variance, 1 / k.fn("sqrt", variance + eps)


def affine(x: Value, weight: Any, bias: Any, shape: Sequence[int]) -> Value:
    """Times weight plus bias, either of which may be absent, in the shape of a channel or layer."""
    x = x if weight is None else x * weight.reshape(*shape)
    return x if bias is None else x + bias.reshape(*shape)


def through(g: Value, normal: Value, rstd: Value, axes: Sequence[int]) -> Value:
    """The gradient through (x - mean) * rstd: what is along the mean and along the normal goes."""
    return (g - g.mean(axes, keep=True) - normal * (g * normal).mean(axes, keep=True)) * rstd


def masked(outputs: Sequence[Value], mask: Sequence[bool]) -> tuple[Value | None, ...]:
    """None for outputs that were not asked for."""
    return tuple(out if wanted else None for out, wanted in zip(outputs, mask, strict=True))


def last(x: Value, shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of a normalised shape."""
    return tuple(range(x.ndim - len(shape), x.ndim))


@register(
    "aten.native_layer_norm",
    examples=[
        Example(X, [4], CHANNEL, CHANNEL, 1e-5), Example(X, [3, 4], None, None, 1e-3),
        Example(X, [4], CHANNEL, None, 1e-5),
    ],
)  # fmt: skip
def layer_norm(k: Ops, x: Value, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Value, ...]:
    """Output, mean and reciprocal deviation."""
    mean, _, rstd = statistics(k, x, last(x, shape), eps)
    return affine((x - mean) * rstd, weight, bias, shape), mean, rstd


@register(
    "aten.native_layer_norm_backward",
    examples=[
        Example(X, X, [4], T((2, 3, 1)), T((2, 3, 1), 0.5, 2.0), CHANNEL, CHANNEL, ALL),
        Example(X, X, [3, 4], T((2, 1, 1)), T((2, 1, 1), 0.5, 2.0), None, None, [True, False, False]),
    ],
)
def layer_norm_backward(
    k: Ops, g: Value, x: Value, shape: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: Sequence[bool]
) -> Any:
    """Gradients of input, weight and bias."""
    axes = last(x, shape)
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    normal = (x - mean) * rstd
    inner = through(affine(g, weight, None, shape), normal, k.lift(rstd), axes)
    return masked((inner, summed(g * normal, rest), summed(g, rest)), mask)


def summed(x: Value, axes: Sequence[int]) -> Value:
    """Sum over axes, where there are any (no axes means none here)."""
    return x.sum(axes) if len(axes) else x


@register(
    "aten._fused_rms_norm",
    examples=[Example(X, [4], CHANNEL, 1e-5), Example(X, [3, 4], None, 1e-3), Example(X, [4], CHANNEL, None)],
)
def rms_norm(k: Ops, x: Value, shape: Sequence[int], weight: Any, eps: float | None) -> tuple[Value, Value]:
    """Output and reciprocal root mean square; the default epsilon is the dtype's."""
    default = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    dtype = getattr(k.entry.args[0], "dtype", "float32")
    rstd = 1 / k.fn("sqrt", (x * x).mean(last(x, shape), keep=True) + (default[dtype] if eps is None else eps))
    return affine(x * rstd, weight, None, shape), rstd


@register(
    "aten._fused_rms_norm_backward",
    examples=[Example(X, X, [4], T((2, 3, 1), 0.5, 2.0), CHANNEL, [True, True])],
)
def rms_norm_backward(
    k: Ops, g: Value, x: Value, shape: Sequence[int], rstd: Any, weight: Any, mask: Sequence[bool]
) -> Any:
    """Gradients of input and weight."""
    axes = last(x, shape)
    rest = tuple(a for a in range(x.ndim) if a not in axes)
    normal = x * rstd
    scaled = affine(g, weight, None, shape)
    inner = (scaled - normal * (scaled * normal).mean(axes, keep=True)) * rstd
    return masked((inner, summed(g * normal, rest)), mask)


@register(
    "aten.native_group_norm",
    examples=[
        Example(C, CHANNEL, CHANNEL, 2, 4, 6, 2, 1e-5), Example(C, None, None, 2, 4, 6, 4, 1e-5),
        Example(T((2, 4)), CHANNEL, CHANNEL, 2, 4, 1, 2, 1e-5),
    ],
)  # fmt: skip
def group_norm(
    k: Ops, x: Value, weight: Any, bias: Any, n: int, c: int, rest: int, groups: int, eps: float
) -> tuple[Value, ...]:
    """Output, mean and reciprocal deviation by sample and group."""
    mean, _, rstd = statistics(k, x.reshape(n, groups, -1), (2,), eps)
    normal = ((x.reshape(n, groups, -1) - mean) * rstd).reshape(n, c, rest)
    out = affine(normal, weight, bias, (1, c, 1)).reshape(x.shape)
    return out, mean.reshape(n, groups), rstd.reshape(n, groups)


@register(
    "aten.native_group_norm_backward",
    examples=[
        Example(C, C, T((2, 2)), T((2, 2), 0.5, 2.0), CHANNEL, 2, 4, 6, 2, ALL),
        Example(C, C, T((2, 2)), T((2, 2), 0.5, 2.0), None, 2, 4, 6, 2, [True, False, False]),
    ],
)
def group_norm_backward(
    k: Ops, g: Value, x: Value, mean: Any, rstd: Any, weight: Any, n: int, c: int, rest: int, groups: int,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients of input, weight and bias."""
    centre, scale = (k.lift(s).reshape(n, groups, 1) for s in (mean, rstd))
    grouped = (x.reshape(n, groups, -1) - centre) * scale
    scaled = affine(g.reshape(n, c, rest), weight, None, (1, c, 1)).reshape(n, groups, -1)
    inner = through(scaled, grouped, scale, (2,)).reshape(x.shape)
    by_channel = g.reshape(n, c, rest)
    return masked((inner, (by_channel * grouped.reshape(n, c, rest)).sum((0, 2)), by_channel.sum((0, 2))), mask)


# Batches: channels on axis 1.


def channel_axes(x: Value) -> tuple[int, ...]:
    """Every axis but the channels'."""
    return tuple(a for a in range(x.ndim) if a != 1)


def channel_shape(x: Value) -> tuple[int, ...]:
    """A vector of channels, to broadcast."""
    return (1, x.shape[1], *(1,) * (x.ndim - 2))


def running(old: Any, new: Value, momentum: float) -> Any:
    """The running statistic afterwards."""
    return None if old is None else old * (1 - momentum) + new * momentum


def batch_norm_values(
    k: Ops, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Running mean and variance afterwards, output, saved mean, saved reciprocal deviation."""
    wide = channel_shape(x)
    if not training:
        rstd = 1 / k.fn("sqrt", k.lift(var) + eps)
        out = (x - k.lift(mean).reshape(*wide)) * rstd.reshape(*wide)
        return mean, var, affine(out, weight, bias, wide), k.lift(np.zeros(0)), k.lift(np.zeros(0))
    batch, spread, rstd = statistics(k, x, channel_axes(x), eps)
    count = x.size // x.shape[1]
    c = x.shape[1]
    out = affine((x - batch) * rstd, weight, bias, wide)
    unbiased = spread.reshape(c) * count / (count - 1) if count > 1 else spread.reshape(c)
    new = running(mean, batch.reshape(c), momentum), running(var, unbiased, momentum)
    return *new, out, batch.reshape(c), rstd.reshape(c)


def fitted(k: Ops, values: tuple[Any, ...], extra: int = 0) -> tuple[Any, ...]:
    """Outputs as the entry lists them: the running statistics first, where they count as written."""
    results = (*values[2:], *(None,) * extra)
    return results if len(k.entry.outs) == len(results) else (*values[:2], *results)


@register(
    "aten.native_batch_norm", "aten._native_batch_norm_legit.default",
    examples=[
        Example(C, CHANNEL, CHANNEL, CHANNEL, POSITIVE, True, 0.1, 1e-5),
        Example(C, None, None, CHANNEL, POSITIVE, True, 0.25, 1e-5),
        Example(C, CHANNEL, CHANNEL, CHANNEL, POSITIVE, False, 0.1, 1e-5),
    ],
)  # fmt: skip
def batch_norm(
    k: Ops, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Training: this batch's statistics, and the running ones moved; else the running ones."""
    return fitted(k, batch_norm_values(k, x, weight, bias, mean, var, training, momentum, eps))


@register("aten._native_batch_norm_legit.no_stats", examples=[Example(C, CHANNEL, CHANNEL, True, 0.1, 1e-5)])
def batch_norm_no_stats(
    k: Ops, x: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """This batch's statistics, and no running ones."""
    return fitted(k, batch_norm_values(k, x, weight, bias, None, None, True, momentum, eps))


@register(
    "aten._native_batch_norm_legit_functional",
    examples=[Example(C, CHANNEL, CHANNEL, CHANNEL, POSITIVE, True, 0.1, 1e-5)],
)
def batch_norm_functional(
    k: Ops, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """The running statistics as new outputs."""
    values = batch_norm_values(k, x, weight, bias, mean, var, training, momentum, eps)
    return (*values[2:], *values[:2])


@register(
    "aten._native_batch_norm_legit_no_training",
    examples=[Example(C, CHANNEL, CHANNEL, CHANNEL, POSITIVE, 0.1, 1e-5)],
)
def batch_norm_no_training(
    k: Ops, x: Value, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """By the running statistics."""
    return batch_norm_values(k, x, weight, bias, mean, var, False, momentum, eps)[2:]


@register(
    "aten.native_batch_norm_backward",
    examples=[
        Example(C, C, CHANNEL, CHANNEL, POSITIVE, CHANNEL, POSITIVE, True, 1e-5, ALL),
        Example(C, C, CHANNEL, CHANNEL, POSITIVE, CHANNEL, POSITIVE, False, 1e-5, ALL),
        Example(C, C, None, CHANNEL, POSITIVE, CHANNEL, POSITIVE, True, 1e-5, [True, False, False]),
    ],
)
def batch_norm_backward(
    k: Ops, g: Value, x: Value, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, training: bool,
    eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients of input, weight and bias."""
    wide, axes = channel_shape(x), channel_axes(x)
    centre = k.lift(saved if training else mean).reshape(*wide)
    rstd = (k.lift(inverse) if training else 1 / k.fn("sqrt", k.lift(var) + eps)).reshape(*wide)
    normal = (x - centre) * rstd
    scaled = affine(g, weight, None, wide)
    inner = through(scaled, normal, rstd, axes) if training else scaled * rstd
    return masked((inner, (g * normal).sum(axes), g.sum(axes)), mask)


@register(
    "aten.cudnn_batch_norm",
    examples=[Example(C, CHANNEL, CHANNEL, CHANNEL, POSITIVE, True, 0.1, 1e-5)],
)  # fmt: skip
def cudnn_batch_norm(
    k: Ops, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """cuDNN's form; its fourth output is scratch."""
    values = batch_norm_values(k, x, weight, bias, mean, var, training, momentum, eps)
    return fitted(k, values, 1)


@register(
    "aten.cudnn_batch_norm_backward",
    examples=[Example(C, C, CHANNEL, CHANNEL, POSITIVE, CHANNEL, POSITIVE, 1e-5, T((0,)))],
)  # fmt: skip
def cudnn_batch_norm_backward(
    k: Ops, x: Value, g: Value, weight: Any, mean: Any, var: Any, saved: Any, inverse: Any, eps: float,
    reserve: Any = None,
) -> Any:  # fmt: skip
    """cuDNN's form, always of a training step."""
    return batch_norm_backward(k, g, x, weight, mean, var, saved, inverse, True, eps, (True, True, True))
