"""Elements that move: joins, views, pads, shuffles; and copies, conversions, constants, choices and logic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, concatenate, number, stack as stacked, where
from gradproof.shadow.ops.rows.common import constant, truncated, truth
from gradproof.shadow.ops.rows.geometry import (
    Plane,
    blank,
    gathered,
    grid,
    move,
    pairs,
    pile,
    placed,
    spilled,
    spread_out,
)
from gradproof.shadow.ops.rows.pointwise import endless, tell
from gradproof.shadow.ops.table import Bool, Example, Int, Ops, T, register
from gradproof.shadow.tape import FLOATS, Ref

X = T((2, 3, 4))
P = T((1, 2, 4, 5))


def one_sort(k: Ops, tensors: Sequence[Any]) -> list[Any]:
    """Tensors of one sort: with a Value among them, Values."""
    if not any(isinstance(t, Value) for t in tensors):
        return [np.asarray(t) for t in tensors]
    values = [k.lift(t) for t in tensors]
    return values if all(v.truth for v in values) else [number_of(k, v) for v in values]


def number_of(k: Ops, x: Value) -> Value:
    """A truth value as a number."""
    return x * 1 if x.truth else x


@register(
    "aten.cat",
    examples=[Example([X, T((2, 1, 4))], 1), Example([T((0,)), X, X], -1), Example([T((3,)), T((2,))])],
)
def cat(k: Ops, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Joined along a dimension; empty one-dimensional tensors are passed over, as torch does."""
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    joined = one_sort(k, kept)
    axis = dim % joined[0].ndim
    return concatenate(joined, axis) if isinstance(joined[0], Value) else np.concatenate(joined, axis)


