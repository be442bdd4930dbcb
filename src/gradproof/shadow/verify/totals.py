"""What the losses of windows are made of, and divided by: counts of their own labels, of others, or numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from gradproof.shadow.whole.facts import RunFacts, Update
from gradproof.shadow.whole.interpreter import Interpreter
from gradproof.shadow.whole.terms import (
    NOBODY,
    ROUNDED,
    UNIT,
    ZERO,
    Combination,
    Powers,
    Terms,
    multiplied,
    plus,
    times,
)

if TYPE_CHECKING:
    from gradproof.shadow.verify.followed import Followed

COUNTS = ("count", "ne", "eq", "gt", "lt", "ge", "le", "index")
ADDED = (
    "one", "combination", "scaled", "sum", "cast", "clamp", "clamp_min", "cat", "reshape", "slice", "expand", "filled",
)  # fmt: skip
"""Counts of labels, truth values and weights of classes, and what adds them up."""


@dataclass(frozen=True, slots=True)
class LossPart:
    """A term of a loss that a backward pass began at: what each of its elements weighs, and how many there are.

    `micro`: the pass in its window, counted from 1. `kind`: whether the term is a sum of its elements, or a mean.
    """

    term: int
    micro: int
    by: Fraction
    powers: Powers
    count: Combination
    kind: str

    def mass(self, terms: Terms) -> Combination:
        """What all of its elements weigh."""
        return terms.rescaled(times(self.count, self.by), self.powers)


def loss_parts(
    laws: Interpreter, passes: Iterable[Iterable[Combination]], factor: tuple[Fraction, Powers]
) -> list[LossPart] | None:
    """The parts of what backward passes began at; None where something is no loss. `factor`: scales all of them."""
    found = list[LossPart]()
    for micro, roots in enumerate(passes, 1):
        for term, by in (pair for root in roots for pair in root.items()):
            bare, powers = laws.terms.bare(term)
            if bare not in laws.reduced:
                return None
            powers = multiplied(powers, factor[1])
            found.append(LossPart(bare, micro, by * factor[0], powers, *laws.reduced[bare]))
    return found


def roots_of(facts: RunFacts) -> dict[int, list[Combination]]:
    """What the backward passes of each window began at."""
    found: dict[int, list[Combination]] = {}
    for window, root in facts.roots:
        found.setdefault(window, []).append(root)
    return found


def losses_of(run: Followed) -> dict[int, list[LossPart] | None]:
    """The parts of the losses of each window, before a loss scaler multiplied them."""
    facts, laws = run.facts, run.engine.laws
    factors = {window: facts.unscaled.get(window, (UNIT, {})) for window, _ in facts.roots}
    passes = roots_of(facts).items()
    return {window: loss_parts(laws, ([root] for root in roots), factors[window]) for window, roots in passes}


def divided_by_others(terms: Terms, updates: Sequence[Update]) -> int | None:
    """The first step whose gradients are divided by a count of other samples than theirs; one before has its own count.

    A count of all samples of the run, or of any that are no window, is a number that each window may be divided by.
    """
    own = False
    for at, update in enumerate(updates):
        values = [value for value in update.values() if value]
        divisors = [{s for s, by in terms.common(v).items() if by == -1 and counted(terms, s)} for v in values]
        if not divisors or len(divisors[0]) != 1 or any(found != divisors[0] for found in divisors):
            return None
        if terms.samples(divisors[0]) == terms.summed(values):
            own = True
        elif own:
            return at
    return None


def counted(terms: Terms, scalar: int, counts: Collection[str] = COUNTS, through: Collection[str] = ADDED) -> bool:
    """Whether a scalar is a sum of counts, and nothing of the model. `through`: what may be done to counts."""
    stack, found = [scalar], False
    while stack:
        term = stack.pop()
        if terms.operators[term] not in (*counts, *through):
            return False
        found |= terms.operators[term] in counts
        stack += () if terms.operators[term] in counts else terms.kids[term]
    return found and not terms.trained[scalar]


def added(values: Iterable[Combination]) -> Combination:
    """The sum of combinations."""
    total: Combination = ZERO
    for one in values:
        total = plus(total, one)
    return total


class LossTotals:
    """The weights of the windows' losses, by the full batch's run."""

    def __init__(self, terms: Terms, ours: Followed, full: Followed) -> None:
        self.terms, self.ours, self.full, self.losses = terms, ours, full, losses_of(full)

    def counts_stand(self) -> bool:
        """Whether counts that are plain numbers are of their own window: each weighs its tokens alike in all.

        The counts of this run have to differ, or a mean of means would look the same. Where counts are unknowns, the
        losses have to be means by them.
        """
        laws, raw = self.full.engine.laws, self.totals()
        totals = [self._plainly(total) for total in raw]
        counts = {sum(row) for row in self.ours.engine.laws.seen_counts}
        known = len(counts) > 1 if laws.integers else all(self._counted(total) for total in raw)
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
        values = [value for update in updates for value in update.values() if value]
        losses = roots_of(self.full.facts).get(window, [])
        after, before = (self.terms.common({term: UNIT for one in of for term in one}) for of in (values, losses))
        own = multiplied(after, before, -1).items()
        return {scalar: by for scalar, by in own if by == -1 and scalar in after and counted(self.terms, scalar)}

    def stand(self) -> bool:
        """Whether the loss of each window is a mean, or a sum times one number for all windows, as far as is known."""
        found = [self._plainly(total) for total in self.totals()]
        factors = {frozenset(part.by for part in parts or ()) for parts in self.losses.values()}
        divided = any(self._counted(total) for total in found)
        return len({frozenset(one.items()) for one in found}) < 2 or (not divided and len(factors) < 2)

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
        while self.terms.operators[scalar] in ("clamp", "clamp_min", "cast"):
            scalar = self.terms.kids[scalar][0]
        return self.terms.parts_of(scalar)

    def _counted(self, total: Combination) -> bool:
        """Whether a total is divided by counts of labels."""
        divisors = {s for term in total for s, by in self.terms.bare(term)[1].items() if by < 0}
        return any({self.terms.operators[t] for t in self._counts_in(s)} == {"count"} for s in divisors)
