"""Harnesses over the window table: every N >= 1, every number of micro-batches, windows and cycles.

One query asks whether some event can break a demand or a fact from a state where all facts hold (1-induction), and one
asks the same of a fresh loop. The proofs are in `symbolic/accumulation/window.py`.

Source of the method: Floyd, Assigning Meanings to Programs, 1967; Sheeran, Singh and Stalmarck, Checking Safety
Properties Using Induction and a SAT-Solver, 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields, replace
from functools import reduce
from itertools import product
from operator import and_, or_
from types import SimpleNamespace
from typing import Any

from gradproof.core.protocol import Breaks, Event, State
from models.accumulation.window_bugs import SCHEDULING, SYNCHRONISING, TABLE, Loop, Promise

# -- What the window table is proved to keep: counters, demands and facts, one `Proof` an obligation.
#
# The counters say what really happened to the buffer, whatever the table says. A demand must hold when its event comes.
# A fact is what a state of the table promises of the counters. Windows are cut by the data and not by the table: `left`
# micro-batches of the present window are still to come, and the next one after them opens a window of any size, or,
# where windows are `equal`, of min(N, what is left of the data).
#
# Clauses: `gradient-accumulation-kernel-v1`, GA-INV-002, -003, -005 and GA-EQ-001.

_S, _E = State, Event
STATES, EVENTS = tuple(State), tuple(Event)
EMPTY = (_S.CLEAN, _S.DUE)
WHOLE = (_S.SCALED, _S.FULL, _S.CLIPPED)
SPENT = (_S.STEPPED, _S.SCHEDULED, _S.SKIPPED)
RESTING = (*EMPTY, *SPENT)  # no window is under way
BEGUN = (_S.OPEN, *WHOLE)
SUMS = Promise.RANKS_SUMMED_ONCE


class Counts(SimpleNamespace):
    """Counters by name, symbolic or plain integers."""


@dataclass(frozen=True)
class Act:
    """An event with what the world decides: whether it opens a window (and a short one), is the window's last
    micro-batch, or carries a loss scale. `size`: micro-batches of the opened window.
    """

    event: Event
    opens: bool = False
    short: bool = False
    last: bool = False
    scaled: bool = False
    size: Any = None


Moved = Callable[[Any, Act], Any]
_A = _E.ACCUMULATE
ATTEMPTS = (_E.STEP, _E.SKIP)  # a step that the scaler skips is an attempt


def of_attempts(effect: Moved) -> dict[Event, Moved]:
    """The same effect of a performed step and of a skipped one."""
    return dict.fromkeys(ATTEMPTS, effect)


# What each event does to each counter; an event that is not named leaves it alone.
EFFECTS: Mapping[str, Mapping[Event, Moved]] = {
    "left": {_A: lambda g, a: (a.size if a.opens else g.left) - 1},
    "unstepped": {_A: lambda g, a: 1, **of_attempts(lambda g, a: 0)},
    "clips": {_A: lambda g, a: 0 if a.opens else g.clips, _E.CLIP: lambda g, a: g.clips + 1},
    "syncs": {_A: lambda g, a: 0 if a.opens else g.syncs, _E.SYNC: lambda g, a: g.syncs + 1},
    # GradScaler.step takes out a scale that is still there.
    "scale": {
        _E.ZERO: lambda g, a: 0,
        _A: lambda g, a: int(a.scaled),
        _E.UNSCALE: lambda g, a: 0,
        **of_attempts(lambda g, a: 0),
    },
    # Micro-batches in the buffer: of a window whose step was attempted (performed or skipped), and of none such.
    "old": {_E.ZERO: lambda g, a: 0, **of_attempts(lambda g, a: g.old + g.new)},
    "new": {_E.ZERO: lambda g, a: 0, _A: lambda g, a: g.new + 1, **of_attempts(lambda g, a: 0)},
    "seen": {_A: lambda g, a: g.seen + 1},
    "begun": {_A: lambda g, a: g.begun + 1 if a.opens else g.begun},
    "full": {_A: lambda g, a: g.full + 1 if a.opens and not a.short else g.full},
    "tail": {_A: lambda g, a: a.size if a.opens and a.short else g.tail},
    "attempts": of_attempts(lambda g, a: g.attempts + 1),
    "performed": {_E.STEP: lambda g, a: g.performed + 1},
    "schedules": {_E.SCHEDULE: lambda g, a: g.schedules + 1},
}
DATA = ("n", "total", "quotient", "rest", "flush")


@dataclass(frozen=True)
class Fact:
    """What each of these states promises."""

    text: str
    states: tuple[State, ...]
    holds: Callable[[Any], Any]


@dataclass(frozen=True)
class Demand:
    """What must hold when the event comes."""

    event: Event
    text: str
    holds: Callable[[Any], Any]


def at(events: tuple[Event, ...], text: str, holds: Callable[[Any], Any]) -> tuple[Demand, ...]:
    """The same demand of several events."""
    return tuple(Demand(event, text, holds) for event in events)


@dataclass(frozen=True)
class Proof:
    """An obligation with its invariant. `loop` is the right subject. `equal`: windows are cut from `total` by n.

    `covers` must be possible in one of their states, or the proof speaks of less than it says.
    """

    clause: str
    counters: tuple[str, ...]
    facts: tuple[Fact, ...]
    demands: tuple[Demand, ...]
    loop: Loop = TABLE
    equal: bool = False
    covers: tuple[Fact, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every number of the proof: data, counters and memories of the loop."""
        return (DATA if self.equal else ()) + self.counters


