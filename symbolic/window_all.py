"""Harnesses over the window table: every N >= 1, every number of micro-batches, windows and cycles.

One query asks whether some event can break a demand or a fact from a state where all facts hold (1-induction), and one
asks the same of a fresh loop. The proofs are in `symbolic/window_facts.py`.

Source of the method: Floyd, Assigning Meanings to Programs, 1967; Sheeran, Singh and Stalmarck, Checking Safety
Properties Using Induction and a SAT-Solver, 2000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import and_, or_
from typing import Any

from models.window import Breaks, Event, State
from models.window_bugs import Loop
from symbolic import window_facts as facts
from symbolic.window_facts import EFFECTS, EVENTS, MEMORIES, STATES, Act, Counts, Proof


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
    elif event is Event.STEP and "performed" in proof.counters:
        yield from (Act(event, skips=skips) for skips in (False, True))
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
        if name in MEMORIES:
            setattr(after, name, loop.remember(name, now, act.event, act.skips))
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
            name, value = row.memory or ("", 0)
            yield (getattr(g, name) == value if name else True), row.broken


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
    """Whether the data allow an act: it opens a window where none is under way, and is the last where it is told."""
    if act.event is not Event.ACCUMULATE or "left" not in proof.counters:
        return True
    condition = (g.left == 0) if act.opens else no(g.left == 0)
    if act.opens and proof.equal:
        room = g.total - g.seen
        condition = condition & ((g.flush == 1) & (room >= 1) & (room < g.n) if act.short else room >= g.n)
    told = counts.left == 0
    if proof.equal and not loop.tail_completes:
        told = told & (counts.tail == 0)
    return condition & (told if act.last else no(told))


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
    prove(k, loop, facts.NO_STALE_GRADIENT)


def steps_of_equal_windows(k: Any, loop: Loop) -> None:
    """GA-INV-003: M micro-batches give floor(M/N) attempts where no tail is flushed, ceil(M/N) where it is."""
    prove(k, loop, facts.STEPS_OF_EQUAL_WINDOWS)


def one_step_a_window(k: Any, loop: Loop) -> None:
    """GA-INV-003: one attempt a window, with all of it, whatever the sizes of the windows."""
    prove(k, loop, facts.ONE_STEP_A_WINDOW)


def one_clip_a_window(k: Any, loop: Loop) -> None:
    """GA-INV-005: at most one clip a window, after the last micro-batch and unscale, before the step."""
    prove(k, loop, facts.ONE_CLIP_A_WINDOW)


def one_unscale_a_window(k: Any, loop: Loop) -> None:
    """GA-EQ-001: unscaled at most once a window, when all of it is in and carries the scale."""
    prove(k, loop, facts.ONE_UNSCALE_A_WINDOW)


def schedule_within_attempts(k: Any, loop: Loop) -> None:
    """GA-INV-003: never more schedules than attempts, skipped ones included; the table alone promises no more."""
    prove(k, loop, facts.SCHEDULE_WITHIN_ATTEMPTS)


def schedule_follows_steps(k: Any, loop: Loop) -> None:
    """GA-INV-003: schedules = performed steps at the end of every window of a loop that schedules, never more."""
    prove(k, loop, facts.SCHEDULE_FOLLOWS_STEPS)


def one_sync_a_window(k: Any, loop: Loop) -> None:
    """GA-EQ-001: a loop over several ranks sums them once a window, between its last micro-batch and clip or step."""
    prove(k, loop, facts.ONE_SYNC_A_WINDOW)
