"""Kernels that compute something else than their formula, which is equal over the reals.

A softmax shifted by its maximum, a variance by running updates: aten/src/ATen/native/cpu (SoftMaxKernel.cpp,
layer_norm_kernel.cpp, moments_utils.h, LerpKernel.cpp) of PyTorch and their counterparts in native/cuda. Where kernels
differ, the bound covers each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.shadow.bounds.domain import SLACK, ULPS, Domain, size_of
from gradproof.shadow.bounds.enclosure import LEAST, WIDE, Array, NoBound, below
from gradproof.shadow.bounds.rules import OpCall, Rule, power
from gradproof.shadow.bounds.values import Box

FAR = 120.0
"""A logit this far below the largest one contributes at most exp(-FAR) to a softmax."""


def either(a: Box, b: Box) -> Box:
    """Two algorithms for the same exact value, of which the kernel runs one: the larger error."""
    (al, ah, ae, ag), (bl, bh, be, bg) = a.parts, b.parts
    lo, hi = np.maximum(al, bl), np.minimum(ah, bh)
    empty = lo > hi
    low, high = np.where(empty, np.minimum(al, bl), lo), np.where(empty, np.maximum(ah, bh), hi)
    return Box(a.domain, (low, high, np.maximum(ae, be), np.where(ag == bg, ag, 0).astype(np.int8)))


class _Shifted:
    """The exponentials of a softmax along the last axis, and how far the machine's may be from them."""

    def __init__(self, domain: Domain, x: Array, hi: Array, err: Array) -> None:
        u = 0.0 if domain.key in domain.silent else domain.u
        self.n = x.shape[-1]
        dead = np.isneginf(hi) & np.isneginf(x)
        self.dead, lo = dead, x
        top = (hi + err).max(axis=-1, keepdims=True)
        base = (lo - err).max(axis=-1, keepdims=True)
        self.far = dead | (hi + err < base - FAR)
        with np.errstate(invalid="ignore"):
            spread = np.where(self.far, 0.0, np.maximum(top - (lo - err), 0.0))
        self.shift = np.where(self.far, 0.0, err + u * spread * SLACK)
        self.worst = self.shift.max(axis=-1, keepdims=True)
        exps = 2 * ULPS * u
        self.relative = 1.01 * (2 * exps + (self.n + 8) * u) + self.n * np.exp(-FAR)
        self.magnitude = np.maximum(np.abs(top), np.abs(base)) + np.log(self.n)
        middle = (lo.max(axis=-1, keepdims=True) + hi.max(axis=-1, keepdims=True)) / 2
        if not bool(np.all(np.isfinite(middle))):
            raise NoBound(domain.reason or "a row of logits has no finite entry, or no bound")
        self.low, self.high = np.exp(lo - middle) * (1 - WIDE), np.exp(hi - middle) * (1 + WIDE) + LEAST * ~dead
        self.middle, self.u = middle, u


def _last(x: Box, dim: int) -> Box:
    return x.swapaxes(dim % max(x.ndim, 1), -1) if x.ndim else x.reshape(1)


def _softmax(k: OpCall, x: Box, dim: int, half_to_float: bool = False) -> Box:
    """exp(x - max) over its sum: errors of x, of the shift, of exp, of the sum, and of the quotient."""
    domain, moved = k.domain, _last(x, dim)
    lo, hi, err, _ = moved.parts
    s = _Shifted(domain, lo, hi, err)
    others_high = np.maximum(s.high.sum(axis=-1, keepdims=True) * (1 + WIDE) - s.high, 0.0)
    others_low = np.maximum(s.low.sum(axis=-1, keepdims=True) * (1 - WIDE) - s.low, 0.0)
    low, high = s.low / (s.low + others_high) * (1 - WIDE), s.high / (s.high + others_low) * (1 + WIDE)
    high = np.minimum(np.where(s.dead, 0.0, high), 1.0)
    away = high * np.expm1(s.shift + s.worst + s.relative) * SLACK
    away = np.where(s.far, np.exp(-FAR) + high, away) + domain.eta * (s.n + 2) * (s.u > 0)
    away = np.where(s.dead, 0.0, np.minimum(away, 1.0 + s.relative))
    domain.charged[domain.key] = domain.charged.get(domain.key, 0.0) + float((high * s.relative).sum())
    out = Box(domain, domain._done(below(low) * (low > 0), high, away, np.full(low.shape, domain.code)))
    return _last(out, dim).reshape(x.shape)


