"""Elements by integer index, sorted, scattered, gathered, embedded, dropped out; images made larger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Value, where
from gradproof.shadow.ops.rows.geometry import along, blank, concrete, grid, move, pile, placed
from gradproof.shadow.ops.rows.movement import on_axis
from gradproof.shadow.ops.table import Bool, Example, Int, Ops, T, register

X = T((2, 3, 4))
ROW = Int((2, 1, 4), 3)


def chosen(x: Any, indices: Sequence[Any]) -> Array:
    """Flat places that an advanced index of torch picks (None: the whole dimension)."""
    at = []
    for index in indices:
        part = slice(None) if index is None else concrete(index, "an index")
        if not isinstance(part, slice):
            part = part.astype(bool) if part.dtype == np.uint8 else part
            part = part if part.dtype == bool else part.astype(np.int64)
        at.append(part)
    return np.asarray(grid(x.shape)[tuple(at)])


ADVANCED = (
    Example(X, [None, Int((2,), 3)], overload="Tensor"),
    Example(X, [Int((2, 1), 2), None, Int((3,), 4)], overload="Tensor"),
    Example(X, [Int((2, 2), 2, -2)], overload="Tensor"),
)


@register("aten._unsafe_index", examples=ADVANCED)
@register("aten.index", examples=[*ADVANCED, Example(X, [Bool((2, 3))], overload="Tensor")])
def index(k: Ops, x: Any, indices: Sequence[Any]) -> Any:
    """Advanced indexing."""
    at = chosen(x, indices)
    return move(x, lambda p: p.reshape(-1)[at])


@register(
    "aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl",
    examples=[
        Example(X, [Int((1,), 2)], T((3, 4))), Example(X, [None, Int((5,), 3)], T((2, 5, 4)), True),
        Example(X, [Bool((2, 3))], T(())), Example(X, [Int((6,), 2), Int((6,), 3)], T((6, 1)), True),
    ],
)  # fmt: skip
def index_put(
    k: Ops, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False, unsafe: bool = False
) -> Any:
    """Written, or added, where an advanced index points. A tracked mask takes one value only."""
    if len(indices) == 1 and isinstance(indices[0], Value) and indices[0].truth:
        return masked_put(k, x, indices[0], values, accumulate)
    at = chosen(x, indices)
    flat = move(x, lambda p: p.reshape(-1))
    source = spread_values(k, x, values, at.shape)
    if accumulate:
        result = pile(k, at.reshape(-1), k.lift(source).reshape(-1), math.prod(x.shape), k.lift(flat))
    else:
        result = placed(flat, at, source)
    return move(result, lambda p: p.reshape(x.shape))


def spread_values(k: Ops, x: Any, values: Any, shape: Sequence[int]) -> Any:
    """What is written, in the sort of the tensor that it is written to, and in the shape of the places."""
    source = k.lift(values) if isinstance(x, Value) else values
    if isinstance(x, Value) and isinstance(source, Value) and source.truth and not x.truth:
        source = source * 1
    return move(source, lambda p: np.broadcast_to(p, tuple(shape)))


def masked_put(k: Ops, x: Value, mask: Value, values: Any, accumulate: bool) -> Value:
    """One value wherever a tracked mask holds."""
    value = k.lift(values)
    if value.size != 1:
        raise Beyond("a tracked mask chooses how many values are written: a data-dependent shape")
    wide = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)).expand(x.shape)
    one = value.reshape(()).expand(x.shape)
    return where(wide, x + one if accumulate else one, x)


@register("aten.index_select", examples=[Example(X, 1, Int((4,), 3)), Example(X, -1, Int((2,), 4))])
def index_select(k: Ops, x: Any, dim: int, index: Any) -> Any:
    """Places of a dimension."""
    at = concrete(index, "an index")
    return move(x, lambda p: np.take(p, at.reshape(-1), dim))


@register(
    "aten.index_add",
    examples=[Example(X, 1, Int((5,), 3), T((2, 5, 4))), Example(X, 2, Int((2,), 4), T((2, 3, 2)), alpha=0.5)],
)
def index_add(k: Ops, x: Value, dim: int, index: Any, source: Any, *, alpha: float = 1) -> Value:
    """Added to places of a dimension."""
    added = k.lift(source) if alpha == 1 else k.lift(source) * alpha
    rows, base = added.swapaxes(0, dim), x.swapaxes(0, dim)
    return pile(k, concrete(index, "an index").reshape(-1), rows, base.shape[0], base).swapaxes(0, dim)


@register("aten.index_copy", examples=[Example(X, 1, Int((1,), 3), T((2, 1, 4)))])
def index_copy(k: Ops, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Places of a dimension replaced."""
    return placed(x, on_axis(x.ndim, dim, concrete(index, "an index").reshape(-1)), source)


