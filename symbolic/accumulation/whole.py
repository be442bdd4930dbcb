"""Whole windows: KANI-GA-003, -008 and -009 of the contract, with every quantity of the loop a free input at once.

The specification is written from the equations of the contract and from nothing of the model's text. A micro-batch
belongs to the window that its number divided by N names. The gradient of a window is a sum over its samples, divided
by how many they are. The weights are the first ones less the learning rate times the sum of all that was applied. A
quotient is stated as a product: with r = |b| + 1e-6, the clipped gradient u is b where r <= max_norm, and
r u = max_norm b elsewhere.

Runs of several windows of N micro-batches, of which the last one may be shorter, and runs of one window, which may have
fewer than N; loss scale, clip, skipped steps, tail and weights by count are crossed with each other. Some of the runs
follow two others of the same instance, on given numbers: nothing of an earlier run may be left in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from gradproof.core.protocol import Event
from gradproof.harness import sqrt
from models.accumulation.loop import Config, MicroBatch, Record, Vector

EPSILON = Fraction(1, 10**6)  # torch.nn.utils.clip_grad_norm_ adds it to the norm
SIZES = (2, 1, 3)  # samples of successive micro-batches, where a gradient is made of its samples


@dataclass(frozen=True)
class Samples:
    """The samples of a micro-batch: how many, the sum of their losses, and the sum of their gradients by element."""

    size: Any
    loss: Any
    grads: Vector


@dataclass(frozen=True)
class Case:
    """The inputs of a run. `samples` has a row for each micro-batch; `again`: the instance has run before."""

    batches: list[MicroBatch]
    config: Config
    weights: Vector
    buffer: Vector
    samples: list[Samples]
    again: bool = False

    @property
    def windows(self) -> list[list[Samples]]:
        """The samples of each window: of the micro-batches whose number, divided by N, has the window's as quotient."""
        last = (len(self.batches) - 1) // self.config.n
        return [[s for i, s in enumerate(self.samples) if i // self.config.n == w] for w in range(last + 1)]


CLAIMED = {
    "GA-INV-002": "the buffer is zero where a window begins",
    "GA-EQ-001": "the buffer is the scaled sum so far, and the mean after the unscaling",
    "GA-INV-005": "the buffer is the scaled sum so far before a clip, and the clipped mean after it",
    "GA-INV-003": "the buffer at a step is applied, and moves the weights by the learning rate and no more",
    "GA-INV-001": "each window reports the mean of its losses",
}
"""What is claimed of the numbers of a run. A clause comes before those of what follows from its buffer."""


class Claims:
    """Claims of one run, asked as one question a clause, because a question costs more than a claim."""

    def __init__(self, k: Any) -> None:
        self.k = k
        self.of: dict[str, list[Any]] = {clause: [] for clause in CLAIMED}

    def same(self, clause: str, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Each two numbers are equal."""
        self.of[clause] += [self.k.same(a, b) for a, b in pairs]

    def ask(self) -> None:
        """Ask for all of them, clause by clause."""
        for clause, claims in self.of.items():
            if claims:
                self.k.check(clause, reduce(and_, claims, True), CLAIMED[clause])


def total(values: Sequence[Any]) -> Any:
    """The sum of at least one value."""
    return sum(values[1:], values[0])


def whole_window(k: Any, loop: Any) -> None:
    """Every event, buffer, loss, applied gradient and weight of a run of several windows, for all inputs at once."""
    check_defaults(k)
    case = inputs(k)
    k.scenario(case.batches, case.config, case.buffer, params=case.weights)
    for earlier in [ON, OFF] if case.again else []:
        loop.run(case.weights, numbers(case), earlier, case.buffer)
    record = loop.run(case.weights, case.batches, case.config, case.buffer)
    check_events(k, case, record)
    check_windows(k, case, record)
    check_end(k, case, record)


def check_defaults(k: Any) -> None:
    """A micro-batch that says nothing of its samples has one; a plain loop has no clip, no loss scale and no skips."""
    k.check("GA-EQ-001", MicroBatch(0, (0,)) == MicroBatch(0, (0,), 1), "one sample")
    k.check("GA-INV-003", Config(2) == Config(2, None, None, "fp32", None, 1, frozenset()), "a plain configuration")
    k.check("GA-INV-003", Record((1,), (2,)) == Record((1,), (2,), [], [], [], [], [], 0, 0), "nothing is recorded yet")


def inputs(k: Any) -> Case:
    """A case of the claim: concrete are N, M, which windows are skipped, and what is switched on."""
    by_count, width = k.params["weights"] == "count", k.bound("elements")
    run: Shape = k.choose("N, size of the last window, whether it is the only one, skipped windows", shapes(k))
    again = k.choose("the instance has run before", [False, True] if run.single else [False])
    clipped = k.choose("clipped", [False, True] if run.single or run.of in k.params["clipped_shapes"] else [False])
    scaled = k.choose("scaled", [False, True])
    summed = by_count and not (again or clipped) and k.choose("counts", ["free", "of samples"]) == "of samples"
    windows = 1 if run.single else k.bound("clipped_windows" if clipped else "windows")
    count = run.n * (windows - 1) + run.last
    config = Config(
        run.n,
        max_norm=positive(k, "max_norm") if clipped else None,
        loss_scale=positive(k, "loss scale") if scaled else None,
        learning_rate=k.real("learning rate"),
        skip=frozenset(w for w in run.skip if w < windows),
    )
    samples = [summed_samples(k, i, width) for i in range(count)] if summed else []
    if summed:
        batches = [MicroBatch(s.loss / s.size, tuple(g / s.size for g in s.grads), s.size) for s in samples]
    else:
        losses, columns = k.reals("loss", count), [k.reals(f"g{j}", count) for j in range(width)]
        counts = [positive(k, f"count[{i}]") if by_count else 1 for i in range(count)]
        batches = [MicroBatch(x, row, c) for x, row, c in zip(losses, zip(*columns, strict=True), counts, strict=True)]
        samples = [sums_of(b) for b in batches]
    return Case(batches, config, k.reals("weight", width), k.reals("left over", width), samples, again)


class Shape(NamedTuple):
    """N, the micro-batches of the last window, whether there is no other one, and the windows that are skipped."""

    n: int
    last: int
    single: bool
    skip: tuple[int, ...]

    @property
    def of(self) -> list[int]:
        """N and the last window, as the contract lists them."""
        return [self.n, self.last]


def shapes(k: Any) -> list[Shape]:
    """The runs of several windows and those of one, of which the second ones are soon done."""
    many = [Shape(n, last, False, tuple(skip)) for n, last in k.params["shapes"] for skip in k.params["skips"]]
    single = [Shape(n, last, True, skip) for n, last in k.params["single_windows"] for skip in ((), (0,))]
    return many[:1] + single + many[1:]


def summed_samples(k: Any, i: int, width: int) -> Samples:
    """Micro-batch `i`, made of samples: each has a loss and a gradient of its own."""
    size = SIZES[i % len(SIZES)]
    return Samples(
        size, total(k.reals(f"loss[{i}]", size)), tuple(total(k.reals(f"g{j}[{i}]", size)) for j in range(width))
    )


def sums_of(batch: MicroBatch) -> Samples:
    """What a micro-batch of so many samples says of their sums: its loss and its gradient are their means."""
    return Samples(batch.count, batch.loss * batch.count, tuple(g * batch.count for g in batch.grads))


def positive(k: Any, name: str) -> Any:
    """A real input above 0."""
    x = k.real(name)
    k.assume(x > 0)
    return x


ON = Config(2, max_norm=Fraction(2), loss_scale=Fraction(8), learning_rate=Fraction(1, 3), skip=frozenset({0}))
OFF = Config(3, learning_rate=Fraction(5))


def numbers(case: Case) -> list[MicroBatch]:
    """Five micro-batches of given numbers, as wide as the case; of one and of two samples where its counts are free."""
    plain = isinstance(case.batches[0].count, int)
    rows = [tuple(Fraction(i * i + 2, j + 1) - i for j in range(len(case.weights))) for i in range(5)]
    return [MicroBatch(Fraction(3 * i + 1, 2), row, 1 if plain else 1 + i % 2) for i, row in enumerate(rows)]


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


def check_windows(k: Any, case: Case, record: Record) -> None:
    """Window by window: the buffer after every event, what is applied, the weights, and the reported loss."""
    k.check("GA-INV-001", len(record.losses) == len(case.windows), "one reported loss a window")
    before: Vector = ()
    applied: list[Vector] = []
    events = list(zip(events_of(case), record.values, strict=True))
    claims = Claims(k)
    for w in range(len(case.windows)):
        for event, held, value in [(event, held, value) for (event, at, held), value in events if at == w]:
            k.check(CLAUSES[event], len(value) == len(case.weights), f"window {w}, {event.value}: every element")
            claim_buffer(claims, case, (event, w, held), before, value)
            if event is Event.STEP:
                applied.append(value)
                claims.same("GA-INV-003", zip(record.updates[len(applied) - 1], value, strict=True))
            before = value
        claims.same("GA-INV-003", zip(record.weights[w], moved(case, applied), strict=True))
        above, below = mean_of(case.windows[w], [s.loss for s in case.windows[w]])
        claims.same("GA-INV-001", [(record.losses[w] * below, above)])
    claims.ask()


def mean_of(window: Sequence[Samples], sums: Sequence[Any]) -> tuple[Any, Any]:
    """The mean over all samples of a window as numerator and denominator; `sums` has the sum of some micro-batches."""
    return total(sums), total([s.size for s in window])


def moved(case: Case, applied: Sequence[Vector]) -> Vector:
    """The first weights less the learning rate times the sum of all that was applied."""
    if not applied:
        return case.weights
    sums = [total([u[j] for u in applied]) for j in range(len(case.weights))]
    return tuple(start - case.config.learning_rate * s for start, s in zip(case.weights, sums, strict=True))


def claim_buffer(claims: Claims, case: Case, at: tuple[Event, int, int], before: Vector, value: Vector) -> None:
    """The buffer after an event: zero, the scaled sum so far, the mean, the clipped mean, or what it was."""
    event, w, held = at
    clause, config = CLAUSES[event], case.config
    if event is Event.CLIP:
        claim_clip(claims, value, before, config.max_norm)
    elif event in (Event.ACCUMULATE, Event.UNSCALE):
        if event is Event.ACCUMULATE and config.max_norm is not None:
            clause = "GA-INV-005"  # the sums of a run without a clip are GA-EQ-001's
        factor = 1 if event is Event.UNSCALE or config.loss_scale is None else config.loss_scale
        window = case.windows[w]
        for j, x in enumerate(value):
            above, below = mean_of(window, [s.grads[j] for s in window[:held]])
            claims.same(clause, [(x * below, above * factor)])
    else:
        claims.same(clause, zip(value, [0] * len(value) if event is Event.ZERO else before, strict=True))


def claim_clip(claims: Claims, clipped: Vector, whole: Vector, limit: Any) -> None:
    """GA-INV-005: the whole gradient, cut to the largest norm, in its own direction."""
    k, room = claims.k, sqrt(total([x * x for x in whole])) + EPSILON
    fits, cut = room <= limit, room > limit
    k.cover("a gradient that fits", fits)
    k.cover("a gradient that is cut", cut)
    claims.of["GA-INV-005"] += [
        (fits & k.same(x, b)) | (cut & k.same(x * room, limit * b)) for x, b in zip(clipped, whole, strict=True)
    ]


def check_end(k: Any, case: Case, record: Record) -> None:
    """GA-INV-003: at the end weights and buffer are the last ones, and no window and no loss is open."""
    k.check("GA-INV-003", record.window == len(case.windows), "as many windows are over")
    k.check("GA-INV-001", k.same(record.open_loss, 0), "no loss is left open")
    ends = [*zip(record.params, record.weights[-1], strict=True), *zip(record.buffer, record.values[-1], strict=True)]
    k.check("GA-INV-003", reduce(and_, (k.same(x, y) for x, y in ends), True), "the last weights and the last buffer")
