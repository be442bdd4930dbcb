"""What the events of one watched run decide: a broken rule of the window protocol, the steps, the sums over ranks.

A rule that is broken refutes only where nothing odd was seen (`_excuse`). GA-INV-003 holds only where nothing was seen
that the events do not explain (`unsure`). Of what gradients are made of, events show no more than a broken rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.protocol.monitor import Arrival, Monitor
from gradproof.shadow.protocol.monitor_report import heard, monitored, reported
from gradproof.shadow.protocol.turns import LOST, PASS, STALE, Broken, Turn, broken, of, stretches, turns, union
from gradproof.shadow.record.events import Event, EventLog
from gradproof.shadow.request import complete, expected_obligations
from gradproof.shadow.result import RECORDED, Result, Verification

OF_GRADIENTS = ("GA-INV-002", "GA-INV-004", "GA-INV-005")
"""Obligations that are about what gradients hold."""
PROTOCOL = ("GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005")
SUMS = ("GA-INV-002", "GA-INV-004")
BLIND = (
    "what hooks, custom autograd functions, communication hooks and callbacks of the engine do to a gradient while it "
    "arrives in `.grad`"
)
UNFOLLOWED = "no backward pass was seen to bring the gradients that were applied"
UNDECIDED = {
    "GA-INV-001": "the losses were not followed, and no mean of each window was reported",
    "GA-SYNC-001": "no sum over the ranks was seen",
}
"""Why an obligation is undecided, where the reason is not `UNFOLLOWED`."""
FUNCTION = "put the training step into a function of a Run, for gradproof check"
FURTHER = {"GA-INV-001": "report the mean of each window with gradproof.monitoring.report_loss"}
REPLACED = "gradients were replaced by something whose meaning the events do not show"
TAKEN = "gradients were returned, not accumulated; the events do not show where they went"
HOOKED = "a hook of a parameter ran in the backward pass; one run does not show what it did to the gradient"
UNSHOWN = {
    "hooked": HOOKED,
    "written": "gradients were written in a backward pass by more than accumulation; one run does not show how",
}
"""Detail of an arrival, and why nothing holds after it of the gradients."""
SHARED = "two optimizers were given the same weights"
GREW = "the weights of an optimizer are not the same at each of its steps"
CHANGED = "the optimizer's step is changed by a subclass or a hook; what it does is not shown"
NEVER = "an optimizer whose weights have gradients made no step while the run was watched"
REACHED = "weights of the optimizer have no gradient, and weights that are in no optimizer have one"
MANY = "no data loader shows that each backward pass is a micro-batch: one may be for a penalty, or for a part of one"
LAST = "no data loader shows that the last backward passes are micro-batches"
PREPARED = "a hook of the optimizer did it, as a part of the step"
ITSELF = "the optimizer is none of torch.optim: it may accumulate by itself"
ABORTED = "a backward pass ended with an exception; what arrived of it is not shown"
AVERAGED = "an average of the weights was updated more often than the optimizer stepped"
PASSED = "a backward pass follows no forward pass of a module, or several: which passes are a micro-batch is not shown"
UNSUMMED = "not every gradient was seen to be summed over the ranks between its last arrival and the step"
BY_HAND = "gradients were written, or tensors exchanged between the ranks, in a way that is not followed"
THREADS = "two threads ran backward passes at the same time; what arrived from which of them is not shown"
UNMOVED = "a step moved no weight"
SKIPPED = "the loss scaler skipped every step"
SEVERAL = "a window has more backward passes than batches of its data loader: which are a micro-batch is not shown"
BROKEN = "the events were followed up to an act that breaks {}"
PARTLY = "some of the optimizer's gradients were zeroed, not all: they may be left out on purpose"
DROPPED = "what was zeroed came before a whole window: it may be another backward pass than a micro-batch's"
REWRITTEN = "weights were written outside of the optimizer's step"
IN_TURN = "several optimizers step in turn: which of them a backward pass is for is not shown"
SCHEDULED = "the schedule may follow epochs, or be given its position"
UNSEEN = "gradients are applied here that no backward pass was seen to bring"
EARLY = "stepped before the window was complete"
LONG = "the window received more micro-batches than it has"
UNAPPLIED = "the data ended with an unapplied gradient"
HELP = {
    "GA-EQ-001": "unscale once, after the last micro-batch",
    "GA-INV-002": "call optimizer.zero_grad() once a window, right after optimizer.step()",
    "GA-INV-003": "step the optimizer, and the schedule, once a window, after its last micro-batch",
    "GA-INV-004": "accumulate in float32",
    "GA-INV-005": "clip once a window, after the last micro-batch, the unscaling and the sum over the ranks",
    "GA-SYNC-001": "let the last micro-batch of every window synchronise",
}


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that was watched. `arrivals`: what was known at each backward pass.

    `in_passes`: the values show that each backward pass is one micro-batch. `lost`: where a value was lost, and why.
    """

    log: EventLog
    monitor: Monitor
    accum_steps: int | None
    arrivals: Mapping[int, Arrival]
    in_passes: bool
    lost: tuple[Location, str] | None


