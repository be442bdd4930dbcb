"""What two runs without numbers decide: each obligation is read off what the gradients are made of.

Equal combinations prove. Unequal ones refute only where both runs weigh the same terms and the weights differ; else the
obligation is not decided, and the line that couples the samples is named where there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from gradproof.core.outcome import Outcome
from gradproof.core.protocol import Event
from gradproof.shadow.follow.facts import DOMAIN, Difference, Update, difference
from gradproof.shadow.follow.loop_events import READ
from gradproof.shadow.follow.runs import Real
from gradproof.shadow.follow.terms import COMPUTED, NOBODY, NORMS, UNIT, Combination, Terms, multiplied, ratio
from gradproof.shadow.judge.losses import LossTotals
from gradproof.shadow.judge.statements import CLIP, DATA, EQ, STALE, STEPS, Judging, Objections, Refutations, ruled
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import DIVIDE, OBLIGATIONS, WHERE_DUE, Result
from gradproof.shadow.tape.calls import PASS
from gradproof.shadow.tape.run import Run

if TYPE_CHECKING:
    from gradproof.shadow.judge.followed import Followed

Ended = tuple[Outcome, str, Location]
NUMBERS = "check a small model without --fake, which has numbers"
APART = (
    "batch norm in training mixes the samples of a micro-batch, so accumulation is not the full batch: keep it in eval "
    "mode, or use GroupNorm or LayerNorm; SyncBatchNorm mixes samples as well"
)
CROSSED = "give both the same shape, as scores (B, 1) and labels (B, 1): every sample meets every label here"
LOOK = "look at this line: keep what it does in operators of torch, each sample apart from the others"
BOUNDED = ("clamp", "clamp_max", "clamp_min", "minimum", "where")
OF_ALL = "a loss, or a gradient, is scaled by a number that was computed from more samples than a window has"
SHOWN = 4
FAR = Fraction(1, 1000)
"""How far two weights have to be apart, relative to the right one, to be no rounding of a Python number."""


class Judge(Judging):
    """The obligations of one function, by its two runs, on one of several ranks.

    `cycles`: how often it goes over its windows: as often in both runs, or once. `windows`: the window of each
    optimizer step, counted for each optimizer. `batches`: its micro-batches. `samples`: those of its summands.
    """

    def __init__(self, terms: Terms, run: Run, ours: Followed, full: Followed, ranks: int = 1) -> None:
        self.ranks = ranks
        self.terms, self.run, self.ours, self.full = terms, run, ours, full
        self.real = isinstance(ours.engine, Real)
        self.help = LOOK if self.real else NUMBERS
        self.events = ours.engine.events
        self.facts, self.other = ours.facts, full.facts
        self.updates, self.theirs = ours.facts.updates, full.facts.updates
        self.paired = len(self.updates) == len(self.theirs)
        self.sizes = [run.effective_batch_size] * run.windows
        if run.tail:
            self.sizes.append(run.tail * run.micro_batch_size)
        self.laws = ours.engine.laws
        self.totals = LossTotals(ours, full)
        self.optimizers = len({update.optimizer for update in self.updates}) or 1
        steps, each = len(self.updates), len(self.sizes) * self.optimizers
        self.cycles = max(1, steps // each) if self.paired and steps % each == 0 else 1
        turns = defaultdict[int, Iterator[int]](count)
        self.windows = [next(turns[update.optimizer]) for update in self.updates]
        self.batches = [self.sizes[at % len(self.sizes)] // run.micro_batch_size for at in self.windows]
        self.samples = [self._samples(update) for update in self.updates]
        self.unequal = self._first_unequal()

    @cached_property
    def first(self) -> tuple[int, Difference] | None:
        """The first optimizer step whose gradients differ in numbers."""
        every = ((at, difference(self.facts, self.other, at)) for at in range(len(self.updates)))
        return next(((at, found) for at, found in every if found is not None), None)

    @property
    def asked(self) -> int:
        """The optimizer steps that the run has to make."""
        return len(self.sizes) * self.cycles * self.optimizers

    def _samples(self, update: Update) -> set[int]:
        """The samples of its summands; those that a count or a norm is made of as well are none."""
        return self.terms.summed(update.gradients.values())

    def _first_unequal(self) -> tuple[int, str] | None:
        """The first window and parameter whose gradients are not one combination in both runs."""
        for at, (ours, full) in enumerate(zip(self.updates, self.theirs, strict=False)):
            for name in [*ours.gradients, *(full.gradients.keys() - ours.gradients.keys())]:
                if name not in ours.gradients or ours.gradients[name] != full.gradients.get(name):
                    return at, name
        return None

    def results(self, loss: Callable[[], Result]) -> list[Result]:
        """A result for each obligation but that of ranks. `loss` judges the reported losses."""
        ended = next(self._impossible(), None)
        if ended is not None:
            help = self._next(ended[0])
            return [Result(name, *ended, help, DOMAIN) for name in OBLIGATIONS if name not in WHERE_DUE]
        equal = self.equality()
        first = [self.data(equal), equal, self._reported(loss(), equal), self.stale(), self.steps()]
        return [*first, self.width(self._unseen(equal)), self.clipping(equal)]

    def _reported(self, loss: Result, equal: Result) -> Result:
        """The result of the reported losses; no proof where counts are plain numbers, and not shown to be right."""
        chance = self.laws.integers or self.laws.by_chance(self.run.micro_batches) is not None
        wrong = equal.outcome is Outcome.REFUTED and self.unequal is None
        rests = loss.outcome is Outcome.HOLDS and equal.outcome is not Outcome.HOLDS
        if not rests or not (chance or wrong or loss.domain == "floats"):
            return loss
        reason = f"both runs report the same, and the full batch may be wrong as well: {equal.reason}"
        return self._open(loss.obligation, reason, None)

    def _next(self, outcome: Outcome) -> str:
        """What to do where nothing is decided."""
        if outcome is Outcome.ERROR:
            return "run the function by itself first"
        if self.ours.unread:
            return f"train with {', '.join(f'run.{name}' for name in self.ours.unread)}"
        return "ask for --accum-steps 2 or more" if self.run.accum_steps == 1 else self.help

    def _impossible(self) -> Iterator[Ended]:
        """What keeps every obligation undecided."""
        yield from self._ended(self.ours, "the run by micro-batches")
        yield from self._ended(self.full, "the run by the full batch")
        if self.ours.unread:
            words = ", ".join(self.ours.unread)
            yield Outcome.OUTSIDE, f"the function never reads {words} of its argument; both runs are one", NOWHERE
        if self.run.accum_steps == 1:
            yield Outcome.UNKNOWN, "one micro-batch a window: both runs are one, and nothing is compared", NOWHERE
        alike = [len(self._samples(update)) for update in self.theirs] == [*map(len, self.samples)]
        if alike and self.facts.operators == self.other.operators:
            yield Outcome.OUTSIDE, "the function does the same by micro-batches and by the full batch", NOWHERE
        if not self.updates:
            yield Outcome.UNKNOWN, "no step of a torch.optim optimizer was seen", NOWHERE
        for mine, other in zip(self.updates, self.theirs, strict=False):
            if mine.order != other.order:
                reason = "the optimizer has its parameters in another order in the full batch's run"
                yield Outcome.UNKNOWN, reason, mine.location
        for at, (update, found) in enumerate(zip(self.updates, self.samples, strict=True)):
            if not found and self.idle():
                reason = "some steps move no parameter; the optimizer may accumulate by itself"
                yield Outcome.UNKNOWN, reason, update.location
            if not found:
                yield Outcome.VACUOUS, f"the gradient of window {at + 1} is made of no data", update.location

    def _ended(self, run: Followed, what: str) -> Iterator[Ended]:
        """What keeps a run from being followed to its end."""
        facts = run.facts
        if facts.reads and not self.real:
            location, how = facts.reads[0]
            read = how if " " in how else f"numbers by {how}"
            read = "a number of a tensor" if how == "_local_scalar_dense" else read
            yield Outcome.OPAQUE, f"the step reads {read}, and without numbers there is none", location
        if run.alone:
            reason = f"the function runs without the recorder, and with it ends with {run.error}"
            yield Outcome.OPAQUE, reason, run.raised
        if run.error:
            yield Outcome.OPAQUE if run.unsupported else Outcome.ERROR, f"{what} ended with {run.error}", run.raised
        for location, lost in facts.lost:
            yield Outcome.OPAQUE, f"a value was lost: {lost}", location

    # GA-EQ-001

    def equality(self) -> Result:
        """Each gradient is the full batch's."""
        update = None if self.unequal is None else self._same_update()
        if update is not None:
            return update
        count = sum(len(update.gradients) for update in self.updates)
        if self.unequal is None:
            held = f"{count} gradients are one combination in both runs"
            return self.decided(EQ, self._divided_otherwise(), self._equal_by_chance(), held)
        return self.decided(EQ, self._weighed_otherwise(*self.unequal), self._unequal(*self.unequal), "")

    def _divided_otherwise(self) -> Refutations:
        """What refutes gradients that are one combination in both runs: counts of others, or of more than is summed."""
        at = self.totals.by_others() if self.ranks == 1 else None
        if at is not None:
            reason = f"window {at + 1} is divided by a count of other samples, an earlier one by its own"
            help = "divide each window by the count of its own labels"
            yield self._result(EQ, Outcome.REFUTED, reason, self.facts.line, help)
        at = self.totals.left_out() if self.ranks == 1 else None
        if at is not None:
            reason = f"window {at + 1} is divided by the count of all its labels, and its loss leaves some of them out"
            help = "count the labels that the loss sums: those after the shift"
            yield self._result(EQ, Outcome.REFUTED, reason, self.events.last_root(at), help)

    def _equal_by_chance(self) -> Objections:
        """What speaks against gradients that are one combination in both runs."""
        ours, full, last = self.facts, self.other, self.updates[-1].location
        chosen = self.laws.by_chance(self.run.micro_batches)
        asked = len(self.updates) == len(self.theirs) == self.asked
        made = f"{len(self.updates)} and {len(self.theirs)} optimizer steps"
        plain = bool(ours.counted or self.laws.integers)
        doubt = self.totals.doubt(plain) if plain or self.ranks == 1 else ""
        again = bool((ours.again | full.again) & self.terms.reached(self._summands()))
        for found, reason, line in (
            (self._scaled_by_all_data(), OF_ALL, ours.line or self.updates[0].location),
            (doubt, doubt, ours.counted or ours.line),
            (again, "a generator draws the same numbers again, and the full batch draws others", last),
            (chosen, "data choose as many rows of each micro-batch; a mean over them may be right by chance", chosen),
            (not asked, f"{made} cannot be compared; {self.asked} were asked for", last),
        ):
            if found:
                yield reason, line or last
        if self.first is not None:
            at, apart = self.first
            what = f"the terms of the gradient of {apart.name} are the full batch's"
            yield f"{what}, and its numbers differ by {apart.size:.2g}", self.updates[at].location

    def _summands(self) -> list[int]:
        """The terms of all gradients of the run by micro-batches."""
        return [term for update in self.updates for value in update.gradients.values() for term in value]

    def _same_update(self) -> Result | None:
        """Gradients that are a multiple of the full batch's, where every step leaves the same parameters behind."""
        pairs = list(zip(self.updates, self.theirs, strict=False))
        if self.idle() or not self.paired or any(mine.after != full.after or not mine.after for mine, full in pairs):
            return None
        factors = [
            {ratio(held, full.gradients.get(name, {})) for name, held in mine.gradients.items() if held}
            for mine, full in pairs
        ]
        if any(len(each) != 1 or None in each for each in factors):
            return None
        by = factors[-1].pop()
        reason = f"the update is the full batch's, the gradient is {by} times it: the learning rate makes up for it"
        return self._result(EQ, Outcome.HOLDS, reason, details={"equal": "update"})

    def _scaled_by_all_data(self) -> bool:
        """Whether a number scales that was computed from all data: it may be a count, which is a window's own."""
        losses = {s for own in self.facts.roots.values() for root in own for t in root for s in self.terms.bare(t)[1]}
        common = self.terms.common(dict.fromkeys(self._summands(), UNIT))
        return any(self.terms.made_with(scalar, COMPUTED) for scalar in (*losses, *common))

    def _sides(self, at: int, name: str) -> tuple[str, list[Combination]]:
        """A gradient, in words, and what it is in both runs, of those that have it."""
        both = [side.facts.updates[at].gradients.get(name) for side in (self.ours, self.full)]
        bare = [self.unscaled(value) for value in both if value is not None]
        scaled = any(one is not value for one, value in zip(bare, both, strict=False))
        return f"the gradient of {name} in window {at + 1}{', before it is scaled by a norm,' * scaled}", bare

    def _weighed_otherwise(self, at: int, name: str) -> Refutations:
        """A gradient that is a multiple of the full batch's, or weighs the same samples otherwise."""
        what, sides = self._sides(at, name)
        if len(sides) < 2:
            return
        (left, right), location = sides, self.updates[at].location
        by, example = ratio(left, right), {"quantity": what, "weights": self._weights(left)}
        if by is not None:
            reason, line = f"{what} is {by} times the full batch's", self.facts.line or location
            example = {**example, "times_the_full_batch": str(by)}
            help = DIVIDE if by > 1 else f"{DIVIDE}, and only once: what accumulates for you may divide it too"
            yield self._result(EQ, Outcome.REFUTED, reason, line, help, counterexample=example)
        far = set(left) == set(right) and any(abs(left[t] - right[t]) > FAR * abs(right[t]) for t in left)
        if far and all(self.terms.owners[term] >= 0 for term in left):
            reason = f"{what} weighs its samples otherwise than the full batch does"
            example = {**example, "full_batch": self._weights(right)}
            yield self._result(EQ, Outcome.REFUTED, reason, location, counterexample=example)

    def _unequal(self, at: int, name: str) -> Objections:
        """A gradient that is another combination than the full batch's."""
        (what, sides), location = self._sides(at, name), self.updates[at].location
        if len(sides) < 2:
            side = "micro-batches" if name in self.updates[at].gradients else "full batch"
            yield f"{name} has a gradient only by the {side}", location
        reason = f"{what} was not shown to be the full batch's"
        meet = any(self.terms.owners[self.terms.bare(term)[0]] < NOBODY for value in sides for term in value)
        if meet and self.facts.coupled is not None:
            how, where = self.facts.coupled
            reason = f"{reason}: samples meet in {how}"
            if self.facts.crossed:
                yield f"{reason}, which broadcasts their rows along two axes", where, CROSSED
            yield reason, where, APART if "batch_norm" in how else self.help, Outcome.OUTSIDE
        yield reason, location, self.help

    def unscaled(self, value: Combination) -> Combination:
        """A gradient without the scalars by which all of its terms were multiplied, where a norm is among them."""
        powers = {s: by for s, by in self.terms.common(value).items() if self.clips(s)}
        return self.terms.rescaled(value, multiplied({}, powers, -1)) if powers else value

    def clips(self, scalar: int) -> bool:
        """Whether a scalar is a bounded factor that is made of gradients."""
        return self.terms.trained[scalar] and self.terms.made_with(scalar, BOUNDED)

    def _weights(self, value: Combination) -> dict[str, str]:
        """The weight of each sample in the first few terms of a gradient."""
        owned = [(self.terms.owners[term], by) for term, by in value.items() if self.terms.owners[term] >= 0]
        found = {f"sample {owner}": str(by) for owner, by in reversed(owned)}
        return dict(sorted(found.items())[: 2 * SHOWN])

    # The window

    def data(self, equal: Result) -> Result:
        """The samples of each window, each once."""
        held = f"{sum(self.sizes) * self.ranks} samples, each in the gradients of one window"
        return self.decided(DATA, iter(()), self._other_samples(equal), held)

    def _other_samples(self, equal: Result) -> Objections:
        """What speaks against samples that are each in one window."""
        ours = self.facts
        if equal.outcome is not Outcome.HOLDS:
            yield "the gradients were not shown to be the full batch's", equal.location
        yield from self._counts()
        if (ours.again | self.other.again) & self.terms.reached(self._summands()):
            reason = "a generator draws samples again that it drew before: two windows have the same ones"
            yield reason, ours.updates[-1].location
        if ours.repeated is not None and self.cycles == 1:
            yield "data from outside hold what earlier data held", ours.repeated

    def _counts(self) -> Objections:
        """What is wrong with the samples or the backward passes of a window, with the line of its step."""
        seen: dict[int, set[int]] = {}
        for update, at, found in zip(self.updates, self.windows, self.samples, strict=True):
            size, earlier = self.sizes[at % len(self.sizes)], seen.setdefault(update.optimizer, set())
            if at % len(self.sizes) == 0 or len(earlier) >= self.facts.there:
                earlier.clear()  # every row that there is was read: what is read now is read in another epoch
            if len(found) != size * self.ranks:
                asked = f"{size * self.ranks} were asked for"
                yield f"{len(found)} samples are in the gradients of window {at + 1}; {asked}", update.location
            if found & earlier:
                yield f"samples of an earlier window are in the gradients of window {at + 1}", update.location
            earlier |= found
        # each window has as many backward passes as micro-batches, or as many for each of them
        theirs = [self._passes(self.full, at) for at in range(len(self.theirs))]
        for number, (update, at) in enumerate(zip(self.updates, self.windows, strict=True)):
            full = theirs[number] if number < len(theirs) else 0
            each = full if self.optimizers > 1 or not theirs else theirs[-1]
            fitting = {each * self.batches[number]} | ({1} if each == 1 else set())
            if full != each or not each or self._passes(self.ours, number) not in fitting:
                reason = f"window {at + 1} has {update.passes} backward passes, and {full} by the full batch"
                yield reason, update.location

    def _passes(self, run: Followed, at: int) -> int:
        """The passes before a step, less those that begin with no data, and of which nothing is in its gradients."""
        update, roots = run.facts.updates[at], run.facts.roots.get(at, [])
        made = any(self.terms.owners[term] < 0 for value in update.gradients.values() for term in self.bared(value))
        return update.passes - sum(not made and not self.terms.samples(root) for root in roots)

    def steps(self) -> Result:
        """One step a window, after which the parameters are those of the full batch."""
        held = f"{self.asked} steps, each of one window, with the full batch's parameters"
        return self.decided(STEPS, self._more_steps(), self._other_steps(), held)

    def _more_steps(self) -> Refutations:
        """Another number of steps than windows, by an optimizer that does not accumulate by itself."""
        made, asked = self.updates, self.asked
        if self.paired or self.optimizers > 1 or len(made) == asked or self.idle():
            return
        each, left = (self.theirs[-1].passes if self.theirs else 1), len(self.events.of(len(made), PASS))
        rules = [ruled(update.passes, self.batches[at] * each, Event.STEP) for at, update in enumerate(made)]
        at, why = next(((at, why) for at, why in enumerate(rules) if why), (-1, ruled(left, left, Event.END)))
        reason = ": ".join(filter(None, (f"{len(made)} optimizer steps in {asked} windows", why)))
        yield self._result(STEPS, Outcome.REFUTED, reason, made[at].location)

    def _other_steps(self) -> Objections:
        """What speaks against steps after which the parameters are the full batch's."""
        ours, full = self.facts, self.other
        last = self.updates[-1].location
        if not self.paired and self.optimizers == 1:
            reason = (
                f"{len(self.updates)} optimizer steps in {self.asked} windows, and {len(self.theirs)} by the full batch"
            )
            yield f"{reason}; or the optimizer accumulates by itself", last
        yield from self._counts()
        if len(self.updates) != self.asked:
            yield "several optimizers step; their windows were not distinguished", last
        for at, (mine, other) in enumerate(zip(self.updates, self.theirs, strict=False)):
            if mine.after != other.after:
                reason = f"after window {at + 1} the parameters were not shown to be those of the full batch's run"
                yield reason, mine.location
        still = self.unmoved()
        if still is not None:
            reason = "the weights after this step are those before it: it moved none, or they were put back"
            if self.updates[still].at_rest:
                reason = "the learning rate of every step is 0, and none moves a parameter: ask for more --windows"
            yield reason, self.updates[still].location
        for key, (location, held, _) in ours.kept.items():
            if full.kept.get(key, (location, -1, None))[1] != held:
                yield "what this line keeps at the end was not shown to be what the full batch's run keeps", location
        for event in (event for at in range(len(self.updates)) for event in self.events.inside(at, READ)):
            yield "this line computes with parameters inside a window; what it keeps was not compared", event.location
        if ours.final != full.final:
            yield "the parameters at the end were not shown to be those of the full batch's run", last

    def idle(self) -> bool:
        """Whether a step leaves each parameter as it was, by a learning rate that is not 0."""
        steps = ([self.terms.operators[term] for term in update.after.values()] for update in self._by_a_rate())
        return any(set(made) <= {"parameter", "state", "outside"} for made in steps)

    def _by_a_rate(self) -> list[Update]:
        """The steps whose learning rates are not all 0; every step where there is none such."""
        return [update for update in self.updates if not update.at_rest] or self.updates

    def unmoved(self) -> int | None:
        """A step after which the next window's gradients are made of the same versions of all parameters.

        After one at rest nothing shows whether weights are put back: then what the run ends with has to be moved.
        """
        before, rated = dict[int, tuple[int, set[int]]](), self._by_a_rate()
        for at, update in enumerate(self.updates):
            terms = self.terms.reached(term for value in update.gradients.values() for term in value)
            leaves = {term for term in terms if self.terms.operators[term] in ("parameter", "state")}
            earlier, seen = before.get(update.optimizer, (0, set()))
            if leaves and leaves == seen and any(one is self.updates[earlier] for one in rated):
                return earlier
            before[update.optimizer] = at, leaves
        early, last = self.updates[:-1], self.updates[-1:]
        if not early or not all(update.at_rest for update in early) or last[0].at_rest:
            return None
        back = {self.facts.final.get(name, -1) for name in last[0].after} <= last[0].leaves
        return len(early) if back else None

    def stale(self) -> Result:
        """No summand of a gradient is of an earlier window."""
        held = "no gradient is made of the parameters of an earlier window"
        return self.decided(STALE, self._still_there(), self._left_over(), held)

    @cached_property
    def returning(self) -> list[tuple[int, str, set[int], set[int]]]:
        """Of each gradient the summands that an earlier one had: all of them, and those that were not read again.

        With the step and the name.
        """
        found = []
        for index, (now, at) in enumerate(zip(self.updates, self.windows, strict=True)):
            before = [u for u, number in zip(self.updates, self.windows, strict=True) if number < at]
            read = self._read(index)
            for one, gradient in now.gradients.items():
                earlier = next((u.gradients[one] for u in reversed(before) if one in u.gradients), {})
                mine, older = map(self.bared, (gradient, earlier))
                both = mine.keys() & older.keys()
                again = {t for t in both if mine[t] == older[t] and not self.terms.samples([t]) & read}
                found.append((index, one, again | {t for t in both if mine[t] != older[t]}, again))
        return found

    def _still_there(self) -> Refutations:
        """A gradient that still has that of samples of an earlier window."""
        for index, one, _, again in self.returning if not self.idle() else ():
            kept, at = sorted(t for t in again if self.terms.owners[t] != NOBODY), self.windows[index]
            if kept:
                reason = f"the gradient of {one} in window {at + 1} still has that of sample"
                reason = f"{reason} {min(self.terms.samples(kept))}, of window {at}"
                first = next((e.location for e in self.events.of(at, PASS)), self.updates[index].location)
                yield self._result(STALE, Outcome.REFUTED, reason, first)

    def _read(self, index: int) -> set[int]:
        """The samples that the backward passes between two steps of an optimizer begin with. `index`: of the second."""
        updates = self.updates
        mine = [at for at in range(index) if updates[at].optimizer == updates[index].optimizer]
        between = range(max(mine, default=-1) + 1, index + 1)
        return self.terms.summed(root for at in between for root in self.facts.roots.get(at, []))

    def _left_over(self) -> Objections:
        """What speaks against gradients that begin anew: something is there, or is of other samples, or of none."""
        if max(self.windows) < 1:
            yield "there is one window; nothing could be left over", self.updates[0].location
        yield from self._carried()
        yield from self._not_of_samples()
        for at, (mine, other) in enumerate(zip(self.updates, self.theirs, strict=False)):
            for name in mine.gradients.keys() & other.gradients.keys():
                made = [self.terms.unscaled(update.gradients[name]) for update in (mine, other)]
                if made[0] != made[1]:
                    what = f"the gradient of {name} in window {at + 1}"
                    yield f"{what} is not made of the full batch's samples", mine.location
        yield from self._counts()

    def _carried(self) -> Objections:
        """What a gradient shares with an earlier one, or with earlier weights, and what a window began with."""
        terms = self.terms
        for index, one, carried, again in self.returning:
            drawn = any(terms.made_with(term, ("draw",)) for term in again)
            if drawn or any(terms.owners[term] != NOBODY for term in carried):
                what = f"the gradient of {one} in window {self.windows[index] + 1}"
                yield f"{what} has a part of that of an earlier window", self.updates[index].location
        pairs = list(zip(self.updates, self.windows, strict=True))
        for now, at in pairs:
            old = {leaf for update, number in pairs if number < at for leaf in update.leaves}
            if old & terms.reached(term for value in now.gradients.values() for term in value):
                reason = f"a gradient in window {at + 1} is made of an older version of a parameter"
                yield reason, now.location
        for update, at in pairs:
            for name, before in update.begun_with.items():
                held = update.gradients.get(name)
                if held is not None and {terms.bare(term)[0] for term in before} & terms.reached(held):
                    yield f"{name} had a gradient when window {at + 1} began", update.location

    def _not_of_samples(self) -> Objections:
        """Parts of a gradient that are made of no sample, but of weights and draws."""
        terms = self.terms
        weights = {defined for update in self.updates for defined in update.after.values()}
        for at, update in enumerate(self.updates):
            for name, gradient in update.gradients.items():
                bare = [term for term in gradient if terms.owners[term] == NOBODY]
                states = [leaf for leaf in terms.found(bare, ("state",)) if terms.kids[leaf][0] not in weights]
                if states or any(not terms.made_with(term, ("parameter", "state", "draw")) for term in bare):
                    yield f"a part of the gradient of {name} in window {at + 1} is made of no sample", update.location

    def _unseen(self, equal: Result) -> Objections:
        """What speaks against having seen every sum over micro-batches."""
        if self.facts.escaped is not None and equal.outcome is not Outcome.HOLDS:
            reason = "Python reads the numbers of a gradient or a parameter; what it makes of them was not followed"
            yield reason, self.facts.escaped
        if len(self.updates) != self.asked:
            reason = "an optimizer that steps another number of times may sum by itself, which was not followed"
            yield reason, self.updates[-1].location

    def clipping(self, equal: Result) -> Result:
        """No norm of a part of a window scales a gradient."""
        held = "each gradient is that of one full batch, clipped once or not"
        if equal.outcome is not Outcome.HOLDS:
            against = iter([("the gradients were not shown to be the full batch's", equal.location)])
            return self.decided(CLIP, self._by_a_part(), against, held)
        line = self.misscaled() or self.clipped_nothing()
        reason = "a gradient was scaled by a norm of something else than the gradients of its window"
        return self.decided(CLIP, iter(()), iter([] if line is None else [(reason, line)]), held)

    def _by_a_part(self) -> Refutations:
        """A gradient that is scaled by a norm of some samples of its window."""
        for at, (update, whole) in enumerate(zip(self.updates, self.samples, strict=True)):
            scalars = {s for value in update.gradients.values() for term in value for s in self.terms.bare(term)[1]}
            for norm in sorted(scalars & self.facts.scaled.keys()):
                part = self.terms.samples([norm]) if self.clips(norm) and not self.endless(norm) else set()
                if 1 < len(part) < len(whole) and self.run.micro_batch_size > 1:
                    reason = f"window {at + 1}: a gradient is scaled by a norm of {len(part)} of {len(whole)} samples"
                    line = self.facts.scaled.get(norm) or update.location
                    yield self._result(CLIP, Outcome.REFUTED, reason, line)

    def misscaled(self) -> Location | None:
        """The step of a gradient that is scaled by a norm of others alone."""
        for update in self.updates:
            for value in filter(None, update.gradients.values()):
                powers = self.terms.common(value)
                own = {scalar: by for scalar, by in powers.items() if self.terms.made_with(scalar, NORMS)}
                if self.terms.scaled_by_others(value, own):
                    return update.location
        return None

    def clipped_nothing(self) -> Location | None:
        """A line that scaled a gradient by a norm, of which nothing came to a step."""
        values = [value for update in (*self.updates, *self.theirs) for value in update.gradients.values()]
        applied = {scalar for value in values for scalar in self.terms.common(value)}
        for scalar, location in (*self.facts.scaled.items(), *self.other.scaled.items()):
            if scalar not in applied and self.terms.made_with(scalar, NORMS) and not self.endless(scalar):
                return location
        return None