NO_STALE_GRADIENT = Proof(
    "GA-INV-002",
    ("old", "new"),
    (
        Fact("nothing of an earlier window is in the buffer", (*EMPTY, *BEGUN), lambda g: g.old == 0),
        Fact("nothing unapplied is in the buffer", RESTING, lambda g: g.new == 0),
    ),
    (
        *at(ATTEMPTS, "a step applies no gradient of an earlier window", lambda g: g.old == 0),
        Demand(_E.ZERO, "zeroing loses no gradient", lambda g: g.new == 0),
    ),
)
_COMPLETE = Fact("no micro-batch of the window is to come", (*RESTING, *WHOLE), lambda g: g.left == 0)
_ROOM = Fact("a micro-batch of the window is to come", (_S.OPEN,), lambda g: g.left >= 1)
STEPS_OF_EQUAL_WINDOWS = Proof(
    "GA-INV-003",
    ("left", "seen", "full", "tail", "attempts"),
    (
        Fact("micro-batches = N full + tail", STATES, lambda g: g.seen + g.left == g.n * g.full + g.tail),
        Fact("a tail is shorter than N", STATES, lambda g: (g.tail >= 0) & (g.tail < g.n)),
        Fact(
            "a tail ends the data and is flushed",
            STATES,
            lambda g: (g.tail == 0) | ((g.flush == 1) & (g.seen + g.left == g.total)),
        ),
        Fact("no more than the data", STATES, lambda g: g.seen + g.left <= g.total),
        _COMPLETE,
        _ROOM,
        Fact(
            "every window was stepped",
            RESTING,
            lambda g: ((g.tail == 0) & (g.attempts == g.full)) | ((g.tail > 0) & (g.attempts == g.full + 1)),
        ),
        Fact(
            "every window but this one was stepped",
            BEGUN,
            lambda g: ((g.tail == 0) & (g.attempts + 1 == g.full)) | ((g.tail > 0) & (g.attempts == g.full)),
        ),
    ),
    (
        Demand(
            _E.END,
            "with the tail flushed, attempts = ceil(M/N)",
            lambda g: (
                (g.flush == 0)
                | (g.seen < g.total)
                | ((g.rest == 0) & (g.attempts == g.quotient))
                | ((g.rest > 0) & (g.attempts == g.quotient + 1))
            ),
        ),
        Demand(
            _E.END,
            "with no tail flushed, attempts = floor(M/N)",
            lambda g: (g.flush == 1) | (g.total - g.seen >= g.n) | (g.attempts == g.quotient),
        ),
    ),
    equal=True,
    covers=(
        Fact("the tail is stepped", SPENT, lambda g: (g.tail > 0) & (g.full > 1) & (g.seen == g.total)),
        Fact("a tail is left out", SPENT, lambda g: (g.flush == 0) & (g.rest > 0) & (g.full == g.quotient)),
        Fact("N = 4096 and more than one window", SPENT, lambda g: (g.n == 4096) & (g.full > 1)),
    ),
)
ONE_STEP_A_WINDOW = Proof(
    "GA-INV-003",
    ("left", "begun", "attempts"),
    (
        _COMPLETE,
        _ROOM,
        Fact("every window was stepped", RESTING, lambda g: g.attempts == g.begun),
        Fact("every window but this one was stepped", BEGUN, lambda g: g.attempts + 1 == g.begun),
    ),
    (
        Demand(_A, "a window begins when the one before was stepped", lambda g: (g.left > 0) | (g.attempts == g.begun)),
        *at(ATTEMPTS, "a step has all of its window", lambda g: g.left == 0),
        *at(ATTEMPTS, "a window is stepped once", lambda g: g.attempts + 1 == g.begun),
        Demand(_E.END, "every window was stepped", lambda g: g.attempts == g.begun),
    ),
)
ONE_CLIP_A_WINDOW = Proof(
    "GA-INV-005",
    ("left", "unstepped", "clips", "scale"),
    (
        _COMPLETE,
        Fact("the window was stepped", RESTING, lambda g: g.unstepped == 0),
        Fact("the window was not stepped", (_S.SCALED, _S.FULL), lambda g: g.unstepped == 1),
        Fact("nothing was clipped", (_S.OPEN, _S.SCALED, _S.FULL), lambda g: g.clips == 0),
        Fact("the scale is out", (_S.FULL,), lambda g: g.scale == 0),
    ),
    (
        Demand(_E.CLIP, "clipped after the last micro-batch", lambda g: g.left == 0),
        Demand(_E.CLIP, "clipped before the step", lambda g: g.unstepped == 1),
        Demand(_E.CLIP, "clipped once", lambda g: g.clips == 0),
        Demand(_E.CLIP, "clipped after unscale", lambda g: g.scale == 0),
        *at((_A, _E.SYNC, _E.UNSCALE), "comes before the clip", lambda g: (g.unstepped == 0) | (g.clips == 0)),
    ),
)
_READY = (_S.SCALED,)
ONE_UNSCALE_A_WINDOW = Proof(
    "GA-EQ-001",
    ("left", "unstepped", "scale"),
    (
        Fact("no micro-batch of the window is to come", _READY, lambda g: g.left == 0),
        Fact("the window was not stepped", _READY, lambda g: g.unstepped == 1),
        Fact("the scale is in", _READY, lambda g: g.scale == 1),
    ),
    (
        Demand(_E.UNSCALE, "unscaled after the last micro-batch", lambda g: g.left == 0),
        Demand(_E.UNSCALE, "unscaled before the step", lambda g: g.unstepped == 1),
        Demand(_E.UNSCALE, "unscaled once, and only what is scaled", lambda g: g.scale == 1),
    ),
)
_OWING = (_S.DUE, _S.STEPPED)
_EVEN = tuple(s for s in State if s not in _OWING)
SCHEDULE_FOLLOWS_STEPS = Proof(
    "GA-INV-003",
    ("performed", "schedules"),
    (
        Fact("schedules = performed steps", _EVEN, lambda g: g.schedules == g.performed),
        Fact("the last step has no schedule yet", _OWING, lambda g: g.schedules + 1 == g.performed),
    ),
    (
        Demand(_E.SCHEDULE, "never more schedules than performed steps", lambda g: g.schedules < g.performed),
        *at((_A, _E.END), "at the end of a window schedules = performed steps", lambda g: g.schedules == g.performed),
    ),
    SCHEDULING,
    covers=(
        Fact("the scaler skips a step after others", (_S.SKIPPED,), lambda g: g.performed > 0),
        Fact("a step is performed and its schedule to come", _OWING, lambda g: g.schedules > 0),
    ),
)
ONE_SYNC_A_WINDOW = Proof(
    "GA-EQ-001",
    ("left", "unstepped", "syncs", "summed"),
    (
        _COMPLETE,
        Fact("the window was not stepped", (_S.SCALED, _S.FULL), lambda g: g.unstepped == 1),
        Fact("the ranks were not summed", (_S.OPEN,), lambda g: g.syncs == 0),
        Fact(
            "the loop knows whether the ranks were summed",
            (_S.SCALED, _S.FULL),
            lambda g: ((g.summed == 0) & (g.syncs == 0)) | ((g.summed == 1) & (g.syncs == 1)),
        ),
        Fact("the ranks were summed once", (_S.CLIPPED,), lambda g: g.syncs == 1),
    ),
    (
        Demand(_E.SYNC, "summed after the last micro-batch", lambda g: g.left == 0),
        Demand(_E.SYNC, "summed before the step", lambda g: g.unstepped == 1),
        Demand(_E.SYNC, "summed once", lambda g: g.syncs == 0),
        Demand(_E.CLIP, "summed before the clip, once", lambda g: g.syncs == 1),
        *at(ATTEMPTS, "summed before the step, once", lambda g: g.syncs == 1),
    ),
    SYNCHRONISING,
    covers=(
        Fact("the ranks are still to be summed", (_S.FULL,), lambda g: g.summed == 0),
        Fact("the ranks are summed and the scale still in", (_S.SCALED,), lambda g: g.summed == 1),
    ),
)


