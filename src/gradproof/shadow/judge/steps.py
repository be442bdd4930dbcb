"""GA-INV-003 of one watched run, by the events of its recorded windows: the steps, and what leaves them undecided.

A window is replayed through the window table (`core/protocol.py`), for each optimizer and each schedule (`_runs`). A
broken rule refutes only where nothing unusual was seen (`_excuses`). One step a window holds only where each backward
pass is shown to be a micro-batch, and nothing was seen that the events do not explain (`unsure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import dropwhile, pairwise
from operator import attrgetter, itemgetter
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import UNAPPLIED, Breaks, Event, replay
from gradproof.shadow.judge.seen_windows import SeenWindow
from gradproof.shadow.judge.statements import HELP, STEPS
from gradproof.shadow.locations import Location
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape.calls import PASS, SCHEDULE, STEP, ZERO
from gradproof.shadow.tape.held_state import judged
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import ABORTED, CHANGED, REWRITTEN, THREADS, SeenEvent

APPLY = "step after the last micro-batch too, by the mean of those that are left, or zero what is left"
UNSEEN = "gradients are applied here that no backward pass was seen to bring"
MANY = "no data loader shows that each backward pass is a micro-batch: one may be for a penalty, or for a part of one"
PASSED = "a backward pass follows no forward pass of a module, or several: which passes are a micro-batch is not shown"
AGAIN = "an optimizer stepped again in a window, by other gradients or none: what moved the weights is not shown"
UNEVEN = (
    "the windows have {} backward passes, and no data loader ended in a short one: tails, or several passes a "
    "micro-batch, or losses summed before one pass, or a wrong boundary"
)
SAID = {
    "changed": "the optimizer's step is changed by a subclass or a hook; what it does is not shown",
    "within": "an optimizer stepped inside of a backward pass: which of its gradients had arrived is not shown",
    "still": "a step moved no weight",
    "inside": "backward passes ran inside of an optimizer's step, which may ask for them several times",
    "returned": "gradients were returned, not accumulated; the events do not show where they went",
    "foreign": "the optimizer is none of torch.optim: it may accumulate by itself",
    "hooked": "a hook of a weight ran",
    THREADS: "two threads ran backward passes at the same time; what arrived from which of them is not shown",
    REWRITTEN: "weights were written outside of the optimizer's step",
    ABORTED: "a backward pass ended with an exception; what arrived of it is not shown",
    SCHEDULE: "the schedule may follow epochs, or be given its position",
    ZERO: "what was zeroed came before a whole window: it may be another backward pass than a micro-batch's",
}
"""By what is known of a step or a pass, or by the kind of an event: why the steps are not decided."""
UNEXPLAINED = (THREADS, REWRITTEN, ABORTED)
Reason = tuple[str, Location | None]
Run = list[tuple[Event, SeenEvent]]  # what the table is given, with the events that it stands for


class StepRuling:
    """What the events of the recorded windows of one run decide of its steps.

    `left`: the run ended while it was followed, and weights hold gradients. `shown`: the values show that each backward
    pass, or each run of `each`, is one micro-batch. `dropped`: where a window begins, after the rest of an epoch.
    """

    def __init__(
        self, monitor: Monitor, given: int | None, left: bool, shown: bool = False, dropped: Mapping[int, int] = {},
        each: int = 1,
    ) -> None:  # fmt: skip
        self.monitor, self.given, self.left = monitor, given, left
        seen = monitor.run.seen.items()
        first = {n: e.about for n, own in seen for e in own[::-1] if e.kind == PASS and e.about}
        kept = [(n, own[dropped.get(n, 0) :]) for n, own in sorted(seen) if n in monitor.run.recorded]
        self.all = [SeenWindow(n, own, first.get(n + 1), monitor.epoch_batches, each) for n, own in kept]
        self.windows = [window for window in self.all if window.steps]
        for window in self.windows if shown else ():
            window.simple |= bool(window.passes) and (window.shown or window.count == given)
            window.shown |= window.simple
        self.steps = [event for window in self.windows for event in window.steps]
        self.events = [event for window in self.all for event in window.events]
        counts = Counter(window.count for window in self.windows)
        self.n = given or max(counts, key=lambda n: (counts[n], n), default=1)
        own = [joined(event.about.own for event in window.steps) for window in self.windows]
        self.own, self.reached = joined(own), joined(e.about.reached for w in self.all for e in w.passes)
        self.apart = any(not one & other for one in own for other in own)
        changes = (each for window in self.all for each in grouped(window.events, CHANGED, attrgetter("key")))
        held = ((judged([event.about for event in each]), each[-1].location) for each in changes)
        self.held = [(one, line) for one, line in held if one is not None]
        self.assumptions = sorted({one.reason for one, _ in self.held if one.right and one.reason})

    def strange(self) -> bool:
        """Whether something was seen by which gradients may be zeroed, or clipped, for another reason."""
        return bool([*self.odd(), *said(self.events, "foreign", "returned", "hooked", *UNEXPLAINED)])

    def result(self) -> Result:
        """GA-INV-003."""
        for rule, location in self.broken():
            for excuse, _ in self._excuses(rule):
                return self._result(Outcome.OPAQUE, f"{rule.why}, and {excuse}", location)
            return self._result(Outcome.REFUTED, rule.why, location, APPLY if rule is UNAPPLIED else HELP[STEPS])
        return self._counted()

    def _result(self, outcome: Outcome, why: str, location: Location | None, help: str = "") -> Result:
        return Result(STEPS, outcome, why, location, help, "events", RECORDED)

    def broken(self) -> Iterator[tuple[Breaks, Location]]:
        """The rules that the events break. Where a library does again what a line of yours did, yours is named."""
        yield from ((Breaks(STEPS, one.reason), line) for one, line in self.held if one.wrong)
        for run, size in (run for window in self.all for run in self._runs(window)):
            last = replay([event for event, _ in run], [size])[-1]
            if last.broken is not None and last.broken.obligation == STEPS:
                before, event = (run[max(0, at)][1] for at in (last.index - 1, last.index))
                yours = event.location.via and event.kind == before.kind and not before.location.via
                yield last.broken, (before if yours else event).location

    def _runs(self, window: SeenWindow) -> Iterator[tuple[Run, int]]:
        """What the table is given of a window, and the micro-batches that it has to have.

        A step counts again where it applies again what the one before it applied. A schedule may follow epochs, and be
        given its position first: it counts that it advances again, but for Accelerate's, which advances once a rank.
        """
        begun = [(Event.ACCUMULATE, event) for event in window.begins or window.events[:1]]
        for steps in grouped(window.events, STEP, attrgetter("optimizer")):
            pairs = [(a, b) for a, b in pairwise(steps) if not a.about.skipped]
            again = [b for a, b in pairs if a.about.held.items() & b.about.held.items()]
            tried = [(Event.SKIP if event.about.skipped else Event.STEP, event) for event in (*steps[:1], *again)]
            wrong = self.given and window.wrong(self.windows, self.n)
            yield begun + tried, self.n if wrong else len(begun)
        for each in grouped(window.events, SCHEDULE, itemgetter(0)):
            own = [*dropwhile(lambda event: event.about[1], each)]
            again = [b for a, b in pairwise(own) if "accelerate" not in b.location.via or a.location != b.location]
            stepped = [(Event.ACCUMULATE, each[0]), (Event.STEP, each[0])]
            yield stepped + [(Event.SCHEDULE, event) for event in (*own[:1], *again)], 1
        if self.left and window.passes and not window.steps and window.number == self.monitor.run.number:
            zeroes = [(Event.ZERO, event) for event in window.events if event.kind == ZERO]
            yield [*begun, *zeroes, (Event.END, (self.steps or window.passes)[-1])], max(self.n, window.count)

    def _excuses(self, rule: Breaks) -> Iterator[Reason]:
        """Why a broken rule is no violation for certain."""
        yield from self.odd()
        yield from said(self.events, "inside")
        last = self.all[-1].last.iteration
        if rule is UNAPPLIED and (last is None or all(w.last.iteration is not last for w in self.windows)):
            yield "no data loader shows that the last backward passes are micro-batches", None
        if any(event.about.still for event in self.steps):
            yield from said(self.steps, "foreign")

    def odd(self) -> Iterator[Reason]:
        """What is unusual enough that neither a rule that holds nor one that is broken says much."""
        if self.apart:
            turns = "several optimizers step in turn: which of them a backward pass is for is not shown"
            yield turns, self.steps[0].location
        own = [{e.about.own for e in each} for each in grouped(self.events, STEP, attrgetter("optimizer"))]
        if sum(len(joined(each)) for each in own) > len(self.own):
            yield "two optimizers were given the same weights", None
        if any(len(each) > 1 for each in own):
            yield "the weights of an optimizer are not the same at each of its steps", self.steps[-1].location
        yield from said(self.events, THREADS)
        yield from said(self.steps, "changed", "within")

    def unsure(self) -> Iterator[Reason]:
        """What was seen that leaves the number of steps undecided, and where."""
        if not self.own & self.reached:
            yield from ((UNSEEN, event.location) for event in self.steps if event.about.held)
        yield from self.odd()
        if all(event.about.skipped for event in self.steps):
            yield "the loss scaler skipped every step", self.steps[-1].location
        if any((own & self.reached) - self.own for own in self.monitor.details.optimizers):
            yield "an optimizer whose weights have gradients made no step while the run was watched", None
        if self.own - self.reached and self.reached - self.own:
            yield "weights of the optimizer have no gradient, and weights that are in no optimizer have one", None
        for w in self.windows:
            if not w.simple and w.forwards not in ({0}, {1}):
                yield PASSED if w.passes else UNSEEN, w.steps[0].location
            moving = [event.about.optimizer for event in w.steps if not event.about.skipped]
            if len(moving) > len({*moving}):
                yield AGAIN, w.steps[-1].location
        yield from said(self.events, "still", "returned", *UNEXPLAINED)
        for w in self.all:
            yield from said(w.before_step, SCHEDULE)
            yield from said(() if w.steps or (w is self.all[-1] and w.rest(self.n)) else w.events, ZERO)

    def _counted(self) -> Result:
        """Where nothing broke it: it holds, or the events do not show it."""
        for one, line in self.held:
            if not one.right:
                return self._result(Outcome.OPAQUE, one.reason, line, one.help)
        for why, location in self.unsure():
            return self._result(Outcome.OPAQUE, why, location)
        even = {w.count for w in self.windows if not w.ended or w.count >= self.n} == {self.n}
        if self.given is None and self.n == 1 and even:
            why = "every backward pass was followed by a step: no accumulation, or a step after each micro-batch"
        elif not even:
            why = UNEVEN.format(", ".join(str(w.count) for w in self.windows))
        elif not all(w.shown for w in self.windows):
            why = MANY
        else:
            words = f"{len(self.windows)} steps, one for each window of {self.n} micro-batches"
            words += " or its tail" * any(w.count < self.n for w in self.windows)
            details = {"accum_steps": self.n, "inferred": self.given is None}
            return Result(STEPS, Outcome.HOLDS, words, domain="events", reach=RECORDED, details=details)
        help = "give --accum-steps" if self.given is None else "give --epoch-batches, the backward passes of an epoch"
        return self._result(Outcome.UNKNOWN, why, self.steps[0].location, help)


def grouped(events: Iterable[SeenEvent], kind: str, of: Callable[[Any], Any]) -> Iterable[list[SeenEvent]]:
    """The events of a kind, apart by what they are of."""
    found: dict[Any, list[SeenEvent]] = {}
    for event in (event for event in events if event.kind == kind):
        found.setdefault(of(event.about), []).append(event)
    return found.values()


def said(events: Iterable[SeenEvent], *names: str) -> Iterator[Reason]:
    """What is said of the events that are of a kind, or of which something is known."""
    for event in events:
        yield from ((SAID[n], event.location) for n in names if event.kind == n or getattr(event.about, n, False))


def joined(sets: Any) -> frozenset[int]:
    """The union of some sets."""
    return frozenset[int]().union(*sets)
