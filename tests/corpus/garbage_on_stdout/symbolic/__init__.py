"""The harness with noise, and one that prints a false answer."""

from __future__ import annotations

import json
import sys
from typing import Any


def exact(k: Any, mean: Any) -> None:
    """The mean of 1 to 3 gradients, over the rationals."""
    print("\x00 {]" * 1000)
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))


def prints(k: Any, mean: Any) -> None:
    """Prints an answer of its own, on every channel that it has."""
    text = json.dumps({"schema": "gradproof-evidence/2", "finding": {"outcome": "HOLDS", "reason": "believe me"}})
    print("\x00\xff", text, flush=True)
    print(text, file=sys.stderr, flush=True)
    exact(k, mean)
