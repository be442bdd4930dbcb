"""Kernels that compute something else than their formula, which is equal over the reals.

A softmax shifted by its maximum, a variance by running updates: aten/src/ATen/native/cpu (SoftMaxKernel.cpp,
layer_norm_kernel.cpp, moments_utils.h) of PyTorch and their counterparts in native/cuda. Where kernels differ, the
bound covers each.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradproof.shadow.bounds.arithmetic import LEAST, ULPS, WIDE, raised
from gradproof.shadow.bounds.domain import SLACK, Box, Domain, NoBound, below, rule

FAR = 120.0
"""A logit this far below the largest one contributes at most exp(-FAR) to a softmax."""


def either(a: Any, b: Any) -> Box:
    """Two algorithms for the same exact value, of which the kernel runs one: the larger error."""
    (al, ah, ae), (bl, bh, be) = a.parts, b.parts
    low, high = torch.maximum(al, bl), torch.minimum(ah, bh)
    apart = low > high
    low = torch.where(apart, torch.minimum(al, bl), low)
    return Box(a.domain, (low, torch.where(apart, torch.maximum(ah, bh), high), torch.maximum(ae, be)), a.format)


class _Shifted:
    """The exponentials of a softmax along an axis, and how far the machine's may be from them."""

    def __init__(self, d: Domain, x: Box, dim: int) -> None:
        low, high, err = x.parts
        self.dim, self.n = dim, x.shape[dim] if x.ndim else 1
        self.dead = high.isneginf() & low.isneginf()
        top, base = self.most(high + err), self.most(low - err)
        self.far = self.dead | (high + err < base - FAR)
        spread = torch.where(self.far, 0.0, (top - (low - err)).clamp(min=0.0))
        self.shift = torch.where(self.far, 0.0, err + d.u * spread * SLACK)
        self.worst = self.most(self.shift)
        self.relative = 1.01 * (4 * ULPS * d.u + (self.n + 8) * d.u) + self.n * math.exp(-FAR)
        self.magnitude = torch.maximum(top.abs(), base.abs()) + math.log(self.n)
        self.middle = (self.most(low) + self.most(high)) / 2
        if not bool(self.middle.isfinite().all()):
            raise NoBound(d.reason or "a row of logits has no finite entry, or no bound")
        self.low = torch.exp(low - self.middle) * (1 - WIDE)
        self.high = torch.exp(high - self.middle) * (1 + WIDE) + LEAST * (~self.dead).to(torch.float64)

    def most(self, x: Tensor) -> Tensor:
        """The largest of each row."""
        return x.amax(self.dim, True)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of each row."""
        return x.sum(self.dim, True)


@rule("_softmax")
def softmax(d: Domain, x: Box, dim: int, half_to_float: bool = False) -> Box:
    """exp(x - max) over its sum: errors of x, of the shift, of exp, of the sum, and of the quotient."""
    s = _Shifted(d, x, dim)
    others_high = (s.sum(s.high) * (1 + WIDE) - s.high).clamp(min=0.0)
    others_low = (s.sum(s.low) * (1 - WIDE) - s.low).clamp(min=0.0)
    low, high = s.low / (s.low + others_high) * (1 - WIDE), s.high / (s.high + others_low) * (1 + WIDE)
    high = torch.where(s.dead, 0.0, high).clamp(max=1.0)
    away = high * torch.expm1(s.shift + s.worst + s.relative) * SLACK
    away = torch.where(s.far, math.exp(-FAR) + high, away) + d.eta * (s.n + 2)
    away = torch.where(s.dead, 0.0, away.clamp(max=1.0 + s.relative))
    d.charge(high * s.relative)
    return d.made(torch.where(low > 0, below(low), 0.0), high, away)


@rule("_safe_softmax")
def safe_softmax(d: Domain, x: Box, dim: int, dtype: Any = None) -> Box:
    """The same; a row without a finite entry, which it makes zero, has no bound here."""
    if dtype is not None:
        raise NoBound("no rounding bound for a softmax that converts its argument")
    return softmax(d, x, dim)


@rule("_log_softmax")
def log_softmax(d: Domain, x: Box, dim: int, half_to_float: bool = False) -> Box:
    """x - max - log(sum), or x - (max + log(sum)): both orders."""
    s = _Shifted(d, x, dim)
    low, high, err = x.parts
    total_low, total_high = torch.log(s.sum(s.low)) + s.middle, torch.log(s.sum(s.high)) + s.middle
    slack = WIDE * (s.middle.abs() + s.magnitude + 1)
    low, high = low - total_high - slack, (high - total_low + slack).clamp(max=0.0)
    log_n = math.log(s.n) * (1 + s.relative) + s.relative
    size = torch.maximum(low.abs(), high.abs())
    own = s.relative + 2 * ULPS * d.u * log_n + d.u * (2 * s.magnitude + 3 * size) * SLACK
    away = err + s.worst + torch.where(s.dead, 0.0, own + 2 * d.eta)
    d.charge(torch.where(s.dead, 0.0, own))
    return d.made(torch.where(s.dead, -torch.inf, low), torch.where(s.dead, -torch.inf, high), away)


@rule("_softmax_backward_data")
def softmax_backward(d: Domain, grad: Any, out: Any, dim: int, dtype: Any = None) -> Box:
    """y (g - sum(g y)), and g y - y sum(g y)."""
    g, y = d.lift(grad), d.lift(out)
    total = (g * y).sum([dim], True)
    return either(y * (g - total), g * y - y * total)


def moments(d: Domain, x: Any) -> tuple[Box, Box]:
    """Mean and biased variance along the last axis: two passes, or updates one element or one chunk at a time.

    A running mean is contracted by (1 - 1/k) at the k-th update, which adds at most u M + 4 u M / k for M = max |x|:
    (n + 8) u M in all. Each product of a running variance has two factors that are off by at most that plus 2 u R for
    the spread R, and n + 4 roundings follow.
    """
    n = x.shape[-1]
    mean = x.mean([-1], True)
    centred: Any = x - mean
    variance = (centred * centred).mean([-1], True)
    err = x.parts[2]
    most = (x.size_of + err).amax(-1, True)
    running = (err.sum(-1, True) / n + (n + 8) * (d.u * most + d.eta)) * SLACK
    spread = 2 * centred.size_of.amax(-1, True)
    off = (running + err.amax(-1, True) + 2 * d.u * spread) * SLACK
    away = (2 * off * spread + off * off + (n + 4) * d.u * (spread * spread / 4 + off * off)) * SLACK
    return _at_least(mean, running), _at_least(variance.clamp(min=0.0), away)


def _at_least(x: Any, err: Tensor) -> Box:
    """The same value, of which the machine's may be farther off."""
    return Box(x.domain, (*x.parts[:2], torch.maximum(x.parts[2], err)), x.format)


