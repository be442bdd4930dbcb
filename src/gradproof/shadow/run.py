"""What the user's function is handed, and one recording of it."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gradproof.core import GradproofError
from gradproof.shadow.hooks import Hooks
from gradproof.shadow.places import OWN, USER, owner
from gradproof.shadow.recorder import Inject, Recorder
from gradproof.shadow.tape import NOWHERE, Place, Tape

Step = Callable[["Run"], Any]


@dataclass(frozen=True, slots=True)
class Run:
    """How to train: `windows` optimizer steps of `accum_steps` micro-batches of `micro_batch_size` samples.

    `tail` further micro-batches form a short last window. gradproof calls the function with the user's numbers, and
    with the full batch: `accum_steps` 1 and `micro_batch_size` as large as the window. `optimizer` is the word that
    the caller gave, for functions that read it. `by_callers` is gradproof's own: a line that makes data for several
    lines is one source for each of them.
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
    by_callers: bool = False

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
        return replace(
            self,
            accum_steps=1,
            micro_batch_size=self.effective_batch_size,
            tail=0,
            tail_samples=self.tail * self.micro_batch_size,
        )


@dataclass(slots=True)
class Recording:
    """A tape, and in words the error that the user's function ended with, if it did, and its line."""

    tape: Tape
    error: str = ""
    raised: Place = NOWHERE


def seed(number: int) -> None:
    """Seed Python, NumPy and torch, so that two recordings begin alike."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def record(step: Step, run: Run, inject: Inject | None = None) -> Recording:
    """Call the function under the recorder. The function's own error is kept; anything else is raised."""
    seed(run.seed)
    recorder = Recorder(inject=inject)
    recorder.leaves.sites.by_callers = run.by_callers
    error, place = "", NOWHERE
    with recorder, Hooks(recorder) as hooks:
        try:
            returned = step(run)
            recorder.tape.returned = numbers(returned)
            recorder.event("loss", {f"loss/{i:04d}": t for i, t in enumerate(tensors(returned))})
        except Exception as caught:
            error, place = told(caught), blamed(caught)
        hooks.end()
    recorder.tape.shared = recorder.leaves.sites.shared()
    return Recording(recorder.tape, error, place)


def told(error: BaseException) -> str:
    """An exception in words; one that began in gradproof itself says so."""
    innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    own = owner(innermost.f_code.co_filename) == OWN and not isinstance(error, GradproofError)
    return f"{'gradproof itself: ' if own else ''}{type(error).__name__}: {error}"


def blamed(error: BaseException) -> Place:
    """The user's innermost line of a traceback."""
    found = NOWHERE
    for frame, line in traceback.walk_tb(error.__traceback__):
        if owner(frame.f_code.co_filename) == USER:
            found = Place(frame.f_code.co_filename, line, frame.f_code.co_name)
    return found


def tensors(returned: Any) -> list[torch.Tensor]:
    """Every floating-point tensor in what a function returned, in order."""
    if isinstance(returned, torch.Tensor):
        return [returned] if returned.is_floating_point() else []
    if isinstance(returned, Mapping):
        return tensors(list(returned.values()))
    if isinstance(returned, list | tuple):
        return [t for part in returned for t in tensors(part)]
    return []


def numbers(returned: Any) -> list[float]:
    """Every Python float in what a function returned, in order."""
    if isinstance(returned, float | np.floating):
        return [float(returned)]
    if isinstance(returned, Mapping):
        return numbers(list(returned.values()))
    if isinstance(returned, list | tuple):
        return [x for part in returned for x in numbers(part)]
    return []
