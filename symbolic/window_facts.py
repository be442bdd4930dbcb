"""What the window table is proved to keep: counters, demands and facts, one `Proof` an obligation.

The counters say what really happened to the buffer, whatever the table says. A demand must hold when its event comes.
A fact is what a state of the table promises of the counters. Windows are cut by the data and not by the table: `left`
micro-batches of the present window are still to come, and the next one after them opens a window of any size, or,
where windows are `equal`, of min(N, what is left of the data).

Clauses: `gradient-accumulation-kernel-v1`, GA-INV-002, -003, -005 and GA-EQ-001.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from models.window import Event, State
from models.window_bugs import SCHEDULING, SYNCHRONISING, TABLE, Loop

_S, _E = State, Event
STATES, EVENTS = tuple(State), tuple(Event)
EMPTY = (_S.CLEAN, _S.DUE)
WHOLE = (_S.SCALED, _S.FULL, _S.CLIPPED)
SPENT = (_S.STEPPED, _S.SCHEDULED)
RESTING = (*EMPTY, *SPENT)  # no window is under way
BEGUN = (_S.OPEN, *WHOLE)


class Counts(SimpleNamespace):
    """Counters by name, symbolic or plain integers."""


@dataclass(frozen=True)
class Act:
    """An event with what the world decides: whether it opens a window (and a short one), is the window's last
    micro-batch, carries a loss scale, or is a step that the scaler skips. `size`: micro-batches of the opened window.
    """

    event: Event
    opens: bool = False
    short: bool = False
    last: bool = False
    scaled: bool = False
    skips: bool = False
    size: Any = None


Moved = Callable[[Any, Act], Any]
_A, _T = _E.ACCUMULATE, _E.STEP

# What each event does to each counter; an event that is not named leaves it alone.
EFFECTS: Mapping[str, Mapping[Event, Moved]] = {
    "left": {_A: lambda g, a: (a.size if a.opens else g.left) - 1},
    "unstepped": {_A: lambda g, a: 1, _T: lambda g, a: 0},
    "clips": {_A: lambda g, a: 0 if a.opens else g.clips, _E.CLIP: lambda g, a: g.clips + 1},
    "syncs": {_A: lambda g, a: 0 if a.opens else g.syncs, _E.SYNC: lambda g, a: g.syncs + 1},
    # GradScaler.step takes out a scale that is still there.
    "scale": {
        _E.ZERO: lambda g, a: 0,
        _A: lambda g, a: int(a.scaled),
        _E.UNSCALE: lambda g, a: 0,
        _T: lambda g, a: 0,
    },
    # Micro-batches in the buffer: of a window whose step was attempted (performed or skipped), and of none such.
    "old": {_E.ZERO: lambda g, a: 0, _T: lambda g, a: g.old + g.new},
    "new": {_E.ZERO: lambda g, a: 0, _A: lambda g, a: g.new + 1, _T: lambda g, a: 0},
    "seen": {_A: lambda g, a: g.seen + 1},
    "begun": {_A: lambda g, a: g.begun + 1 if a.opens else g.begun},
    "full": {_A: lambda g, a: g.full + 1 if a.opens and not a.short else g.full},
    "tail": {_A: lambda g, a: a.size if a.opens and a.short else g.tail},
    "attempts": {_T: lambda g, a: g.attempts + 1},
    "performed": {_T: lambda g, a: g.performed + int(not a.skips)},
    "schedules": {_E.SCHEDULE: lambda g, a: g.schedules + 1},
}
MEMORIES = ("summed", "skipped")
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
        Demand(_T, "a step applies no gradient of an earlier window", lambda g: g.old == 0),
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
        Demand(_T, "a step has all of its window", lambda g: g.left == 0),
        Demand(_T, "a window is stepped once", lambda g: g.attempts + 1 == g.begun),
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
        *(
            Demand(event, f"{event.value} before the clip", lambda g: (g.unstepped == 0) | (g.clips == 0))
            for event in (_A, _E.SYNC, _E.UNSCALE)
        ),
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
SCHEDULE_WITHIN_ATTEMPTS = Proof(
    "GA-INV-003",
    ("attempts", "schedules"),
    (
        Fact("no more schedules than attempts", _EVEN, lambda g: g.schedules <= g.attempts),
        Fact("an attempt has no schedule yet", _OWING, lambda g: g.schedules < g.attempts),
    ),
    (Demand(_E.SCHEDULE, "the schedule follows an attempt of its own", lambda g: g.schedules < g.attempts),),
)
SCHEDULE_FOLLOWS_STEPS = Proof(
    "GA-INV-003",
    ("performed", "schedules", "skipped"),
    (
        Fact("schedules = performed steps", _EVEN, lambda g: g.schedules == g.performed),
        Fact(
            "a performed step has no schedule yet, a skipped one gets none",
            _OWING,
            lambda g: (
                ((g.skipped == 0) & (g.schedules + 1 == g.performed))
                | ((g.skipped == 1) & (g.schedules == g.performed))
            ),
        ),
    ),
    (
        Demand(_E.SCHEDULE, "never more schedules than performed steps", lambda g: g.schedules < g.performed),
        *(
            Demand(event, "at the end of a window schedules = performed steps", lambda g: g.schedules == g.performed)
            for event in (_A, _E.END)
        ),
    ),
    SCHEDULING,
    covers=(
        Fact("the scaler skips a step", SPENT, lambda g: (g.skipped == 1) & (g.performed > 0)),
        Fact("a step is performed and its schedule to come", _OWING, lambda g: g.skipped == 0),
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
        Demand(_T, "summed before the step, once", lambda g: g.syncs == 1),
    ),
    SYNCHRONISING,
    covers=(
        Fact("the ranks are still to be summed", (_S.FULL,), lambda g: g.summed == 0),
        Fact("the ranks are summed and the scale still in", (_S.SCALED,), lambda g: g.summed == 1),
    ),
)
