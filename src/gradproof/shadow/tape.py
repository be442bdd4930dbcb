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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """An untracked tensor by value: float64 (exact for every float dtype of torch up to 64 bits), int64 or bool."""

    value: NDArray[Any]
    dtype: str


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
    seen: Mapping[int, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a leaf comes from.

    `kind`: `param`, `data` or `buffer` (a state of the model or optimizer that the run began with). `name` is the
    parameter's or buffer's name, or the line of the user's code that made the data.
    """

    kind: str
    name: str


@dataclass(slots=True, eq=False)
class Leaf:
    """From here on the elements of `ref` are arbitrary numbers. `value` is what they were in this run (float64)."""

    ref: Ref
    source: Source
    value: NDArray[Any]
    place: Location


@dataclass(slots=True, eq=False)
class Init:
    """A storage begins to be tracked while it holds numbers that are not: its present content."""

    storage: int
    content: Const
    size: int


@dataclass(slots=True, eq=False)
class Event:
    """Something that the window protocol or the rounding report speaks about.

    `kind`: zero, accumulate, unscale, clip, step, stepped, schedule, sync, end. `refs` name the tensors whose values
    belong to the event (`grad/NAME`, `param/NAME`), `values` their concrete contents at that moment (float64), `detail`
    whatever else is known (parameter names, learning rate, dtype, limit).
    """

    kind: str
    place: Location
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


@dataclass(slots=True)
class Tape:
    """A whole run."""

    items: list[Item] = field(default_factory=list)
    blind: list[Blind] = field(default_factory=list)

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
