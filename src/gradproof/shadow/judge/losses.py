"""What the losses of windows are made of, and divided by: counts of their own labels, of others, or numbers.

GA-TOK-001 is what each valid token of a window weighs in its loss, as a formula in the counts c1, c2, ... . A loss of
labels is a sum over the labels that are not the ignored one. What it is multiplied by is what each of these tokens
weighs. The right weight is one and the same for all tokens of the window: 1/(c1 + ... + cN) in a mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.interpreter import Interpreter
from gradproof.shadow.follow.rules.losses import LIKELIHOODS
from gradproof.shadow.follow.terms import (
    COUNTED,
    NOBODY,
    ROUNDED,
    UNIT,
    Combination,
    Powers,
    Terms,
    added,
    multiplied,
    times,
)
from gradproof.shadow.judge.statements import HELP, TOKENS
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import Result

if TYPE_CHECKING:
    from gradproof.shadow.judge.followed import Followed


RIGHT = "1/(c1 + ... + cN)"
MEANS = "the mean of means"
CLOSE = 1e-6
Quantity = TypeVar("Quantity", Fraction, float)
COUNTS = (*COUNTED, "index")
BOUNDS = ("clamp", "clamp_min", "cast")
CLOSEST = Fraction(1, 1000)
DIVIDED = "the losses of the windows are divided by different numbers, which are no counts of what they sum"
PLAIN = (
    "counts became plain numbers, and were not shown to be those of the window that they divide; keep them in tensors, "
    "or in Python's own arithmetic"
)
ADDED = (
    "one", "combination", "scaled", "sum", "cast", "clamp", "clamp_min", "cat", "reshape", "slice", "expand", "filled",
)  # fmt: skip
"""Counts of labels, truth values and weights of classes, and what adds them up."""


@dataclass(frozen=True, slots=True)
class LossPart:
    """A term of a loss that a backward pass began at: what each of its elements weighs, and how many there are.

    `total`: the elements of all terms of its sum, or mean.

    `micro`: the pass in its window, counted from 1. `kind`: whether the term is a sum of its elements, or a mean.
    """

    term: int
    micro: int
    by: Fraction
    powers: Powers
    count: Combination
    total: Combination
    kind: str

    def mass(self, terms: Terms) -> Combination:
        """What all of its elements weigh."""
        return terms.rescaled(times(self.count, self.by), self.powers)


def loss_parts(
    laws: Interpreter, passes: Iterable[Iterable[Combination]], factor: tuple[Fraction, Powers]
) -> list[LossPart] | None:
    """The parts of what backward passes began at; None where something is no loss. `factor`: scales all of them.

    A number is a part of a loss that has no gradient.
    """
    found = list[LossPart]()
    for micro, roots in enumerate(passes, 1):
        for term, by in (pair for root in roots for pair in root.items()):
            bare, powers = laws.terms.bare(term)
            if bare == laws.terms.one and not any(laws.terms.trained[scalar] for scalar in powers):
                continue
            if bare not in laws.reduced:
                return None
            powers = multiplied(powers, factor[1])
            found.append(LossPart(bare, micro, by * factor[0], powers, *laws.reduced[bare]))
    return found


def losses_of(run: Followed) -> dict[int, list[LossPart] | None]:
    """The parts of the losses of each window, before a loss scaler multiplied them."""
    found: dict[int, list[LossPart] | None] = {}
    for window, roots in run.facts.roots.items():
        factor = run.facts.unscaled.get(window, (UNIT, {}))
        found[window] = loss_parts(run.engine.laws, ([root] for root in roots), factor)
    return found


def counted(terms: Terms, scalar: int, counts: Collection[str] = COUNTS, through: Collection[str] = ADDED) -> bool:
    """Whether a scalar is a sum of counts, and nothing of the model. `through`: what may be done to counts."""
    followed = [name for name in through if name not in counts]
    every = terms.walked([scalar], lambda term: terms.kids[term] if terms.operators[term] in followed else ())
    made = {terms.operators[term] for term in every}
    return made <= {*counts, *through} and not made.isdisjoint(counts) and not terms.trained[scalar]


def counts_in(terms: Terms, scalar: int) -> Combination:
    """The counts of which a scalar is the sum, or the larger of it and a bound."""
    return terms.parts_of(terms.inner(scalar, *BOUNDS))


def shared(terms: Terms, count: Combination, scalar: int) -> Fraction | None:
    """By what number a sum of counts is the one that a scalar stands for; None where it is another one."""
    own = counts_in(terms, scalar)
    by = count.get(next(iter(own), terms.one), Fraction(0)) / next(iter(own.values()), UNIT)
    return by if by and count == times(own, by) else None


class LossTotals:
    """What the labels, or elements, of each window weigh in all, by the full batch's run.

    One rule: what divides a window is made of the window's own samples. Then each window weighs one number, as in a
    mean, or it is a sum times one number. Both runs may break it alike, so that they are equal. `raw`: the weights as
    they are made; `plain`: those where the count of what a loss sums is cancelled.
    """

    def __init__(self, ours: Followed, full: Followed) -> None:
        self.ours, self.full, self.laws, self.terms = ours, full, full.engine.laws, full.engine.terms
        self.losses = losses_of(full)
        known = None not in self.losses.values()
        self.raw = [total for window in self.losses if known and (total := self._total(window))]
        self.plain = [self._plainly(total) for total in self.raw]

    def _total(self, window: int) -> Combination:
        parts = self.losses[window] or ()
        masses = [part.mass(self.terms) for part in parts if self.terms.owners[part.term] != NOBODY]
        return self.terms.rescaled(added(masses), self.afterwards(window))

    def afterwards(self, window: int) -> Powers:
        """The counts by which every gradient of a window is divided, and its losses are not."""
        updates = self.full.facts.updates[window : window + 1]
        values = [value for update in updates for value in update.gradients.values() if value]
        losses = self.full.facts.roots.get(window, [])
        after, before = (self.terms.common({term: UNIT for one in of for term in one}) for of in (values, losses))
        own = multiplied(after, before, -1).items()
        return {scalar: by for scalar, by in own if by == -1 and scalar in after and counted(self.terms, scalar)}

    def after(self, window: int) -> float:
        """By what number a window's gradients are multiplied, and its losses are not; up to one for all windows."""
        known, updates = self.laws.numbers, self.full.facts.updates[window : window + 1]
        gradients = [held for update in updates for held in update.gradients.values()]
        most = max((abs(by) for held in gradients for by in held.values()), default=UNIT)
        least = max((abs(part.by) for part in self.losses.get(window) or ()), default=UNIT)
        return float(most / least) / math.prod(known.get(scalar, 1.0) for scalar in self.afterwards(window))

    def _plainly(self, total: Combination) -> Combination:
        """A sum of counts that is divided by their own sum, or by the larger of it and a bound, is a number."""
        powers = self.terms.common(total)
        if [*powers.values()] != [-1]:
            return total
        by = shared(self.terms, self.terms.rescaled(total, multiplied({}, powers, -1)), *powers)
        return total if by is None else times(self.terms.of(self.terms.one), by)

    def _by_counts(self, total: Combination) -> bool:
        """Whether a total is divided by counts of labels."""
        divisors = {s for term in total for s, by in self.terms.bare(term)[1].items() if by < 0}
        return any("count" in {self.terms.operators[t] for t in counts_in(self.terms, s)} for s in divisors)

    def by_others(self) -> int | None:
        """The first window that is divided by a count of other samples than its own; one before has its own count.

        A count of all samples of the run, or of any that are no window, is a number that each window may be divided by.
        """
        own, terms = False, self.terms
        for at, update in enumerate(self.ours.facts.updates):
            powers = [terms.common(value) for value in update.gradients.values() if value]
            every = {frozenset(s for s, by in one.items() if by == -1 and counted(terms, s)) for one in powers}
            counts = every.pop() if len(every) == 1 else ()
            if len(counts) != 1:
                return None
            if terms.samples(counts) == terms.summed(update.gradients.values()):
                own = True
            elif own:
                return at
        return None

    def left_out(self) -> int | None:
        """The first window that is divided by the count of all its labels, where its loss sums a slice of them.

        In numbers, the tokens of two windows have to weigh otherwise: it may be that only ignored labels are left out.
        """
        terms, weights = self.terms, dict[int, Fraction]()
        for window, total in enumerate(self.raw):
            divisors = [scalar for scalar, by in terms.common(total).items() if by == -1]
            weight = self.laws.held(total)
            if len(divisors) != 1 or weight is None:
                return None
            counts, every = terms.rescaled(total, {divisors[0]: 1}), counts_in(terms, divisors[0])
            if not all(terms.operators[t] == "count" for t in (*counts, *every)) or counts.keys() & every.keys():
                return None
            labels = {(terms.attributes[t], terms.inner(terms.kids[t][0], "slice")) for t in counts}
            if labels != {(terms.attributes[t], terms.kids[t][0]) for t in every}:
                return None
            weights |= {window: weight} if weight else {}
        most = max(weights.values(), default=0)
        return next((at for at, weight in weights.items() if weight < most * (1 - CLOSEST)), None)

    def stand(self) -> bool:
        """Whether the loss of each window is a mean, or a sum times one number for all windows, as far as is known."""
        factors = {frozenset(part.by for part in parts or ()) for parts in self.losses.values()}
        alike = all(total == self.plain[0] for total in self.plain)
        return alike or (len(factors) < 2 and not any(map(self._by_counts, self.plain)))

    def doubt(self, plain: bool) -> str:
        """Why what divides the windows may not be theirs, if it may. `plain`: Python made plain numbers of counts."""
        stand = self.stand()
        return "" if (self.counts_stand() if plain else stand) else PLAIN if stand else DIVIDED

    def counts_stand(self) -> bool:
        """Whether counts that are plain numbers are of their own window: each weighs its tokens alike in all.

        Losses that are means by unknown counts show it. Else the numbers of this run do, where the counts of its
        micro-batches differ: of equal ones a mean of means would look the same.
        """
        found = [self.laws.held(total) for total in self.plain]
        if not found or any(one is None or abs(one - (found[0] or 0)) > ROUNDED * abs(one) for one in found):
            return self._by_gradients()
        if all(map(self._by_counts, self.raw)) and all(map(self.laws.constant, self.plain)):
            return True
        labels = self._labels()
        self.ours.facts.numbered = len(labels) > 1 and None not in labels
        return self.ours.facts.numbered

    def _by_gradients(self) -> bool:
        """Whether gradients of windows of unlike counts weigh each window alike: what divides them is its own count."""
        terms, facts, losses = self.terms, self.ours.facts, losses_of(self.ours)
        forms, most = set[frozenset[Any]](), list[Fraction]()
        for update in facts.updates:
            pairs = [(abs(by), terms.bare(one)[1]) for held in update.gradients.values() for one, by in held.items()]
            most.append(max((by for by, _ in pairs), default=UNIT))
            bare = ((by, [(s, to) for s, to in own.items() if not terms.samples([s])]) for by, own in pairs)
            forms.add(frozenset((by / most[-1], *sorted(own)) for by, own in bare))
        counts = [self.laws.held(added(part.count for part in parts or ())) for parts in losses.values()]
        whole = len(forms) == 1 and len(counts) == len(most) and None not in (*counts, *losses.values())
        each = {by * (count or 0) for by, count in zip(most, counts, strict=False)}
        facts.numbered |= whole and len({*counts}) > 1 and len(each) == 1
        return facts.numbered

    def _labels(self) -> set[Fraction | None]:
        """How many labels, or elements, the loss of each micro-batch sums."""
        laws, found = self.ours.engine.laws, dict[tuple[int, int], list[Combination]]()
        for window, parts in losses_of(self.ours).items():
            for part in (part for part in parts or () if self.terms.owners[part.term] != NOBODY):
                found.setdefault((window, part.micro), []).append(part.count)
        return {laws.held(added(counts)) for counts in found.values()}


