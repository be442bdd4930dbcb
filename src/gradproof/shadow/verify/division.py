"""Whether the losses of a window are divided by N, by the quotients and products that their graphs show.

What a mean weighs in all does not tell: `0.5 * loss` with N = 2 weighs 1 without any division. A quotient by N is taken
for the division, and a product for a factor of the loss's own; where one of them is 1/N, it may be either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from math import isclose, prod

from gradproof.core.outcome import Outcome
from gradproof.shadow.protocol.handed import PRODUCT, QUOTIENT, Handed, Steps
from gradproof.shadow.result import DIVIDE
from gradproof.shadow.verify.losses import close, near
from gradproof.shadow.whole.terms import UNIT

MEAN = "they add up to that of a mean"
OWN_FACTOR = "each loss is divided by N; its own factor is taken as part of the loss"
HELP = "divide the loss by N as the last operation before backward, or use gradproof check"
ASSUMED = "a quotient of a loss by N is the division by N, and no factor of the loss's own"


@dataclass(frozen=True, slots=True)
class Divided:
    """One loss of a window: its weight in all, whether it is a mean, and what its passes were handed.

    `elements`: how many elements the window sums up.
    `after`: the number by which a gradient was multiplied between the passes and the step, the loss scale taken out.
    `counted`: the weight has a count of samples in it. `alone`: each pass has as many summands as losses, and no loss
    scale is left in.
    """

    total: Fraction
    elements: Fraction | None
    mean: bool
    passes: Sequence[Handed]
    after: Fraction
    counted: bool
    alone: bool

    @property
    def n(self) -> int:
        """How many backward passes have it."""
        return len(self.passes)

    @property
    def root(self) -> bool:
        """Whether each pass as a whole is divided by N."""
        return all(isclose(made.divisor, self.n) for made in self.passes)

    def handed(self) -> list[tuple[Steps, ...]]:
        """The summands of each pass; none where one was not seen."""
        found = [tuple(made.summands) for made in self.passes]
        return found if all(found) else []

    @property
    def by_hand(self) -> int:
        """By what the gradients are divided after the passes: 1, N, or the rows of the window; 0 is anything else."""
        sizes = {made.size or 0 for made in self.passes}
        known = (1, self.n, *(self.n * size for size in sizes if len(sizes) == 1))
        return next((by for by in known if close(self.after * by, UNIT)), 0)

    def divisors(self) -> Iterator[tuple[list[float], ...]]:
        """What divides each summand after any product by N or 1/N, and everything that divides it."""
        after = [float(self.by_hand)] * (self.by_hand > 1)
        for steps in (one for every in self.handed() for one in every):
            last = takewhile(lambda step: step[0] == QUOTIENT or not self._undoes(step[1]), steps)
            yield tuple([*after, *(by for how, by in some if how == QUOTIENT)] for some in (last, steps))

    def _undoes(self, by: float) -> bool:
        return not by or isclose(by, self.n) or isclose(by * self.n, 1)

    def divided(self, times: int = 1) -> bool:
        """Whether each summand is divided by N, once or as often as asked for, and first of all by N."""
        found = [last for last, _ in self.divisors()]
        return bool(found) and all(isclose(prod(by), self.n**times) or self._often(by) == times for by in found)

    def _often(self, divisors: list[float]) -> int:
        found = [isclose(by, self.n) for by in divisors]
        return sum(found) if found[:1] == [True] else 0

    def bare(self) -> bool:
        """Whether a summand of each pass is divided by nothing.

        Of sums, that no number multiplies any, and none is divided by a multiple of N, but for rows that are not N.
        """
        if not self.mean:
            steps = (step for every in self.handed() for one in every for step in one)
            rows = {made.size for made in self.passes} - {self.n}
            return not any(how == PRODUCT or (by not in rows and multiple(by, self.n)) for how, by in steps)
        return bool(self.handed()) and all(any(not one for one in every) for every in self.handed())

    def explained(self) -> bool:
        """Whether something else than a factor of the loss's own makes it weigh 1.

        A mean is divided by N or by a multiple, as the samples of the window are, or by other numbers in other passes.
        A sum is divided by the number of its elements in the window, and no product with 1/N makes it weigh 1.
        """
        if not self.mean:
            steps = [one for every in self.handed() for one in every]
            products = ([by for how, by in one if how == PRODUCT] for one in steps)
            undone = any(isclose(prod(by) * self.n, 1) for by in products)
            shares = (prod(1 / by if how == QUOTIENT else by for how, by in one if by) * self.after for one in steps)
            known = bool(steps) and all(isclose(one * (self.elements or 0), 1, rel_tol=1e-6) for one in shares)
            return self.n == 1 or (not undone and (self.counted or known))
        if self.n == 1 or self.counted or len({*self.handed()}) > 1:
            return True
        found = [every for _, every in self.divisors()]
        return bool(found) and all(any(multiple(by, self.n) for by in each) for each in found)


def multiple(by: float, n: int) -> bool:
    """Whether a number is a multiple of N. One that was not read is 0, and a count on a device."""
    return isclose(by / n, round(by / n), abs_tol=1e-6)


Said = tuple[str, Fraction | None, tuple[Outcome, str, str] | None]


def judged(losses: Sequence[Divided], window: int, follows: bool, hooked: bool, sums: str) -> Said:
    """What the losses of a window say: words and a total where they hold, and else what is wrong.

    `follows`: other windows have another N. `hooked`: a hook ran in a backward pass. `sums`: words for losses that are
    sums, or of which no weight is known.
    """
    if losses and all(close(one.total, UNIT) for one in losses):
        if follows or all(one.explained() for one in losses):
            return MEAN, UNIT, None
        n = max(one.n for one in losses)
        reason = f"whether the factor 1/{n} of a loss of window {window} is the division by N or its own is not shown"
        return "", UNIT, (Outcome.UNKNOWN, reason, HELP)
    if sums:
        return sums, None, None
    most = max(one.total for one in losses)
    total = UNIT if any(close(one.total, UNIT) for one in losses) else most
    alone = [one for one in losses if one.n > 1 and close(one.total, Fraction(one.n)) and one.bare()]
    never = alone if all(one.by_hand == 1 for one in losses) else []
    shares = all(close(one.total, Fraction(1, one.n)) for one in losses)
    mean_of = close(sum((one.total for one in losses), Fraction(0)), UNIT)  # N losses; half a squared error is usual
    again = shares and not mean_of and all(one.divided(2) and one.n > 2 for one in losses)
    if (never or again) and not hooked:
        said = never[0].total if never else most
        reason = f"the samples of window {window} weigh {near(said)} in all, and in the mean of a full batch 1"
        return "", said, (Outcome.REFUTED, reason, f"{DIVIDE}, once")
    means = any(one.mean and one.divided() for one in losses)
    known = most > 0 and all(one.alone and one.by_hand in (1, one.n) for one in losses)
    known &= all(one.divided() if one.mean else (means and one.root) or close(one.total, UNIT) for one in losses)
    if known and not shares and not all(close(one.total, Fraction(one.n)) for one in losses):
        return OWN_FACTOR, total, None
    shown = ", ".join(dict.fromkeys(near(one.total) for one in losses))
    said_of = f"they add up to {shown}, and in a mean to 1"
    if known:
        said_of = f"it is divided by N and multiplied by {shown}, which may undo that or be a factor of the loss"
    return "", total, (Outcome.UNKNOWN, f"each sample of window {window} has one weight; {said_of}", HELP)
