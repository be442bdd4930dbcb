"""Steps, schedules and changing windows of whole epochs: KANI-GT-401 to -405 of the training contract.

Every claim is an induction over micro-batches, for every B, N, E >= 1. ceil(B/N) is not computed by the harness: it is
the only integer c with N (c - 1) < B <= N c. A division of the subject's is a quotient q and a rest r of the harness's
with a = b q + r and 0 <= r < b.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symbolic.accumulation.window import Counts

STEPS, SCHEDULE, WINDOWS = "GA-STEP-002", "GA-SCHED-001", "GA-SCHED-002"


def division(k: Any, at: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Floor division by a positive number: quotient and rest are inputs that satisfy its definition."""
    made = 0

    def divide(a: Any, b: Any) -> tuple[Any, Any]:
        nonlocal made
        if isinstance(a, int) and isinstance(b, int):
            return divmod(a, b)
        made += 1
        q, r = k.int(f"quotient {made} {at}"), k.int(f"rest {made} {at}")
        k.assume((a == b * q + r) & (r >= 0) & (r < b))
        return q, r

    return divide


def is_ceiling(steps: Any, batches: Any, n: Any) -> Any:
    """Whether `steps` is ceil(batches / n)."""
    return (n * (steps - 1) < batches) & (batches <= n * steps)


def positive(k: Any, *names: str) -> list[Any]:
    """Integers of at least 1."""
    return [k.int(name, 1) for name in names]


def within_epoch(batch: Any, steps: Any, held: Any, n: Any) -> Any:
    """Inside an epoch: full windows so far, and a part of one."""
    return (batch == n * steps + held) & (held >= 0) & (held < n) & (steps >= 0)


def steps_per_epoch(k: Any, loop: Any) -> None:
    """GA-STEP-002: an epoch of B micro-batches at N a window makes ceil(B/N) steps, and so many were planned."""
    planned, data = positive(k, "B planned", "N planned"), positive(k, "B", "N")
    done = [k.int(name, 0) for name in ("batch", "steps", "held")]
    k.inductive(lambda: _planned(k, loop, *planned), lambda: _micro_batch(k, loop, *data, *done))


def _planned(k: Any, loop: Any, batches: Any, n: Any) -> None:
    """The fresh epoch, and the plan."""
    k.check(STEPS, within_epoch(0, 0, 0, n), "a fresh epoch")
    planned = loop.steps(batches, n, division(k, "planned"))
    k.cover("a plan with a tail", n * planned != batches)
    k.check(STEPS, is_ceiling(planned, batches, n), "the plan is ceil(B/N)")


def _micro_batch(k: Any, loop: Any, batches: Any, n: Any, batch: Any, steps: Any, held: Any) -> None:
    """One more micro-batch."""
    k.assume(batch < batches)
    k.assume(within_epoch(batch, steps, held, n))
    batch, held = batch + 1, held + 1
    if bool(loop.ends(held, n, batch, batches)):
        steps, held = steps + 1, held * 0
    if bool(batch == batches):
        k.cover("an epoch with a tail ends", batches < n * steps)
        k.cover("an epoch without a tail ends", batches == n * steps)
        k.check(STEPS, held == 0, "nothing is left unapplied")
        k.check(STEPS, is_ceiling(steps, batches, n), "ceil(B/N) steps")
    else:
        k.cover("a window closes inside the epoch", (held == 0) & (steps > 1))
        k.check(STEPS, within_epoch(batch, steps, held, n), "a step every N micro-batches")


def schedule_within_total(k: Any, loop: Any) -> None:
    """GA-SCHED-001: scheduler steps = performed steps at every micro-batch, never above epochs x ceil(B/N)."""
    planned = positive(k, "E planned", "B planned", "N planned", "ceil(B/N) planned")
    g = Counts(**dict(zip(("batches", "n", "c"), positive(k, "B", "N", "ceil(B/N)"), strict=True)))
    for name in ("before", "left", "steps", "more", "batch", "held", "skipped", "schedules"):
        setattr(g, name, k.int(name, 0))
    k.inductive(lambda: _fresh(k, loop, *planned), lambda: _scheduled(k, loop, g))


