"""GA-INV-001: reported losses that the numbers of both runs refute."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from gradproof.shadow.locations import NOWHERE, Location
from gradproof.shadow.result import Result
from gradproof.shadow.whole.facts import Difference, Numbers, Update, alike, near, proportional

if TYPE_CHECKING:
    from gradproof.shadow.verify.judge import Judge
    from gradproof.shadow.verify.reported import Reported

LOSS = "GA-INV-001"


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
