"""Whole windows: KANI-GA-003, -008 and -009 of the contract, with every quantity of the loop a free input at once.

The specification is written from the equations of the contract and from nothing of the model's text. A micro-batch
belongs to the window that its number divided by N names. What is applied is a sum over the window. The weights are the
first ones less the learning rate times the sum of all that was applied. A quotient is stated as a product: with
r = |b| + 1e-6, the clipped gradient u is b where r <= max_norm, and r u = max_norm b elsewhere.

Full windows of N micro-batches and a last one that may be shorter; loss scale, clip, skipped steps, tail and weights by
count are crossed with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any

from gradproof.harness import sqrt
from models.accumulation.loop import Config, MicroBatch, Record, Vector
from models.accumulation.window import Event

EPSILON = Fraction(1, 10**6)  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(frozen=True)
class Case:
    """The inputs of a run."""

    batches: list[MicroBatch]
    config: Config
    weights: Vector
    buffer: Vector
    by_count: bool

    @property
    def windows(self) -> list[list[MicroBatch]]:
        """The micro-batches of each window: those whose number, divided by N, has the window's number as quotient."""
        last = (len(self.batches) - 1) // self.config.n
        return [[b for i, b in enumerate(self.batches) if i // self.config.n == w] for w in range(last + 1)]


def total(values: Sequence[Any]) -> Any:
    """The sum of at least one value."""
    return sum(values[1:], values[0])


def share(case: Case, window: Sequence[MicroBatch], of: Sequence[Any]) -> tuple[Any, Any]:
    """The window's weighted mean as numerator and denominator: sum of c_i x_i over sum of c_i, or sum of x_i over N."""
    if case.by_count:
        return total([b.count * x for b, x in zip(window, of, strict=False)]), total([b.count for b in window])
    return total(list(of)), len(window)


def whole_window(k: Any, loop: Any) -> None:
    """Every event, buffer, loss, applied gradient and weight of a run of several windows, for all inputs at once."""
    check_defaults(k)
    case = inputs(k, loop)
    k.scenario(case.batches, case.config, case.buffer, params=case.weights)
    record = loop.run(case.weights, case.batches, case.config, case.buffer)
    check_events(k, case, record)
    check_buffers(k, case, record)
    check_weights(k, case, record)
    check_losses(k, case, record)


def check_defaults(k: Any) -> None:
    """A micro-batch that says nothing of its samples has one; a plain loop has no clip, no loss scale and no skips."""
    k.check("GA-EQ-001", MicroBatch(0, (0,)) == MicroBatch(0, (0,), 1), "one sample")
    k.check("GA-INV-003", Config(2) == Config(2, None, None, "fp32", None, 1, frozenset()), "a plain configuration")


def inputs(k: Any, loop: Any) -> Case:
    """A case of the claim: concrete are N, the size of the tail, which windows are skipped, and what is switched on."""
    by_count, width = k.params["weights"] == "count", k.bound("elements")
    clipped, scaled = k.choose("clipped", [False, True]), k.choose("scaled", [False, True])
    windows = k.bound("clipped_windows" if clipped else "windows")
    n, tail = k.choose("N and tail", list(k.params["clipped_shapes" if clipped else "shapes"]))
    skip = frozenset(k.choose("skipped windows", list(k.params["skips"])))
    count = n * (windows - 1) + tail
    losses = k.reals("loss", count)
    grads = [k.reals(f"g{j}", count) for j in range(width)]
    counts = [positive(k, f"count[{i}]") if by_count else 1 for i in range(count)]
    config = Config(
        n,
        max_norm=positive(k, "max_norm") if clipped else None,
        loss_scale=positive(k, "loss scale") if scaled else None,
        learning_rate=k.real("learning rate"),
        skip=skip,
    )
    batches = [MicroBatch(x, row, c) for x, row, c in zip(losses, zip(*grads, strict=True), counts, strict=True)]
    return Case(batches, config, k.reals("weight", width), k.reals("left over", width), by_count)


def positive(k: Any, name: str) -> Any:
    """A real input above 0."""
    x = k.real(name)
    k.assume(x > 0)
    return x


def events_of(case: Case) -> Iterator[tuple[Event, int, int]]:
    """The events of the run, each with its window and how many micro-batches of it are in."""
    for w, window in enumerate(case.windows):
        yield Event.ZERO, w, 0
        for held in range(1, len(window) + 1):
            yield Event.ACCUMULATE, w, held
        if case.config.loss_scale is not None:
            yield Event.UNSCALE, w, len(window)
        if case.config.max_norm is not None:
            yield Event.CLIP, w, len(window)
        if w in case.config.skip:
            yield Event.SKIP, w, len(window)
        else:
            yield Event.STEP, w, len(window)
            yield Event.SCHEDULE, w, len(window)
    yield Event.END, len(case.windows) - 1, len(case.windows[-1])


CLAUSES = {
    Event.SCHEDULE: "GA-INV-003",
    Event.CLIP: "GA-INV-005",
    Event.ZERO: "GA-INV-002",
    Event.UNSCALE: "GA-EQ-001",
    Event.STEP: "GA-INV-003",
    Event.SKIP: "GA-INV-003",
    Event.ACCUMULATE: "GA-EQ-001",
    Event.END: "GA-INV-003",
}
"""The clause that an event belongs to. Where one event comes instead of another, the upper one's is broken."""


def check_events(k: Any, case: Case, record: Record) -> None:
    """GA-INV-003: the loop does these things, in this order, and nothing else."""
    right = [event for event, _, _ in events_of(case)]
    for i, (did, want) in enumerate(zip(record.events, right, strict=False)):
        clause = next(c for event, c in CLAUSES.items() if event in (did, want))
        k.check(clause, did is want, f"event {i}: {did.value} instead of {want.value}")
    k.check("GA-INV-003", len(record.events) == len(right) == len(record.values), "as many events")
    kept = [w for w in range(len(case.windows)) if w not in case.config.skip]
    k.check("GA-INV-003", len(record.updates) == len(kept), "one applied gradient a window that is not skipped")
    k.check("GA-INV-003", len(record.weights) == len(case.windows), "one attempt a window")
    k.cover("a window is skipped between two that are not", 1 in case.config.skip and {0, 2} <= set(kept))
    k.cover("a short last window", len(case.windows[-1]) < case.config.n)


def every(k: Any, clause: str, claims: Iterable[Any], label: str) -> None:
    """One query for several claims."""
    k.check(clause, reduce(and_, claims, True), label)


def check_losses(k: Any, case: Case, record: Record) -> None:
    """GA-INV-001: each window reports the weighted mean of its losses."""
    k.check("GA-INV-001", len(record.losses) == len(case.windows), "one reported loss a window")
    for w, (got, window) in enumerate(zip(record.losses, case.windows, strict=True)):
        above, below = share(case, window, [b.loss for b in window])
        k.check("GA-INV-001", k.same(got * below, above), f"window {w}: the mean of its losses")


def check_buffers(k: Any, case: Case, record: Record) -> None:
    """The buffer after every event: zero, the scaled sum so far, the mean, the clipped mean."""
    before: Vector = ()
    for (event, w, held), value in zip(events_of(case), record.values, strict=True):
        clause, label = CLAUSES[event], f"window {w}, {event.value}, {held} micro-batches in"
        if event is Event.ACCUMULATE and case.config.max_norm is not None:
            clause = "GA-INV-005"  # the sums of a run without a clip are GA-EQ-001's
        k.check(clause, len(value) == len(case.weights), f"{label}: every element")
        if event is Event.CLIP:
            check_clip(k, value, before, case.config.max_norm, label)
        else:
            rows = zip(value, right_of(case, event, w, held, before), strict=True)
            every(k, clause, (k.same(x * below, above) for x, (above, below) in rows), label)
        before = value


def right_of(case: Case, event: Event, w: int, held: int, before: Vector) -> list[tuple[Any, Any]]:
    """What each element of the buffer is after an event other than a clip, as numerator and denominator."""
    if event is Event.ZERO:
        return [(0, 1)] * len(case.weights)
    if event not in (Event.ACCUMULATE, Event.UNSCALE):
        return [(b, 1) for b in before]
    window, scale = case.windows[w], case.config.loss_scale
    sums = [share(case, window, [b.grads[j] for b in window[:held]]) for j in range(len(case.weights))]
    return sums if event is Event.UNSCALE or scale is None else [(above * scale, below) for above, below in sums]


def check_clip(k: Any, clipped: Vector, whole: Vector, limit: Any, label: str) -> None:
    """GA-INV-005: the whole gradient, cut to the largest norm, in its own direction."""
    room = sqrt(total([x * x for x in whole])) + EPSILON
    fits = room <= limit
    k.cover("a gradient that fits", fits)
    k.cover("a gradient that is cut", ~fits)
    pairs = list(zip(clipped, whole, strict=True))
    every(k, "GA-INV-005", ((~fits | k.same(x, b)) & (fits | k.same(x * room, limit * b)) for x, b in pairs), label)


def check_weights(k: Any, case: Case, record: Record) -> None:
    """GA-INV-003: what is applied is the buffer at the step, and moves the weights by the learning rate and no more."""
    at_step = [v for (event, _, _), v in zip(events_of(case), record.values, strict=True) if event is Event.STEP]
    rate = case.config.learning_rate
    pairs = [
        (x, v)
        for update, value in zip(record.updates, at_step, strict=True)
        for x, v in zip(update, value, strict=True)
    ]
    every(k, "GA-INV-003", (k.same(x, v) for x, v in pairs), "what the step is handed is applied")
    for w, weights in enumerate(record.weights):
        steps = at_step[: sum(i not in case.config.skip for i in range(w + 1))]
        moved = [
            start - rate * total([u[j] for u in steps]) if steps else start for j, start in enumerate(case.weights)
        ]
        rows = zip(weights, moved, strict=True)
        every(k, "GA-INV-003", (k.same(x, m) for x, m in rows), f"window {w}: start - rate * all that was applied")
    rows = zip(record.params, record.weights[-1], strict=True)
    every(k, "GA-INV-003", (k.same(x, m) for x, m in rows), "the weights at the end are those of the last window")
