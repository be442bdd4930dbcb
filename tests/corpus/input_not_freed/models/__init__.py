"""The mean of micro-batch gradients on a scale, the empty body, and the bug that the check must kill."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Number = Any


@dataclass(frozen=True)
class Config:
    """How the mean is set up."""

    scale: Number
    weighted: bool = False
    start: Number = 0
    decay: Number = 0


def mean(grads: Any, config: Config) -> Any:
    """The reference."""
    return config.start + config.scale * sum(grads) / len(grads)


def empty(grads: Any, config: Config) -> Any:
    """Does nothing."""
    return 0


def summed(grads: Any, config: Config) -> Any:
    """The 1/N is missing."""
    return config.scale * sum(grads)


MUTANTS = {"missing_scale": SimpleNamespace(obligation="T-1", reference="nanoGPT#206", subject=summed)}