def _fresh(k: Any, loop: Any, epochs: Any, batches: Any, n: Any, c: Any) -> None:
    """Nothing is scheduled yet, and the plan is what E epochs attempt."""
    k.assume(is_ceiling(c, batches, n))
    total = loop.total(epochs, batches, n, division(k, "planned"))
    k.cover("more than one epoch with a tail", (epochs > 1) & (n * c != batches))
    k.check(SCHEDULE, total == epochs * c, "total_steps = epochs x ceil(B/N)")


def _scheduled(k: Any, loop: Any, g: Any) -> None:
    """One more micro-batch of an epoch: `before` attempts were made in the epochs before it, ceil(B/N) in each.

    `left` epochs follow this one, so that total_steps is before + ceil(B/N) + left ceil(B/N); `more` windows of this
    one are still to close. Attempts after micro-batch b of an epoch are floor(b/N), and ceil(B/N) at its end: where the
    subject closes a window elsewhere, no number satisfies this.
    """
    batches, n, c, before, left, steps, more = g.batches, g.n, g.c, g.before, g.left, g.steps, g.more
    batch, held, skipped, schedules = g.batch, g.held, g.skipped, g.schedules
    k.assume((batch < batches) & (c == steps + more) & (more >= 1))
    k.assume(is_ceiling(c, batches, n) & within_epoch(batch, steps, held, n))
    k.assume(schedules + skipped == before + steps)
    batch, held = batch + 1, held + 1
    closes, skips = bool(loop.ends(held, n, batch, batches)), k.choose("the scaler skips", [False, True])
    schedules = schedules + loop.schedules(closes, skips)
    skipped = skipped + int(closes and skips)
    if closes:
        steps, more, held = steps + 1, more - 1, held * 0
    k.cover("a skipped step at the epoch's end", (batch == batches) & (skipped > 0) & (left > 1))
    if bool(batch == batches):
        k.check(SCHEDULE, (more == 0) & (held == 0), "the epoch made ceil(B/N) attempts")
        k.check(SCHEDULE, (left > 0) | (skipped > 0) | (schedules == before + c), "all of total_steps without a skip")
    else:
        k.check(SCHEDULE, (more >= 1) & within_epoch(batch, steps, held, n), "floor(b/N) attempts, and more to come")
    k.check(SCHEDULE, schedules + skipped == before + steps, "a schedule for each performed step, none for a skipped")
    k.check(SCHEDULE, schedules <= before + c + left * c, "within total_steps")


def length_of_a_window(k: Any, loop: Any) -> None:
    """GA-SCHED-002: N may change with every micro-batch, and yet a window has one length: its shares add up to 1."""
    first, later = positive(k, "N when it opens", "N with its first"), positive(k, "N when it opened", "N now", "held")
    filled = k.real("filled")
    k.inductive(lambda: _opened(k, loop, *first), lambda: _shares(k, loop, filled, *later))


def _opened(k: Any, loop: Any, opened: Any, now: Any) -> None:
    """The first micro-batch of a window that opened with N: the window is N long."""
    length = loop.length(opened, now)
    k.check(WINDOWS, (length >= 1) & (length == opened), "its first micro-batch has the share 1/N")


def _shares(k: Any, loop: Any, filled: Any, opened: Any, now: Any, held: Any) -> None:
    """One more micro-batch of a window that opened with N; `filled` is the sum of the shares so far."""
    part = k.choose("part", ["where it ends", "its shares"])
    k.assume(held <= opened)
    k.cover("N changes inside the window", (now != opened) & (held > 1))
    length = loop.length(opened, now)
    k.check(WINDOWS, length >= 1, "a window has a micro-batch")
    if part == "where it ends":
        closes = bool(held == length)
        k.check(
            WINDOWS, (held == opened) if closes else (held < opened), "it closes when it holds the N it opened with"
        )
        return
    k.assume(filled * opened == held - 1)
    k.check(WINDOWS, (filled + (held - held + 1) / length) * opened == held, "each micro-batch has the same share")
