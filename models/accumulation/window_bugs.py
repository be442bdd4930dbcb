"""Loops around the window table: three right ones, and bugs, each made of one of them by one change.

The table judges what is done to the gradient buffer. Two promises it leaves to the loop, because loops differ in them:
that the ranks are summed once a window (under `no_sync`; a plain distributed loop sums at every micro-batch), and that
the schedule follows each performed step. A loop that makes such a promise is the table and refusals: events that it
does not emit although the table would take them. To sum the ranks once it remembers one bit: whether they are summed.

Sources: the thread in each row, or the nearest one where none of that shape is known; the clauses are those of the
contract `gradient-accumulation-kernel-v1`, in whose terms a synchronisation is a matter of GA-EQ-001.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from gradproof.core.protocol import EXTRA, FILL, RULES, Breaks, Event, Fill, State, advance
from models.registry import CROSSING, Mutant, registered

# -- Wrong window tables: the protocol with one rule loosened, and a table that never leaves its state.

Advance = Callable[..., State | Breaks]


def altered(state: State, event: Event, rule: State | Fill | Breaks) -> Advance:
    """The interpreter of the table in which `event` in `state` follows `rule`."""
    return partial(advance, rules={**RULES, (state, event): rule})


def stuck(state: State, event: Event, last: bool = False, scaled: bool = False) -> State | Breaks:
    """The empty body of the protocol: every event is allowed and changes nothing."""
    return state


# -- The harnesses

Remember = Callable[[Any, Event], Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The loop never does `event` in `states`: always, or only while the memory `summed` has this value."""

    event: Event
    states: tuple[State, ...]
    broken: Breaks
    summed: int | None = None


def remember(now: Any, event: Event) -> Any:
    """The memory `summed` after an event: whether the ranks were summed in this window."""
    return {Event.ACCUMULATE: 0, Event.SYNC: 1}.get(event, now)


@dataclass(frozen=True, slots=True)
class Loop:
    """A window table with what a loop adds to it. `tail_completes`: the last one of a short window is marked."""

    advance: Advance = advance
    refusals: tuple[Refusal, ...] = ()
    remember: Remember = remember
    tail_completes: bool = True


_S, _E = State, Event
_EARLY = Breaks("GA-EQ-001", "the ranks were summed before the window was complete")
_TWICE = Breaks("GA-EQ-001", "the ranks were summed twice")
_APART = Breaks("GA-EQ-001", "the ranks were not summed yet")
_BEHIND = Breaks("GA-INV-003", "the schedule did not follow the step")

TABLE = Loop()
SYNCHRONISING = Loop(
    refusals=(
        Refusal(_E.SYNC, (_S.CLEAN, _S.DUE, _S.OPEN), _EARLY),
        Refusal(_E.SYNC, (_S.SCALED, _S.FULL), _TWICE, summed=1),
        Refusal(_E.CLIP, (_S.FULL,), _APART, summed=0),
        Refusal(_E.STEP, (_S.SCALED, _S.FULL), _APART, summed=0),
        Refusal(_E.SKIP, (_S.SCALED, _S.FULL), _APART, summed=0),
    )
)
SCHEDULING = Loop(
    refusals=(
        Refusal(_E.ACCUMULATE, (_S.DUE,), _BEHIND),
        Refusal(_E.END, (_S.STEPPED, _S.DUE), _BEHIND),
    )
)
EMPTY = Loop(stuck)  # the empty body: every event is allowed and changes nothing


def allowing(loop: Loop, event: Event, *states: State) -> Loop:
    """The loop without its refusals of `event` in these states. Raises ValueError when it has none there."""
    kept = tuple(
        replace(r, states=tuple(s for s in r.states if s not in states)) if r.event is event else r
        for r in loop.refusals
    )
    if kept == loop.refusals:
        raise ValueError(f"the loop never refused {event} in {', '.join(states)}")
    return replace(loop, refusals=kept)


def bent(state: State, event: Event, to: State, loop: Loop = TABLE) -> Loop:
    """The loop over the table in which `event` leads from `state` to `to`; an accumulation to OPEN fills the window."""
    return replace(loop, advance=altered(state, event, FILL if event is _E.ACCUMULATE and to is _S.OPEN else to))


