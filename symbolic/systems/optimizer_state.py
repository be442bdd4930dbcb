"""Optimizer state over the window table, for every N and every number of windows: KANI-GT-302 of the training contract.

An induction over the events that the table takes. With t performed and `skipped` skipped steps, t + skipped windows
were begun where no window is under way, and one more inside a window: so the state moves once a window, or not at all
where its step is skipped. Which gradient it moves with is GA-EQ-001's matter: here it is what the buffer holds.
"""

from __future__ import annotations

from typing import Any

from models.accumulation.window import Breaks, Event, State, advance
from models.systems.optimizer_state import Decay, Moments
from symbolic.accumulation.window import RESTING

CLAUSE = "GA-STATE-001"


def once_a_window(k: Any, rule: Any) -> None:
    """GA-STATE-001: moments and step counter move with each performed step, once a window, and with nothing else."""
    counts = [k.int(name, 0) for name in ("t", "skipped", "begun")]
    held = Moments(k.real("m"), k.real("v"), counts[0])
    by = Decay(*(k.real(name) for name in ("a", "b", "c", "d")))
    k.inductive(lambda: _fresh(k), lambda: _event(k, rule, held, k.real("g"), by, counts))


def paired(state: State, t: Any, skipped: Any, begun: Any) -> Any:
    """Windows begun, against those whose step was performed or skipped."""
    return t + skipped + (0 if state in RESTING else 1) == begun


def _fresh(k: Any) -> None:
    t = k.int("windows of a fresh loop", 0, 0)
    k.check(CLAUSE, paired(State.CLEAN, t, t, t), "a fresh loop")


def _event(k: Any, rule: Any, held: Moments, g: Any, by: Decay, counts: list[Any]) -> None:
    """One event that the table takes, from any state of it."""
    t, skipped, begun = counts
    state, event = k.choose("state", list(State)), k.choose("event", list(Event))
    filling = event is Event.ACCUMULATE
    last, scaled = (k.choose(name, [False, True] if filling else [False]) for name in ("last", "scaled"))
    after = advance(state, event, last=last, scaled=scaled)
    if isinstance(after, Breaks):
        return
    k.assume(paired(state, t, skipped, begun))
    performed = event is Event.STEP
    k.cover(event.value, t > 1)
    got = rule.after(event, held, g, by)
    m, v = (by.a * held.m + by.b * g, by.c * held.v + by.d * g * g) if performed else (held.m, held.v)
    for name, value, right in (("m", got.m, m), ("v", got.v, v)):
        k.check(CLAUSE, k.same(value, right), f"{event.value}: {name} moves with a performed step alone")
    k.check(CLAUSE, got.t == t + int(performed), f"{event.value}: the counter moves with a performed step alone")
    begun = begun + int(filling and state in RESTING)
    skipped = skipped + int(event is Event.SKIP)
    k.check(CLAUSE, paired(after, got.t, skipped, begun), "once a window")
