"""What each operator computes, for the bound of its rounding.

An operator of `MOVED` moves numbers: it runs on each component of its arguments. One of `DECOMPOSED` computes what
torch's own decomposition of it says: one rounding an operation at most, with products and quotients in any association,
sums in any order and multiply-adds fused or not. The others have a rule here, in `bounds.arithmetic`, or, where a
kernel computes something else that is equal over the reals, at the end. Every other operator has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from gradproof.shadow.bounds.arithmetic import ERF, LEAST, ULPS, WIDE, amax, amin, div, mul, raised, total, truth, where
from gradproof.shadow.bounds.domain import RULES, SLACK, Box, Domain, NoBound, Rule, above, below, moved, rule

ASSUMED = (
    "kernels round to nearest; underflow is gradual",
    f"kernels compute exp, log, sin, cos, tanh within {ULPS:g} units in the last place, erf within {ULPS:g} of those "
    f"of {ERF:g}, sigmoid and pow within {2 * ULPS:g}",
    "sums and products of matrices are accumulated at least in the format of the result, in any order",
    "no intermediate product underflows further than in the formula's order of factors",
    "no NaN arises; where the machine's run takes another branch than the recorded one, no bound is claimed",
    "operations on Python numbers between operators are part of the algorithm: their results are exact constants; so "
    "are numbers that leave torch and come back, through NumPy or a file",
)
ATEN: Any = torch.ops.aten
MOVEMENTS = """
cat stack index index_select gather masked_select select_backward slice_backward diagonal_backward select_scatter
slice_scatter diagonal_scatter as_strided_scatter repeat roll flip rot90 tril triu take index_copy expand_copy view_copy
permute_copy transpose_copy t_copy unsqueeze_copy squeeze_copy slice_copy select_copy unbind_copy split_copy
split_with_sizes_copy alias_copy detach_copy _reshape_copy unsafe_split unsafe_split_with_sizes embedding diag_embed
_unsafe_view
"""
MOVED = frozenset(MOVEMENTS.split())
DECOMPOSED = """
gelu gelu_backward silu silu_backward softplus softplus_backward elu elu_backward leaky_relu leaky_relu_backward
hardtanh_backward hardsigmoid hardswish hardswish_backward threshold threshold_backward sigmoid_backward tanh_backward
mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
binary_cross_entropy_with_logits log_sigmoid_forward nll_loss_forward nll_loss2d_forward nll_loss_backward
nll_loss2d_backward mv dot vdot native_dropout_backward lerp norm linalg_vector_norm
_log_softmax_backward_data log_sigmoid_backward celu mish mish_backward
mean rsub addcmul addcdiv hardtanh index_fill index_add zero
"""


def decomposed(name: str) -> Rule | None:
    """The rule of an operator by torch's decomposition of it; None where this torch has none."""
    packet = getattr(ATEN, name, None)
    plain = (getattr(packet, n) for n in (packet.overloads() if packet else ()) if n not in ("out", "grad_input"))
    made = next((decomposition_table[overload] for overload in plain if overload in decomposition_table), None)
    return None if made is None else lambda d, *args, **kwargs: made(*args, **kwargs)


SIXTH = 0.16666667163372040
"""One sixth in float32, by which kernels of every format multiply."""


def chosen(d: Domain, x: Box, dim: int = -1) -> Any:
    """Elements at the places along an axis that the machine chose; another choice is another path."""
    at = d.results[1].cpu()
    return x.gather(dim, at) if x.ndim else x, at


def extreme(d: Domain, of: Rule, x: Box, *axis: Any) -> Any:
    """An extreme of all, or along an axis with the places where the machine found it."""
    return (of(d, x, *axis), d.results[1]) if axis else of(d, x)


def gathered(d: Domain, x: Any, add: Callable[[Tensor], Tensor], *onto: Any) -> Box:
    """Sums of the elements of `x` that a real operator adds up, onto those of a tensor."""
    return total(d, (d.lift(x), add), *((d.lift(one), torch.clone) for one in onto))


def zeros(x: Any) -> Tensor:
    """Zeros in float64, of the shape of a tensor."""
    return torch.zeros(x.shape, dtype=torch.float64)


