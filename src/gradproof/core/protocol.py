"""The window protocol: one transition table, and a short interpreter of it.

An accumulation window is zeroed, receives its micro-batches, is unscaled if the loss was scaled, clipped at
most once, and attempted exactly once: stepped, or skipped by the loss scaler. The schedule advances at most once a
step, and never for a skipped one (PyTorch: `scheduler.step()` follows an `optimizer.step()` that was performed).
Everything else breaks an obligation of the contract `gradient-accumulation-kernel-v1`, which the table names together
with the reason.

Four readers: the proofs of `symbolic/accumulation/window.py` (inductive invariants, for every N and every number of
windows), the trace check of a real step, the judge of `watch` (`shadow/judge/steps.py`) and that of `check`
(`shadow/judge/by_terms.py`, `by_numbers.py`). The names of broken rules are for the readers: each has one text.

Sources: clauses GA-INV-002, -003 and -005 of the contract; the bug classes ZERO, STEP, CLIP, SCHED and SCALE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What the gradient buffer holds."""

    CLEAN = "clean"  # nothing
    DUE = "due"  # nothing, and the schedule of the last step is still to come
    OPEN = "open"  # some micro-batches of the window
    SCALED = "scaled"  # all of them, still times the loss scale
    FULL = "full"  # all of them
    CLIPPED = "clipped"  # all of them, clipped
    STEPPED = "stepped"  # a gradient that was already applied
    SCHEDULED = "scheduled"  # the same, and the schedule has advanced
    SKIPPED = "skipped"  # a gradient whose step the loss scaler skipped


class Event(StrEnum):
    """What a training loop does to the buffer."""

    ZERO = "zero"
    ACCUMULATE = "accumulate"
    SYNC = "sync"
    UNSCALE = "unscale"
    CLIP = "clip"
    STEP = "step"  # an attempt that moves the weights
    SKIP = "skip"  # an attempt that the loss scaler skips: the gradient overflowed, the weights stay
    SCHEDULE = "schedule"
    END = "end"


@dataclass(frozen=True, slots=True)
class Breaks:
    """The event is wrong in this state: which obligation it breaks, and why."""

    obligation: str
    why: str


@dataclass(frozen=True, slots=True)
class Fill:
    """An accumulation: OPEN while the window has room, SCALED or FULL when it was the last."""


FILL = Fill()
_S, _E = State, Event


def _inv(number: int, why: str) -> Breaks:
    return Breaks(f"GA-INV-{number:03d}", why)


EARLY_UNSCALE = Breaks("GA-EQ-001", "unscaled before the window was complete: the sum mixes two scales")
LOST = _inv(2, "zeroed before the step: gradients of this window are lost")
LATE_SYNC = Breaks("GA-EQ-001", "synchronised after the step: the applied gradient misses the other ranks")
EARLY_CLIP = _inv(5, "clipped before the last micro-batch")
EARLY_STEP = _inv(3, "stepped before the window was complete")
STALE = _inv(2, "accumulated onto a gradient that was already applied")
LONG = _inv(3, "the window received more micro-batches than it has")
UNAPPLIED = _inv(3, "the run ended with a gradient that no step applied: its samples are lost")
EXTRA = _inv(3, "a window beyond the end of the data")
OFF_SCHEDULE = _inv(3, "the schedule advanced without a step of its own")
STEPPED_TWICE = _inv(3, "stepped twice on one window")
LATE_CLIP = _inv(5, "clipped after the step")
SCALED_CLIP = _inv(5, "clipped before unscale: the norm was measured times the loss scale")
CLIPPED_TWICE = _inv(5, "clipped twice")

Rules = Mapping[tuple[State, Event], State | Fill | Breaks]

