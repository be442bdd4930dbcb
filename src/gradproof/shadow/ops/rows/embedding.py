"""Embeddings, dropout by a recorded mask, and images made larger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Value, where
from gradproof.shadow.ops.rows.geometry import concrete, move, pile
from gradproof.shadow.ops.table import Bool, Example, Int, Ops, T, register

TABLE = T((5, 4))
TOKENS = Int((2, 3), 5)
BAGS = Int((6,), 5)


@register("aten.embedding", examples=[Example(TABLE, TOKENS), Example(TABLE, TOKENS, 2)])
def embedding(
    k: Ops, weight: Any, tokens: Any, padding: int = -1, scale_by_count: bool = False, sparse: bool = False
) -> Any:
    """Rows by recorded token ids."""
    at = concrete(tokens, "the token ids")
    return move(weight, lambda p: p[at])


@register(
    "aten.embedding_dense_backward",
    examples=[Example(T((2, 3, 4)), TOKENS, 5, -1, False), Example(T((2, 7, 4)), Int((2, 7), 5), 5, 2, True)],
)
def embedding_backward(k: Ops, g: Value, tokens: Any, rows: int, padding: int, scale_by_count: bool) -> Value:
    """Each row gets the sum of the gradients where its token stood; the padding row gets none."""
    at = concrete(tokens, "the token ids").reshape(-1)
    values = g.reshape(at.size, -1)
    if scale_by_count:
        values = values / np.bincount(at, minlength=rows)[at][:, None]
    return pile(k, np.where(at == padding, -1, at), values, rows)


# Bags: sums and means of rows between offsets.

SUM, MEAN = 0, 1


def bag_of(offsets: Array, count: int, include_last: bool) -> tuple[Array, int]:
    """The bag of each index, and the number of bags."""
    starts = offsets[:-1] if include_last else offsets
    return np.searchsorted(starts, np.arange(count), side="right") - 1, len(starts)


def mixed(weights: Any, values: Value) -> Value:
    """Rows times their own weights."""
    return values if weights is None else values * weights.reshape(-1, 1)


@register(
    "aten._embedding_bag", "aten._embedding_bag_forward_only",
    examples=[Example(TABLE, BAGS, Int((2,), 1), False, 0), Example(TABLE, BAGS, Int((1,), 1), False, 1)],
)  # fmt: skip
def embedding_bag(
    k: Ops, weight: Value, indices: Any, offsets: Any, scale_by_count: bool = False, mode: int = SUM,
    sparse: bool = False, weights: Any = None, include_last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Sums or means of rows by bag; the last three outputs are the machine's bookkeeping. Raises Beyond for maxima."""
    if mode not in (SUM, MEAN):
        raise Beyond("an embedding bag of maxima")
    at = concrete(indices, "the token ids").reshape(-1)
    bags, count = bag_of(concrete(offsets, "the offsets"), at.size, include_last)
    kept = np.where(at == padding, -1, bags)
    total = pile(k, kept, mixed(weights, weight[at]), count)
    if mode == MEAN:
        total = total / np.maximum(np.bincount(kept[kept >= 0], minlength=count), 1)[:, None]
    return total, k.seen(1), k.seen(2), k.seen(3)