# -- The harnesses


def no(condition: Any) -> Any:
    """The negation of a plain or symbolic truth value."""
    return not condition if isinstance(condition, bool) else ~condition


def every(conditions: Iterable[Any]) -> Any:
    """The conjunction of plain or symbolic truth values."""
    return reduce(and_, conditions, True)


def acts(proof: Proof, event: Event) -> Iterator[Act]:
    """The forms of an event that the proof tells apart; what opens a window has no size yet."""
    if event is Event.ACCUMULATE:
        opens = ((False, False), (True, False), (True, True))[: 1 if "left" not in proof.counters else 2 + proof.equal]
        for (opened, short), last, scaled in product(opens, (False, True), (False, True)):
            yield Act(event, opened, short, last, scaled)
    else:
        yield Act(event)


def given(g: Any) -> Any:
    """What the data of equal windows are: total = N quotient + rest with 0 <= rest < N, and a tail flushed or not."""
    cut = (g.total == g.n * g.quotient + g.rest) & (g.rest >= 0) & (g.rest < g.n)
    return cut & (g.n >= 1) & (g.quotient >= 0) & ((g.flush == 0) | (g.flush == 1))


def moved(proof: Proof, loop: Loop, g: Any, act: Act) -> Counts:
    """The counters after an act, and what the loop remembers of it."""
    after = Counts(**vars(g))
    for name in proof.counters:
        now = getattr(g, name)
        if name == "summed":
            setattr(after, name, loop.remember(now, act.event))
        elif act.event in EFFECTS[name]:
            setattr(after, name, EFFECTS[name][act.event](g, act))
    return after


