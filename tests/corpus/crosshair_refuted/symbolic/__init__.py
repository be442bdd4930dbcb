"""The harness for Z3, and a contract for CrossHair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradproof.arith.soft import Ratio


def exact(k: Any, mean: Any) -> None:
    """The mean of 1 to 3 gradients, over the rationals."""
    grads = k.reals("g", k.upto("micro_batches"), -1, 1)
    k.cover("three micro-batches", len(grads) == 3)
    k.check("T-1", k.same(mean(grads) * len(grads), sum(grads)))


def mean_is_exact(subject: Any) -> Callable[[int, int, int], bool]:
    """The mean of one or two integers times their number is their sum."""

    def contract(n: int, a: int, b: int) -> bool:
        """
        pre: 1 <= n <= 2
        post: _
        """
        grads = (Ratio(a), Ratio(b))[:n]
        return bool(subject(grads) * n == sum(grads, Ratio(0)))

    return contract


def two(subject: Any) -> Callable[[int, int, int], bool]:
    """Two micro-batches that differ."""

    def contract(n: int, a: int, b: int) -> bool:
        """
        pre: 1 <= n <= 2
        post: not _
        """
        return n == 2 and a != b

    return contract


COVERS = {"mean_is_exact": (two,)}
BOUNDS = {"mean_is_exact": {"micro_batches": 2}}