AFTER_EVERY_ATTEMPT = bent(_S.SKIPPED, _E.SCHEDULE, _S.SCHEDULED, SCHEDULING)  # skipped or not


class Promise(StrEnum):
    """What a loop adds to the table. The last is the bug of KANI-GA-019, stated in full."""

    NOTHING = "none"
    RANKS_SUMMED_ONCE = "ranks summed once"
    STEPS_SCHEDULED = "each step scheduled"
    ATTEMPTS_SCHEDULED = "each attempt scheduled"


LOOPS: Mapping[Promise, Loop] = {
    Promise.NOTHING: TABLE,
    Promise.RANKS_SUMMED_ONCE: SYNCHRONISING,
    Promise.STEPS_SCHEDULED: SCHEDULING,
    Promise.ATTEMPTS_SCHEDULED: AFTER_EVERY_ATTEMPT,
}
EMPTIES: Mapping[Promise, Loop] = dict.fromkeys(LOOPS, EMPTY)

Row = tuple[str, str, Loop]

_STALE: tuple[Row, ...] = (
    ("stale_accumulate", "DeepSpeed#5154", bent(_S.STEPPED, _E.ACCUMULATE, _S.OPEN)),
    ("stale_after_schedule", "ignite#583", bent(_S.SCHEDULED, _E.ACCUMULATE, _S.OPEN)),
    ("zero_before_step", "accelerate#1299", bent(_S.FULL, _E.ZERO, _S.CLEAN)),
    ("zero_inside_window", "torchtitan#3575", bent(_S.OPEN, _E.ZERO, _S.CLEAN)),
    ("stale_after_skip", "ignite#583", bent(_S.SKIPPED, _E.ACCUMULATE, _S.OPEN)),
)
_COUNTS: tuple[Row, ...] = (
    ("step_twice", "spaCy#12450", bent(_S.STEPPED, _E.STEP, _S.STEPPED)),
    ("window_dropped", "ultralytics#11217", bent(_S.FULL, _E.END, _S.FULL)),
    ("tail_dropped", "transformers#14309", replace(bent(_S.OPEN, _E.END, _S.OPEN), tail_completes=False)),
)
_STEPS: tuple[Row, ...] = (
    ("late_step", "transformers#22098", bent(_S.FULL, _E.ACCUMULATE, _S.FULL)),
    ("early_step", "trl#2618", bent(_S.OPEN, _E.STEP, _S.STEPPED)),
    ("ends_inside_window", "accelerate#4248", bent(_S.OPEN, _E.END, _S.OPEN)),
)
_CLIPS: tuple[Row, ...] = (
    ("double_clip", "transformers#1563", bent(_S.CLIPPED, _E.CLIP, _S.CLIPPED)),
    ("clip_before_unscale", "waifu-diffusion#64", bent(_S.SCALED, _E.CLIP, _S.SCALED)),
    ("clip_per_micro_batch", "transformers#986", bent(_S.OPEN, _E.CLIP, _S.OPEN)),
    ("clip_after_step", "graphstorm#1366", bent(_S.STEPPED, _E.CLIP, _S.STEPPED)),
    ("sync_after_clip", "diffusers#721", bent(_S.CLIPPED, _E.SYNC, _S.CLIPPED)),
)
_UNSCALES: tuple[Row, ...] = (
    ("unscale_per_micro_batch", "pytorch-lightning#4441", bent(_S.OPEN, _E.UNSCALE, _S.OPEN)),
    ("unscale_without_scale", "accelerate#113", bent(_S.FULL, _E.UNSCALE, _S.FULL)),
)
_SCHEDULES: tuple[Row, ...] = (
    ("schedule_twice", "diffusion-nbs#49", bent(_S.SCHEDULED, _E.SCHEDULE, _S.SCHEDULED, SCHEDULING)),
    ("schedule_per_micro_batch", "accelerate#963", bent(_S.OPEN, _E.SCHEDULE, _S.OPEN, SCHEDULING)),
    ("schedule_before_step", "pytorch-lightning#1476", bent(_S.FULL, _E.SCHEDULE, _S.FULL, SCHEDULING)),
    ("schedule_on_skip", "pytorch-lightning#18828", AFTER_EVERY_ATTEMPT),
    ("scaler_skip_counts_as_step", "Speech#3293", bent(_S.FULL, _E.SKIP, _S.STEPPED, SCHEDULING)),
    ("schedule_missed", "APOLLO#14", allowing(SCHEDULING, _E.ACCUMULATE, _S.DUE)),
)
_SYNCS: tuple[Row, ...] = (
    ("sync_twice", "LoongForge#163", allowing(SYNCHRONISING, _E.SYNC, _S.FULL)),
    ("sync_per_micro_batch", "LoongForge#163", allowing(SYNCHRONISING, _E.SYNC, _S.OPEN)),
    ("sync_missing", "build-nanogpt#30", allowing(SYNCHRONISING, _E.STEP, _S.FULL)),
    ("skip_before_sync", "build-nanogpt#30", allowing(SYNCHRONISING, _E.SKIP, _S.FULL)),
    ("clip_before_sync", "diffusers#721", allowing(SYNCHRONISING, _E.CLIP, _S.FULL)),
    ("sync_after_step", "horovod#1676", bent(_S.STEPPED, _E.SYNC, _S.STEPPED, SYNCHRONISING)),
)