@dataclass(frozen=True)
class Case:
    """An act that the table takes in a state: when it can come, what it does to the counters, and where it leads."""

    state: State
    act: Act
    condition: Any
    counts: Counts
    after: State


def refused(loop: Loop, g: Any, state: State, event: Event) -> Iterator[tuple[Any, Breaks]]:
    """When the loop itself does not emit the event, and why."""
    for row in loop.refusals:
        if row.event is event and state in row.states:
            yield (True if row.summed is None else g.summed == row.summed), row.broken


def cases(proof: Proof, loop: Loop, g: Any, size: Any, states: Iterable[State] = STATES) -> Iterator[Case]:
    """Every act that the loop's table takes in these states. `size`: micro-batches of a window that opens, if any."""
    for state, event in product(states, EVENTS):
        may = every(no(condition) for condition, _ in refused(loop, g, state, event))
        for act in acts(proof, event):
            after = loop.advance(state, event, last=act.last, scaled=act.scaled)
            if isinstance(after, Breaks):
                continue
            if act.opens:
                if size is None and not proof.equal:
                    continue
                cut = (g.total - g.seen if act.short else g.n) if proof.equal else size
                act = replace(act, size=cut)
            counts = moved(proof, loop, g, act)
            yield Case(state, act, may & possible(proof, loop, g, act, counts), counts, after)


