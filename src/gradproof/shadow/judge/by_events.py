"""What one run breaks, by its values and events together.

Values show that a gradient is missing, or has two scales. Events show the line, and that nothing else explains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import CLIPPED_TWICE, EARLY_STEP, EARLY_UNSCALE, LATE_CLIP, LOST, SCALED_CLIP, Breaks
from gradproof.shadow.follow.terms import UNIT
from gradproof.shadow.judge.losses import close
from gradproof.shadow.judge.statements import CLIP as ONE_CLIP, DATA, EQ, HELP, LOSS, STALE, STEPS, SYNC, TOKENS
from gradproof.shadow.locations import Location
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape.calls import CLIP, PASS, UNSCALE, ZERO
from gradproof.shadow.tape.handed import HELP as SO_FAR_HELP, SO_FAR, WHOLE
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import RankSums, SeenEvent

if TYPE_CHECKING:
    from gradproof.shadow.judge.one_run import OneRun
    from gradproof.shadow.judge.seen_windows import SeenWindow
    from gradproof.shadow.judge.steps import StepRuling
    from gradproof.shadow.judge.weights import WindowWeights

WINDOW = (STALE, STEPS, ONE_CLIP, SYNC)
RESTS_ON = {EQ: WINDOW, TOKENS: WINDOW, DATA: (EQ, *WINDOW), LOSS: (EQ,), STEPS: (STALE, ONE_CLIP)}
"""What does not hold where one of others is refuted."""
LOCAL = "stepped on a gradient that was not summed over the ranks after the last micro-batch"
UNSUMMED = "not every gradient was seen to be summed over the ranks between its last arrival and the step"
NO_SUM = "no sum over the ranks was seen"
RAGGED = "the mean over micro-batches is the window's loss only where each sample has one weight, which is not shown"
LEFT_OUT = "a further iteration over the data loader left out {} of {} batches: no backward pass followed these"
MAYBE = ", or were those of another pass than a micro-batch's"
DROPPED = "{} of {} micro-batches of each window are in no gradient: backward was given one loss, divided by {}"
OF_EVENTS = {
    **HELP,
    DATA: "call backward for each micro-batch, inside of the loop over them",
    EQ: "unscale once, after the last micro-batch",
}


def beside_refuted(results: Mapping[str, Result]) -> None:
    """What rests on an obligation that is refuted does not hold, though the recorded values alone would show it."""
    for name, causes in RESTS_ON.items():
        refuted = [results[c] for c in causes if c in results and results[c].outcome is Outcome.REFUTED]
        for result in [results[name]] if refuted and name in results else []:
            first = refuted[0]
            result.doubt(f"it rests on {first.obligation}, which is refuted; else: {result.reason}", first.location)


class WithEvents:
    """What the windows of a run break, by their values and events."""

    def __init__(self, judge: OneRun, ruling: StepRuling) -> None:
        self.judge, self.ruling = judge, ruling

    def results(self) -> Iterator[Result]:
        """What is wrong; nothing where something unusual was seen."""
        if self.judge.facts.lost or self.ruling.strange():
            return
        early = any(rule == EARLY_STEP for rule, _ in self.ruling.broken())
        if self.judge.windows and all(len(window.runs) < 2 for window in self.judge.windows) and not early:
            yield from (one for one in [self.judge.stale()] if one.outcome is Outcome.REFUTED)
        count, line = self.judge.dropped()
        by = {handed.divisor for window in self.ruling.monitor.closed for handed in window}
        every = [number for window in self.judge.windows for number in self.judge.weighs(window) or [1.0]]
        divided = by == {count} or all(close(number * count, 1) for number in every)
        if divided and count > 2 and line is not None:  # a half is usual
            yield self._made(Breaks(DATA, DROPPED.format(count - 1, count, count)), line)
        seen = {window.number: window for window in self.ruling.windows}
        yield from (one for window in seen.values() for one in self._nothing(window))
        several = len({window.step.optimizer for window in self.judge.windows}) > 1
        for window in self.judge.windows if not several else ():
            own = seen.get(window.step.window)
            if own is not None:
                yield from self._lost(window)
                yield from self._scales(window, own)

    def _made(self, rule: Breaks, location: Location) -> Result:
        name = rule.obligation
        return Result(name, Outcome.REFUTED, rule.why, location, OF_EVENTS[name], "events", RECORDED)

    def _nothing(self, window: SeenWindow) -> Iterator[Result]:
        """Every gradient was zeroed, and the step has none."""
        after = reversed(window.before_step)
        last = next((event for event in after if event.kind in (PASS, ZERO)), None)
        if last is not None and last.kind == ZERO and not any(event.about.held for event in window.steps):
            yield self._made(LOST, last.location)

    def _lost(self, window: WindowWeights) -> Iterator[Result]:
        """Gradients are zeroed before the step, and nothing is put into their place.

        What comes before a whole window may be another pass than a micro-batch's. How long a window is has to be given,
        or what was zeroed is the larger part of one.
        """
        at = [i for i, run in enumerate(window.runs) if run.emptied is not None]
        if not at or not window.samples < window.own:
            return
        before, after = window.runs[: at[0] + 1], len(window.runs) - at[-1] - 1
        gone = self.judge.terms.summed(gain for run in before for gain in run.gains.values())
        location = window.runs[at[0]].emptied
        if not gone & window.samples and after < self.ruling.n and location is not None:
            made = self._made(LOST, location)
            if not self.ruling.given and after > at[-1]:
                made.outcome, made.reason, made.help = Outcome.UNKNOWN, LOST.why + MAYBE, "give --accum-steps"
            yield made

    def _scales(self, window: WindowWeights, seen: SeenWindow) -> Iterator[Result]:
        """A loss scale that is taken out of a part of a window, or after a clip; a clip that comes too late."""
        events, after = seen.events[: seen.stepped], seen.events[seen.stepped :]
        unscaled = [i for i, event in enumerate(events) if event.kind == UNSCALE]
        scale = self.judge.facts.unscaled_of(window.step) or (UNIT, {})
        clips = [i for i, event in enumerate(events) if self._clips(event)]
        if unscaled and scale != (UNIT, {}):
            if any(event.kind == PASS and event.about is not None for event in events[unscaled[0] :]):
                yield self._made(EARLY_UNSCALE, events[unscaled[0]].location)
            first = next((i for i in clips if i < unscaled[0]), None)
            if first is not None and not any(event.kind == ZERO for event in events[first : unscaled[0]]):
                yield self._made(SCALED_CLIP, events[first].location)
        for i, j in pairwise(clips):
            between = {event.kind for event in events[i:j]} & {PASS, ZERO}
            if events[i].about & events[j].about and not between:
                yield self._made(CLIPPED_TWICE, events[j].location)
        zeroed = next((i for i, event in enumerate(after) if event.kind == ZERO), len(after))
        late = next((event for event in after[:zeroed] if self._clips(event)), None)
        if late is not None and not clips:
            yield self._made(LATE_CLIP, late.location)

    def _clips(self, event: SeenEvent) -> bool:
        """Whether an event is a clip of some of the optimizer's gradients."""
        return event.kind == CLIP and bool(event.about & self.ruling.own)


