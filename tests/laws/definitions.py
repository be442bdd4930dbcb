"""Definitions of operators that torch does not decompose. Source: the documentation of each operator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.laws.polynomials import ONE, Function, add, atom, frozen, mul, zero
from tests.laws.symbols import DEFINITIONS, Symbols, array_of, elementwise, reduced, total

aten = torch.ops.aten


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast: over the reals those between real types change nothing."""
    array = array_of(x)
    if dtype is torch.bool and x.dtype is not torch.bool:
        return elementwise(lambda p: add(ONE, zero(p), -1), [x], dtype)
    if not dtype.is_floating_point and x.is_floating_point():
        return elementwise(lambda p: atom("trunc", frozen(p)), [x], dtype)
    return Symbols(array, dtype)


def copied(into: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    """The elements of x, in the shape and type of another tensor."""
    return Symbols(np.broadcast_to(array_of(cast(x, into.dtype)), tuple(into.shape)).copy(), into.dtype)


def copied_into(into: Symbols, x: torch.Tensor, *_: Any) -> Symbols:
    """The same, in place."""
    into.array = copied(into, x).array
    return into


def product_of(a: Any, b: Any) -> Symbols:
    """Matrices multiplied, or stacks of them."""
    left, right = array_of(a), array_of(b)
    if left.ndim == 3:
        return Symbols(np.stack([product_of(Symbols(x), Symbols(y)).array for x, y in zip(left, right, strict=True)]))
    made = np.empty((left.shape[0], right.shape[1]), dtype=object)
    for i, j in np.ndindex(*made.shape):
        made[i, j] = total(mul(x, y) for x, y in zip(left[i], right[:, j], strict=True))
    return Symbols(made)


Paired = list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def paired(x: Any, w: Any, out: Sequence[int], options: Sequence[Any]) -> Paired:
    """Which element of a convolution's result, of its input and of its weight meet. Source: torch.nn.ConvNd."""
    stride, padding, dilation, transposed, _, groups = options
    found: Paired = []
    small, large = (x, out) if transposed else (out, x)
    each = [s // groups for s in (w[0], w[1] * groups)]
    space = len(x) - 2
    options = [list(o) * (space if len(o) == 1 else 1) for o in (stride, padding, dilation)]
    for n, g, a, b in itertools.product(range(x[0]), range(groups), range(each[0]), range(w[1])):
        for p in itertools.product(*map(range, small[2:])):
            for k in itertools.product(*map(range, w[2:])):
                q = [i * s - pad + j * d for i, j, s, pad, d in zip(p, k, *options, strict=True)]
                if all(0 <= i < size for i, size in zip(q, large[2:], strict=True)):
                    near, far = (n, g * each[0] + a, *p), (n, g * w[1] + b, *q)
                    found.append((far if transposed else near, near if transposed else far, (g * each[0] + a, b, *k)))
    return found


def convolution(x: Any, w: Any, bias: Any, *options: Any) -> Symbols:
    """A convolution, or a transposed one."""
    like = torch.ops.aten.convolution(torch.zeros(x.shape), torch.zeros(w.shape), None, *options)
    made = np.array([{} for _ in range(like.numel())], dtype=object).reshape(tuple(like.shape))
    left, right = array_of(x), array_of(w)
    for o, i, k in paired(tuple(x.shape), tuple(w.shape), tuple(like.shape), options):
        made[o] = add(made[o], mul(left[i], right[k]))
    if bias is not None:
        for o in np.ndindex(*made.shape):
            made[o] = add(made[o], array_of(bias)[o[1]])
    return Symbols(made)


def convolution_backward(above: Any, x: Any, w: Any, biased: Any, *options: Any) -> list[Any]:
    """Its gradients: each product of two of the three goes to the third."""
    *rest, wanted = options
    blank = [np.array([{} for _ in range(t.numel())], dtype=object).reshape(tuple(t.shape)) for t in (x, w)]
    g, left, right = array_of(above), array_of(x), array_of(w)
    for o, i, k in paired(tuple(x.shape), tuple(w.shape), tuple(above.shape), rest):
        blank[0][i] = add(blank[0][i], mul(g[o], right[k]))
        blank[1][k] = add(blank[1][k], mul(g[o], left[i]))
    bias = reduced(total, above, [0, *range(2, above.dim())])
    return [m if want else None for m, want in zip((*map(Symbols, blank), bias), wanted, strict=True)]


def pooled(x: Any, space: int, windows: Function) -> list[Symbols]:
    """The largest of each window of the last axes, and its place among the elements of the picture."""
    array = array_of(x)
    sizes = array.shape[-space:]
    spots = [windows(axis, size) for axis, size in enumerate(sizes)]
    shape = (*array.shape[:-space], *map(len, spots))
    values, places = np.empty(shape, dtype=object), np.empty(shape, dtype=object)
    for at in np.ndindex(*shape):
        own = list(itertools.product(*(spots[axis][i] for axis, i in enumerate(at[-space:]))))
        held = tuple(frozen(array[(*at[:-space], *spot)]) for spot in own)
        flat = tuple(int(np.ravel_multi_index(spot, sizes)) for spot in own)
        values[at], places[at] = atom("amax", held), atom("place", flat, held)
    return [Symbols(values), Symbols(places, torch.int64)]


def max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = None, dilation: Any = None, ceil: Any = False
) -> Any:
    """The places of windows. Source: torch.nn.MaxPool2d and MaxPool3d."""
    space = len(kernel)
    padding, dilation = padding or [0] * space, dilation or [1] * space
    torch_own = getattr(torch.ops.aten, f"max_pool{space}d_with_indices")
    like = torch_own(torch.zeros(x.shape), kernel, stride, padding, dilation, ceil)[0]
    step = list(stride) or list(kernel)

    def windows(axis: int, size: int) -> list[list[int]]:
        starts = [i * step[axis] - padding[axis] for i in range(like.shape[axis - space])]
        spots = [[s + j * dilation[axis] for j in range(kernel[axis])] for s in starts]
        return [[i for i in own if 0 <= i < size] for own in spots]

    return pooled(x, space, windows)


def adaptive_max_pool(x: Any, out: Sequence[int]) -> Any:
    """Windows that share an axis evenly. Source: torch.nn.AdaptiveMaxPool2d and AdaptiveMaxPool3d."""

    def windows(axis: int, size: int) -> list[list[int]]:
        n = out[axis]
        return [list(range(i * size // n, -(-(i + 1) * size // n))) for i in range(n)]

    return pooled(x, len(out), windows)


def unpooled(above: Any, x: Any, *rest: Any) -> Any:
    """What comes from above is added at the place of the largest element."""
    space = x.dim() - 2
    blank = torch.zeros((*x.shape[:2], math.prod(x.shape[2:])), dtype=torch.float64)
    found = blank.scatter_add(2, rest[-1].flatten(-space), above.flatten(-space))
    return found.reshape(tuple(x.shape))


def shrunk_back(above: Any, x: Any, limit: float) -> Any:
    """The gradient of a shrinkage: nought between its limits."""
    return torch.where((x >= -limit) & (x <= limit), 0.0, above)


def scores_of(q: Any, k: Any, causal: bool, mask: Any, scale: float | None) -> tuple[Any, Any, float]:
    """The scores of queries and keys, which of them count, and the scale."""
    by = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = torch.matmul(q, k.transpose(-1, -2)) * by
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.float64)
    return scores if mask is None else scores + mask, seen.tril() if causal else seen, by


def attention(
    q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """softmax(q k^T * scale + mask) v, and the logarithms of its sums."""
    scores, seen, _ = scores_of(q, k, causal, attn_mask, scale)
    shares = scores.exp() * seen
    sums = shares.sum(-1, keepdim=True)
    return [torch.matmul(shares / sums, v), sums.squeeze(-1).log()]


def attention_backward(
    above: Any, q: Any, k: Any, v: Any, out: Any, log_sums: Any, dropout: float, causal: bool, *, attn_mask: Any = None,
    scale: float | None = None,
) -> list[Any]:  # fmt: skip
    """The gradients of softmax(q k^T * scale + mask) v, from the logarithms of its sums."""
    scores, seen, by = scores_of(q, k, causal, attn_mask, scale)
    shares = (scores - log_sums.unsqueeze(-1)).exp() * seen
    inner = torch.matmul(above, v.transpose(-1, -2)) - (above * out).sum(-1, keepdim=True)
    score = shares * inner
    down = torch.matmul(shares.transpose(-1, -2), above)
    return [torch.matmul(score, k) * by, torch.matmul(score.transpose(-1, -2), q) * by, down]


def weight_norm_backward(above: Any, v: Any, g: Any, norms: Any, dim: int) -> list[Any]:
    """The gradients of g * v / |v|, along an axis."""
    axes = [i for i in range(v.dim()) if i != dim]
    inner = (above * v).sum(axes, keepdim=True)
    return [g / norms * (above - v * inner / (norms * norms)), inner / norms]


DEFINITIONS |= {
    torch.ops.prims.convert_element_type.default: cast,
    aten.copy.default: copied,
    aten.copy_.default: copied_into,
    aten.mm.default: product_of,
    aten.bmm.default: product_of,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool3d_with_indices.default: max_pool,
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    aten.max_pool2d_with_indices_backward.default: unpooled,
    aten.max_pool3d_with_indices_backward.default: unpooled,
    aten.adaptive_max_pool2d_backward.default: unpooled,
    aten.adaptive_max_pool3d_backward.default: unpooled,
    aten.hardshrink_backward.default: shrunk_back,
    aten.softshrink_backward.default: shrunk_back,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
}