def possible(proof: Proof, loop: Loop, g: Any, act: Act, counts: Any) -> Any:
    """Whether the data allow an act: it opens a window where none is open, and is the last where the data say so."""
    if act.event is not Event.ACCUMULATE or "left" not in proof.counters:
        return True
    condition = (g.left == 0) if act.opens else no(g.left == 0)
    if act.opens and proof.equal:
        room = g.total - g.seen
        condition = condition & ((g.flush == 1) & (room >= 1) & (room < g.n) if act.short else room >= g.n)
    stated = counts.left == 0
    if proof.equal and not loop.tail_completes:
        stated = stated & (counts.tail == 0)
    return condition & (stated if act.last else no(stated))


Claim = tuple[str, Any]


def promised(proof: Proof, state: State, g: Any) -> list[Claim]:
    """What a state promises of the counters."""
    return [(fact.text, fact.holds(g)) for fact in proof.facts if state in fact.states]


def claims(proof: Proof, case: Case, g: Any) -> list[Claim]:
    """What an act must meet when it comes, and what must be true after it."""
    met = [(d.text, d.holds(g)) for d in proof.demands if d.event is case.act.event]
    way = f"{case.state.value} --{case.act.event.value}--> {case.after.value}"
    return [(f"{way}: {text}", holds) for text, holds in met + promised(proof, case.after, case.counts)]


def checked(k: Any, clause: str, found: Iterable[tuple[Any, list[Claim]]], what: str) -> None:
    """One query: each list of claims holds or what stands before it is true. Plain numbers name the first broken."""
    rows = list(found)
    broken = (text for other, row in rows for text, holds in row if other is False and holds is False)
    k.check(clause, every(other | every(holds for _, holds in row) for other, row in rows), next(broken, what))


def prove(k: Any, loop: Loop, proof: Proof) -> None:
    """Base and step of the induction for one proof, one query each."""
    g = Counts(**{name: k.int(name) for name in proof.names})
    if proof.equal:
        k.assume(given(g))
    k.inductive(lambda: _base(k, g, proof), lambda: _step(k, loop, proof, g))


def _base(k: Any, g: Any, proof: Proof) -> None:
    """A fresh loop has an empty buffer and no window under way: every counter is 0."""
    fresh = Counts(**vars(g) | dict.fromkeys(proof.counters, 0))
    found = [(f"a fresh loop: {text}", holds) for text, holds in promised(proof, State.CLEAN, fresh)]
    checked(k, proof.clause, [(False, found)], "a fresh loop")


def _step(k: Any, loop: Loop, proof: Proof, g: Any) -> None:
    at, comes = k.int("state", 0, len(STATES) - 1), k.int("event", 0, len(EVENTS) - 1)
    size = k.int("size", 1) if "left" in proof.counters and not proof.equal else None
    is_at = {state: at == i for i, state in enumerate(STATES)}
    is_event = {event: comes == i for i, event in enumerate(EVENTS)}
    for state in STATES:
        k.assume(no(is_at[state]) | every(holds for _, holds in promised(proof, state, g)))
        k.cover(f"{state.value} is inhabited", is_at[state])
    rows = [
        (case, is_at[case.state] & is_event[case.act.event] & case.condition) for case in cases(proof, loop, g, size)
    ]
    for event in EVENTS:
        ways = [here for case, here in rows if case.act.event is event]
        k.cover(f"{event.value} can come", reduce(or_, ways, False))
    for fact in proof.covers:
        k.cover(fact.text, every([reduce(or_, (is_at[s] for s in fact.states)), fact.holds(g)]))
    found = ((no(here), claims(proof, case, g)) for case, here in rows)
    checked(k, proof.clause, found, "an event breaks a demand or a promise")


