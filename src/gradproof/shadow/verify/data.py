"""GA-DATA-001 of one real run: whether each sample that a forward pass took is in the gradient of one window, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradproof.shadow.locations import Location
from gradproof.shadow.verify.judge import Objections
from gradproof.shadow.verify.weights import WindowWeights
from gradproof.shadow.whole.ahead import MICRO
from gradproof.shadow.whole.facts import BackwardPass

if TYPE_CHECKING:
    from gradproof.shadow.verify.one_run import OneRun

REUSED = "rows of samples were in a window before, and hold the same: each window may train on its own"
AGAIN = "a micro-batch has no row of its own: this line trains on one that its window had before"
REREAD = "this batch of the data loader holds what one of another iteration over it held, and none had come to its end"


def objections(judge: OneRun) -> Objections:
    """What speaks against samples that are each in one window, once."""
    meetings, windows = judge.engine.meetings, judge.windows
    yield from ((why, at) for why, at in ((REUSED, meetings.reused), (AGAIN, meetings.repeated)) if at is not None)
    seen, own = set[int](), {sample // MICRO for window in windows for sample in window.samples}
    yield from ((REREAD, at) for number, (first, at) in meetings.repeats.items() if {number, first} <= own)
    for window in windows:
        yield from ((AGAIN, location) for location in again(window))
        if seen & window.samples:
            reason = f"samples of an earlier window are in the gradients of window {window.shown}"
            yield reason, window.step.location
        seen |= window.samples
    last, trained = max(seen) // MICRO, judge.terms.samples(judge.engine.joined)
    for sample, location in judge.engine.used.items():
        if sample in trained - seen and sample // MICRO <= last and sample // MICRO not in judge.unused:
            yield f"{judge.sample(sample)} is in no gradient", location


def again(window: WindowWeights) -> Iterator[Location]:
    """Lines at which two backward passes of a window brought the same of the same samples."""
    terms, known = window.terms, dict[Any, BackwardPass]()

    def ways(run: BackwardPass) -> set[tuple[str, int]]:
        gains = run.gains.items()
        return {(name, window.skeleton(terms.bare(term)[0])) for name, gain in gains for term in gain}

    for run in window.runs:
        one = known.setdefault((run.location, frozenset(terms.summed(run.gains.values()))), run)
        if one is not run and ways(one) == ways(run):
            yield run.location
