"""What the hooks see, and what a subject cannot hide from them."""

from __future__ import annotations

import itertools

import pytest
import torch

from gradproof.execution.methods.property import FORMS, OPTIMIZERS, Case, Job, Place, Report
from models.accumulation.torch_steps import TorchStep
from symbolic.accumulation.falsify_bench import Run, execute

CPU = Place("cpu", "fp32")


def ran(subject: type = TorchStep, **fields: object) -> Run:
    """A run of two windows of two micro-batches."""
    case = Case("mlp", 2, **{"windows": 2, "learning_rate": 0.0625, **fields})  # type: ignore[arg-type]
    return execute(subject, case, CPU)


def test_events_of_two_windows_in_order() -> None:
    one = ["zero", "accumulate", "accumulate", "unscale", "clip", "step", "schedule"]
    assert ran(clip=0.5, loss_scale=1024.0).trace.events == [*one, *one, "end"]


def test_the_scaler_unscales_by_itself_without_an_event_of_its_own() -> None:
    class NoUnscale(TorchStep):
        def update(self, job: Job) -> None:
            self.step(job)

    run = ran(NoUnscale, loss_scale=1024.0)
    assert run.trace.events[:4] == ["zero", "accumulate", "accumulate", "step"]
    assert run.trace.attempts == [2, 4]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_the_scaler_suppresses_is_an_attempt_and_moves_nothing(optimizer: str, form: str) -> None:
    run = ran(optimizer=optimizer, form=form, loss_scale=1024.0, overflow=0)
    assert run.trace.attempts == [2, 4]
    taken = [a for a in run.trace.applied if not a.skipped]
    assert [a.after for a in taken] == [4]
    states = run.trace.weights
    moves = [any(not a.equal(b) for a, b in zip(x, y, strict=True)) for x, y in itertools.pairwise(states)]
    assert sum(moves) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_fused_step_without_unscale_is_recorded_unscaled(form: str) -> None:
    class NoUnscale(TorchStep):
        def update(self, job: Job) -> None:
            self.step(job)

    got = ran(NoUnscale, loss_scale=1024.0, form=form).trace.applied[0].grads
    right = ran(loss_scale=1024.0, form=form).trace.applied[0].grads
    for a, b in zip(got, right, strict=True):
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_recorded_gradients_are_copies_in_their_own_dtype() -> None:
    run = execute(TorchStep, Case("mlp", 2, mode="fp16_params", loss_scale=1024.0), Place("cpu", "fp16"))
    first, last = run.trace.backwards
    assert {g.dtype for g in first.grads if g is not None} == {torch.float16}
    assert {a.dtype for a in run.trace.applied[0].grads if a is not None} == {torch.float32}
    assert not torch.equal(first.vector, last.vector)


def test_the_factor_on_the_loss_is_observed() -> None:
    assert [b.factor for b in ran(loss_scale=1024.0).trace.backwards] == [512.0] * 4
    assert [b.factor for b in ran().trace.backwards] == [0.5] * 4


def test_a_subject_cannot_hide_its_step() -> None:
    class Sly(TorchStep):
        """Steps once more, and says nothing."""

        def run(self, job: Job) -> Report:
            report = super().run(job)
            job.optimizer.step()
            return report

    run = ran(Sly)
    assert run.trace.attempts == [2, 4, 4]
    assert len(run.trace.applied) == 3


def test_the_patch_of_clip_is_gone_afterwards() -> None:
    plain = torch.nn.utils.clip_grad_norm_
    ran(clip=0.5)
    assert torch.nn.utils.clip_grad_norm_ is plain


def test_the_patch_of_clip_is_gone_after_a_crash() -> None:
    class Crash(TorchStep):
        def update(self, job: Job) -> None:
            raise RuntimeError("crash")

    plain = torch.nn.utils.clip_grad_norm_
    with pytest.raises(RuntimeError, match="crash"):
        ran(Crash)
    assert torch.nn.utils.clip_grad_norm_ is plain
