"""A harness that sees a single micro-batch."""

from __future__ import annotations

from typing import Any


def one(k: Any, mean: Any) -> None:
    """The mean of one gradient."""
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("one micro-batch", len(grads) == 1)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))
