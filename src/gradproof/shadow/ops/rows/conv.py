"""Products of matrices and vectors, triangles, diagonals; convolutions as products over windows, and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value, where
from gradproof.shadow.ops.rows.activation import gelu
from gradproof.shadow.ops.rows.common import constant, scaled
from gradproof.shadow.ops.rows.geometry import Index, Plane, adaptive, gathered, pile, spilled, spread_out
from gradproof.shadow.ops.table import Example, Int, Ops, T, register

ALL = [True, True, True]
IMAGE = T((2, 4, 5, 4))


class Shape:
    """A convolution's geometry: windows of the plane of its (untransposed) input."""

    def __init__(self, plane: Plane, groups: int) -> None:
        self.plane, self.groups, self.index = plane, groups, plane.index()
        self.size = math.prod(plane.spatial)

    def columns(self, k: Ops, x: Value) -> Value:
        """(N, C, ...) to (G, N * windows, C/G * members)."""
        n, c = x.shape[:2]
        windows, members = self.index.shape
        found = gathered(k, x.reshape(n, c, self.size), self.index)
        grouped = found.reshape(n, self.groups, c // self.groups, windows, members).transpose(1, 0, 3, 2, 4)
        return grouped.reshape(self.groups, n * windows, -1)

    def rows(self, y: Value) -> Value:
        """(N, O, windows...) to (G, N * windows, O/G)."""
        n, o = y.shape[:2]
        windows = self.index.shape[0]
        grouped = y.reshape(n, self.groups, o // self.groups, windows).transpose(1, 0, 3, 2)
        return grouped.reshape(self.groups, n * windows, -1)

    def kernel(self, w: Value) -> Value:
        """(O, C/G, ...) to (G, O/G, C/G * members)."""
        return w.reshape(self.groups, w.shape[0] // self.groups, -1)

    def forward(self, k: Ops, x: Value, w: Value) -> Value:
        """The convolution."""
        n, o = x.shape[0], w.shape[0]
        out = self.columns(k, x) @ self.kernel(w).swapaxes(1, 2)
        windows = self.index.shape[0]
        placed = out.reshape(self.groups, n, windows, o // self.groups).transpose(1, 0, 3, 2)
        return placed.reshape(n, o, *self.plane.extents())

    def to_input(self, k: Ops, y: Value, w: Value) -> Value:
        """Its transpose in the input: what reaches every place of the plane."""
        n, per = y.shape[0], w.shape[1]
        windows, members = self.index.shape
        columns = (self.rows(y) @ self.kernel(w)).reshape(self.groups, n, windows, per, members)
        moved = columns.transpose(1, 0, 3, 2, 4)
        return spilled(k, moved, self.index, self.size).reshape(n, self.groups * per, *self.plane.spatial)

    def to_weight(self, k: Ops, y: Value, x: Value, shape: Sequence[int]) -> Value:
        """Its transpose in the weight."""
        return (self.rows(y).swapaxes(1, 2) @ self.columns(k, x)).reshape(*shape)


def laid(
    x: Value, w: Value, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Shape:
    """The geometry. For a transposed convolution the plane is that of its output."""
    rank = x.ndim - 2
    spatial: Sequence[int] = x.shape[2:]
    if transposed:
        terms = (spread_out(v, rank) for v in (stride, padding, dilation, extra))
        spatial = [
            (n - 1) * s - 2 * p + d * (size - 1) + e + 1
            for n, size, s, p, d, e in zip(spatial, w.shape[2:], *terms, strict=True)
        ]
    return Shape(Plane.of(spatial, w.shape[2:], stride, padding, dilation), groups)


def biased(out: Value, bias: Any) -> Value:
    """With a bias by channel, where there is one."""
    if bias is None:
        return out
    added: Value = bias.reshape(1, -1, *(1,) * (out.ndim - 2))
    return out + added


@register(
    "aten.convolution",
    examples=[
        Example(IMAGE, T((2, 4, 3, 3)), T((2,)), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        Example(IMAGE, T((6, 2, 3, 2)), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
        Example(IMAGE, T((4, 1, 3, 3)), T((4,)), [1], [1], [1], False, [0], 4),
        Example(T((2, 3, 5)), T((2, 3, 3)), T((2,)), [1], [0], [1], False, [0], 1),
        Example(T((1, 1, 3, 3, 4)), T((2, 1, 2, 2, 2)), T((2,)), [1, 1, 1], [0, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
        Example(IMAGE, T((4, 2, 3, 3)), T((2,)), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
        Example(IMAGE, T((4, 2, 2, 3)), T((4,)), [1, 2], [0, 1], [2, 1], True, [0, 0], 2),
    ],
)  # fmt: skip
def convolution(
    k: Ops, x: Value, w: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any,
    groups: int,
) -> Value:  # fmt: skip
    """A convolution, or the transpose of one."""
    shape = laid(x, w, stride, padding, dilation, transposed, extra, groups)
    return biased(shape.to_input(k, x, w) if transposed else shape.forward(k, x, w), bias)


@register(
    "aten.cudnn_convolution",
    examples=[Example(IMAGE, T((2, 4, 3, 3)), [1, 1], [1, 1], [1, 1], 1, False, True, False)],
)
def cudnn_convolution(
    k: Ops, x: Value, w: Value, padding: Any, stride: Any, dilation: Any, groups: int, *kernel_choices: bool
) -> Value:
    """The same, without a bias."""
    found: Value = convolution(k, x, w, None, stride, padding, dilation, False, 0, groups)
    return found


@register(
    "aten.convolution_backward",
    examples=[
        Example(T((2, 2, 5, 4)), IMAGE, T((2, 4, 3, 3)), [2], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, ALL),
        Example(T((2, 6, 3, 2)), IMAGE, T((6, 2, 3, 2)), [6], [2, 1], [1, 0], [1, 2], False, [0, 0], 2, ALL),
        Example(T((2, 2, 3)), T((2, 3, 5)), T((2, 3, 3)), [0], [1], [0], [1], False, [0], 1, [False, True, False]),
        Example(T((2, 2, 10, 7)), IMAGE, T((4, 2, 3, 3)), [2], [2, 2], [1, 1], [1, 1], True, [1, 0], 1, ALL),
        Example(T((2, 4, 7, 7)), IMAGE, T((4, 2, 2, 3)), [4], [1, 2], [0, 1], [2, 1], True, [0, 0], 2, ALL),
    ],
)
def convolution_backward(
    k: Ops, g: Value, x: Value, w: Value, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Gradients of input, weight and bias, those that are asked for."""
    shape = laid(x, w, stride, padding, dilation, transposed, extra, groups)
    of_input = of_weight = of_bias = None
    if mask[0]:
        of_input = shape.forward(k, g, w) if transposed else shape.to_input(k, g, w)
    if mask[1]:
        of_weight = shape.to_weight(k, x, g, w.shape) if transposed else shape.to_weight(k, g, x, w.shape)
    if mask[2]:
        of_bias = g.sum([axis for axis in range(g.ndim) if axis != 1])
    return of_input, of_weight, of_bias


# Pools: means and recorded maxima over windows of the last dimensions.


def flat(x: Value, rank: int) -> Value:
    """The last `rank` dimensions as one."""
    return x.reshape(*x.shape[: x.ndim - rank], -1)


def mean_pool(k: Ops, x: Value, rank: int, index: Index, divisor: Any, out: Sequence[int]) -> Value:
    """Sums over windows, divided."""
    total = gathered(k, flat(x, rank), index).sum(-1)
    mean: Value = total / divisor
    return mean.reshape(*x.shape[: x.ndim - rank], *out)


def mean_pool_backward(k: Ops, g: Value, x: Any, rank: int, index: Index, divisor: Any) -> Value:
    """Each place gets its windows' gradients, divided."""
    each = flat(g, rank) / divisor
    wide = each.reshape(*each.shape, 1).expand((*each.shape, index.shape[1]))
    size = math.prod(x.shape[x.ndim - rank :])
    return spilled(k, wide, index, size).reshape(*x.shape)


def divisors(plane: Plane, index: Index, ceil: bool, include_pad: bool, override: int | None) -> Any:
    """What each window's sum is divided by."""
    if override is not None:
        return override
    return plane.padded_counts(ceil) if include_pad else (index >= 0).sum(1)


def avg_pool(rank: int) -> None:
    """The rows of the mean pool of a rank."""
    x = T((2, 3, 5, 4, 3)[: 2 + rank])
    two, three = [2] * rank, [3] * rank
    halved = T((*x.shape[:2], *(n // 2 for n in x.shape[2:])))
    padded = T((*x.shape[:2], *((n + 2 - 3 + 1) // 2 + 1 for n in x.shape[2:])))

    @register(
        f"aten.avg_pool{rank}d",
        examples=[
            Example(x, two, two), Example(x, three, two, [1] * rank, True, True),
            Example(x, three, two, [1] * rank, False, False), Example(x, two, two, [0] * rank, False, True, 3),
        ][: 4 if rank > 1 else 3],
    )  # fmt: skip
    def forward(
        k: Ops, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        include_pad: bool = True, override: int | None = None,
    ) -> Value:  # fmt: skip
        plane = Plane.of(x.shape[-rank:], kernel, stride, padding)
        index = plane.index(ceil)
        return mean_pool(k, x, rank, index, divisors(plane, index, ceil, include_pad, override), plane.extents(ceil))

    if rank == 1:
        return

    @register(
        f"aten.avg_pool{rank}d_backward",
        examples=[
            Example(halved, x, two, two, [0] * rank, False, True, None),
            Example(padded, x, three, two, [1] * rank, True, False, None),
        ],
    )
    def backward(
        k: Ops, g: Value, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, include_pad: bool,
        override: int | None,
    ) -> Value:  # fmt: skip
        plane = Plane.of(x.shape[-rank:], kernel, stride, padding)
        index = plane.index(ceil)
        return mean_pool_backward(k, g, x, rank, index, divisors(plane, index, ceil, include_pad, override))


def adaptive_avg_pool(rank: int) -> None:
    """The rows of the adaptive mean pool of a rank."""
    x = T((2, 3, 5, 4, 3)[: 2 + rank])
    out = [2, 3, 2][:rank]

    @register(f"aten._adaptive_avg_pool{rank}d", examples=[Example(x, out), Example(x, [1] * rank)])
    def forward(k: Ops, x: Value, size: Any) -> Value:
        wanted = spread_out(size, rank)
        index = adaptive(x.shape[-rank:], wanted)
        return mean_pool(k, x, rank, index, (index >= 0).sum(1), wanted)

    @register(f"aten._adaptive_avg_pool{rank}d_backward", examples=[Example(T((2, 3, *out)), x)])
    def backward(k: Ops, g: Value, x: Any) -> Value:
        index = adaptive(x.shape[-rank:], g.shape[-rank:])
        return mean_pool_backward(k, g, x, rank, index, (index >= 0).sum(1))


for _rank in (1, 2, 3):
    avg_pool(_rank)
for _rank in (2, 3):
    adaptive_avg_pool(_rank)


def chosen_maxima(k: Ops, x: Value, rank: int, index: Index) -> tuple[Value, Any]:
    """The members that the machine chose; that no other of their windows is larger is assumed."""
    at = k.seen(1)
    plane = flat(x, rank)
    lead = plane.shape[:-1]
    own = at.reshape(*lead, -1)
    grids = np.ogrid[tuple(slice(0, n) for n in lead)]
    value = plane[(*(g[..., None] for g in grids), own)]
    others = np.where(index < 0, own[..., None], index)
    members = plane[(*(g[..., None, None] for g in grids), others)]
    k.assume(
        members <= value.reshape(*value.shape, 1), "the maxima of the pool's windows are where this run found them"
    )
    return value.reshape(at.shape), at


def put_back(k: Ops, g: Value, x: Any, rank: int, at: Any) -> Value:
    """The gradient of recorded maxima."""
    size = math.prod(x.shape[x.ndim - rank :])
    lead = math.prod(x.shape[: x.ndim - rank])
    places = np.asarray(at).reshape(lead, -1) + np.arange(lead)[:, None] * size
    return pile(k, places.reshape(-1), g.reshape(-1), lead * size).reshape(*x.shape)


def max_pool(rank: int) -> None:
    """The rows of the maximum pool of a rank."""
    x = T((2, 3, 5, 4, 4)[: 2 + rank])
    ones, two, three = [1] * rank, [2] * rank, [3] * rank
    halved = (*x.shape[:2], *(n // 2 for n in x.shape[2:]))
    options = (two, two, [0] * rank, ones, False)
    indices = Int(halved, math.prod(x.shape[2:]))

    @register(
        f"aten.max_pool{rank}d_with_indices",
        examples=[Example(x, two, two), Example(x, three, two, ones, ones, True), Example(x, two, ones, ones, two)],
    )
    def forward(
        k: Ops, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> Any:
        return chosen_maxima(k, x, rank, Plane.of(x.shape[-rank:], kernel, stride, padding, dilation).index(ceil))

    @register(f"aten.max_pool{rank}d_with_indices_backward", examples=[Example(T(halved), x, *options, indices)])
    def backward(
        k: Ops, g: Value, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, at: Any
    ) -> Value:
        return put_back(k, g, x, rank, at)


def adaptive_max_pool(rank: int) -> None:
    """The rows of the adaptive maximum pool of a rank."""
    x = T((2, 3, 5, 4, 3)[: 2 + rank])
    out = [2, 3, 2][:rank]

    @register(f"aten.adaptive_max_pool{rank}d", examples=[Example(x, out)])
    def forward(k: Ops, x: Value, size: Any) -> Any:
        return chosen_maxima(k, x, rank, adaptive(x.shape[-rank:], spread_out(size, rank)))

    indices = Int((2, 3, *out), math.prod(x.shape[2:]))

    @register(f"aten.adaptive_max_pool{rank}d_backward", examples=[Example(T((2, 3, *out)), x, indices)])
    def backward(k: Ops, g: Value, x: Any, at: Any) -> Value:
        return put_back(k, g, x, rank, at)


for _rank in (2, 3):
    max_pool(_rank)
    adaptive_max_pool(_rank)

A, B, V, W = T((2, 3)), T((3, 4)), T((3,)), T((2,))
BATCH, OTHER = T((2, 2, 3)), T((2, 3, 4))
WEIGHTS: tuple[dict[str, Any], ...] = ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0})


def weighed(x: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """`beta x + alpha product`; a plain zero keeps `x` out."""
    whole = scaled(product, alpha)
    return whole if isinstance(beta, int | float) and beta == 0 else scaled(x, beta) + whole


@register("aten.mm", examples=[Example(A, B)])
def mm(k: Ops, x: Any, y: Any) -> Value:
    """Two matrices."""
    return k.lift(x) @ k.lift(y)


@register("aten.bmm", examples=[Example(BATCH, OTHER)])
def bmm(k: Ops, x: Any, y: Any) -> Value:
    """Two batches of matrices."""
    return k.lift(x) @ k.lift(y)


@register("aten.addmm", examples=[Example(T((4,)), A, B, **w) for w in WEIGHTS])
def addmm(k: Ops, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """A product and a bias."""
    return weighed(k.lift(x), k.lift(a) @ k.lift(b), beta, alpha)


@register("aten._addmm_activation", examples=[Example(T((4,)), A, B), Example(T((4,)), A, B, use_gelu=True)])
def addmm_activation(k: Ops, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False) -> Value:
    """A product, a bias, and ReLU or GELU (by the error function, as on a CPU; a GPU takes tanh, not seen here)."""
    y = weighed(k.lift(x), k.lift(a) @ k.lift(b), beta, alpha)
    if use_gelu:
        k.note("the GELU of _addmm_activation is that of a CPU")
    return gelu(k, y) if use_gelu else where(y < 0.0, constant(k, y.shape), y)


@register("aten.addbmm", examples=[Example(T((2, 4)), BATCH, OTHER, **w) for w in WEIGHTS])
def addbmm(k: Ops, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """The sum of a batch of products, and a bias."""
    return weighed(k.lift(x), (k.lift(a) @ k.lift(b)).sum(0), beta, alpha)


@register("aten.baddbmm", examples=[Example(T((2, 2, 4)), BATCH, OTHER, **w) for w in WEIGHTS])
def baddbmm(k: Ops, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """A batch of products, and biases."""
    return weighed(k.lift(x), k.lift(a) @ k.lift(b), beta, alpha)


@register("aten.mv", examples=[Example(A, V)])
def mv(k: Ops, a: Any, v: Any) -> Value:
    """A matrix and a vector."""
    return (k.lift(a) @ k.lift(v).reshape(-1, 1)).reshape(-1)


@register("aten.addmv", examples=[Example(W, A, V, **w) for w in WEIGHTS])
def addmv(k: Ops, x: Any, a: Any, v: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """A matrix, a vector and a bias."""
    return weighed(k.lift(x), mv(k, a, v), beta, alpha)


@register("aten.dot", "aten.vdot", examples=[Example(V, V)])
def dot(k: Ops, a: Any, b: Any) -> Value:
    """Two vectors."""
    return (k.lift(a).reshape(1, -1) @ k.lift(b).reshape(-1, 1)).reshape(())


@register("aten.ger", "aten.outer", examples=[Example(W, V)])
def ger(k: Ops, a: Any, b: Any) -> Value:
    """Every product of two vectors' elements."""
    return k.lift(a).reshape(-1, 1) * k.lift(b).reshape(1, -1)


@register("aten.addr", examples=[Example(A, W, V, **w) for w in WEIGHTS])
def addr(k: Ops, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """An outer product and a bias."""
    return weighed(k.lift(x), ger(k, a, b), beta, alpha)


@register("aten.linear", examples=[Example(T((2, 2, 3)), T((4, 3)), T((4,))), Example(A, T((4, 3)))])
def linear(k: Ops, x: Any, weight: Any, bias: Any = None) -> Value:
    """`x` times the transposed weight, and a bias."""
    y = k.lift(x) @ k.lift(weight).swapaxes(0, 1)
    return y if bias is None else y + k.lift(bias)


def kept(k: Ops, x: Value, mask: Any) -> Value:
    """The elements where a concrete mask holds, zeros elsewhere."""
    at = np.nonzero(np.broadcast_to(mask, x.shape))
    return constant(k, x.shape).put(at, x[at])


@register("aten.tril", examples=[Example(T((2, 3, 3))), Example(A, 1), Example(A, -1)])
def tril(k: Ops, x: Any, diagonal: int = 0) -> Value:
    """The lower triangle."""
    v = k.lift(x)
    return kept(k, v, np.tri(v.shape[-2], v.shape[-1], diagonal, dtype=bool))


@register("aten.triu", examples=[Example(T((2, 3, 3))), Example(A, 1), Example(A, -1)])
def triu(k: Ops, x: Any, diagonal: int = 0) -> Value:
    """The upper triangle."""
    v = k.lift(x)
    return kept(k, v, ~np.tri(v.shape[-2], v.shape[-1], diagonal - 1, dtype=bool))


@register("aten.trace", examples=[Example(A), Example(T((3, 3)))])
def trace(k: Ops, x: Any) -> Value:
    """The sum of the diagonal."""
    v = k.lift(x)
    at = np.arange(min(v.shape))
    return v[at, at].sum()


@register(
    "aten.diagonal_backward",
    examples=[Example(T((3,)), [3, 3], 0, 0, 1), Example(T((2, 2)), [2, 2, 3], 1, 1, 2), Example(W, [3, 2], -1, 0, 1)],
)
def diagonal_backward(k: Ops, grad: Any, sizes: Any, offset: int, dim1: int, dim2: int) -> Value:
    """Zeros with a diagonal in them."""
    g = k.lift(grad)
    flat = np.arange(int(np.prod(sizes))).reshape(tuple(sizes))
    at = np.unravel_index(np.diagonal(flat, offset, dim1, dim2), tuple(sizes))
    return constant(k, sizes).put(at, g)
