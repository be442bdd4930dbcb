"""Where elements come from and go to: movements that the rows of tensors, pools and convolutions share.

A window (a pool's, a convolution's) is an index array (places, members) into a flattened plane, with -1 outside; so
that every such operator is a gather, its gradient a `pile`, and neither depends on the domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.algebra import Array, Beyond, Value, concatenate
from gradproof.shadow.ops.table import Ops

Index = NDArray[np.int64]


def move(x: Any, f: Callable[[Array], Array]) -> Any:
    """A movement of data, of a Value or of plain integers."""
    return x.move(f) if isinstance(x, Value) else np.asarray(f(np.asarray(x)))


def blank(k: Ops, like: Any, shape: Sequence[int]) -> Any:
    """Zeros (or falsehoods) of the sort of another tensor."""
    if not isinstance(like, Value):
        return np.zeros(tuple(shape), dtype=np.asarray(like).dtype)
    return k.lift(np.zeros(tuple(shape), dtype=bool if like.truth else float))


def placed(x: Any, at: Any, source: Any) -> Any:
    """A copy of `x` in which the elements at an index are those of `source`."""
    if isinstance(x, Value) != isinstance(source, Value) or (isinstance(x, Value) and x.truth != source.truth):
        raise Beyond("tensors of two sorts (numbers, integers, truth values) are written into one another")
    if isinstance(x, Value):
        return x.put(at, source)
    out = np.array(x)
    out[at] = source
    return out


def concrete(x: Any, what: str) -> Array:
    """Integers or truth values that are plain. Raises Beyond for a tracked value, which would choose the shape."""
    if isinstance(x, Value):
        raise Beyond(f"{what} depends on tracked values: a data-dependent shape or choice of elements")
    return np.asarray(x)


def grid(shape: Sequence[int]) -> Index:
    """The flat place of every element of a tensor."""
    return np.arange(math.prod(shape), dtype=np.int64).reshape(tuple(shape))


def pile(k: Ops, at: Array, source: Value, size: int, base: Value | None = None) -> Value:
    """Row `t` of the result is the sum of the rows `i` of `source` with `at[i] == t`; a negative `at` is dropped.

    `at`: (n,) integers; `source`: (n, ...). With `base` (size, ...), its rows are added to. Rows that nothing falls
    on are constant zeros, or those of `base`, untouched.
    """
    out = k.lift(np.zeros((size, *source.shape[1:]))) if base is None else base
    order = np.argsort(at, kind="stable")
    order = order[at[order] >= 0]
    targets, first, counts = np.unique(at[order], return_index=True, return_counts=True)
    for count in np.unique(counts):
        chosen = counts == count
        rows = order[first[chosen][:, None] + np.arange(count)]
        total = source[rows[:, 0]] if count == 1 else source[rows].sum(1)
        held = targets[chosen]
        out = out.put(held, total if base is None else base[held] + total)
    return out


def spread_out(x: Any, rank: int) -> tuple[int, ...]:
    """One whole number, or a list of one or of `rank`, as `rank` of them."""
    values = [int(v) for v in np.ravel(x)]
    return tuple(values * rank if len(values) == 1 else values)


@dataclass(frozen=True, slots=True)
class Plane:
    """How windows lie on a plane of `spatial` extents: per dimension, kernel, stride, padding and dilation."""

    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, spatial: Sequence[int], kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Plane:
        """From arguments as torch's operators take them."""
        rank = len(spatial)
        size = spread_out(kernel, rank)
        step = spread_out(stride, rank) if np.size(stride) else size
        return cls(tuple(spatial), size, step, spread_out(padding, rank), spread_out(dilation, rank))

    def extents(self, ceil: bool = False) -> tuple[int, ...]:
        """Windows per dimension; with `ceil` a last one that starts inside may hang over."""
        found = []
        for n, size, step, pad, apart in zip(
            self.spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            room = n + 2 * pad - apart * (size - 1) - 1
            count = (room + (step - 1 if ceil else 0)) // step + 1
            found.append(count - 1 if ceil and (count - 1) * step >= n + pad else count)
        return tuple(found)

    def index(self, ceil: bool = False) -> Index:
        """(windows, members): the flat place of each member, -1 outside."""
        starts = zip(self.extents(ceil), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        lines = [
            np.arange(count)[:, None] * step - pad + np.arange(size) * apart for count, size, step, pad, apart in starts
        ]
        return joined(lines, self.spatial)

    def padded_counts(self, ceil: bool = False) -> Index:
        """Members of each window that lie on the padded plane: what a mean with its padding divides by."""
        counts = np.ones((1,), dtype=np.int64)
        for n, size, step, pad, number in zip(
            self.spatial, self.kernel, self.stride, self.padding, self.extents(ceil), strict=True
        ):
            start = np.arange(number) * step - pad
            counts = np.multiply.outer(counts, np.minimum(start + size, n + pad) - start).reshape(-1)
        return counts


def joined(lines: Sequence[Index], spatial: Sequence[int]) -> Index:
    """Windows of a plane from the windows of its dimensions, each `(count, size)` with places outside allowed."""
    rank = len(spatial)
    flat, valid = np.zeros((1,) * (2 * rank), dtype=np.int64), np.ones((1,) * (2 * rank), dtype=bool)
    for axis, (line, n) in enumerate(zip(lines, spatial, strict=True)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = line.shape
        wide = line.reshape(shape)
        flat, valid = flat * n + wide, valid & (wide >= 0) & (wide < n)
    flat = np.where(valid, flat, -1)
    return flat.reshape(math.prod(line.shape[0] for line in lines), -1)


def adaptive(spatial: Sequence[int], out: Sequence[int]) -> Index:
    """The windows of torch's adaptive pools: from floor(i n / m) to ceil((i + 1) n / m)."""
    lines = []
    for n, m in zip(spatial, out, strict=True):
        bounds = [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        width = max(stop - start for start, stop in bounds)
        lines.append(np.array([[s + j if s + j < e else -1 for j in range(width)] for s, e in bounds], dtype=np.int64))
    return joined(lines, spatial)


def gathered(k: Ops, x: Value, index: Index) -> Value:
    """Members of windows: (..., plane) to (..., windows, members), zero outside."""
    if np.any(index < 0):
        x = concatenate([x, k.lift(np.zeros((*x.shape[:-1], 1)))], x.ndim - 1)
    return x[..., index]


def spilled(k: Ops, x: Value, index: Index, size: int) -> Value:
    """The transpose of `gathered`: (..., windows, members) to (..., size), summed where windows overlap."""
    lead = x.shape[:-2]
    rows = x.reshape(math.prod(lead), -1).swapaxes(0, 1)
    return pile(k, index.reshape(-1), rows, size).swapaxes(0, 1).reshape(*lead, size)


def along(shape: Sequence[int], dim: int, index: Array) -> tuple[Array, ...]:
    """The index of `gather` and `scatter`: every axis in its own place, `dim` by `index`."""
    places: list[Array] = list(np.indices(index.shape)) if index.ndim else [np.asarray(0)] * len(shape)
    if index.ndim:
        places[dim % len(shape)] = index
    return tuple(places)


def pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    """`F.pad`'s list, last dimension first, as (before, after) of the padded dimensions in order."""
    values = [int(p) for p in padding]
    return [(values[i], values[i + 1]) for i in range(len(values) - 2, -1, -2)]
