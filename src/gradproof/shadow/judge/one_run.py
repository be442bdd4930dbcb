"""What one real run decides: the weight of each sample in each gradient, and how they compare.

The gradient of a window is that of its samples where, for each way that samples take, every sample of the window has
one weight. What the weights have to add up to is read off the loss: its own reduction, and what a mean or a sum of all
samples of the window would be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import DOMAIN, BackwardPass, Update, together
from gradproof.shadow.follow.recorded import Recorded
from gradproof.shadow.follow.samples import AHEAD, MICRO
from gradproof.shadow.follow.terms import HELP, NOBODY, NORMS, SEVERAL, TRAINED, UNIT, Combination, TimeLimit
from gradproof.shadow.judge.by_terms import APART, Ended
from gradproof.shadow.judge.losses import LossPart, TokenJudge, close, near
from gradproof.shadow.judge.scale import Scale, are_means, factors_of, judged, known_numbers, said, unnamed
from gradproof.shadow.judge.statements import CLIP, DATA, EQ, STALE, TOKENS, WIDTH, Judging, Objections, Refutations
from gradproof.shadow.judge.weights import (
    CLAMPS,
    WindowWeights,
    alike,
    assumptions,
    lengths_of,
    other_lengths,
    overlap,
    rationals,
)
from gradproof.shadow.locations import Location
from gradproof.shadow.result import FUNCTION, Result, spans, values_read

CHANCE = "each sample has one weight, by a number of a part of the window, or of another one; they add up by chance"
PADDED = "padding adds nothing: a sample has the same loss at each length to which its batch may be padded"
OWN = "a part of a loss is detached, or a hook or a function of the script's own makes another gradient of it"
REUSED = "rows of samples were in a micro-batch before, and hold the same: each may train on its own"
AGAIN = "a micro-batch has no row of its own: this line trains on one that its window had before"
EVALUATED = ": its forward pass was in evaluation mode, and so were passes that train"
EQUAL = "this micro-batch holds what an earlier one held: each may train on the same samples"
SKIPPED = "this batch of the data loader, between others of its iteration that were trained on, is in no gradient"
AXIS = "along which axis of its data samples lie was not shown: the axis has to be shown, as by a slice of a table"
SHUFFLED = "rows of a micro-batch were moved, or taken one for another, before they were met: samples meet"
PARTLY = "some rows of this batch of the data loader were never used: they are in no gradient"
UNUSED = "rows that this line took out of a table were never used, and rows that it took after them were"
TWICE = "this batch of the data loader has a row that another one of this iteration has"
REDRAWN = "a generator draws the same numbers again for another micro-batch, and the full batch draws others"
REREAD = "rows of this batch of the data loader were in one of another iteration over it, and none had come to its end"
MADE_OF_GRADIENTS = "what was made of gradients after their backward passes"
PAD = "pad all batches to one length, as with pad_to_multiple_of or padding='max_length', or use gradproof check"


class OneRun(Judging):
    """The obligations of a script, by one run of it."""

    undecided = FUNCTION

    def __init__(
        self, engine: Recorded, clips: bool, total: str, recorded: Collection[int], left: Mapping[int, int]
    ) -> None:
        self.engine, self.terms, self.facts, self.number = engine, engine.terms, engine.facts, engine.laws.held
        self.left = set[int]()  # the windows of `left` whose first runs, as many, are in no gradient
        self.clips, self.total = clips, total
        self.windows: list[WindowWeights] = []
        self.skeletons: dict[Any, int] = {}
        self.scales = dict[int, Scale]()
        self.unused = set[int]()
        last: dict[int, int] = {}
        steps = together([step for step in engine.facts.updates if step.window in recorded])
        trained = {sample // MICRO for step in steps for sample in self.terms.summed(step.gradients.values())}
        self.lengths = lengths_of(self.terms, trained)
        for step in steps:
            runs = engine.runs[last.get(step.optimizer, 0) : step.until]
            last[step.optimizer] = step.until
            runs = [run for run in runs if run.window == step.window]  # a loss scaler may leave out a window's step
            runs = runs[self._dropped(step, runs, left.get(step.window, 0)) :]
            if step.gradients:
                self.windows.append(WindowWeights(engine, step, runs, self.skeletons, self.lengths))
        modes = engine.modes  # with a mode of its own, evaluation is no training
        self.evaluated = {n for n in modes if not modes[n]} if all(modes.get(n, True) for n in trained) else set[int]()
        self.ended = next(self._impossible(), None) if self.windows else None
        self.equal = self.sure() if self.windows and self.ended is None else None

    def _dropped(self, step: Update, runs: Sequence[BackwardPass], left: int) -> int:
        """How many of the first runs of a window were zeroed, where the events show that an epoch left them over."""
        gone = self.terms.summed(gain for run in runs[:left] for gain in run.gains.values())
        if not left or runs[left - 1].emptied is None or gone & self.terms.summed(step.gradients.values()):
            return 0
        self.left.add(step.window)
        self.unused |= {sample // MICRO for sample in gone}
        return left

    def results(self) -> list[Result]:
        """A result for each obligation that the values of one run can decide; none where no pass was followed."""
        if not any(window.runs for window in self.windows):
            return []
        ended, equal = self.ended, self.equal
        if ended is not None:
            sure = ended[0] is Outcome.UNKNOWN and any(len(window.runs) > 1 for window in self.windows)
            judged = [self.stale(), self.width(self._narrow()), self.clipping()] if sure else []
            refuted = {one.obligation: one for one in judged if one.outcome is Outcome.REFUTED}
            return [refuted.get(name) or self._result(name, *ended) for name in (DATA, EQ, STALE, WIDTH, CLIP)]
        assert equal is not None
        judges: dict[str, Callable[[], Result | None]] = {
            DATA: lambda: self.data(equal), STALE: self.stale, WIDTH: lambda: self.width(self._narrow()),
            CLIP: self.clipping, TOKENS: lambda: self.tokens(equal),
        }  # fmt: skip
        found: list[Result | None] = [equal]
        for name, judge in judges.items():
            try:
                found.append(judge())
            except TimeLimit as error:
                found.append(Result(name, Outcome.TIMEOUT, str(error), None, HELP, DOMAIN))
        return [one for one in found if one is not None]

    def in_passes(self) -> bool:
        """Whether each backward pass, or each run of `each` of them, is one micro-batch, and all took the same ways."""
        if self.engine.meetings.again or self.equal is None or self.equal.outcome is not Outcome.HOLDS:
            return False
        found = [run for window in self.windows for run in window.runs[:: self.each()]]
        samples = [self.terms.summed(run.gains.values()) for run in found]  # a batch may be split among passes
        return all(len(self._micro_batches(run)) == 1 for run in found) and not overlap(samples)

    def each(self) -> int:
        """How many backward passes each micro-batch has, one after the other, of the same samples; 1 if not as many."""
        made = [[self.terms.summed(run.gains.values()) for run in window.runs] for window in self.windows]
        groups = [list(own) for window in made for _, own in groupby(window)]
        sizes = {len(own) for own in groups}
        return sizes.pop() if len(sizes) == 1 and not overlap([own[0] for own in groups]) else 1

    def _micro_batches(self, run: BackwardPass) -> set[int]:
        return {sample // MICRO for sample in self.terms.summed(run.gains.values())}

    # GA-TOK-001

    def tokens(self, equal: Result) -> Result | None:
        """Each valid token has one weight; None where no loss counts tokens."""
        windows = {w.step.window: w for w in self.windows if w.runs}  # a second step in a window has no loss
        found = {at: window.parts(window.factor) for at, window in windows.items()}
        parts = {at: own and [unnamed(self.terms, part) for part in own] for at, own in found.items()}
        judge = TokenJudge(self.engine.laws, self.number, self._rows, lambda at: self._alone(windows[at], parts[at]))
        return judge.result(parts, equal, self._losses(self.windows[0]))

    def _alone(self, window: WindowWeights, parts: Sequence[LossPart] | None) -> bool:
        """Whether losses alone show what their tokens weigh: they are one loss of one model, and nothing changed it.

        One: its labels are met at one place, and it is made of the same weights, whatever the lengths of batches are.
        """
        if not parts or self.engine.own.at or self.engine.hooked or self.engine.overwritten or not self._simple(window):
            return False
        every = set[Any]()
        for term in {window.skeleton(part.term, window.top(part.term)): part.term for part in parts}.values():
            made, labels = self.terms.reached([term]), self.terms.reached(self.terms.kids[term][1:2])
            weights = frozenset(one for one in made if self.terms.operators[one] in TRAINED)
            places = frozenset(self.terms.attributes[t][:3] for t in labels if self.terms.operators[t] == "data")
            every.add((self.terms.operators[term], weights, places))
        return len(every) == 1

    def _rows(self, terms: Sequence[int]) -> int:
        """The samples of the micro-batches that some terms are made of."""
        micro = {sample // MICRO for sample in self.terms.samples(terms)}
        return sum(self.engine.rows.get(number) or 1 for number in micro)

    def _impossible(self) -> Iterator[Ended]:
        """What keeps every obligation undecided."""
        for location, what in self.facts.lost:
            yield Outcome.OPAQUE, f"a value was lost: {what}", location
        if all(len(window.runs) < 2 for window in self.windows):
            count, line = self.dropped()
            more = f", and {count - 1} of {count} micro-batches of each window are in none" if line else ""
            reason = f"each window has one backward pass: no gradient was accumulated{more}"
            yield Outcome.UNKNOWN, reason, line or self._location()
        several = "several tensors hold one number everywhere: data may hold others in other micro-batches"
        common = "several micro-batches have a tensor in common: its numbers go by place, not by sample"
        strayed = "rows that were read before a micro-batch are those that another one took"
        met = self.engine.meetings
        places = (several, met.by_chance), (common, met.beside), (strayed, met.strayed), (REDRAWN, met.redrawn)
        for reason, line in places:
            if line is not None:
                yield Outcome.UNKNOWN, reason, line
        if len({window.step.optimizer for window in self.windows}) > 1:
            yield Outcome.UNKNOWN, "several optimizers step; their windows were not distinguished", self._location()
        for window in self.windows:
            if not window.samples:
                yield Outcome.VACUOUS, "a gradient is made of no data", window.step.location

    def dropped(self) -> tuple[int, Location | None]:
        """How many micro-batches each window's forward passes took, where only the last is in the gradient; their line.

        Each met the weights at the lines of the last one, and in its mode of training. 1 where it is not so.
        """
        lines, last, counts = dict[int, set[Location]](), -1, set[int]()
        for sample in self.terms.samples(self.engine.joined) & self.engine.used.keys():
            lines.setdefault(sample // MICRO, set()).add(self.engine.used[sample])
        for window in self.windows:
            mine, before = {sample // MICRO for sample in window.samples}, last
            last = max(mine, default=last)
            own, modes = [n for n in lines if before < n <= last and n not in self.evaluated], self.engine.modes
            same = all(lines[at] == lines.get(last) and modes.get(at) == modes.get(last) for at in own)
            alike = len(mine) == len(window.runs) == 1 and same
            counts.add(len(own) if alike else 1)
        count = counts.pop() if len(counts) == 1 and len(self.windows) > 1 else 1
        return count, min(lines[last], key=str) if count > 1 else None

    def _location(self) -> Location:
        return self.windows[0].step.location

    def reach(self, outcome: Outcome) -> str:
        """The windows, whatever the outcome."""
        shown = spans([window.step.window for window in self.windows], self.total)
        read = values_read([str(location) for location, _ in self.facts.reads])
        path = ", on the recorded path" if read or any(window.step.part for window in self.windows) else ""
        return f"all real weights and data at these shapes, {shown}{path}{read}"

    def samples_said(self) -> str:
        """What the samples of a window were taken to be, in words; nothing where none was met."""
        return self.engine.described({sample // MICRO for window in self.windows[:1] for sample in window.samples})

    def assumptions(self) -> list[str]:
        """What the results rest on."""
        facts = self.facts
        return [
            *assumptions(facts.laws.keys() - facts.assumed.keys(), facts.opaque),
            "a sample is a row of what a data loader or a forward pass was given; data hold no weights of samples",
            *filter(None, [self.samples_said()]),
            "plain numbers, as N, or a count that Python computes, are those of the recorded windows",
            "the learning rate that a script gives is that of the full batch: what it is made of is not read",
            *rationals(self.engine.laws.near),
            other_lengths(self.terms, [window.step for window in self.windows]),
            *([PADDED] if self.lengths else []),
        ]

    # GA-EQ-001

    def sure(self) -> Result:
        """The equality of weights, for each axis along which samples may lie where nothing showed theirs."""
        if self.engine.unsure is None:
            return self.equality(self.windows)
        axes = [{self.engine.axes.get(s // MICRO, 0) for s in window.samples} for window in self.windows]
        each = [[window for window, own in zip(self.windows, axes, strict=True) if own == {axis}] for axis in (0, 1)]
        made = [self.equality(windows) for windows in each if windows]
        same = len(made) > 1 and made[0].outcome is made[1].outcome
        return made[0] if same else self._open(EQ, AXIS, self.engine.unsure)

    def equality(self, windows: Sequence[WindowWeights]) -> Result:
        """Every sample of a window has one weight, and the weights are those of the loss."""
        for window in windows:
            unequal = next(self._unequal(window), None) or self._badly_scaled(window)
            if unequal is not None:
                return unequal
        first = windows[0]
        for other in windows:
            names = ", ".join(self.scale(first).unlike(self.scale(other)))
            if not names:
                continue
            both = f"one of the windows {first.shown} and {other.shown}"
            reason = f"{names} scales the loss of {both}, and not of the other, or is another number there"
            return self._open(EQ, reason, self._losses(other))
        words = "; ".join(dict.fromkeys(self.scale(window).words for window in windows))
        return self._result(EQ, Outcome.HOLDS, f"each sample of a window has one weight in each gradient; {words}")

    def _badly_scaled(self, window: WindowWeights) -> Result | None:
        """What speaks against the scale of the losses of a window; None where it is the full batch's."""
        scale, line = self.scale(window), self._losses(window)
        if scale.outcome is Outcome.HOLDS:
            return None
        if scale.outcome is Outcome.UNKNOWN:
            return self._open(EQ, f"each sample of a window has one weight; {scale.words}", line, scale.help)
        if 0 < scale.divisor - len(window.runs) <= self._skipped(window):
            reason = f"{scale.words}: a batch of the data loader was skipped, and whether it counts is not shown"
            return self._open(EQ, reason, line)
        example = {"micro_batches": len(window.runs), "total_weight": str(scale.total)}
        return self._result(EQ, Outcome.REFUTED, scale.words, line, scale.help, counterexample=example)

    def scale(self, window: WindowWeights) -> Scale:
        """What the losses of a window weigh."""
        at = self.windows.index(window)
        if at not in self.scales:
            self.scales[at] = self._scale(window)
        return self.scales[at]

    def _scale(self, window: WindowWeights) -> Scale:
        parts, own = window.parts(window.factor), self.engine.own.at
        if parts is not None and window.others():
            return Scale(Outcome.UNKNOWN, CHANCE, help=self.undecided)
        if own is not None:
            return Scale(Outcome.UNKNOWN, f"what the weights add up to was not shown: {OWN}", help=self.undecided)
        lengths = tuple(len(one.runs) // self.each() for one in (window, *self.windows) if one.runs)
        found, hooked = window.grouped(parts), self.engine.hooked is not None
        return judged(found, window.shown, lengths, self.number, self.terms, hooked)

    def weighs(self, window: WindowWeights) -> list[float]:
        """By what each loss of a window is multiplied in all, besides the mean or the sum that it is."""
        return factors_of(window.grouped(window.parts(window.factor)) or [], self.number)

    def taken(self) -> list[str]:
        """What was taken for N, and for a factor of the loss's own, with lines: the first lines of a result say it."""
        rows = [(why, f"{[*shape]} at {line}") for (why, line), shape in self.engine.taken.items()]
        axis = [self.samples_said()] * self.engine.first_axis
        return [*said([*(t for scale in self.scales.values() for t in scale.taken), *rows]), *filter(None, axis)]

    def _unequal(self, window: WindowWeights) -> Iterator[Result]:
        """Samples whose gradients arrived and are not in the step, or have another weight than others."""
        line, values = window.step.location, window.step.gradients
        for run in window.idle:
            yield self._open(EQ, f"a backward pass of window {window.shown} brought no gradient", run.location)
        for lost in sorted(window.own - window.samples):
            reason = f"the gradient of {self.sample(lost)} arrived, and is not in the step of window {window.shown}"
            yield self._open(EQ, reason, line)
        for parameter in (*window.step.order, *values):
            if not values.get(parameter) and any(parameter in run.gains for run in window.runs):
                reason = f"the gradient of {parameter} arrived, and is not there at the step of window {window.shown}"
                yield self._open(EQ, reason, line)
        for parameter, value in values.items():
            what = f"the gradient of {parameter} in window {window.shown}"
            for coupled in (bare for bare in self.bared(value) if window.top(bare) == SEVERAL):
                yield self._coupled(what, line, coupled)
            apart = any(self.terms.owners[self.terms.bare(term)[0]] == NOBODY for term in value)
            if apart and not self.scale(window).shared:
                yield self._open(EQ, f"a part of {what} is made of no sample: one run does not show its share", line)
            for each in window.weights(value).values():
                if each.keys() != window.samples:
                    some = f"{len(each)} of {len(window.samples)} took one way"
                    yield self._ways(f"{what} is not one function of each sample: {some}", line)
                if not alike(self.terms, list(each.values())):
                    yield self._weighted(what, window, each)

    def _ways(self, reason: str, line: Location) -> Result:
        """Samples took several ways, as where batches are padded to lengths of their own."""
        if not self.lengths:
            return self._open(EQ, reason, line)
        shown = ", ".join(map(str, sorted(set(self.lengths.values()))))
        reason = f"{reason}; batches have other lengths ({shown}), and not all took one way"
        return self._result(EQ, Outcome.UNKNOWN, reason, line, PAD)

    def _coupled(self, what: str, line: Location, term: int) -> Result:
        where = self.facts.coupled
        if where is None:
            moved, own = self.engine.shuffled, f"the samples of {what} were not distinguished in"
            return self._open(EQ, SHUFFLED if moved else f"{own} {self.terms.operators[term]}", moved or line)
        help, reason = APART * ("batch_norm" in where[0]), f"samples of {what} meet in {where[0]}"
        return self._result(EQ, Outcome.OUTSIDE, reason, where[1], help)

    def _weighted(self, what: str, window: WindowWeights, each: Mapping[int, Combination]) -> Result:
        """Samples have other weights: a wrong rule where the numbers differ, or equal by chance."""
        numbers = [number for number in map(self.number, each.values()) if number is not None]
        if len(numbers) < len(each):
            return self._open(EQ, f"{what} weighs samples by numbers that were not read", window.step.location)
        shown = {self.sample(sample): near(number) for sample, number in sorted(zip(each, numbers, strict=True))}
        example = {"weights": shown}
        if all(close(number, numbers[0]) for number in numbers):
            reason = f"{what} weighs its samples equally by the counts of this run, and not for all counts"
            return self._result(EQ, Outcome.UNKNOWN, reason, window.step.location, counterexample=example)
        reason = f"{what} weighs its samples unequally: {', '.join(sorted(set(shown.values()))[:3])}"
        help, outcome = "give every sample, or every token, of a window one weight", Outcome.REFUTED
        changed = any(self.bared(value).keys() - window.arrived for value in window.step.gradients.values())
        if self.lengths or changed or not self._simple(window):
            how = "the lengths of their batches" if self.lengths else "numbers that the step computes"
            reason, outcome = f"{reason}, by {MADE_OF_GRADIENTS if changed else how}", Outcome.UNKNOWN
            help = self.undecided if changed else help
        return self._result(EQ, outcome, reason, self._losses(window), help, counterexample=example)

    def _simple(self, window: WindowWeights) -> bool:
        """Whether all that scales the losses of a window has an origin: no weight that the step computes."""
        parts = window.parts((UNIT, {}))
        found = window.grouped(parts)
        known = bool(found and known_numbers(found, len(window.runs), self.number)) or window.own_means()
        return known or are_means(self.terms, parts or [], len(window.runs), self.number)

    def _losses(self, window: WindowWeights) -> Location:
        """The line of the backward pass, which is where a loss has got its weight."""
        return window.runs[0].location if window.runs else window.step.location

    def sample(self, number: int) -> str:
        """A sample in words."""
        if number >= AHEAD * MICRO:
            return f"row {number // MICRO - AHEAD + 1} that was read before a forward pass"
        return f"micro-batch {number // MICRO + 1}, sample {number % MICRO + 1}"

    def shares(self) -> list[dict[str, Any]]:
        """The weight of each sample in a gradient of its window, beside that in the mean; none where one is unknown."""
        rows = list[dict[str, Any]]()
        for window, total in [(window, self.scale(window).total) for window in self.windows]:
            name, value = next(iter(window.step.gradients.items()), ("", {}))
            own = sorted(next(iter(window.weights(value).values()), {}).items())
            numbers = [number for _, weight in own if (number := self.number(weight)) is not None]
            if total is None or not sum(numbers) or not len(window.samples) == len(numbers) == len(own):
                return []
            right = Fraction(1, len(own))
            if not all(close(number, numbers[0]) for number in numbers):
                total = Fraction(sum(self.weighs(window))).limit_denominator(10**6)
            for by in (total * number / sum(numbers) for number in numbers):
                stated = {"weight": str(by), "expected": str(right), "ok": close(by, right), "parameter": name}
                rows.append({"window": window.step.window, "sample": len(rows), **stated})
        return rows

    def _skipped(self, of: WindowWeights) -> int:
        """How many batches a data loader gave for a window, or beside it, that are in no window."""
        at, used = self.windows.index(of), [{sample // MICRO for sample in window.samples} for window in self.windows]
        resumed, last = of.step.fetches
        first = max((number for own in used[:at] for number in own), default=-1)
        others = self.engine.given.keys() - set().union(*used, *map(self._micro_batches, self.engine.runs))
        return sum(max(first, resumed - 1) < number <= last for number in others)

    # GA-INV-002, GA-INV-004, GA-INV-005, GA-DATA-001

    def stale(self) -> Result:
        """No summand of a gradient was computed before the step of the window before."""
        held = "no gradient has a summand from before its window"
        return self.decided(STALE, self._still_there(), self._left_over(), held)

    @cached_property
    def older(self) -> list[tuple[WindowWeights, str, bool, bool]]:
        """Of each gradient two answers: has it a summand of the window before, made of weights of then; or either."""
        terms, found = self.terms, list[tuple[WindowWeights, str, bool, bool]]()
        old, last = set[int](), dict[int, WindowWeights]()
        for now in self.windows:
            before, last[now.step.optimizer] = last.get(now.step.optimizer, now), now
            if before is now:
                continue
            old |= before.step.leaves
            known = dict[int, bool]()  # which terms are made of these
            for parameter, gradient in now.step.gradients.items():
                earlier = before.step.gradients.get(parameter)
                mine = {terms.bare(term)[0] for term in gradient}
                kept = () if earlier is None else (earlier, now.step.begun_with.get(parameter, {}))
                again = mine & {terms.bare(term)[0] for value in kept for term in value}
                still = any(terms.made_of(term, old, known) for term in again)
                either = bool(again) or any(terms.made_of(term, old, known) for term in mine)
                found.append((now, parameter, still, either))
        return found

    def _still_there(self) -> Refutations:
        for now, parameter, still, _ in self.older:
            if still:
                reason = f"the gradient of {parameter} still has that of the window before"
                yield self._result(STALE, Outcome.REFUTED, reason, now.step.location)

    def _left_over(self) -> Objections:
        if len(self.windows) < 2 and not any(self.engine.later) and not self.windows[0].step.window:
            yield "there is one window; nothing could be left over", self._location()
        for now, parameter, _, either in self.older:
            if either:
                what = f"the gradient of {parameter} is made of something that the window before was made of"
                yield what, now.step.location
        owned = {name for window in self.windows for name in window.step.order}
        for window in self.windows:
            for name in window.step.begun_with:
                whose = "" if name in owned else ", which no optimizer has,"
                yield f"{name}{whose} had a gradient when window {window.shown} began", window.step.location
        for steps, name in self.engine.later.items():
            step = self.facts.updates[max(steps - 1, 0)]
            if name:
                yield f"{name} had a gradient after window {step.window + 1}", step.location
        yield from self._rootless()

    def _rootless(self) -> Objections:
        """Parts of gradients that came by no backward pass of their window."""
        for window in self.windows:
            for parameter, gradient in window.step.gradients.items():
                made = {self.terms.bare(term)[0] for term in gradient}
                whole = {term for term in made if self.terms.owners[term] != NOBODY and window.of(term) == NOBODY}
                if made - whole - window.arrived:
                    what = f"a part of the gradient of {parameter} in window {window.shown}"
                    yield f"{what} came by no backward pass of it", window.step.location

    def _narrow(self) -> Objections:
        """What speaks against having seen every sum over micro-batches."""
        yield from self._rootless()
        runs = map(self._micro_batches, self.engine.runs)
        if self.facts.below is not None and (self.engine.by_pass or overlap([*runs])):
            reason = "the run does not show which samples are a micro-batch, and a tensor below fp32 is made of them"
            yield reason, self.facts.below

    def clipping(self) -> Result:
        """No function but a linear one met the gradient of a part of a window."""
        held = "each gradient is a sum that was scaled, or clipped, as a whole"
        return self.decided(CLIP, self._clipped_early(), self._bent(), held)

    def _clipped_early(self) -> Refutations:
        for window in (window for window in self.windows if window.samples == window.own):
            for parameter, gradient in window.step.gradients.items():
                for part in self._partial(window, gradient):
                    reason = f"the gradient of {parameter} in window {window.shown}"
                    reason = f"{reason} was clipped before it was that of the whole window"
                    line = self.engine.laws.locations.get(part, window.step.location)
                    yield self._result(CLIP, Outcome.REFUTED, reason, line)

    def _bent(self) -> Objections:
        """What speaks against gradients that are sums, scaled or clipped as a whole."""
        yield from self._rootless()
        for window in self.windows:
            line = window.step.location
            summands = [(name, self.bared(held)) for name, held in window.step.gradients.items()]
            for parameter, bare in ((name, one) for name, bared in summands for one in bared):
                what, unit = f"the gradient of {parameter} in window {window.shown}", window.top(bare)
                if unit == SEVERAL:
                    yield f"{what} is no sum of the gradients of its samples", line
                if unit >= 0 and bare not in window.arrived:
                    yield f"{what} was changed between its backward passes and the step", line
                if unit >= 0 and self.engine.hooked and not self.terms.marked[bare]:
                    yield "a hook of the user's ran in a backward pass", self.engine.hooked
            for why in self._clips(window):
                yield f"{why} window {window.shown}", line

    def _clips(self, window: WindowWeights) -> Iterator[str]:
        """A clip whose norm is that of something else than the gradients that it scales, or that scales nothing."""
        factor = window.factor
        known = self.scale(window).known
        looked = self.terms.reached(self.engine.looked) & window.arrived  # Python may have scaled by what it read
        if factor is None or window.kept(factor[1]) or ((looked or window.step.part) and not known):
            yield "a number that was not followed scaled the gradients of"
        values = [value for value in window.step.gradients.values() if value]
        own = [{s: by for s, by in self.terms.common(value).items() if window.clips(s)} for value in values]
        clamped = all(any(self.terms.made_with(term, CLAMPS) for term in value) for value in values)
        if not any(own) and self.clips and not clamped:
            yield "a clip was called, and did nothing to"
        if any(own) and not known:
            yield "a clip at another scale than that of the loss scaled"
        if any(len(by) > 1 or self.terms.scaled_by_others(each, by) for each, by in zip(values, own, strict=True)):
            yield "a norm of something else than its gradients scaled"

    def _partial(self, window: WindowWeights, value: Combination) -> Iterator[int]:
        """The factors with a norm, and the clamps, of a part of the window's gradient."""
        for bare, powers in map(self.terms.bare, value):
            own = window.kept(powers).keys() - window.losses
            norms = [scalar for scalar in own if self.terms.made_with(scalar, NORMS) and not self.endless(scalar)]
            clamps = [bare] if self.terms.operators[bare] in CLAMPS and bare not in window.arrived else []
            for one in (*norms, *clamps):
                part = self.terms.samples([one])
                if part < window.own and (part or one == bare):
                    yield one

    def data(self, equal: Result) -> Result:
        """Every sample that a followed forward pass took is in the gradient of one window."""
        count = len(set[int]().union(*(window.samples for window in self.windows)))
        left = f"; what an epoch left over was dropped: {len(self.unused)} micro-batches" if self.unused else ""
        held = f"{count} samples, each in the gradients of one window{left}"
        return self.decided(DATA, iter(()), self._other_samples(equal), held)

    def _other_samples(self, equal: Result) -> Objections:
        """What speaks against samples that are each in one window, once."""
        if equal.outcome is not Outcome.HOLDS:
            yield "the weights of the samples were not shown to be equal", equal.location
        meetings, windows = self.engine.meetings, self.windows
        yield from ((REUSED + self._mode(both), at) for at, both in meetings.reused if not both & self.evaluated)
        yield from ((AGAIN, at) for at in [meetings.repeated] if at is not None)
        seen, own = set[int](), {sample // MICRO for window in windows for sample in window.samples}
        for number, (first, at, twice) in meetings.repeats.items():
            yield from ((TWICE if twice else REREAD, at) for both in [{number, first}] if both <= own)
        yield from ((PARTLY, self.engine.given[number][1]) for number in sorted(own) if self.engine.partly(number))
        yield from self._equal()
        yield from self._passed_over()
        yield from ((UNUSED, line) for line in self.engine.unused())
        for window in windows:
            yield from ((AGAIN, location) for location in window.again())
            if seen & window.samples:
                yield f"window {window.shown} has samples of an earlier window in its gradients", window.step.location
            seen |= window.samples
        last, trained = max(seen) // MICRO, self.terms.samples(self.engine.joined)
        for sample, location in self.engine.used.items():
            number = sample // MICRO
            if sample in trained - seen and number <= last and number not in self.unused | self.evaluated:
                yield f"{self.sample(sample)} is in no gradient{self._mode({number})}", location

    def _equal(self) -> Objections:
        """Micro-batches that hold the same; in one window alone where a data loader, or a table, may begin anew."""
        engine, first = self.engine, dict[Any, int]()
        for window in self.windows:
            for number in sorted({sample // MICRO for sample in window.samples} & engine.meetings.holds.keys()):
                held = engine.meetings.holds[number]
                anew = number in engine.given or number in engine.meetings.placed
                if first.setdefault((frozenset(held), anew and window.shown), number) != number:
                    yield EQUAL, next(iter(held.values()))

    def _passed_over(self) -> Objections:
        """Batches of an iteration over a data loader that no pass took, between others that were trained on."""
        given, used = self.engine.given, dict[Any, set[int]]()
        for window in self.windows:
            for number in {sample // MICRO for sample in window.samples} & given.keys():
                used.setdefault((window.step.part, id(given[number][0])), set()).add(number)
        taken = set[int]().union(*map(self._micro_batches, self.engine.runs))
        for (_, of), own in used.items():
            left = [n for n in given if min(own) < n < max(own) and n not in taken and id(given[n][0]) == of]
            yield from ((SKIPPED, given[number][1]) for number in left)

    def _mode(self, batches: Collection[int]) -> str:
        """Whether one of some micro-batches went through the model in evaluation mode alone, in words."""
        return EVALUATED * any(not self.engine.modes.get(number, True) for number in batches)
