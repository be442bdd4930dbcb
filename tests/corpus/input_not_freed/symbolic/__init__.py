"""The harness."""

from __future__ import annotations

from typing import Any

from models import Config


def exact(k: Any, mean: Any) -> None:
    """The mean of 1 to 3 gradients on any scale, over the rationals."""
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    config = Config(k.real("scale"), weighted=k.choose("weighted", [False, True]))
    k.scenario(config, grads=grads)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads, config) * len(grads), config.scale * sum(grads)))