def no_stale_gradient(k: Any, loop: Loop) -> None:
    """GA-INV-002: no gradient of an earlier window reaches a step, and zeroing loses none."""
    prove(k, loop, NO_STALE_GRADIENT)


def steps_of_equal_windows(k: Any, loop: Loop) -> None:
    """GA-INV-003: M micro-batches give floor(M/N) attempts where no tail is flushed, ceil(M/N) where it is."""
    prove(k, loop, STEPS_OF_EQUAL_WINDOWS)


def one_step_a_window(k: Any, loop: Loop) -> None:
    """GA-INV-003: one attempt a window, with all of it, whatever the sizes of the windows."""
    prove(k, loop, ONE_STEP_A_WINDOW)


def one_clip_a_window(k: Any, loop: Loop) -> None:
    """GA-INV-005: at most one clip a window, after the last micro-batch and unscale, before the step."""
    prove(k, loop, ONE_CLIP_A_WINDOW)


def one_unscale_a_window(k: Any, loop: Loop) -> None:
    """GA-EQ-001: unscaled at most once a window, when all of it is in and carries the scale."""
    prove(k, loop, ONE_UNSCALE_A_WINDOW)


def schedule_follows_steps(k: Any, loop: Loop) -> None:
    """GA-INV-003: schedules = performed steps at the end of every window of a loop that schedules, never more."""
    prove(k, loop, SCHEDULE_FOLLOWS_STEPS)


def one_sync_a_window(k: Any, loop: Loop) -> None:
    """GA-EQ-001: a loop over several ranks sums them once a window, between its last micro-batch and clip or step."""
    prove(k, loop, ONE_SYNC_A_WINDOW)


# -- The table as a whole: what it refuses, by which obligation, and where it leads.


@dataclass(frozen=True)
class Buffer:
    """What is true of the buffer. `new`: it holds micro-batches whose step is to come, `old`: whose step was attempted.

    `more`: micro-batches of the window are to come. `owed`: the last step was performed, its schedule is to come, and
    no window began since. `skipped`: that `old` window's step was skipped, and no schedule came since.
    """

    new: bool = False
    old: bool = False
    more: bool = False
    clipped: bool = False
    scaled: bool = False
    owed: bool = False
    skipped: bool = False
    summed: bool = False

    @property
    def whole(self) -> bool:
        """All of a window whose step is to come."""
        return self.new and not self.more

    @property
    def state(self) -> State:
        """The same in the table's words."""
        if self.old:
            return _S.SKIPPED if self.skipped else _S.STEPPED if self.owed else _S.SCHEDULED
        if not self.new:
            return _S.DUE if self.owed else _S.CLEAN
        return _S.OPEN if self.more else _S.CLIPPED if self.clipped else _S.SCALED if self.scaled else _S.FULL

    def possible(self, promise: Promise) -> bool:
        """Whether a run can come here."""
        one_window = not (self.new and self.old) and (self.new or not (self.more or self.scaled))
        clip = not self.clipped or (self.whole and not self.scaled and (self.summed or promise is not SUMS))
        return one_window and clip and (self.old or not self.skipped) and not (self.owed and (self.new or self.skipped))


def buffers(promise: Promise) -> list[Buffer]:
    """Every buffer to which a run can come."""
    truths = product((False, True), repeat=len(fields(Buffer)))
    return [buffer for buffer in (Buffer(*each) for each in truths) if buffer.possible(promise)]


def exact_table(k: Any, loops: Mapping[Promise, Loop]) -> None:
    """GA-INV-002, -003, -005, GA-EQ-001: each event in each state, refused if and only if it is wrong of the buffer.

    `loops`: a loop for each promise. The specification is `breach`; it knows nothing of the table's states.
    """
    promise = k.choose("promise", tuple(Promise))
    k.inductive(lambda: _fresh_buffer(k, promise, loops[promise]), lambda: _exact_step(k, promise, loops[promise]))