@register("aten.stack", examples=[Example([X, X], 1), Example([X, X, X]), Example([T(()), T(())], -1)])
def stack(k: Ops, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Joined along a new dimension."""
    joined = one_sort(k, tensors)
    axis = dim % (joined[0].ndim + 1)
    return stacked(joined, axis) if isinstance(joined[0], Value) else np.stack(joined, axis)


@register("aten.repeat", examples=[Example(X, [2, 1, 1]), Example(T((3,)), [2, 2])])
def repeat(k: Ops, x: Any, repeats: Sequence[int]) -> Any:
    """As NumPy's tile."""
    return move(x, lambda p: np.tile(p, tuple(repeats)))


@register("aten.roll", examples=[Example(X, [1], [1]), Example(X, [5]), Example(X, [1, -1], [0, 2])])
def roll(k: Ops, x: Any, shifts: Any, dims: Any = ()) -> Any:
    """Rotated; without dimensions, flattened."""
    axes = tuple(np.ravel(dims).astype(int))
    steps = tuple(int(s) for s in np.ravel(shifts))
    return move(x, lambda p: np.roll(p, steps, axes) if axes else np.roll(p, steps[0]))


@register("aten.flip", examples=[Example(X, [1]), Example(X, [0, -1])])
def flip(k: Ops, x: Any, dims: Sequence[int]) -> Any:
    """Reversed along dimensions."""
    return move(x, lambda p: np.flip(p, tuple(dims)))


@register(
    "aten._unsafe_view", "aten.view_copy", "aten._reshape_copy", examples=[Example(X, [6, 4]), Example(X, [2, -1])]
)
def view(k: Ops, x: Any, size: Sequence[int]) -> Any:
    """Another shape."""
    return move(x, lambda p: p.reshape(tuple(size)))


@register("aten.detach_copy", "aten.alias_copy", "aten.lift", "aten.lift_fresh_copy", examples=[Example(X)])
def same_elements(k: Ops, x: Any) -> Any:
    """The same."""
    return x


@register("aten.expand_copy", examples=[Example(T((3, 1)), [2, 3, 4]), Example(T((3, 1)), [-1, 4])])
def expand_copy(k: Ops, x: Any, size: Sequence[int], implicit: bool = False) -> Any:
    """Broadcast; -1 keeps an extent."""
    old = (1,) * (len(size) - x.ndim) + x.shape
    shape = tuple(o if n == -1 else n for n, o in zip(size, old, strict=True))
    return move(x, lambda p: np.broadcast_to(p, shape))


@register("aten.permute_copy", examples=[Example(X, [2, 0, 1])])
def permute_copy(k: Ops, x: Any, dims: Sequence[int]) -> Any:
    """Dimensions in another order."""
    return move(x, lambda p: p.transpose(tuple(dims)))


@register("aten.transpose_copy", examples=[Example(X, 0, 2)])
def transpose_copy(k: Ops, x: Any, a: int, b: int) -> Any:
    """Two dimensions exchanged."""
    return move(x, lambda p: p.swapaxes(a, b))


@register("aten.t_copy", examples=[Example(T((2, 3)))])
def t_copy(k: Ops, x: Any) -> Any:
    """A matrix transposed."""
    return move(x, lambda p: p.T)


@register("aten.unsqueeze_copy", examples=[Example(X, 1), Example(X, -1)])
def unsqueeze_copy(k: Ops, x: Any, dim: int) -> Any:
    """A dimension of one element more."""
    return move(x, lambda p: np.expand_dims(p, dim))


@register("aten.squeeze_copy", examples=[Example(T((2, 1, 3))), Example(T((2, 1, 3)), 1), Example(T((2, 1, 3)), 0)])
def squeeze_copy(k: Ops, x: Any, dim: Any = None) -> Any:
    """Without dimensions of one element."""
    chosen = range(x.ndim) if dim is None else [int(d) % x.ndim for d in np.ravel(dim)]
    shape = tuple(n for axis, n in enumerate(x.shape) if n != 1 or axis not in chosen)
    return move(x, lambda p: p.reshape(shape))


def cut(start: int | None, end: int | None, step: int) -> slice:
    """A slice as torch means it."""
    return slice(0 if start is None else start, None if end is None or end >= 2**62 else end, step)


def on_axis(ndim: int, dim: int, at: Any) -> tuple[Any, ...]:
    """An index along one dimension."""
    return (*(slice(None),) * (dim % ndim), at)


@register("aten.slice_copy", examples=[Example(X, 1, 1, 3), Example(X, 2, 0, 9223372036854775807, 2)])
def slice_copy(k: Ops, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """A part of a dimension."""
    return x[on_axis(x.ndim, dim, cut(start, end, step))]


@register("aten.select_copy", examples=[Example(X, 1, -1)])
def select_copy(k: Ops, x: Any, dim: int, index: int) -> Any:
    """One place of a dimension."""
    return x[on_axis(x.ndim, dim, index)]


@register("aten.unbind_copy", examples=[Example(X, 1)])
def unbind_copy(k: Ops, x: Any, dim: int = 0) -> Any:
    """Every place of a dimension."""
    return ([x[on_axis(x.ndim, dim, i)] for i in range(x.shape[dim])],)


@register("aten.split_with_sizes_copy", "aten.unsafe_split_with_sizes", examples=[Example(X, [1, 2], 1)])
def split_with_sizes(k: Ops, x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Parts of given lengths."""
    ends = np.cumsum(sizes)
    return ([x[on_axis(x.ndim, dim, slice(int(e) - n, int(e)))] for e, n in zip(ends, sizes, strict=True)],)


@register("aten.split_copy", "aten.unsafe_split", examples=[Example(X, 2, 1), Example(X, 1)])
def split(k: Ops, x: Any, size: int, dim: int = 0) -> Any:
    """Parts of one length, the last perhaps shorter."""
    n = x.shape[dim]
    return ([x[on_axis(x.ndim, dim, slice(i, min(i + size, n)))] for i in range(0, max(n, 1), size)],)


# Gradients of views: zeros, written through the view.


@register("aten.slice_backward", examples=[Example(T((2, 2, 4)), [2, 3, 4], 1, 0, 2, 1)])
def slice_backward(k: Ops, g: Any, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    """Zeros around the gradient of a slice."""
    return placed(blank(k, g, sizes), on_axis(len(sizes), dim, cut(start, end, step)), g)


@register("aten.select_backward", examples=[Example(T((2, 4)), [2, 3, 4], 1, -1)])
def select_backward(k: Ops, g: Any, sizes: Sequence[int], dim: int, index: int) -> Any:
    """Zeros around the gradient of one place."""
    return placed(blank(k, g, sizes), on_axis(len(sizes), dim, index), g)


def diagonal(shape: Sequence[int], offset: int, a: int, b: int) -> Any:
    """The flat places of a diagonal."""
    return np.diagonal(grid(shape), offset, a, b)


@register("aten.diagonal_copy", examples=[Example(X, 0, 1, 2)])
def diagonal_copy(k: Ops, x: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    """A diagonal."""
    return move(x, lambda p: np.diagonal(p, offset, a, b))


@register("aten.diag_embed", examples=[Example(X), Example(T((2, 3)), 1, 0, 2), Example(T((3,)), -1)])
def diag_embed(k: Ops, x: Any, offset: int = 0, a: int = -2, b: int = -1) -> Any:
    """Matrices with a given diagonal."""
    rank, n = x.ndim + 1, x.shape[-1] + abs(offset)
    first, second = a % rank, b % rank
    rest = list(x.shape[:-1])
    shape = [n if axis in (first, second) else rest.pop(0) for axis in range(rank)]
    flat = placed(blank(k, x, [math.prod(shape)]), diagonal(shape, offset, first, second), x)
    return move(flat, lambda p: p.reshape(tuple(shape)))


@register("aten.unfold_backward", examples=[Example(T((2, 2, 4, 2)), [2, 3, 4], 1, 2, 1)])
def unfold_backward(k: Ops, g: Value, sizes: Sequence[int], dim: int, size: int, step: int) -> Value:
    """Sums over the windows of `Tensor.unfold` that hold an element."""
    axis = dim % len(sizes)
    windows = np.lib.stride_tricks.sliding_window_view(grid(sizes), size, axis)[
        on_axis(len(sizes), axis, np.s_[::step])
    ]
    return pile(k, windows.reshape(-1), g.reshape(-1), math.prod(sizes)).reshape(tuple(sizes))


@register("aten.slice_scatter", examples=[Example(X, T((2, 1, 4)), 1, 0, 1), Example(X, T((2, 3, 2)), 2, 0, 4, 2)])
def slice_scatter(
    k: Ops, x: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """A copy with a slice replaced."""
    return placed(x, on_axis(x.ndim, dim, cut(start, end, step)), source)


@register("aten.select_scatter", examples=[Example(X, T((2, 4)), 1, 1)])
def select_scatter(k: Ops, x: Any, source: Any, dim: int, index: int) -> Any:
    """A copy with one place replaced."""
    return placed(x, on_axis(x.ndim, dim, index), source)


@register("aten.diagonal_scatter", examples=[Example(T((3, 3)), T((2,)), 1)])
def diagonal_scatter(k: Ops, x: Any, source: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    """A copy with a diagonal replaced."""
    flat = placed(move(x, lambda p: p.reshape(-1)), diagonal(x.shape, offset, a, b), source)
    return move(flat, lambda p: p.reshape(x.shape))


# Pads.


@register(
    "aten.constant_pad_nd",
    examples=[Example(X, [1, 2]), Example(X, [1, 0, 0, 2], 3.0), Example(X, [-1, 2, 1, -1])],
)
def constant_pad(k: Ops, x: Any, pad: Sequence[int], value: float = 0) -> Any:
    """A constant around; a negative pad cuts."""
    around = [(0, 0)] * (x.ndim - len(pad) // 2) + pairs(pad)
    shape = [n + a + b for n, (a, b) in zip(x.shape, around, strict=True)]
    ground = k.lift(np.full(shape, value)) if isinstance(x, Value) and not x.truth else blank(k, x, shape)
    held = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, around, strict=True))
    inner = tuple(slice(max(a, 0), m - max(b, 0)) for m, (a, b) in zip(shape, around, strict=True))
    return placed(ground, inner, x[held])


def mirrored(shape: Sequence[int], pad: Sequence[int], mode: str) -> Any:
    """The flat place from which each element of a padded tensor is taken."""
    around = [(0, 0)] * (len(shape) - len(pad) // 2) + pairs(pad)
    return np.pad(grid(shape), around, mode="reflect" if mode == "reflect" else "edge")


def padded(mode: str, rank: int) -> None:
    """The rows of one kind of pad, forward and backward."""
    x = T((2, 3, 4, 5, 4)[: rank + 1])
    pad = [1, 2, 0, 1, 2, 1][: 2 * rank]
    grown = T(tuple(mirrored(x.shape, pad, mode).shape))
    name = {"reflect": "reflection", "edge": "replication"}[mode]

    @register(f"aten.{name}_pad{rank}d", examples=[Example(x, pad)])
    def forward(k: Ops, x: Any, pad: Sequence[int]) -> Any:
        return move(x, lambda p: p.reshape(-1)[mirrored(x.shape, pad, mode)])

    @register(f"aten.{name}_pad{rank}d_backward", examples=[Example(grown, x, pad)])
    def backward(k: Ops, g: Value, x: Any, pad: Sequence[int]) -> Value:
        at = mirrored(x.shape, pad, mode).reshape(-1)
        return pile(k, at, g.reshape(-1), math.prod(x.shape)).reshape(x.shape)


for _mode in ("reflect", "edge"):
    for _rank in (1, 2, 3):
        padded(_mode, _rank)


# Shuffles and patches.


@register("aten.pixel_shuffle", examples=[Example(T((2, 8, 3, 2)), 2)])
def pixel_shuffle(k: Ops, x: Any, r: int) -> Any:
    """Channels to places."""
    *lead, c, h, w = x.shape
    split = (*lead, c // (r * r), r, r, h, w)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return move(x, lambda p: p.reshape(split).transpose(order).reshape(*lead, c // (r * r), h * r, w * r))


@register("aten.pixel_unshuffle", examples=[Example(T((2, 2, 6, 4)), 2)])
def pixel_unshuffle(k: Ops, x: Any, r: int) -> Any:
    """Places to channels."""
    *lead, c, h, w = x.shape
    split = (*lead, c, h // r, r, w // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return move(x, lambda p: p.reshape(split).transpose(order).reshape(*lead, c * r * r, h // r, w // r))


@register("aten.channel_shuffle", "aten.native_channel_shuffle", examples=[Example(T((2, 4, 3, 2)), 2)])
def channel_shuffle(k: Ops, x: Any, groups: int) -> Any:
    """Channels of the groups in turn."""
    n, c, *rest = x.shape
    return move(x, lambda p: p.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape))


@register(
    "aten.im2col",
    examples=[Example(P, [2, 2], [1, 1], [1, 0], [2, 1]), Example(T((2, 4, 4)), [2, 2], [1, 1], [0, 0], [2, 2])],
)
def im2col(k: Ops, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    """`F.unfold`: (N, C, H, W) to (N, C * members, windows)."""
    *lead, c, h, w = x.shape
    index = Plane.of((h, w), kernel, stride, padding, dilation).index()
    found = gathered(k, x.reshape(*lead, c, h * w), index).swapaxes(-1, -2)
    return found.reshape(*lead, c * index.shape[1], index.shape[0])


@register("aten.col2im", examples=[Example(T((1, 8, 12)), [4, 5], [2, 2], [1, 1], [1, 0], [2, 1])])
def col2im(k: Ops, x: Value, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    """`F.fold`: windows summed where they overlap."""
    h, w = spread_out(size, 2)
    index = Plane.of((h, w), kernel, stride, padding, dilation).index()
    *lead, _, windows = x.shape
    if windows != index.shape[0]:
        raise Beyond(f"{windows} windows given, {index.shape[0]} fit")
    columns = x.reshape(*lead, -1, index.shape[1], windows).swapaxes(-1, -2)
    return spilled(k, columns, index, h * w).reshape(*columns.shape[:-2], h, w)


FLAT = T((2, 3))
LARGEST = {
    "float64": float(np.finfo(np.float64).max), "float32": float(np.finfo(np.float32).max), "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}  # fmt: skip


def converted(k: Ops, x: Any, dtype: str) -> Any:
    """A tensor in another dtype. A number that becomes an integer is recorded, and its size assumed."""
    value = k.lift(x)
    if dtype == "bool":
        return truth(k, value)
    if dtype in FLOATS or value.truth or not isinstance(x, Value):
        return number(value)
    seen = k.seen(0)
    k.assume(truncated(k, value).same(seen.astype(float)), f"the whole parts are those of this run ({dtype})")
    return seen


def made(k: Ops) -> str:
    """The dtype of the first output."""
    out = k.entry.outs[0]
    return out.dtype if isinstance(out, Ref) else "float64"


@register("aten.clone", examples=[Example(FLAT)])
def clone(k: Ops, x: Any) -> Any:
    """The same."""
    return x


@register(
    "aten._to_copy",
    examples=[
        Example(FLAT, dtype="float64"),
        Example(FLAT, dtype="float16"),
        Example(FLAT, dtype="int64"),
        Example(FLAT),
    ],
)
def to_copy(k: Ops, x: Any, dtype: str | None = None) -> Any:
    """A copy, in another dtype perhaps."""
    return converted(k, x, dtype or made(k))


@register("aten.copy", examples=[Example(FLAT, T((3,))), Example(FLAT, Int((2, 3), 5)), Example(Int((2, 3), 5), FLAT)])
def copy(k: Ops, x: Any, source: Any) -> Any:
    """Another tensor's elements."""
    found = converted(k, source, made(k))
    return found.expand(x.shape) if isinstance(found, Value) else np.broadcast_to(found, x.shape)


@register("aten.fill", examples=[Example(FLAT, 2.5), Example(FLAT, T(()))])
def fill(k: Ops, x: Any, value: Any) -> Any:
    """One element everywhere."""
    found = converted(k, value, made(k))
    return found.expand(x.shape) if isinstance(found, Value) else np.broadcast_to(found, x.shape)


@register("aten.zero", examples=[Example(FLAT)])
def zero(k: Ops, x: Any) -> Any:
    """Zeros in the place of a tensor."""
    return filled(k, x.shape, 0.0)


def filled(k: Ops, shape: Sequence[int], value: Any) -> Any:
    """A constant in the dtype of the output."""
    dtype = made(k)
    if dtype in FLOATS or dtype == "bool":
        return constant(k, shape, value, truth=dtype == "bool")
    return np.full(tuple(shape), value, dtype=np.int64)


@register("aten.zeros_like", examples=[Example(FLAT), Example(FLAT, dtype="int64")])
def zeros_like(k: Ops, x: Any, **_: Any) -> Any:
    """Zeros beside a tensor."""
    return filled(k, x.shape, 0.0)


@register("aten.new_zeros", examples=[Example(FLAT, [2, 2])])
def new_zeros(k: Ops, x: Any, size: Any, **_: Any) -> Any:
    """Zeros of another shape."""
    return filled(k, size, 0.0)


@register("aten.ones_like", examples=[Example(FLAT), Example(FLAT, dtype="int64")])
def ones_like(k: Ops, x: Any, **_: Any) -> Any:
    """Ones beside a tensor."""
    return filled(k, x.shape, 1.0)


@register("aten.full_like", examples=[Example(FLAT, 0.5), Example(FLAT, 3, dtype="int64")])
def full_like(k: Ops, x: Any, value: Any, **_: Any) -> Any:
    """One number beside a tensor."""
    return filled(k, x.shape, value)


@register("aten.new_ones", examples=[Example(FLAT, [2, 2])])
def new_ones(k: Ops, x: Any, size: Any, **_: Any) -> Any:
    """Ones of another shape."""
    return filled(k, size, 1.0)


@register("aten.new_full", examples=[Example(FLAT, [2, 2], 0.5)])
def new_full(k: Ops, x: Any, size: Any, value: Any, **_: Any) -> Any:
    """One number in another shape."""
    return filled(k, size, value)


@register("aten.where", examples=[Example(Bool((2, 3)), FLAT, T((3,))), Example(Bool((3,)), FLAT, -1.0)])
def where_(k: Ops, condition: Any, x: Any, y: Any) -> Value:
    """A choice by element."""
    return where(truth(k, condition), k.lift(x), k.lift(y))


@register("aten.masked_fill", examples=[Example(FLAT, Bool((2, 3)), -1.5), Example(FLAT, Bool((3,)), T(()))])
def masked_fill(k: Ops, x: Any, mask: Any, value: Any) -> Value:
    """A number where a mask holds."""
    return where(truth(k, mask), k.lift(value), k.lift(x))


@register("aten.isfinite", examples=[Example(FLAT)])
def isfinite(k: Ops, x: Any) -> Value:
    """Neither infinite nor NaN."""
    value = k.lift(x)
    return ~endless(k, value) & value.same(value)


@register("aten.nan_to_num", examples=[Example(FLAT), Example(FLAT, 0.5, 1.0, -1.0)])
def nan_to_num(
    k: Ops, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """Numbers in the place of NaN and the infinities; by default the largest of the dtype."""
    value, most = k.lift(x), LARGEST.get(made(k), LARGEST["float64"])
    above = tell(k, value, lambda v: v.same(math.inf))
    below = tell(k, value, lambda v: v.same(-math.inf))
    found = where(above, most if posinf is None else posinf, value)
    found = where(below, -most if neginf is None else neginf, found)
    return where(value.same(value), found, nan or 0.0)


TWO = (Example(Bool((2, 3)), FLAT), Example(FLAT, FLAT))


@register("aten.logical_and", examples=TWO)
def logical_and(k: Ops, x: Any, y: Any) -> Value:
    """Both differ from zero."""
    return truth(k, x) & truth(k, y)


@register("aten.logical_or", examples=TWO)
def logical_or(k: Ops, x: Any, y: Any) -> Value:
    """One differs from zero."""
    return truth(k, x) | truth(k, y)


@register("aten.logical_xor", examples=TWO)
def logical_xor(k: Ops, x: Any, y: Any) -> Value:
    """Exactly one differs from zero."""
    a, b = truth(k, x), truth(k, y)
    return (a & ~b) | (~a & b)


def _bits(k: Ops, *args: Any) -> list[Value]:
    values = [k.lift(a) for a in args]
    if not all(v.truth for v in values):
        raise Beyond("bits of integers that depend on a leaf")
    return values


@register("aten.bitwise_not", examples=[Example(Bool((2, 3)))])
def bitwise_not(k: Ops, x: Any) -> Value:
    """Of truth values."""
    return ~_bits(k, x)[0]


@register("aten.bitwise_and", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_and(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return a & b


@register("aten.bitwise_or", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_or(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return a | b


@register("aten.bitwise_xor", examples=[Example(Bool((2, 3)), Bool((3,)))])
def bitwise_xor(k: Ops, x: Any, y: Any) -> Value:
    """Of truth values."""
    a, b = _bits(k, x, y)
    return (a & ~b) | (~a & b)