RULES: Rules = {
    (_S.CLEAN, _E.ZERO): _S.CLEAN,
    (_S.CLEAN, _E.ACCUMULATE): FILL,
    (_S.CLEAN, _E.SYNC): _S.CLEAN,
    (_S.CLEAN, _E.UNSCALE): EARLY_UNSCALE,
    (_S.CLEAN, _E.CLIP): EARLY_CLIP,
    (_S.CLEAN, _E.STEP): EARLY_STEP,
    (_S.CLEAN, _E.SKIP): EARLY_STEP,
    (_S.CLEAN, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.CLEAN, _E.END): _S.CLEAN,
    (_S.DUE, _E.ZERO): _S.DUE,
    (_S.DUE, _E.ACCUMULATE): FILL,
    (_S.DUE, _E.SYNC): _S.DUE,
    (_S.DUE, _E.UNSCALE): EARLY_UNSCALE,
    (_S.DUE, _E.CLIP): EARLY_CLIP,
    (_S.DUE, _E.STEP): EARLY_STEP,
    (_S.DUE, _E.SKIP): EARLY_STEP,
    (_S.DUE, _E.SCHEDULE): _S.CLEAN,
    (_S.DUE, _E.END): _S.DUE,
    (_S.OPEN, _E.ZERO): LOST,
    (_S.OPEN, _E.ACCUMULATE): FILL,
    (_S.OPEN, _E.SYNC): _S.OPEN,
    (_S.OPEN, _E.UNSCALE): EARLY_UNSCALE,
    (_S.OPEN, _E.CLIP): EARLY_CLIP,
    (_S.OPEN, _E.STEP): EARLY_STEP,
    (_S.OPEN, _E.SKIP): EARLY_STEP,
    (_S.OPEN, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.OPEN, _E.END): UNAPPLIED,
    (_S.SCALED, _E.ZERO): LOST,
    (_S.SCALED, _E.ACCUMULATE): LONG,
    (_S.SCALED, _E.SYNC): _S.SCALED,
    (_S.SCALED, _E.UNSCALE): _S.FULL,
    (_S.SCALED, _E.CLIP): SCALED_CLIP,
    (_S.SCALED, _E.STEP): _S.STEPPED,
    (_S.SCALED, _E.SKIP): _S.SKIPPED,
    (_S.SCALED, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.SCALED, _E.END): UNAPPLIED,
    (_S.FULL, _E.ZERO): LOST,
    (_S.FULL, _E.ACCUMULATE): LONG,
    (_S.FULL, _E.SYNC): _S.FULL,
    (_S.FULL, _E.UNSCALE): Breaks("GA-EQ-001", "unscaled a gradient that carries no scale"),
    (_S.FULL, _E.CLIP): _S.CLIPPED,
    (_S.FULL, _E.STEP): _S.STEPPED,
    (_S.FULL, _E.SKIP): _S.SKIPPED,
    (_S.FULL, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.FULL, _E.END): UNAPPLIED,
    (_S.CLIPPED, _E.ZERO): LOST,
    (_S.CLIPPED, _E.ACCUMULATE): EARLY_CLIP,
    (_S.CLIPPED, _E.SYNC): _inv(5, "clipped before the ranks were summed"),
    (_S.CLIPPED, _E.UNSCALE): _inv(5, "clipped before unscale"),
    (_S.CLIPPED, _E.CLIP): CLIPPED_TWICE,
    (_S.CLIPPED, _E.STEP): _S.STEPPED,
    (_S.CLIPPED, _E.SKIP): _S.SKIPPED,
    (_S.CLIPPED, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.CLIPPED, _E.END): UNAPPLIED,
    (_S.STEPPED, _E.ZERO): _S.DUE,
    (_S.STEPPED, _E.ACCUMULATE): STALE,
    (_S.STEPPED, _E.SYNC): LATE_SYNC,
    (_S.STEPPED, _E.UNSCALE): EARLY_UNSCALE,
    (_S.STEPPED, _E.CLIP): LATE_CLIP,
    (_S.STEPPED, _E.STEP): STEPPED_TWICE,
    (_S.STEPPED, _E.SKIP): STEPPED_TWICE,
    (_S.STEPPED, _E.SCHEDULE): _S.SCHEDULED,
    (_S.STEPPED, _E.END): _S.STEPPED,
    (_S.SCHEDULED, _E.ZERO): _S.CLEAN,
    (_S.SCHEDULED, _E.ACCUMULATE): STALE,
    (_S.SCHEDULED, _E.SYNC): LATE_SYNC,
    (_S.SCHEDULED, _E.UNSCALE): EARLY_UNSCALE,
    (_S.SCHEDULED, _E.CLIP): LATE_CLIP,
    (_S.SCHEDULED, _E.STEP): STEPPED_TWICE,
    (_S.SCHEDULED, _E.SKIP): STEPPED_TWICE,
    (_S.SCHEDULED, _E.SCHEDULE): OFF_SCHEDULE,
    (_S.SCHEDULED, _E.END): _S.SCHEDULED,
    (_S.SKIPPED, _E.ZERO): _S.CLEAN,
    (_S.SKIPPED, _E.ACCUMULATE): STALE,
    (_S.SKIPPED, _E.SYNC): LATE_SYNC,
    (_S.SKIPPED, _E.UNSCALE): EARLY_UNSCALE,
    (_S.SKIPPED, _E.CLIP): LATE_CLIP,
    (_S.SKIPPED, _E.STEP): STEPPED_TWICE,
    (_S.SKIPPED, _E.SKIP): STEPPED_TWICE,
    (_S.SKIPPED, _E.SCHEDULE): _inv(3, "the schedule advanced after a step that the scaler skipped"),
    (_S.SKIPPED, _E.END): _S.SKIPPED,
}

if set(RULES) != {(s, e) for s in State for e in Event}:
    raise ImportError("the window table is not total")


@dataclass(frozen=True, slots=True)
class Replayed:
    """One event of a trace, as it fared: its index, the state before it and the verdict of the table."""

    index: int
    before: State
    event: Event
    broken: Breaks | None


def advance(
    state: State, event: Event, last: bool = False, scaled: bool = False, rules: Rules = RULES
) -> State | Breaks:
    """Next state of a window, or what the event breaks. `last`: this accumulation completes the window."""
    rule = rules[state, event]
    if not isinstance(rule, Fill):
        return rule
    if not last:
        return State.OPEN
    return State.SCALED if scaled else State.FULL


def replay(events: Iterable[Event], sizes: Iterable[int], scaled: bool = False) -> list[Replayed]:
    """Run a trace through the table, stopping at the first broken rule.

    `sizes` are the numbers of micro-batches of the successive windows (the last may be a short tail).
    """
    trace: list[Replayed] = []
    state, left, pending = State.CLEAN, 0, iter(sizes)
    for index, event in enumerate(events):
        opens = event is Event.ACCUMULATE and state in (State.CLEAN, State.DUE)
        left = next(pending, 0) if opens else left
        after = EXTRA if opens and not left else advance(state, event, last=left <= 1, scaled=scaled)
        left -= event is Event.ACCUMULATE
        broken = after if isinstance(after, Breaks) else None
        trace.append(Replayed(index, state, event, broken))
        if isinstance(after, Breaks):
            return trace
        state = after
    return trace


def window_sizes(micro_batches: int, n: int) -> list[int]:
    """Sizes of the windows of `micro_batches` micro-batches at `n` a window: full ones, then the tail."""
    full, tail = divmod(micro_batches, n)
    return [n] * full + [tail] * (tail > 0)
