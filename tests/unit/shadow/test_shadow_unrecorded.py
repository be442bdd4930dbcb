"""A step that behaves only while it is recorded is found out, and one that merely differs from call to call is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import shadow_traps as traps
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradproof.core.outcome import Outcome
from gradproof.shadow.result import OBLIGATIONS, Verification
from tests import checked as verify
from tests.loops import plain_attention

Asked = Callable[[], bool]
ALL = [name for name in OBLIGATIONS if name != "GA-SYNC-001"]


def train(run: Any, honest: bool = True, extra_step: bool = False) -> list[torch.Tensor]:
    """A regression that returns the loss of every micro-batch; without `honest` the /N is forgotten."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    losses = []
    for x, y in zip(xs.split(run.micro_batch_size), ys.split(run.micro_batch_size), strict=True):
        loss = F.mse_loss(model(x), y)
        (loss / run.accum_steps if honest else loss).backward()
        losses.append(loss.detach())
        if len(losses) % run.accum_steps == 0 or extra_step:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def by_modes() -> bool:
    return bool(_get_current_dispatch_mode_stack())


def by_patches() -> bool:
    return hasattr(torch.autograd.backward, "__wrapped__")


def by_the_setter() -> bool:
    return "grad" in vars(torch.Tensor)


def by_the_caller() -> bool:
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "record":
        frame = frame.f_back
    return frame is not None


def by_hooks() -> bool:
    """True while anyone watches the steps; the recorder does, and one of the two plain calls."""
    return bool(optimizers._global_optimizer_post_hooks)


WAYS = [by_modes, by_patches, by_the_setter, by_the_caller]


def said(step: Callable[[Any], Any], **more: Any) -> Verification:
    return verify.check(step, windows=1, **more)


def found_out(made: Verification, words: str) -> None:
    for name in ALL:
        result = made.result(name)
        assert (result.outcome, words in result.reason) == (Outcome.OPAQUE, True), (name, result.reason)
        assert "when nobody records it" in result.reason
    assert made.code != 0


def test_an_honest_step_that_returns_its_micro_batches_losses_holds() -> None:
    made = said(train)
    assert {r.outcome for r in made.results if r.details.get("code") != "trivial" and r.applies} == {Outcome.HOLDS}
    assert made.uncovered == []


@pytest.mark.parametrize("recorded", WAYS)
def test_numbers_that_are_right_only_while_recorded(recorded: Asked) -> None:
    found_out(said(lambda run: train(run, honest=recorded())), "optimizer step 1 gives other parameters")


@pytest.mark.parametrize("recorded", WAYS)
def test_steps_that_are_counted_only_while_recorded(recorded: Asked) -> None:
    found_out(said(lambda run: train(run, extra_step=not recorded())), "it makes 4 optimizer steps and not 1")


def test_a_step_that_is_left_out_when_nobody_records() -> None:
    def step(run: Any) -> None:
        if by_modes():
            train(run)

    found_out(said(step), "it makes 0 optimizer steps and not 1")


def test_a_function_that_raises_when_nobody_records() -> None:
    def step(run: Any) -> None:
        if not by_modes():
            raise RuntimeError("caught red-handed")
        train(run)

    found_out(said(step), "it raises RuntimeError: caught red-handed")


def test_a_function_that_behaves_while_its_steps_are_watched_is_seen_by_what_it_returns() -> None:
    def step(run: Any) -> list[torch.Tensor]:
        return [loss if by_hooks() else 2.0 * loss for loss in train(run)]

    found_out(said(step), "it returns other numbers")


def test_the_place_is_the_function(tmp_path: Any) -> None:
    place = said(lambda run: train(run, honest=by_modes())).result("GA-EQ-001").place
    assert place is not None
    assert place.file == __file__


def test_a_step_that_carries_state_from_call_to_call_is_no_false_alarm() -> None:
    """Recorded twice from one seed it differs, so that a plain call has nothing to agree with; and that is reported."""
    model = nn.Linear(3, 2)

    def step(run: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
        for x, y in zip(xs.split(run.micro_batch_size), ys.split(run.micro_batch_size), strict=True):
            (F.mse_loss(model(x), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    made = said(step)
    assert {r.outcome for r in made.results if r.details.get("code") != "trivial" and r.applies} == {Outcome.HOLDS}
    assert unrecorded.UNSTEADY in made.uncovered


def test_dropout_draws_the_same_numbers_unrecorded() -> None:
    def step(run: Any) -> None:
        model, mask = nn.Linear(3, 2), nn.Dropout(0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
        for x, y in zip(xs.split(run.micro_batch_size), ys.split(run.micro_batch_size), strict=True):
            (F.mse_loss(model(mask(x)), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    made = said(step)
    assert not [r.reason for r in made.results if "nobody" in r.reason]
    assert made.uncovered == []


def test_a_step_that_rounding_decides_is_no_false_alarm() -> None:
    """AdamW moves the key's bias, whose gradient is 0 but for rounding, by a whole learning rate."""
    made = verify.check(plain_attention.train)
    unsure = [r for r in made.results if r.outcome is not Outcome.HOLDS]
    assert {r.outcome for r in unsure} <= {Outcome.UNKNOWN}
    assert all(r.reason.startswith("the error probability of the residues") for r in unsure), "residues alone"
    assert unrecorded.CLOSE in made.notes


def test_a_step_that_rounding_decides_is_no_hiding_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding moves one tensor by a learning rate, and all of them move by half of one."""
    step = torch.optim.AdamW.step

    def halved(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.param_groups:
            group["lr"] *= 1.0 if by_modes() else 0.5
        return step(self, *args, **kwargs)

    def silent(run: Any) -> None:
        plain_attention.train(run)

    monkeypatch.setattr(torch.optim.AdamW, "step", halved)
    made = verify.check(silent)
    assert "other parameters" in made.result("GA-EQ-001").reason


def test_a_model_outside_of_the_step_is_no_false_alarm() -> None:
    """The recordings at other values leave it with other weights."""
    made = said(traps.deep_copy_frozen)
    assert {r.outcome for r in made.results if r.details.get("code") != "trivial" and r.applies} == {Outcome.HOLDS}
    assert unrecorded.UNSTEADY not in made.uncovered


def test_a_step_of_which_nothing_can_be_seen_says_so() -> None:
    assert unrecorded.SILENT in said(traps.step_by_hand).uncovered


def test_a_hook_of_gradproof_is_gone_after_the_calls() -> None:
    said(train)
    assert not by_hooks()
    assert not by_patches()
