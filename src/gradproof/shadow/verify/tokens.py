"""GA-TOK-001: what each valid token of a window weighs in its loss, as a formula in the counts c1, c2, ... .

A loss of labels is a sum over the labels that are not the ignored one. What it is multiplied by is what each of these
tokens weighs. The right weight is one and the same for all tokens of the window: 1/(c1 + ... + cN) in a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.result import Result
from gradproof.shadow.verify.totals import added
from gradproof.shadow.verify.weights import close
from gradproof.shadow.whole.interpreter import Interpreter
from gradproof.shadow.whole.rules.losses import LIKELIHOODS
from gradproof.shadow.whole.terms import UNIT, Combination, Powers, multiplied, times

if TYPE_CHECKING:
    from gradproof.shadow.verify.followed import Followed

TOKENS = "GA-TOK-001"
RIGHT = "1/(c1 + ... + cN)"
MEANS = "the mean of means"
HELP = "divide the sum of the losses by the number of valid tokens of the whole window"


@dataclass(frozen=True, slots=True)
class TokenWeight:
    """A part of a micro-batch's loss, a term: what each of its tokens weighs, and how many there are.

    `micro` counts from 1.
    """

    term: int
    micro: int
    by: Fraction
    powers: Powers
    count: Combination


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """A window: its number from 1, its line, and what backward began at, by micro-batch.

    `factor`: by what gradients were multiplied before the step; None where that is not known.
    """

    number: int
    location: Location
    roots: Sequence[Sequence[Combination]]
    factor: tuple[Fraction, Powers] | None


@dataclass(frozen=True, slots=True)
class TokenJudge:
    """Judges windows. `number` gives a combination with the numbers of this run, `rows` the samples of a loss term."""

    laws: Interpreter
    number: Callable[[Combination], Fraction | None]
    rows: Callable[[Sequence[int]], int]

    def result(self, windows: Sequence[TokenWindow], equal: Result) -> Result | None:
        """The result of the windows; None where no loss counts tokens. `equal`: that of the gradients."""
        found = [(window, self._parts(window)) for window in windows]
        if not any(parts is not None and self._counts(parts) for _, parts in found):
            return None
        said = [self._judged(window, parts, equal) for window, parts in found]
        first = next((one for one in said if one.outcome is not Outcome.HOLDS), said[0])
        if first.outcome is Outcome.HOLDS:
            words = "; or ".join(dict.fromkeys(one.reason for one in said))
            first.reason = f"each valid token of a window weighs {words}"
        return first

    def _parts(self, window: TokenWindow) -> list[TokenWeight] | None:
        """The parts of the losses; None where one of them is no loss of labels."""
        terms, found = self.laws.terms, list[TokenWeight]()
        scale, scalars = window.factor or (UNIT, {})
        for micro, roots in enumerate(window.roots, 1):
            for term, by in (pair for root in roots for pair in root.items()):
                bare, powers = terms.bare(term)
                if terms.operators[bare] not in LIKELIHOODS or bare not in self.laws.reduced:
                    return None
                count, weight = self.laws.reduced[bare][0], multiplied(powers, scalars)
                found.append(TokenWeight(bare, micro, by * scale, weight, count))
        return found

    def _counts(self, parts: Sequence[TokenWeight]) -> bool:
        """Whether labels are more than samples, or ignored ones are among them."""
        total, one = added(part.count for part in parts), self.laws.terms.one
        return not total.keys() <= {one} or total.get(one, 0) > self.rows([part.term for part in parts])

    def _judged(self, window: TokenWindow, parts: Sequence[TokenWeight] | None, equal: Result) -> Result:
        what = f"window {window.number}"
        if not parts or window.factor is None:
            reason = f"the loss of {what} has parts that are no loss of labels, or a weight that was not followed"
            return Result(TOKENS, Outcome.UNKNOWN, reason, window.location, domain=equal.domain)
        first = parts[0]
        if not all(part.powers == first.powers and close(part.by, first.by) for part in parts):
            return self._unequal(window, parts, equal)
        weight = self._one(first, added(part.count for part in parts))
        if equal.outcome is Outcome.HOLDS:
            return Result(TOKENS, Outcome.HOLDS, weight, None, "", equal.domain, equal.reach)
        reason = f"in the loss each valid token of {what} weighs {weight}; its weight in the gradient was not shown"
        return Result(TOKENS, Outcome.UNKNOWN, reason, equal.location, domain=equal.domain)

    def _unequal(self, window: TokenWindow, parts: Sequence[TokenWeight], equal: Result) -> Result:
        counts = {part.micro: added(one.count for one in parts if one.micro == part.micro) for part in parts}
        shown = {f"micro-batch {part.micro}": self._formula(part, counts[part.micro]) for part in parts}
        rule = self._means(parts, counts)
        wrong = f"{rule}: {MEANS}" if rule else ", ".join(dict.fromkeys(shown.values()))
        reason = f"a valid token of window {window.number} weighs {wrong}; the right weight is {RIGHT}"
        numbers = [self._number(part) for part in parts]
        apart = None not in numbers and any(not close(one, numbers[0]) for one in numbers if one and numbers[0])
        formal = bool(rule) and None in numbers and len(counts) > 1
        refuted = (apart or formal) and equal.outcome is Outcome.REFUTED
        if not (apart or formal):
            reason += "; the counts of this run do not tell them apart"
        held = {f"c{micro}": self.number(count) for micro, count in counts.items()}
        shown_counts = {name: str(number) for name, number in held.items() if number is not None}
        example: dict[str, Any] = {"weights": shown, "right": RIGHT, "counts": shown_counts}
        outcome = Outcome.REFUTED if refuted else Outcome.UNKNOWN
        return Result(TOKENS, outcome, reason, window.location, HELP, equal.domain, equal.reach, {}, example)

    def _number(self, part: TokenWeight) -> Fraction | None:
        terms = self.laws.terms
        return self.number(times(terms.of(terms.scaled(terms.one, part.powers)), part.by))

    def _divides(self, part: TokenWeight, count: Combination) -> tuple[Fraction, Powers, bool] | None:
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

    def _one(self, part: TokenWeight, count: Combination) -> str:
        """The one weight of all tokens."""
        found = self._divides(part, count)
        if found is not None and close(found[0], UNIT) and not found[1]:
            return f"{RIGHT}, for all counts" if found[2] else f"{RIGHT}, with the counts of this run"
        if not part.powers and close(part.by, UNIT):
            return "1: the loss is a sum"
        number = self._number(part)
        return "the same" + (f", {near(number)}" if number is not None else "")

    def _means(self, parts: Sequence[TokenWeight], counts: Mapping[int, Combination]) -> str:
        """The rule of a mean of means, where it is one: each weight times its own count is one number."""
        found = [self._divides(part, counts[part.micro]) for part in parts]
        known = [one for one in found if one is not None]
        if len(known) < len(found) or any(not close(one[0], known[0][0]) or one[1] != known[0][1] for one in known):
            return ""
        return self._over(known[0][0], "c_k")

    def _over(self, by: Fraction, count: str) -> str:
        found = by.limit_denominator(10**4)
        whole = found.numerator == 1 and close(found, by)
        return f"1/({found.denominator} {count})" if whole else f"{near(by)}/{count}"

    def _formula(self, part: TokenWeight, count: Combination) -> str:
        found, number = self._divides(part, count), self._number(part)
        if found is not None:
            return self._over(found[0], f"c{part.micro}")
        return "a weight that was not read" if number is None else near(number)


def of_two_runs(ours: Followed, equal: Result) -> Result | None:
    """The result for a function that was called by micro-batches and by the full batch, by its losses in the first."""
    facts, laws, roots = ours.facts, ours.engine.laws, dict[int, list[list[Combination]]]()
    for window, root in facts.roots:
        roots.setdefault(window, []).append([root])
    one = laws.terms.one
    windows = [
        TokenWindow(at + 1, facts.lines[0], each, facts.unscaled.get(at, (UNIT, {})))
        for at, each in roots.items()
        if at < len(facts.updates)
    ]

    def number(value: Combination) -> Fraction | None:
        return value.get(one, Fraction(0)) if value.keys() <= {one} else None

    return TokenJudge(laws, number, lambda terms: len(laws.terms.samples(terms))).result(windows, equal)


def near(number: Fraction) -> str:
    """A rational in a few characters."""
    found = number.limit_denominator(10**6)
    return str(found) if close(found, number) else f"{float(number):.6g}"
