"""The data of a training loop: which samples each micro-batch gets, what is validated, what is logged.

The full effective batch is drawn first, in one call of a generator that serves the data alone, and is then split in
order. A generator is abstract: what a call gives is a function of the seed and of all calls so far, and of nothing
else. So N calls for m numbers promise nothing about one call for N m, as in torch, where it depends on the function
that is called (randperm) and on the device (CUDA). A sample stands for its loss, which loses nothing: the loss of a
sample may be any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Number = Any
Samples = tuple[Any, ...]


class Seed:
    """What a generator gives after one seed: for every history of calls a stretch of `pool`, all of them apart."""

    def __init__(self, pool: Sequence[Number]) -> None:
        self._pool = tuple(pool)
        self._start: dict[tuple[int, ...], int] = {}
        self._used = 0

    def after(self, history: tuple[int, ...]) -> Samples:
        """The numbers of the last call of a history of counts. Raises IndexError when the pool is too short."""
        count = history[-1]
        if history not in self._start:
            if self._used + count > len(self._pool):
                raise IndexError(f"a pool of {len(self._pool)} numbers is too short")
            self._start[history] = self._used
            self._used += count
        start = self._start[history]
        return self._pool[start : start + count]


class Stream:
    """A generator just seeded."""

    def __init__(self, seed: Seed) -> None:
        self._seed = seed
        self._history: tuple[int, ...] = ()

    def draw(self, count: int) -> Samples:
        """The next `count` numbers."""
        if count < 1:
            return ()
        self._history = (*self._history, count)
        return self._seed.after(self._history)

    def restart(self) -> None:
        """Seed it again."""
        self._history = ()


@dataclass(frozen=True)
class Plan:
    """Sizes of a run: samples a micro-batch, micro-batches a window, windows, samples of the validation data.

    `masks` is how many random numbers the model takes for each sample (dropout).
    """

    size: int
    n: int
    steps: int
    validation: int = 0
    masks: int = 0

    @property
    def effective(self) -> int:
        """Samples of an effective batch."""
        return self.size * self.n


@dataclass
class World:
    """The generators of a run, and what no seed controls: the clock and the order in which loaders answer."""

    data: Stream
    validation: Stream
    model: Stream
    clock: Stream
    arrival: int = 0


@dataclass
class Record:
    """What a run did: each step's micro-batches and their masks and losses, what was logged, what was validated."""

    steps: list[list[Samples]] = field(default_factory=list)
    masks: list[Samples] = field(default_factory=list)
    losses: list[list[Number]] = field(default_factory=list)
    logged: list[Number] = field(default_factory=list)
    validation: list[Samples] = field(default_factory=list)


def mean_of(values: Sequence[Number]) -> Number:
    """Left to right, then divided. Raises IndexError for no value."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total / len(values)


class Sampling:
    """The reference: a dedicated generator, the effective batch first, validation at the effective batch size."""

    def run(self, plan: Plan, world: World) -> Record:
        """Train for `plan.steps` windows, then validate."""
        record = Record()
        for _ in range(plan.steps):
            self.window(plan, world, record)
        record.validation = self.validation(plan, world)
        return record

    def window(self, plan: Plan, world: World, record: Record) -> None:
        """One effective batch, micro-batch by micro-batch."""
        batch = self.effective(plan, world)
        micro_batches: list[Samples] = []
        losses: list[Number] = []
        logged: Number = 0
        for i in range(plan.n):
            samples = self.micro_batch(batch, i, plan, world)
            record.masks.append(world.model.draw(plan.masks * len(samples)))
            losses.append(mean_of(samples))
            logged = self.log(logged, losses[-1], plan)
            micro_batches.append(samples)
        record.steps.append(micro_batches)
        record.losses.append(losses)
        record.logged.append(logged)

    def effective(self, plan: Plan, world: World) -> Samples:
        """The samples of the next effective batch, in one call."""
        return world.data.draw(plan.effective)

    def micro_batch(self, batch: Samples, i: int, plan: Plan, world: World) -> Samples:
        """Part number `i` of the effective batch, in its order."""
        return batch[i * plan.size : (i + 1) * plan.size]

    def log(self, logged: Number, loss: Number, plan: Plan) -> Number:
        """What is logged after one more micro-batch: every loss by its share."""
        return logged + loss / plan.n

    def validation(self, plan: Plan, world: World) -> list[Samples]:
        """The validation data in batches of the effective size; the last one may be shorter."""
        samples = world.validation.draw(plan.validation)
        return [samples[i : i + plan.effective] for i in range(0, plan.validation, plan.effective)]


class Empty(Sampling):
    """The empty body: it has the reference's interface and does nothing. Every harness must refute it."""

    def run(self, plan: Plan, world: World) -> Record:
        """Return at once."""
        return Record()
