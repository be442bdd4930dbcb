"""The comparison of deterministic accumulation, measured: one effective batch, split in several ways, trained alike."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from models.sampling.torch_training import CharTraining, Job, Report, Setup
from models.sampling.transformer import Shape, encoded, text_of

SENTENCES, HELD_OUT = 400, 10
VALIDATION = 256
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Measured:
    """One run: losses in nats at the last window, optimizer steps a second (median of all but the first), digests."""

    size: int
    n: int
    steps: int
    train_loss: float
    validation_loss: float
    steps_per_second: float
    weights: str
    repeats: bool


@dataclass(frozen=True)
class Sizes:
    """What the runs share: the transformer, the text, the data."""

    width: int
    layers: int
    heads: int
    block: int
    characters: int
    text: int
    validation: int
    learning_rate: float
    seed: int
    data_seed: int


def one_thread() -> Callable[[], None]:
    """Take one thread, so that a run does not depend on how many there are; gives what puts the old number back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return lambda: torch.set_num_threads(threads)


def texts() -> tuple[Tensor, Tensor, int]:
    """Training text, the last tenth held out, and the number of characters."""
    text, characters = encoded(text_of(SENTENCES))
    cut = len(text) - len(text) // HELD_OUT
    return text[:cut], text[cut:], characters


def setup(size: int, n: int, steps: int, device: str) -> Setup:
    """A run of the comparison."""
    shape = Shape(texts()[2])
    return Setup(size, n, steps, shape, VALIDATION, learning_rate=LEARNING_RATE, device=device)


def sizes(device: str) -> Sizes:
    """What every run of the comparison has."""
    made = setup(1, 1, 1, device)
    s = made.shape
    return Sizes(
        s.width, s.layers, s.heads, s.block, s.characters, sum(len(t) for t in texts()[:2]), made.validation,
        made.learning_rate, made.seed, made.data_seed,
    )  # fmt: skip


def digest(weights: list[Tensor]) -> str:
    """SHA-256 over the bits of every weight, in order."""
    found = hashlib.sha256()
    for weight in weights:
        found.update(weight.contiguous().numpy().tobytes())
    return found.hexdigest()


def measured(size: int, n: int, steps: int, device: str, subject: type[CharTraining] = CharTraining) -> Measured:
    """Train twice with one seed; the numbers are the first run's. Raises ValueError for fewer than two steps."""
    if steps < 2:
        raise ValueError("the first step is not timed, so two are needed")
    restore = one_thread()
    try:
        first, seconds = _timed(subject, setup(size, n, steps, device))
        second, _ = _timed(subject, setup(size, n, steps, device))
    finally:
        restore()
    validation = first.validation
    assert validation is not None
    same = (first.logged, validation, digest(first.weights)) == (
        second.logged,
        second.validation,
        digest(second.weights),
    )
    speed = 1 / statistics.median(seconds)
    return Measured(size, n, steps, first.logged[-1], validation, speed, digest(first.weights), same)


def _timed(subject: type[CharTraining], made: Setup) -> tuple[Report, list[float]]:
    """A run, and the seconds of each window but the first."""
    text, held_out, _ = texts()
    marks: list[float] = []
    report = subject().run(Job(made, text, held_out, stepped=lambda: marks.append(time.perf_counter())))
    return report, [b - a for a, b in pairwise(marks)]


def torch_version() -> str:
    """The version that ran."""
    return str(torch.__version__)


def device_name(device: str) -> str:
    """The processor's capability, or the name of the GPU."""
    return f"cpu {torch.backends.cpu.get_cpu_capability()}" if device == "cpu" else torch.cuda.get_device_name()
