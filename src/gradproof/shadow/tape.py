"""What a recorded run is: operators that touched a tracked value, leaves, and events, in the order in which they ran.

A tape holds plain data. The recorder writes it (and needs torch); `interpret` gives it a meaning in a domain (and
needs neither torch nor a solver). Tensors are geometry over storages, as in torch: a view is another `Ref` of the same
storage, so that aliasing needs no rule. Only storages that hold a tracked value (one that depends on a leaf) are on
the tape; every other tensor enters an operator by value, as a `Const`, with the numbers that the machine had.

Whose code a line is, and where in the user's code a run is. A frame belongs to torch, to gradproof, to a library (the
standard library or an installed package) or to the user.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FLOATS = frozenset({"float64", "float32", "float16", "bfloat16", "tf32"})


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code; `via` is the innermost library frame (`file:line`), for messages only."""

    file: str
    line: int
    function: str = ""
    via: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Location("", 0)


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor on the tape: geometry, in elements of `dtype`, over a tracked storage of `size` elements."""

    storage: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    size: int

    @property
    def count(self) -> int:
        """Number of elements."""
        total = 1
        for n in self.shape:
            total *= n
        return total

    @property
    def floating(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype in FLOATS

    def covers(self) -> bool:
        """Whether every element of the storage is an element of this tensor, each once."""
        return self.count == self.size and sorted(self.indices()) == list(range(self.size))

    def indices(self) -> list[int]:
        """Place in the storage of each element, in row-major order of the tensor."""
        grid = np.full(self.shape, self.offset, dtype=np.int64)
        for axis, (n, step) in enumerate(zip(self.shape, self.stride, strict=True)):
            along = [1] * len(self.shape)
            along[axis] = n
            grid = grid + (np.arange(n, dtype=np.int64) * step).reshape(along)
        return [int(i) for i in grid.ravel()]


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """An untracked tensor by value: float64 (exact for every float dtype of torch up to 64 bits), int64 or bool.

    `origin`: the numbers of its elements among the integer data of the run, where they are known (see `Tape.origins`).
    """

    value: NDArray[Any]
    dtype: str
    origin: NDArray[np.int64] | None = None


Arg = Any
"""Ref, Const, int, float, bool, str (dtypes, devices and layouts too), None, or a list or tuple of these."""


T = TypeVar("T")


def held_in(arg: Arg, kind: type[T]) -> Iterator[T]:
    """Everything of a kind in an argument, or in several by name: tracked tensors (Ref) or constants (Const)."""
    if isinstance(arg, kind):
        yield arg
    elif isinstance(arg, list | tuple):
        for part in arg:
            yield from held_in(part, kind)
    elif isinstance(arg, Mapping):
        for part in arg.values():
            yield from held_in(part, kind)


@dataclass(slots=True, eq=False)
class Entry:
    """One dispatched operator, after it ran.

    `op` is the full schema name, `aten.add_.Tensor`. `outs` are its outputs in order (a `Ref`, a `Const` for an output
    that is not tracked, None for one that is no tensor, a list for a list of tensors); for an operator that writes its
    arguments these are the written arguments. `writes` are the tensors that hold something new afterwards: fresh
    outputs and written arguments. `seen` are the concrete values of the integer and Boolean outputs, by position.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]
    outs: tuple[Any, ...]
    writes: tuple[Ref, ...]
    place: Location
    backward: bool
    micro: int
    seen: Mapping[int, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a leaf comes from; two runs are matched by this, never by value.

    `kind`: `param`, `data`, `buffer` (a state of the model or optimizer that the run began with) or `havoc` (the value
    of an operator without a row). `name` is the parameter's name, or the site of the user's code that made the data.
    `first` is the place of the leaf's first element in the stream of all elements that came from that site in this
    run: micro-batches of a window and the full batch yield the same stream, cut differently.
    """

    kind: str
    name: str
    first: int = 0


@dataclass(slots=True, eq=False)
class Leaf:
    """From here on the elements of `ref` are arbitrary numbers. `value` is what they were in this run (float64).

    `natural` is what was there before other numbers were injected: a leaf whose natural numbers depend on what was
    injected elsewhere was computed from tracked values where nobody saw it. `laid`: the shape of the micro-batches of
    which the leaf is made, where they lie side by side along an axis that is not the first (time before samples).
    """

    ref: Ref
    source: Source
    value: NDArray[Any]
    place: Location
    natural: NDArray[Any] | None = None
    unseen: bool = False
    laid: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Init:
    """A storage begins to be tracked while it holds numbers that are not: its present content."""

    storage: int
    content: Const
    size: int


@dataclass(slots=True, eq=False)
class Event:
    """Something that the window protocol or a check speaks about.

    `kind`: zero, accumulate, unscale, clip, step, schedule, sync, backward, item, loss, end. `refs` name the tensors
    whose values belong to the event (`grad/NAME`, `param/NAME`, `root`, ...), `values` their concrete contents at that
    moment (float64), `detail` whatever else is known (parameter names, learning rate, dtype, limit).
    """

    kind: str
    place: Location
    micro: int
    detail: dict[str, Any] = field(default_factory=dict)
    refs: dict[str, Ref | Const] = field(default_factory=dict)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)


Item = Entry | Leaf | Init | Event


@dataclass(frozen=True, slots=True)
class Blind:
    """The recorder lost sight of a value, or may have: what, where, and the help. `code` names the kind of loss."""

    code: str
    what: str
    place: Location
    help: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the user's, and what ran there."""

    place: Location
    how: str


@dataclass(slots=True)
class Tape:
    """A whole run. `integers` are the integer data by site, for the comparison of two runs; `drawn` the site of
    each array of integers in the order of the run, `chance` those that a random operator filled. `origins`: of each
    storage of integer data, the number of its first element, its site and that element's place in the site's stream.

    `reads`: where numbers left for Python otherwise than one by one (those are the event `item`), or chose a shape.
    `constants`: where floats were made that no random operator drew and nobody gave.
    `buffers`: what the buffers of modules held after the last step (float64).
    """

    items: list[Item] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    integers: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    chance: set[str] = field(default_factory=set)
    origins: list[tuple[int, str, int]] = field(default_factory=list)
    shared: bool = False
    blind: list[Blind] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reads: list[Mark] = field(default_factory=list)
    constants: list[Mark] = field(default_factory=list)
    returned: Any = None
    printed: list[tuple[float, float]] = field(default_factory=list)  # decimal fractions, each with its last place
    buffers: dict[str, NDArray[Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def entries(self) -> Iterator[Entry]:
        """The operators."""
        return (item for item in self.items if isinstance(item, Entry))

    def events(self, kind: str = "") -> Iterator[Event]:
        """The events, or those of one kind."""
        return (item for item in self.items if isinstance(item, Event) and kind in ("", item.kind))

    def leaves(self) -> Iterator[Leaf]:
        """The leaves."""
        return (item for item in self.items if isinstance(item, Leaf))


USER, LIBRARY, TORCH, OWN = "user", "library", "torch", "own"
FETCH = os.path.join("utils", "data", "_utils", "fetch.py")
COLLATE = os.path.join("utils", "data", "_utils", "collate.py")
INITIALISERS = os.path.join("torch", "nn", "init.py")
CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
PARALLEL = os.path.join("torch", "nn", "parallel", "distributed.py")
MODULE = os.path.join("torch", "nn", "modules", "module.py")
WRAPPERS = (os.path.join("torch", "_dynamo", "eval_frame.py"), os.path.join("torch", "_compile.py"))


@lru_cache(maxsize=1)
def _torch_folder() -> str:
    spec = importlib.util.find_spec("torch")
    return os.path.dirname(spec.origin) + os.sep if spec and spec.origin else "\0"


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.abspath(p) + os.sep for p in found)


@lru_cache(maxsize=8192)
def owner(file: str) -> str:
    """Whose code a file holds: `user`, `library`, `torch` or `own` (gradproof's)."""
    if file.startswith("<"):
        return USER if file.startswith("<stdin") else LIBRARY
    full = os.path.abspath(file)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    if full.startswith(here):
        return USER if full.startswith(os.path.join(here, "_reference") + os.sep) else OWN
    if full.startswith(_torch_folder()):
        return TORCH
    inside = any(part in full for part in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"))
    return LIBRARY if inside or full.startswith(_library_folders()) else USER


def frames() -> Iterator[FrameType]:
    """The caller's stack, innermost first, without gradproof's frames and the wrappers that hide them from Dynamo."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if owner(file) != OWN and not file.endswith(WRAPPERS):
            yield frame
        frame = frame.f_back


def user_place() -> Location:
    """The innermost line of the user's code on the stack.

    Where there is none, the innermost line of a library outside torch and the standard library; else `NOWHERE`.
    """
    library: FrameType | None = None
    for frame in frames():
        kind = owner(frame.f_code.co_filename)
        if kind == USER:
            return place_of(frame, library)
        if kind == LIBRARY and library is None and "-packages" in frame.f_code.co_filename:
            library = frame
    return NOWHERE if library is None else place_of(library, library)


def by_torch() -> bool:
    """Whether torch's own Python code made the call."""
    return any(owner(frame.f_code.co_filename) == TORCH for frame in islice(frames(), 1))


def initialising() -> bool:
    """Whether the run initialises, moves to another dtype or device, or wraps for data parallelism, a module."""
    return any(
        file.endswith(INITIALISERS)
        or (frame.f_code.co_name == "_apply" and file.endswith(MODULE))
        or (frame.f_code.co_name == "__init__" and file.endswith(PARALLEL))
        for frame in frames()
        if owner(file := frame.f_code.co_filename) == TORCH
    )


def recomputing() -> bool:
    """Whether activation checkpointing runs a forward pass again."""
    return any(frame.f_code.co_filename.endswith(CHECKPOINT) for frame in frames())


def place_of(frame: FrameType, library: FrameType | None = None) -> Location:
    """The line that a frame is at; `library` is named as the way that led there."""
    via = f"{library.f_code.co_filename}:{library.f_lineno}" if library is not None else ""
    return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, via)


@lru_cache(maxsize=4096)
def places(offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> NDArray[np.int64]:
    """Index into the storage of every element of a tensor."""
    grid = np.full(shape, offset, dtype=np.int64)
    for axis, (n, step) in enumerate(zip(shape, stride, strict=True)):
        along = [1] * len(shape)
        along[axis] = n
        grid = grid + (np.arange(n, dtype=np.int64) * step).reshape(along)
    return grid


# -- Streams of data: the same samples cut into micro-batches, and as one full batch.
#
# A leaf is a piece of its source's stream. Where a leaf of the full batch has its samples along a later axis (time
# before samples), the micro-batches lie side by side along it, and the order of its elements is not that of the stream.

Array = NDArray[Any]
Key = tuple[str, str]
Shape = tuple[int, ...]


class Streams(dict[Key, Array]):
    """Values by source. `blocks`: the shape that every leaf of a source has, where it is the same for all of them."""

    def __init__(self, values: Mapping[Key, Array], blocks: Mapping[Key, Shape]) -> None:
        super().__init__(values)
        self.blocks = dict(blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, (dict(self), self.blocks)

    def with_values(self, values: Mapping[Key, Array]) -> Streams:
        """Other values of the same sources."""
        return Streams(values, self.blocks)


class Injection:
    """Leaf values by source and place in its stream, as the recorder's `inject` takes them."""

    def __init__(self, values: Mapping[Key, Array]) -> None:
        self.values = values
        self.blocks: Mapping[Key, Shape] = getattr(values, "blocks", {})

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
    return Streams(joined, blocks_of(shapes))


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
