"""What two real runs refute: a difference in numbers, what it is made of, and the line that made it.

Terms alone refute where both runs weigh the same terms otherwise (`judge`). Here a gradient, a parameter or a reported
loss of the run by micro-batches differs from the full batch's by more than rounding, with the same data, the same draws
and the same numbers before it; the events of the window say which rule was broken, and at which line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Run
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.verify.judge import Judge
from gradproof.shadow.verify.reported import Reported
from gradproof.shadow.whole.facts import CLOSE, LATER, LEAVES, NARROW, difference, leaves, near, shaped
from gradproof.shadow.whole.loop_events import BACKWARD, HOOK, SCHEDULE, WEIGHTS, WRITE, ZERO, LoopEvent
from gradproof.shadow.whole.terms import NOBODY, TRAINED, Combination, Terms

if TYPE_CHECKING:
    from gradproof.shadow.verify.followed import Followed

EQ, LOSS, STALE, STEPS, WIDTH, CLIP, DATA = (
    "GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003", "GA-INV-004", "GA-INV-005", "GA-DATA-001",
)  # fmt: skip
CAUSES = (STALE, STEPS, CLIP, DATA)
"""Obligations whose refutation explains a gradient that differs, the first one first."""
SHARED = (STALE, CLIP)
"""Rules that the full batch may break in the same way: then equal gradients say little."""
HELP = {
    EQ: "the factors of the window's micro-batches have to sum to one, each its share of the window",
    STALE: "zero the gradients once, between the step and the next window's first backward pass",
    STEPS: "step the optimizer, and after it the schedule, once, when the window is complete",
    WIDTH: "accumulate in float32",
    CLIP: "clip once, after the last micro-batch and after unscaling",
    DATA: "every micro-batch takes the next samples of the stream that the full batch takes at once",
}
PAIRED = "paired otherwise"
MOVED = 0.25
"""The relative difference of what a step adds to a parameter that rounding may make: some optimizers divide by it."""
CLAMPS = ("clamp", "clip", "_foreach_clamp", "sign", "nan_to_num")
SCALES = ("mul", "div", "_foreach_mul", "_foreach_div")
UNSCALED = "_amp_foreach_non_finite_check_and_unscale_"


def judged(terms: Terms, run: Run, ours: Followed, full: Followed, ranks: int = 1) -> list[Result]:
    """A result for each obligation but that of ranks: what terms decide, and what the numbers of both runs refute."""
    refuter = Refuter(terms, run, ours, full, ranks)
    results = refuter.results(refuter.reported.loss)
    if refuter.real and not (ours.error or full.error):
        if ours.facts.lost or full.facts.lost:
            return results
        results = refuter.refuted(results)
    return shared(refuter, results)


def shared(judge: Judge, results: list[Result]) -> list[Result]:
    """Equal gradients are undecided where a rule is broken that the full batch may break in the same way."""
    broken = [r for r in results if r.obligation in SHARED and r.outcome in (Outcome.REFUTED, Outcome.UNKNOWN)]
    for result in results if broken and max(judge.windows, default=0) >= 1 else ():
        if result.obligation == EQ or (result.obligation == LOSS and result.domain == "floats"):
            doubted(
                result,
                f"{broken[0].obligation} was not shown: the full batch may break it in the same way",
                broken[0].location,
            )
    return results


def doubted(result: Result, reason: str, location: Location | None = None) -> None:
    """What held is undecided."""
    if result.outcome is Outcome.HOLDS:
        result.outcome, result.reason, result.reach = Outcome.UNKNOWN, reason, ""
        result.location = location or result.location


class Refuter(Judge):
    """The refutations of one function, by its two real runs. `found`: what is refuted, by obligation."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reported = Reported(self)
        self.updates, self.theirs = self.ours.facts.updates, self.full.facts.updates
        self.found: dict[str, Result] = {}

    def refuted(self, results: list[Result]) -> list[Result]:
        """The results with what numbers refute of them."""
        self.found = {r.obligation: self.placed(r) for r in results if r.outcome is Outcome.REFUTED}
        open_ = {r.obligation for r in results if r.outcome not in (Outcome.HOLDS, Outcome.REFUTED, Outcome.OUTSIDE)}
        if any(result.outcome is Outcome.VACUOUS for result in results):
            open_ = {STALE}
        open_ |= {STEPS} if self.ours.unread or self.often() is not None else set()
        for rule in self.rules():
            shown = rule()
            if shown is not None and shown.obligation in open_:
                self.found.setdefault(shown.obligation, shown)
        self.weigh(results)
        self.diagnose(results)
        return [self.found.get(r.obligation, r) for r in results]

    def rules(self) -> list[Callable[[], Result | None]]:
        """The rules, each with what it needs decided before it."""
        return [
            self.counted, self.early, self.zeroed, self.left, self.again, self.leftover, self.written, self.ended,
            self.undone, self.scheduled, self.updated, self.averaged, self.clamped, self.clipped_late, self.narrowed,
            self.other_data, self.unlike, self.reported.differing, self.reported.summed,
        ]  # fmt: skip

    def _refuted(self, name: str, reason: str, location: Location, help: str = "", **more: Any) -> Result:
        return Result(name, Outcome.REFUTED, reason, location, help or HELP[name], "floats", RECORDED, **more)

    def diagnose(self, results: list[Result]) -> None:
        """Lines and timelines: of what is refuted, and the line of a gradient that is undecided."""
        for each in self.found.values():
            line = self.events.timeline(each, self.window_of(each))
            each.counterexample = {**(each.counterexample or {}), **({} if line is None else {"trace": line})}
        for result in results:
            undecided = result.outcome is Outcome.UNKNOWN and result.obligation == EQ and not result.details
            if undecided and self.unequal is not None:
                result.location = self.diagnosed(self.unequal[0])

    def weigh(self, results: list[Result]) -> None:
        """What terms prove is undecided where numbers speak against it."""
        names = self.mine.last.keys() & self.other.last.keys()
        mine, other = ({n: self.mine.heard(n, side.last[n]) for n in names} for side in (self.mine, self.other))
        allowed = NARROW if self.mine.narrow or self.other.narrow else LATER
        same = all(shaped(mine[n], other[n], allowed) for n in names)
        losses = len(self.ours.values) == len(self.full.values) and any(
            map(self.reported.far, self.ours.values, self.full.values)
        )
        inside = (event for at in range(len(self.updates)) for event in self.events.inside(at, WRITE))
        written = any(event.operator.startswith(SCALES) for event in inside)
        rates = self.first is None and self.mine.rates != self.other.rates
        for result in results:
            if result.obligation == LOSS and losses:
                doubted(result, "the terms of the returned losses are the full batch's, their numbers are not")
            if result.obligation in (EQ, CLIP) and written and self.ours.facts.gated:
                doubted(result, "gradients are scaled inside a window, and Python read numbers of them")
            if result.obligation == STEPS and self.paired and not same:
                doubted(result, "the terms of the parameters are the full batch's at the end, their numbers not")
            if result.obligation == STEPS and self.paired and rates:
                doubted(result, "the learning rates are not the full batch's")

    def placed(self, result: Result) -> Result:
        """What terms refuted, at the line that made it."""
        if result.obligation == EQ and self.first is not None:
            result.location = self.diagnosed(self.first[0])
            result.counterexample = {**self.first[1].shown(), **(result.counterexample or {})}
        elif result.obligation == STEPS and not self.paired:
            return self.counted() or result
        elif result.obligation == EQ and self.unequal is not None:
            result.location = self.diagnosed(self.unequal[0])
        return result

    def window_of(self, result: Result) -> int:
        """The step at which something is wrong: the first at its line, that of the first difference, or the last."""
        here = [event.window for event in self.events.list if event.location == result.location]
        last = max(0, len(self.updates) - 1)
        if self.first is not None and (not here or self.first[0] in here):
            return self.first[0]
        return min(here[0], last) if here else last

    # Lines

    def diagnosed(self, at: int) -> Location:
        """The line that makes the gradient of a step wrong: a broken rule's, a write's, or that of the last root."""
        cause = next((self.found[name] for name in CAUSES if name in self.found), None)
        if cause is not None and cause.location not in (None, NOWHERE) and cause.details.get("code") != PAIRED:
            return cause.location
        events = self.events.of(at)
        writes = [
            event for event in events if event.kind == WRITE and not self._clips(event) and event.operator != UNSCALED
        ]
        hooks, passes = ([event for event in events if event.kind == kind] for kind in (HOOK, BACKWARD))
        if writes or hooks:
            return (writes or hooks)[-1].location
        if not passes:
            return self.updates[at].location
        last = passes[-1]
        return last.location if last.root is NOWHERE or self._one_pass() or cause is not None else last.root

    def _one_pass(self) -> bool:
        """Whether each window has one backward pass."""
        return all(update.passes == 1 for update in self.updates)

    def _clips(self, event: LoopEvent) -> bool:
        return event.operator.startswith(CLAMPS) or event.scaled

    def _partial(self, at: int) -> list[LoopEvent]:
        """The writes of a window that clip or unscale its gradients before the last backward pass.

        A clip of what is unscaled later is one as well.
        """
        events = self.events.of(at)
        last = max((i for i, event in enumerate(events) if event.kind == BACKWARD), default=0)
        later = max((i for i, event in enumerate(events) if event.operator == UNSCALED), default=0)
        found = [
            event
            for event in events[:last]
            if event.kind == WRITE and (self._clips(event) or event.operator == UNSCALED)
        ]
        return found or [event for event in events[:later] if event.kind == WRITE and self._clips(event)]

    # GA-INV-002

    def zeroed(self) -> Result | None:
        """Gradients are zeroed between two backward passes of a window, or before its step."""
        for at, update in enumerate(self.updates):
            begun = self._read(at)
            held = self._samples(update)
            lost, empty = self._lost(at) & begun, not held
            if not lost or STEPS in self.found or not (empty or self._differs(at)):
                continue
            events = self.events.of(at, BACKWARD, ZERO)
            first = next((i for i, event in enumerate(events) if event.kind == BACKWARD), len(events))
            zeros = [event.location for event in events[first:] if event.kind == ZERO]
            if zeros:
                reason = f"window {at + 1}: the gradients of {len(lost)} samples are zeroed before the step"
                return self._refuted(STALE, reason, zeros[-1])
        return None

    def _differs(self, at: int) -> bool:
        """Whether the gradients of a step differ in numbers, or one run hands none where the other has one."""
        mine, other = ({*run.gradients[at]} for run in (self.mine, self.other)) if self.paired else (set(), set())
        return mine != other or difference(self.mine, self.other, at) is not None

    def _lost(self, at: int) -> set[int]:
        """The samples that the gradient of some parameter lacks, and has by the full batch."""
        if not self.paired:
            return self._read(at) - self.samples[at]
        mine, other = self.updates[at].gradients, self.theirs[at].gradients
        pairs = [(g.value, mine[name].value if name in mine else {}) for name, g in other.items()]
        lost = {sample for full, own in pairs for sample in self.terms.summed([full]) - self.terms.summed([own])}
        return lost or self._read(at) - self.samples[at]

    def left(self) -> Result | None:
        """A gradient is there when a window begins, and is in the gradient of its step as well."""
        if self.optimizers > 1:
            return None
        for at, update in enumerate(self.updates):
            there = {name for name, held in self.mine.begun[at].items() if bool(held.any())}
            early = [event.operator.startswith(SCALES) for event in self.events.early(at)]
            if (early and all(early)) or self.idle():
                continue
            for name in sorted(there & update.begun_with.keys() & update.gradients.keys()):
                both = (update.begun_with[name], update.gradients[name].value)
                (old, new), read = (self.terms.summed([value]) for value in both), self._read(at)
                held, now = ({self.terms.bare(t)[0]: by for t, by in value.items()} for value in both)
                # what is the same is no rest where the window read these samples again
                kept = {
                    t for t in held.keys() & now.keys()
                    if held[t] != now[t] or not (samples := self.terms.samples([t])) or samples - read
                }  # fmt: skip
                once = self.terms.samples(kept) or (at == 0 and self._constant(name, kept))
                if old & new - read or once:
                    reason = f"{name} has a gradient when window {at + 1} begins, and the step applies it as well"
                    return self._refuted(STALE, reason, update.location)
        return None

    def _constant(self, name: str, kept: set[int]) -> bool:
        """Whether what was there before the first window is plain numbers, and was not there again before another."""
        later = (update.begun_with for update in self.updates[1:])
        plain = bool(kept) and not self.terms.found(kept, (*TRAINED, *LEAVES))
        return plain and len(self.updates) > 1 and not any(name in begun for begun in later)

    # GA-INV-003

    def leftover(self) -> Result | None:
        """Backward passes after the last step, whose gradients no step applies."""
        asked, made = self.asked, len(self.updates)
        passes = self.events.of(made, BACKWARD)
        if not self.run.tail or made >= asked or not passes or self.optimizers > 1:
            return None
        reason = f"{len(passes)} backward passes come after the last step: no step applies their gradients"
        return self._refuted(STEPS, reason, passes[-1].location)

    def again(self) -> Result | None:
        """A step without a backward pass since the step before. A clip in between changes nothing of that."""
        for at, update in enumerate(self.updates):
            written = any(not e.scaled for e in self.events.of(at, WRITE))
            if update.passes or written or update.optimizer not in {u.optimizer for u in self.updates[:at]}:
                continue
            bare, before = (
                [{self.terms.bare(t)[0]: by for t, by in g.value.items()} for g in self.updates[i].gradients.values()]
                for i in (at, at - 1)
            )
            if any(bare) and bare == before:
                reason = f"step {at + 1} comes without a backward pass after step {at}: it applies the same gradient"
                return self._refuted(STEPS, reason, update.location)
        return None

    def early(self) -> Result | None:
        """A step after another number of backward passes than the window has micro-batches."""
        if not self.paired or self.optimizers > 1:
            return None
        for at, (update, other) in enumerate(zip(self.updates, self.theirs, strict=True)):
            window = self.windows[at] % len(self.sizes)
            asked = self.sizes[window] // self.run.micro_batch_size
            whole = {asked * other.passes} | ({1} if self._one_pass() else set())
            if update.passes not in whole and difference(self.mine, self.other, at) is not None:
                reason = f"step {at + 1} comes after {update.passes} backward passes; its window has {asked}"
                return self._refuted(STEPS, reason, update.location)
        return None

    def written(self) -> Result | None:
        """The function writes parameters between two backward passes of a window."""
        for at in range(len(self.updates)):
            writes = [event.location for event in self.events.inside(at, WEIGHTS)]
            if writes and self.paired and difference(self.mine, self.other, at, "weights") is not None:
                reason = f"parameters are written between the backward passes of window {at + 1}"
                return self._refuted(STEPS, reason, writes[-1])
        return None

    def ended(self) -> Result | None:
        """Parameters that the function writes after the last step are not the full batch's at the end."""
        writes = [event.location for event in self.events.of(len(self.updates), WEIGHTS)]
        if not self.paired or self.first is not None or not writes:
            return None
        last, other = self.mine.last, self.other.last
        names = [name for name in last.keys() & other.keys() if last[name].shape == other[name].shape]
        if not any(self.mine.differ(last[name], other[name]) for name in names):
            return None
        return self._refuted(STEPS, "the parameters at the end are not those of the full batch's run", writes[-1])

    def undone(self) -> Result | None:
        """What a step gave is put back before it is used."""
        location = self._unmoved()
        if location is None:
            return None
        at = next(i for i, update in enumerate(self.updates) if update.location == location)
        before, after = self.mine.weights[at], self.mine.after[at]
        if all(torch.equal(before[name], after[name]) for name in before):
            if not any(self.mine.rates[at]) or not self._paralysed():
                return None
            return self._refuted(STEPS, f"step {at + 1} moves no parameter", location)
        writes = [event.location for event in self.events.of(at + 1, WEIGHTS)]
        following = self.mine.weights[at + 1] if at + 1 < len(self.mine.weights) else {}
        back = before.keys() == following.keys() and all(torch.equal(before[n], following[n]) for n in before)
        if not writes or not back:
            return None
        return self._refuted(STEPS, f"the parameters of step {at + 1} are put back before they are used", writes[-1])

    def counted(self) -> Result | None:
        """Another number of steps than the full batch's run makes."""
        if self.optimizers > 1:
            return self._apart_counted()
        if self.paired or not self.updates or self.idle():
            return None
        if len(self.updates) == self.asked:
            return None
        reason = f"{len(self.updates)} optimizer steps in {self.asked} windows"
        early = len(self.updates) > self.asked and self.updates[0].passes < self.run.accum_steps
        return self._refuted(STEPS, reason, self.updates[0 if early else -1].location)

    def _apart_counted(self) -> Result | None:
        """Of several optimizers, one that steps once a window by the full batch, and more often by micro-batches."""
        mine, full = (Counter(update.order for update in updates) for updates in (self.updates, self.theirs))
        windows = len(self.sizes)
        for update in self.updates:
            count = mine[update.order]
            if full[update.order] == windows < count and mine.keys() == full.keys() and not self.idle():
                reason = f"an optimizer makes {count} steps in {windows} windows, and {windows} by the full batch"
                return self._refuted(STEPS, reason, update.location)
        return None

    def updated(self) -> Result | None:
        """A step with the full batch's gradients, weights and rates that moves the weights otherwise."""
        if not self.paired or self.mine.narrow or self.other.narrow or self.first is not None or self.idle():
            return None
        for at, update in enumerate(self.updates):
            sides = [(run.gradients, run.weights, run.after) for run in (self.mine, self.other)]
            if any(at >= len(part) for side in sides for part in side) or self.mine.rates[at] != self.other.rates[at]:
                return None
            (mine, before, after), (other, theirs, then) = ([part[at] for part in side] for side in sides)
            drawn = self.terms.found(update.after.values(), ("draw", "unknown"))
            if drawn or not all(name in other and shaped(mine[name], other[name], CLOSE) for name in mine):
                return None
            moves = [(after[name] - before[name], then[name] - theirs[name], name) for name in mine]
            if any(not shaped(self.mine.heard(n, a), self.mine.heard(n, b), MOVED) for a, b, n in moves):
                reason = f"step {at + 1} moves the parameters otherwise than the full batch's, with the same gradients"
                return self._refuted(
                    STEPS, reason, update.location, help="keep the optimizer's state from step to step"
                )
        return None

    def _paralysed(self) -> bool:
        """Whether no step moves a parameter. Where some do, the optimizer may accumulate by itself."""
        steps = zip(self.mine.weights, self.mine.after, strict=False)
        return all(torch.equal(one[name], two[name]) for one, two in steps for name in one)

    def scheduled(self) -> Result | None:
        """More steps of a schedule than by the full batch, or another learning rate with the same gradient."""
        at = self.often()
        if at is not None:
            made = self.events.inside(at, SCHEDULE)
            reason = f"a schedule makes {len(made)} steps between the backward passes of window {at + 1}"
            return self._refuted(STEPS, reason, made[-1].location)
        for at, (rates, others) in enumerate(zip(self.mine.rates, self.other.rates, strict=False)):
            if not self.paired or (self.first is not None and self.first[0] <= at):
                return None
            if len(rates) != len(others) or all(near(a, b) for a, b in zip(rates, others, strict=True)):
                continue
            reason = f"step {at + 1}: learning rate {rates[0]:g}, the full batch's {others[0]:g}"
            return self._refuted(STEPS, reason, self.updates[: at + 1][-1].location)
        return None

    def often(self) -> int | None:
        """The first window between whose backward passes a schedule steps."""
        return next((at for at in range(len(self.updates)) if self.events.inside(at, SCHEDULE)), None)

    def averaged(self) -> Result | None:
        """What a line keeps over windows, an average of the parameters, is not what the full batch's run keeps."""
        if self.first is not None or not self.paired:
            return None
        theirs = self.full.facts.kept
        for key, (location, made, mine) in self.ours.facts.kept.items():
            other = theirs[key][2] if key in theirs else None
            if self.terms.owners[made] != NOBODY or not self.terms.trained[made]:
                continue
            if mine is not None and other is not None and mine.shape == other.shape and self.mine.differ(mine, other):
                reason = "what this line keeps over the windows is not what the full batch's run keeps"
                return self._refuted(STEPS, reason, location)
        return None

    # GA-INV-005

    def clamped(self) -> Result | None:
        """A clip, or an unscaling, of a part of a window; a clip of gradients that are unscaled after it."""
        if STALE in self.found or STEPS in self.found:
            return None
        for at in range(len(self.updates)):
            writes = self._partial(at)
            late = any(event.operator == UNSCALED for event in self.events.of(at)) and self._misscaled() is not None
            if not writes or not (late or (self.first is not None and self.first[0] == at)):
                continue
            what = "unscaled" if writes[-1].operator == UNSCALED else "clipped"
            when = "the last backward pass" if self.first is not None and self.first[0] == at else "it is unscaled"
            return self._refuted(CLIP, f"window {at + 1}: a gradient is {what} before {when}", writes[-1].location)
        return None

    def clipped_late(self) -> Result | None:
        """A clip of gradients that no step is handed."""
        location = None if STALE in self.found else self._clipped_nothing()
        reason = "no step is handed the gradients that are clipped"
        return None if location is None else self._refuted(CLIP, reason, location)

    def narrowed(self) -> Result | None:
        """A gradient of several micro-batches is stored below fp32, and further ones are added to it."""
        writes = {event.location for at in range(len(self.updates)) for event in self.events.inside(at, WRITE)}
        turns = Counter((location, window) for location, window, _ in self.ours.facts.narrowed)
        writes |= {location for (location, _), count in turns.items() if count > 1}
        for location, dtype, _ in self.ours.facts.narrow:
            if location in writes:
                return self._refuted(WIDTH, f"a gradient of several micro-batches is stored as {dtype}", location)
        return None

    # GA-DATA-001

    def other_data(self) -> Result | None:
        """Other samples than the full batch's, or samples paired otherwise."""
        if not self.paired or any(name in self.found for name in (STALE, STEPS)):
            return None
        if self.first is None:
            return self._restarted()
        at, found = self.first
        if self.ours.facts.sources != self.full.facts.sources:
            return None
        begun = [[self.terms.summed([root]) for root in self._began(run, at)] for run in (self.ours, self.full)]
        mine, other = (set().union(*each) for each in begun)
        reason = f"window {at + 1} is computed from other samples than the full batch's"
        rooted = any(window == at for window, _ in self.ours.facts.roots)
        missing = rooted and other - mine and all(begun[0]) and not self._one_pass()
        if mine - other or missing or (not rooted and self._repeated(at)):
            return self._refuted(DATA, reason, self.events.first, counterexample=found.shown())
        if mine and mine == other and self._mixed(at):
            reason = f"window {at + 1} takes inputs and targets of different samples together"
            return self._refuted(
                DATA, reason, self.events.first, counterexample=found.shown(), details={"code": PAIRED}
            )
        return None

    def _restarted(self) -> Result | None:
        """Every window is computed from the same samples, although there are others."""
        samples, sources = self.samples, self.ours.facts.sources
        if len(samples) < 2 or self.cycles > 1 or self.optimizers > 1 or self._others_read(samples[0]):
            return None
        if any(found != samples[0] for found in samples) or max(sources.values(), default=0) < 2 * len(samples[0]):
            return None
        reason = f"every window is computed from the same {len(samples[0])} samples, and there are others"
        return self._refuted(DATA, reason, self.events.first)

    def _repeated(self, at: int) -> bool:
        """Whether a sample is in a gradient several times as often as in the full batch's, and others are missing."""
        mine, other = (run.facts.updates[at].gradients for run in (self.ours, self.full))
        pairs = [(g.value, other[name].value) for name, g in mine.items() if name in other]
        by = {a[term] / b[term] for a, b in pairs if a.keys() < b.keys() for term in a}
        return bool(by) and all(one > 1 and one.denominator == 1 for one in by)

    def _others_read(self, samples: set[int]) -> bool:
        """Whether a parameter meets data of other samples: in a validation pass."""
        met = (owner for owner, trained in zip(self.terms.owners, self.terms.trained, strict=True) if trained)
        return any(owner >= 0 and owner not in samples for owner in met)

    def _began(self, run: Followed, at: int) -> list[Combination]:
        """What the backward passes of a window began with; its gradients where they were taken otherwise."""
        roots = [root for window, root in run.facts.roots if window == at]
        return roots or [gradient.value for gradient in run.facts.updates[at].gradients.values()]

    def _mixed(self, at: int) -> bool:
        """Whether a loss is made of several samples in the run by micro-batches, and of one in the full batch's."""
        mine, other = (
            any(self.terms.owners[self.terms.bare(term)[0]] < -1 for root in self._began(run, at) for term in root)
            for run in (self.ours, self.full)
        )
        return mine and not other

    # GA-EQ-001

    def unlike(self) -> Result | None:
        """A gradient that differs in numbers, with the same data and draws."""
        if self.first is None or not self.paired:
            return None
        at, found = self.first
        if self.unequal is None or self.unequal[0] > at:
            return None
        cause = next((self.found[name] for name in CAUSES if name in self.found), None)
        same = leaves(self.terms, self.updates[at]) <= leaves(self.terms, self.theirs[at])  # no other data and draws
        if cause is None and (not same or not self._same_pairs(at) or self._same_step()):
            return None
        reason = f"the gradient of {found.name} in window {self.windows[at] + 1} is not the full batch's"
        if (factor := found.factor()) is not None:
            reason = reason.replace("is not", f"is {factor} times")
        details = {} if cause is None else {"follows_from": cause.obligation}
        help = HELP[EQ] if cause is None else cause.help
        return self._refuted(EQ, reason, self.diagnosed(at), help=help, details=details, counterexample=found.shown())

    def _same_pairs(self, at: int) -> bool:
        """Whether the data that one loss is made of belong together by the full batch as well."""
        mine, other = (
            {
                frozenset(self.terms.found([self.terms.bare(term)[0]], ("data",)))
                for root in self._began(run, at)
                for term in root
            }
            for run in (self.ours, self.full)
        )
        return all(any(own <= whole for whole in other) for own in mine)

    def _same_step(self) -> bool:
        """Whether other learning rates make up for it: every step leaves the full batch's parameters behind."""
        if self.mine.rates == self.other.rates:
            return False
        for mine, other in zip(
            (*self.mine.weights, self.mine.last), (*self.other.weights, self.other.last), strict=True
        ):
            if any(self.mine.differ(mine[name], other[name]) for name in mine.keys() & other.keys()):
                return False
        return True
