"""Whether the losses of a window are divided by N, by the quotients and products that their graphs show.

What a mean weighs in all does not tell: `0.5 * loss` with N = 2 weighs 1 without any division. A quotient by N is taken
for the division, and a product for a factor of the loss's own; where one of them is 1/N, it may be either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from math import isclose, isnan, nan, prod

from gradproof.core.outcome import Outcome
from gradproof.shadow.protocol.handed import PRODUCT, QUOTIENT, Handed, Steps
from gradproof.shadow.result import DIVIDE, FUNCTION
from gradproof.shadow.verify.losses import close, near
from gradproof.shadow.whole.terms import UNIT

MEAN = "they add up to that of a mean"
OWN_FACTOR = "each loss is divided by N; its own factor is taken as part of the loss"
HELP = "divide the loss by N as the last operation before backward, or use gradproof check"
SUMS_TOO = "divide a sum over rows by the rows of its micro-batch too, as by len(x), or divide the mean alone by N"
BY_ROWS = (
    "divide a sum by the rows of its micro-batch and then by N, or by the tokens of the window, or use gradproof check"
)
UNSCALE = "call scaler.step(optimizer), or scaler.unscale_(optimizer) before the step: it divides by the loss scale"
ASSUMED = "a quotient of a loss by N, or of a sum by its rows, is that division, and no factor of the loss's own"


@dataclass(frozen=True, slots=True)
class Divided:
    """One loss of a window: its weight in all, whether it is a mean, and what its passes were handed.

    `after`: the number by which a gradient was multiplied between the passes and the step, the loss scale taken out.
    `counted`: the weight has a count of samples in it. `alone`: each pass has as many summands as losses, each sum is
    seen as one, and no loss scale is left in. `rows`, `elements`: how many each pass has. `sizes`: those of one row.
    `by_data`: data multiply what is summed up.
    """

    total: Fraction
    mean: bool
    passes: Sequence[Handed]
    after: Fraction
    counted: bool
    alone: bool
    rows: Sequence[int]
    elements: Sequence[Fraction]
    sizes: Collection[int]
    by_data: bool

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
        found = [tuple(steps for steps, _ in made.summands) for made in self.passes]
        return found if all(found) else []

    def summands(self) -> Iterator[tuple[Steps, bool, bool]]:
        """Each summand: whether it is a sum over several rows, and divided by them, or by all elements; without that.

        A product with the rows may undo it. A second quotient by them is none of N.
        """
        for made, rows, count in zip(self.passes, self.rows, self.elements, strict=True) if self.handed() else ():
            for steps, sums in made.summands:
                by, over = factors(steps), sums and rows > 1
                at = [at for at, one in enumerate(by) if over and (isclose(one * rows, 1) or isclose(one * count, 1))]
                left = tuple(step for i, step in enumerate(steps) if i not in at[-1:])
                again = rows != self.n and any(isclose(one * rows, 1) for one in factors(left))
                undone = any(isclose(one, rows) or isclose(one, rows * self.n) for one in by)
                yield left, over, bool(at) and not again and not undone

    def by_rows(self) -> bool:
        """Whether each sum over several rows is divided by them, and nothing below it may undo that."""
        below = {times for rows in self.rows for times in (rows, rows * self.n, rows if self.mean else self.n)} - {1}
        undone = any(isclose(one, times, rel_tol=1e-6) for one in self.inner() for times in below)
        return not undone and (self.mean or all(divided for _, over, divided in self.summands() if over))

    def left_a_sum(self) -> bool:
        """Whether N divides each sum over several rows, and nothing does by these: no factor may hide that."""
        found = [(steps, divided) for steps, over, divided in self.summands() if over]
        by = [by for steps, _ in found for how, by in steps if how == PRODUCT]
        hidden = any(one != 0.5 and (one < 1 or any(multiple(one, rows) for rows in self.rows)) for one in by)
        others = any(divided or [how for how, _ in steps].count(QUOTIENT) != 1 for steps, divided in found)
        alone = self.alone and self.root and self.by_hand == 1 and self.followed()
        return alone and not (others or hidden or self.by_data or {*self.rows} & {1, 2, self.n})

    @property
    def by_hand(self) -> int:
        """By what the gradients are divided after the passes: 1, N, or the rows of the window; 0 is anything else."""
        sizes = {made.size or 0 for made in self.passes}
        known = (1, self.n, *(self.n * size for size in sizes if len(sizes) == 1))
        return next((by for by in known if close(self.after * by, UNIT)), 0)

    def divisors(self) -> Iterator[tuple[list[float], ...]]:
        """What divides each summand after any product by N or 1/N, and everything that divides it."""
        after = [float(self.by_hand)] * (self.by_hand > 1)
        for steps, _, _ in self.summands():
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

    def inner(self) -> list[float]:
        """By what something below the sums, or means, of each pass multiplies them, as far as no count does."""
        count = self.n if self.mean else sum(self.elements)
        each, found = float(abs(self.total) / count / abs(self.after)), list[float]()
        for made in self.passes if not self.counted else ():
            shown = [each / prod(factors(steps)) for steps, sums in made.summands if sums != self.mean]
            found += [1.0] if any(isnan(one) or isclose(one, 1, rel_tol=1e-6) for one in shown) else shown
        return found

    def followed(self) -> bool:
        """Whether nothing below a sum multiplies its elements."""
        return {*self.inner()} <= {1}

    def explained(self) -> bool:
        """Whether something else than a factor of the loss's own makes it weigh 1.

        A mean is divided by N or by a multiple, as the samples of the window are, or by other numbers in other passes.
        No product with 1/N makes the sum weigh 1, and nothing that was done below it does.
        """
        if not self.mean:
            products = ([by for how, by in one if how == PRODUCT] for every in self.handed() for one in every)
            return self.n == 1 or (self.followed() and not any(isclose(prod(by) * self.n, 1) for by in products))
        if self.n == 1 or self.counted or len({*self.handed()}) > 1:
            return True
        found = [every for _, every in self.divisors()]
        return bool(found) and all(any(multiple(by, self.n) for by in each) for each in found)


def factors(steps: Steps) -> list[float]:
    """By what each of some steps multiplies; NaN where that was not read."""
    return [nan if not by else by if how == PRODUCT else 1 / by for how, by in steps]


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
        if not all(one.mean or one.followed() for one in losses):
            reason = f"a sum of window {window} weighs 1 by a factor below it, which may be no division by its rows"
        return "", UNIT, (Outcome.UNKNOWN, reason, HELP if all(one.mean for one in losses) else BY_ROWS)
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
    sums_of = [one for one in losses if not one.mean]
    means = any(one.mean and one.divided() for one in losses)
    known = most > 0 and all(one.alone and one.by_hand in (1, one.n) for one in losses)
    by_rows = all(one.divided() and one.by_rows() for one in sums_of)
    of_rows = by_rows and (means or apart(sums_of))
    known &= all((one.divided() and one.by_rows()) if one.mean else of_rows or close(one.total, UNIT) for one in losses)
    known &= all(one.mean or of_rows or one.explained() for one in losses)
    if known and not shares and not all(close(one.total, Fraction(one.n)) for one in losses):
        return OWN_FACTOR, total, None
    if means and not hooked and any(one.left_a_sum() for one in sums_of):
        shown, due = totals(losses), totals(losses, all_rows=True)
        reason = f"means and sums over rows weigh {shown} in window {window}, and {due} in its full batch"
        return shown, None, (Outcome.REFUTED, f"{reason}: N divides the sums too", SUMS_TOO)
    why, help = undecided(losses, known, by_rows and not any(1 in one.rows for one in losses))
    return "", total, (Outcome.UNKNOWN, f"each sample of window {window} has one weight; {why}", help)


def totals(losses: Sequence[Divided], all_rows: bool = False) -> str:
    """What losses weigh in all; `all_rows`: in a full batch in which N divides no sum."""
    times = [one.n if all_rows and not one.mean else 1 for one in losses]
    return ", ".join(dict.fromkeys(near(one.total * by) for one, by in zip(losses, times, strict=True)))


def apart(sums: Sequence[Divided]) -> bool:
    """Whether the rows that divide sums are several, and no size of what any sums; and N is none of what one sums."""
    rows = all(1 not in one.rows and not {*one.rows} & {*one.sizes} for one in sums)
    return rows and any(one.n not in one.sizes for one in sums)


def undecided(losses: Sequence[Divided], known: bool, by_rows: bool) -> tuple[str, str]:
    """Why the totals of losses decide nothing, and what helps."""
    shown, n = totals(losses), max(one.n for one in losses)
    said = f"they add up to {shown}, and in a mean to 1"
    scales = {float(made.scale) for one in losses for made in one.passes}
    every = {steps for one in losses for each in one.handed() for steps in each}
    ((how, by), *others) = next(iter(every), ()) or (("", 1.0),)
    if all(close(one.total, Fraction(scale)) for one in losses for scale in scales):
        return f"they add up to {shown}, which is the loss scale, and in a mean to 1", UNSCALE
    if known:
        return f"it is divided by N and multiplied by {shown}, which may undo that or be a factor of the loss", FUNCTION
    if not all(one.mean for one in losses):
        if any(one.mean and one.divided() for one in losses):
            return f"means and sums add up to {shown}; whether N divides a sum of the full batch is not shown", SUMS_TOO
        said += "; what divides them may be the rows of a micro-batch, or a size of a sample" * by_rows
        return said, BY_ROWS if not (by_rows or any(one.mean for one in losses)) else FUNCTION
    if len(every) == 1 and how == QUOTIENT and not others and not isclose(by, n):
        help = f"divide by {n} in place of {by:g}; if {by:g} is a factor of the loss itself, divide by {n} as well"
        return f"each loss is divided by {by:g}, and not by N = {n}: {said}", help
    return said, FUNCTION if all(one.divided() for one in losses) else HELP
