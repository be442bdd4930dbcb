"""All steps: importing this module lists them."""

from __future__ import annotations

from tests.soundness import (
    steps_buffers,
    steps_changes,
    steps_hooks,
    steps_models,
    steps_optimizers,
    steps_reads,
    steps_reports,
    steps_scale,
    steps_zeroing,
)
from tests.soundness.kit import STEPS, Step

MODULES = (
    steps_buffers,
    steps_changes,
    steps_hooks,
    steps_models,
    steps_optimizers,
    steps_reads,
    steps_reports,
    steps_scale,
    steps_zeroing,
)


def steps_of(*modules: object) -> list[Step]:
    """The steps of some modules, in their order and that of their text."""
    names = [getattr(module, "__name__", "") for module in modules]
    return [step for name in names for step in STEPS.values() if step.function.__module__ == name]
