"""Streams of data: the same samples cut into micro-batches, and as one full batch.

A leaf is a piece of its source's stream. Where a leaf of the full batch has its samples along a later axis (time before
samples), the micro-batches lie side by side along it, and the order of its elements is not that of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.shadow.tape import Source, Tape

Array = NDArray[Any]
Key = tuple[str, str]
Shape = tuple[int, ...]


class Streams(dict[Key, Array]):
    """Values by source. `blocks`: the shape that every leaf of a source has, where it is the same for all of them.

    `integers`: streams of integer data by site, where they are to be others than the function makes.
    """

    def __init__(
        self, values: Mapping[Key, Array], blocks: Mapping[Key, Shape], integers: Mapping[str, Array] | None = None
    ) -> None:
        super().__init__(values)
        self.blocks, self.integers = dict(blocks), dict(integers or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, (dict(self), self.blocks, self.integers)

    def with_values(self, values: Mapping[Key, Array]) -> Streams:
        """Other values of the same sources."""
        return Streams(values, self.blocks, self.integers)


class Injection:
    """Leaf values by source and place in its stream, as the recorder's `inject` takes them."""

    def __init__(self, values: Mapping[Key, Array]) -> None:
        self.values = values
        self.blocks: Mapping[Key, Shape] = getattr(values, "blocks", {})
        self.others: Mapping[str, Array] = getattr(values, "integers", {})

    def __call__(self, source: Any, shape: Shape, dtype: str, natural: Array) -> Array | None:
        """The numbers for a leaf; None where the stream does not reach."""
        stream = self.values.get((source.kind, source.name))
        count = int(np.prod(shape, dtype=np.int64))
        if stream is None or source.first + count > stream.size:
            return None
        found, laid = stream[source.first : source.first + count], self.laid(source, shape)
        if not laid:
            return found.reshape(shape)
        return np.concatenate(list(found.reshape(-1, *laid)), sample_axis(laid, shape))

    def site(self, site: str, shape: Shape, described: str) -> str:
        """The name of a site among those of the micro-batches: the one of which `shape` is several, side by side.

        `described` is how the name ends: all of the shape but its first axis, and the dtype.
        """
        if any(name == site for _, name in (*self.values, *self.blocks)):
            return site
        begin, dtype = site.removesuffix(described), described.rpartition(" ")[2]
        like = [
            name
            for (_, name), block in self.blocks.items()
            if name.startswith(begin) and name.endswith(dtype) and sample_axis(block, shape)
        ]
        return like[0] if len(set(like)) == 1 else site

    def integers(self, site: str, first: int, shape: Shape) -> Array | None:
        """Other integers for a tensor of a site; None where the function's own stay."""
        stream, count = self.others.get(site), int(np.prod(shape, dtype=np.int64))
        return None if stream is None or first + count > stream.size else stream[first : first + count].reshape(shape)

    def laid(self, source: Any, shape: Shape) -> Shape:
        """The shape of the micro-batches of which a leaf is made where they lie side by side along a later axis."""
        block = self.blocks.get((source.kind, source.name), ())
        return block if sample_axis(block, shape) else ()


def sample_axis(block: Shape, whole: Shape) -> int:
    """The axis along which several blocks make a whole; 0 where there is none, or it is not one axis."""
    if len(block) != len(whole):
        return 0
    apart = [i for i, (a, b) in enumerate(zip(block, whole, strict=True)) if a != b]
    return apart[0] if len(apart) == 1 and block[apart[0]] and whole[apart[0]] % block[apart[0]] == 0 else 0


def blocks_of(shapes: Mapping[Any, set[Shape]]) -> dict[Any, Shape]:
    """The shape of every source that has the same shape each time."""
    return {key: next(iter(found)) for key, found in shapes.items() if len(found) == 1}


def in_order(values: Any, block: Shape) -> Array:
    """The elements of a leaf in the order of its stream: micro-batch by micro-batch."""
    whole = np.asarray(values)
    axis = sample_axis(block, whole.shape)
    return np.stack(np.split(whole, whole.shape[axis] // block[axis], axis)).ravel() if axis else whole.ravel()


def streams(tape: Tape) -> Streams:
    """All values of each source in the order of its stream (float64, flat)."""
    found: dict[Key, dict[int, Array]] = {}
    shapes: dict[Key, set[Shape]] = {}
    for leaf in tape.leaves():
        key = (leaf.source.kind, leaf.source.name)
        rows = found.setdefault(key, {})
        rows.setdefault(leaf.source.first, in_order(np.asarray(leaf.value, dtype=np.float64), leaf.laid))
        if leaf.source.kind == "data":
            shapes.setdefault(key, set()).add(tuple(np.shape(leaf.value)))
    for site, arrays in tape.integers.items():
        shapes[("integers", site)] = {np.shape(a) for a in arrays}
    joined = {key: np.concatenate([rows[i] for i in sorted(rows)]) for key, rows in found.items()}
    return Streams(joined, blocks_of(shapes), tape.orders)


def renamings(tapes: Sequence[Tape]) -> list[Callable[[Source], Source]]:
    """For each rank, what a leaf is called: as on rank 0 where the data are the same, else by the rank too."""
    first = streams(tapes[0])
    found: list[Callable[[Source], Source]] = []
    for rank, tape in enumerate(tapes):
        own = {key for key, values in streams(tape).items() if not _alike(values, first.get(key))}
        found.append(_renaming(rank, own))
    return found


def _alike(values: Array, other: Array | None) -> bool:
    return other is not None and np.array_equal(values, other)


def _renaming(rank: int, own: set[Key]) -> Callable[[Source], Source]:
    def rename(source: Source) -> Source:
        if rank and (source.kind, source.name) in own:
            return replace(source, name=f"rank {rank}: {source.name}")
        return source

    return rename
