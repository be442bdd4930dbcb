"""Harness KANI-GA-005: clipping applies to the accumulated gradient, once, after unscale.

The clause is stated without a square root of its own, so that the harness does not repeat the model: with b the
exact accumulated gradient, m the largest norm and e = 1e-6 as in torch, the applied u is parallel to b and points
the same way, |u| <= m, u = b where |b| <= m - e, and |u| >= m^2 / (m + e) where |b| >= m.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from models.accumulation import Config, MicroBatch
from models.window import Event, window_sizes
from symbolic.accumulation import mean, run_loop
from symbolic.protocol import follows_the_table

EPSILON = Fraction(1, 10**6)


def dot(a: Any, b: Any) -> Any:
    """Inner product."""
    return sum((x * y for x, y in zip(a[1:], b[1:], strict=True)), a[0] * b[0])


def clip_after_accumulate(k: Any, loop: Any) -> None:
    """GA-INV-005 over the reals, with and without a loss scale, for gradients of up to `elements` elements."""
    n = k.upto("micro_batches")
    width = k.upto("elements")
    scale = k.choose("loss scale", [None, 4])
    limit = Fraction(1)
    grads = [k.reals(f"g{i}", width, -8, 8) for i in range(n)]
    batches = [MicroBatch(0, g) for g in grads]
    config = Config(n, max_norm=limit, loss_scale=scale)
    record = run_loop(k, loop, batches, config, (0,) * width)
    clips = record.events.count(Event.CLIP)
    k.check("GA-INV-005", len(record.updates) == 1 and clips == 1, "one clip and one step a window")
    follows_the_table(k, record.events, window_sizes(n, n), scale is not None)
    total = tuple(mean([g[j] for g in grads]) for j in range(width))
    applied = record.updates[0]
    k.cover("a gradient that is clipped", dot(total, total) > limit * limit)
    k.cover("a gradient that is not clipped", dot(total, total) < (limit - EPSILON) * (limit - EPSILON))
    _is_clipped(k, applied, total, limit)


def _is_clipped(k: Any, applied: Any, total: Any, limit: Fraction) -> None:
    size, before = dot(applied, applied), dot(total, total)
    k.check("GA-INV-005", size <= limit * limit, "norm after clipping <= max_norm")
    k.check("GA-INV-005", dot(applied, total) >= 0, "same direction")
    for x, b in zip(applied[1:], total[1:], strict=True):
        k.check("GA-INV-005", k.same(applied[0] * b, x * total[0]), "parallel to the total")
    inside = (limit - EPSILON) * (limit - EPSILON)
    for x, b in zip(applied, total, strict=True):
        k.check("GA-INV-005", k.same(x, b) | (before > inside), "unchanged inside the ball")
    least = limit * limit / (limit + EPSILON)
    k.check("GA-INV-005", (size >= least * least) | (before < limit * limit), "clipped to the ball, not further")
