"""Counterexamples of the Python model on a real PyTorch step."""

from __future__ import annotations

from typing import Any

import pytest

from gradproof.arith.bounds import accumulation_witness
from gradproof.execution.methods.property import Job
from gradproof.execution.methods.replay_torch import replay_model
from models.accumulation.torch_mutants import MUTANTS, TORCH_ONLY
from models.accumulation.torch_steps import EmptyStep, TorchStep

PLAIN: dict[str, Any] = {
    "n": 2,
    "losses": [0.5, 1.0, -0.25, 0.75, 0.125],
    "grads": [[1.0, 0.5], [0.25, -1.0], [0.5, 0.5], [-0.75, 1.0], [0.125, 0.25]],
    "counts": [1, 1, 1, 1, 1],
    "max_norm": None,
    "loss_scale": None,
    "stale": [1.0, -2.0],
    "buffer_format": "fp32",
    "gradient_format": None,
    "skip": [],
}
CLIPPED = {**PLAIN, "max_norm": 0.5, "loss_scale": 4.0, "stale": [0.0, 0.0]}


def tie(fmt: str) -> dict[str, Any]:
    """The worst case of a 16-bit buffer at N = 8."""
    made = [[float(g)] for g in accumulation_witness(8, fmt)]
    return {**PLAIN, "n": 8, "grads": made, "losses": [0.0] * 8, "counts": [1] * 8, "stale": [0.0]}


def case_for(name: str, clause: str) -> dict[str, Any]:
    """A case that the mutant must fail."""
    if clause == "GA-INV-005":
        return CLIPPED
    if name == "unscaled_by_four":
        return {**PLAIN, "loss_scale": 8.0}
    if name in ("stale_after_skip", "scheduled_after_skip"):
        return {**CLIPPED, "max_norm": 100.0, "loss_scale": 64.0, "skip": [0]}
    if clause == "GA-INV-004":
        return tie("bf16" if name == "bf16_buffer" else "fp16")
    if name == "mean_of_means":
        return {**PLAIN, "counts": [3, 1, 1, 2, 1]}
    return PLAIN


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in TORCH_ONLY])
def test_every_mutant_fails_its_clause_and_the_reference_holds(name: str) -> None:
    mutant = MUTANTS[name]
    case = case_for(name, mutant.obligation)
    row = replay_model(mutant.subject, case, mutant.obligation)
    assert row["reproduced"], row
    assert row["on"].startswith("torch cpu")
    reference = {**case, "weighting": "count"}
    assert not replay_model(TorchStep, reference, mutant.obligation)["reproduced"]


@pytest.mark.parametrize("clause", ["GA-EQ-001", "GA-INV-001", "GA-INV-002", "GA-INV-003", "GA-INV-004"])
def test_the_reference_holds_and_the_empty_body_fails_on_every_clause(clause: str) -> None:
    for extra in ({}, {"loss_scale": 1024.0}, {"gradient_format": "fp16"}, {"n": 3}, {"n": 1}):
        row = replay_model(TorchStep, {**PLAIN, **extra}, clause)
        assert not row["reproduced"], row
    assert replay_model(EmptyStep, PLAIN, clause)["reproduced"]


def test_equal_weights_on_unequal_counts_are_reproduced() -> None:
    assert replay_model(TorchStep, {**PLAIN, "counts": [3, 1, 1, 2, 1]}, "GA-EQ-001")["reproduced"]


def test_a_skipped_window_is_an_attempt_and_leaves_the_others_right() -> None:
    case = {**PLAIN, "skip": [1]}
    assert not replay_model(TorchStep, case, "GA-INV-003")["reproduced"]
    assert replay_model(MUTANTS["tail_dropped"].subject, case, "GA-INV-003")["reproduced"]


def test_a_tolerance_of_the_case_is_allowed() -> None:
    wrong = MUTANTS["missing_scale"].subject
    assert replay_model(wrong, {**PLAIN, "tolerance": 1e-3}, "GA-EQ-001")["reproduced"]
    assert not replay_model(wrong, {**PLAIN, "tolerance": 10.0}, "GA-EQ-001")["reproduced"]


def test_a_clip_out_of_order_is_reproduced_even_where_nothing_is_clipped() -> None:
    case = {**CLIPPED, "max_norm": 1000.0}
    row = replay_model(MUTANTS["clip_before_unscale"].subject, case, "GA-INV-005")
    assert row["reproduced"], row
    assert "events of a window" in row["detail"]


def test_a_crash_reproduces_nothing() -> None:
    class Crash(TorchStep):
        def update(self, job: Job) -> None:
            raise RuntimeError("crash")

    row = replay_model(Crash, PLAIN, "GA-EQ-001")
    assert (row["reproduced"], row["detail"]) == (False, "crashed: RuntimeError: crash")


def test_an_unknown_clause_reproduces_nothing() -> None:
    assert not replay_model(EmptyStep, PLAIN, "GA-XX-999")["reproduced"]
