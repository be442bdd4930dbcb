"""What each operator computes, for the bound of its rounding.

An operator of `MOVED` moves numbers: it runs on each component of its arguments. One of `DECOMPOSED` computes what
torch's own decomposition of it says: one rounding an operation at most, with products and quotients in any association,
sums in any order and multiply-adds fused or not. The others have a rule here, in `bounds.arithmetic`, or, where a
kernel computes something else that is equal over the reals, in `bounds.kernels`. Every other operator has no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from gradproof.shadow.bounds.arithmetic import ERF, ULPS, amax, amin, div, mul, total, truth, where
from gradproof.shadow.bounds.domain import RULES, Box, Domain, NoBound, Rule, moved, rule

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