class WatchRuling:
    """What the events of the recorded windows of one run decide."""

    def __init__(self, watch: WatchedRun) -> None:
        self.watch = watch
        self.parts = [turns(part) for part in stretches(watch.log.items)]
        self.turns = [turn for part in self.parts for turn in part]
        self.steps = [step for turn in self.turns for step in turn.steps]
        self.arrivals = [event for turn in self.turns for event in turn.of(*PASS)]
        self.reached = union(self.arrivals)
        own = union(self.steps)
        self.known = own if own & self.reached else self.reached
        self.windows = [self._lengths(part) for part in self.parts]
        self.given = watch.accum_steps
        seen = Counter(w.count for w in self.all)
        self.n = self.given or max(seen, key=lambda n: (seen[n], n), default=1)
        self.apart = self._apart()

    @property
    def all(self) -> list[WatchedWindow]:
        """Every window."""
        return [window for part in self.windows for window in part]

    def _lengths(self, part: list[Turn]) -> list[WatchedWindow]:
        done = [turn for turn in part if turn.steps]
        starts = [*(turn.passes[0] for turn in done[1:]), *([turn.passes[0] for turn in part if not turn.steps] or [0])]
        ends = [0, *(turn.passes[-1] for turn in done)]
        return [
            _window(turn.passes, self.watch, ends[i], starts[i], turn.steps[0].location) for i, turn in enumerate(done)
        ]

    def _apart(self) -> bool:
        """Whether optimizers of other parameters step in turn, as those of a GAN do."""
        own = [union(turn.steps) for turn in self.turns if turn.steps]
        return any(not one & other for one in own for other in own)

    def _early(self, counts: list[WatchedWindow], i: int) -> bool:
        """Whether a short window is no tail: it stands beside another one, and nothing lies between them.

        That is so where the batches went on in one pass over a data loader, and where both have one micro-batch: an
        epoch of one micro-batch has nothing to accumulate. A micro-batch is then one forward pass.
        """
        mine = counts[i]
        if mine.read >= self.n:
            return False
        for j, (first, second) in ((i - 1, (i - 1, i)), (i + 1, (i, i + 1))):
            if not 0 <= j < len(counts):
                continue
            both = (mine, counts[j])
            if all(w.count < self.n and not w.ended and w.simple for w in both) and (
                all(w.count == 1 for w in both) or goes_on(counts[first].last, counts[second].first)
            ):
                return True
        return False

    def _sized(self) -> Iterator[Broken]:
        """Windows of another length than was given, and data that end before a step."""
        for part, counts in zip(self.parts, self.windows, strict=True):
            for i, (turn, window) in enumerate(zip(part, counts, strict=False) if self.given else ()):
                event = turn.steps[0]
                if window.count < self.n and self._early(counts, i):
                    yield Broken("GA-INV-003", EARLY, event, of(event), window.count, window.location)
                    break
                if window.count > self.n and all(one.shown for one in self.all if one.count > self.n):
                    event = next(e for e in turn.of(*PASS) if e.detail["number"] == turn.passes[self.n])
                    yield Broken("GA-INV-003", LONG, event, of(event), self.n, event.location)
                    break
            left = [turn for turn in part[-1:] if turn.of("accumulate") and not (turn.steps or turn.of("zero"))]
            for end in (end for turn in left for end in turn.of("end")):
                at = (self.steps or left[0].of("accumulate"))[-1].location
                yield Broken("GA-INV-003", UNAPPLIED, end, self.known, len(left[0].passes), at)

    def verification(self) -> Verification:
        """Judge."""
        watch = self.watch
        made = Verification("", {"accum_steps": self.n, "inferred": self.given is None})
        made.uncovered = [BLIND]
        made.versions = {"torch": torch.__version__}
        made.monitoring = monitored(watch.monitor)
        names = expected_obligations(watch.monitor.world)
        if not self.steps:
            made.results = [Result(n, Outcome.OPAQUE, self._nothing(), domain="events") for n in names]
            return made
        made.events = readable(watch.log.items)
        sized = list(self._sized())
        early = any(one.why == EARLY for one in sized)
        found = [one for part in self.parts for one in broken(part, self.known) if not (early and one.why == STALE)]
        found += sized
        for name in dict.fromkeys(one.obligation for one in found):
            made.results += [self._refuted(one) for one in found if one.obligation == name][:1]
        said = {result.obligation for result in made.results}
        if "GA-INV-003" not in said:
            made.results.append(self._counted(found))
        if any(e.detail.get("world", 1) > 1 for e in watch.log.events("sync")) and "GA-SYNC-001" not in said:
            made.results.append(self._synced())
        stated, made.notes = reported(watch.monitor), heard(watch.monitor)
        made.results += [] if stated is None else [stated]
        decided = {r.obligation for r in made.results}
        made.results += [self._undecided(name) for name in names if name not in decided]
        return complete(made, watch.monitor.world)

    def _nothing(self) -> str:
        """Why there is no window to judge."""
        run = self.watch.monitor.run
        if run.windows and not run.recorded & set(range(run.windows)):
            return f"none of the windows was recorded that were asked for; the run has {run.windows}"
        return f"no {'backward pass' if any(self.watch.log.events('step')) else 'optimizer step'} was seen"

    def _synced(self) -> Result:
        """GA-SYNC-001, where something was summed over the ranks: it holds where each gradient was, and stayed so."""
        for part in self.parts:
            due: set[str] = set()
            for event in (event for turn in part for event in turn.events):
                if event.kind in (*PASS, "touch", "assign"):
                    due |= of(event) & self.known
                elif event.kind == "zero" or (event.kind == "sync" and event.detail.get("whole", True)):
                    due -= of(event)
                elif event.kind == "step" and of(event) & due:
                    return Result("GA-SYNC-001", Outcome.OPAQUE, UNSUMMED, event.location, FUNCTION, "events", RECORDED)
        return self._held("GA-SYNC-001", "each gradient was summed over the ranks before its step")

    def _undecided(self, name: str) -> Result:
        """An obligation that no event decides."""
        help = FURTHER.get(name, FUNCTION)
        if name in UNDECIDED or self.watch.lost is None:
            why = UNDECIDED.get(name, UNFOLLOWED)
            return Result(name, Outcome.UNKNOWN, why, None, help, "events", RECORDED)
        location, what = self.watch.lost
        return Result(name, Outcome.OPAQUE, f"a value was lost: {what}", location, help, "events", RECORDED)

    def _refuted(self, broken: Broken) -> Result:
        kind = broken.event.kind
        details = {"event": kind, "micro": broken.micro, "params": sorted(broken.params)}
        excuse, help = self._excuse(broken), HELP.get(broken.obligation, "")
        outcome, why = (Outcome.OPAQUE, f"{broken.why}, and {excuse}") if excuse else (Outcome.REFUTED, broken.why)
        help = "" if excuse else help
        return Result(broken.obligation, outcome, why, broken.location, help, "events", RECORDED, details)

    def _excuse(self, broken: Broken) -> str:
        """Why a broken rule is no violation for certain; empty where it is one."""
        if self.apart:
            return IN_TURN
        odd = next((why for names, why, _ in self.odd() if broken.obligation in names), "")
        return odd or self._innocent(broken) or self._not_lost(broken)

    def _innocent(self, broken: Broken) -> str:
        if broken.obligation == "GA-SYNC-001" and self._exchanged():
            return BY_HAND
        arrivals = [event for event in self.arrivals if of(event) & broken.params]
        unshown = [why for name, why in UNSHOWN.items() if any(event.detail.get(name) for event in arrivals)]
        if broken.obligation in SUMS and unshown:
            return unshown[0]
        if broken.obligation == "GA-INV-003" and (why := self._uncounted(broken)):
            return why
        return PREPARED if self._prepared(broken.event) else ""

    def _exchanged(self) -> bool:
        """Whether gradients may have been summed over the ranks by hand."""
        return any(event.kind in ("touch", "assign", "sync", "collective") for event in self.watch.log.items)

    def _prepared(self, event: Event) -> bool:
        """Whether an event is a part of a step that hooks of its optimizer prepared."""
        within = False
        for one in self.watch.log.items:
            if one.kind == "step":
                within = bool(one.detail.get("hooked"))
            elif one.kind == "stepped":
                within = False
            if one is event:
                return within and one.kind != "step"
        return False

    def _not_lost(self, broken: Broken) -> str:
        log = self.watch.log
        if broken.obligation == "GA-INV-002" and any(log.events("assign")):
            return REPLACED
        if broken.why == STALE:
            return ITSELF if self._unmoved() and self._foreign() else ""
        if broken.why != LOST:
            return ""
        if why := self._dropped(broken):
            return why
        if any(log.events("rewrite")):
            return REWRITTEN
        if any(event.detail.get("hooked") for event in self.arrivals):
            return HOOKED
        return ITSELF if self._foreign() else ""

    def _foreign(self) -> bool:
        """Whether an optimizer is none of torch.optim."""
        return any(step.detail.get("foreign") for step in self.steps)

    def _dropped(self, broken: Broken) -> str:
        """Why gradients that were zeroed before a step need not be lost: a part of them, or before a whole window."""
        if (self.known & self.reached) - broken.params:
            return PARTLY
        turn = next(turn for turn in self.turns if broken.event in turn.events)
        later = {e.detail["number"] for e in turn.before_step()[turn.place(broken.event) :] if e.kind in PASS}
        return DROPPED if len(later) >= self.n > 1 else ""

    def _uncounted(self, broken: Broken) -> str:
        """Why a wrong number of backward passes need not be a wrong number of micro-batches."""
        if broken.why == UNAPPLIED and not self._training():
            return LAST
        return ITSELF if self._unmoved() and self._foreign() else ""

    def _training(self) -> bool:
        """Whether the last backward pass was of the data loader's pass that the windows were of."""
        last = self.watch.arrivals.get(max(self.watch.arrivals, default=0))
        ends = [w.last for w in self.all if w.last is not None]
        return last is not None and last.iteration is not None and any(e.iteration is last.iteration for e in ends)

    def _unmoved(self) -> list[Event]:
        """Steps that moved no weight, but for those that the loss scaler skipped."""
        skipped = {step.detail.get("call") for step in self.steps if step.detail.get("skipped")}
        ended = [e for turn in self.turns for e in turn.of("stepped") if e.detail["call"] not in skipped]
        return [e for e in ended if e.detail["moved"] is False and any(e.detail["lr"])]

    def _held(self, name: str, why: str) -> Result:
        details = {"accum_steps": self.n, "inferred": self.given is None}
        return Result(name, Outcome.HOLDS, why, domain="events", reach=RECORDED, details=details)

    def unsure(self, found: Sequence[Broken]) -> Iterator[tuple[str, Location | None]]:
        """What was seen that leaves the number of steps undecided, and where."""
        for one in (one for one in found if one.obligation not in ("GA-INV-004", "GA-SYNC-001")):
            yield BROKEN.format(one.obligation), one.location
        unseen = next((step for step in self.steps if step.detail.get("held") and not of(step) & self.known), None)
        if unseen is not None:
            yield UNSEEN, unseen.location
        yield from ((why, location) for names, why, location in self.odd() if "GA-INV-003" in names)
        if all(bool(step.detail.get("skipped")) for step in self.steps):
            yield SKIPPED, self.steps[-1].location
        yield from ((UNMOVED, event.location) for event in self._unmoved())
        updates = [event for turn in self.turns for event in turn.of("averaged")]
        if len(updates) > len(self.steps) + 1:
            yield AVERAGED, updates[-1].location
        yield from self._left_out()
        for w in self.all:
            if len(set(w.forwards)) > 1 or max(w.forwards) > 1:
                yield PASSED, w.location
            if w.batches > 1 and not w.shown:
                yield SEVERAL, w.location
        for turn in self.turns:
            yield from ((SCHEDULED, event.location) for event in turn.before_step() if event.kind == "schedule")
            yield from ((DROPPED, event.location) for event in turn.of("zero") if not turn.steps)
            yield from ((REWRITTEN, event.location) for event in turn.of("rewrite"))
            yield from ((TAKEN, event.location) for event in turn.of("gradients"))

    def odd(self) -> Iterator[tuple[Sequence[str], str, Location | None]]:
        """What is unusual enough that neither a rule that holds nor one that is broken says much."""
        own: dict[int, list[Event]] = {}
        for step in self.steps:
            own.setdefault(step.detail.get("optimizer", -1), []).append(step)
        every = [union(steps) for steps in own.values()]
        if sum(map(len, every)) > len(frozenset().union(*every)):
            yield PROTOCOL, SHARED, None
        for steps in own.values():
            if len(set(map(of, steps))) > 1:
                yield PROTOCOL, GREW, steps[-1].location
        log = self.watch.log
        yield from ((PROTOCOL, THREADS, event.location) for event in log.events("threads"))
        yield from ((PROTOCOL, CHANGED, step.location) for step in self.steps if step.detail.get("changed"))
        yield from ((OF_GRADIENTS, ABORTED, event.location) for event in log.events("aborted"))

    def _left_out(self) -> Iterator[tuple[str, None]]:
        """Weights with gradients whose optimizer makes no step, or does not know them."""
        own = union(self.steps)
        stepped = {step.detail.get("optimizer") for step in self.steps} | {s.detail.get("outer") for s in self.steps}
        for event in self.watch.log.events("made"):
            made = event.detail["optimizers"].items()
            if any(key not in stepped and (set(names) & self.reached) - own for key, names in made):
                yield NEVER, None
        if own - self.reached and self.reached - own:
            yield REACHED, None

    def _counted(self, found: Sequence[Broken]) -> Result:
        """GA-INV-003, where nothing broke it: it holds, or the events do not show it."""
        for why, location in self.unsure(found):
            return Result("GA-INV-003", Outcome.OPAQUE, why, location, "", "events", RECORDED)
        counts = self.all
        shown = ", ".join(str(w.count) for w in counts)
        even = all(w.count == self.n or (w.ended and w.count < self.n) for w in counts)
        even = even and any(w.count == self.n for w in counts)
        if self.apart:
            why = IN_TURN
        elif self.given is None and self.n == 1 and even:
            why = "every backward pass was followed by a step: no accumulation, or a step after each micro-batch"
        elif not even:
            why = (
                f"the windows have {shown} backward passes, and no data loader ended in a short one: "
                "tails, or several passes a micro-batch, or losses summed before one pass, or a wrong boundary"
            )
        elif not all(w.shown for w in counts):
            why = MANY
        else:
            tails = " or its tail" * any(w.count < self.n for w in counts)
            words = f"{len(counts)} steps, one for each window of {self.n} micro-batches{tails}"
            return self._held("GA-INV-003", words)
        help = "give --accum-steps" if self.given is None else "give --epoch-batches, the backward passes of an epoch"
        return Result("GA-INV-003", Outcome.UNKNOWN, why, self.steps[0].location, help, "events", RECORDED)


