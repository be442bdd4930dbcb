"""Which clause a bug is blamed on, and what is no bug: the cross table, and loops that are right in another way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torch_bench import HARNESSES, a_check, attempt

from gradproof.core.outcome import Outcome
from gradproof.execution.methods.property import (
    Batch,
    Case,
    Cell,
    Job,
    Place,
    Property,
    Refutation,
    Report,
    schedule_factor,
)  # fmt: skip
from models.accumulation.torch_mutants import MUTANTS
from models.accumulation.torch_steps import TorchStep
from symbolic.accumulation import falsify
from symbolic.accumulation.falsify import STARTS_CLEAN

CPU = Place("cpu", "fp32")
EQ, LOSS, ZERO, STEP, BUFFER, CLIP = HARNESSES
ASIDE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("missing_scale", "divided_twice", "tail_by_configured_n", "mean_of_means", "shrunk_single",
         "fused_forgets_scale"), frozenset({LOSS})
    ),
    "rescaled_buffer": frozenset({LOSS, BUFFER, CLIP}),
    "scale_first_element_only": frozenset({BUFFER, CLIP}),
    **dict.fromkeys(
        ("zero_skipped", "zero_first_cycle_only", "zero_first_element_only"), frozenset({EQ, STEP, BUFFER, CLIP})
    ),
    **dict.fromkeys(("zero_per_micro_batch", "zero_after_backward"), frozenset({EQ, STEP, BUFFER, CLIP})),
    **dict.fromkeys(
        ("step_per_micro_batch", "boundary_at_index", "step_at_n_minus_1"),
        frozenset({EQ, LOSS, ZERO, BUFFER, CLIP}),
    ),
    "tail_dropped": frozenset({EQ, LOSS, ZERO, CLIP}),
    "tail_cut_short": frozenset({LOSS, ZERO, STEP, CLIP}),
    "first_counts_kept": frozenset({LOSS}),
    "stale_after_skip": frozenset({EQ, STEP, CLIP}),
    "zero_three_windows_only": frozenset({EQ, BUFFER, CLIP}),
    "weights_lost_under_scale": frozenset({EQ, LOSS}),
    **dict.fromkeys(("clip_per_micro_batch", "clip_before_last", "clip_without_first"), frozenset({EQ})),
    "no_move": frozenset(),
    **dict.fromkeys(("fp16_buffer", "bf16_buffer", "fp16_sum", "fp16_buffer_later"), frozenset({EQ, ZERO, CLIP})),
}  # fmt: skip


def blamed(subject: type, place: Place = CPU) -> set[str]:
    """The clauses on which the fixed cases refute a subject, at N = 4 and 8 on the linear net."""
    found = set()
    for name in HARNESSES.values():
        prop = getattr(falsify, name)
        cells = prop.cells(place, {"nets": ["linear"], "n": [4, 8]})
        for case in (case for turn, cell in enumerate(cells) for case in prop.examples(cell, place, turn, 2)):
            try:
                prop.test(subject, case, place)
            except Refutation as e:
                found.add(e.clause)
                break
    return found


def refuted(prop: Property, subject: type, case: Case) -> bool:
    """Whether the case refutes the subject."""
    try:
        prop.test(subject, case, CPU)
    except Refutation:
        return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_blamed_on_its_own_clause_and_on_none_that_it_keeps(name: str) -> None:
    own = MUTANTS[name].obligation
    found = blamed(MUTANTS[name].subject)
    assert own in found
    assert found <= {own} | ASIDE.get(name, frozenset()), name


class SchedulesEarly(TorchStep):
    """Advances the schedule before the step of the window."""

    def clip(self, job: Job) -> None:
        super().clip(job)
        job.scheduler.step()


class SchedulesByHand(TorchStep):
    """Correct: sets the learning rate of the performed steps by hand, and asks no scheduler."""

    def __init__(self) -> None:
        self.performed = 0

    def update(self, job: Job) -> None:
        if job.scaler is not None:
            job.scaler.unscale_(job.optimizer)
        self.clip(job)
        self.performed += self.step(job)
        for group in job.optimizer.param_groups:
            group["lr"] = job.config.learning_rate * schedule_factor(self.performed)


class DecayPerMicroBatch(TorchStep):
    """Decays the weights by hand after every micro-batch."""

    def after_backward(self, i: int, job: Job) -> None:
        with torch.no_grad():
            for p in job.masters:
                p.mul_(1 - 2.0**-10)


class StepsTwiceByHand(TorchStep):
    """Applies the gradient once more beside the optimizer."""

    def step(self, job: Job) -> bool:
        taken = super().step(job)
        with torch.no_grad():
            for p in job.masters:
                if p.grad is not None:
                    p.sub_(p.grad * 2.0**-6)
        return taken


class NoCopyBack(TorchStep):
    """The model's fp16 parameters never receive the update of their master weights."""

    def step(self, job: Job) -> bool:
        if job.scaler is None:
            job.optimizer.step()
        else:
            job.scaler.step(job.optimizer)
            job.scaler.update()
        return True


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("subject", "said"), [
    (SchedulesEarly, "advanced without a step"), (DecayPerMicroBatch, "optimizer's"),
    (StepsTwiceByHand, "optimizer's"), (MUTANTS["no_move"].subject, "optimizer's"),
])  # fmt: skip
def test_a_step_that_is_not_the_optimizers_is_seen(subject: type, said: str) -> None:
    case = Case("mlp", 2, windows=3, learning_rate=2.0**-6)
    with pytest.raises(Refutation, match=said) as caught:
        falsify.three_steps_in_three_windows.test(subject, case, CPU)
    assert caught.value.clause == STEP


