"""What two runs without numbers decide: each obligation is read off what the gradients are made of.

Equal combinations prove. Unequal ones refute only where both runs weigh the same terms and the weights differ; else the
obligation is not decided, and the line that couples the samples is named where there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Run
from gradproof.shadow.result import ALL_DATA, DOUBT, OBLIGATIONS, WHERE_DUE, Result
from gradproof.shadow.verify.totals import LossTotals, divided_by_others
from gradproof.shadow.whole.facts import DOMAIN, Difference, Gradient, Numbers, Update, difference, narrow_sum
from gradproof.shadow.whole.fake import Fake
from gradproof.shadow.whole.loop_events import BACKWARD, READ, LoopEvents
from gradproof.shadow.whole.runs import Real
from gradproof.shadow.whole.terms import NOBODY, NORMS, Combination, Terms, multiplied, ratio

if TYPE_CHECKING:
    from gradproof.shadow.verify.followed import Followed

SYNC = "GA-SYNC-001"
HELP = "check a small model without --fake, which has numbers"
LOOK = "look at this line: keep what it does in operators of torch, each sample apart from the others"
INFINITE = "('float', 'inf')"
BOUNDED = ("clamp", "clamp_max", "clamp_min", "minimum", "where")
SHOWN = 4
FAR = Fraction(1, 1000)
"""How far two weights have to be apart, relative to the right one, to be no rounding of a Python number."""


class Judge:
    """The obligations of one function, by its two runs, on one of several ranks."""

    def __init__(self, terms: Terms, run: Run, ours: Followed, full: Followed, ranks: int = 1) -> None:
        self.ranks = ranks
        self.terms, self.run, self.ours, self.full = terms, run, ours, full
        self.real = isinstance(ours.engine, Real)
        self.help = LOOK if self.real else HELP
        self.mine, self.other = (
            engine.numbers if isinstance(engine, Real) else Numbers() for engine in (ours.engine, full.engine)
        )
        self.events = ours.engine.events if isinstance(ours.engine, Real) else LoopEvents(ours.engine)
        self.paired = len(ours.facts.updates) == len(full.facts.updates)
        self.sizes = [run.effective_batch_size] * run.windows
        if run.tail:
            self.sizes.append(run.tail * run.micro_batch_size)
        self.laws = ours.engine.laws
        self.totals = LossTotals(terms, ours, full)
        self.optimizers = len({update.optimizer for update in ours.facts.updates}) or 1
        self.cycles = self._cycles()
        self.windows = self._windows()
        self.samples = [self._samples(update) for update in ours.facts.updates]
        self.unequal = self._first_unequal()

    @cached_property
    def first(self) -> tuple[int, Difference] | None:
        """The first optimizer step whose gradients differ in numbers."""
        every = ((at, difference(self.mine, self.other, at)) for at in range(len(self.ours.facts.updates)))
        return next(((at, found) for at, found in every if found is not None), None)

    def _cycles(self) -> int:
        """How often the function goes over its windows: as often in both runs, or once."""
        steps, each = len(self.ours.facts.updates), len(self.sizes) * self.optimizers
        whole = steps == len(self.full.facts.updates) and steps % each == 0
        return max(1, steps // each) if whole else 1

    def _windows(self) -> list[int]:
        """The window of each optimizer step, counted for each optimizer."""
        turns: Counter[int] = Counter()
        found = []
        for update in self.ours.facts.updates:
            found.append(turns[update.optimizer])
            turns[update.optimizer] += 1
        return found

    @property
    def asked(self) -> int:
        """The optimizer steps that the run has to make."""
        return len(self.sizes) * self.cycles * self.optimizers

    def _samples(self, update: Update) -> set[int]:
        """The samples of its summands; those that a count or a norm is made of as well are none."""
        return self.terms.summed(gradient.value for gradient in update.gradients.values())

    def _first_unequal(self) -> tuple[int, str] | None:
        """The first window and parameter whose gradients are not one combination in both runs."""
        for at, (ours, full) in enumerate(zip(self.ours.facts.updates, self.full.facts.updates, strict=False)):
            for name in [*ours.gradients, *(full.gradients.keys() - ours.gradients.keys())]:
                mine, other = ours.gradients.get(name), full.gradients.get(name)
                if mine is None or other is None or mine.value != other.value:
                    return at, name
        return None

    def results(self, loss: Callable[[], Result]) -> list[Result]:
        """A result for each obligation but that of ranks. `loss` judges the reported losses."""
        ended = self._impossible()
        if ended is not None:
            help = self._next(ended[0])
            return [Result(name, *ended, help, DOMAIN) for name in OBLIGATIONS if name not in WHERE_DUE]
        equal = self.equality()
        proved = equal.outcome is Outcome.HOLDS and not equal.details
        equal = (self._apart() if proved else None) or equal
        rules: list[Callable[[], Result]] = [lambda: self._reported(loss(), equal), self.stale, self.steps]
        return [self.data(equal), equal, *(rule() for rule in rules), self.width(equal), self.clipping(equal)]

    def _reported(self, loss: Result, equal: Result) -> Result:
        """The result of the reported losses; no proof where counts are plain numbers, and not shown to be right."""
        if loss.outcome is not Outcome.HOLDS or equal.outcome is Outcome.HOLDS:
            return loss
        if loss.domain == "floats" or (equal.outcome is Outcome.REFUTED and self.unequal is None):
            reason = f"both runs report the same, and the full batch may be wrong as well: {equal.reason}"
            return self._result(loss.obligation, Outcome.UNKNOWN, reason)
        if not self.laws.integers and self.laws.by_chance(self.run.micro_batches) is None:
            return loss
        return self._result(loss.obligation, Outcome.UNKNOWN, f"counts became plain numbers, and {equal.reason}")

    def _next(self, outcome: Outcome) -> str:
        """What to do where nothing is decided."""
        if outcome is Outcome.ERROR:
            return "run the function by itself first"
        if self.ours.unread:
            return f"train with {', '.join(f'run.{name}' for name in self.ours.unread)}"
        return "ask for --accum-steps 2 or more" if self.run.accum_steps == 1 else self.help

    def _impossible(self) -> tuple[Outcome, str, Location] | None:
        """What keeps every obligation undecided."""
        for run, what in ((self.ours, "the run by micro-batches"), (self.full, "the run by the full batch")):
            ended = self._ended(run, what)
            if ended is not None:
                return ended
        if self.ours.unread:
            words = ", ".join(self.ours.unread)
            return Outcome.OUTSIDE, f"the function never reads {words} of its argument; both runs are one", NOWHERE
        if self.run.accum_steps == 1:
            return Outcome.UNKNOWN, "one micro-batch a window: both runs are one, and nothing is compared", NOWHERE
        alike = [len(self._samples(update)) for update in self.full.facts.updates] == [*map(len, self.samples)]
        if alike and self.ours.facts.operators == self.full.facts.operators:
            return Outcome.OUTSIDE, "the function does the same by micro-batches and by the full batch", NOWHERE
        if not self.ours.facts.updates:
            return Outcome.UNKNOWN, "no step of a torch.optim optimizer was seen", NOWHERE
        for mine, other in zip(self.ours.facts.updates, self.full.facts.updates, strict=False):
            if mine.order != other.order:
                reason = "the optimizer has its parameters in another order in the full batch's run"
                return Outcome.UNKNOWN, reason, mine.location
        if not all(self.samples):
            at = next(i for i, found in enumerate(self.samples) if not found)
            where = self.ours.facts.updates[at].location
            if self.idle():
                return Outcome.UNKNOWN, "some steps move no parameter; the optimizer may accumulate by itself", where
            return Outcome.VACUOUS, f"the gradient of window {at + 1} is made of no data", where
        return None

    def _ended(self, run: Followed, what: str) -> tuple[Outcome, str, Location] | None:
        """What keeps a run from being followed to its end."""
        facts = run.facts
        if facts.reads and not self.real:
            location, how = facts.reads[0]
            return Outcome.OPAQUE, f"the step reads {_read(how)}, and without numbers there is none", location
        if run.alone:
            reason = f"the function runs without the recorder, and with it ends with {run.error}"
            return Outcome.OPAQUE, reason, run.raised
        if run.error:
            return Outcome.OPAQUE if run.unsupported else Outcome.ERROR, f"{what} ended with {run.error}", run.raised
        if facts.lost:
            return Outcome.OPAQUE, f"a value was lost: {facts.lost[0][1]}", facts.lost[0][0]
        return None

    def _result(
        self, name: str, outcome: Outcome, reason: str, at: Location | None = None, help: str = "", **more: Any
    ) -> Result:
        reach = ALL_DATA if outcome is Outcome.HOLDS else ""
        return Result(name, outcome, reason, at, help, DOMAIN, reach, **more)

    def _apart(self) -> Result | None:
        """Gradients that are one combination, and differ in numbers: one of the two is wrong."""
        if self.first is None:
            return None
        at, found = self.first
        what = f"the terms of the gradient of {found.name} are the full batch's"
        reason = f"{what}, and its numbers differ by {found.size:.2g}"
        return self._result("GA-EQ-001", Outcome.UNKNOWN, reason, self.ours.facts.updates[at].location)

    def _doubt(self, name: str, reason: str, location: Location | None = None) -> Result:
        """Something that speaks against an obligation, whoever else proves it."""
        return self._result(name, Outcome.UNKNOWN, reason, location, details={"code": DOUBT})

    # GA-EQ-001

    def equality(self) -> Result:
        """Each gradient is the full batch's."""
        name, found = "GA-EQ-001", self.unequal
        ours, full = self.ours.facts.updates, self.full.facts.updates
        strange = self._foreign_scalars()
        at_fault = divided_by_others(self.terms, ours) if found is None and self.ranks == 1 else None
        if at_fault is not None:
            reason = f"window {at_fault + 1} is divided by a count of other samples, an earlier one by its own"
            help = "divide each window by the count of its own labels"
            return self._result(name, Outcome.REFUTED, reason, next(iter(self.ours.facts.lines), strange), help=help)
        if found is None and strange is not None:
            reason = "a gradient is scaled by a number that is made of other samples than those of its window"
            return self._result(name, Outcome.UNKNOWN, reason, strange)
        if found is None and self.ranks == 1 and not self.totals.stand():
            reason = "the losses of the windows are divided by different numbers, which are no counts of what they sum"
            return self._result(name, Outcome.UNKNOWN, reason, next(iter(self.ours.facts.lines), ours[0].location))
        if found is None and (self.ours.facts.counted or self.laws.integers) and not self.totals.counts_stand():
            reason = "counts became plain numbers, and were not shown to be those of the window that they divide"
            return self._result(name, Outcome.UNKNOWN, reason, ours[0].location)
        drawn = [term for u in ours for g in u.gradients.values() for term in g.value]
        if found is None and (self.ours.facts.again | self.full.facts.again) & self.terms.reached(drawn):
            reason = "a generator draws the same numbers again, and the full batch draws others"
            return self._result(name, Outcome.UNKNOWN, reason, ours[0].location)
        line = self.laws.by_chance(self.run.micro_batches) if found is None else None
        if line is not None:
            reason = "data choose as many rows of each micro-batch; a mean over them may be right by chance"
            help = "check with data that choose other numbers of rows"
            return self._result(name, Outcome.UNKNOWN, reason, line, help=help)
        if found is None and len(ours) == len(full) == self.asked:
            count = sum(len(update.gradients) for update in ours)
            return self._result(name, Outcome.HOLDS, f"{count} gradients are one combination in both runs")
        if found is None:
            reason = f"{len(ours)} and {len(full)} optimizer steps cannot be compared; {self.asked} were asked for"
            return self._result(name, Outcome.UNKNOWN, reason, ours[-1].location)
        same = self._same_update(found[0])
        if same is not None:
            return same
        at, parameter = found
        mine, other = (side[at].gradients.get(parameter) for side in (ours, full))
        location = ours[at].location
        if mine is None or other is None:
            side = "full batch" if mine is None else "micro-batches"
            return self._result(name, Outcome.UNKNOWN, f"{parameter} has a gradient only by the {side}", location)
        return self._unequal(name, at, mine, other, location)

    def _same_update(self, at: int) -> Result | None:
        """Gradients that are a multiple of the full batch's, where every step leaves the same parameters behind."""
        ours, full = self.ours.facts.updates, self.full.facts.updates
        if (
            self.idle()
            or len(ours) != len(full)
            or any(a.after != b.after or not a.after for a, b in zip(ours, full, strict=True))
        ):
            return None
        for mine, other in zip(ours, full, strict=True):
            if mine.gradients.keys() != other.gradients.keys():
                return None
            found = {ratio(g.value, other.gradients[name].value) for name, g in mine.gradients.items() if g.value}
            if len(found) != 1 or None in found:
                return None
        factor = found.pop()
        reason = f"the update is the full batch's, the gradient is {factor} times it: the learning rate makes up for it"
        return self._result("GA-EQ-001", Outcome.HOLDS, reason, details={"equal": "update"})

    def _foreign_scalars(self) -> Location | None:
        """The step of a gradient that is scaled by a number of other samples than those of its summands."""
        for update in self.ours.facts.updates:
            bared = [self.terms.bare(t) for g in update.gradients.values() for t in g.value]
            scalars = {scalar for _, powers in bared for scalar in powers}
            if self.terms.samples(scalars) - self.terms.samples(term for term, _ in bared):
                return update.location
        return None

    def _unequal(self, name: str, at: int, mine: Gradient, other: Gradient, location: Location) -> Result:
        window = f"the gradient of {mine.name} in window {at + 1}"
        left, right = self.unscaled(mine.value), self.unscaled(other.value)
        if left is not mine.value:
            window += ", before it is scaled by a norm,"
        by = ratio(left, right)
        if by is not None:
            counterexample = {"quantity": window, "times_the_full_batch": str(by), "weights": self._weights(left)}
            reason = f"{window} is {by} times the full batch's"
            location = next(iter(self.ours.facts.lines), location)
            return self._result(
                name, Outcome.REFUTED, reason, location, counterexample=counterexample,
                help="divide each loss by the number of micro-batches of its own window",
            )  # fmt: skip
        far = set(left) == set(right) and any(abs(left[t] - right[t]) > FAR * abs(right[t]) for t in left)
        if far and self._single(left):
            counterexample = {
                "quantity": window, "weights": self._weights(left), "full_batch": self._weights(right),
            }  # fmt: skip
            reason = f"{window} weighs its samples otherwise than the full batch does"
            return self._result(name, Outcome.REFUTED, reason, location, counterexample=counterexample)
        meet = any(self.terms.owners[self.terms.bare(term)[0]] < NOBODY for term in (*left, *right))
        coupled = next(iter(self.ours.facts.coupled.items()), None) if meet else None
        if coupled is not None:
            what, where = coupled
            reason = f"{window} was not shown to be the full batch's: samples meet in {what.split(' at ')[0]}"
            return self._result(name, Outcome.OUTSIDE, reason, where, help=self.help)
        reason = f"{window} was not shown to be the full batch's"
        return self._result(name, Outcome.UNKNOWN, reason, location, help=self.help)

    def unscaled(self, value: Combination) -> Combination:
        """A gradient without the scalars by which all of its terms were multiplied, where a norm is among them."""
        powers = {s: by for s, by in self.terms.common(value).items() if self.clips(s)}
        return self.terms.rescaled(value, multiplied({}, powers, -1)) if powers else value

    def clips(self, scalar: int) -> bool:
        """Whether a scalar is a bounded factor that is made of gradients."""
        return self.terms.trained[scalar] and self.terms.made_with(scalar, BOUNDED)

    def _single(self, value: Combination) -> bool:
        return all(self.terms.owners[term] >= 0 for term in value)

    def _weights(self, value: Combination) -> dict[str, str]:
        """The weight of each sample in the first few terms of a gradient."""
        found: dict[str, Fraction] = {}
        for term, by in value.items():
            if self.terms.owners[term] >= 0:
                found.setdefault(f"sample {self.terms.owners[term]}", by)
        return {key: str(by) for key, by in sorted(found.items())[: 2 * SHOWN]}

    # The window

    def data(self, equal: Result) -> Result:
        """The samples of each window, each once."""
        name = "GA-DATA-001"
        if equal.outcome is not Outcome.HOLDS:
            reason = "the gradients were not shown to be the full batch's"
            return self._result(name, Outcome.UNKNOWN, reason, equal.location)
        bad = self._counts()
        if bad is not None:
            return self._result(name, Outcome.UNKNOWN, *bad)
        values = [term for u in self.ours.facts.updates for g in u.gradients.values() for term in g.value]
        if (self.ours.facts.again | self.full.facts.again) & self.terms.reached(values):
            reason = "a generator draws samples again that it drew before: two windows have the same ones"
            return self._doubt(name, reason, self.ours.facts.updates[-1].location)
        if self.ours.facts.repeated is not None and self.cycles == 1:
            return self._doubt(name, "data from outside hold what earlier data held", self.ours.facts.repeated)
        count = sum(self.sizes) * self.ranks
        return self._result(name, Outcome.HOLDS, f"{count} samples, each in the gradients of one window")

    def _counts(self) -> tuple[str, Location] | None:
        """What is wrong with the samples or the backward passes of a window, with the line of its step."""
        seen: dict[int, set[int]] = {}
        for update, at, found in zip(self.ours.facts.updates, self.windows, self.samples, strict=True):
            size, earlier = self.sizes[at % len(self.sizes)], seen.setdefault(update.optimizer, set())
            if at % len(self.sizes) == 0:
                earlier.clear()
            if len(found) != size * self.ranks:
                asked = f"{size * self.ranks} were asked for"
                return f"{len(found)} samples are in the gradients of window {at + 1}; {asked}", update.location
            if found & earlier:
                return f"samples of an earlier window are in the gradients of window {at + 1}", update.location
            earlier |= found
        return self._passes()

    def _passes(self) -> tuple[str, Location] | None:
        """Each window has as many backward passes as micro-batches, or as many for each of them."""
        theirs = [update.passes - self._dataless(self.full, at) for at, update in enumerate(self.full.facts.updates)]
        for number, (update, at) in enumerate(zip(self.ours.facts.updates, self.windows, strict=True)):
            batches = self.sizes[at % len(self.sizes)] // self.run.micro_batch_size
            full = theirs[number] if number < len(theirs) else 0
            each = full if self.optimizers > 1 else theirs[-1]
            fitting = {each * batches} | ({1} if each == 1 else set())
            if full != each or not each or update.passes - self._dataless(self.ours, number) not in fitting:
                reason = f"window {at + 1} has {update.passes} backward passes, and {full} by the full batch"
                return reason, update.location
        return None

    def _dataless(self, run: Followed, at: int) -> int:
        """The passes before a step that begin with no data, and of which nothing is in its gradients."""
        values = [gradient.value for gradient in run.facts.updates[at].gradients.values()]
        if any(self.terms.owners[self.terms.bare(term)[0]] < 0 for value in values for term in value):
            return 0
        return sum(window == at and not self.terms.samples(root) for window, root in run.facts.roots)

    def steps(self) -> Result:
        """One step a window, after which the parameters are those of the full batch."""
        name, ours, full = "GA-INV-003", self.ours.facts.updates, self.full.facts.updates
        asked = self.asked
        if len(ours) != len(full) and self.optimizers == 1:
            reason = f"{len(ours)} optimizer steps in {asked} windows"
            if len(ours) == asked or self.idle():
                reason = f"{reason}, and {len(full)} by the full batch; or the optimizer accumulates by itself"
                return self._result(name, Outcome.UNKNOWN, reason, ours[-1].location)
            return self._result(name, Outcome.REFUTED, reason, ours[-1].location, help="step once after each window")
        bad = self._counts()
        if len(ours) != asked or bad is not None:
            apart = "several optimizers step; their windows were not distinguished"
            return self._result(name, Outcome.UNKNOWN, *(bad or (apart, ours[-1].location)))
        for at, (mine, other) in enumerate(zip(ours, full, strict=False)):
            if mine.after != other.after:
                reason = f"after window {at + 1} the parameters were not shown to be those of the full batch's run"
                return self._result(name, Outcome.UNKNOWN, reason, mine.location)
        still = self._unmoved()
        if still is not None:
            reason = "the gradients of two windows were computed at the same weights: the step between them moved none"
            return self._doubt(name, reason, still)
        for key, (location, held, _) in self.ours.facts.kept.items():
            if self.full.facts.kept.get(key, (location, -1, None))[1] != held:
                reason = "what this line keeps at the end was not shown to be what the full batch's run keeps"
                return self._result(name, Outcome.UNKNOWN, reason, location)
        kept = next((line for at in range(len(ours)) for line in self.kept_inside(at)), None)
        if kept is not None:
            reason = "this line computes with parameters inside a window; what it keeps was not compared"
            return self._doubt(name, reason, kept)
        if self.ours.facts.final != self.full.facts.final:
            reason = "the parameters at the end were not shown to be those of the full batch's run"
            return self._result(name, Outcome.UNKNOWN, reason, ours[-1].location)
        return self._result(name, Outcome.HOLDS, f"{asked} steps, each of one window, with the full batch's parameters")

    def kept_inside(self, at: int) -> list[Location]:
        """The lines that compute with parameters alone, inside of a window."""
        engine, last = self.ours.engine, self.ours.facts.updates[at].passes
        if isinstance(engine, Fake):
            return [line for window, passes, line in engine.computed if window == at and passes < last]
        return [event.location for event in self.events.inside(at, READ)]

    def idle(self) -> bool:
        """Whether a step leaves each parameter as it was."""
        steps = ([self.terms.operators[term] for term in update.after.values()] for update in self.ours.facts.updates)
        return any(set(made) <= {"parameter", "state", "outside"} for made in steps)

    def _unmoved(self) -> Location | None:
        """A step after which the next window's gradients are made of the same versions of all parameters."""
        before: dict[int, set[int]] = {}
        for update in self.ours.facts.updates:
            terms = self.terms.reached(term for g in update.gradients.values() for term in g.value)
            leaves = {term for term in terms if self.terms.operators[term] in ("parameter", "state")}
            if leaves and leaves == before.get(update.optimizer):
                return update.location
            before[update.optimizer] = leaves
        return None

    def stale(self) -> Result:
        """No summand of a gradient is of an earlier window."""
        name, updates = "GA-INV-002", self.ours.facts.updates
        if max(self.windows) < 1:
            reason = "there is one window; nothing could be left over"
            return self._result(name, Outcome.UNKNOWN, reason, updates[0].location)
        for index, (now, at) in enumerate(zip(updates, self.windows, strict=True)):
            before = [u for u, number in zip(updates, self.windows, strict=True) if number < at]
            old = {leaf for update in before for leaf in update.leaves}
            read = self._read(index)
            for one, gradient in now.gradients.items():
                earlier = next((u.gradients[one] for u in reversed(before) if one in u.gradients), None)
                mine, older = (
                    {self.terms.bare(term)[0]: by for term, by in value.items()}
                    for value in (gradient.value, {} if earlier is None else earlier.value)
                )
                carried = {t for t in mine.keys() & older.keys() if not self.terms.samples([t]) & read}
                again = {t for t in carried if mine[t] == older[t]}
                kept = sorted(t for t in again if self.terms.owners[t] != NOBODY)
                if any(self.terms.made_with(t, ("draw",)) for t in again - set(kept)):
                    reason = f"the gradient of {one} in window {at + 1} has random numbers of an earlier window"
                    return self._result(name, Outcome.UNKNOWN, reason, now.location)
                if kept and not self.idle():
                    sample = min(self.terms.samples(kept))
                    what = f"the gradient of {one} in window {at + 1}"
                    reason = f"{what} still has that of sample {sample}, of window {at}"
                    first = next((e.location for e in self.events.of(at, BACKWARD)), now.location)
                    return self._result(name, Outcome.REFUTED, reason, first, help="call zero_grad() after each step")
                carried |= {t for t in mine.keys() & older.keys() if mine[t] != older[t]}  # read again, and kept
                if any(self.terms.owners[term] != NOBODY for term in carried):
                    reason = f"the gradient of {one} in window {at + 1} has a part of that of an earlier window"
                    return self._result(name, Outcome.UNKNOWN, reason, now.location)
            every = [term for gradient in now.gradients.values() for term in gradient.value]
            if old & self.terms.reached(every):
                reason = f"a gradient in window {at + 1} is made of an older version of a parameter"
                return self._result(name, Outcome.UNKNOWN, reason, now.location)
        bad = self._begun() or self._rootless() or self._lacking()
        if bad is not None:
            return self._doubt(name, *bad)
        bad = self._counts()
        if bad is not None:
            return self._result(name, Outcome.UNKNOWN, *bad)
        return self._result(name, Outcome.HOLDS, "no gradient is made of the parameters of an earlier window")

    def _read(self, index: int) -> set[int]:
        """The samples that the backward passes between two steps of an optimizer begin with. `index`: of the second."""
        updates = self.ours.facts.updates
        mine = [at for at in range(index) if updates[at].optimizer == updates[index].optimizer]
        roots = [root for at, root in self.ours.facts.roots if max(mine, default=-1) < at <= index]
        return self.terms.summed(roots)

    def _lacking(self) -> tuple[str, Location] | None:
        """A gradient that is made of other samples than the full batch's."""
        for at, (mine, other) in enumerate(zip(self.ours.facts.updates, self.full.facts.updates, strict=False)):
            for name, gradient in mine.gradients.items():
                values = (gradient.value, other.gradients[name].value) if name in other.gradients else ()
                made = [self.terms.summed([value], scalars=False) for value in values]
                if made and made[0] != made[1]:
                    what = f"the gradient of {name} in window {at + 1}"
                    return f"{what} is not made of the full batch's samples", mine.location
        return None

    def _begun(self) -> tuple[str, Location] | None:
        """A gradient that was there when the first backward pass of a window began, and still is at its step."""
        for at, update in zip(self.windows, self.ours.facts.updates, strict=True):
            for name, before in update.begun_with.items():
                held = update.gradients.get(name)
                kept = {self.terms.bare(term)[0] for term in before}
                if held is not None and self._joins(kept, held.value):
                    return f"{name} had a gradient when window {at + 1} began", update.location
        return None

    def _joins(self, kept: set[int], value: Combination) -> bool:
        """Whether some of these terms are summands of a value, or of what operators of its elements were given."""
        terms, stack, seen = self.terms, [self.terms.bare(term)[0] for term in value], set[int]()
        while stack:
            term = stack.pop()
            if term in kept:
                return True
            if term not in seen:
                seen.add(term)
                alike = [kid for kid in terms.kids[term] if terms.shapes[kid] in (None, terms.shapes[term])]
                stack += [terms.bare(kid)[0] for kid in alike if terms.operators[term] != "state"]
        return False

    def _rootless(self) -> tuple[str, Location] | None:
        """A summand of a gradient that is made of no sample, parameter or state."""
        terms = self.terms
        weights = {defined for update in self.ours.facts.updates for defined in update.after.values()}
        for at, update in enumerate(self.ours.facts.updates):
            for name, gradient in update.gradients.items():
                bare = [term for term in gradient.value if terms.owners[term] == NOBODY]
                states = [leaf for leaf in terms.found(bare, ("state",)) if terms.kids[leaf][0] not in weights]
                if states or any(not terms.made_with(term, ("parameter", "state", "draw")) for term in bare):
                    return f"a part of the gradient of {name} in window {at + 1} is made of no sample", update.location
        return None

    def width(self, equal: Result) -> Result:
        """No sum over micro-batches is narrower than fp32."""
        name, facts, narrow = "GA-INV-004", self.ours.facts, narrow_sum(self.ours.facts)
        if narrow is not None:
            return self._result(name, *narrow)
        if facts.escaped is not None and equal.outcome is not Outcome.HOLDS:
            reason = "Python reads the numbers of a gradient or a parameter; what it makes of them was not followed"
            return self._result(name, Outcome.UNKNOWN, reason, facts.escaped)
        if len(facts.updates) != self.asked:
            reason = "an optimizer that steps another number of times may sum by itself, which was not followed"
            return self._result(name, Outcome.UNKNOWN, reason, facts.updates[-1].location)
        return self._result(name, Outcome.HOLDS, "no tensor below fp32 joins two micro-batches")

    def clipping(self, equal: Result) -> Result:
        """No norm of a part of a window scales a gradient."""
        name = "GA-INV-005"
        if equal.outcome is Outcome.HOLDS:
            location = self._misscaled() or self._clipped_nothing()
            if location is not None:
                reason = "a gradient was scaled by a norm of something else than the gradients of its window"
                return self._doubt(name, reason, location)
            return self._result(name, Outcome.HOLDS, "each gradient is that of one full batch, clipped once or not")
        for at, update in enumerate(self.ours.facts.updates):
            whole = self.samples[at]
            values = [term for g in update.gradients.values() for term in g.value]
            scalars = {s for term in values for s in self.terms.bare(term)[1]} & self.ours.facts.scaled.keys()
            for norm in sorted(s for s in scalars if self.clips(s) and not self._endless(s)):
                part = self.terms.samples([norm])
                if 1 < len(part) < len(whole) and self.run.micro_batch_size > 1:
                    reason = f"window {at + 1}: a gradient is scaled by a norm of {len(part)} of {len(whole)} samples"
                    location = self.ours.facts.scaled.get(norm) or update.location
                    return self._result(name, Outcome.REFUTED, reason, location, help="clip once, before the step")
        reason = "the gradients were not shown to be the full batch's"
        return self._result(name, Outcome.UNKNOWN, reason, equal.location)

    def _endless(self, scalar: int) -> bool:
        """Whether a factor is made with infinity: a clip at infinity measures, and scales nothing."""
        return any(INFINITE in str(self.terms.attributes[term]) for term in self.terms.reached([scalar]))

    def _misscaled(self) -> Location | None:
        """The step of a gradient that is scaled by a norm of others alone."""
        for update in self.ours.facts.updates:
            for value in (gradient.value for gradient in update.gradients.values() if gradient.value):
                powers = self.terms.common(value)
                own = {scalar: by for scalar, by in powers.items() if self.terms.made_with(scalar, NORMS)}
                if self.terms.scaled_by_others(value, own):
                    return update.location
        return None

    def _clipped_nothing(self) -> Location | None:
        """A line that scaled a gradient by a norm, of which nothing came to a step."""
        updates = [u for side in (self.ours, self.full) for u in side.facts.updates]
        applied = {t for u in updates for g in u.gradients.values() for t in self.terms.common(g.value)}
        for side in (self.ours, self.full):
            for scalar, location in side.facts.scaled.items():
                if scalar not in applied and self.terms.made_with(scalar, NORMS) and not self._endless(scalar):
                    return location
        return None


def _read(how: str) -> str:
    return "a number of a tensor" if how == "_local_scalar_dense" else how if " " in how else f"numbers by {how}"
