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
from gradproof.shadow.result import Verification
from tests import checked as verify
from tests.loops import plain_attention

Asked = Callable[[], bool]


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
    while frame is not None and frame.f_code.co_name != "with_numbers":
        frame = frame.f_back
    return frame is not None


WAYS = [by_modes, by_patches, by_the_setter, by_the_caller]


def said(step: Callable[[Any], Any], **more: Any) -> Verification:
    return verify.check(step, windows=1, **more)


def found_out(made: Verification, step: str = "GA-EQ-001") -> None:
    """Nothing of the step holds, or it is refuted as it is."""
    assert made.result(step).outcome in (Outcome.OPAQUE, Outcome.REFUTED, Outcome.UNKNOWN)
    assert made.outcome in (Outcome.OPAQUE, Outcome.REFUTED)
    assert made.code != 0


def held(made: Verification) -> None:
    """Everything holds that one window can show."""
    bad = [r for r in made.results if r.outcome is not Outcome.HOLDS and r.applies and r.obligation != "GA-INV-002"]
    assert [(r.obligation, r.reason) for r in bad] == []


def test_an_honest_step_that_returns_its_micro_batches_losses_holds() -> None:
    held(said(train))


@pytest.mark.parametrize("recorded", WAYS)
def test_numbers_that_are_right_only_while_recorded(recorded: Asked) -> None:
    found_out(said(lambda run: train(run, honest=recorded())))


@pytest.mark.parametrize("recorded", WAYS)
def test_steps_that_are_counted_only_while_recorded(recorded: Asked) -> None:
    found_out(said(lambda run: train(run, extra_step=not recorded())), "GA-INV-003")


def test_what_is_right_only_while_it_is_followed_is_said_to_be_so() -> None:
    result = said(lambda run: train(run, honest=by_modes())).result("GA-EQ-001")
    assert (result.outcome, "nobody follows it" in result.reason) == (Outcome.OPAQUE, True)


def test_a_step_that_is_left_out_when_nobody_records() -> None:
    def step(run: Any) -> None:
        if by_modes():
            train(run)

    found_out(said(step))


def test_a_function_that_raises_when_nobody_records() -> None:
    def step(run: Any) -> None:
        if not by_modes():
            raise RuntimeError("caught red-handed")
        train(run)

    found_out(said(step))


def test_a_step_that_carries_state_from_call_to_call_is_no_false_alarm() -> None:
    model = nn.Linear(3, 2)

    def step(run: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
        for x, y in zip(xs.split(run.micro_batch_size), ys.split(run.micro_batch_size), strict=True):
            (F.mse_loss(model(x), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert Outcome.REFUTED not in {r.outcome for r in said(step).results}


def test_dropout_draws_the_same_numbers_unrecorded() -> None:
    def step(run: Any) -> None:
        model, mask = nn.Linear(3, 2), nn.Dropout(0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
        for x, y in zip(xs.split(run.micro_batch_size), ys.split(run.micro_batch_size), strict=True):
            (F.mse_loss(model(mask(x)), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    held(said(step))


def test_a_step_that_rounding_decides_is_no_false_alarm() -> None:
    """AdamW moves the key's bias, whose gradient is 0 but for rounding, by a whole learning rate."""
    assert verify.check(plain_attention.train).outcome is Outcome.HOLDS


def test_an_optimizer_that_steps_otherwise_while_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody follows it: half of the learning rate. The gradients of the second window differ."""
    step = torch.optim.AdamW.step

    def halved(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.param_groups:
            group["lr"] *= 1.0 if by_modes() else 0.5
        return step(self, *args, **kwargs)

    def silent(run: Any) -> None:
        plain_attention.train(run)

    monkeypatch.setattr(torch.optim.AdamW, "step", halved)
    assert verify.check(silent).result("GA-EQ-001").outcome is not Outcome.HOLDS


def test_a_model_outside_of_the_step_is_no_false_alarm() -> None:
    made = said(traps.deep_copy_frozen)
    assert {r.outcome for r in made.results if r.applies} <= {Outcome.HOLDS, Outcome.UNKNOWN}


def test_a_hook_of_gradproof_is_gone_after_the_calls() -> None:
    said(train)
    assert not optimizers._global_optimizer_post_hooks
    assert not by_patches()


def late(run: Any, wrong: str) -> None:
    """A loop that is right for two windows, and `wrong` from the third one on."""
    model, b, n = nn.Linear(3, 2), run.micro_batch_size, run.accum_steps
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    for i in range(run.micro_batches):
        now = wrong if i >= 2 * n else ""
        x, y = xs[i * b : (i + 1) * b][now == "rows" :], ys[i * b : (i + 1) * b][now == "rows" :]
        (F.mse_loss(model(x), y) / (1 if now == "share" else n)).backward()
        if (i + 1) % n == 0 or now == "steps":
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("wrong", ["share", "rows", "steps", ""])
def test_windows_after_the_judged_ones_run_once_more_and_one_that_differs_is_judged(wrong: str) -> None:
    made = verify.check(lambda run: late(run, wrong))
    assert made.outcome is (Outcome.REFUTED if wrong else Outcome.HOLDS)
    assert made.windows.startswith("windows 1 to 3" if wrong else "windows 1 to 2; 3 of 3 later ones by events alone")