@register("aten.index_fill", examples=[Example(X, 1, Int((2,), 3), 0.5), Example(X, 0, Int((1,), 2), T(()))])
def index_fill(k: Ops, x: Any, dim: int, index: Any, value: Any) -> Any:
    """Places of a dimension filled."""
    at = on_axis(x.ndim, dim, concrete(index, "an index").reshape(-1))
    return placed(x, at, spread_values(k, x, value, x[at].shape))


@register(
    "aten.gather", examples=[Example(X, 1, ROW), Example(X, -1, Int((2, 3, 2), 4)), Example(T((3,)), 0, Int((5,), 3))]
)
def gather(k: Ops, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """Elements by an index along a dimension."""
    at = along(x.shape, dim, concrete(index, "an index"))
    return move(x, lambda p: p[at])


def flat_places(x: Any, dim: int, index: Any) -> tuple[Array, Array]:
    """The index as an array, and the flat places it names."""
    at = concrete(index, "an index")
    return at, np.asarray(grid(x.shape)[along(x.shape, dim, at)])


def part(source: Any, shape: Sequence[int]) -> Any:
    """The corner of a scatter's source that its index covers."""
    return source[tuple(slice(0, n) for n in shape)]


def added_at(k: Ops, x: Value, at: Array, source: Any) -> Value:
    """A sum at flat places."""
    total = pile(k, at.reshape(-1), k.lift(source).reshape(-1), x.size, x.reshape(-1))
    return total.reshape(x.shape)


@register("aten.scatter_add", examples=[Example(X, 1, Int((2, 5, 4), 3), T((2, 5, 4))), Example(X, 1, ROW, X)])
def scatter_add(k: Ops, x: Value, dim: int, index: Any, source: Any) -> Value:
    """Added by an index along a dimension."""
    at, places = flat_places(x, dim, index)
    return added_at(k, x, places, part(source, at.shape))


@register(
    "aten.scatter",
    examples=[
        Example(X, 1, ROW, T((2, 1, 4)), overload="src"), Example(X, 1, ROW, 0.5, overload="value"),
    ],
)  # fmt: skip
def scatter(k: Ops, x: Any, dim: int, index: Any, source: Any, *, reduce: str | None = None) -> Any:
    """Written by an index along a dimension."""
    at, places = flat_places(x, dim, index)
    values = spread_values(k, x, source, at.shape) if np.ndim(source) == 0 and not hasattr(source, "shape") else None
    values = part(source, at.shape) if values is None else values
    if reduce is not None:
        raise Beyond(f"scatter with reduce={reduce!r} has no meaning here; scatter_add has")
    flat = placed(move(x, lambda p: p.reshape(-1)), places, spread_values(k, x, values, at.shape))
    return move(flat, lambda p: p.reshape(x.shape))


@register(
    "aten.scatter_reduce",
    examples=[
        Example(X, 1, Int((2, 5, 4), 3), T((2, 5, 4)), "sum", overload="two"),
        Example(X, 1, Int((2, 5, 4), 3), T((2, 5, 4)), "mean", overload="two"),
        Example(X, 1, ROW, T((2, 1, 4)), "mean", overload="two", include_self=False),
    ],
)  # fmt: skip
def scatter_reduce(
    k: Ops, x: Value, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Value:
    """Sums and means by an index along a dimension. Raises Beyond for products and extremes."""
    if reduce not in ("sum", "mean"):
        raise Beyond(f"scatter_reduce with reduce={reduce!r} has no meaning here; sum and mean have")
    at, places = flat_places(x, dim, index)
    hits = np.bincount(places.reshape(-1), minlength=x.size).reshape(x.shape)
    base = x if include_self else where(hits > 0, k.lift(np.zeros(x.shape)), x)
    total = added_at(k, base, places, part(source, at.shape))
    return total / np.maximum(hits + include_self, 1) if reduce == "mean" else total


@register("aten.take", examples=[Example(X, Int((2, 3), 24, -24))])
def take(k: Ops, x: Any, index: Any) -> Any:
    """Elements by flat place."""
    at = concrete(index, "an index")
    return move(x, lambda p: p.reshape(-1)[at])


@register("aten.put", examples=[Example(X, Int((1,), 24), T((1,))), Example(X, Int((40,), 24, -24), T((40,)), True)])
def put(k: Ops, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Written, or added, by flat place."""
    at = concrete(index, "an index") % math.prod(x.shape)
    if accumulate:
        return added_at(k, x, at, source)
    flat = placed(move(x, lambda p: p.reshape(-1)), at, source)
    return move(flat, lambda p: p.reshape(x.shape))


@register("aten.masked_select", examples=[Example(X, Bool((2, 3, 1))), Example(X, Bool((4,)))])
def masked_select(k: Ops, x: Any, mask: Any) -> Any:
    """Elements under a recorded mask."""
    held = concrete(mask, "a mask")
    shape = np.broadcast_shapes(x.shape, held.shape)
    return move(x, lambda p: np.broadcast_to(p, shape)[np.broadcast_to(held, shape)])


@register("aten.masked_scatter", examples=[Example(X, Bool((2, 3, 1)), T((24,)))])
def masked_scatter(k: Ops, x: Any, mask: Any, source: Any) -> Any:
    """Elements under a recorded mask replaced, in order."""
    held = np.broadcast_to(concrete(mask, "a mask"), x.shape)
    count = int(held.sum())
    return placed(x, held, move(source, lambda p: p.reshape(-1)[:count]))


@register("aten.masked_scatter_backward", examples=[Example(X, Bool((2, 3, 4)), [2, 3, 4])])
def masked_scatter_backward(k: Ops, g: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """The gradient of what was taken; the rest was not used."""
    held = np.broadcast_to(concrete(mask, "a mask"), g.shape)
    flat = placed(blank(k, g, [math.prod(sizes)]), slice(0, int(held.sum())), g[held])
    return move(flat, lambda p: p.reshape(tuple(sizes)))


@register("aten.nonzero", examples=[Example(Int((2, 3), 4, 1))])
def nonzero(k: Ops, x: Any) -> Any:
    """Places that differ from zero, of plain integers only."""
    return np.argwhere(concrete(x, "nonzero"))


def ordered(k: Ops, values: Value, dim: int, descending: bool) -> None:
    """State that values stand in order along a dimension."""
    if values.ndim and values.shape[dim] > 1:
        first = values[on_axis(values.ndim, dim, slice(None, -1))]
        second = values[on_axis(values.ndim, dim, slice(1, None))]
        k.assume(second <= first if descending else first <= second, "the order of the sorted elements is this run's")


@register(
    "aten.sort",
    examples=[Example(X), Example(X, 1, True), Example(X, stable=True, dim=0, descending=True, overload="stable")],
)
def sort(k: Ops, x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    """In the order that the machine found, which is assumed."""
    at = k.seen(1)
    values = gather(k, x, dim, at) if x.ndim else x
    if isinstance(values, Value):
        ordered(k, values, dim, descending)
    return values, at


@register("aten.topk", examples=[Example(X, 2), Example(X, 1, 1, False), Example(X, 4, -1)])
def topk(k: Ops, x: Any, count: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The elements that the machine chose; that they are the extreme ones, in order, is assumed."""
    at = k.seen(1)
    values = gather(k, x, dim, at) if x.ndim else x
    if isinstance(values, Value) and count and values.ndim:
        if sorted:
            ordered(k, values, dim, largest)
        assume_extreme(k, x, values, at, dim, largest)
    return values, at


def assume_extreme(k: Ops, x: Value, values: Value, at: Array, dim: int, largest: bool) -> None:
    """State that no element that was left out is beyond one that was chosen."""
    rest = np.ones(x.shape, dtype=bool)
    rest[along(x.shape, dim, at)] = False
    taken, left = values.swapaxes(dim, -1), x.swapaxes(dim, -1)
    others = x.shape[dim] - at.shape[dim]
    if others:
        out = left[rest.swapaxes(dim, -1)].reshape(*left.shape[:-1], 1, others)
        inside = taken.reshape(*taken.shape, 1)
        k.assume(out <= inside if largest else inside <= out, "the chosen extreme elements are this run's")


@register("aten.kthvalue", examples=[Example(X, 2), Example(X, 1, 1, True)])
def kthvalue(k: Ops, x: Value, count: int, dim: int = -1, keep: bool = False) -> Any:
    """The element that the machine chose. Raises Beyond in a domain of symbols only through its assumption."""
    at = k.seen(1)
    wide = at if keep or not x.ndim else np.expand_dims(at, dim)
    value = gather(k, x, dim, wide) if x.ndim else x
    if x.ndim:
        below = (x < value).sum(dim)
        above = (x <= value).sum(dim)
        k.assume((below < count) & (above >= count), "the chosen order statistic is this run's")
    return value if keep or not x.ndim else value.reshape(at.shape), at


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