@dataclass(frozen=True, slots=True)
class WatchedWindow:
    """A complete window: its backward passes, the first and the last of them, and whether an epoch ended with it.

    `forwards` are the forward passes before each backward pass; 0 where none was seen. `batches` of a data loader were
    read from the first to the last, where one iteration gave them all, and `read` since the window before; else 0.
    `shown`: each backward pass follows the next batch of one iteration, or the caller gave the passes of an epoch.
    `simple`: each backward pass follows one forward pass, which calls no module twice.
    """

    count: int
    first: Arrival | None
    last: Arrival | None
    ended: bool
    forwards: tuple[int, ...]
    batches: int
    read: int
    location: Location
    shown: bool
    simple: bool


def goes_on(last: Arrival | None, following: Arrival | None) -> bool:
    """Whether one pass over a data loader yielded more batches between two backward passes."""
    if last is None or following is None or last.iteration is None:
        return False
    return last.iteration is following.iteration and following.read > last.read


def _window(passes: list[int], watch: WatchedRun, before: int, following: int, location: Location) -> WatchedWindow:
    """A window from the numbers of its backward passes, and those of the passes before and after it (0: none)."""
    seen = [watch.arrivals.get(number) for number in passes]
    last, after = seen[-1], watch.arrivals.get(following)
    ended = last is not None and last.trained and (after is None or after.iteration is not last.iteration)
    ended |= watch.monitor.epoch_batches is not None and passes[-1] % watch.monitor.epoch_batches == 0
    forwards = tuple(a.forwards if a is not None else 0 for a in seen)
    read = batches(watch.arrivals.get(before), last) - 1
    if read < 0 and last is not None and last.iteration is not None:
        read = last.read
    known = [a for a in seen if a is not None]
    shown = len(known) == len(seen) and all(batches(a, b) == (1 if b.ahead else 2) for a, b in pairwise(known))
    shown = (shown and known[0].iteration is not None) or watch.monitor.epoch_batches is not None
    simple = set(forwards) == {1} and not any(a.again for a in known)
    shown |= watch.in_passes and simple
    read = max(read, 0)
    return WatchedWindow(
        len(passes), seen[0], last, ended, forwards, batches(seen[0], last), read, location, shown, simple
    )


def batches(first: Arrival | None, last: Arrival | None) -> int:
    """How many batches one iteration over a data loader gave from one backward pass to another; 0: not known."""
    if first is None or last is None or first.iteration is None or first.iteration is not last.iteration:
        return 0
    return last.read - first.read + 1


def readable(items: Sequence[Event]) -> list[dict[str, Any]]:
    """Events as plain data; the same event of one parameter after the other, at one line, is one row."""
    rows: list[dict[str, Any]] = []
    for event in items:
        row = {"event": event.kind, "location": str(event.location), "params": sorted(of(event))}
        if rows and rows[-1] | {"params": []} == row | {"params": []} and event.kind not in (*PASS, "step"):
            rows[-1]["params"] = sorted({*rows[-1]["params"], *row["params"]})
        else:
            rows.append(row)
    return rows
