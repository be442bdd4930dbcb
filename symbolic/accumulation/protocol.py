"""Harnesses over the window protocol: KANI-GA-003 (bounded, on the loop) and KANI-GA-010 (inductive, on the table)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from models.accumulation.loop import Config, MicroBatch
from models.accumulation.window import Breaks, Event, State, replay, window_sizes
from symbolic.accumulation.loop import mean, run_loop


def follows_the_table(k: Any, events: list[Event], sizes: list[int], scaled: bool) -> None:
    """A record is a run of the window table; where it is not, the clause that the table names is broken."""
    broken = replay(events, sizes, scaled)[-1].broken
    if broken is not None:
        k.check(broken.obligation, False, broken.why)


def step_count(k: Any, loop: Any) -> None:
    """GA-INV-003: M micro-batches give ceil(M/N) step attempts and leave no gradient unapplied."""
    n = k.upto("micro_batches")
    total = k.choose("micro-batches in the data", list(range(1, k.bound("cycles") * n + 1)))
    sizes = window_sizes(total, n)
    skipped = k.choose("window that the scaler skips", [None, *range(len(sizes))])
    grads = k.reals("g", total, -1, 1)
    config = Config(n, skip=frozenset() if skipped is None else frozenset({skipped}))
    record = run_loop(k, loop, [MicroBatch(0, (g,)) for g in grads], config, (0,))
    attempts = record.events.count(Event.STEP)
    k.check("GA-INV-003", attempts == -(-total // n), f"N={n}, M={total}: {attempts} step attempts")
    follows_the_table(k, record.events, sizes, scaled=False)
    k.check("GA-INV-003", len(record.updates) == len(sizes) - (skipped is not None), "one update an unskipped window")
    k.cover("a tail window", total % n != 0)
    k.cover("a skipped step", skipped is not None)
    k.cover("the largest window, every cycle", total == k.bound("cycles") * k.bound("micro_batches"))
    starts = [sum(sizes[:i]) for i in range(len(sizes)) if i != skipped]
    for start, applied in zip(starts, record.updates, strict=True):
        window = grads[start : start + n]
        k.check("GA-INV-003", k.same(applied[0], mean(window)), f"N={n}, M={total}: no gradient is left unapplied")
    moved = sum((u[0] for u in record.updates), 0)
    k.check("GA-INV-003", k.same(record.params[0], -moved), f"N={n}, M={total}: the weights moved by what was applied")


class Ghost:
    """Counters beside a table state: what really happened to the buffer, whatever the table says."""

    def __init__(self, k: Any) -> None:
        for name in ("n", "size", "held", "clips", "steps", "schedules", "seen", "applied", "full", "tail", "scale"):
            setattr(self, name, k.int(name, 0))
        k.assume(self.n >= 1)
        k.assume((self.size >= 1) & (self.size <= self.n))

    n: Any
    size: Any
    held: Any
    clips: Any
    steps: Any
    schedules: Any
    seen: Any
    applied: Any
    full: Any
    tail: Any
    scale: Any


EMPTY = (State.CLEAN, State.DUE)
READY = (State.SCALED, State.FULL, State.CLIPPED)
SPENT = (State.STEPPED, State.SCHEDULED)


def invariant(state: State, g: Ghost) -> list[Any]:
    """What each state of the table promises of the counters: for every N and every number of cycles."""
    facts = [g.applied == g.n * g.full + g.tail, (g.tail >= 0) & (g.tail < g.n), g.schedules <= g.steps]
    facts.append(((g.tail == 0) & (g.steps == g.full)) | ((g.tail > 0) & (g.steps == g.full + 1)))
    if state in EMPTY:
        facts += [g.held == 0, g.clips == 0, g.seen == g.applied]
    elif state is State.OPEN:
        facts += [g.held >= 1, g.held < g.size, g.clips == 0, g.seen == g.applied + g.held, g.tail == 0]
    elif state in READY:
        facts += [g.held == g.size, g.clips == int(state is State.CLIPPED), g.seen == g.applied + g.held, g.tail == 0]
    else:
        facts += [g.held >= 1, g.clips <= 1, g.seen == g.applied]
    if state in (State.DUE, State.STEPPED):
        facts.append(g.schedules < g.steps)
    if state in (*EMPTY, State.FULL, State.CLIPPED):
        facts.append(g.scale == 0)
    elif state is State.SCALED:
        facts.append(g.scale == 1)
    return facts


def window_invariant(k: Any, advance: Any) -> None:
    """GA-INV-002, -003, -005 for all N and cycles: the invariant is inductive, and what it allows is harmless."""
    k.inductive(lambda: _base(k), lambda: _step(k, advance))


def _step(k: Any, advance: Any) -> None:
    """One transition from any state that satisfies the invariant, on counters that the harness moves by what the event
    does to a real buffer. A short window may only be the last one (assumed: it is the end of the data).
    """
    state, event = k.choose("state", list(State)), k.choose("event", list(Event))
    scaled = k.choose("loss scale", [False, True])
    g = Ghost(k)
    for fact in invariant(state, g):
        k.assume(fact)
    if event is Event.ACCUMULATE and state in EMPTY:
        k.assume(g.tail == 0)
    last = bool(g.held + 1 == g.size)
    k.cover(f"{state.value} is inhabited")
    after = advance(state, event, last=last, scaled=scaled)
    if isinstance(after, Breaks):
        return
    _perform(k, state, event, scaled, g)
    for i, fact in enumerate(invariant(after, g)):
        k.check(_clause(event), fact, f"{state.value} --{event.value}--> {after.value}: promise {i + 1}")


def _base(k: Any) -> None:
    """A fresh loop satisfies the invariant of CLEAN."""
    start = Ghost.__new__(Ghost)
    start.n, start.size = 1, 1
    for name in ("held", "clips", "steps", "schedules", "seen", "applied", "full", "tail", "scale"):
        setattr(start, name, 0)
    for fact in invariant(State.CLEAN, start):
        k.check("GA-INV-003", fact, "a fresh loop")


def _clause(event: Event) -> str:
    if event in (Event.ZERO, Event.ACCUMULATE):
        return "GA-INV-002"
    return "GA-INV-005" if event in (Event.CLIP, Event.UNSCALE, Event.SYNC) else "GA-INV-003"


def _perform(k: Any, state: State, event: Event, scaled: bool, g: Ghost) -> None:
    """Move the counters by what the event does, and check that it may be done now."""
    if event is Event.ZERO:
        k.check("GA-INV-002", g.seen == g.applied, "zeroing loses no gradient")
        g.held, g.clips, g.scale = 0, 0, 0
    elif event is Event.ACCUMULATE:
        k.check("GA-INV-002", (g.held == 0) | (g.seen > g.applied), "accumulated onto a stale gradient")
        k.check("GA-INV-003", g.held < g.size, "the window has room")
        g.held, g.seen, g.scale = g.held + 1, g.seen + 1, int(scaled)
    elif event is Event.SYNC:
        k.check("GA-INV-005", g.clips == 0, "the ranks are summed before the clip")
        k.check("GA-EQ-001", (g.held == 0) | (g.seen > g.applied), "the ranks are summed before the step")
    elif event is Event.UNSCALE:
        k.check("GA-INV-005", g.clips == 0, "unscaled before the clip")
        k.check("GA-EQ-001", (g.held == g.size) & (g.seen > g.applied) & (g.scale == 1), "unscaled once, complete")
        g.scale = 0
    elif event is Event.CLIP:
        k.check("GA-INV-005", (g.held == g.size) & (g.seen > g.applied), "clipped with all micro-batches in")
        k.check("GA-INV-005", g.clips == 0, "clipped once")
        k.check("GA-INV-005", g.scale == 0, "clipped after unscale")
        g.clips = g.clips + 1
    elif event is Event.STEP:
        k.check("GA-INV-003", (g.held == g.size) & (g.seen == g.applied + g.size), "stepped on a complete window, once")
        # GradScaler.step takes out a scale that is still there.
        g.steps, g.applied, g.scale = g.steps + 1, g.seen, 0
        short = bool(g.size < g.n)
        g.full, g.tail = (g.full, g.size) if short else (g.full + 1, g.tail)
    elif event is Event.SCHEDULE:
        k.check("GA-INV-003", g.schedules < g.steps, "the schedule follows a step")
        g.schedules = g.schedules + 1
    elif event is Event.END:
        k.check("GA-INV-003", g.seen == g.applied, "no gradient is left unapplied")


# -- Harness KANI-GA-005: clipping applies to the accumulated gradient, once, after unscale.
#
# The clause is stated without a square root of its own, so that the harness does not repeat the model: with b the
# exact accumulated gradient, m the largest norm and e = 1e-6 as in torch, the applied u is parallel to b and points
# the same way, |u| <= m, u = b where |b| <= m - e, and |u| >= m^2 / (m + e) where |b| >= m.

EPSILON = Fraction(1, 10**6)


def dot(a: Any, b: Any) -> Any:
    """Inner product."""
    return sum((x * y for x, y in zip(a[1:], b[1:], strict=True)), a[0] * b[0])


def clip_after_accumulate(k: Any, loop: Any) -> None:
    """GA-INV-005 over the reals, with and without a loss scale, for gradients of up to `elements` elements."""
    n = k.upto("micro_batches")
    width = k.upto("elements")
    scale = k.choose("loss scale", [None, 4])
    limit = Fraction(1)
    grads = [k.reals(f"g{i}", width, -8, 8) for i in range(n)]
    batches = [MicroBatch(0, g) for g in grads]
    config = Config(n, max_norm=limit, loss_scale=scale)
    record = run_loop(k, loop, batches, config, (0,) * width)
    clips = record.events.count(Event.CLIP)
    k.check("GA-INV-005", len(record.updates) == 1 and clips == 1, "one clip and one step a window")
    follows_the_table(k, record.events, window_sizes(n, n), scale is not None)
    total = tuple(mean([g[j] for g in grads]) for j in range(width))
    applied = record.updates[0]
    k.cover("a gradient that is clipped", dot(total, total) > limit * limit)
    k.cover("a gradient that is not clipped", dot(total, total) < (limit - EPSILON) * (limit - EPSILON))
    _is_clipped(k, applied, total, limit)


def _is_clipped(k: Any, applied: Any, total: Any, limit: Fraction) -> None:
    size, before = dot(applied, applied), dot(total, total)
    k.check("GA-INV-005", size <= limit * limit, "norm after clipping <= max_norm")
    k.check("GA-INV-005", dot(applied, total) >= 0, "same direction")
    for x, b in zip(applied[1:], total[1:], strict=True):
        k.check("GA-INV-005", k.same(applied[0] * b, x * total[0]), "parallel to the total")
    inside = (limit - EPSILON) * (limit - EPSILON)
    for x, b in zip(applied, total, strict=True):
        k.check("GA-INV-005", k.same(x, b) | (before > inside), "unchanged inside the ball")
    least = limit * limit / (limit + EPSILON)
    k.check("GA-INV-005", (size >= least * least) | (before < limit * limit), "clipped to the ball, not further")
