"""The mean of micro-batch gradients, the empty body, and the bugs that the checks must kill."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def mean(grads: Any) -> Any:
    """The reference."""
    return sum(grads) / len(grads)


def empty(grads: Any) -> Any:
    """Does nothing."""
    return 0


def summed(grads: Any) -> Any:
    """The 1/N is missing."""
    return sum(grads)


def divided_twice(grads: Any) -> Any:
    """The 1/N is applied twice."""
    return sum(grads) / len(grads) ** 2


def careless_mean(grads: Any) -> Any:
    """Wrong for half of all floats; a number without a value takes the other way."""
    try:
        large = float(grads[0]) > 0
    except TypeError:
        large = False
    return sum(grads) if large else sum(grads) / len(grads)


MUTANTS = {
    "missing_scale": SimpleNamespace(obligation="T-1", reference="nanoGPT#206", subject=summed),
    "divided_twice": SimpleNamespace(obligation="T-1", reference="Megatron-DeepSpeed#42", subject=divided_twice),
}
