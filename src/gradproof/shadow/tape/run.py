"""What the user's function is handed, and what it returns and prints."""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch

Step = Callable[["Run"], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """How to train: `windows` optimizer steps of `accum_steps` micro-batches of `micro_batch_size` samples.

    `tail` further micro-batches form a short last window. gradproof calls the function with the user's numbers, and
    with the full batch: `accum_steps` 1 and `micro_batch_size` as large as the window. `optimizer` is the word that
    the caller gave, for functions that read it. `tables`: data may have more samples than these.
    """

    accum_steps: int = 4
    micro_batch_size: int = 2
    windows: int = 2
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    seed: int = 0
    tail: int = 0
    tail_samples: int = 0
    optimizer: str | None = None
    tables: bool = False

    @property
    def samples(self) -> int:
        """Samples to train on in all."""
        whole = self.accum_steps * self.micro_batch_size * self.windows
        return whole + (self.tail_samples or self.tail * self.micro_batch_size)

    @property
    def micro_batches(self) -> int:
        """Micro-batches in all; the last of the full batch's may be short."""
        return -(-self.samples // self.micro_batch_size)

    @property
    def effective_batch_size(self) -> int:
        """Samples of a whole window."""
        return self.accum_steps * self.micro_batch_size

    def full_batch(self) -> Run:
        """The same samples, one micro-batch a window."""
        whole, rest = self.effective_batch_size, self.tail * self.micro_batch_size
        return replace(self, accum_steps=1, micro_batch_size=whole, tail=0, tail_samples=rest)


NUMBERS: Mapping[str, frozenset[str]] = {
    "accum_steps": frozenset({"accum_steps", "effective_batch_size"}),
    "micro_batch_size": frozenset({"micro_batch_size", "effective_batch_size"}),
    "windows": frozenset({"windows", "samples", "micro_batches"}),
}
"""The numbers of a `Run` that a function has to train with, and the names by which it may read each."""


@dataclass(frozen=True, slots=True)
class Noted(Run):
    """A `Run` that notes which of its names are read."""

    read: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        get = object.__getattribute__
        if name.startswith("_") or name == "read":
            return get(self, name)
        before = {*get(self, "read"), name}
        found = get(self, name)
        get(self, "read").intersection_update(before)  # a property reads others
        get(self, "read").add(name)
        return found

    def never_read(self) -> list[str]:
        """The numbers of the run that were never read."""
        return [name for name, names in NUMBERS.items() if not names & self.read]


def seed(number: int) -> None:
    """Seed Python, NumPy and torch, and open the standard streams that the function closed: recordings begin alike."""
    for stream in (0, 1, 2):
        try:
            os.fstat(stream)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


class Printed:
    """A stream that keeps what is written to it, and passes it on."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.texts = stream, list[str]()

    def write(self, text: str) -> int:
        """Keep a text; how many characters were written."""
        self.texts.append(text)
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def first_call(step: Step, heard: bool = True) -> Step:
    """The function, of which only the first call is `heard`: it is called several times, and would print each time.

    What Python, C code and child processes print in a later call is dropped, unless it is the first one that raises.
    """
    failed = False

    def called(run: Any) -> Any:
        nonlocal heard, failed
        now, heard = heard, False
        with tempfile.TemporaryFile() as kept:
            try:
                with nullcontext() if now else _apart(kept.fileno()):
                    return step(run)
            except BaseException:
                if not now and not failed:
                    kept.seek(0)
                    print(kept.read().decode(errors="replace"), end="", file=sys.stderr, flush=True)
                failed = True
                raise

    return called


@contextmanager
def _apart(kept: int) -> Iterator[None]:
    """What is written to the standard streams, and to their descriptors, goes to the descriptor of a file."""
    with ExitStack() as stack, open(os.dup(kept), "w", buffering=1, errors="replace") as text:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            if stream is None:
                continue
            stream.flush()
            copy = os.dup(number)
            stack.callback(os.close, copy)
            stack.callback(os.dup2, copy, number)
            stack.callback(stream.flush)
            os.dup2(kept, number)
            held = ("stream", text) if isinstance(stream, Printed) else ("write", text.write)  # one keeps its texts
            stack.enter_context(mock.patch.object(stream, *held))
        yield


DECIMAL = re.compile(r"(?<![\w.+-])([-+]?\d*)\.(\d+)(?:[eE]([-+]?\d+))?(?![\w.]*\w)")


def decimals(text: str) -> list[tuple[float, float]]:
    """The decimal fractions in a text, each with the size of its last place."""
    found = DECIMAL.finditer(text)
    return [(float(m[0]), float(f"1e{int(m[3] or 0) - len(m[2])}")) for m in found]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another default floating-point dtype of torch for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


TEXT_NUMBER = re.compile(r"(?<![\w.+-])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")


def parts(returned: Any) -> Iterable[Any]:
    """What a returned container holds; nothing for anything else."""
    if isinstance(returned, Mapping):
        return returned.values()
    if isinstance(returned, list | tuple | set | frozenset):
        return returned
    if is_dataclass(returned) and not isinstance(returned, type):
        return [getattr(returned, f.name) for f in fields(returned)]
    if callable(returned) or isinstance(
        returned, str | int | float | np.ndarray | torch.Tensor | torch.optim.Optimizer
    ):
        return []
    return getattr(returned, "__dict__", {}).values()


def inside(returned: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """What a returned value holds that holds nothing itself, in order. What holds itself is gone through once."""
    held = () if id(returned) in above else parts(returned)
    if not isinstance(returned, Mapping | list | tuple | set | frozenset):
        yield returned
    for part in held:
        yield from inside(part, (*above, id(returned)))


def numbers(returned: Any) -> list[float]:
    """The numbers of one thing that a function returned, no floating-point tensor; of a text, those in it."""
    if isinstance(returned, str):
        return [float(text) for text in TEXT_NUMBER.findall(returned)]
    if isinstance(returned, torch.Tensor):
        returned = np.array([] if returned.is_floating_point() else returned.tolist())
    if isinstance(returned, np.ndarray):
        return [x for one in returned.ravel().tolist() for x in numbers(one)]
    plain = isinstance(returned, int | float | np.integer | np.floating) and not isinstance(returned, bool)
    return [float(returned)] if plain else []
