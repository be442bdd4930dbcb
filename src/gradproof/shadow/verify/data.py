"""GA-DATA-001 of one real run: whether each sample that a forward pass took is in the gradient of one window, once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from gradproof.shadow.locations import Location
from gradproof.shadow.whole.ahead import MICRO
from gradproof.shadow.whole.facts import BackwardPass

if TYPE_CHECKING:
    from gradproof.shadow.verify.judge import Objections
    from gradproof.shadow.verify.one_run import OneRun
    from gradproof.shadow.verify.weights import WindowWeights

REUSED = "rows of samples were in a micro-batch before, and hold the same: each may train on its own"
AGAIN = "a micro-batch has no row of its own: this line trains on one that its window had before"
EVALUATED = ": its forward pass was in evaluation mode, and so were passes that train"
EQUAL = "this micro-batch holds what an earlier one held: each may train on the same samples"
SKIPPED = "this batch of the data loader, between others of its iteration that were trained on, is in no gradient"
REREAD = "this batch of the data loader holds what one of another iteration over it held, and none had come to its end"


def objections(judge: OneRun) -> Objections:
    """What speaks against samples that are each in one window, once."""
    meetings, windows = judge.engine.meetings, judge.windows
    yield from ((REUSED + evaluated(judge, both), at) for at, both in meetings.reused if not both & judge.evaluated)
    yield from ((AGAIN, at) for at in [meetings.repeated] if at is not None)
    seen, own = set[int](), {sample // MICRO for window in windows for sample in window.samples}
    yield from ((REREAD, at) for number, (first, at) in meetings.repeats.items() if {number, first} <= own)
    yield from equal(judge)
    yield from skipped(judge)
    for window in windows:
        yield from ((AGAIN, location) for location in again(window))
        if seen & window.samples:
            reason = f"samples of an earlier window are in the gradients of window {window.shown}"
            yield reason, window.step.location
        seen |= window.samples
    last, trained = max(seen) // MICRO, judge.terms.samples(judge.engine.joined)
    for sample, location in judge.engine.used.items():
        number = sample // MICRO
        if sample in trained - seen and number <= last and number not in judge.unused | judge.evaluated:
            yield f"{judge.sample(sample)} is in no gradient{evaluated(judge, {number})}", location


def evaluated(judge: OneRun, batches: Collection[int]) -> str:
    """Whether one of some micro-batches went through the model in evaluation mode alone, in words."""
    return EVALUATED * any(not judge.engine.modes.get(number, True) for number in batches)


def equal(judge: OneRun) -> Objections:
    """Micro-batches that hold the same; those of a data loader in one window alone, as it may begin anew."""
    engine, first = judge.engine, dict[Any, int]()
    for window in judge.windows:
        for number in sorted({sample // MICRO for sample in window.samples} & engine.meetings.holds.keys()):
            held = engine.meetings.holds[number]
            if first.setdefault((frozenset(held), number in engine.given and window.shown), number) != number:
                yield EQUAL, next(iter(held.values()))


def skipped(judge: OneRun) -> Objections:
    """Batches of an iteration over a data loader that no pass took, between others that were trained on."""
    given, used = judge.engine.given, dict[Any, set[int]]()
    for window in judge.windows:
        for number in {sample // MICRO for sample in window.samples} & given.keys():
            used.setdefault((window.step.part, id(given[number][0])), set()).add(number)
    taken = set[int]().union(*map(judge._micro_batches, judge.engine.runs))
    for (_, of), own in used.items():
        left = [n for n in given if min(own) < n < max(own) and n not in taken and id(given[n][0]) == of]
        yield from ((SKIPPED, given[number][1]) for number in left)


def again(window: WindowWeights) -> Iterator[Location]:
    """Lines at which two backward passes of a window brought the same of the same samples."""
    terms, known = window.terms, dict[Any, BackwardPass]()

    def ways(run: BackwardPass) -> set[tuple[str, int]]:
        gains = run.gains.items()
        bare = ((name, terms.bare(term)[0]) for name, gain in gains for term in gain)
        return {(name, window.skeleton(term, window.top(term))) for name, term in bare}

    for run in window.runs:
        one = known.setdefault((run.location, frozenset(terms.summed(run.gains.values()))), run)
        if one is not run and ways(one) == ways(run):
            yield run.location