@register(
    "aten._embedding_bag_backward",
    examples=[
        Example(
            T((1, 4)), BAGS, Int((1,), 1), Int((6,), 1), Int((1,), 7, 6), Int((1,), 1), 5, False, 1, False, None,
            overload="default",
        )
    ],
)  # fmt: skip
def embedding_bag_backward(
    k: Ops, g: Value, indices: Any, offsets: Any, bags: Any, sizes: Any, maxima: Any, rows: int, scale_by_count: bool,
    mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> Value:  # fmt: skip
    """Each row gets its bags' gradients. Raises Beyond for maxima and for a scale by frequency."""
    if mode not in (SUM, MEAN) or scale_by_count:
        raise Beyond("the gradient of an embedding bag of maxima, or scaled by frequency")
    at = concrete(indices, "the token ids").reshape(-1)
    known = np.size(bags) == at.size
    bag = concrete(bags, "the bags") if known else bag_of(concrete(offsets, "the offsets"), at.size, False)[0]
    values = mixed(weights, g[bag])
    if mode == MEAN:
        values = values / np.maximum(concrete(sizes, "the bags' sizes"), 1)[bag][:, None]
    return pile(k, np.where(at == padding, -1, at), values, rows)


# Dropout.


@register("aten.native_dropout", examples=[Example(T((3, 4)), 0.25, True), Example(T((3, 4)), 0.25, False)])
def native_dropout(k: Ops, x: Value, p: float, train: bool | None) -> Any:
    """The recorded mask, and what it leaves, scaled by the machine's 1 / (1 - p)."""
    mask = k.seen(1)
    if train is False:
        return x, mask
    kept = where(mask.astype(bool), x, k.lift(np.zeros(x.shape)))
    return kept * (0.0 if p == 1 else 1.0 / (1.0 - p)), mask


@register("aten.native_dropout_backward", examples=[Example(T((3, 4)), Bool((3, 4)), 1.25)])
def native_dropout_backward(k: Ops, g: Value, mask: Any, scale: float) -> Value:
    """The gradient under the same mask."""
    held = mask if isinstance(mask, Value) else np.asarray(mask).astype(bool)
    return where(held, g, k.lift(np.zeros(g.shape))) * scale


# Images made larger (or smaller). The weights of a linear one are the machine's constants.


def nearest(n: int, m: int, scale: float | None) -> NDArray[np.int64]:
    """The place from which each of `m` is taken, among `n`, in torch's float32 arithmetic."""
    step = np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(n) / np.float32(m)
    places = np.floor(np.arange(m, dtype=np.float32) * step).astype(np.int64)
    return np.asarray(np.minimum(places, n - 1), dtype=np.int64)


def nearest_places(spatial: Sequence[int], size: Sequence[int], scales: Sequence[Any]) -> NDArray[np.int64]:
    """Flat places in the small image of the elements of the large one."""
    lines = [nearest(n, m, s) for n, m, s in zip(spatial, size, scales, strict=True)]
    return np.asarray(np.ravel_multi_index(tuple(np.meshgrid(*lines, indexing="ij")), tuple(spatial)), dtype=np.int64)


def upsample_nearest(rank: int) -> None:
    """The rows of one rank."""
    x, size = T((2, 3, 3, 4, 2)[: 2 + rank]), [5, 7, 4][:rank]
    doubled = [2 * n for n in x.shape[2:]]

    @register(
        f"aten.upsample_nearest{rank}d", examples=[Example(x, size), Example(x, doubled, *[2.0] * rank)],
    )  # fmt: skip
    def forward(k: Ops, x: Value, size: Sequence[int], *scales: Any) -> Value:
        at = nearest_places(x.shape[2:], size, scales or (None,) * rank)
        return x.move(lambda p: p.reshape(*p.shape[:2], -1)[..., at])

    @register(
        f"aten.upsample_nearest{rank}d_backward",
        examples=[Example(T((2, 3, *size)), size, list(x.shape))],
    )
    def backward(k: Ops, g: Value, size: Sequence[int], shape: Sequence[int], *scales: Any) -> Value:
        at = nearest_places(shape[2:], size, scales or (None,) * rank).reshape(-1)
        lead = shape[0] * shape[1]
        rows = g.reshape(lead, at.size).swapaxes(0, 1)
        return pile(k, at, rows, math.prod(shape[2:])).swapaxes(0, 1).reshape(*shape)


for _rank in (1, 2, 3):
    upsample_nearest(_rank)


def linear_matrix(n: int, m: int, align: bool, scale: float | None) -> NDArray[np.float64]:
    """(m, n): what each of `m` takes from each of `n`."""
    if align:
        at = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        step = 1.0 / scale if scale is not None and scale > 0 else n / m
        at = np.maximum((np.arange(m) + 0.5) * step - 0.5, 0.0)
    low = np.minimum(at.astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    part = at - low
    matrix = np.zeros((m, n))
    np.add.at(matrix, (np.arange(m), low), 1.0 - part)
    np.add.at(matrix, (np.arange(m), high), part)
    return matrix


def matrices(
    spatial: Sequence[int], size: Sequence[int], align: bool, scales: Sequence[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One matrix for rows, one for columns."""
    h, w = (*scales, None, None)[:2]
    return linear_matrix(spatial[0], size[0], align, h), linear_matrix(spatial[1], size[1], align, w)


@register(
    "aten.upsample_bilinear2d",
    examples=[Example(T((1, 2, 3, 4)), [6, 8], False, 2.0, 2.0), Example(T((1, 2, 3, 4)), [5, 7], True)],
)
def upsample_bilinear(k: Ops, x: Value, size: Sequence[int], align: bool, *scales: Any) -> Value:
    """A product with one matrix on either side."""
    rows, columns = matrices(x.shape[2:], size, align, scales)
    return k.lift(rows[None, None]) @ x @ k.lift(columns.T[None, None])


@register(
    "aten.upsample_bilinear2d_backward", examples=[Example(T((1, 2, 6, 8)), [6, 8], [1, 2, 3, 4], False, 2.0, 2.0)]
)
def upsample_bilinear_backward(
    k: Ops, g: Value, size: Sequence[int], shape: Sequence[int], align: bool, *scales: Any
) -> Value:
    """The transposed product."""
    rows, columns = matrices(shape[2:], size, align, scales)
    return k.lift(rows.T[None, None]) @ g @ k.lift(columns[None, None])
