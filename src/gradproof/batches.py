"""Batch arithmetic: effective batch, its inverse, optimizer steps an epoch, scheduler steps of a whole training.

    effective = micro_batch x accum_steps x world_size        steps an epoch = ceil(batches / N)

Whole positive numbers throughout. A division is made by `divide`, which gives quotient and remainder (floor); a proof
passes one over symbolic integers, so that the text that is proved (KANI-GT-301, -401, -402) is the text that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Divide = Callable[[Any, Any], tuple[Any, Any]]


def effective(micro: Any, accum: Any, world: Any) -> Any:
    """Samples that one optimizer step averages: micro-batch x micro-batches in a window x ranks."""
    return micro * accum * world


def accumulation(target: Any, micro: Any, world: Any, divide: Divide = divmod) -> Any:
    """Micro-batches a window that make `target` samples a step; None where micro x world does not divide it."""
    n, rest = divide(target, micro * world)
    return n if rest == 0 else None


def micro_batch(target: Any, accum: Any, world: Any, divide: Divide = divmod) -> Any:
    """Samples a micro-batch that make `target` a step; None where accum x world does not divide it."""
    size, rest = divide(target, accum * world)
    return size if rest == 0 else None


def steps_per_epoch(batches: Any, n: Any, divide: Divide = divmod) -> Any:
    """Optimizer steps of `batches` micro-batches at `n` a window, the tail stepped: ceil(batches / n)."""
    full, tail = divide(batches, n)
    return full + 1 if tail > 0 else full


def total_steps(epochs: Any, batches: Any, n: Any, divide: Divide = divmod) -> Any:
    """Optimizer steps, and so scheduler steps, of a whole training: epochs x ceil(batches / n)."""
    return epochs * steps_per_epoch(batches, n, divide)
