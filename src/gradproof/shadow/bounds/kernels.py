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
from gradproof.shadow.bounds.domain import SLACK, Box, Domain, NoBound, above, below, rule


def either(a: Any, b: Any) -> Box:
    """Two algorithms for the same exact value, of which the kernel runs one: the larger error."""
    (al, ah, ae), (bl, bh, be) = a.parts, b.parts
    low, high = torch.maximum(al, bl), torch.minimum(ah, bh)
    apart = low > high
    low = torch.where(apart, torch.minimum(al, bl), low)
    return Box(a.domain, (low, torch.where(apart, torch.maximum(ah, bh), high), torch.maximum(ae, be)), a.format)


def _shares(d: Domain, x: Box, dim: int) -> tuple[Box, Tensor, int]:
    """x - log(sum(exp(x))), but for the roundings of its result; the largest magnitude in each row, and its length.

    A row that is off moves log(sum(exp(x))) no farther than its farthest element. Terms that are off by u |x - max|
    move the sum of n by a factor of n^u at most (Jensen); exp and additions by one of 1 + (2 ULPS + n) u.
    """
    low, high, err = x.parts
    n, tops = x.shape[dim] if x.ndim else 1, [end.amax(dim, True) for end in (low, high)]
    middle = (tops[0] + tops[1]) / 2
    if not bool((middle + err).isfinite().all()):
        raise NoBound(d.reason or "a row of logits has no finite entry, or no bound")
    dead = high.isneginf()
    low, high = below(low - middle), torch.where(dead, high, above(high - middle))
    sums = [torch.logsumexp(end, dim, True) for end in (low, high)]
    slack = (WIDE + n * 2.0**-52) * (1 + sums[0].abs() + sums[1].abs())
    more, less = (torch.exp(high - end) - torch.exp(low - end) for end in sums)  # an element is one number in its sum
    low = below(low - sums[1] - slack) - torch.log1p(-less.clamp(max=0.9))
    high = (above(high - sums[0] + slack) - torch.log1p(more.clamp(max=1 / LEAST))).clamp(max=0.0)
    high = torch.where(dead, -torch.inf, high)
    off = 1.01 * (2 * ULPS + n) * d.u
    off = -math.log1p(-off) if off < 0.5 else max(off, 1 + math.log(n))
    worst = err.amax(dim, True)
    away = (err + worst) * 1.01 + (off * (1 + 2 * ULPS * d.u) + d.u * math.log(n)) * SLACK
    shares = Box(d, (low, high, torch.where(dead, 0.0, away)), d.format)
    return shares, torch.maximum(tops[0].abs(), tops[1].abs()) + worst, n


@rule("_softmax")
def softmax(d: Domain, x: Box, dim: int, half_to_float: bool = False) -> Box:
    """exp(x - max) over its sum, or times the inverse of that."""
    shares, _, n = _shares(d, x, dim)
    low, high = torch.exp(shares.parts[0]) * (1 - WIDE), torch.exp(shares.parts[1]) * (1 + WIDE)
    dead, most = shares.parts[1].isneginf(), 1 + 1.01 * (4 * ULPS + n + 8) * d.u
    high = torch.where(dead, 0.0, high.clamp(LEAST, 1.0))
    own = (d.u * shares.size_of + (2 * ULPS + 3) * d.u) * SLACK
    away = high * torch.expm1(shares.parts[2] + own) * SLACK + d.eta * (n + 2 + 2 * ULPS)
    away = torch.where(dead, 0.0, away.nan_to_num(most).clamp(max=most))
    d.charge(torch.where(dead, 0.0, high * own))
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
    shares, top, n = _shares(d, x, dim)
    low, high, err = shares.parts
    own = d.u * (2 * (top + math.log(n)) + 3 * shares.size_of + 2 * ULPS * math.log(n)) * SLACK + 2 * d.eta
    own = torch.where(high.isneginf(), 0.0, own)
    d.charge(own)
    return d.made(low, high, err + own)


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