@dataclass(frozen=True, slots=True)
class TokenJudge:
    """Judges windows. `number` gives a combination with the numbers of this run, `rows` the samples of a loss term.

    `alone`: whether the losses of a window show what tokens weigh, where their gradients do not.
    """

    laws: Interpreter
    number: Callable[[Combination], Fraction | None]
    rows: Callable[[Sequence[int]], int]
    alone: Callable[[int], bool] = lambda _: False

    def result(self, windows: Mapping[int, Sequence[LossPart] | None], equal: Result, line: Location) -> Result | None:
        """The result of the windows, by their losses; None where no loss counts tokens. `equal`: that of gradients."""
        if not any(self._counts(parts or ()) for parts in windows.values()):
            return None
        said = [self._judged(at + 1, parts or (), equal, line) for at, parts in windows.items()]
        first = next((one for one in said if one.outcome is not Outcome.HOLDS), said[0])
        if first.outcome is Outcome.HOLDS:
            words = "; or ".join(dict.fromkeys(one.reason for one in said))
            first.reason = f"each valid token of a window weighs {words}"
        return first

    def _labels(self, parts: Sequence[LossPart]) -> bool:
        """Whether losses are known, and all of their parts are losses of labels."""
        return bool(parts) and all(self.laws.terms.operators[part.term] in LIKELIHOODS for part in parts)

    def _counts(self, parts: Sequence[LossPart]) -> bool:
        """Whether labels are more than samples, or ignored ones are among them."""
        total, one = added(part.count for part in parts), self.laws.terms.one
        some = not total.keys() <= {one} or total.get(one, 0) > self.rows([part.term for part in parts])
        return self._labels(parts) and some

    def _judged(self, window: int, parts: Sequence[LossPart], equal: Result, line: Location) -> Result:
        if not self._labels(parts):
            reason = f"the loss of window {window} has parts that are no loss of labels"
            return Result(TOKENS, Outcome.UNKNOWN, reason, line, domain=equal.domain)
        first = parts[0]
        if not all(part.powers == first.powers and close(part.by, first.by) for part in parts):
            return self._unequal(window, parts, equal, line)
        weight = self._one(first, added(part.count for part in parts))
        if equal.outcome is Outcome.HOLDS:
            return Result(TOKENS, Outcome.HOLDS, weight, None, "", equal.domain, equal.reach)
        reason = (
            f"in the loss each valid token of window {window} weighs {weight}; its weight in the gradient was not shown"
        )
        return Result(TOKENS, Outcome.UNKNOWN, reason, equal.location, domain=equal.domain)

    def _unequal(self, window: int, parts: Sequence[LossPart], equal: Result, line: Location) -> Result:
        counts = {part.micro: added(one.count for one in parts if one.micro == part.micro) for part in parts}
        shown = {f"micro-batch {p.micro}": self._formula(p, counts[p.micro], f"c{p.micro}") for p in parts}
        rules = {self._formula(part, counts[part.micro], "c_k") for part in parts}
        left = [found[1] for part in parts if (found := self._divides(part, counts[part.micro])) is not None]
        means = len(rules) == 1 and "c_k" in min(rules) and all(powers == left[0] for powers in left)
        wrong = f"{min(rules)}: {MEANS}" if means else ", ".join(dict.fromkeys(shown.values()))
        reason = f"a valid token of window {window} weighs {wrong}; the right weight is {RIGHT}"
        numbers = [self._number(part) for part in parts]
        apart = None not in numbers and any(not close(one, numbers[0]) for one in numbers if one and numbers[0])
        formal = means and None in numbers and len(counts) > 1
        if not (apart or formal):
            reason += "; the counts of this run do not tell them apart"
        held = {f"c{micro}": self.number(count) for micro, count in counts.items()}
        shown_counts = {name: str(number) for name, number in held.items() if number is not None}
        example: dict[str, Any] = {"weights": shown, "right": RIGHT, "counts": shown_counts}
        by_losses = means and equal.outcome is Outcome.UNKNOWN and self.alone(window - 1)
        refuted = (apart or formal) and (equal.outcome is Outcome.REFUTED or by_losses)
        outcome = Outcome.REFUTED if refuted else Outcome.UNKNOWN
        return Result(TOKENS, outcome, reason, line, HELP[TOKENS], equal.domain, equal.reach, {}, example)

    def _number(self, part: LossPart) -> Fraction | None:
        terms = self.laws.terms
        return self.number(times(terms.of(terms.scaled(terms.one, part.powers)), part.by))

    def _divides(self, part: LossPart, count: Combination) -> tuple[Fraction, Powers, bool] | None:
        """What a weight is, times a count: exactly, where the count is among its powers, or in numbers."""
        terms = self.laws.terms
        for scalar, power in part.powers.items():
            by = shared(terms, count, scalar) if power == -1 and scalar == terms.inner(scalar, *BOUNDS) else None
            if by is not None:
                return part.by * by, multiplied(part.powers, {scalar: 1}), True
        if count.keys() <= {terms.one} and not terms.found(part.powers, ("count",)):
            return part.by * count.get(terms.one, Fraction(0)), part.powers, True
        number, held = self._number(part), self.number(count)
        return (number * held, {}, False) if number is not None and held is not None else None

    def _one(self, part: LossPart, count: Combination) -> str:
        """The one weight of all tokens."""
        found = self._divides(part, count)
        if found is not None and close(found[0], UNIT) and not found[1]:
            return f"{RIGHT}, for all counts" if found[2] else f"{RIGHT}, with the counts of this run"
        if not part.powers and close(part.by, UNIT):
            return "1: the loss is a sum"
        number = self._number(part)
        return "the same" + (f", {near(number)}" if number is not None else "")

    def _formula(self, part: LossPart, count: Combination, name: str) -> str:
        """The weight of a token by the count of its micro-batch, which has a name; else a number."""
        found = self._divides(part, count)
        if found is None:
            number = self._number(part)
            return "a weight that was not read" if number is None else near(number)
        rest = " times another count" * bool(found[1])
        by = found[0].limit_denominator(10**4)
        whole = by.numerator == 1 and close(by, found[0])
        if whole:
            return f"1/{name}{rest}" if by == 1 else f"1/({by.denominator} {name}){rest}"
        return f"{near(found[0])}/{name}{rest}"


def of_two_runs(ours: Followed, equal: Result) -> Result | None:
    """The result for a function that was called by micro-batches and by the full batch, by its losses in the first."""
    facts, laws = ours.facts, ours.engine.laws
    windows = {at: parts for at, parts in losses_of(ours).items() if at < len(facts.updates)}
    judge = TokenJudge(laws, laws.held, lambda terms: len(laws.terms.samples(terms)))
    return judge.result(windows, equal, facts.line or NOWHERE) if windows else None


def near(number: Fraction) -> str:
    """A rational in a few characters."""
    found = number.limit_denominator(10**6)
    return str(found) if close(found, number) else f"{float(number):.6g}"


def close(one: Quantity, other: Quantity) -> bool:
    """Whether two numbers are equal but for the rounding of numbers that Python computed."""
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))
