"""CrossHair contracts of batch plans, optimizer state, epochs and tails: CROSS-GT-301 to -406 of the training contract.

A second family beside Z3's inductions, with bounds: whole epochs and windows are run, micro-batch by micro-batch.
Sizes are distinguished by cases; gradients and moments are any ints, and each claim is homogeneous in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradproof.core.protocol import Event
from gradproof.harness import Ratio
from models.systems.optimizer_state import Decay, Moments
from models.systems.tails import Held
from symbolic.crosshair_kit import Contract, Numbers, pick, same

LARGEST = 12


def ceiling(batches: int, n: int) -> int:
    """ceil(batches / n)."""
    return -(-batches // n)


def effective_batch(subject: Any) -> Contract:
    """GA-BATCH-001: the product, and each inverse: found exactly where a whole number gives the target."""

    def contract(micro: int, accum: int, world: int, target: int) -> bool:
        """
        pre: 1 <= micro <= 3 and 1 <= accum <= 3 and 1 <= world <= 2 and 1 <= target <= 12
        post: _
        """
        micro, accum, world = pick(micro, 1, 3), pick(accum, 1, 3), pick(world, 1, 2)
        target = pick(target, 1, LARGEST)
        product = sum(micro for _ in range(accum) for _ in range(world))
        for found, other in (
            (subject.accumulation(target, micro, world), micro * world),
            (subject.micro_batch(target, accum, world), accum * world),
        ):
            fits: list[int | None] = [x for x in range(1, LARGEST + 1) if x * other == target]
            if [found] != (fits or [None]):
                return False
        return bool(subject.effective(micro, accum, world) == product)

    return contract


def windows_of(n: int, cycles: int, skip: int) -> Iterator[Event]:
    """Events of whole windows; the scaler skips the step of window `skip`."""
    for cycle in range(cycles):
        yield from (Event.ZERO, *[Event.ACCUMULATE] * n)
        yield from (Event.SKIP,) if cycle == skip else (Event.STEP, Event.SCHEDULE)


def state_once_a_window(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-STATE-001: m, v and t stand still but at a step that is performed, and there move by one step's rule."""

    def contract(n: int, cycles: int, skip: int, g: int, m: int) -> bool:
        """
        pre: 1 <= n <= 2 and 1 <= cycles <= 2 and 0 <= skip <= 2 and 1 <= g <= 2
        post: _
        """
        n, cycles, skip, g = pick(n, 1, 2), pick(cycles, 1, 2), pick(skip, 0, 2), pick(g, 1, 2)
        half = number(1) / 2
        held, want = Moments(number(m), number(1), 0), (number(m), number(1), 0)
        for event in windows_of(n, cycles, skip):
            held = subject.after(event, held, number(g), Decay(half, half, half, half))
            if event is Event.STEP:
                want = ((want[0] + g) / 2, (want[1] + g * g) / 2, want[2] + 1)
            if not (same(held.m, want[0]) and same(held.v, want[1]) and held.t == want[2]):
                return False
        return True

    return contract


def steps_per_epoch(subject: Any) -> Contract:
    """GA-STEP-002: a step after every N-th micro-batch and at the epoch's end; ceil(B/N), and so many are planned."""

    def contract(batches: int, n: int) -> bool:
        """
        pre: 1 <= batches <= 8 and 1 <= n <= 5
        post: _
        """
        batches, n, held, sizes = pick(batches, 1, 8), pick(n, 1, 5), 0, []
        for batch in range(1, batches + 1):
            held += 1
            if subject.ends(held, n, batch, batches):
                sizes.append(held)
                held = 0
        full = all(size == n for size in sizes[:-1])
        return full and sum(sizes) == batches and len(sizes) == ceiling(batches, n) == subject.steps(batches, n)

    return contract