RULES.update({name: moved(getattr(ATEN, name)) for name in MOVED if hasattr(ATEN, name)})
RULES.update({name: made for name in DECOMPOSED.split() if (made := decomposed(name)) is not None})
RULES.update({
    **dict.fromkeys(["clone", "lift_fresh", "lift_fresh_copy", "conj_physical"], lambda d, x, **named: d.lift(x)),
    "_reshape_alias": lambda d, x, shape, *rest: x.reshape(shape),
    **dict.fromkeys(["copy", "fill"], lambda d, x, value, *rest: d.lift(value).expand(x.shape)),
    "gt": lambda d, x, y: d.lift(y) < x, "le": lambda d, x, y: ~(d.lift(y) < x),
    "ge": lambda d, x, y: ~(d.lift(x) < y), "ne": lambda d, x, y: ~(d.lift(x) == y),
    "relu": lambda d, x: x.clamp(min=0.0), "masked_fill": lambda d, x, mask, value: where(d, mask, value, x),
    "reciprocal": lambda d, x: div(d, 1.0, x), "abs": lambda d, x: torch.maximum(x, -x),
    "log2": lambda d, x: torch.log(x) / torch.log(d.lift(2.0)),
    **dict.fromkeys(["sign", "sgn"], lambda d, x: torch.where(x < 0.0, -1.0, where(d, x > 0.0, 1.0, 0.0))),
    "hardsigmoid_backward": lambda d, g, x: where(d, (x <= -3.0) | (x >= 3.0), 0.0, g * SIXTH),
    "scatter_add": lambda d, x, dim, at, y: gathered(d, y, lambda p: zeros(x).scatter_add(dim, at, p), x),
    "_amp_foreach_non_finite_check_and_unscale": lambda d, grads, found, inverse: (
        [mul(d, grad, inverse) for grad in grads], d.results[1],
    ),
    "addmv": lambda d, x, a, b, **by: torch.addmm(x.unsqueeze(-1), a, b.unsqueeze(-1), **by).squeeze(-1),
    "topk": lambda d, x, k, dim=-1, *rest: chosen(d, x, dim),
    "sort": lambda d, x, dim=-1, *rest, **named: chosen(d, x, dim),
    "max": lambda d, x, *axis: extreme(d, amax, x, *axis), "min": lambda d, x, *axis: extreme(d, amin, x, *axis),
})  # fmt: skip


@rule("_to_copy", "convert_element_type")
def converted(d: Domain, x: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Box:
    """The value in any format, which is rounded where it is stored; as truth values, whether it is not zero."""
    return truth(d, x) if dtype is torch.bool else d.lift(x)


@rule("constant_pad_nd")
def padded(d: Domain, x: Box, pad: list[int], value: float = 0) -> Box:
    """Numbers around a tensor."""
    around = ATEN.constant_pad_nd(torch.zeros(x.shape, dtype=torch.bool), pad, True)
    return where(d, around, value, moved(ATEN.constant_pad_nd)(d, x, pad))


@rule("native_dropout")
def dropout(d: Domain, x: Box, p: float, train: bool | None) -> Any:
    """The recorded mask, and what it leaves, scaled by the machine's 1 / (1 - p)."""
    mask = d.results[1]
    return x if train is False else mul(d, where(d, mask, x, 0.0), 0.0 if p == 1 else 1.0 / (1.0 - p)), mask


@rule("scatter")
def scatter(d: Domain, x: Any, dim: int, index: Tensor, source: Any, reduce: str | None = None) -> Any:
    """Put at indices along a dimension. Raises NoBound for one that adds or multiplies."""
    if reduce is not None:
        raise NoBound("no rounding bound is known for a reduction that scatters")
    given = d.lift(source)
    return moved(ATEN.scatter)(d, x, dim, index, given if given.ndim else given.expand(index.shape))


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(d: Domain, x: Any, at: Sequence[Any], values: Any, accumulate: bool = False, *rest: Any) -> Any:
    """Put or added at indices."""
    if not accumulate:
        return moved(ATEN.index_put)(d, x, at, d.lift(values))
    return gathered(d, values, lambda p: ATEN.index_put(zeros(x), at, p, True), x)


@rule("embedding_dense_backward")
def embedding_backward(d: Domain, grad: Any, tokens: Tensor, rows: int, padding: int, by_count: bool) -> Box:
    """Each row gets the sum of the gradients where its token stood. Raises NoBound for a scale by frequency."""
    if by_count:
        raise NoBound("no rounding bound is known for an embedding that is scaled by frequency")
    return gathered(d, grad, lambda p: ATEN.embedding_dense_backward(p, tokens, rows, padding, False))


# -- Kernels that compute something else than their formula, which is equal over the reals.
#
# A softmax shifted by its maximum, a variance by running updates: aten/src/ATen/native/cpu (SoftMaxKernel.cpp,
# layer_norm_kernel.cpp, moments_utils.h) of PyTorch and their counterparts in native/cuda. Where kernels differ, the
# bound covers each.
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