def _fresh_buffer(k: Any, promise: Promise, loop: Loop) -> None:
    first = [loop.advance(_S.CLEAN, _E.ACCUMULATE, **said) for said in ({}, {"last": True})]
    k.check("GA-INV-003", first == [_S.OPEN, _S.FULL] and loop.tail_completes is True, "what is said by default")
    inhabited = {b.state for b in buffers(promise)} == {*STATES}
    k.check("GA-INV-003", inhabited and Buffer() in buffers(promise) and Buffer().state is _S.CLEAN, "a fresh loop")


def _exact_step(k: Any, promise: Promise, loop: Loop) -> None:
    event, at = k.choose("event", EVENTS), Buffer(*k.choose("buffer", [astuple(b) for b in buffers(promise)]))
    scaled = k.choose("scaled", (at.scaled,) if at.more else (False, True))  # in all of a window, or in none of it
    last = bool(k.int("left", 1) == 1) if event is _E.ACCUMULATE else scaled
    k.cover(f"{at.state} is inhabited")
    said: Any = loop.advance(at.state, event, last=last, scaled=scaled)
    if not isinstance(said, Breaks):
        refusals = refused(loop, Counts(summed=int(at.summed)), at.state, event)
        said = next((broken for holds, broken in refusals if holds), said)
    refusal, wrong = said.obligation if isinstance(said, Breaks) else "", breach(promise, at, event)
    way = f"{at.state} --{event}--> {refusal or said}"
    k.check(wrong or refusal or "GA-INV-003", refusal == wrong, f"{way}, and not {wrong or 'taken'}")
    if not wrong:
        k.cover(f"{event} is taken")
        after = acted(at, event, last, scaled)
        k.check("GA-INV-003", said is after.state, f"{way}, and not {after.state}")
        k.check("GA-EQ-001", loop.remember(int(at.summed), event) == int(after.summed), "whether the ranks are summed")
        k.check("GA-INV-003", after.possible(promise), f"{way}: the buffer stays a possible one")


def breach(promise: Promise, at: Buffer, event: Event) -> str:
    """The obligation that an event breaks; empty where it breaks none."""
    summing, scheduling = promise is SUMS, promise in (Promise.STEPS_SCHEDULED, Promise.ATTEMPTS_SCHEDULED)
    late_for_clip = "GA-INV-005" * at.clipped
    to_step = "GA-INV-003" if not at.whole else "GA-EQ-001" if summing and not at.summed else ""
    unfilled = "GA-INV-002" if at.old else "GA-INV-003" if at.whole or (scheduling and at.owed) else ""
    unsummed = "GA-EQ-001" if at.old or (summing and (not at.whole or at.summed)) else ""
    unclipped = "GA-INV-005" if not at.whole or at.clipped or at.scaled else to_step
    return {
        _E.ZERO: "GA-INV-002" if at.new else "",
        _E.ACCUMULATE: late_for_clip or unfilled,
        _E.SYNC: late_for_clip or unsummed,
        _E.UNSCALE: late_for_clip or ("" if at.whole and at.scaled else "GA-EQ-001"),
        _E.CLIP: unclipped,
        **dict.fromkeys(ATTEMPTS, to_step),
        _E.SCHEDULE: "" if at.owed or (promise is Promise.ATTEMPTS_SCHEDULED and at.skipped) else "GA-INV-003",
        _E.END: "GA-INV-003" if at.new or (scheduling and at.owed) else "",
    }[event]


def acted(at: Buffer, event: Event, last: bool, scaled: bool) -> Buffer:
    """The buffer after an event that breaks nothing."""
    attempted = replace(at, new=False, old=True, clipped=False, scaled=False)
    return {
        _E.ZERO: replace(at, new=False, old=False, skipped=False),
        _E.ACCUMULATE: Buffer(new=True, more=not last, scaled=scaled),
        _E.SYNC: replace(at, summed=True),
        _E.UNSCALE: replace(at, scaled=False),
        _E.CLIP: replace(at, clipped=True),
        _E.STEP: replace(attempted, owed=True),
        _E.SKIP: replace(attempted, skipped=True),
        _E.SCHEDULE: replace(at, owed=False, skipped=False),
        _E.END: at,
    }[event]