def schedule_within_total(subject: Any) -> Contract:
    """GA-SCHED-001: floor(b/N) attempts after micro-batch b of an epoch, ceil(B/N) at its end, E ceil(B/N) planned.

    There is a schedule for each of them but the skipped one.
    """

    def contract(epochs: int, batches: int, n: int, skip: int) -> bool:
        """
        pre: 1 <= epochs <= 2 and 1 <= batches <= 4 and 1 <= n <= 3 and 0 <= skip <= 2
        post: _
        """
        epochs, batches, n, skip = pick(epochs, 1, 2), pick(batches, 1, 4), pick(n, 1, 3), pick(skip, 0, 2)
        made = schedules = held = 0
        for epoch in range(epochs):
            for batch in range(1, batches + 1):
                closed = bool(subject.ends(held + 1, n, batch, batches))
                held, made = (0, made + 1) if closed else (held + 1, made)
                schedules += subject.schedules(closed, closed and made == skip)
                attempts = epoch * ceiling(batches, n) + (ceiling(batches, n) if batch == batches else batch // n)
                if made != attempts or schedules != attempts - (1 <= skip <= attempts):
                    return False
        return bool(subject.total(epochs, batches, n) == epochs * ceiling(batches, n))

    return contract


def length_of_a_window(subject: Any) -> Contract:
    """GA-SCHED-002: whatever N is at each micro-batch, a window closes when it holds the N that it opened with."""

    def contract(n1: int, n2: int, n3: int, n4: int) -> bool:
        """
        pre: 1 <= n1 <= 3 and 1 <= n2 <= 3 and 1 <= n3 <= 3 and 1 <= n4 <= 3
        post: _
        """
        opened = held = 0
        for now in (pick(n1, 1, 3), pick(n2, 1, 3), pick(n3, 1, 3), pick(n4, 1, 3)):
            opened, held = (now, 1) if held == 0 else (opened, held + 1)
            closes = held == subject.length(opened, now)
            if closes != (held == opened):
                return False
            held = 0 if closes else held
        return True

    return contract


def tail_by_what_it_holds(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-TAIL-001: a window of r <= N micro-batches gives sum c g / sum c, a short last one included."""

    def contract(n: int, r: int, last: int, g1: int, g2: int, g3: int) -> bool:
        """
        pre: 1 <= r <= n <= 3 and 1 <= last <= 2
        post: _
        """
        n, r, last = pick(n, 1, 3), pick(r, 1, 3), pick(last, 1, 2)
        counts, grads = [2] * (r - 1) + [last], (g1, g2, g3)[:r]
        held, buffer = Held(n, r, sum(counts), 2), number(0)
        for count, g in zip(counts, grads, strict=True):
            buffer = buffer + subject.share(number(g), count, held)
        return same(buffer * sum(counts), number(sum(c * g for c, g in zip(counts, grads, strict=True))))

    return contract


def inverse_is_found(subject: Any) -> Contract:
    """A target that a window of several micro-batches on several ranks gives."""

    def contract(target: int) -> bool:
        """
        pre: 1 <= target <= 12
        post: not _
        """
        return bool(subject.accumulation(pick(target, 1, LARGEST), 2, 2) == 3)

    return contract


def step_is_skipped(subject: Any, number: Numbers = Ratio) -> Contract:
    """A skipped step after a performed one, with a moment other than zero."""

    def contract(m: int) -> bool:
        """
        post: not _
        """
        one = number(1)
        held = Moments(number(m), one, 0)
        for event in (Event.STEP, Event.SKIP):
            held = subject.after(event, held, one, Decay(one, one, one, one))
        return held.t == 1 and not same(held.m, number(0))

    return contract


def ends_with_a_tail(subject: Any) -> Contract:
    """An epoch whose last window is short."""

    def contract(batches: int) -> bool:
        """
        pre: 1 <= batches <= 5
        post: not _
        """
        batches = pick(batches, 1, 5)
        return bool(subject.ends(1, 2, batches, batches)) and subject.steps(batches, 2) == 3

    return contract


def schedules_less(subject: Any) -> Contract:
    """A step without a schedule, and a plan of several steps."""

    def contract(batches: int) -> bool:
        """
        pre: 1 <= batches <= 5
        post: not _
        """
        return bool(subject.schedules(True, True) == 0 and subject.total(2, pick(batches, 1, 5), 2) == 6)

    return contract


def length_changes(subject: Any) -> Contract:
    """An N that changed inside a window, and did not change its length."""

    def contract(now: int) -> bool:
        """
        pre: 1 <= now <= 3
        post: not _
        """
        now = pick(now, 1, 3)
        return now != 2 and bool(subject.length(2, now) == 2)

    return contract


def short_micro_batch(subject: Any, number: Numbers = Ratio) -> Contract:
    """A share that is smaller because its micro-batch is short, and not zero."""

    def contract(g: int) -> bool:
        """
        post: not _
        """
        held = Held(3, 2, 3, 2)
        short, whole = subject.share(number(g), 1, held), subject.share(number(g), 2, held)
        return not same(short, number(0)) and same(short * 2, whole)

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "effective_batch": (inverse_is_found,),
    "state_once_a_window": (step_is_skipped,),
    "steps_per_epoch": (ends_with_a_tail,),
    "schedule_within_total": (schedules_less,),
    "length_of_a_window": (length_changes,),
    "tail_by_what_it_holds": (short_micro_batch,),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "effective_batch": {"micro_batches": 3, "samples": 3, "ranks": 2, "target": LARGEST},
    "state_once_a_window": {"micro_batches": 2, "cycles": 2, "gradients": 2},
    "steps_per_epoch": {"batches": 8, "micro_batches": 5},
    "schedule_within_total": {"epochs": 2, "batches": 4, "micro_batches": 3},
    "length_of_a_window": {"batches": 4, "micro_batches": 3},
    "tail_by_what_it_holds": {"micro_batches": 3, "samples": 2},
}
