"""CrossHair contracts of the accumulation loop, one factory an obligation, over integers and exact rationals.

A factory takes a subject (an instance of the reference or of anything with its interface; it is never told which) and
gives a function of plain ints whose docstring states the bounds (`pre:`) and the claim (`post:`). The model runs on
`Ratio`, so that every comparison is linear in the symbolic integers. The claims on gradients and losses hold for all
integers; both sides of each are homogeneous of degree 1, so they hold for all rationals as well. The clip and the
buffer claim are not homogeneous: they hold for the integers, and for the multiples of 1/64, that their text names.

A second factory argument swaps the number system: with `float` the same contract runs on real float32, which is how a
counterexample is replayed. `COVERS` names, for each contract, situations whose unreachability (`post: not _`)
CrossHair must refute; `BOUNDS` what its `pre:` lines and its arguments reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradproof.arith.ratio import Lattice, Ratio
from models.accumulation import Config, MicroBatch
from models.window import Event, window_sizes
from symbolic.crosshair_kit import (
    Contract,
    Numbers,
    applied,
    clip_inputs,
    clipped,
    means,
    pick,
    plain,
    same,
    train,
    windows,
    within,  # noqa: F401  (in `pre:` lines)
)


def numerical_equivalence(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-EQ-001: every applied gradient is the full-batch gradient of its window, the short last one included."""

    def contract(n: int, g1: int, g2: int, g3: int, g4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n, grads = pick(n, 1, 4), (g1, g2, g3, g4)
        record = train(subject, n, grads, number)
        return means(applied(record), windows(grads, n), number)

    return contract


def ends_on_a_tail(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run whose last window is short and whose last applied gradient is not zero."""

    def contract(n: int, g1: int, g2: int, g3: int, g4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: not _
        """
        n = pick(n, 1, 4)
        updates = applied(train(subject, n, (g1, g2, g3, g4), number))
        return 4 % n != 0 and len(updates) > 0 and not same(updates[-1], 0)

    return contract


def unequal_counts(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-EQ-001 with ragged micro-batches: the applied gradient is the sum of count * g over the sum of the counts."""

    def contract(c1: int, c2: int, c3: int, g1: int, g2: int, g3: int) -> bool:
        """
        pre: 1 <= c1 <= 3 and 1 <= c2 <= 3 and 1 <= c3 <= 3
        post: _
        """
        counts = [pick(c, 1, 3) for c in (c1, c2, c3)]
        pairs = list(zip(counts, (g1, g2, g3), strict=True))
        batches = [MicroBatch(number(g), (number(g),), c) for c, g in pairs]
        updates = applied(subject.run((number(0),), batches, Config(n=3), (number(0),)))
        total = number(sum(c * g for c, g in pairs))
        return len(updates) == 1 and same(updates[0] * sum(counts), total)

    return contract


def counts_differ(subject: Any, number: Numbers = Ratio) -> Contract:
    """A window of unequal counts whose plain mean is another number than the applied gradient."""

    def contract(c: int, g1: int, g2: int) -> bool:
        """
        pre: 1 <= c <= 3
        post: not _
        """
        c = pick(c, 1, 3)
        batches = [MicroBatch(number(g1), (number(g1),), c), MicroBatch(number(g2), (number(g2),), 1)]
        updates = applied(subject.run((number(0),), batches, Config(n=2), (number(0),)))
        return len(updates) == 1 and not same(updates[0] * 2, number(g1 + g2))

    return contract


def loss_mean(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-001: the loss reported for a window is the mean of its micro-batch losses."""

    def contract(n: int, l1: int, l2: int, l3: int, l4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n, losses = pick(n, 1, 4), (l1, l2, l3, l4)
        record = train(subject, n, losses, number)
        return means(record.losses, windows(losses, n), number)

    return contract


def reports_a_loss(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run of two windows that reports two different losses."""

    def contract(l1: int, l2: int, l3: int, l4: int) -> bool:
        """
        pre: True
        post: not _
        """
        losses = train(subject, 2, (l1, l2, l3, l4), number).losses
        return len(losses) == 2 and not same(losses[0], losses[1])

    return contract


def no_stale_gradient(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-002: zeroing leaves 0, each window starts from its own share alone, and nothing of it is lost."""

    def contract(n: int, left: int, g1: int, g2: int, g3: int, g4: int) -> bool:
        """
        pre: 1 <= n <= 4
        post: _
        """
        n, grads = pick(n, 1, 4), (g1, g2, g3, g4)
        record = train(subject, n, grads, number, left)
        seen = list(zip(record.events, record.values, strict=True))
        zeroed = all(same(value[0], 0) for event, value in seen if event is Event.ZERO)
        sums = [value[0] for event, value in seen if event is Event.ACCUMULATE]
        parts = windows(grads, n)
        return (
            zeroed
            and len(sums) == len(grads)
            and all(same(sums[i * n] * len(part), number(part[0])) for i, part in enumerate(parts))
            and means(applied(record), parts, number)
        )

    return contract


def starts_dirty(subject: Any, number: Numbers = Ratio) -> Contract:
    """A run that starts on a buffer that is not zero and applies two gradients that are not zero."""

    def contract(left: int, g1: int, g2: int) -> bool:
        """
        pre: left != 0
        post: not _
        """
        updates = applied(train(subject, 1, (g1, g2), number, left))
        return len(updates) == 2 and not same(updates[0], 0) and not same(updates[1], 0)

    return contract


def step_count(subject: Any, number: Numbers = Ratio) -> Contract:
    """GA-INV-003: ceil(m/n) step attempts, each right after its window is full, and no gradient left unapplied.

    A step that the scaler skips is an attempt: it leaves the weight alone.
    """

    def contract(m: int, n: int, skip: int, g: int) -> bool:
        """
        pre: 1 <= m <= 6 and 1 <= n <= 4 and 0 <= skip <= 2
        post: _
        """
        m, n, skip = pick(m, 1, 6), pick(n, 1, 4), pick(skip, 0, 2)
        record = train(subject, n, [g] * m, number, skip=frozenset({skip}))
        filled, sizes = 0, []
        for event in record.events:
            filled += event is Event.ACCUMULATE
            if event is Event.STEP:
                sizes.append(filled)
                filled = 0
        attempts = -(-m // n)
        moves = attempts - (skip < attempts)
        return (
            sizes == window_sizes(m, n)
            and len(sizes) == attempts
            and filled == 0
            and record.events.count(Event.SCHEDULE) == attempts
            and len(record.updates) == moves
            and same(record.params[0], number(-g * moves))
        )

    return contract


def skips_a_step(subject: Any, number: Numbers = Ratio) -> Contract:
    """Two attempts, one of which the scaler skips, and a short last window."""

    def contract(m: int, n: int) -> bool:
        """
        pre: 1 <= m <= 4 and 1 <= n <= 4
        post: not _
        """
        m, n = pick(m, 1, 4), pick(n, 1, 4)
        record = train(subject, n, [1] * m, number, skip=frozenset({0}))
        return m % n != 0 and record.events.count(Event.STEP) == 2 and len(record.updates) == 1

    return contract


def buffer_precision(subject: Any, number: Numbers = Lattice) -> Contract:
    """GA-INV-004, by value: N = 8 gradients, multiples of 1/64, are averaged without any rounding error.

    Their shares add up to at most 2^24 units of 1/512, which an fp32 buffer holds exactly (rule S5) and a 16-bit buffer
    does not; none overflows fp16. With `half`, the gradients are those of an fp16 backward pass.
    """

    def contract(half: bool, g1: int, g2: int, g3: int, g4: int, g5: int, g6: int, g7: int, g8: int) -> bool:
        """
        pre: within(2**11 if half else 2**21, g1, g2, g3, g4, g5, g6, g7, g8)
        post: _
        """
        grads = (g1, g2, g3, g4, g5, g6, g7, g8)
        record = train(subject, 8, grads, lambda g: number(g) / 64, gradient_format="fp16" if half else None)
        updates = applied(record)
        return len(updates) == 1 and plain(updates[0]) * 512 == sum(grads)

    return contract


def exceeds_half_precision(subject: Any, number: Numbers = Lattice) -> Contract:
    """fp16 gradients whose sum no fp16 number can hold, averaged in a buffer that holds it."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: within(2**11, g1, g2)
        post: not _
        """
        grads = (g1, g2, 0, 0, 0, 0, 0, 0)
        updates = applied(train(subject, 8, grads, lambda g: number(g) / 64, gradient_format="fp16"))
        return len(updates) == 1 and g1 + g2 > 2**11 and (g1 + g2) % 2 == 1 and plain(updates[0]) * 512 == g1 + g2

    return contract


def reaches_24_bits(subject: Any, number: Numbers = Lattice) -> Contract:
    """A sum of 2^24 units less one: the last integer that needs every bit of fp32."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: within(2**21, g1, g2)
        post: not _
        """
        updates = applied(train(subject, 8, (g1,) * 7 + (g2,), lambda g: number(g) / 64))
        return len(updates) == 1 and plain(updates[0]) * 512 == 2**24 - 1

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
        grads = (g1, g2, g3, g4)[: n + 1]
        record = train(subject, n, grads, number, max_norm=1, loss_scale=4)
        parts, befores = windows(grads, n), clip_inputs(record, n)
        updates = applied(record)
        return (
            means(befores, parts, number)
            and len(updates) == len(parts)
            and all(clipped(x, number(sum(p)) / len(p)) for x, p in zip(updates, parts, strict=True))
        )

    return contract


def cancels(subject: Any, number: Numbers = Ratio) -> Contract:
    """Micro-batches that each exceed max_norm while their mean does not: clipping each would change the result."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: g1 > 2 and g2 < -2
        post: not _
        """
        updates = applied(train(subject, 2, (g1, g2), number, max_norm=1, loss_scale=4))
        return len(updates) == 1 and not same(updates[0], 0) and same(updates[0] * 2, number(g1 + g2))

    return contract


def clips(subject: Any, number: Numbers = Ratio) -> Contract:
    """A window whose mean exceeds max_norm and is cut down."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: True
        post: not _
        """
        updates = applied(train(subject, 2, (g1, g2), number, max_norm=1, loss_scale=4))
        return len(updates) == 1 and g1 + g2 > 2 and not same(updates[0] * 2, number(g1 + g2))

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "numerical_equivalence": (ends_on_a_tail,),
    "unequal_counts": (counts_differ,),
    "loss_mean": (reports_a_loss,),
    "no_stale_gradient": (starts_dirty,),
    "step_count": (skips_a_step,),
    "buffer_precision": (exceeds_half_precision, reaches_24_bits),
    "clip_after_accumulate": (cancels, clips),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "numerical_equivalence": {"micro_batches": 4},
    "unequal_counts": {"micro_batches": 3, "samples": 3},
    "loss_mean": {"micro_batches": 4},
    "no_stale_gradient": {"micro_batches": 4},
    "step_count": {"micro_batches": 6, "window": 4},
    "buffer_precision": {"micro_batches": 8},
    "clip_after_accumulate": {"micro_batches": 4},
}
