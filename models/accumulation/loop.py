"""Gradient accumulation in plain Python: zero, accumulate, unscale, clip by global norm, step.

Written once in operators and the few functions of `gradproof.arith`; the same text runs on float, Fraction,
NumPy scalars, torch tensors, symbolic reals, stubbed floats and IEEE terms. A gradient is a tuple of numbers,
one per parameter element (an element may itself be a tensor). Equations `accumulation` and `loss_scaling` and
the four phases of the contract `gradient-accumulation-kernel-v1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradproof.core.protocol import Event
from gradproof.harness import constant, round_to, sqrt, tell

Number = Any
Vector = tuple[Any, ...]


@dataclass(frozen=True)
class MicroBatch:
    """Mean loss over the micro-batch's samples, its gradient, and how many samples (or tokens) it has."""

    loss: Number
    grads: Vector
    count: int = 1


@dataclass(frozen=True)
class Config:
    """How the loop is set up. `skip` lists the windows whose step the loss scaler suppresses."""

    n: int
    max_norm: Number | None = None
    loss_scale: Number | None = None
    buffer_format: str = "fp32"
    gradient_format: str | None = None
    learning_rate: Number = 1
    skip: frozenset[int] = frozenset()


@dataclass
class Record:
    """What a run did: events with the buffer after each, applied gradients, weights after each attempt, losses."""

    params: Vector
    buffer: Vector
    events: list[Event] = field(default_factory=list)
    values: list[Vector] = field(default_factory=list)
    updates: list[Vector] = field(default_factory=list)
    weights: list[Vector] = field(default_factory=list)
    losses: list[Number] = field(default_factory=list)
    open_loss: Number = 0
    window: int = 0

    def note(self, event: Event, buffer: Vector) -> None:
        """Append an event and make `buffer` the present one."""
        self.events.append(event)
        self.values.append(buffer)
        self.buffer = buffer
        tell(event, buffer)

    def close(self) -> None:
        """End the window: its loss is reported, the next one starts at zero."""
        self.losses.append(self.open_loss)
        tell("report", self.open_loss)
        self.open_loss, self.window = 0, self.window + 1


class Accumulation:
    """The reference loop: equal, mean-reduced micro-batches, one step a window, tail flushed."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Train over `batches` from `params` with `buffer` left over by whoever ran before."""
        record = Record(params, buffer)
        for i, batch in enumerate(batches):
            window = self.window(i, batches, config)
            if self.zeroes_before(i, config):
                record.note(Event.ZERO, self.zero(record.buffer))
            record.open_loss = self.report(record.open_loss, self.scale(batch.loss, batch, window, config))
            grads = self.backward(batch, window, config)
            record.note(Event.ACCUMULATE, self.accumulate(record.buffer, grads, config))
            self.after_backward(i, record, batches, config)
            if self.boundary(i, len(batches), config):
                self.update(record, config)
        record.note(Event.END, record.buffer)
        return record

    def window(self, i: int, batches: Sequence[MicroBatch], config: Config) -> Sequence[MicroBatch]:
        """The micro-batches that share a step with number `i`."""
        start = i - i % config.n
        return batches[start : start + config.n]

    def zeroes_before(self, i: int, config: Config) -> bool:
        """Whether the buffer is zeroed before micro-batch `i`."""
        return i % config.n == 0

    def boundary(self, i: int, total: int, config: Config) -> bool:
        """Whether the optimizer steps after micro-batch `i` of `total`."""
        return (i + 1) % config.n == 0 or i + 1 == total

    def zero(self, buffer: Vector) -> Vector:
        """Phase zero_gradients."""
        return tuple(0 for _ in buffer)

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """Equation loss_scaling: the micro-batch's share of the window, here 1/N."""
        return value / len(window)

    def report(self, open_loss: Number, share: Number) -> Number:
        """The window's loss so far."""
        return open_loss + share

    def backward(self, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Vector:
        """Gradient of the scaled loss, in the format that the backward pass produces, times the loss scale."""
        made = [g if config.gradient_format is None else round_to(g, config.gradient_format) for g in batch.grads]
        shares = [self.scale(round_to(g, config.buffer_format), batch, window, config) for g in made]
        return tuple(s if config.loss_scale is None else s * config.loss_scale for s in shares)

    def accumulate(self, buffer: Vector, grads: Vector, config: Config) -> Vector:
        """Phase accumulate: G += (1/N) g_i, in the buffer's format."""
        return tuple(b + g for b, g in zip(buffer, grads, strict=True))

    def after_backward(self, i: int, record: Record, batches: Sequence[MicroBatch], config: Config) -> None:
        """Nothing: the reference touches the buffer at the boundary only."""

    def update(self, record: Record, config: Config) -> None:
        """Unscale, clip and step, once, at the boundary. The schedule follows a step, and no skipped one."""
        self.prepare(record, config)
        if self.step(record, config):
            record.note(Event.SCHEDULE, record.buffer)
        record.close()

    def prepare(self, record: Record, config: Config) -> None:
        """Unscale, then clip."""
        if config.loss_scale is not None:
            record.note(Event.UNSCALE, self.unscale(record.buffer, config))
        if config.max_norm is not None:
            record.note(Event.CLIP, self.clip(record.buffer, config.max_norm))

    def unscale(self, buffer: Vector, config: Config) -> Vector:
        """Take the loss scale out again."""
        return tuple(b / config.loss_scale for b in buffer)

    def clip(self, buffer: Vector, max_norm: Number) -> Vector:
        """Phase clip: torch's clip_grad_norm_, coefficient min(1, max_norm / (norm + 1e-6))."""
        norm = sqrt(sum((b * b for b in buffer[1:]), buffer[0] * buffer[0]))
        room = norm + constant("1e-6", norm)
        if room <= max_norm:
            return buffer
        coefficient = max_norm / room
        return tuple(b * coefficient for b in buffer)

    def step(self, record: Record, config: Config) -> bool:
        """Phase step: one attempt, and whether it was performed; the scaler skips the windows in `config.skip`."""
        performed = record.window not in config.skip
        record.note(Event.STEP if performed else Event.SKIP, record.buffer)
        if performed:
            record.updates.append(record.buffer)
            moved = zip(record.params, record.buffer, strict=True)
            record.params = tuple(p - config.learning_rate * g for p, g in moved)
        record.weights.append(record.params)
        return performed


class WeightedAccumulation(Accumulation):
    """Unequal micro-batches: the weight is the micro-batch's samples (or tokens) over the window's."""

    def scale(self, value: Number, batch: MicroBatch, window: Sequence[MicroBatch], config: Config) -> Number:
        """count / total instead of 1 / N."""
        return value * batch.count / sum(b.count for b in window)


class Empty(Accumulation):
    """The empty body: it has the reference's interface and does nothing. Every harness must refute it."""

    def run(self, params: Vector, batches: Sequence[MicroBatch], config: Config, buffer: Vector) -> Record:
        """Return at once."""
        return Record(params, buffer)