def _safe_softmax(k: OpCall, x: Box, dim: int, dtype: Any = None) -> Box:
    """The same; a row without a finite entry, which it makes zero, has no bound here."""
    if dtype is not None:
        raise NoBound("no rounding bound for a softmax that converts its argument")
    return _softmax(k, x, dim)


def _log_softmax(k: OpCall, x: Box, dim: int, half_to_float: bool = False) -> Box:
    """x - max - log(sum), or x - (max + log(sum)): both orders."""
    domain, moved = k.domain, _last(x, dim)
    lo, hi, err, _ = moved.parts
    s = _Shifted(domain, lo, hi, err)
    total_low = np.log(s.low.sum(axis=-1, keepdims=True)) + s.middle
    total_high = np.log(s.high.sum(axis=-1, keepdims=True)) + s.middle
    slack = WIDE * (np.abs(s.middle) + s.magnitude + 1)
    with np.errstate(invalid="ignore"):
        low, high = lo - total_high - slack, np.minimum(hi - total_low + slack, 0.0)
        size = np.maximum(np.abs(low), np.abs(high))
        log_n = np.log(s.n) * (1 + s.relative) + s.relative
        own = s.relative + 2 * ULPS * s.u * log_n + s.u * (2 * s.magnitude + 3 * size) * SLACK
        away = err + s.worst + np.where(s.dead, 0.0, own + 2 * domain.eta * (s.u > 0))
    domain.charged[domain.key] = domain.charged.get(domain.key, 0.0) + float(np.where(s.dead, 0.0, own).sum())
    low, high = np.where(s.dead, -np.inf, low), np.where(s.dead, -np.inf, high)
    out = Box(domain, domain._done(low, high, away, np.full(low.shape, domain.code)))
    return _last(out, dim).reshape(x.shape)


def _softmax_backward(k: OpCall, grad: Any, out: Any, dim: int, dtype: Any = None) -> Box:
    """y (g - sum(g y)), and g y - y sum(g y)."""
    g, y = k.lift(grad), k.lift(out)
    total = (g * y).sum([dim], keep=True)
    return either(y * (g - total), g * y - y * total)


def _log_softmax_backward(k: OpCall, grad: Any, out: Any, dim: int, dtype: Any = None) -> Box:
    g = k.lift(grad)
    return g - k.lift(out).function("exp") * g.sum([dim], keep=True)


def _lerp(k: OpCall, a: Box, b: Any, weight: Any) -> Box:
    """a + w (b - a) below one half, b - (b - a) (1 - w) above; fused, either."""
    first, second, w = k.lift(a), k.lift(b), k.lift(weight)
    gap = second - first
    return either(first + w * gap, second - gap * (1.0 - w))


