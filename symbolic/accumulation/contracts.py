"""CrossHair contracts of the accumulation loop, one factory an obligation, over integers and exact rationals.

A factory takes a subject (an instance of the reference or of anything with its interface; it is never stated which) and
gives a function of plain ints whose docstring states the bounds (`pre:`) and the claim (`post:`). The model runs on
`Ratio`, so that every comparison is linear in the symbolic integers. A gradient has two elements that do not depend on
each other (g and h), so that a subject must treat every element alike; the clip's has one, because its norm is a root.
The claims on gradients and losses hold for all integers; both sides of each are homogeneous of degree 1, so they hold
for all rationals as well. The clip and the buffer claim are not homogeneous: they hold for the integers, and for the
multiples of 1/64, that their text names.

A second factory argument swaps the number system: with `float` the same contract runs on real float32, which is how a
counterexample is replayed. `COVERS` names, for each contract, situations whose unreachability (`post: not _`)
CrossHair must refute; `BOUNDS` what its `pre:` lines and its arguments reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradproof.core.protocol import Event
from gradproof.harness import Lattice, Ratio
from models.accumulation.loop import Config
from symbolic.crosshair_kit import (
    RATE,
    START,
    Contract,
    Numbers,
    applied,
    batches_of,
    clip_inputs,
    clipped,
    kept,
    means,
    moved,
    pairs,
    pick,
    plain,
    same,
    singles,
    train,
    vector,
    windows,
    within,  # noqa: F401  (in `pre:` lines)
)

# -- Situations of the CrossHair contracts that must be reachable: CrossHair must refute each `post: not _`.


def ends_on_a_tail(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run whose last window is short and whose last applied gradient has two elements that differ, none of them 0."""

    def contract(n: int, g: int, h: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: not _
        """
        n = pick(n, 1, 4)
        updates = applied(train(subject, n, [(g, h)] * 4, number))
        if 4 % n == 0 or not updates:
            return False
        first, second = updates[-1]
        return not same(first, second) and not same(first, 0) and not same(second, 0)

    return contract


def counts_differ(subject: Any, number: Numbers = Ratio) -> Contract:
    """A window of unequal counts whose plain mean is another number than the applied gradient."""

    def contract(c: int, g1: int, g2: int) -> bool:
        """
        pre: 1 <= c <= 3
        post: not _
        """
        first, second = batches_of(singles((g1, g2)), number)
        zero = vector((0,), number)
        batches = [replace(first, count=pick(c, 1, 3)), second]
        updates = applied(subject.run(zero, batches, Config(n=2), zero))
        return len(updates) == 1 and not same(updates[0][0] * 2, number(g1 + g2))

    return contract


def reports_a_loss(subject: Any, number: Numbers = Ratio) -> Contract:
    """A full and a short window that report two different losses."""

    def contract(l1: int, l2: int, l3: int) -> bool:
        """
        pre: True
        post: not _
        """
        losses = train(subject, 2, [(1, 2)] * 3, number, losses=(l1, l2, l3)).losses
        return len(losses) == 2 and not same(losses[0], losses[1])

    return contract


def starts_dirty(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run that starts on a buffer without a zero element and applies two gradients without one."""

    def contract(a: int, b: int, g1: int, g2: int, h1: int, h2: int) -> bool:
        """
        pre: a != 0 and b != 0
        post: not _
        """
        updates = applied(train(subject, 1, pairs((g1, g2), (h1, h2)), number, (a, b)))
        return len(updates) == 2 and all(not same(x, 0) for update in updates for x in update)

    return contract


def skips_a_step(subject: Any, number: Numbers = Ratio) -> Contract:
    """Two attempts, one of which the scaler skips, a short last window, and weights that moved."""

    def contract(m: int, n: int) -> bool:
        """
        pre: 1 <= m <= 4 and 1 <= n <= 4
        post: not _
        """
        m, n = pick(m, 1, 4), pick(n, 1, 4)
        record = train(subject, n, [(1, 2)] * m, number, start=START, skip=frozenset({0}))
        tried = record.events.count(Event.STEP) + record.events.count(Event.SKIP)
        return m % n != 0 and tried == 2 and len(record.updates) == 1 and not same(record.params[1], number(START[1]))

    return contract


def exceeds_half_precision(subject: Any, number: Numbers = Lattice) -> Contract:
    """fp16 gradients whose sum no fp16 number can hold, averaged in a buffer that holds it: the second element."""

    def contract(h1: int, h2: int) -> bool:
        """
        pre: within(2**11, h1, h2)
        post: not _
        """
        rows = pairs((0,) * 8, (h1, h2, 0, 0, 0, 0, 0, 0))
        updates = applied(train(subject, 8, rows, lambda g: number(g) / 64, losses=(0,) * 8, gradient_format="fp16"))
        return len(updates) == 1 and h1 + h2 > 2**11 and (h1 + h2) % 2 == 1 and plain(updates[0][1]) * 512 == h1 + h2

    return contract


def reaches_24_bits(subject: Any, number: Numbers = Lattice) -> Contract:
    """A sum of 2^24 units less one: the last integer that needs every bit of fp32."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: within(2**21, g1, g2)
        post: not _
        """
        rows = singles((g1,) * 7 + (g2,))
        updates = applied(train(subject, 8, rows, lambda g: number(g) / 64, losses=(0,) * 8))
        return len(updates) == 1 and plain(updates[0][0]) * 512 == 2**24 - 1

    return contract


def cancels(subject: Any, number: Numbers = Ratio) -> Contract:
    """Micro-batches that each exceed max_norm while their mean does not: clipping each would change the result."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: g1 > 2 and g2 < -2
        post: not _
        """
        updates = applied(train(subject, 2, singles((g1, g2)), number, max_norm=1, loss_scale=4))
        return len(updates) == 1 and not same(updates[0][0], 0) and same(updates[0][0] * 2, number(g1 + g2))

    return contract


def clips_twice(subject: Any, number: Numbers = Ratio) -> Contract:
    """Two windows whose means both exceed max_norm and are both cut down."""

    def contract(g1: int, g2: int, g3: int) -> bool:
        """
        pre: g1 + g2 > 2 and g3 > 1
        post: not _
        """
        updates = applied(train(subject, 2, singles((g1, g2, g3)), number, max_norm=1, loss_scale=4))
        return (
            len(updates) == 2 and not same(updates[0][0] * 2, number(g1 + g2)) and not same(updates[1][0], number(g3))
        )

    return contract


# -- The harnesses


def numerical_equivalence(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-EQ-001: every applied gradient is the full-batch gradient of its window, the short last one included."""

    def contract(n: int, g1: int, g2: int, g3: int, g4: int, h1: int, h2: int, h3: int, h4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n, rows = pick(n, 1, 4), pairs((g1, g2, g3, g4), (h1, h2, h3, h4))
        return means(applied(train(subject, n, rows, number)), windows(rows, n), number)

    return contract


def unequal_counts(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-EQ-001 with ragged micro-batches: the applied gradient is the sum of count * g over the sum of the counts."""

    def contract(c1: int, c2: int, c3: int, g1: int, g2: int, g3: int, h1: int, h2: int, h3: int) -> bool:
        """
        pre: 1 <= c1 <= 3 and 1 <= c2 <= 3 and 1 <= c3 <= 3
        post: _
        """
        counts = [pick(c, 1, 3) for c in (c1, c2, c3)]
        rows = pairs((g1, g2, g3), (h1, h2, h3))
        batches = [replace(b, count=c) for b, c in zip(batches_of(rows, number), counts, strict=True)]
        zero = vector((0, 0), number)
        updates = applied(subject.run(zero, batches, Config(n=3), zero))
        totals = [number(sum(c * row[e] for c, row in zip(counts, rows, strict=True))) for e in (0, 1)]
        return (
            len(updates) == 1
            and len(updates[0]) == 2
            and all(same(x * sum(counts), t) for x, t in zip(updates[0], totals, strict=True))
        )

    return contract


def loss_mean(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-001: the loss reported for a window, a short last one too, is the mean of its micro-batch losses."""

    def contract(n: int, l1: int, l2: int, l3: int, l4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n, losses = pick(n, 1, 4), (l1, l2, l3, l4)
        record = train(subject, n, pairs((1, 2, 3, 4), (-5, 7, 11, 0)), number, losses=losses)
        return means([(loss,) for loss in record.losses], windows(singles(losses), n), number)

    return contract


def no_stale_gradient(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-002: zeroing leaves 0, each window starts from its own share alone, and nothing of it is lost.

    The window that the loss scaler skips (none for skip = 4) leaves nothing behind either.
    """

    def contract(
        n: int, skip: int, a: int, b: int, g1: int, g2: int, g3: int, g4: int, h1: int, h2: int, h3: int, h4: int
    ) -> bool:
        """
        pre: 1 <= n <= 4 and 0 <= skip <= 4
        post: _
        """
        n, skip, rows = pick(n, 1, 4), pick(skip, 0, 4), pairs((g1, g2, g3, g4), (h1, h2, h3, h4))
        record = train(subject, n, rows, number, (a, b), skip=frozenset({skip}))
        seen = list(zip(record.events, record.values, strict=True))
        sums = [value for event, value in seen if event is Event.ACCUMULATE]
        parts = windows(rows, n)
        return (
            all(same(x, 0) for event, value in seen if event is Event.ZERO for x in value)
            and len(sums) == len(rows)
            and all(
                same(x * len(part), number(g))
                for i, part in enumerate(parts)
                for x, g in zip(sums[i * n], part[0], strict=True)
            )
            and means(applied(record), kept(parts, {skip}), number)
        )

    return contract


def attempts(m: int, n: int, skip: int) -> list[Event]:
    """What happens to m micro-batches in windows of n, apart from zeroing, unscaling and clipping."""
    events: list[Event] = []
    for i in range(1, m + 1):
        events.append(Event.ACCUMULATE)
        if i % n == 0 or i == m:
            events += [Event.SKIP] if (i - 1) // n == skip else [Event.STEP, Event.SCHEDULE]
    return events


def step_count(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-003: ceil(m/n) step attempts, each right after its window is full, and no gradient left unapplied.

    A step that the scaler skips is an attempt: it leaves the weights and the schedule alone. Every other one moves the
    weights by the learning rate times what it applies, and by nothing else, and the schedule follows it at once.
    """

    def contract(m: int, n: int, skip: int, g: int, h: int) -> bool:
        """
        pre: 1 <= m <= 6 and 1 <= n <= 4 and 0 <= skip <= 2
        post: _
        """
        m, n, skip = pick(m, 1, 6), pick(n, 1, 4), pick(skip, 0, 2)
        rows = [(g + i, h - 2 * i) for i in range(m)]
        record = train(subject, n, rows, number, start=START, learning_rate=RATE, skip=frozenset({skip}))
        kinds = (Event.ACCUMULATE, Event.STEP, Event.SKIP, Event.SCHEDULE)
        return (
            [event for event in record.events if event in kinds] == attempts(m, n, skip)
            and means(applied(record), kept(windows(rows, n), {skip}), number)
            and moved(record, START, RATE, number)
        )

    return contract


def buffer_precision(subject: Any, number: Numbers = Lattice) -> Contract:
    """GA-INV-004, by value: N = 8 gradients, multiples of 1/64, are averaged without any rounding error.

    Their shares add up to at most 2^24 units of 1/512, which an fp32 buffer holds exactly (rule S5) and a 16-bit buffer
    does not; none overflows fp16. With `half`, the gradients are those of an fp16 backward pass. In the second
    element the first, the fourth and the last micro-batch have a gradient.
    """

    def contract(
        half: bool, g1: int, g2: int, g3: int, g4: int, g5: int, g6: int, g7: int, g8: int, h1: int, h2: int, h3: int
    ) -> bool:
        """
        pre: within(2**11 if half else 2**21, g1, g2, g3, g4, g5, g6, g7, g8, h1, h2, h3)
        post: _
        """
        columns = (g1, g2, g3, g4, g5, g6, g7, g8), (h1, 0, 0, h2, 0, 0, 0, h3)
        form = "fp16" if half else None
        record = train(subject, 8, pairs(*columns), lambda g: number(g) / 64, losses=(0,) * 8, gradient_format=form)
        updates = applied(record)
        return (
            len(updates) == 1
            and len(updates[0]) == 2
            and all(plain(x) * 512 == sum(column) for x, column in zip(updates[0], columns, strict=True))
        )

    return contract


def clip_after_accumulate(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-005: one clip a window, of the whole unscaled mean, before the step, to at most max_norm = 1.

    A full window of n and, for n < 4, a tail of one. One element, so that the norm is |mean|; the loss scale is 4, so
    that clipping the scaled gradient gives another number.
    """

    def contract(n: int, g1: int, g2: int, g3: int, g4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n = pick(n, 1, 4)
        rows = singles((g1, g2, g3, g4)[: n + 1])
        record = train(subject, n, rows, number, max_norm=1, loss_scale=4)
        parts, updates = windows(rows, n), applied(record)
        return (
            means(clip_inputs(record, n), parts, number)
            and len(updates) == len(parts)
            and all(
                len(x) == 1 and clipped(x[0], number(sum(g for (g,) in part)) / len(part))
                for x, part in zip(updates, parts, strict=True)
            )
        )

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "numerical_equivalence": (ends_on_a_tail,),
    "unequal_counts": (counts_differ,),
    "loss_mean": (reports_a_loss,),
    "no_stale_gradient": (starts_dirty,),
    "step_count": (skips_a_step,),
    "buffer_precision": (exceeds_half_precision, reaches_24_bits),
    "clip_after_accumulate": (cancels, clips_twice),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "numerical_equivalence": {"micro_batches": 4, "elements": 2},
    "unequal_counts": {"micro_batches": 3, "samples": 3, "elements": 2},
    "loss_mean": {"micro_batches": 4},
    "no_stale_gradient": {"micro_batches": 4, "elements": 2},
    "step_count": {"micro_batches": 6, "window": 4, "elements": 2},
    "buffer_precision": {"micro_batches": 8, "elements": 2},
    "clip_after_accumulate": {"micro_batches": 4, "elements": 1},
}
