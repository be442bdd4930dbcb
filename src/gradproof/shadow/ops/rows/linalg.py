"""Products of matrices and vectors, triangles and diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradproof.shadow.algebra import Value, where
from gradproof.shadow.ops.rows.activation import gelu
from gradproof.shadow.ops.rows.common import constant, scaled
from gradproof.shadow.ops.table import Example, Ops, T, register

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
