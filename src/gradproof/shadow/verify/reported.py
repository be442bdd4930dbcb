"""GA-INV-001: the losses that a function returns, or prints, are those of the full batch."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.record.run import Run
from gradproof.shadow.result import ALL_DATA, DOUBT, NO_LOSS, RECORDED, Result
from gradproof.shadow.verify.totals import LossTotals
from gradproof.shadow.whole.facts import (
    DOMAIN,
    Difference,
    Numbers,
    Update,
    alike,
    alike_in_print,
    near,
    proportional,
    same_losses,
)
from gradproof.shadow.whole.runs import Real
from gradproof.shadow.whole.terms import Combination, Terms, plus, ratio, times

if TYPE_CHECKING:
    from gradproof.shadow.verify.followed import Followed
    from gradproof.shadow.verify.judge import Judge

LOSS = "GA-INV-001"


class Reported:
    """The reported losses of two runs. `sizes`: the samples of each window."""

    def __init__(
        self, terms: Terms, run: Run, sizes: Sequence[int], ours: Followed, full: Followed, ranks: int = 1
    ) -> None:
        self.ranks = ranks
        self.terms, self.run, self.sizes, self.ours, self.full = terms, run, sizes, ours, full
        self.laws, self.real = ours.engine.laws, isinstance(full.engine, Real)

    def _result(self, outcome: Outcome, reason: str, location: Location | None = None, **more: Any) -> Result:
        return Result(LOSS, outcome, reason, location, "", DOMAIN, ALL_DATA if outcome is Outcome.HOLDS else "", **more)

    def loss(self) -> Result:
        """The reported losses are the full batch's."""
        ours, full = self.ours.returned, self.full.returned
        if not (ours or full or self.ours.plain or self.full.plain):
            if not alike_in_print(self.ours.printed, self.full.printed):
                return self._result(Outcome.UNKNOWN, "the numbers that the function prints are not the full batch's")
            reason = "the function returns no loss"
            return self._result(Outcome.UNKNOWN, reason, details={"code": NO_LOSS})
        if not ours and not full and self.real:
            return self._in_numbers()
        if not alike(self.ours.plain, self.full.plain):
            reason = "the function returns numbers that were not followed, and that are not the full batch's"
            return self._result(Outcome.UNKNOWN, reason)
        if not self.of_a_loss(full):
            reason = "the returned numbers are not the losses of the windows, each made of its own window"
            return self._result(Outcome.UNKNOWN, reason, details={"code": DOUBT})
        if len(ours) == len(full):
            return self._each(ours, full)
        if len(full) == len(self.sizes) and len(ours) == self.run.micro_batches:
            each = self._by_window(ours)
            counts = [size // self.run.micro_batch_size for size in self.sizes]
            means = [times(total, Fraction(1, count)) for total, count in zip(each, counts, strict=True)]
            for words, totals in (("add up to", each), ("have the mean of", means)):
                if totals == list(full):
                    return self._result(Outcome.HOLDS, f"the returned losses of a window {words} the full batch's")
        reason = f"{len(ours)} losses by micro-batches and {len(full)} by the full batch were not matched"
        return self._result(Outcome.UNKNOWN, reason)

    def _each(self, ours: Sequence[Combination], full: Sequence[Combination]) -> Result:
        """As many losses as the full batch returns."""
        for at, (mine, other) in enumerate(zip(ours, full, strict=True)):
            if mine != other:
                return self._loss_differs(at, mine, other)
            if self._foreign(mine):
                reason = f"returned loss {at + 1} is scaled by a number that is made of other samples than its own"
                return self._result(Outcome.UNKNOWN, reason)
        return self._result(Outcome.HOLDS, f"{len(ours)} returned losses are the full batch's")

    def _foreign(self, loss: Combination) -> bool:
        """Whether a loss is scaled by a number of other samples than those of its summands."""
        bared = [self.terms.bare(term) for term in loss]
        scalars = {scalar for _, powers in bared for scalar in powers}
        return bool(self.terms.samples(scalars) - self.terms.samples(term for term, _ in bared))

    def _in_numbers(self) -> Result:
        """Returned numbers that were not followed are compared as they are."""
        assert isinstance(self.full.engine, Real)
        sizes = [size // self.run.micro_batch_size for size in self.sizes]
        totals = LossTotals(self.terms, self.ours, self.full)
        losses, known = self.full.engine.numbers.losses, self.full.engine.laws.numbers
        by = [[known.get(scalar, 1.0) for scalar in totals.afterwards(at)] for at in range(len(losses))]
        means = [loss / math.prod(each) for loss, each in zip(losses, by, strict=True)]
        how = same_losses(self.ours.plain, self.full.plain, means, sizes)
        if how:
            reason = f"{len(self.ours.plain)} numbers, {how}"
            return Result(LOSS, Outcome.HOLDS, reason, domain="floats", reach=RECORDED)
        reason = (
            "the function returns numbers that were not followed; they were not shown to be the full batch's losses"
        )
        return self._result(Outcome.UNKNOWN, reason)

    def of_a_loss(self, returned: list[Combination]) -> bool:
        """Whether a returned number of the full batch is a loss: made of what the passes of its own window began with.

        One number for each window is made of that window; another may be made of all windows.
        """
        windows: dict[int, set[int]] = {}
        for window, root in self._roots():
            for term in root:
                windows.setdefault(self.terms.bare(term)[0], set()).add(window)
        if not windows:
            return True
        count, made = len({w for of in windows.values() for w in of}), list[set[int]]()
        for one in returned:
            reached = self.terms.reached(one)
            made.append({w for term, of in windows.items() if term in reached for w in of})
        if len(made) == count:
            whole = all(self._whole_loss(at, one) for at, one in enumerate(returned))
            return whole and all(of == {at} for at, of in enumerate(made))
        return any(made) and all(len(of) in (0, 1, count) for of in made)

    def _roots(self) -> list[tuple[int, Combination]]:
        """What the passes of each window began with. Where several optimizers step in a window, it is still one."""
        order = sorted({window for window, _ in self.full.facts.roots})
        return [(order.index(window), root) for window, root in self.full.facts.roots]

    def _whole_loss(self, at: int, returned: Combination) -> bool:
        """Whether a number is a multiple of the whole loss of a window, or a function of all of it."""
        total: Combination = {}
        for window, root in self._roots():
            total = plus(total, root) if window == at else total
        bare = {self.laws.reshaped(term, ()): by for term, by in returned.items()}
        if bare.keys() & total.keys():
            first = next(iter(bare.keys() & total.keys()))
            own = {term: by for term, by in bare.items() if term in total} if self.ranks > 1 else bare
            return own.keys() == total.keys() and own == times(total, bare[first] / total[first])
        reached = self.terms.reached(returned)
        return all(self.terms.bare(term)[0] in reached for term in total)

    def _loss_differs(self, at: int, mine: Combination, other: Combination) -> Result:
        by = ratio(mine, other)
        if by is None:
            return self._result(Outcome.UNKNOWN, f"returned loss {at + 1} was not shown to be the full batch's")
        reason = f"returned loss {at + 1} is {by} times the full batch's"
        return self._result(Outcome.REFUTED, reason, self.ours.lines[at])

    def _by_window(self, losses: Iterable[Combination]) -> list[Combination]:
        each: list[Combination] = [{} for _ in self.sizes]
        for at, one in enumerate(losses):
            window = min(at // self.run.accum_steps, len(each) - 1)
            each[window] = plus(each[window], one)
        return each


class LossRules:
    """The rules about reported losses. `first`: the first step whose gradients differ in numbers."""

    judge: Judge
    reported: Reported
    mine: Numbers
    other: Numbers
    updates: list[Update]
    paired: bool
    first: tuple[int, Difference] | None

    @abstractmethod
    def _result(self, name: str, reason: str, location: Location, **more: Any) -> Result:
        """A refutation."""

    def loss(self) -> Result | None:
        """A reported loss that differs in numbers before the gradients do."""
        ours, full = self.judge.ours, self.judge.full
        if not ours.values and not full.values:
            return self._plain()
        if len(ours.values) != len(full.values):
            return None
        if not self.paired or not self.reported.of_a_loss(full.returned):
            return None
        if self._right_beside(ours.values, full.values):
            return None
        last = len(ours.values) if self.first is None else self.first[0] + 1
        if len(ours.values) != len(self.updates):
            last = len(ours.values) if self.first is None else 0
        for at, (mine, other) in enumerate(zip(ours.values[:last], full.values[:last], strict=True)):
            if ours.returned[at] != full.returned[at] and self._far(mine, other):
                reason = f"returned loss {at + 1} is {mine:.6g}, the full batch's {other:.6g}"
                return self._result(LOSS, reason, ours.lines[at], counterexample={"loss": mine, "full_batch": other})
        return None

    def _right_beside(self, ours: list[float], full: list[float]) -> bool:
        """Whether several numbers a window are returned, of which one is right in each window."""
        count = len(self.other.losses)
        each = len(full) // count if count and len(full) % count == 0 else 1
        columns = [zip(ours[at::each], full[at::each], strict=True) for at in range(each)]
        return each > 1 and any(not any(self._far(*pair) for pair in column) for column in columns)

    def _far(self, mine: float, other: float) -> bool:
        """Whether two losses differ by more than rounding."""
        allowed = 1e-1 if self.mine.narrow or self.other.narrow else 1e-3
        return abs(mine - other) > allowed * max(abs(mine), abs(other))

    def _plain(self) -> Result | None:
        """Numbers that were not followed: one of each window goes with the full batch's loss, and differs."""
        runs, losses = (self.judge.ours, self.judge.full), self.other.losses
        ours, full = (run.plain or [number for number, _ in run.printed] for run in runs)
        if self.first is None and len(ours) == len(full) == 1 < len(losses):
            return self._of_all(ours[0], full[0], losses)
        if self.first is not None or not losses or len(ours) != len(full) or len(full) % len(losses):
            return None
        each = len(full) // len(losses)
        columns = [at for at in range(each) if proportional(full[at::each], losses)]
        for at in columns:
            pairs = list(zip(ours[at::each], full[at::each], strict=True))
            if any(float(other).is_integer() for _, other in pairs) or not any(self._far(*pair) for pair in pairs):
                return None
        if not columns:
            return None
        pairs = list(zip(ours[columns[0] :: each], full[columns[0] :: each], strict=True))
        window, (mine, other) = next((i, pair) for i, pair in enumerate(pairs) if self._far(*pair))
        reads = self.judge.ours.facts.reads
        reason = f"the function reports {mine:.6g} for the loss of window {window + 1}, the full batch {other:.6g}"
        location = reads[-1][0] if reads else NOWHERE
        return self._result(LOSS, reason, location, counterexample={"loss": mine, "full_batch": other})

    def _of_all(self, ours: float, full: float, losses: list[float]) -> Result | None:
        """One number for all windows, which is the sum or the mean of their losses by the full batch alone."""
        whole = (sum(losses), sum(losses) / len(losses))
        if not any(near(full, one) for one in whole) or not self._far(ours, full):
            return None
        reads = self.judge.ours.facts.reads
        reason = f"the function reports {ours:.6g} for the losses of all windows, the full batch {full:.6g}"
        location = reads[-1][0] if reads else NOWHERE
        return self._result(LOSS, reason, location, counterexample={"loss": ours, "full_batch": full})

    def summed(self) -> Result | None:
        """Reported losses that go on adding up from window to window."""
        full, ours = self.judge.full, self.judge.ours
        losses, values = self.other.losses, full.values
        if (
            len(values) != len(losses)
            or len(ours.values) != len(values)
            or not values
            or not near(values[0], losses[0])
        ):
            return None
        sums = list(itertools.accumulate(losses))
        if not alike(values, sums):
            return None
        for at, (value, loss) in enumerate(zip(values, losses, strict=True)):
            if abs(value - loss) > 1e-2 * max(abs(value), abs(loss)):
                reason = (
                    f"returned loss {at + 1} is {value:.6g} by the full batch, and the loss of its window {loss:.6g}"
                )
                return self._result(LOSS, reason, ours.lines[at], counterexample={"loss": value, "window": loss})
        return None