# The harness of `symbolic/accumulation/window.py` that must refute them, its clause, and the bugs.
BROKEN: Mapping[str, tuple[str, tuple[Row, ...]]] = {
    "no_stale_gradient": ("GA-INV-002", _STALE),
    "steps_of_equal_windows": ("GA-INV-003", _COUNTS),
    "one_step_a_window": ("GA-INV-003", _STEPS),
    "one_clip_a_window": ("GA-INV-005", _CLIPS),
    "one_unscale_a_window": ("GA-EQ-001", _UNSCALES),
    "schedule_follows_steps": ("GA-INV-003", _SCHEDULES),
    "one_sync_a_window": ("GA-EQ-001", _SYNCS),
}
WINDOW_BUGS: Mapping[str, Mutant] = {
    name: Mutant(name, clause, thread, loop) for clause, rows in BROKEN.values() for name, thread, loop in rows
}


def _ruled(
    state: State, event: Event, rule: State | Fill | Breaks, promise: Promise = Promise.NOTHING
) -> Mapping[Promise, Loop]:
    """The loops, one of them with one rule of the table changed: it refuses what is right, or by another obligation."""
    return {**LOOPS, promise: replace(LOOPS[promise], advance=altered(state, event, rule))}


def _never_summed(now: Any, event: Event) -> Any:
    return now


_FORGETS = replace(SYNCHRONISING, remember=_never_summed)

EXACT_BUGS: Mapping[str, Mutant] = registered(
    (name, clause, CROSSING, loops)
    for name, clause, loops in (
        ("second_zero_refused", "GA-INV-003", _ruled(_S.CLEAN, _E.ZERO, EXTRA)),
        ("zero_keeps_schedule_due", "GA-INV-003", _ruled(_S.SKIPPED, _E.ZERO, _S.DUE, Promise.STEPS_SCHEDULED)),
        ("clip_needs_no_unscale", "GA-INV-003", _ruled(_S.FULL, _E.CLIP, _S.FULL)),
        ("early_clip_by_another_name", "GA-INV-005", _ruled(_S.OPEN, _E.CLIP, _EARLY)),
        ("sync_fills_window", "GA-INV-003", _ruled(_S.OPEN, _E.SYNC, FILL)),
        ("last_by_default", "GA-INV-003", {**LOOPS, Promise.NOTHING: Loop(partial(advance, last=True))}),
        ("sum_forgotten", "GA-EQ-001", {**LOOPS, Promise.RANKS_SUMMED_ONCE: _FORGETS}),
        ("tail_left_open", "GA-INV-003", {**LOOPS, Promise.NOTHING: replace(TABLE, tail_completes=False)}),
    )
)
