"""Optimizer state: the rule on plain numbers against torch, and the real loops."""

from __future__ import annotations

import pytest
import torch

from gradproof.core.protocol import Event
from gradproof.execution.methods.property import Case, Cell, Place, Refutation
from models.systems import torch_state as state_steps
from models.systems.optimizer_state import MUTANTS, Decay, Moments, OptimizerState
from symbolic.systems.falsify_state import state_once_a_window

PLACE = Place("cpu", "fp32")


def test_the_rule_is_what_torch_keeps() -> None:
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    adam = torch.optim.AdamW([weight], betas=(0.75, 0.5))
    held, by = Moments(0.0, 0.0, 0), Decay(0.75, 0.25, 0.5, 0.5)
    for g in (0.5, -2.0, 4.0):
        weight.grad = torch.tensor([g], dtype=torch.float64)
        adam.step()
        held = OptimizerState().after(Event.STEP, held, g, by)
        state = adam.state[weight]
        assert (float(state["exp_avg"]), float(state["exp_avg_sq"]), int(state["step"])) == (held.m, held.v, held.t)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_moves_where_the_right_one_does_not(name: str) -> None:
    held, by = Moments(1, 1, 1), Decay(2, 3, 5, 7)
    rule = MUTANTS[name].subject()
    events = (Event.ACCUMULATE, Event.SKIP)
    assert [OptimizerState().after(e, held, 2, by) for e in events] == [held, held]
    assert any(rule.after(e, held, 2, by) != held for e in events)


def test_the_right_loop_keeps_the_state_of_one_step_a_window() -> None:
    for case in state_once_a_window.cases(Cell("mlp", 2), PLACE):
        assert state_once_a_window.test(state_steps.StateStep, case, PLACE).judged


@pytest.mark.parametrize("name", state_steps.MUTANTS)
@pytest.mark.parametrize("form", ["single", "foreach", "fused"])
def test_a_wrong_loop_is_refuted_in_every_form(name: str, form: str) -> None:
    case = Case("mlp", 2, windows=3, optimizer="adamw", form=form, loss_scale=1024.0, overflow=1)
    with pytest.raises(Refutation, match="one step a window"):
        state_once_a_window.test(state_steps.MUTANTS[name].subject, case, PLACE)