def test_parameters_that_are_not_their_masters_copies_are_seen() -> None:
    case = Case("mlp", 2, mode="fp16_params", windows=2, learning_rate=2.0**-6, loss_scale=1024.0)
    place = Place("cpu", "fp16")
    falsify.three_steps_in_three_windows.test(TorchStep, case, place)
    with pytest.raises(Refutation, match="its master"):
        falsify.three_steps_in_three_windows.test(NoCopyBack, case, place)


class ZeroAfterStep(TorchStep):
    """Correct where the buffers are empty at the start."""

    def zeroes_before(self, i: int, job: Job) -> bool:
        return False

    def update(self, job: Job) -> None:
        super().update(job)
        self.zero(job)


class ZeroByHand(TorchStep):
    """Correct: never calls the optimizer's zero_grad."""

    def zero(self, job: Job) -> None:
        for p in (*job.masters, *job.leaves):
            p.grad = None


class OwnBuffer(TorchStep):
    """Correct: keeps the sum itself and empties `.grad` after every micro-batch."""

    def zero(self, job: Job) -> None:
        super().zero(job)
        self.sums = [torch.zeros_like(p) for p in job.masters]

    def after_backward(self, i: int, job: Job) -> None:
        for held, p in zip(self.sums, job.masters, strict=True):
            held += 0.0 if p.grad is None else p.grad
        job.optimizer.zero_grad()

    def update(self, job: Job) -> None:
        for held, p in zip(self.sums, job.masters, strict=True):
            p.grad = held
        super().update(job)


class ClipWithoutEpsilon(TorchStep):
    """Correct: divides by the norm alone."""

    def clip(self, job: Job) -> None:
        grads = [p.grad for p in job.masters if p.grad is not None]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        if job.config.max_norm is not None and norm > job.config.max_norm:
            for g in grads:
                g.mul_(job.config.max_norm / norm)


@pytest.mark.parametrize("subject", [ZeroAfterStep, ZeroByHand, OwnBuffer, ClipWithoutEpsilon, SchedulesByHand])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_loop_that_is_right_in_another_way_is_not_refuted(subject: type, dtype: str) -> None:
    assert blamed(subject, Place("cpu", dtype)) == set()


def test_the_epsilon_of_a_small_norm_is_no_wrong_clip() -> None:
    case = Case("linear", 2, clip=0.25, magnitude=16)
    for subject in (TorchStep, ClipWithoutEpsilon):
        falsify.clips_once_on_the_total.test(subject, case, CPU)


def test_a_loop_that_must_start_clean_is_judged_and_says_so() -> None:
    finding = attempt(a_check(ZERO, n=(1, 2), nets=("linear",), mutants=()), subject=ZeroAfterStep)
    assert finding.outcome is Outcome.HOLDS, finding.reason
    assert STARTS_CLEAN in finding.assumptions
    assert STARTS_CLEAN not in attempt(a_check(ZERO, n=(1, 2), nets=("linear",), mutants=())).assumptions


class RateOverN(TorchStep):
    """lr / N in place of loss / N: the same update for plain SGD, another gradient."""

    def scale_loss(self, loss: Tensor, batch: Batch, window: Sequence[Batch], job: Job) -> Tensor:
        self.length = len(window)
        return super().scale_loss(loss, batch, window, job) * len(window)

    def log(self, report: Report, loss: Tensor, share: Tensor, window: Sequence[Batch]) -> None:
        report.open_loss += float(share.detach()) / len(window)

    def step(self, job: Job) -> bool:
        group = job.optimizer.param_groups[0]
        group["lr"] = job.config.learning_rate / self.length
        taken = super().step(job)
        group["lr"] = job.config.learning_rate
        return taken


def test_a_learning_rate_over_n_is_another_gradient_with_an_equal_update() -> None:
    case = Case("linear", 4, seed=1, learning_rate=2.0**-6)
    with pytest.raises(Refutation, match="update is equal"):
        falsify.accumulated_matches_full.test(RateOverN, case, CPU)
    with pytest.raises(Refutation) as caught:
        falsify.accumulated_matches_full.test(MUTANTS["missing_scale"].subject, case, CPU)
    assert "update is equal" not in caught.value.detail
    assert blamed(RateOverN) == {EQ}


def test_mutants_of_one_optimizer_are_killed_by_the_fixed_cases_of_any_walk() -> None:
    for name in ("clip_not_for_adamw", "fused_forgets_scale"):
        prop = getattr(falsify, HARNESSES[MUTANTS[name].obligation])
        cells = [Cell("linear", n) for n in (2, 4, 8)]
        cases = [c for turn, cell in enumerate(cells) for c in prop.examples(cell, CPU, turn, len(cells))]
        assert [c for c in cases if refuted(prop, MUTANTS[name].subject, c)]
