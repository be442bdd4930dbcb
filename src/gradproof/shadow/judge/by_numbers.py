"""What two real runs refute: a difference in numbers, what it is made of, and the line that made it.

Terms alone refute where both runs weigh the same terms otherwise (`by_terms`). Here a gradient, a parameter or a
reported loss of the run by micro-batches differs from the full batch's by more than rounding, with the same data, the
same draws and the same numbers before it; the events of the window say which rule was broken, and at which line.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import Event
from gradproof.shadow.follow.facts import CLOSE, LATER, LEAVES, NARROW, difference, leaves, near, shaped
from gradproof.shadow.follow.loop_events import HOOK, WEIGHTS, WRITE
from gradproof.shadow.follow.terms import NOBODY, TRAINED, Combination, Terms
from gradproof.shadow.judge.by_terms import CROSSED
from gradproof.shadow.judge.followed import Followed
from gradproof.shadow.judge.reported import Reported
from gradproof.shadow.judge.statements import CLIP, DATA, EQ, HELP, LOSS, STALE, STEPS, WIDTH, Refutations, ruled
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import RECORDED, Result
from gradproof.shadow.tape.calls import PASS, SCHEDULE, ZERO
from gradproof.shadow.tape.run import Run
from gradproof.shadow.tape.run_events import SeenEvent

CAUSES = (STALE, STEPS, CLIP, DATA)
"""Obligations whose refutation explains a gradient that differs, the first one first."""
SHARED = (STALE, CLIP)
"""Rules that the full batch may break in the same way: then equal gradients say little."""
PAIRED = "paired otherwise"
MOVED = 0.25
"""The relative difference of what a step adds to a parameter that rounding may make: some optimizers divide by it."""
CLAMPS = ("clamp", "clip", "_foreach_clamp", "sign", "nan_to_num")
SCALES = ("mul", "div", "_foreach_mul", "_foreach_div")
UNSCALED = "_amp_foreach_non_finite_check_and_unscale_"


def judged(terms: Terms, run: Run, ours: Followed, full: Followed, ranks: int = 1) -> list[Result]:
    """A result for each obligation but that of ranks: what terms decide, and what the numbers of both runs refute."""
    refuter = Refuter(terms, run, ours, full, ranks)
    results = refuter.results(refuter.loss)
    if refuter.real and not (ours.error or full.error):
        if ours.facts.lost or full.facts.lost:
            return results
        results = refuter.refuted(results)
    return shared(refuter, results)


def shared(judge: Reported, results: list[Result]) -> list[Result]:
    """Equal gradients are undecided where a rule is broken that the full batch may break in the same way."""
    broken = [r for r in results if r.obligation in SHARED and r.outcome in (Outcome.REFUTED, Outcome.UNKNOWN)]
    for result in results if broken and max(judge.windows, default=0) >= 1 else ():
        if result.obligation == EQ or (result.obligation == LOSS and result.domain == "floats"):
            reason = f"{broken[0].obligation} was not shown: the full batch may break it in the same way"
            result.doubt(reason, broken[0].location)
    return results


class Refuter(Reported):
    """The refutations of one function, by its two real runs. `found`: what is refuted, by obligation."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.found: dict[str, Result] = {}

    def refuted(self, results: list[Result]) -> list[Result]:
        """The results with what numbers refute of them."""
        refuted = {r.obligation: r for r in results if r.outcome is Outcome.REFUTED}
        open_ = {r.obligation for r in results if r.outcome not in (Outcome.HOLDS, Outcome.REFUTED, Outcome.OUTSIDE)}
        if any(result.outcome is Outcome.VACUOUS for result in results):
            open_ = {STALE}
        if any(result.outcome is Outcome.OUTSIDE for result in results if result.obligation == EQ):
            open_.discard(LOSS)  # samples that meet have no loss of their own
        open_ |= {STEPS} if self.ours.unread or self.often() is not None else set()
        at = self.first or self.unequal
        if EQ in refuted and at is not None:
            refuted[EQ].location = self.diagnosed(at[0])
            shown = {} if self.first is None else self.first[1].shown()
            refuted[EQ].counterexample = {**shown, **(refuted[EQ].counterexample or {})}
        self.found = refuted
        for rule in (  # each after those that it needs decided
            self.counted, self.early, self.zeroed, self.left, self.again, self.leftover, self.written,
            self.undone, self.scheduled, self.updated, self.averaged, self.clamped, self.clipped_late, self.narrowed,
            self.other_data, self.unlike, self.differing, self.summed,
        ):  # fmt: skip
            result = next(rule(), None)
            if result is not None and result.obligation in open_:
                self.found.setdefault(result.obligation, result)
        self.weigh(results)
        self.diagnose(results)
        return [self.found.get(r.obligation, r) for r in results]

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
        names = self.facts.last.keys() & self.other.last.keys()
        mine, other = ({n: self.facts.heard(n, side.last[n]) for n in names} for side in (self.facts, self.other))
        allowed = NARROW if self.facts.below or self.other.below else LATER
        same = all(shaped(mine[n], other[n], allowed) for n in names)
        losses = len(self.ours.values) == len(self.full.values) and any(
            map(self.far, self.ours.values, self.full.values)
        )
        inside = (event for at in range(len(self.updates)) for event in self.events.inside(at, WRITE))
        written = any(event.operator.startswith(SCALES) for event in inside)
        rates = self.first is None and self.facts.rates != self.other.rates
        for result in results:
            if result.obligation == LOSS and losses:
                result.doubt("the terms of the returned losses are the full batch's, their numbers are not")
            if result.obligation in (EQ, CLIP) and written and self.facts.gated:
                result.doubt("gradients are scaled inside a window, and Python read numbers of them")
            if result.obligation == STEPS and self.paired and not same:
                result.doubt("the terms of the parameters are the full batch's at the end, their numbers not")
            if result.obligation == STEPS and self.paired and rates:
                result.doubt("the learning rates are not the full batch's")

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
        cause = self._cause()
        if cause is not None and cause.location not in (None, NOWHERE) and cause.details.get("code") != PAIRED:
            return cause.location
        writes = [e for e in self.events.of(at, WRITE) if not self._clips(e) and e.operator != UNSCALED]
        writes = writes or self.events.of(at, HOOK)
        if writes:
            return writes[-1].location
        root = not self._one_pass() and cause is None
        return self.events.last_root(at, root) or self.updates[at].location

    def _cause(self) -> Result | None:
        """What is refuted and explains a gradient that differs."""
        return next((self.found[name] for name in CAUSES if name in self.found), None)

    def _one_pass(self) -> bool:
        """Whether each window has one backward pass."""
        return all(update.passes == 1 for update in self.updates)

    def _clips(self, event: SeenEvent) -> bool:
        return event.operator.startswith(CLAMPS) or event.scaled

    def _partial(self, at: int) -> list[SeenEvent]:
        """The writes of a window that clip or unscale its gradients before the last backward pass.

        A clip of what is unscaled later is one as well.
        """
        events = self.events.of(at)
        last = max((i for i, event in enumerate(events) if event.kind == PASS), default=0)
        later = max((i for i, event in enumerate(events) if event.operator == UNSCALED), default=0)
        found = [e for e in events[:last] if e.kind == WRITE and (self._clips(e) or e.operator == UNSCALED)]
        return found or [e for e in events[:later] if e.kind == WRITE and self._clips(e)]

    # GA-INV-002

    def zeroed(self) -> Refutations:
        """Gradients are zeroed between two backward passes of a window, or before its step."""
        for at, update in enumerate(() if STEPS in self.found else self.updates):
            lost = self._lost(at) & self._read(at)
            if not lost or (self._samples(update) and not self._differs(at)):
                continue
            events = self.events.of(at, PASS, ZERO)
            first = next((i for i, event in enumerate(events) if event.kind == PASS), len(events))
            zeros = [event.location for event in events[first:] if event.kind == ZERO]
            if zeros:
                reason = f"window {at + 1}: the gradients of {len(lost)} samples are zeroed before the step"
                yield self._refuted(STALE, reason, zeros[-1])

    def _differs(self, at: int) -> bool:
        """Whether the gradients of a step differ in numbers, or one run hands none where the other has one."""
        mine, other = (run[at].numbers.keys() if self.paired else () for run in (self.updates, self.theirs))
        return mine != other or difference(self.facts, self.other, at) is not None

    def _lost(self, at: int) -> set[int]:
        """The samples that the gradient of some parameter lacks, and has by the full batch."""
        theirs = self.theirs[at].gradients if self.paired else {}
        pairs = [(gradient, self.updates[at].gradients.get(name, {})) for name, gradient in theirs.items()]
        lost = {sample for full, own in pairs for sample in self.terms.summed([full]) - self.terms.summed([own])}
        return lost or self._read(at) - self.samples[at]

    def left(self) -> Refutations:
        """A gradient is there when a window begins, and is in the gradient of its step as well."""
        for at, update in enumerate(self.updates if self.optimizers == 1 else ()):
            there = {name for name, held in update.begun.items() if bool(held.any())}
            early = [event.operator.startswith(SCALES) for event in self.events.early(at)]
            if (early and all(early)) or self.idle():
                continue
            for name in sorted(there & update.begun_with.keys() & update.gradients.keys()):
                both = (update.begun_with[name], update.gradients[name])
                (old, new), read = (self.terms.summed([value]) for value in both), self._read(at)
                held, now = map(self.bared, both)
                # what is the same is no rest where the window read these samples again
                kept = {
                    t for t in held.keys() & now.keys()
                    if held[t] != now[t] or not (samples := self.terms.samples([t])) or samples - read
                }  # fmt: skip
                once = self.terms.samples(kept) or (at == 0 and self._constant(name, kept))
                if old & new - read or once:
                    reason = f"{name} has a gradient when window {at + 1} begins, and the step applies it as well"
                    yield self._refuted(STALE, reason, update.location)

    def _constant(self, name: str, kept: set[int]) -> bool:
        """Whether what was there before the first window is plain numbers, and was not there again before another."""
        later = (update.begun_with for update in self.updates[1:])
        plain = bool(kept) and not self.terms.found(kept, (*TRAINED, *LEAVES))
        return plain and len(self.updates) > 1 and not any(name in begun for begun in later)

    # GA-INV-003

    def counted(self) -> Refutations:
        """Of several optimizers, one that steps once a window by the full batch, and more often by micro-batches."""
        mine, full = (Counter(update.order for update in updates) for updates in (self.updates, self.theirs))
        for update in self.updates if self.optimizers > 1 and mine.keys() == full.keys() and not self.idle() else ():
            if full[update.order] == len(self.sizes) < mine[update.order]:
                made = f"an optimizer makes {mine[update.order]} steps, and {full[update.order]} by the full batch"
                yield self._refuted(STEPS, made, update.location)

    def leftover(self) -> Refutations:
        """Backward passes after the last step, whose gradients no step applies; a loss scaler may leave a step out."""
        passes = [] if len(self.updates) in self.facts.unscaled else self.events.of(len(self.updates), PASS)
        owed = self.run.tail and len(self.updates) < self.asked and self.optimizers == 1
        if owed and (why := ruled(len(passes), len(passes), Event.END)):
            yield self._refuted(STEPS, f"{why}: {len(passes)} backward passes", passes[-1].location)

    def again(self) -> Refutations:
        """A step without a backward pass since the step before. A clip in between changes nothing of that."""
        for at, update in enumerate(self.updates):
            written = any(not e.scaled for e in self.events.of(at, WRITE))
            if update.passes or written or update.optimizer not in {u.optimizer for u in self.updates[:at]}:
                continue
            bare, before = ([self.bared(value) for value in self.updates[i].gradients.values()] for i in (at, at - 1))
            if any(bare) and bare == before and (why := ruled(0, 1, Event.STEP)):
                yield self._refuted(STEPS, f"{why}: step {at + 1} applies the gradient of step {at}", update.location)

    def early(self) -> Refutations:
        """A step after another number of backward passes than the window has micro-batches."""
        alone = self.paired and self.optimizers == 1 and not self._one_pass()
        for at, (update, other) in enumerate(zip(self.updates, self.theirs, strict=True) if alone else ()):
            passes, asked = update.passes, self.batches[at] * other.passes
            differs = (passes or asked) and difference(self.facts, self.other, at) is not None
            if differs and (why := ruled(passes, asked, Event.STEP)):
                reason = f"{why}: step {at + 1} comes after {passes} backward passes, and its window has {asked}"
                yield self._refuted(STEPS, reason, update.location)

    def written(self) -> Refutations:
        """The function writes parameters between two backward passes of a window, or after the last step."""
        for at in range(len(self.updates) if self.paired else 0):
            writes = [event.location for event in self.events.inside(at, WEIGHTS)]
            if writes and difference(self.facts, self.other, at, weights=True) is not None:
                reason = f"parameters are written between the backward passes of window {at + 1}"
                yield self._refuted(STEPS, reason, writes[-1])
        writes = [event.location for event in self.events.of(len(self.updates), WEIGHTS)]
        last, other = self.facts.last, self.other.last
        names = [name for name in last.keys() & other.keys() if last[name].shape == other[name].shape]
        unlike = any(self.facts.differ(last[name], other[name]) for name in names)
        if self.paired and self.first is None and writes and unlike:
            yield self._refuted(STEPS, "the parameters at the end are not those of the full batch's run", writes[-1])

    def undone(self) -> Refutations:
        """What a step gave is put back before it is used; or no step moves anything.

        Where some steps move something, the optimizer may accumulate by itself.
        """
        at, weights = self.unmoved(), [update.weights for update in self.updates]
        if at is None or not all(u.weights.keys() <= u.moved.keys() for u in self.updates):
            return
        location = self.updates[at].location
        writes = [event.location for event in self.events.of(at + 1, WEIGHTS)]
        before, following = (weights[i] if i < len(weights) else {} for i in (at, at + 1))
        back = before.keys() == following.keys() and all(torch.equal(before[n], following[n]) for n in before)
        moved = [any(not torch.equal(one, u.moved[name]) for name, one in u.weights.items()) for u in self.updates]
        if not any(moved) and any(self.updates[at].rates):
            yield self._refuted(STEPS, f"step {at + 1} moves no parameter", location)
        if writes and back and moved[at]:
            reason = f"the parameters of step {at + 1} are put back before they are used"
            yield self._refuted(STEPS, reason, writes[-1])

    def updated(self) -> Refutations:
        """A step with the full batch's gradients, weights and rates that moves the weights otherwise."""
        if not self.paired or self.facts.below or self.other.below or self.first is not None or self.idle():
            return
        for at, (update, other) in enumerate(zip(self.updates, self.theirs, strict=True)):
            gradients, theirs = update.numbers, other.numbers
            drawn = self.terms.found(update.after.values(), ("draw", "unknown"))
            same = all(name in theirs and shaped(gradients[name], theirs[name], CLOSE) for name in gradients)
            ended = gradients.keys() <= update.moved.keys() & other.moved.keys()
            if update.rates != other.rates or drawn or not same or not ended:
                return
            moves = ([self.facts.heard(n, u.moved[n] - u.weights[n]) for u in (update, other)] for n in gradients)
            if any(not shaped(mine, full, MOVED) for mine, full in moves):
                reason = f"step {at + 1} moves the parameters otherwise than the full batch's, with the same gradients"
                yield self._refuted(STEPS, reason, update.location, "keep the optimizer's state from step to step")

    def scheduled(self) -> Refutations:
        """More steps of a schedule than by the full batch, or another learning rate with the same gradient."""
        at = self.often()
        if at is not None:
            made = self.events.inside(at, SCHEDULE)
            reason = f"a schedule makes {len(made)} steps between the backward passes of window {at + 1}"
            yield self._refuted(STEPS, reason, made[-1].location)
        pairs = list(zip(self.facts.rates, self.other.rates, strict=False)) if self.paired else []
        for at, (rates, others) in enumerate(pairs[: None if self.first is None else self.first[0]]):
            if len(rates) == len(others) and not all(near(a, b) for a, b in zip(rates, others, strict=True)):
                reason = f"step {at + 1}: learning rate {rates[0]:g}, the full batch's {others[0]:g}"
                yield self._refuted(STEPS, reason, self.updates[: at + 1][-1].location)

    def often(self) -> int | None:
        """The first window between whose backward passes a schedule steps."""
        return next((at for at in range(len(self.updates)) if self.events.inside(at, SCHEDULE)), None)

    def averaged(self) -> Refutations:
        """What a line keeps over windows, an average of the parameters, is not what the full batch's run keeps."""
        kept = self.facts.kept if self.first is None and self.paired else {}
        for key, (location, made, mine) in kept.items():
            _, _, other = self.other.kept.get(key, (None, None, None))
            if self.terms.owners[made] != NOBODY or not self.terms.trained[made] or mine is None or other is None:
                continue
            if mine.shape == other.shape and self.facts.differ(mine, other):
                reason = "what this line keeps over the windows is not what the full batch's run keeps"
                yield self._refuted(STEPS, reason, location)

    # GA-INV-005

    def clamped(self) -> Refutations:
        """A clip, or an unscaling, of a part of a window; a clip of gradients that are unscaled after it."""
        for at in range(0 if STALE in self.found or STEPS in self.found else len(self.updates)):
            writes, differs = self._partial(at), self.first is not None and self.first[0] == at
            late = any(event.operator == UNSCALED for event in self.events.of(at)) and self.misscaled() is not None
            if writes and (late or differs):
                what = "unscaled" if writes[-1].operator == UNSCALED else "clipped"
                when = "the last backward pass" if differs else "it is unscaled"
                yield self._refuted(CLIP, f"window {at + 1}: a gradient is {what} before {when}", writes[-1].location)

    def clipped_late(self) -> Refutations:
        """A clip of gradients that no step is handed."""
        location = None if STALE in self.found else self.clipped_nothing()
        if location is not None:
            yield self._refuted(CLIP, "no step is handed the gradients that are clipped", location)

    def narrowed(self) -> Refutations:
        """A gradient of several micro-batches is stored below fp32, and further ones are added to it."""
        writes = {event.location for at in range(len(self.updates)) for event in self.events.inside(at, WRITE)}
        turns = Counter((location, at[0]) for location, at in {(line, at) for line, _, _, at in self.facts.narrow})
        writes |= {location for (location, _), count in turns.items() if count > 1}
        for location, dtype, *_ in self.facts.narrow:
            if location in writes:
                yield self._refuted(WIDTH, f"a gradient of several micro-batches is stored as {dtype}", location)

    # GA-DATA-001

    def other_data(self) -> Refutations:
        """Other samples than the full batch's, or samples paired otherwise."""
        if not self.paired or STALE in self.found or STEPS in self.found:
            return
        if self.first is None:
            yield from self._restarted()
        elif self.facts.sources == self.other.sources:
            at, found = self.first
            begun = [[self.terms.summed([root]) for root in self._began(run, at)] for run in (self.ours, self.full)]
            mine, other = (set().union(*each) for each in begun)
            rooted = bool(self.facts.roots.get(at))
            missing = rooted and other - mine and all(begun[0]) and not self._one_pass()
            code = {}
            if mine - other or missing or (not rooted and self._repeated(at)):
                reason = f"window {at + 1} is computed from other samples than the full batch's"
            elif mine and mine == other and self._mixed(at):
                reason = f"window {at + 1} takes inputs and targets of different samples together"
                code = {"code": PAIRED}
            else:
                return
            yield self._refuted(DATA, reason, self.events.first, counterexample=found.shown(), details=code)

    def _restarted(self) -> Refutations:
        """Every window is computed from the same samples, although there are others."""
        samples, sources = self.samples, self.facts.sources
        if len(samples) < 2 or self.cycles > 1 or self.optimizers > 1:
            return
        met = (owner for owner, trained in zip(self.terms.owners, self.terms.trained, strict=True) if trained)
        if any(owner >= 0 and owner not in samples[0] for owner in met):
            return  # a parameter meets data of other samples, in a validation pass
        if all(found == samples[0] for found in samples) and max(sources.values(), default=0) >= 2 * len(samples[0]):
            reason = f"every window is computed from the same {len(samples[0])} samples, and there are others"
            yield self._refuted(DATA, reason, self.events.first)

    def _repeated(self, at: int) -> bool:
        """Whether a sample is in a gradient several times as often as in the full batch's, and others are missing."""
        pairs = [(held, self.theirs[at].gradients.get(name, {})) for name, held in self.updates[at].gradients.items()]
        by = {a[term] / b[term] for a, b in pairs if a.keys() < b.keys() for term in a}
        return bool(by) and all(one > 1 and one.denominator == 1 for one in by)

    def _began(self, run: Followed, at: int) -> list[Combination]:
        """What the backward passes of a window began with; its gradients where they were taken otherwise."""
        return run.facts.roots.get(at) or [*run.facts.updates[at].gradients.values()]

    def _mixed(self, at: int) -> bool:
        """Whether a loss is made of several samples in the run by micro-batches, and of one in the full batch's."""
        mine, other = (
            any(self.terms.owners[self.terms.bare(term)[0]] < -1 for root in self._began(run, at) for term in root)
            for run in (self.ours, self.full)
        )
        return mine and not other

    # GA-EQ-001

    def unlike(self) -> Refutations:
        """A gradient that differs in numbers, with the same data and draws."""
        if self.first is None or not self.paired or self.unequal is None or self.unequal[0] > self.first[0]:
            return
        at, found = self.first
        cause = self._cause()
        same = leaves(self.terms, self.updates[at]) <= leaves(self.terms, self.theirs[at])  # no other data and draws
        if cause is None and (not same or not self._same_pairs(at) or self._same_step()):
            return
        factor = found.factor()
        is_not = "is not" if factor is None else f"is {factor} times"
        reason = f"the gradient of {found.name} in window {self.windows[at] + 1} {is_not} the full batch's"
        line, help, details = self.diagnosed(at), "", dict[str, Any]()
        if cause is not None:
            help, details = cause.help, {"follows_from": cause.obligation}
        elif self.facts.crossed and self.facts.coupled is not None:
            (what, line), help = self.facts.coupled, CROSSED
            reason = f"{reason}: {what} broadcasts rows of samples along two axes"
        yield self._refuted(EQ, reason, line, help, details=details, counterexample=found.shown())

    def _same_pairs(self, at: int) -> bool:
        """Whether the data that one loss is made of belong together by the full batch as well."""
        began = ([term for root in self._began(run, at) for term in root] for run in (self.ours, self.full))
        mine, other = ([{*self.terms.found([self.terms.bare(one)[0]], ("data",))} for one in side] for side in began)
        return all(any(own <= whole for whole in other) for own in mine)

    def _same_step(self) -> bool:
        """Whether other learning rates make up for it: every step leaves the full batch's parameters behind."""
        if self.facts.rates == self.other.rates:
            return False
        mine, other = ([*(u.weights for u in run.updates), run.last] for run in (self.facts, self.other))
        pairs = [(a[name], b[name]) for a, b in zip(mine, other, strict=True) for name in a.keys() & b.keys()]
        return not any(self.facts.differ(*pair) for pair in pairs)
