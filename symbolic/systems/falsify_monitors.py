"""A real training under the monitor of `gradproof watch`: FALSIFY-GT-411 of the training contract.

What the monitor tells, and what the loop tells of itself, is compared with what hooks of the property's own saw: the
gradients that a step applied, the scaler's attempts, the losses before any division, the sizes. The world is a process
group that talks to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from gradproof.harness import Case, Cell, Monitor, Observed, Place, Refutation, monitored
from models.systems.epochs import Epochs
from models.systems.tails import Held, Tail
from models.systems.torch_logged import TellingStep
from symbolic.measured import Measured
from symbolic.systems.falsify_epochs import Seen, observe, steps_due

RANKS = 3
ROOM = 1e-6


class Heard(Tail):
    """Equal micro-batches, each loss divided by those that the window holds; the losses are kept."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def share(self, g: Any, count: Any, held: Held) -> Any:
        self.losses.append(float(g.detach()))
        return g / held.r


@contextmanager
def world_of(ranks: int) -> Iterator[None]:
    """A process group of so many ranks, of which only this one exists."""
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class TellsWhatHappened(Measured):
    """FALSIFY-GT-411: steps an epoch, effective batch, losses and the scaler's steps are those of the loop."""

    clause = "GA-MON-001"
    reached = ("a tail", "a skipped step", "several micro-batches", "several ranks", "a second epoch")

    def cases(self, cell: Cell, place: Place) -> Sequence[Case]:
        n = cell.n
        return [
            Case(cell.net, n, windows=2, tail=n - 1, epochs=2, size=2, overflow=n, ranks=RANKS),
            Case(cell.net, n, seed=1, windows=3, epochs=1, size=3),
        ]

    def test(self, subject: Any, case: Case, place: Place) -> Observed:
        heard, due = Heard(), steps_due(case)
        monitor = Monitor(subject(), case.epochs * len(due), case.n, due[-1])
        loop = TellingStep(Epochs(), heard, subject())
        with world_of(case.ranks), monitor:
            seen, batches = observe(lambda: loop, case, place)
        stated, log = monitored(monitor), loop.log
        rows = stated["epochs"]["rows"]
        self.steps([(row["passes"], row["performed"], row["skipped"]) for row in rows], seen, case, len(batches))
        self.steps([(c.passes, c.performed, c.skipped) for c in log.epochs], seen, case, len(batches))
        self.scaled(stated, seen, case)
        for losses in ([row["loss"] for row in stated["losses"]], log.losses):
            self.losses(losses, heard)
        right = case.size * case.n * case.ranks
        for samples in (stated["effective"]["samples"], log.effective):
            if samples != right:
                raise Refutation(self.clause, f"effective batch {samples}; {right} were averaged")
        self.reports(monitor, len(heard.losses))
        reached = {"a tail"} if case.tail else set()
        reached |= {"a skipped step"} if case.overflow is not None else set()
        reached |= {"several micro-batches"} if case.n > 1 else set()
        reached |= {"several ranks"} if case.ranks > 1 else set()
        return Observed(reached | ({"a second epoch"} if case.epochs > 1 else set()))

    def reports(self, monitor: Monitor, count: int) -> None:
        """The losses that the loop reported are found to be its own."""
        judged = [r.verdict(monitor) for r in monitor.reports]
        if len(judged) != count or not all(right for right, _ in judged):
            raise Refutation(self.clause, f"of {count} losses the loop reported: {judged}")

    def steps(self, rows: Sequence[Any], seen: Seen, case: Case, count: int) -> None:
        """Passes, performed and skipped steps of every epoch."""
        made = []
        for start in range(0, case.epochs * count, count):
            first, last = seen.rows[start], seen.rows[start + count]
            made.append((count, last[1] - first[1], (last[0] - first[0]) - (last[1] - first[1])))
        if rows != made:
            raise Refutation(self.clause, f"passes, performed and skipped steps by epoch: stated {rows}, made {made}")

    def scaled(self, stated: Any, seen: Seen, case: Case) -> None:
        """Performed and skipped steps of the scaler."""
        attempts, performed, _ = seen.rows[-1]
        scaled = [(row["performed"], row["skipped"]) for row in stated["scalers"]]
        if case.overflow is not None and scaled != [(performed, attempts - performed)]:
            raise Refutation(
                self.clause, f"the scaler's steps are reported as {scaled}, of {attempts} it made {performed}"
            )

    def losses(self, rows: Sequence[float | None], heard: Heard) -> None:
        """Every micro-batch's own loss."""
        if len(rows) != len(heard.losses) or any(own is None for own in rows):
            raise Refutation(self.clause, f"{len(heard.losses)} losses, of which {rows} were stated")
        for i, (own, right) in enumerate(zip(rows, heard.losses, strict=True)):
            if own is not None and own != right and not abs(own - right) <= ROOM * abs(right):
                raise Refutation(self.clause, f"loss {i} is reported as {own:.6g}; it is {right:.6g}")


tells_what_happened = TellsWhatHappened()
