"""What the events of one watched run decide: a broken rule of the window protocol, the steps, the sums over ranks.

A rule that is broken refutes only where nothing odd was seen (`_excuse`). GA-INV-003 holds only where nothing was seen
that the events do not explain (`unsure`). Of what gradients are made of, events show no more than a broken rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.protocol.events import OF_GRADIENTS, ProtocolEvent, acts_of
from gradproof.shadow.protocol.monitor import Arrival, Monitor
from gradproof.shadow.protocol.monitor_report import heard, monitored, reported
from gradproof.shadow.protocol.window import Broken, Cluster, Judgement, Windows, clusters, judge
from gradproof.shadow.record.events import Event, EventLog
from gradproof.shadow.request import complete, expected_obligations
from gradproof.shadow.result import RECORDED, Result, Verification

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
FREE = "a tensor that is in no optimizer and no module collects gradients; what is done with them is not shown"
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
SCHEDULED = "the schedule may follow epochs, or be given its position"
THREADS = "two threads ran backward passes at the same time; what arrived from which of them is not shown"
UNMOVED = "a step moved no weight"
SKIPPED = "the loss scaler skipped every step"
SEVERAL = "a window has more backward passes than batches of its data loader: which are a micro-batch is not shown"
BROKEN = "the events were followed up to an act that breaks {}"
PARTLY = "some of the optimizer's gradients were zeroed, not all: they may be left out on purpose"
DROPPED = "what was zeroed came before a whole window: it may be another backward pass than a micro-batch's"
KEPT = "a backward pass kept its graph: an earlier loss may be in a later one"
REWRITTEN = "weights were written outside of the optimizer's step"
IN_TURN = "several optimizers step in turn: which of them a backward pass is for is not shown"
MORE = 1000
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
    windows: int
    accum_steps: int | None
    arrivals: Mapping[int, Arrival]
    in_passes: bool
    lost: tuple[Location, str] | None


class WatchRuling:
    """What the events of one watched run decide."""

    def __init__(self, watch: WatchedRun) -> None:
        self.watch = watch
        self.acts = acts_of(watch.log)
        self.groups = list(clusters(self.acts))
        self.counts = {c.optimizer: lengths(self.acts, c, watch) for c in self.groups}
        self.given = watch.accum_steps
        self.n = watch.accum_steps or self._inferred()
        self.steps = [a for a in self.acts if a.kind == "step"]

    def _inferred(self) -> int:
        seen = Counter(w.count for counts in self.counts.values() for w in counts)
        return max(seen, key=lambda n: (seen[n], n)) if seen else 1

    def sizes(self, acts: list[ProtocolEvent], cluster: Cluster) -> list[int]:
        """The windows that a cluster is held to: a short one is none that could be the tail of an epoch."""
        counts = self.counts[cluster.optimizer]
        if self.given is None or self._multiple(counts):
            return [w.count for w in counts] + [self.n] * MORE
        early = {i for i in range(len(counts)) if self._early(counts, i)}
        sizes = [w.count if w.count < self.n and i not in early else self.n for i, w in enumerate(counts)]
        return sizes + [self.n] * MORE

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

    def _multiple(self, counts: list[WatchedWindow]) -> bool:
        """Several backward passes a micro-batch, with tails; which they are is not known."""
        most = max((w.count for w in counts), default=0)
        short = [w.count < most for w in counts]
        apart = not any(a and b for a, b in pairwise(short))
        return most > self.n and most % self.n == 0 and not short[0] and apart

    def verification(self) -> Verification:
        """Judge."""
        watch = self.watch
        config = {"accum_steps": self.n, "inferred": self.given is None, "windows": watch.windows}
        made = Verification("", config)
        made.uncovered = [BLIND]
        made.versions = {"torch": torch.__version__}
        made.monitoring = monitored(watch.monitor)
        names = expected_obligations(watch.monitor.world)
        if not self.steps or not self.groups:
            why = "no backward pass was seen" if self.steps else "no optimizer step was seen"
            made.results = [Result(n, Outcome.OPAQUE, why, domain="events") for n in names]
            return made
        found = judge(self.acts, [self.n] * 2 if self.n > 1 else [1], self.sizes)
        made.events = found.events
        made.results = [self._refuted(b, found) for b in found.broken]
        made.results += [] if self._broken("GA-INV-003", found) else [self._counted(found)]
        if any(a.detail.get("world", 1) > 1 for a in self.acts if a.kind == "sync"):
            made.results += self._synced(found)
        stated, made.notes = reported(watch.monitor), heard(watch.monitor)
        made.results += [] if stated is None else [stated]
        decided = {r.obligation for r in made.results}
        made.results += [self._undecided(name) for name in names if name not in decided]
        return complete(made, watch.monitor.world)

    def _synced(self, found: Judgement) -> list[Result]:
        """GA-SYNC-001, where something was summed over the ranks: it holds where each gradient was, and stayed so."""
        due: set[str] = set()
        own = frozenset().union(*(c.own for c in self.groups))
        for act in self.acts:
            if act.kind in ("arrive", "touch", "assign"):
                due |= act.params & own
            elif act.kind in ("zero", "sync"):
                due -= act.params if act.kind == "zero" else act.detail["own"]
            elif act.kind == "step" and act.params & due and not self._broken("GA-SYNC-001", found):
                return [Result("GA-SYNC-001", Outcome.OPAQUE, UNSUMMED, act.location, FUNCTION, "events", RECORDED)]
        if self._broken("GA-SYNC-001", found):
            return []
        return [self._held("GA-SYNC-001", "each gradient was summed over the ranks before its step")]

    def _undecided(self, name: str) -> Result:
        """An obligation that no event decides."""
        help = FURTHER.get(name, FUNCTION)
        if name in UNDECIDED or self.watch.lost is None:
            why = UNDECIDED.get(name, UNFOLLOWED)
            return Result(name, Outcome.UNKNOWN, why, None, help, "events", RECORDED)
        location, what = self.watch.lost
        return Result(name, Outcome.OPAQUE, f"a value was lost: {what}", location, help, "events", RECORDED)

    def _broken(self, name: str, found: Judgement) -> bool:
        return any(b.obligation == name for b in found.broken)

    def _refuted(self, broken: Broken, found: Judgement) -> Result:
        details = {"event": broken.event, "micro": broken.micro, "params": list(broken.params)}
        excuse = self._excuse(broken)
        if excuse:
            why = f"{broken.why}, and {excuse}"
            return Result(broken.obligation, Outcome.OPAQUE, why, broken.location, "", "events", RECORDED, details)
        help = HELP.get(broken.obligation, "")
        return Result(
            broken.obligation, Outcome.REFUTED, broken.why, broken.location, help, "events", RECORDED, details
        )

    def _excuse(self, broken: Broken) -> str:
        """Why a broken rule is no violation for certain; empty where it is one."""
        if len({frozenset(a.micro for a in self.steps if a.params & c.own) for c in self.groups}) > 1:
            return IN_TURN
        for names, why, _ in self.odd():
            if broken.obligation in names:
                return why
        return self._innocent(broken) or self._not_lost(broken)

    def _innocent(self, broken: Broken) -> str:
        if broken.obligation == "GA-SYNC-001" and self._exchanged():
            return BY_HAND
        arrivals = [a for a in self.acts if a.kind == "arrive" and a.params & set(broken.params)]
        unshown = [why for name, why in UNSHOWN.items() if any(a.detail.get(name) for a in arrivals)]
        if broken.obligation in SUMS and unshown:
            return unshown[0]
        if broken.obligation == "GA-INV-003" and (why := self._uncounted(broken)):
            return why
        return PREPARED if any(first < broken.index <= last for first, last in self._prepared()) else ""

    def _exchanged(self) -> bool:
        """Whether gradients may have been summed over the ranks by hand."""
        written = any(a.kind in ("touch", "assign", "sync") for a in self.acts)
        return written or any(self.watch.log.events("collective"))

    def _not_lost(self, broken: Broken) -> str:
        lost = broken.event == "zero" and broken.obligation == "GA-INV-002"
        if (lost or broken.last) and any(a.kind == "assign" for a in self.acts):
            return REPLACED
        if not lost:
            return ""
        if why := self._dropped(broken):
            return why
        for act in self.acts:
            if act.kind == "rewrite":
                return REWRITTEN
            if act.kind == "arrive" and act.detail.get("hooked"):
                return HOOKED
            if act.kind == "step" and act.detail.get("foreign"):
                return ITSELF
        return ""

    def _uncounted(self, broken: Broken) -> str:
        """Why a wrong number of backward passes need not be a wrong number of micro-batches."""
        if broken.event == "accumulate" and not self._long():
            return MANY
        if broken.event == "end" and not self._training():
            return LAST
        if broken.event == "schedule" and not self._often():
            return SCHEDULED
        return ITSELF if self._unmoved() and any(a.detail.get("foreign") for a in self.steps) else ""

    def _often(self) -> bool:
        """Whether a schedule advanced twice between two steps, by itself."""
        seen = set[int]()
        for act in self.acts:
            if act.kind == "step":
                seen.clear()
            elif act.kind == "schedule" and not act.detail.get("placed"):
                if act.detail["scheduler"] in seen:
                    return True
                seen.add(act.detail["scheduler"])
        return False

    def _long(self) -> bool:
        """Whether each window that received more than N passes is shown to have as many micro-batches."""
        windows = [w for each in self.counts.values() for w in each if w.count > self.n]
        return bool(windows) and all(w.shown for w in windows)

    def _training(self) -> bool:
        """Whether the last backward pass was of the data loader's pass that the windows were of."""
        last = self.watch.arrivals.get(max(self.watch.arrivals, default=0))
        ends = [w.last for each in self.counts.values() for w in each if w.last is not None]
        return last is not None and last.iteration is not None and any(e.iteration is last.iteration for e in ends)

    def _prepared(self) -> Iterator[tuple[int, int]]:
        """From where to where on the log a step went that hooks of its optimizer prepared."""
        ends = [i for i, e in enumerate(self.watch.log.items) if isinstance(e, Event) and e.kind == "stepped"]
        for step in self.steps:
            if step.detail.get("hooked"):
                yield step.index, next((i for i in ends if i > step.index), step.index)

    def _unmoved(self) -> list[Event]:
        """Steps that moved no weight, but for those that the loss scaler skipped."""
        skipped = {a.detail.get("call") for a in self.steps if a.detail.get("skipped")}
        ended = [e for e in self.watch.log.events("stepped") if e.detail["call"] not in skipped]
        return [e for e in ended if e.detail["moved"] is False and any(e.detail["lr"])]

    def _held(self, name: str, why: str) -> Result:
        details = {"accum_steps": self.n, "inferred": self.given is None}
        return Result(name, Outcome.HOLDS, why, domain="events", reach=RECORDED, details=details)

    def unsure(self, found: Judgement) -> Iterator[tuple[str, Location | None]]:
        """What was seen that leaves the number of steps undecided, and where."""
        yield from ((words, None) for words in found.unseen)
        ends = next((b for b in found.broken if b.last), None)
        if ends is not None:
            yield BROKEN.format(ends.obligation), ends.location
        yield from ((why, location) for names, why, location in self.odd() if "GA-INV-003" in names)
        yield from self._idle()
        yield from self._apart()
        for w in (w for counts in self.counts.values() for w in counts):
            if len(set(w.forwards)) > 1 or max(w.forwards) > 1:
                yield PASSED, w.location
            if w.batches > 1 and not w.shown:
                yield SEVERAL, w.location
        for act in self.acts:
            if act.kind == "arrive" and act.detail.get("kept"):
                yield KEPT, act.location
            if act.kind == "rewrite":
                yield REWRITTEN, act.location
            if act.kind == "arrive" and act.detail.get("taken"):
                yield TAKEN, act.location

    def odd(self) -> Iterator[tuple[Sequence[str], str, Location | None]]:
        """What is unusual enough that neither a rule that holds nor one that is broken says much."""
        seen: set[str] = set()
        for group in self.groups:
            steps = [a for a in self.steps if a.detail.get("optimizer", -1) == group.optimizer]
            if group.own & seen:
                yield PROTOCOL, SHARED, None
            if len({a.params for a in steps}) > 1:
                yield PROTOCOL, GREW, steps[-1].location
            seen |= group.own
        yield from ((PROTOCOL, THREADS, event.location) for event in self.watch.log.events("threads"))
        yield from ((PROTOCOL, CHANGED, step.location) for step in self.steps if step.detail.get("changed"))
        free = (a for a in self.acts if a.kind == "arrive" and a.detail.get("free"))
        yield from ((PROTOCOL, FREE, a.location) for a in free)
        yield from ((OF_GRADIENTS, ABORTED, e.location) for e in self.watch.log.events("aborted"))

    def _idle(self) -> Iterator[tuple[str, Location | None]]:
        """Steps that change nothing, and averages that are updated more often than the weights."""
        if self.steps and all(bool(a.detail.get("skipped")) for a in self.steps):
            yield SKIPPED, self.steps[-1].location
        yield from ((UNMOVED, e.location) for e in self._unmoved() if self._after_a_gradient(e))
        updates = list(self.watch.log.events("averaged"))
        if len(updates) > len(self.steps) + 1:
            yield AVERAGED, updates[-1].location

    def _after_a_gradient(self, event: Event) -> bool:
        first = next(self.watch.log.events("accumulate"), None)
        items = self.watch.log.items
        return first is not None and items.index(first) < items.index(event)

    def _apart(self) -> Iterator[tuple[str, None]]:
        """Weights with gradients whose optimizer makes no step, or does not know them."""
        reached = frozenset().union(*(a.params for a in self.acts if a.kind == "arrive"))
        own = frozenset().union(*(g.own for g in self.groups))
        known = {a.detail.get("optimizer") for a in self.steps} | {a.detail.get("outer") for a in self.steps}
        for event in self.watch.log.events("made"):
            made = event.detail["optimizers"].items()
            if any(key not in known and (set(names) & reached) - own for key, names in made):
                yield NEVER, None
        if own - reached and reached - own:
            yield REACHED, None

    def _dropped(self, broken: Broken) -> str:
        """Why gradients that were zeroed before a step need not be lost: a part of them, or before a whole window."""
        whole = next((c.params for c in self.groups if c.own & set(broken.params)), frozenset())
        if whole - set(broken.params):
            return PARTLY
        arrived = set[int]()
        for act in self.acts:
            if act.index <= broken.index or not act.params & whole:
                continue
            if act.kind == "arrive":
                arrived.add(act.detail["number"])
            elif act.kind == "zero":
                arrived.clear()
            elif act.kind == "step":
                return DROPPED if len(arrived) >= self.n > 1 else ""
        return DROPPED

    def _counted(self, found: Judgement) -> Result:
        """GA-INV-003, where nothing broke it: it holds, or the events do not show it."""
        for why, location in self.unsure(found):
            return Result("GA-INV-003", Outcome.OPAQUE, why, location, "", "events", RECORDED)
        counts = [w for each in self.counts.values() for w in each]
        shown = ", ".join(str(w.count) for w in counts)
        even = all(w.count == self.n or (w.ended and w.count < self.n) for w in counts)
        even = even and any(w.count == self.n for w in counts)
        if not counts:
            why = "no window was complete"
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
            words = f"{found.steps} steps, one for each window of {self.n} micro-batches{tails}"
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


def lengths(acts: list[ProtocolEvent], cluster: Cluster, watch: WatchedRun) -> list[WatchedWindow]:
    """Each complete window of a cluster."""
    run = Windows(acts, cluster, [])
    numbers, windows, passes = set(run.numbers), list[list[int]](), list[int]()
    locations: list[Location] = []
    for act in acts:
        number = act.detail.get("number")
        if act.kind == "arrive" and number in numbers and number not in passes:
            passes.append(number)
        elif act in run.steps and passes:
            windows.append(passes)
            locations.append(act.location)
            passes = []
    starts = [*(w[0] for w in windows), *(passes or [0])]
    ends = [0, *(w[-1] for w in windows)]
    return [_window(w, watch, ends[i], starts[i + 1], locations[i]) for i, w in enumerate(windows)]


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
