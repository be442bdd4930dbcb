"""GA-INV-003 of one watched run, by the events of its recorded windows: the steps, and what leaves them undecided.

A broken rule refutes only where nothing unusual was seen (`odd`). One step a window holds only where nothing was seen
that the events do not explain (`unsure`), and where each backward pass is shown to be a micro-batch. Of what gradients
are made of, events show nothing: the values do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape import run_events as kinds
from gradproof.shadow.tape.held_state import Advancing, judged
from gradproof.shadow.tape.monitor import Monitor
from gradproof.shadow.tape.run_events import Event, SeenPass

NAME = "GA-INV-003"
HELP = "step the optimizer, and the schedule, once a window, after its last micro-batch"
APPLY = "step after the last micro-batch too, by the mean of those that are left, or zero what is left"
EARLY = "stepped before the window was complete"
LONG = "the window received more micro-batches than it has"
UNAPPLIED = "the run ended with a gradient that no step applied: its samples are lost"
TWICE = "stepped twice on one window"
AGAIN = "an optimizer stepped again in a window, by other gradients or none: what moved the weights is not shown"
ADVANCED = "the schedule advanced without a step of its own"
SHARED = "two optimizers were given the same weights"
GREW = "the weights of an optimizer are not the same at each of its steps"
LAST = "no data loader shows that the last backward passes are micro-batches"
ITSELF = "the optimizer is none of torch.optim: it may accumulate by itself"
IN_TURN = "several optimizers step in turn: which of them a backward pass is for is not shown"
UNSEEN = "gradients are applied here that no backward pass was seen to bring"
SKIPPED = "the loss scaler skipped every step"
NEVER = "an optimizer whose weights have gradients made no step while the run was watched"
REACHED = "weights of the optimizer have no gradient, and weights that are in no optimizer have one"
MANY = "no data loader shows that each backward pass is a micro-batch: one may be for a penalty, or for a part of one"
PASSED = "a backward pass follows no forward pass of a module, or several: which passes are a micro-batch is not shown"
ONCE = "every backward pass was followed by a step: no accumulation, or a step after each micro-batch"
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
    kinds.THREADS: "two threads ran backward passes at the same time; what arrived from which of them is not shown",
    kinds.REWRITTEN: "weights were written outside of the optimizer's step",
    kinds.ABORTED: "a backward pass ended with an exception; what arrived of it is not shown",
    kinds.SCHEDULE: "the schedule may follow epochs, or be given its position",
    kinds.ZERO: "what was zeroed came before a whole window: it may be another backward pass than a micro-batch's",
}
"""By what is known of a step or a pass, or by the kind of an event: why the steps are not decided."""
UNEXPLAINED = (kinds.THREADS, kinds.REWRITTEN, kinds.ABORTED)
Reason = tuple[str, Location | None]


class SeenWindow:
    """A recorded window. `following`: the first backward pass of the next one.

    `ended`: an epoch ended with it. `shown`: each backward pass follows the next batch of one iteration over a data
    loader, or the caller gave the passes of an epoch. `simple`: each follows one forward pass, which calls no module
    twice, or those of its batch alone, as the values show. `count`: its micro-batches, which have `each` passes of one
    batch. `stepped`: how many events there are before each optimizer has stepped.
    """

    def __init__(
        self, number: int, events: list[Event], following: SeenPass | None, monitor: Monitor, each: int = 1
    ) -> None:
        self.number, self.events, length = number, events, monitor.epoch_batches
        self.passes = [event for event in events if event.kind == kinds.PASS and event.about is not None]
        self.steps = [event for event in events if event.kind == kinds.STEP]
        self.before_step = events[: events.index(self.steps[0])] if self.steps else events
        first = {event.about.optimizer: events.index(event) for event in self.steps[::-1]}
        self.stepped = max(first.values(), default=len(events))
        self.seen: list[SeenPass] = [event.about for event in self.passes]
        firsts, last = self.seen[::each], self.seen[each - 1 :: each]
        if len(last) < len(firsts) or any(batches(a, b) != 1 for a, b in zip(firsts, last, strict=True)):
            firsts = self.seen
        self.count, self.last = len(firsts), self.seen[-1] if self.seen else SeenPass()
        begin = events.index(self.passes[0]) if self.passes else len(events)
        self.zeroed = any(event.kind == kinds.ZERO for event in self.before_step[begin:])
        self.forwards = [one.forwards for one in self.seen]
        self.simple = set(self.forwards) == {1} and not any(one.again for one in self.seen)
        it = self.last.iteration  # of which this pass was the last, if it was read to its end
        done = it is not None and it.trained and self.last.read == it.read
        done = done and (following is None or following.iteration is not it)
        self.ended = done or bool(length and self.seen and not self.last.passes % length)
        apart = all(batches(a, b) == (1 if b.ahead else 2) for a, b in pairwise(firsts))
        self.shown = (apart and bool(self.seen) and self.seen[0].iteration is not None) or length is not None

    def read(self, before: SeenWindow | None) -> int:
        """The batches of a data loader that were read since the window before; 0 where that is not known."""
        found = batches(before.last, self.last) if before is not None else 0
        return found - 1 if found else self.last.read if self.last.iteration is not None else 0


class StepRuling:
    """What the events of the recorded windows of one run decide of its steps.

    `left`: the run ended while it was followed, and weights hold gradients. `shown`: the values show that each backward
    pass, or each run of `each`, is one micro-batch. `dropped`: where the events of a window begin, where an epoch left
    some over (`left_over`).
    """

    def __init__(
        self, monitor: Monitor, given: int | None, left: bool, shown: bool = False, dropped: Mapping[int, int] = {},
        each: int = 1,
    ) -> None:  # fmt: skip
        self.monitor, self.given, self.left = monitor, given, left
        seen = monitor.run.seen.items()
        first = {n: e.about for n, own in seen for e in own[::-1] if e.kind == kinds.PASS and e.about}
        self.all = [
            SeenWindow(n, own[dropped.get(n, 0) :], first.get(n + 1), monitor, each)
            for n, own in sorted(seen)
            if n in monitor.run.recorded
        ]
        self.windows = [window for window in self.all if window.steps]
        for window in self.windows:
            window.simple |= shown and (window.shown or window.count == given) and bool(window.seen)
            window.shown |= shown and window.simple
        self.steps = [event for window in self.windows for event in window.steps]
        self.events = [event for window in self.all for event in window.events]
        self.passes = [event for window in self.all for event in window.passes]
        counts = Counter(window.count for window in self.windows)
        self.n = given or max(counts, key=lambda n: (counts[n], n), default=1)
        own = [joined(event.about.own for event in window.steps) for window in self.windows]
        self.own, self.reached = joined(own), joined(event.about.reached for event in self.passes)
        self.apart = any(not one & other for one in own for other in own)

    def strange(self) -> bool:
        """Whether something was seen by which gradients may be zeroed, or clipped, for another reason."""
        other = any(event.about.foreign for event in self.steps)
        other |= any(event.about.returned or event.about.hooked for event in self.passes)
        return self.apart or other or next(self.odd(), next(said(self.events, *UNEXPLAINED), None)) is not None

    def result(self) -> Result:
        """GA-INV-003."""
        for why, location in self.broken():
            excuse = self._excuse(why)
            outcome = Outcome.OPAQUE if excuse else Outcome.REFUTED
            why, help = (f"{why}, and {excuse}", "") if excuse else (why, APPLY if why == UNAPPLIED else HELP)
            return Result(NAME, outcome, why, location, help, "events", RECORDED)
        return self._counted()

    # What is wrong

    def broken(self) -> Iterator[tuple[str, Location]]:
        """The rules that the events break."""
        for window in self.all:
            yield from self._twice(window)
        yield from ((one.reason, line) for one, line in self.held() if one.wrong)
        for i, window in enumerate(self.windows if self.given else ()):
            if window.count < self.n and self._early(i):
                yield EARLY, window.steps[0].location
            if window.count > self.n and not window.zeroed and all(w.shown for w in self.windows if w.count > self.n):
                yield LONG, window.passes[self.n].location
        for last in self.all[-1:] if self.left else ():
            present = last.passes and not last.steps and last.number == self.monitor.run.number
            if present and not any(event.kind == kinds.ZERO for event in last.events):
                yield UNAPPLIED, (self.steps or last.passes)[-1].location

    def held(self) -> Iterator[tuple[Advancing, Location]]:
        """What is said of the entries that change between the micro-batches of a window."""
        for window in self.all:
            entries: dict[Any, list[Event]] = {}
            for event in window.events:
                if event.kind == kinds.CHANGED:
                    entries.setdefault(event.about.key, []).append(event)
            for events in entries.values():
                said = judged([event.about for event in events])
                yield from () if said is None else ((said, events[-1].location),)

    def assumptions(self) -> list[str]:
        """What the steps rest on."""
        return sorted({one.reason for one, _ in self.held() if one.right and one.reason})

    def _twice(self, window: SeenWindow) -> Iterator[tuple[str, Location]]:
        """An optimizer applies a gradient again, or a schedule advances twice; Accelerate does so once a rank."""
        before: dict[Any, Event] = {}
        for event in window.events:
            if event.kind == kinds.STEP:
                one = before.setdefault(event.about.optimizer, event)
                if one is not event and not one.about.skipped and one.about.held.items() & event.about.held.items():
                    yield TWICE, (one if event.location.via and not one.location.via else event).location
                before[event.about.optimizer] = event
            elif event.kind == kinds.SCHEDULE:
                known, placed = event.about
                one = before.get(known, event)
                if one is not event and not ("accelerate" in event.location.via and one.location == event.location):
                    yield ADVANCED, event.location
                before |= {} if placed else {known: event}

    def _early(self, i: int) -> bool:
        """Whether a short window is no tail: it stands beside another one, and nothing lies between them.

        That is so where the batches went on in one pass over a data loader, and where both have one micro-batch: an
        epoch of one micro-batch has nothing to accumulate. A micro-batch is then one forward pass.
        """
        mine, near = self.windows[i], {window.number: window for window in self.windows}
        before, after = near.get(mine.number - 1), near.get(mine.number + 1)
        if mine.read(before) >= self.n:
            return False
        for one, other in ((before, mine), (mine, after)):
            if one is None or other is None or any(w.count >= self.n or w.ended or not w.simple for w in (one, other)):
                continue
            if batches(one.last, other.seen[0]) > 1 or one.count == other.count == 1:
                return True
        return False

    def _excuse(self, why: str) -> str:
        """Why a broken rule is no violation for certain; empty where it is one."""
        odd = next(self.odd(), next(said(self.passes, "inside"), None))
        if self.apart or odd is not None:
            return odd[0] if odd is not None and not self.apart else IN_TURN
        last = self.all[-1].last.iteration
        if why == UNAPPLIED and (last is None or all(w.last.iteration is not last for w in self.windows)):
            return LAST
        own = any(event.about.still for event in self.steps) and any(event.about.foreign for event in self.steps)
        return ITSELF if own else ""

    # What holds

    def odd(self) -> Iterator[Reason]:
        """What is unusual enough that neither a rule that holds nor one that is broken says much."""
        own: dict[int, list[frozenset[int]]] = {}
        for event in self.steps:
            own.setdefault(event.about.optimizer, []).append(event.about.own)
        if sum(len(joined(each)) for each in own.values()) > len(self.own):
            yield SHARED, None
        if any(len(set(each)) > 1 for each in own.values()):
            yield GREW, self.steps[-1].location
        yield from said(self.events, kinds.THREADS)
        yield from said(self.steps, "changed", "within")

    def unsure(self) -> Iterator[Reason]:
        """What was seen that leaves the number of steps undecided, and where."""
        if not self.own & self.reached:
            yield from ((UNSEEN, event.location) for event in self.steps if event.about.held)
        yield from self.odd()
        if all(event.about.skipped for event in self.steps):
            yield SKIPPED, self.steps[-1].location
        if any((own & self.reached) - self.own for own in self.monitor.details.optimizers):
            yield NEVER, None
        if self.own - self.reached and self.reached - self.own:
            yield REACHED, None
        for w in self.windows:
            if not w.simple and (len(set(w.forwards)) != 1 or max(w.forwards) > 1):
                yield PASSED if w.passes else UNSEEN, w.steps[0].location
            steps = Counter(event.about.optimizer for event in w.steps if not event.about.skipped)
            if max(steps.values(), default=0) > 1:
                yield AGAIN, w.steps[-1].location
        yield from said(self.steps, "still")
        yield from said(self.passes, "returned")
        yield from said(self.events, *UNEXPLAINED)
        for w in self.all:
            yield from said(w.before_step, kinds.SCHEDULE)
            yield from said(() if w.steps or self._rest(w) else w.events, kinds.ZERO)

    def _rest(self, w: SeenWindow) -> bool:
        """Whether a window is what the last epoch left over, and is zeroed after its last micro-batch."""
        order, of = [e.kind for e in w.events if e.kind in (kinds.PASS, kinds.ZERO)], w.last.iteration
        short = w is self.all[-1] and w.shown and w.simple and w.count < self.n
        return short and of is not None and of.complete and kinds.ZERO not in order[: len(w.passes)]

    def _counted(self) -> Result:
        """Where nothing broke it: it holds, or the events do not show it."""
        for one, line in self.held():
            if not one.right:
                return Result(NAME, Outcome.OPAQUE, one.reason, line, one.help, "events", RECORDED)
        for why, location in self.unsure():
            return Result(NAME, Outcome.OPAQUE, why, location, "", "events", RECORDED)
        counts = self.windows
        even = all(w.count == self.n or (w.ended and w.count < self.n) for w in counts)
        even = even and any(w.count == self.n for w in counts)
        if self.apart:
            why = IN_TURN
        elif self.given is None and self.n == 1 and even:
            why = ONCE
        elif not even:
            why = UNEVEN.format(", ".join(str(w.count) for w in counts))
        elif not all(w.shown for w in counts):
            why = MANY
        else:
            tails = " or its tail" * any(w.count < self.n for w in counts)
            words = f"{len(counts)} steps, one for each window of {self.n} micro-batches{tails}"
            details = {"accum_steps": self.n, "inferred": self.given is None}
            return Result(NAME, Outcome.HOLDS, words, domain="events", reach=RECORDED, details=details)
        help = "give --accum-steps" if self.given is None else "give --epoch-batches, the backward passes of an epoch"
        return Result(NAME, Outcome.UNKNOWN, why, counts[0].steps[0].location, help, "events", RECORDED)


def left_over(events: Sequence[Event], length: int | None) -> int:
    """Where in a window that is zeroed begins what is no rest of an epoch: the rest is shorter than what follows.

    `length`: the backward passes of an epoch, where that was given. 0 where no end of an epoch is shown.
    """
    for at in (at for at, event in enumerate(events) if event.kind == kinds.ZERO):
        rest, own = ([e.about for e in part if e.kind == kinds.PASS] for part in (events[:at], events[at:]))
        if not rest or len(rest) >= len(own) or None in (*rest, *own):
            continue
        of = rest[-1].iteration
        if not rest[-1].passes % length if length else of and of.complete and of is not own[0].iteration:
            return at
    return 0


def said(events: Iterable[Event], *names: str) -> Iterator[Reason]:
    """What is said of the events that are of a kind, or of which something is known."""
    for event in events:
        yield from ((SAID[n], event.location) for n in names if event.kind == n or getattr(event.about, n, False))


def joined(sets: Any) -> frozenset[int]:
    """The union of some sets."""
    return frozenset[int]().union(*sets)


def batches(first: SeenPass, last: SeenPass) -> int:
    """How many batches one iteration over a data loader gave from one backward pass to another; 0: not known."""
    known = first.iteration is not None and first.iteration is last.iteration
    return last.read - first.read + 1 if known else 0
