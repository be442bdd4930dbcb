"""GA-INV-001: the losses that a function returns, or prints, are those of the full batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from gradproof.core.outcome import Outcome
from gradproof.shadow.follow.facts import alike, alike_in_print, near, proportional
from gradproof.shadow.follow.terms import Combination, added, ratio, times
from gradproof.shadow.judge.by_terms import Judge
from gradproof.shadow.judge.statements import HELP, LOSS
from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import NO_LOSS, RECORDED, Result


class Reported(Judge):
    """The obligations of one function, its reported losses among them."""

    def _unknown(self, reason: str) -> Result:
        return self._open(LOSS, reason, None)

    def loss(self) -> Result:
        """The reported losses are the full batch's."""
        ours, full = self.ours.returned, self.full.returned
        if not (ours or full or self.ours.plain or self.full.plain):
            if not alike_in_print(self.ours.printed, self.full.printed):
                return self._unknown("the numbers that the function prints are not the full batch's")
            return self._result(LOSS, Outcome.UNKNOWN, "the function returns no loss", details={"code": NO_LOSS})
        if not ours and not full:
            return self._in_numbers()
        if not alike(self.ours.plain, self.full.plain):
            return self._unknown(
                "the function returns numbers that were not followed, and that are not the full batch's"
            )
        if not self.of_a_loss(full):
            return self._unknown("the returned numbers are not the losses of the windows, each made of its own window")
        if len(ours) == len(full):
            return self._each(ours, full)
        windows = self._by_window(ours)
        totals = [added(window) for window in windows]
        means = [times(total, Fraction(1, len(window))) for total, window in zip(totals, windows, strict=True)]
        for words, each in (("add up to", totals), ("have the mean of", means)):
            if each and each == list(full):
                return self._result(LOSS, Outcome.HOLDS, f"the returned losses of a window {words} the full batch's")
        return self._unknown(f"{len(ours)} losses by micro-batches and {len(full)} by the full batch were not matched")

    def _each(self, ours: Sequence[Combination], full: Sequence[Combination]) -> Result:
        """As many losses as the full batch returns."""
        for at, (mine, other) in enumerate(zip(ours, full, strict=True)):
            what, by = f"returned loss {at + 1}", ratio(mine, other)
            if by is not None:
                reason = f"{what} is {by} times the full batch's"
                return self._result(LOSS, Outcome.REFUTED, reason, self.ours.lines[at])
            if mine != other:
                return self._unknown(f"{what} was not shown to be the full batch's")
        return self._result(LOSS, Outcome.HOLDS, f"{len(ours)} returned losses are the full batch's")

    def _in_numbers(self) -> Result:
        """Returned numbers that were not followed are compared as they are."""
        began = zip(sorted(self.other.roots), self.other.losses, strict=False)
        losses = [loss * self.totals.after(at) for at, loss in began]
        ours, full, windows = self.ours.plain, self.full.plain, self._by_window(self.ours.plain)
        for words, numbers in (
            ("equal to the full batch's", ours),
            ("those of a window add up to the full batch's", [sum(window) for window in windows]),
            ("those of a window have the mean of the full batch's", [sum(window) / len(window) for window in windows]),
        ):
            if self._columns(full, losses) and alike(numbers, full):
                reason = f"{len(ours)} numbers, {words} within rounding"
                return Result(LOSS, Outcome.HOLDS, reason, domain="floats", reach=RECORDED)
        what = "the function returns numbers that were not followed"
        return self._unknown(f"{what}; they were not shown to be the full batch's losses")

    def _by_window(self, reported: Sequence[Any]) -> list[list[Any]]:
        """What the micro-batches of each window reported; nothing where it is not one number each."""
        counts, parts = [size // self.run.micro_batch_size for size in self.sizes], iter(reported)
        whole = sum(counts) == len(reported)
        return [[*itertools.islice(parts, count)] for count in counts] if whole else []

    def _columns(self, full: Sequence[float], losses: Sequence[float]) -> list[slice]:
        """The numbers of the full batch that go with its losses: one for each window, or one for all of them."""
        each, left = divmod(len(full), len(losses) or 1)
        if not all(losses) or not losses:
            return []
        if len(full) == 1 < len(losses):
            return [slice(None)] if any(near(full[0], x) for x in (sum(losses), sum(losses) / len(losses))) else []
        columns = [slice(at, None, each) for at in range(0 if left else each)]
        return [column for column in columns if proportional(full[column], losses)]

    def of_a_loss(self, returned: list[Combination]) -> bool:
        """Whether a returned number of the full batch is a loss: made of what the passes of its own window began with.

        One number for each window is made of that window; another may be made of all windows.
        """
        # where several optimizers step in a window, it is still one
        totals = [added(own) for _, own in sorted(self.other.roots.items())]
        if not totals:
            return True
        bare = [{self.terms.bare(term)[0] for term in total} for total in totals]
        reached = [self.terms.reached(one) for one in returned]
        made = [{at for at, own in enumerate(bare) if own & each} for each in reached]
        if len(made) == len(totals):
            whole = all(map(self._whole_loss, totals, returned))
            return whole and all(of == {at} for at, of in enumerate(made))
        return any(made) and all(len(of) in (0, 1, len(totals)) for of in made)

    def _whole_loss(self, total: Combination, returned: Combination) -> bool:
        """Whether a number is a multiple of the whole loss of a window, or a function of all of it."""
        bare = {self.laws.reshaped(term, ()): by for term, by in returned.items()}
        own = {term: by for term, by in bare.items() if term in total}
        if own:
            first = next(iter(own))
            return (own if self.ranks > 1 else bare) == times(total, own[first] / total[first])
        return {self.terms.bare(term)[0] for term in total} <= self.terms.reached(returned)

    # By numbers

    def differing(self) -> Iterator[Result]:
        """A reported loss that differs in numbers before the gradients do."""
        ours, full, first = self.ours.values, self.full.values, self.first
        if not ours and not full:
            yield from self._plain()
            return
        if len(ours) != len(full) or not self.paired or not self.of_a_loss(self.full.returned):
            return
        count = len(self.other.losses)
        size = len(full) // count if count and len(full) % count == 0 else 1
        columns = [zip(ours[at::size], full[at::size], strict=True) for at in range(size)]
        if size > 1 and any(not any(self.far(*pair) for pair in column) for column in columns):
            return  # several numbers a window, of which one is right in each
        each = len(ours) == len(self.ours.facts.updates)
        last = len(ours) if first is None else first[0] + 1 if each else 0
        for at, (mine, other) in enumerate(zip(ours[:last], full[:last], strict=True)):
            if self.ours.returned[at] != self.full.returned[at] and self.far(mine, other):
                reason = f"returned loss {at + 1} is {mine:.6g}, the full batch's {other:.6g}"
                yield self._other_loss(reason, self.ours.lines[at], loss=mine, full_batch=other)

    def far(self, mine: float, other: float) -> bool:
        """Whether two losses differ by more than rounding."""
        allowed = 1e-1 if self.facts.below or self.other.below else 1e-3
        return abs(mine - other) > allowed * max(abs(mine), abs(other))

    def _other_loss(self, reason: str, location: Location, **numbers: float) -> Result:
        return Result(LOSS, Outcome.REFUTED, reason, location, HELP[LOSS], "floats", RECORDED, counterexample=numbers)

    def _plain(self) -> Iterator[Result]:
        """Numbers that were not followed: those that go with the full batch's losses differ."""
        losses, reads = self.other.losses, self.ours.facts.reads
        ours, full = (run.plain or [number for number, _ in run.printed] for run in (self.ours, self.full))
        if self.first is not None or len(ours) != len(full):
            return
        pairs = [list(zip(ours[at], full[at], strict=True)) for at in self._columns(full, losses)]
        whole = len(full) == 1 < len(losses)
        counts = not whole and any(float(other).is_integer() for column in pairs for _, other in column)
        apart = [next(((at, *pair) for at, pair in enumerate(of, 1) if self.far(*pair)), None) for of in pairs]
        if counts or not apart or apart[0] is None or None in apart:
            return
        at, mine, other = apart[0]
        what = "the losses of all windows" if whole else f"the loss of window {at}"
        reason = f"the function reports {mine:.6g} for {what}, the full batch {other:.6g}"
        yield self._other_loss(reason, reads[-1][0] if reads else NOWHERE, loss=mine, full_batch=other)

    def summed(self) -> Iterator[Result]:
        """Reported losses that go on adding up from window to window, or are that of the first one again."""
        losses, values = self.other.losses, self.full.values or self.full.plain
        usual = [*itertools.accumulate(losses)], losses[:1] * len(losses)
        if len(self.ours.values or self.ours.plain) != len(values) or not any(alike(values, one) for one in usual):
            return
        for at, (value, loss) in enumerate(zip(values, losses, strict=True)):
            if abs(value - loss) > 1e-2 * max(abs(value), abs(loss)):
                what = f"returned loss {at + 1} is {value:.6g} by the full batch, and the loss of its window {loss:.6g}"
                line = self.ours.lines[at] if self.ours.values else NOWHERE
                yield self._other_loss(what, line, loss=value, window=loss)