@rule("native_layer_norm")
def layer_norm(d: Domain, x: Box, shape: list[int], weight: Any, bias: Any, eps: float) -> Any:
    """(x - mean) rstd w + b, and x (rstd w) - mean rstd w + b."""
    kept = (*x.shape[: x.ndim - len(shape)], *(1,) * len(shape))
    flat = x.reshape(*x.shape[: x.ndim - len(shape)], -1)
    mean, variance = moments(d, flat)
    rstd = rsqrt(d, variance + eps)
    out = either((flat - mean) * rstd, flat * rstd - mean * rstd).reshape(x.shape)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean.reshape(kept), rstd.reshape(kept)


@rule("native_layer_norm_backward")
def layer_norm_backward(
    d: Domain, g: Box, x: Box, shape: list[int], mean: Box, rstd: Box, weight: Any, bias: Any, mask: list[bool]
) -> Any:
    """Both published forms of the input's gradient; sums of rows in any order for weight and bias."""
    size = float(math.prod(shape))
    inner, outer = list(range(x.ndim - len(shape), x.ndim)), list(range(x.ndim - len(shape)))
    hat = either((x - mean) * rstd, x * rstd - mean * rstd)
    gw = g if weight is None else g * weight
    both = None
    if mask[0]:
        db, ds, dh = gw.sum(inner, True), (gw * x).sum(inner, True), (gw * hat).sum(inner, True)
        b = (db * mean - ds) * rstd * rstd * rstd / size
        c = -(b * mean) - db * rstd / size
        both = either(rstd * gw + b * x + c, (gw * size - hat * dh - db) * (rstd / size))
    sums = [x.sum(outer) if outer else x for x in (g * hat, g)]
    wanted = mask[1] and weight is not None, mask[2] and bias is not None
    return both, *(x if want else None for x, want in zip(sums, wanted, strict=True))


@rule("rsqrt")
def rsqrt(d: Domain, x: Any) -> Box:
    """One function on a GPU (2 units in the last place), an inverse of a square root elsewhere: the larger charge."""
    return raised(d, x, -0.5)


@rule("pow", "square")
def power(d: Domain, x: Any, exponent: Any = 2) -> Any:
    """Products for the exponents that kernels single out; the function for others."""
    if not isinstance(x, Box) or not isinstance(exponent, int | float):
        raise NoBound("no rounding bound for a power whose exponent is a tensor")
    if exponent < 0 and exponent in (-1, -2, -0.5):
        return 1.0 / power(d, x, -exponent)
    if exponent in (0, 1, 2, 3):
        return math.prod([x] * int(exponent), start=d.lift(1.0).expand(x.shape))
    return torch.sqrt(x) if exponent == 0.5 else raised(d, x, float(exponent))