def reported(monitor: Monitor, equal: bool) -> Result | None:
    """What the run decides of the losses that the script reported; None where it decides nothing.

    `equal`: each sample of a window is shown to have one weight.
    HOLDS asks for every recorded window's mean; losses of micro-batches that are right are a note (`heard`)."""
    found = [(report, *report.verdict(monitor)) for report in monitor.reports]
    for wanted, outcome in ((False, Outcome.REFUTED), (None, Outcome.UNKNOWN)):
        for report, right, words in found:
            if right is wanted:
                help = "report the loss before its division by N" if right is False else SO_FAR_HELP * (words == SO_FAR)
                return Result(LOSS, outcome, words, report.location, help, "events", RECORDED)
    last = {id(report.window[-1]) for report, _, words in found if words == WHOLE and report.window}
    if not found or not all(id(window[-1]) in last for window in monitor.closed):
        return None
    if not equal:
        return Result(LOSS, Outcome.UNKNOWN, RAGGED, found[0][0].location, "", "events", RECORDED)
    why = f"{len(found)} losses were reported, and the mean over its micro-batches for each of the recorded windows"
    return Result(LOSS, Outcome.HOLDS, why, domain="events", reach=RECORDED)


def beside_iterations(results: Mapping[str, Result], monitor: Monitor) -> None:
    """GA-DATA-001 does not hold where a further iteration over a data loader begins with batches that it leaves out.

    The first one may go on with an earlier run.
    """
    known = set[int]()
    for it in monitor.iterations if DATA in results else ():
        if it.loader in known and it.left_out:
            results[DATA].doubt(LEFT_OUT.format(it.left_out, it.read), it.line)
        known.add(it.loader)


def summed(sums: RankSums, help: str) -> Result:
    """GA-SYNC-001 of the recorded windows. `help`: what decides it otherwise."""
    if sums.local is not None and not sums.by_hand:
        return Result(SYNC, Outcome.REFUTED, LOCAL, sums.local, HELP[SYNC], "events", RECORDED)
    if not sums.seen or not sums.judged:
        return Result(SYNC, Outcome.UNKNOWN, NO_SUM, None, help, "events", RECORDED)
    if sums.unsummed or sums.local:
        return Result(SYNC, Outcome.OPAQUE, UNSUMMED, sums.unsummed or sums.local, help, "events", RECORDED)
    why = "each gradient was summed over the ranks before its step"
    return Result(SYNC, Outcome.HOLDS, why, domain="events", reach=RECORDED)
