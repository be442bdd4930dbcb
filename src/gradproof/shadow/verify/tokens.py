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
from gradproof.shadow.verify.totals import LossPart, added, losses_of
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
class TokenJudge:
    """Judges windows. `number` gives a combination with the numbers of this run, `rows` the samples of a loss term."""

    laws: Interpreter
    number: Callable[[Combination], Fraction | None]
    rows: Callable[[Sequence[int]], int]

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
        means = len(rules) == 1 and "c_k" in min(rules)
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
        refuted = (apart or formal) and equal.outcome is Outcome.REFUTED
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
        by = found[0].limit_denominator(10**4)
        whole = by.numerator == 1 and close(by, found[0])
        return f"1/({by.denominator} {name})" if whole else f"{near(found[0])}/{name}"


def of_two_runs(ours: Followed, equal: Result) -> Result | None:
    """The result for a function that was called by micro-batches and by the full batch, by its losses in the first."""
    facts, laws = ours.facts, ours.engine.laws
    windows = {at: parts for at, parts in losses_of(ours).items() if at < len(facts.updates)}

    def number(value: Combination) -> Fraction | None:
        return value.get(laws.terms.one, Fraction(0)) if laws.constant(value) else None

    judge = TokenJudge(laws, number, lambda terms: len(laws.terms.samples(terms)))
    return judge.result(windows, equal, facts.lines[0]) if windows else None


def near(number: Fraction) -> str:
    """A rational in a few characters."""
    found = number.limit_denominator(10**6)
    return str(found) if close(found, number) else f"{float(number):.6g}"
