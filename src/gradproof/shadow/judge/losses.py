"""What the losses of windows are made of, and divided by: counts of their own labels, of others, or numbers.

GA-TOK-001 is what each valid token of a window weighs in its loss, as a formula in the counts c1, c2, ... . A loss of
labels is a sum over the labels that are not the ignored one. What it is multiplied by is what each of these tokens
weighs. The right weight is one and the same for all tokens of the window: 1/(c1 + ... + cN) in a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import Update
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
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import Result

if TYPE_CHECKING:
    from gradproof.shadow.judge.followed import Followed


TOKENS = "GA-TOK-001"
RIGHT = "1/(c1 + ... + cN)"
MEANS = "the mean of means"
HELP = "divide the sum of the losses by the number of valid tokens of the whole window"
CLOSE = 1e-6
Quantity = TypeVar("Quantity", Fraction, float)
COUNTS = (*COUNTED, "index")
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


def divided_by_others(terms: Terms, updates: Sequence[Update]) -> int | None:
    """The first step whose gradients are divided by a count of other samples than theirs; one before has its own count.

    A count of all samples of the run, or of any that are no window, is a number that each window may be divided by.
    """
    own = False
    for at, update in enumerate(updates):
        powers = [terms.common(value) for value in update.gradients.values() if value]
        every = {frozenset(s for s, by in own.items() if by == -1 and counted(terms, s)) for own in powers}
        counts = every.pop() if len(every) == 1 else ()
        if len(counts) != 1:
            return None
        if terms.samples(counts) == terms.summed(update.gradients.values()):
            own = True
        elif own:
            return at
    return None


def counted(terms: Terms, scalar: int, counts: Collection[str] = COUNTS, through: Collection[str] = ADDED) -> bool:
    """Whether a scalar is a sum of counts, and nothing of the model. `through`: what may be done to counts."""
    followed = [name for name in through if name not in counts]
    every = terms.walked([scalar], lambda term: terms.kids[term] if terms.operators[term] in followed else ())
    made = {terms.operators[term] for term in every}
    return made <= {*counts, *through} and not made.isdisjoint(counts) and not terms.trained[scalar]


class LossTotals:
    """The weights of the windows' losses, by the full batch's run."""

    def __init__(self, terms: Terms, ours: Followed, full: Followed) -> None:
        self.terms, self.ours, self.full, self.losses = terms, ours, full, losses_of(full)

    def counts_stand(self) -> bool:
        """Whether counts that are plain numbers are of their own window: each weighs its tokens alike in all.

        The counts of this run have to differ, or a mean of means would look the same. Where counts are unknowns, the
        losses have to be means by them.
        """
        laws, raw, seen = self.full.engine.laws, self.totals(), self.ours.engine.laws.seen_counts
        totals = [self._plainly(total) for total in raw]
        known = len(seen) > 1 if laws.integers else all(self._counted(total) for total in raw)
        if not totals or not known or not all(map(laws.constant, totals)):
            return False
        found = [total.get(self.terms.one, Fraction(0)) for total in totals]
        return all(abs(total - found[0]) <= ROUNDED * abs(found[0]) for total in found)

    def totals(self) -> list[Combination]:
        """What the tokens, or elements, of each window weigh in its loss; nothing where that is not known."""
        found = []
        for window, parts in self.losses.items() if None not in self.losses.values() else ():
            masses = [part.mass(self.terms) for part in parts or () if self.terms.owners[part.term] != NOBODY]
            found += [self.terms.rescaled(added(masses), self.afterwards(window))] if masses else []
        return found

    def afterwards(self, window: int) -> Powers:
        """The counts by which every gradient of a window is divided, and its losses are not."""
        updates = self.full.facts.updates[window : window + 1]
        values = [value for update in updates for value in update.gradients.values() if value]
        losses = self.full.facts.roots.get(window, [])
        after, before = (self.terms.common({term: UNIT for one in of for term in one}) for of in (values, losses))
        own = multiplied(after, before, -1).items()
        return {scalar: by for scalar, by in own if by == -1 and scalar in after and counted(self.terms, scalar)}

    def stand(self) -> bool:
        """Whether the loss of each window is a mean, or a sum times one number for all windows, as far as is known."""
        found = [self._plainly(total) for total in self.totals()]
        factors = {frozenset(part.by for part in parts or ()) for parts in self.losses.values()}
        divided = any(self._counted(total) for total in found)
        return len({frozenset(one.items()) for one in found}) < 2 or (not divided and len(factors) < 2)

    def left_out(self) -> int | None:
        """The first window that is divided by the count of all its labels, where its loss sums a slice of them.

        In numbers, the tokens of two windows have to weigh otherwise: it may be that only ignored labels are left out.
        """
        terms, numbers, weights = self.terms, self.full.engine.laws.numbers, dict[int, float]()
        for window, total in enumerate(self.totals()):
            divisors = [scalar for scalar, by in terms.common(total).items() if by == -1]
            if len(divisors) != 1 or divisors[0] not in numbers:
                return None
            counts, every = terms.rescaled(total, {divisors[0]: 1}), self._counts_in(divisors[0])
            if not counts.keys() <= numbers.keys() or not all(terms.operators[t] == "count" for t in (*counts, *every)):
                return None
            labels = {(terms.attributes[t], terms.inner(terms.kids[t][0], "slice")) for t in counts}
            if counts.keys() & every.keys() or labels != {(terms.attributes[t], terms.kids[t][0]) for t in every}:
                return None
            summed = sum(numbers[t] * float(by) for t, by in counts.items())
            weights |= {window: summed / numbers[divisors[0]]} if summed else {}
        most = max(weights.values(), default=0)
        return next((at for at, weight in weights.items() if weight < 0.999 * most), None)

    def _plainly(self, total: Combination) -> Combination:
        """A sum of counts that is divided by their own sum, or by the larger of it and a bound, is a number."""
        powers = self.terms.common(total)
        ((scalar, power),) = powers.items() if len(powers) == 1 else ((self.terms.one, 0),)
        if power != -1:
            return total
        rest, own = self.terms.rescaled(total, {scalar: 1}), self._counts_in(scalar)
        first = next(iter(own))
        by = rest.get(first, Fraction(0)) / own[first]
        return times(self.terms.of(self.terms.one), by) if by and rest == times(own, by) else total

    def _counts_in(self, scalar: int) -> Combination:
        return self.terms.parts_of(self.terms.inner(scalar, "clamp", "clamp_min", "cast"))

    def _counted(self, total: Combination) -> bool:
        """Whether a total is divided by counts of labels."""
        divisors = {s for term in total for s, by in self.terms.bare(term)[1].items() if by < 0}
        return any("count" in {self.terms.operators[t] for t in self._counts_in(s)} for s in divisors)


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
        return Result(TOKENS, outcome, reason, line, HELP, equal.domain, equal.reach, {}, example)

    def _number(self, part: LossPart) -> Fraction | None:
        terms = self.laws.terms
        return self.number(times(terms.of(terms.scaled(terms.one, part.powers)), part.by))

    def _divides(self, part: LossPart, count: Combination) -> tuple[Fraction, Powers, bool] | None:
        """What a weight is, times a count: exactly, where the count is among its powers, or in numbers."""
        terms = self.laws.terms
        for scalar, power in part.powers.items():
            own = terms.parts_of(scalar)
            if power == -1 and own and own.keys() == count.keys():
                by = count[next(iter(own))] / own[next(iter(own))]
                if count == times(own, by):
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

    def number(value: Combination) -> Fraction | None:
        return value.get(laws.terms.one, Fraction(0)) if laws.constant(value) else None

    judge = TokenJudge(laws, number, lambda terms: len(laws.terms.samples(terms)))
    return judge.result(windows, equal, facts.line or NOWHERE) if windows else None


def near(number: Fraction) -> str:
    """A rational in a few characters."""
    found = number.limit_denominator(10**6)
    return str(found) if close(found, number) else f"{float(number):.6g}"


def close(one: Quantity, other: Quantity) -> bool:
    """Whether two numbers are equal but for the rounding of numbers that Python computed."""
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))
