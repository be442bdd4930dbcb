"""Where in the user's code a run is.

Whose code a line is: a frame belongs to torch, to gradproof, to a library (the standard library or an installed
package) or to the user.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import FrameType, TracebackType
from typing import Any

from gradproof.core.errors import GradproofError


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code; `via` is the innermost library frame (`file:line`), for messages only."""

    file: str
    line: int
    function: str = ""
    via: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """The line, with the file's name alone; empty where there is none."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""


NOWHERE = Location("", 0)


USER, LIBRARY, TORCH, OWN = "user", "library", "torch", "own"
INITIALISERS = os.path.join("torch", "nn", "init.py")
CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")
PARALLEL = os.path.join("torch", "nn", "parallel", "distributed.py")
MODULE = os.path.join("torch", "nn", "modules", "module.py")
WRAPPERS = (os.path.join("torch", "_dynamo", "eval_frame.py"), os.path.join("torch", "_compile.py"))

SERIALIZERS = ("torch/serialization.py", "safetensors/torch.py", "huggingface_hub/serialization/_torch.py")
PRETRAINED = "transformers/modeling_utils.py"
"""Files that take the address of a storage as its name, and write nothing."""


@lru_cache(maxsize=1)
def _folders() -> tuple[str, tuple[str, ...]]:
    """The folder of torch, and those of libraries."""
    spec, paths = importlib.util.find_spec("torch"), sysconfig.get_paths()
    libraries = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    torch = os.path.dirname(spec.origin) if spec and spec.origin else "\0"
    return torch + os.sep, tuple(os.path.abspath(p) + os.sep for p in libraries)


@lru_cache(maxsize=8192)
def owner(file: str) -> str:
    """Whose code a file holds: `user`, `library`, `torch` or `own` (gradproof's)."""
    if file.startswith("<"):
        return USER if file.startswith(("<stdin", "<ipython-input")) else LIBRARY
    full = os.path.abspath(file)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    if full.startswith(here):
        return USER if full.startswith(os.path.join(here, "_reference") + os.sep) else OWN
    torch, libraries = _folders()
    if full.startswith(torch):
        return TORCH
    inside = any(part in full for part in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"))
    return LIBRARY if inside or full.startswith(libraries) else USER


def frames() -> Iterator[FrameType]:
    """The caller's stack, innermost first, without gradproof's frames and the wrappers that hide them from Dynamo."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if owner(file) != OWN and not file.endswith(WRAPPERS):
            yield frame
        frame = frame.f_back


def user_location() -> Location:
    """The innermost line of the user's code on the stack.

    Where there is none, the innermost line of a library outside torch and the standard library; else `NOWHERE`.
    """
    found = library = None
    for frame in frames():
        kind = owner(frame.f_code.co_filename)
        if kind == USER:
            found = frame
            break
        if kind == LIBRARY and library is None and "-packages" in frame.f_code.co_filename:
            found = library = frame
    if found is None:
        return NOWHERE
    via = "" if library is None else f"{library.f_code.co_filename}:{library.f_lineno}"
    return Location(found.f_code.co_filename, found.f_lineno, found.f_code.co_name, via)


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


def saved() -> bool:
    """Whether storages are named that go to a file: pickles and buffers give their numbers back to Python."""
    near = islice(frames(), 9)
    first, *callers = (one for one in near if not one.f_code.co_filename.endswith("torch/storage.py"))
    files = (*SERIALIZERS[:2], PRETRAINED)
    own = {one.f_code.co_name: one for one in callers if one.f_code.co_filename.endswith(files)}
    named = "save" in own and isinstance(own["save"].f_locals.get("f"), str | os.PathLike)
    to_files = zip(
        SERIALIZERS, (named, not own.keys().isdisjoint({"save_file", "save_pretrained"}), True), strict=False
    )
    return any(known and first.f_code.co_filename.endswith(file) for file, known in to_files)


def lines_of(error: BaseException) -> list[Location]:
    """The lines of a traceback, the innermost last."""
    frames = traceback.walk_tb(error.__traceback__)
    return [Location(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]


def own_fault(error: BaseException) -> bool:
    """Whether an exception began in gradproof, and not in the user's code or a library that it called."""
    own = all(owner(line.file) == OWN for line in lines_of(error)[-1:])
    return own and isinstance(error, Exception) and not isinstance(error, GradproofError)


def stated(error: BaseException) -> str:
    """An exception in one line; one that began in gradproof itself says so."""
    text = " ".join(str(error).split())[:300]
    name = f"{'gradproof itself: ' if own_fault(error) else ''}{type(error).__name__}"
    return f"{name}: {text}" if text else name


def raised_at(error: BaseException) -> Location:
    """The user's innermost line of a traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return Location(error.filename, error.lineno or 1)
    return next((line for line in reversed(lines_of(error)) if owner(line.file) == USER), NOWHERE)


def of_user(error: BaseException) -> BaseException:
    """The exception, and what led to it, without the frames that run the script and those between the user's lines.

    One that began in gradproof keeps them all.
    """
    chain, seen = [error], set[int]()
    for one in () if own_fault(error) else chain:
        if id(one) in seen:
            continue
        seen.add(id(one))
        every, tb = list[TracebackType](), one.__traceback__
        while tb is not None:
            every, tb = [*every, tb], tb.tb_next
        kept = [tb for tb in every if owner(tb.tb_frame.f_code.co_filename) != OWN]
        while kept and kept[0].tb_frame.f_code.co_filename == "<frozen runpy>":
            kept.pop(0)
        for tb, following in zip(kept, [*kept[1:], None], strict=False):
            tb.tb_next = following
        one.__traceback__ = kept[0] if kept else None
        chain += [e for e in (one.__cause__, one.__context__, *getattr(one, "exceptions", ())) if e is not None]
    return error


CAUSED = ("Using `torch.compile(module)` when there are global hooks on modules",)
"""How warnings begin of which gradproof is the cause."""


@contextmanager
def users_warnings() -> Iterator[None]:
    """Meanwhile a warning that points into gradproof points to the user's line, and none is shown that it causes."""
    module: Any = warnings
    show = module._showwarnmsg

    def shown(said: warnings.WarningMessage) -> None:
        if owner(said.filename) == OWN and (at := user_location()).file:
            said.filename, said.lineno, said.line = at.file, at.line, None
        if not str(said.message).startswith(CAUSED):
            show(said)

    module._showwarnmsg = shown
    try:
        yield
    finally:
        module._showwarnmsg = show
