"""What the falsification properties of one clause ask of a run that another clause's bug must not answer.

`table_breaks` holds the observed events against the window table, on one clause: events that only another clause
speaks of are left out, so that its bug neither is blamed here nor ends the trace early.

`own_error` judges an applied gradient against the right mean, or else the sum of what the subject's own backward passes
brought, up to one overall factor (a late division, the loss scale): whether the 1/N is right is GA-EQ-001's alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gradproof.harness import Refutation, WindowError, judge_window
from models.window import Event, replay
from symbolic.falsify_bench import Run, backwards_of, elements_of, error_of

SPOKEN_OF: Mapping[str, frozenset[Event]] = {
    "GA-INV-002": frozenset({Event.ZERO, Event.ACCUMULATE, Event.STEP, Event.END}),
    "GA-INV-003": frozenset({Event.ACCUMULATE, Event.STEP, Event.SCHEDULE, Event.END}),
    "GA-INV-005": frozenset({Event.ACCUMULATE, Event.UNSCALE, Event.CLIP, Event.STEP, Event.END}),
}


def due_passes(run: Run, clause: str) -> None:
    """Every micro-batch was differentiated once, in a window that has a step. Refutes the empty body."""
    for k in range(len(run.sizes)):
        backwards_of(run, k, clause)


def events_for(events: Sequence[Event], clause: str) -> Iterator[Event]:
    """The events that the clause speaks of; where it does not speak of zeroing, each new window begins with one."""
    stepped = False
    for event in events:
        if event in SPOKEN_OF[clause]:
            if event is Event.ACCUMULATE and stepped and Event.ZERO not in SPOKEN_OF[clause]:
                yield Event.ZERO
            yield event
            stepped = event is Event.STEP or (stepped and event is not Event.ACCUMULATE)


def table_breaks(run: Run, clause: str) -> str:
    """What the window table says of the observed events when they break this clause; else nothing.

    A subject that never calls `unscale_` leaves the loss scale to the scaler's step, or takes it out by hand: then
    where its clip stands to the loss scale is judged by value alone.
    """
    events = [Event(e) for e in run.trace.events]
    scaled = clause == "GA-INV-005" and run.job.scaler is not None and Event.UNSCALE in events
    trace = replay(events_for(events, clause), run.sizes, scaled=scaled)
    broken = trace[-1].broken if trace else None
    if broken is None or broken.obligation != clause:
        return ""
    return f"window table, {trace[-1].event} while {trace[-1].before}: {broken.why}"


def own_errors(run: Run, k: int, clause: str) -> Iterator[WindowError]:
    """Error of the gradient applied to window `k` against the right mean, then against its own sum, a divisor each.

    Divisors: none, the micro-batches, the samples or tokens of the window, or N, and the loss scale or not. Refutes
    when a value is not finite.
    """
    yield error_of(run, k, clause)
    applied, passes = elements_of(run, k, clause), backwards_of(run, k, clause)
    terms = [b.vector.tolist() for b in passes]
    counts = sum(run.data.batches[b.index].count for b in passes)
    scales = dict.fromkeys((run.job.config.loss_scale or 1.0, 1.0))
    late = dict.fromkeys((1, len(passes), counts, run.case.n))
    for divisor in dict.fromkeys(scale * m for scale in scales for m in late):
        try:
            yield judge_window(terms, [divisor] * len(passes), applied, run.job.config.device != "cpu")
        except ValueError as e:
            raise Refutation(clause, f"window {k}: {e}", {"window": k}) from e


def own_error(run: Run, k: int, clause: str) -> WindowError:
    """The first of `own_errors` within its bound, or the least."""
    seen = []
    for error in own_errors(run, k, clause):
        if error.within:
            return error
        seen.append(error)
    return min(seen, key=lambda e: math.inf if e.ratio is None else e.ratio)
