"""Which kernels the rounding domain speaks for.

`COVERED`: the kernel computes the row's own formula, one rounding an operation at most, with products and quotients in
any association, sums in any order and multiply-adds fused or not. `SPECIAL`: the kernel computes something else that is
equal over the reals (softmax shifted by its maximum, a variance by running updates); its own row is here. Every other
operator has no bound, and its row raises Beyond. Formulas: aten/src/ATen/native/cpu (SoftMaxKernel.cpp,
layer_norm_kernel.cpp, moments_utils.h, LerpKernel.cpp) and their counterparts in native/cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Array, Beyond, Value
from gradproof.shadow.domains.enclosure import LEAST, WIDE, below
from gradproof.shadow.domains.rounding import ERF, SLACK, ULPS, RoundingDomain, size_of
from gradproof.shadow.ops.rows import load
from gradproof.shadow.ops.rows.common import power
from gradproof.shadow.ops.table import TABLE, OperatorRow, Ops, Rule, names

FAR = 120.0
"""A logit this far below the largest one contributes at most exp(-FAR) to a softmax."""

EXACT = """
alias arange as_strided as_strided_scatter broadcast_to bool cat chunk clone contiguous copy detach empty empty_like
eq expand expand_as fill flatten flip full full_like gather ge gt index index_select is_same_size isfinite isinf
isnan le lift lift_fresh logical_and logical_not logical_or lt masked_fill masked_select movedim narrow ne neg
new_empty new_full new_ones new_zeros ones ones_like permute repeat reshape resize roll scalar_tensor scatter select
select_backward select_scatter set slice slice_backward slice_scatter split split_with_sizes squeeze stack
sum_to_size t tile to _to_copy _copy_from transpose tril triu unbind unfold unsqueeze view where zero zeros
zeros_like _unsafe_view _reshape_alias constant_pad_nd embedding diagonal diag_embed diagonal_backward maximum
minimum max min amax amin clamp clamp_min clamp_max abs sign topk sort _local_scalar_dense unsqueeze_ pad
view_copy detach_copy alias_copy expand_copy permute_copy transpose_copy t_copy unsqueeze_copy squeeze_copy slice_copy
select_copy unbind_copy split_copy split_with_sizes_copy unsafe_split unsafe_split_with_sizes lift_fresh_copy
_reshape_copy
"""

ARITHMETIC = """
add sub rsub mul div true_divide reciprocal square sqrt exp expm1 log log1p log2 sin cos tanh erf sigmoid addcmul
addcdiv add_relu sum mean nansum mm bmm addmm addbmm baddbmm addmv mv dot vdot ger outer matmul linear einsum
threshold threshold_backward leaky_relu leaky_relu_backward tanh_backward sigmoid_backward gelu gelu_backward silu
silu_backward softplus softplus_backward hardtanh hardtanh_backward elu elu_backward hardswish hardswish_backward
hardsigmoid hardsigmoid_backward native_dropout native_dropout_backward
embedding_dense_backward embedding_backward index_add index_put _index_put_impl scatter_add scatter_reduce
nll_loss nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
l1_loss smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy_with_logits
linalg_vector_norm norm frobenius_norm _amp_foreach_non_finite_check_and_unscale dist
avg_pool2d avg_pool2d_backward
""".split()  # noqa: SIM905

FOREACH = """
add sub mul div neg sqrt reciprocal norm addcmul addcdiv copy zero clamp_max clamp_min maximum minimum abs
""".split()  # noqa: SIM905

COVERED = frozenset(
    [f"aten.{name}" for name in [*EXACT.split(), *ARITHMETIC]] + [f"aten._foreach_{name}" for name in FOREACH]
)  # fmt: skip

ASSUMED = (
    "kernels round to nearest; underflow is gradual unless `flush` is set",
    f"kernels compute exp, log, sin, cos, tanh within {ULPS:g} units in the last place, erf within {ULPS:g} of those "
    f"of {ERF:g}, sigmoid, softplus and pow within {2 * ULPS:g}",
    "sums and products of matrices are accumulated at least in the format of the result, in any order",
    "no intermediate product underflows further than in the row's order of factors",
    "no NaN arises; where the machine's run takes another branch than the recorded one, no bound is claimed",
    "operations on Python numbers between operators are part of the algorithm: their results are exact constants",
)


def either(a: Value, b: Value) -> Value:
    """Two algorithms for the same exact value, of which the kernel runs one: the larger error."""
    (al, ah, ae, ag), (bl, bh, be, bg) = a.parts, b.parts
    lo, hi = np.maximum(al, bl), np.minimum(ah, bh)
    empty = lo > hi
    low, high = np.where(empty, np.minimum(al, bl), lo), np.where(empty, np.maximum(ah, bh), hi)
    return Value(a.domain, (low, high, np.maximum(ae, be), np.where(ag == bg, ag, 0).astype(np.int8)))


def _domain(k: Ops) -> RoundingDomain:
    if not isinstance(k.domain, RoundingDomain):
        raise Beyond("a row of the rounding domain in another domain")
    return k.domain


def _contract(k: Ops, x: Value, low: float | None, high: float | None) -> Value:
    """Clamp: moves no two numbers apart."""
    domain = _domain(k)
    lo, hi, err, grid = x.parts
    least, most = (-np.inf if low is None else low), (np.inf if high is None else high)
    fixed = (hi + err <= least) | (lo - err >= most)
    err = np.where(fixed, 0.0, err)
    lo, hi = np.clip(lo, least, most), np.clip(hi, least, most)
    return Value(domain, (lo, hi, err, np.where(fixed, 0, grid).astype(np.int8)))


def _relu(k: Ops, x: Value) -> Value:
    return _contract(k, x, 0.0, None)


class _Shifted:
    """The exponentials of a softmax along the last axis, and how far the machine's may be from them."""

    def __init__(self, domain: RoundingDomain, x: Array, hi: Array, err: Array) -> None:
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
            raise Beyond(domain.reason or "a row of logits has no finite entry, or no bound")
        self.low, self.high = np.exp(lo - middle) * (1 - WIDE), np.exp(hi - middle) * (1 + WIDE) + LEAST * ~dead
        self.middle, self.u = middle, u


