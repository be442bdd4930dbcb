"""Concrete runs of a loop around the window table: the shortest one that breaks an obligation, and its drawing.

The counters and demands are those of the proofs, on plain integers. The search tries every run of one or two windows
of 1 to 3 micro-batches, with a loss scale or without, a tail flushed or not, and each step performed or skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from gradproof.core.protocol import Breaks, Event, State, window_sizes
from gradproof.harness import Move, PathSearch as Search, PathTrace as Trace, Tick, Timeline, shortest
from models.accumulation.window_bugs import Loop
from symbolic.accumulation import window as window_facts
from symbolic.accumulation.window import Act, Case, Counts, Proof, cases, refused

LARGEST, WINDOWS, MOST_STATES = 3, 2, 200_000


@dataclass(frozen=True)
class Run:
    """The data of a run: micro-batches of each window; N and all micro-batches, where windows are equal."""

    sizes: tuple[int, ...]
    scaled: bool
    n: int = 0
    total: int = 0
    flush: bool = True

    def __str__(self) -> str:
        """In words."""
        said = f"micro-batches a window: {', '.join(map(str, self.sizes))}"
        if self.n:
            said = f"N = {self.n}, M = {self.total}, tail {'flushed' if self.flush else 'not flushed'}"
        return said + (", loss scaled" if self.scaled else "")


@dataclass(frozen=True)
class Moment:
    """A state of the table, the counters by name, and how many windows were opened."""

    run: Run
    state: State
    counts: tuple[tuple[str, int], ...]
    opened: int = 0


def runs(proof: Proof) -> Iterator[Run]:
    """Every run that the search tries, small ones first."""
    if proof.equal:
        for n, windows in product(range(1, LARGEST + 1), range(WINDOWS)):
            for total, flush in product(range(n * windows + (windows > 0), n * (windows + 1) + 1), (True, False)):
                sizes = tuple(window_sizes(total, n) if flush else [n] * (total // n))
                yield from (Run(sizes, scaled, n, total, flush) for scaled in (False, True))
        return
    for windows in range(1, WINDOWS + 1):
        for each in product(range(1, LARGEST + 1), repeat=windows):
            yield from (Run(each, scaled) for scaled in (False, True))


def counting(proof: Proof) -> Proof:
    """The proof with the counter that cuts windows, which a concrete run always needs."""
    return proof if "left" in proof.counters else replace(proof, counters=("left", *proof.counters))


def start(proof: Proof, run: Run) -> Moment:
    """A fresh loop."""
    counts = dict.fromkeys(counting(proof).counters, 0)
    if proof.equal:
        quotient, rest = divmod(run.total, run.n)
        counts |= {"n": run.n, "total": run.total, "quotient": quotient, "rest": rest, "flush": int(run.flush)}
    return Moment(run, State.CLEAN, tuple(counts.items()))


def possibilities(proof: Proof, loop: Loop, at: Moment) -> Iterator[tuple[Case, Moment]]:
    """Every act that the loop and the data allow at a moment, and the moment after it."""
    g = Counts(**dict(at.counts))
    size = at.run.sizes[at.opened] if at.opened < len(at.run.sizes) else None
    for case in cases(counting(proof), loop, g, size, (at.state,)):
        if case.condition is True and (case.act.scaled == at.run.scaled or case.act.event is not Event.ACCUMULATE):
            counts = tuple(vars(case.counts).items())
            yield case, Moment(at.run, case.after, counts, at.opened + case.act.opens)


def machine(proof: Proof, loop: Loop) -> Callable[[Moment], Iterator[Move[Moment, Act]]]:
    """The loop as a machine whose moves are wrong where a demand of the proof is not met."""

    def moves(at: Moment) -> Iterator[Move[Moment, Act]]:
        g = Counts(**dict(at.counts))
        for case, after in possibilities(proof, loop, at):
            broken = [d.text for d in proof.demands if d.event is case.act.event and not d.holds(g)]
            yield Move(case.act, after, "; ".join(broken))

    return moves


def find(proof: Proof, loop: Loop) -> Search[Moment, Act]:
    """The shortest run of the loop in which a demand of the proof is not met."""
    return shortest((start(proof, run) for run in runs(proof)), machine(proof, loop), MOST_STATES)


def first_refused(proof: Proof, trace: Trace[Moment, Act]) -> tuple[int, Breaks] | None:
    """The index of the first event that the right loop would not do, and why; None when it does the whole trace."""
    at, right = trace.start, proof.loop
    for index, move in enumerate(trace.moves):
        g = Counts(**dict(at.counts))
        for holds, broken in refused(right, g, at.state, move.event.event):
            if holds:
                return index, broken
        after = right.advance(at.state, move.event.event, last=move.event.last, scaled=move.event.scaled)
        if isinstance(after, Breaks):
            return index, after
        at = next(m for case, m in possibilities(proof, right, at) if _same(case.act, move.event))
    return None


def _same(act: Act, other: Act) -> bool:
    """Whether the same thing happens to the data; `last` is what a loop is reported."""
    return (act.event, act.opens) == (other.event, other.opens)


def timeline(name: str, proof: Proof, trace: Trace[Moment, Act]) -> Timeline:
    """The trace of a wrong loop, with the event that the right one refuses and the event at which the demand breaks."""
    refusal = first_refused(proof, trace)
    ticks = []
    for index, move in enumerate(trace.moves):
        why = refusal[1].why if refusal is not None and refusal[0] == index else ""
        note = f"window {move.after.opened}" if move.event.event is Event.ACCUMULATE else ""
        harm = f"not met: {move.wrong}" if move.wrong else ""
        ticks.append(Tick(move.event.event.value, move.after.state.value, note, why, harm))
    return Timeline(f"{name} breaks {proof.clause}: {trace.start.run}", trace.start.state.value, tuple(ticks))


def drawn(harness: str, name: str, loop: Loop) -> Timeline | None:
    """The shortest run in which a loop breaks what a harness of `window.py` beside it proves; None: none is found.

    What the contract names as `trace`. Raises AttributeError for an unknown harness.
    """
    proof: Proof = getattr(window_facts, harness.upper())
    trace = find(proof, loop).trace
    return None if trace is None else timeline(name, proof, trace)
