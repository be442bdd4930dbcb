"""Optimizer state over the window table, for every N and every number of windows: KANI-GT-302 and -304.

An induction over the events that the table takes. With t performed and `skipped` skipped steps, t + skipped windows
were begun where no window is under way, and one more inside a window: so the state moves once a window, or not at all
where its step is skipped. How far it moves is said by sums over the performed steps of several windows, from any state:
m = a^t m_0 + b sum a^(t - i) g_i, and v with c, d and g_i^2 (Kingma and Ba 2015, section 3, unrolled). Which gradient
g_i is, is GA-EQ-001's matter: here it is what the buffer holds when the step comes.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from gradproof.core.protocol import Breaks, Event, State, advance
from models.systems.optimizer_state import Decay, Moments
from symbolic.accumulation.window import RESTING
from symbolic.tokens.scaling import power

CLAUSE = "GA-STATE-001"
FILLED = (Event.ZERO, Event.ACCUMULATE, Event.ACCUMULATE, Event.SYNC, Event.UNSCALE, Event.CLIP)
STEPPED, SKIPPED = (*FILLED, Event.STEP, Event.SCHEDULE), (*FILLED, Event.SKIP)


def once_a_window(k: Any, rule: Any) -> None:
    """GA-STATE-001: moments and step counter move with each performed step, once a window, and with nothing else."""
    counts = [k.int(name, 0) for name in ("t", "skipped", "begun")]
    held, by = _any_state(k, counts[0])
    k.inductive(lambda: _fresh(k), lambda: _event(k, rule, held, k.real("g"), by, counts))


def _any_state(k: Any, t: Any) -> tuple[Moments, Decay]:
    """Any moments after t steps, and any decays."""
    by = Decay(*(k.real(name) for name in ("a", "b", "c", "d")))
    return Moments(k.real("m"), k.real("v"), t), by


def sums_of_steps(k: Any, rule: Any) -> None:
    """GA-STATE-001: m and v are the weighted sums of the gradients of performed steps, and t counts them.

    Several windows from any state, each skipped by the scaler or not, with another buffer at every event.
    """
    windows = k.bound("windows")
    start, by = _any_state(k, k.int("t", 0))
    skipping = k.choose("skipped", list(product([False, True], repeat=windows)))
    drawn = k.reals("buffer", windows * len(STEPPED))
    buffers = iter(drawn)
    k.scenario(start, by, g=drawn)
    k.cover("a step on each side of a skipped one", (skipping == (False, True, False)) & (by.a > 0))
    held, taken = start, []
    for number, skips in enumerate(skipping, 1):
        for event in SKIPPED if skips else STEPPED:
            g = next(buffers)
            held = rule.after(event, held, g, by)
            taken += [g] if event is Event.STEP else []
        count = len(taken)
        m, v = power(by.a, count) * start.m, power(by.c, count) * start.v
        for i, g in enumerate(taken, 1):
            m = m + power(by.a, count - i) * by.b * g
            v = v + power(by.c, count - i) * by.d * g * g
        k.check(CLAUSE, k.same(held.m, m), f"window {number}: m is the weighted sum of what was stepped with")
        k.check(CLAUSE, k.same(held.v, v), f"window {number}: v is the weighted sum of its squares")
        k.check(CLAUSE, held.t == start.t + count, f"window {number}: the counter counts performed steps")


def paired(state: State, t: Any, skipped: Any, begun: Any) -> Any:
    """Windows begun, against those whose step was performed or skipped."""
    return t + skipped + (0 if state in RESTING else 1) == begun


def _fresh(k: Any) -> None:
    k.check(CLAUSE, paired(State.CLEAN, 0, 0, 0), "a fresh loop")


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
    k.scenario(held, by, g=g)
    got = rule.after(event, held, g, by)
    if not performed:
        k.check(CLAUSE, k.same(got.m, held.m) & k.same(got.v, held.v), f"{event.value}: m and v stand still")
    k.check(CLAUSE, got.t == t + int(performed), f"{event.value}: the counter moves with a performed step alone")
    begun = begun + int(filling and state in RESTING)
    skipped = skipped + int(event is Event.SKIP)
    k.check(CLAUSE, paired(after, got.t, skipped, begun), "once a window")
