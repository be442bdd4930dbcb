"""The base of an induction can fail: asked alone, it refutes a subject that is wrong from the first step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from training_checks import found

from gradproof.core.outcome import Outcome
from gradproof.execution.methods.harness import ConcreteKit, SymbolicKit

CASES = [
    ("KANI-GA-024", "models.accumulation.rounding_steps:Unscaled"),
    ("KANI-GA-024", "models.accumulation.rounding_steps:Empty"),
    ("KANI-GA-025", "models.accumulation.rounding_steps:Unscaled"),
    ("KANI-GT-211", "models.tokens.scaling:SgdDecay"),
    ("KANI-GT-212", "models.tokens.scaling:SgdClipped"),
    ("KANI-GT-216", "models.tokens.scaling:AdamClipped"),
    ("KANI-GT-219", "models.tokens.scaling:NotSquared"),
    ("KANI-GT-403", "models.systems.epochs:LengthNow"),
    ("KANI-GT-406", "models.systems.tails:ByConfiguredN"),
    ("KANI-GT-408", "models.systems.tails:Tail"),
]


@pytest.mark.parametrize(("name", "subject"), CASES)
def test_the_base_alone_refutes_a_wrong_subject(monkeypatch: pytest.MonkeyPatch, name: str, subject: str) -> None:
    def without_step(k: Any, base: Callable[[], None], step: Callable[[], None]) -> None:
        base()

    for kit in (SymbolicKit, ConcreteKit):
        monkeypatch.setattr(kit, "inductive", without_step)
    assert found(name, subject).outcome is Outcome.REFUTED
