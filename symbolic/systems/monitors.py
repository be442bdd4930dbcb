"""What a monitor counts over whole epochs, for every size: KANI-GT-411 of the training contract.

An induction over micro-batches: of B micro-batches at N a window, w windows are closed and s of their steps skipped.
ceil(B/N) is not computed: it is the only integer c with N (c - 1) < B <= N c.
"""

from __future__ import annotations

from typing import Any

from gradproof.monitoring import Counts
from symbolic.systems.epochs import is_ceiling, positive, within_epoch

CLAUSE = "GA-MON-001"


def tells_what_happened(k: Any, tally: Any) -> None:
    """GA-MON-001: steps an epoch, effective batch and losses are those of the loop, at every micro-batch."""
    sizes = positive(k, "B", "N", "micro", "world")
    done = [k.int(name, 0) for name in ("batch", "closed", "held", "skipped")]
    before = Counts(*(k.int(f"{name} before", 0) for name in ("passes", "performed", "skipped")))
    numbers = [k.real(name) for name in ("loss", "divisor", "scale", "handed", "handed before")]
    k.inductive(lambda: _fresh(k, tally, before, numbers), lambda: _micro_batch(k, tally, sizes, done))


def _is(c: Counts, batch: Any, closed: Any, skipped: Any, held: Any, micro: Any) -> Any:
    """Counts that are what happened in this epoch."""
    steps = (c.performed + c.skipped == closed) & (c.skipped == skipped)
    return (c.passes == batch) & steps & (c.held == held) & (c.samples == micro * held)


def _fresh(k: Any, tally: Any, before: Counts, numbers: list[Any]) -> None:
    """A new epoch after any other; and a loss."""
    k.cover("an epoch before with steps of both kinds", (before.performed > 1) & (before.skipped > 1))
    k.check(CLAUSE, _is(tally.epoch(before), 0, 0, 0, 0, 1), "a new epoch counts from nothing")
    loss, divisor, scale, handed, earlier = numbers
    k.assume((divisor > 0) & (scale > 0) & (handed * divisor == loss * scale))
    k.cover("a window that goes on", (divisor > 1) & (earlier > 0) & (scale > 1) & (loss > 0))
    k.check(CLAUSE, k.same(tally.loss(handed, divisor, scale, earlier), loss), "the loss is the micro-batch's own")


def _micro_batch(k: Any, tally: Any, sizes: list[Any], done: list[Any]) -> None:
    """One more micro-batch, and the step where its window closes."""
    batches, n, micro, world = sizes
    batch, closed, held, skipped = done
    k.assume((batch < batches) & within_epoch(batch, closed, held, n) & (skipped <= closed))
    counts = Counts(batch, closed - skipped, skipped, held, micro * held)
    counts = tally.micro_batch(counts, micro)
    batch, held = batch + 1, held + 1
    k.check(CLAUSE, _is(counts, batch, closed, skipped, held, micro), "a micro-batch is no step")
    if not bool((held == n) | (batch == batches)):
        k.cover("inside a window", closed > 0)
        return
    effective = tally.effective(counts.samples, world)
    k.cover("a full window on several ranks", (held == n) & (world > 1) & (n > 1))
    k.check(CLAUSE, effective == micro * held * world, "effective = micro x micro-batches of the window x world")
    skips = k.choose("the scaler skips", [False, True])
    counts = tally.attempt(counts, skips)
    closed, skipped = closed + 1, skipped + int(skips)
    k.cover("skipped" if skips else "performed", closed > 1)
    k.check(CLAUSE, _is(counts, batch, closed, skipped, 0, micro), "a step is performed or skipped, and one a window")
    if bool(batch == batches):
        k.cover("an epoch with a tail ends" if skips else "an epoch ends", batches < n * closed)
        k.check(CLAUSE, is_ceiling(counts.performed + counts.skipped, batches, n), "ceil(B/N) steps, the skipped among")
