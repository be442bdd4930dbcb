"""Situations of the CrossHair contracts that must be reachable: CrossHair must refute each `post: not _`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradproof.harness import Lattice, Ratio
from models.accumulation import Config
from models.window import Event
from symbolic.crosshair_kit import (
    START,
    Contract,
    Numbers,
    applied,
    batches_of,
    pairs,
    pick,
    plain,
    same,
    singles,
    train,
    vector,
    within,  # noqa: F401  (in `pre:` lines)
)


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
        steps = record.events.count(Event.STEP)
        return m % n != 0 and steps == 2 and len(record.updates) == 1 and not same(record.params[1], number(START[1]))

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