def moments(k: OpCall, x: Box) -> tuple[Box, Box]:
    """Mean and biased variance along the last axis: two passes, or updates one element or one chunk at a time.

    A running mean is contracted by (1 - 1/k) at the k-th update, which adds at most u M + 4 u M / k for M = max |x|:
    (n + 8) u M in all. Each product of a running variance has two factors that are off by at most that plus 2 u R for
    the spread R, and n + 4 roundings follow.
    """
    domain, n = k.domain, x.shape[-1]
    mean = x.sum([-1], keep=True) / n
    centred = x - mean
    variance = (centred * centred).sum([-1], keep=True) / n
    lo, hi, err, grid = mean.parts
    u = 0.0 if domain.key in domain.silent else domain.u
    most = (size_of(x.parts) + x.parts[2]).max(axis=-1, keepdims=True)
    given = x.parts[2].max(axis=-1, keepdims=True)
    running = (x.parts[2].sum(axis=-1, keepdims=True) / n + (n + 8) * (u * most + domain.eta * (u > 0))) * SLACK
    spread = 2 * size_of(centred.parts).max(axis=-1, keepdims=True)
    off = (running + given + 2 * u * spread) * SLACK
    away = (2 * off * spread + off * off + (n + 4) * u * (spread * spread / 4 + off * off)) * SLACK
    first = Box(domain, (lo, hi, np.maximum(err, running), grid))
    vl, vh, ve, vg = variance.parts
    return first, Box(domain, (np.maximum(vl, 0.0), vh, np.maximum(ve, away), vg))


def _layer_norm(k: OpCall, x: Box, shape: list[int], weight: Any, bias: Any, eps: float) -> tuple[Box, Box, Box]:
    """(x - mean) rstd w + b, and x (rstd w) - mean rstd w + b."""
    domain, m = k.domain, len(shape)
    flat = x.reshape((*x.shape[: x.ndim - m], -1))
    mean, variance = moments(k, flat)
    rstd = _rsqrt(k, variance + eps)
    normal = either((flat - mean) * rstd, flat * rstd - mean * rstd)
    out = normal.reshape(x.shape)
    out = out if weight is None else out * k.lift(weight)
    out = out if bias is None else out + k.lift(bias)
    kept = (*x.shape[: x.ndim - m], *(1,) * m)
    return Box(domain, out.parts), mean.reshape(kept), rstd.reshape(kept)


def _layer_norm_backward(
    k: OpCall, grad: Any, x: Any, shape: list[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: list[bool]
) -> tuple[Any, Any, Any]:
    """Both published forms of the input's gradient; sums of rows in any order for weight and bias."""
    g, v, mu, r = k.lift(grad), k.lift(x), k.lift(mean), k.lift(rstd)
    m, size = len(shape), float(np.prod(shape))
    inner, outer = list(range(v.ndim - m, v.ndim)), list(range(v.ndim - m))
    hat = either((v - mu) * r, v * r - mu * r)
    gw = g if weight is None else g * k.lift(weight)
    both = None
    if mask[0]:
        db, ds, dh = gw.sum(inner, True), (gw * v).sum(inner, True), (gw * hat).sum(inner, True)
        b = (db * mu - ds) * r * r * r / size
        c = -(b * mu) - db * r / size
        both = either(r * gw + b * v + c, (gw * size - hat * dh - db) * (r / size))
    dw = (g * hat).sum(outer) if mask[1] and weight is not None else None
    db_out = g.sum(outer) if mask[2] and bias is not None else None
    return both, dw, db_out


def _rsqrt(k: OpCall, x: Box) -> Box:
    """One function on a GPU (2 units in the last place), an inverse of a square root elsewhere: the larger charge."""
    return x.function("pow", np.full(x.shape, -0.5))


def _pow(k: OpCall, x: Any, exponent: Any) -> Box:
    """Products for the exponents that kernels single out; for others, products or the function."""
    if not isinstance(x, Box) or not isinstance(exponent, int | float):
        raise NoBound("no rounding bound for a power whose exponent is a tensor")
    made = power(x, float(exponent))
    if exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2):
        return made
    return either(made, x.function("pow", np.full(x.shape, float(exponent))))


KERNELS: dict[str, Rule] = {
    "pow": _pow, "rsqrt": _rsqrt, "_softmax": _softmax, "_safe_softmax": _safe_softmax, "_log_softmax": _log_softmax,
    "_softmax_backward_data": _softmax_backward, "_log_softmax_backward_data": _log_softmax_backward, "lerp": _lerp,
    "native_layer_norm": _layer_norm, "native_layer_norm_backward": _layer_norm_backward,
}  # fmt: skip
