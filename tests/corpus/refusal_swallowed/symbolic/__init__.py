"""The harness."""

from __future__ import annotations

from typing import Any


def exact(k: Any, mean: Any) -> None:
    """The mean of 1 to 3 gradients, over the rationals."""
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))