def _last(x: Value, dim: int) -> Value:
    return x.swapaxes(dim % max(x.ndim, 1), -1) if x.ndim else x.reshape(1)


def _softmax(k: Ops, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """exp(x - max) over its sum: errors of x, of the shift, of exp, of the sum, and of the quotient."""
    domain, moved = _domain(k), _last(x, dim)
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
    out = Value(domain, domain._done(below(low) * (low > 0), high, away, np.full(low.shape, domain.code)))
    return _last(out, dim).reshape(x.shape)


def _safe_softmax(k: Ops, x: Value, dim: int, dtype: str | None = None) -> Value:
    """The same; a row without a finite entry, which it makes zero, has no bound here."""
    if dtype is not None:
        raise Beyond("no rounding bound for a softmax that converts its argument")
    return _softmax(k, x, dim)


def _log_softmax(k: Ops, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """x - max - log(sum), or x - (max + log(sum)): both orders."""
    domain, moved = _domain(k), _last(x, dim)
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
    out = Value(domain, domain._done(low, high, away, np.full(low.shape, domain.code)))
    return _last(out, dim).reshape(x.shape)


def _softmax_backward(k: Ops, grad: Any, out: Any, dim: int, dtype: Any = None) -> Value:
    """y (g - sum(g y)), and g y - y sum(g y)."""
    g, y = k.lift(grad), k.lift(out)
    total = (g * y).sum([dim], keep=True)
    return either(y * (g - total), g * y - y * total)


def _log_softmax_backward(k: Ops, grad: Any, out: Any, dim: int, dtype: Any = None) -> Value:
    g = k.lift(grad)
    return g - k.fn("exp", k.lift(out)) * g.sum([dim], keep=True)


def _lerp(k: Ops, a: Value, b: Any, weight: Any) -> Value:
    """a + w (b - a) below one half, b - (b - a) (1 - w) above; fused, either."""
    first, second, w = k.lift(a), k.lift(b), k.lift(weight)
    gap = second - first
    return either(first + w * gap, second - gap * (1.0 - w))


def _each_lerp(k: Ops, a: list[Any], b: list[Any], weight: Any) -> list[Value]:
    weights = weight if isinstance(weight, list) else [weight] * len(a)
    return [_lerp(k, x, y, w) for x, y, w in zip(a, b, weights, strict=True)]


def moments(k: Ops, x: Value) -> tuple[Value, Value]:
    """Mean and biased variance along the last axis: two passes, or updates one element or one chunk at a time.

    A running mean is contracted by (1 - 1/k) at the k-th update, which adds at most u M + 4 u M / k for M = max |x|:
    (n + 8) u M in all. Each product of a running variance has two factors that are off by at most that plus 2 u R for
    the spread R, and n + 4 roundings follow.
    """
    domain, n = _domain(k), x.shape[-1]
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
    first = Value(domain, (lo, hi, np.maximum(err, running), grid))
    vl, vh, ve, vg = variance.parts
    return first, Value(domain, (np.maximum(vl, 0.0), vh, np.maximum(ve, away), vg))


def _layer_norm(k: Ops, x: Value, shape: list[int], weight: Any, bias: Any, eps: float) -> tuple[Value, Value, Value]:
    """(x - mean) rstd w + b, and x (rstd w) - mean rstd w + b."""
    domain, m = _domain(k), len(shape)
    flat = x.reshape((*x.shape[: x.ndim - m], -1))
    mean, variance = moments(k, flat)
    rstd = _rsqrt(k, variance + eps)
    normal = either((flat - mean) * rstd, flat * rstd - mean * rstd)
    out = normal.reshape(x.shape)
    out = out if weight is None else out * k.lift(weight)
    out = out if bias is None else out + k.lift(bias)
    kept = (*x.shape[: x.ndim - m], *(1,) * m)
    return Value(domain, out.parts), mean.reshape(kept), rstd.reshape(kept)


def _layer_norm_backward(
    k: Ops, grad: Any, x: Any, shape: list[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: list[bool]
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


def _rsqrt(k: Ops, x: Value) -> Value:
    """One function on a GPU (2 units in the last place), an inverse of a square root elsewhere: the larger charge."""
    return k.fn("pow", x, k.lift(np.full(x.shape, -0.5)))


def _pow(k: Ops, x: Any, exponent: Any) -> Value:
    """Products for the exponents that kernels single out; for others, products or the function."""
    if not isinstance(x, Value) or not isinstance(exponent, int | float):
        raise Beyond("no rounding bound for a power whose exponent is a tensor")
    made = power(k, x, float(exponent))
    if exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2):
        return made
    return either(made, k.fn("pow", x, k.lift(np.full(x.shape, float(exponent)))))


SPECIAL: dict[str, Rule] = {
    "aten.pow": _pow,
    "aten.relu": _relu,
    "aten.rsqrt": _rsqrt,
    "aten._softmax": _softmax,
    "aten._safe_softmax": _safe_softmax,
    "aten._log_softmax": _log_softmax,
    "aten._softmax_backward_data": _softmax_backward,
    "aten._log_softmax_backward_data": _log_softmax_backward,
    "aten.lerp": _lerp,
    "aten._foreach_lerp": _each_lerp,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_layer_norm_backward": _layer_norm_backward,
}


def unknown(op: str) -> Rule:
    """A row without a bound."""

    def refused(k: Ops, *args: Any, **kwargs: Any) -> Any:
        raise Beyond(f"no sound rounding bound is known for the kernel of {op}")

    return refused


def table(
    rows: Mapping[str, OperatorRow] | None = None, extra: Mapping[str, Rule] | None = None
) -> dict[str, OperatorRow]:
    """The operator table for the rounding domain: special rows, covered rows, and refusals for all the rest.

    `extra` are rules of your own by operator, which you answer for; they win.
    """
    if rows is None:
        load()
        rows = TABLE
    rules = {**SPECIAL, **(extra or {})}
    made = {op: _row(row, rules) for op, row in rows.items()}
    for op, rule in rules.items():
        made.setdefault(op, OperatorRow(op, rule, (), __name__))
    return made


def _row(row: OperatorRow, rules: Mapping[str, Rule]) -> OperatorRow:
    found: Callable[..., Any] | None = next((rules[name] for name in names(row.op) if name in rules), None)
    if found is None and not any(name in COVERED for name in names(row.op)):
        found = unknown(row.op)
    return row if found is None else replace(row, rule=found)
