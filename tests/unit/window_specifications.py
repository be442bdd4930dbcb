"""Every specification over the events of a window, as an acceptor: one event at a time, or a whole run.

An adapter runs the specification itself, on plain numbers, and is named by the check that it belongs to. It repeats
nothing of it. Windows are cut by the data: an accumulation opens the next window where none is under way.

What a specification cannot see is written at its adapter. `decides` are the topics and events of which it has an
opinion; one that is `necessary` states less than the others: where it refuses, they must refuse as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import Breaks, Event, State, replay
from gradproof.harness import Ratio
from gradproof.shadow.judge.steps import StepRuling
from gradproof.shadow.tape import run_events as kinds
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import SeenPass, SeenStep
from models.accumulation.loop import Config, MicroBatch, Record
from models.accumulation.window_bugs import SCHEDULING, SYNCHRONISING, TABLE, Loop
from symbolic.accumulation import contracts, whole, window as facts
from symbolic.accumulation.window import Counts, Proof, moved, refused
from symbolic.systems import contracts as training

# -- Data and runs.

STALE, STEPS, SCHEDULES, CLIPS, UNSCALES, SYNCS = (
    "GA-INV-002", "GA-INV-003: steps", "GA-INV-003: schedule", "GA-INV-005", "GA-EQ-001: unscale", "GA-EQ-001: sync",
)  # fmt: skip
_E = Event


@dataclass(frozen=True)
class Data:
    """Micro-batches of the windows, in order, and whether the losses carry a scale."""

    sizes: tuple[int, ...]
    scaled: bool = False

    @property
    def n(self) -> int:
        """Micro-batches of a full window."""
        return max(self.sizes)

    @property
    def total(self) -> int:
        """Micro-batches in all."""
        return sum(self.sizes)

    @property
    def equal(self) -> bool:
        """Whether the windows are full ones and then a tail."""
        return all(size == self.n for size in self.sizes[:-1])

    def place(self, seen: int) -> tuple[bool, bool, int]:
        """Of the next micro-batch: whether it opens a window, is the last one of it, and how many that has."""
        for size in self.sizes:
            if seen < size:
                return seen == 0, seen + 1 == size, size
            seen -= size
        raise ValueError("the data have no more micro-batches")


Broken = frozenset[str]
"""The topics that an event breaks."""


@dataclass(frozen=True)
class Spec:
    """An acceptor. `step(data, state, event, seen)` gives the next state and what the event breaks."""

    check: str
    decides: Mapping[str, Collection[Event]]
    start: Callable[[Data], Any]
    step: Callable[[Data, Any, Event, int], tuple[Any, Broken]]
    necessary: bool = False


# -- The window table, and loops around it.

TOPIC = {"GA-INV-002": STALE, "GA-INV-005": CLIPS}


def topic_of(broken: Breaks, event: Event) -> str:
    """The topic of a rule of the table."""
    if broken.obligation == "GA-EQ-001":
        return SYNCS if event is _E.SYNC else UNSCALES
    schedules = SCHEDULES if event is _E.SCHEDULE else STEPS
    return TOPIC.get(broken.obligation, schedules)


Walk = tuple[State, int]


def loop_spec(check: str, loop: Loop, decides: Mapping[str, Collection[Event]], promise: str = "") -> Spec:
    """A loop: the table, its memory `summed`, and what it refuses besides. `promise`: the topic of those refusals."""

    def step(data: Data, at: Walk, event: Event, seen: int) -> tuple[Any, Broken]:
        state, summed = at
        last = event is _E.ACCUMULATE and data.place(seen)[1]
        after = loop.advance(state, event, last=last, scaled=data.scaled)
        if isinstance(after, Breaks):
            return at, frozenset({topic_of(after, event)})
        if any(holds for holds, _ in refused(loop, Counts(summed=summed), state, event)):
            return at, frozenset({promise})
        return (after, loop.remember(summed, event)), none

    return Spec(check, decides, lambda data: (State.CLEAN, 0), step)


none: Broken = frozenset()
BUFFER = {
    STALE: (_E.ZERO, _E.ACCUMULATE),
    STEPS: (_E.STEP, _E.SKIP, _E.ACCUMULATE, _E.END),
    CLIPS: (_E.CLIP, _E.ACCUMULATE, _E.SYNC, _E.UNSCALE),
    UNSCALES: (_E.UNSCALE,),
}
FOLLOWS = (_E.SCHEDULE, _E.ACCUMULATE, _E.END)
SUMS = (_E.SYNC, _E.CLIP, _E.STEP, _E.SKIP)
TABLE_SPEC = loop_spec("the window table", TABLE, BUFFER)
SCHEDULING_SPEC = loop_spec("the loop SCHEDULING", SCHEDULING, {**BUFFER, SCHEDULES: FOLLOWS}, SCHEDULES)
SYNCHRONISING_SPEC = loop_spec("the loop SYNCHRONISING", SYNCHRONISING, {**BUFFER, SYNCS: SUMS}, SYNCS)


def _ignoring_schedules(data: Data, at: Walk, event: Event, seen: int) -> tuple[Any, Broken]:
    return (at, none) if event is _E.SCHEDULE else TABLE_SPEC.step(data, at, event, seen)


ANY_SCHEDULE = replace(TABLE_SPEC, check="the table without schedules", step=_ignoring_schedules)
"""Takes each run whose buffer is treated as the table says, wherever the schedule advances."""


# -- The demands of the proofs of `symbolic/accumulation/window.py`, on their own counters.


def proof_spec(check: str, proof: Proof, topic: str, events: Collection[Event], necessary: bool = False) -> Spec:
    """A proof: its demands when an act comes, on the counters of what was done.

    Of a gradient that is accumulated onto an applied one, KANI-GA-011 speaks at the step that applies it. Every way on
    leads to that step, or to a loss or an unapplied gradient; so it is asked of it at once.
    """

    def start(data: Data) -> Any:
        counts = dict.fromkeys(proof.names, 0)
        if proof.equal:
            quotient, rest = divmod(data.total, data.n)
            counts |= {"n": data.n, "total": data.total, "quotient": quotient, "rest": rest, "flush": 1}
        return counts

    def step(data: Data, counts: Mapping[str, int], event: Event, seen: int) -> tuple[Any, Broken]:
        g, opens, last, size = Counts(**counts), False, False, 0
        if event is _E.ACCUMULATE:
            opens, last, size = data.place(seen)
        act = facts.Act(event, opens, opens and size < data.n, last, data.scaled, size)
        after = moved(proof, proof.loop, g, act)
        met = all(d.holds(g) for d in proof.demands if d.event is event)
        if event is _E.ACCUMULATE and topic == STALE:
            met = met and all(d.holds(after) for d in proof.demands if d.event is _E.STEP)
        return vars(after), none if met else frozenset({topic})

    return Spec(check, {topic: events}, start, step, necessary)


PROOFS = {
    "KANI-GA-011": proof_spec("KANI-GA-011", facts.NO_STALE_GRADIENT, STALE, BUFFER[STALE]),
    "KANI-GA-012": proof_spec("KANI-GA-012", facts.STEPS_OF_EQUAL_WINDOWS, STEPS, (_E.END,), necessary=True),
    "KANI-GA-013": proof_spec("KANI-GA-013", facts.ONE_STEP_A_WINDOW, STEPS, BUFFER[STEPS]),
    "KANI-GA-014": proof_spec("KANI-GA-014", facts.ONE_CLIP_A_WINDOW, CLIPS, BUFFER[CLIPS]),
    "KANI-GA-015": proof_spec("KANI-GA-015", facts.ONE_UNSCALE_A_WINDOW, UNSCALES, BUFFER[UNSCALES]),
    "KANI-GA-017": proof_spec("KANI-GA-017", facts.SCHEDULE_FOLLOWS_STEPS, SCHEDULES, FOLLOWS),
    "KANI-GT-303": proof_spec("KANI-GT-303", facts.ONE_SYNC_A_WINDOW, SYNCS, SUMS),
}


# -- Checks that judge a whole run. They get a subject that has done just these acts.


@dataclass(frozen=True)
class Trace:
    """A whole run: the data and what was done, END included."""

    data: Data
    events: tuple[Event, ...]

    @property
    def skipped(self) -> frozenset[int]:
        """The windows whose step was skipped, where each window has one attempt."""
        attempts = [event for event in self.events if event in facts.ATTEMPTS]
        return frozenset(i for i, event in enumerate(attempts) if event is _E.SKIP)

    def __str__(self) -> str:
        words = ", ".join(event.value for event in self.events)
        return f"{words} (micro-batches of the windows: {self.data.sizes}{', scaled' * self.data.scaled})"


class Did:
    """A subject that has done the events of a run, each applied gradient the mean of its window."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.after = trace, _after(trace, (_E.SCHEDULE,))
        self.attempted = _after(trace, (_E.STEP, _E.SKIP))

    def run(self, params: Any, batches: Sequence[MicroBatch], config: Config, buffer: Any) -> Record:
        """The record of the run, whose windows were attempted once each."""
        events = list(self.trace.events)
        made = Record(params, buffer, events=events, values=[buffer] * len(events))
        for i in range(0, len(batches), config.n):
            window = batches[i : i + config.n]
            mean = tuple(sum(column) / len(window) for column in zip(*(b.grads for b in window), strict=True))
            if i // config.n not in self.trace.skipped:
                made.updates.append(mean)
                made.params = tuple(p - config.learning_rate * g for p, g in zip(made.params, mean, strict=True))
            made.weights.append(made.params)
        return made

    def ends(self, held: int, n: int, batch: int, batches: int) -> bool:
        """Whether a step is attempted after each micro-batch in turn."""
        return next(self.attempted) > 0

    def schedules(self, closed: bool, skipped: bool) -> int:
        """Scheduler steps after each micro-batch in turn: those up to the next one."""
        return next(self.after)

    def total(self, epochs: int, batches: int, n: int) -> int:
        """What is planned, which no event shows: what is right."""
        return epochs * -(-batches // n)


def _after(trace: Trace, kinds: tuple[Event, ...]) -> Iterator[int]:
    """How many events of these kinds follow each micro-batch, up to the next one."""
    count, begun = 0, False
    for event in trace.events:
        if event is _E.ACCUMULATE and begun:
            yield count
            count = 0
        begun |= event is _E.ACCUMULATE
        count += event in kinds
    yield count


Judged = Callable[[Trace], bool | None]
"""Whether a check accepts a whole run; None where it cannot be asked."""


def cross_ga_004(trace: Trace) -> bool | None:
    """The CrossHair contract of the loop. It skips one window, of the first three, and needs a number of one."""
    m, n, skip = trace.data.total, trace.data.n, min({*trace.skipped, len(trace.data.sizes)})
    if len(trace.skipped) > 1 or skip > 2 or m > 6 or n > 4:
        return None
    return bool(contracts.step_count(Did(trace), Ratio)(m, n, skip, 3, 8))


def cross_gt_402(trace: Trace) -> bool | None:
    """The CrossHair contract of the epochs, of one epoch; attempt number `skip` is skipped, none for 0.

    It counts schedules at each micro-batch, so it does not see what comes before the first one.
    """
    m, n, skip = trace.data.total, trace.data.n, min(trace.skipped, default=-1) + 1
    if len(trace.skipped) > 1 or skip > 2 or m > 4 or n > 3:
        return None
    return bool(training.schedule_within_total(Did(trace))(1, m, n, skip))


class Checks:
    """Stands for the kit: remembers the clauses that are broken."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def check(self, clause: str, holds: Any, text: str) -> None:
        """A claim."""
        if not holds:
            self.broken.append(clause)

    def cover(self, text: str, holds: Any = True) -> None:
        """Nothing has to be reached by one run."""


def whole_window(trace: Trace) -> bool | None:
    """The events of KANI-GA-003, -008 and -009: those of the reference loop, in its order, and no others."""
    k, config = Checks(), Config(trace.data.n, loss_scale=4 if trace.data.scaled else None, skip=trace.skipped)
    batches = [MicroBatch(Fraction(1), (Fraction(1, 2 + i),)) for i in range(trace.data.total)]
    zero = (Fraction(0),)
    record = Did(trace).run(zero, batches, config, zero)
    whole.check_events(k, whole.Case(batches, config, zero, zero, [whole.sums_of(b) for b in batches]), record)
    return not k.broken


def replayed(trace: Trace) -> bool | None:
    """The trace check of a recorded step."""
    return replay(trace.events, trace.data.sizes, trace.data.scaled)[-1].broken is None


# -- The judge of a watched run.


def watched(trace: Trace) -> bool | None:
    """What `gradproof watch` says of GA-INV-003 by events alone, N given: whether it does not refute the run.

    It refutes what is wrong for certain, and leaves the rest undecided; so it states less than the table.
    """
    monitor = Monitor(accum_steps=trace.data.n)
    monitor.run.recorded = set(range(LONGEST_RUN))
    weights, version, held = frozenset({1}), 0, False
    for number, event in enumerate(trace.events):
        if event is _E.ACCUMULATE:
            version, held = version + 1, True
            seen = SeenPass(passes=number, forwards=1, reached=weights)
            monitor.run.begins().about = seen
        elif event in facts.ATTEMPTS:
            grads = {1: (1, version)} if held else {}
            monitor.run.keep(kinds.STEP, SeenStep(0, weights, grads, False, False, False, event is _E.SKIP, False))
        elif event is _E.ZERO:
            held = False
            monitor.run.keep(kinds.ZERO)
        elif event is _E.SCHEDULE:
            monitor.run.keep(kinds.SCHEDULE, (SCHEDULER, False))
    ruling = StepRuling(monitor, trace.data.n, held)
    return not ruling.windows or ruling.result().outcome is not Outcome.REFUTED


LONGEST_RUN, SCHEDULER = 64, 99  # windows that are kept; the name of the schedule, which no optimizer has
