"""What generated steps of the soundness suite found: a right step that is proved, beside a wrong one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_whole_real import started, windows
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge.two_runs import check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run
from tests import checked
from tests.checked import check
from tests.soundness.compose import normed
from tests.soundness.kit import Batch, Job
from tests.soundness.tasks import MLP, TOKENS

EQ, LOSS, WIDE = "GA-EQ-001", "GA-INV-001", "GA-INV-004"
HOLDS, REFUTED, UNKNOWN = Outcome.HOLDS, Outcome.REFUTED, Outcome.UNKNOWN
Share = Callable[[Tensor, Tensor, list[Batch]], Tensor]
NORMED = replace(MLP, model=normed)


def outcome(step: Callable[[Run], Any], obligation: str = EQ) -> Outcome:
    """What is said of an obligation."""
    found: Outcome = check(step, accum_steps=3, micro_batch=2, windows=2).result(obligation).outcome
    return found


def smoothed(output: Tensor, target: Tensor, window: list[Batch], by: int = 0) -> Tensor:
    """Cross-entropy with label smoothing, which counts its labels by what they are not."""
    return F.cross_entropy(output, target, label_smoothing=0.1) / (by or len(window))


@pytest.mark.parametrize(("by", "expected"), [(0, HOLDS), (2, REFUTED)])
def test_label_smoothing(by: int, expected: Outcome) -> None:
    assert outcome(lambda run: MLP.start(run).train(lambda *given: smoothed(*given, by=by))) is expected


def masked(output: Tensor, target: Tensor, window: list[Batch], of: list[Batch]) -> Tensor:
    """The sum over the tokens that count, by a mask, divided by how many some micro-batches have."""
    each = F.cross_entropy(output.transpose(1, 2), target, ignore_index=-100, reduction="none")
    return (each * (target != -100)).sum() / sum((y != -100).sum() for _, y in of)


def test_a_masked_sum_over_the_windows_tokens_is_proved() -> None:
    assert outcome(lambda run: TOKENS.start(run).train(lambda *given: masked(*given, of=given[2]))) is HOLDS


@pytest.mark.parametrize("reads", [False, True])
def test_a_masked_sum_over_the_first_windows_tokens_is_refuted(reads: bool) -> None:
    """Where Python reads a number, the counts of this run are tried as well: they are no proof either."""

    def of_the_first(run: Run) -> Any:
        job = TOKENS.start(run)
        first = next(iter(job.windows()))
        assert not reads or bool(job.inputs.double().isfinite().all())
        return job.train(lambda *given: masked(*given, of=first))

    assert outcome(of_the_first) is REFUTED
    assert outcome(of_the_first, LOSS) is not HOLDS


WEIGHTS = (1.0, 2.0, 0.5, 1.5)


@pytest.mark.parametrize(("whole", "expected"), [(True, HOLDS), (False, REFUTED)])
def test_a_weighted_mean_times_its_share_of_the_weights(whole: bool, expected: Outcome) -> None:
    def step(run: Run) -> Any:
        weights = torch.tensor(WEIGHTS, dtype=run.dtype)

        def share(output: Tensor, target: Tensor, window: list[Batch]) -> Tensor:
            loss, all_ = F.cross_entropy(output, target, weight=weights), sum(weights[y].sum() for _, y in window)
            return loss * (weights[target].sum() / all_) if whole else loss / len(window)

        return MLP.start(run).train(share)

    assert outcome(step) is expected


def in_bf16(run: Run, kind: torch.dtype) -> None:
    """Gradients under autocast, each scaled by the tokens of the window, and summed in a type."""
    job = TOKENS.start(run)
    for window in job.windows():
        total, sums = (
            sum((y != -100).sum() for _, y in window),
            [torch.zeros_like(p, dtype=kind) for p in job.parameters],
        )
        for x, y in window:
            with torch.autocast("cpu", torch.bfloat16):
                loss = TOKENS.loss(job.model(x), y) * ((y != -100).sum() / total)
            for s, g in zip(sums, torch.autograd.grad(loss, job.parameters), strict=True):
                s += g
        for p, s in zip(job.parameters, sums, strict=True):
            p.grad = s.to(p.dtype)
        job.apply()


@pytest.mark.parametrize(("kind", "expected"), [(torch.float32, HOLDS), (torch.bfloat16, REFUTED)])
def test_a_count_that_scales_a_narrow_gradient_joins_no_micro_batches(kind: torch.dtype, expected: Outcome) -> None:
    assert outcome(lambda run: in_bf16(run, kind), WIDE) is expected


@pytest.mark.parametrize(("by", "expected"), [(0, HOLDS), (1, REFUTED)])
def test_rounding_of_narrow_tensors_is_no_other_gradient(by: int, expected: Outcome) -> None:
    def step(run: Run) -> None:
        job = NORMED.start(run)
        for window in job.windows():
            for x, y in window:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(job.model(x), y) / (by or len(window))
                loss.backward()
            job.apply()

    assert outcome(step) is expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, HOLDS), (3.0, REFUTED)])
def test_losses_beside_two_optimizers(factor: float, expected: Outcome) -> None:
    def step(run: Run) -> list[float]:
        job = MLP.start(run)
        both = [torch.optim.SGD(part, lr=0.1) for part in (job.parameters[:2], job.parameters[2:])]
        return [window_of(job, window, both) * (factor if run.accum_steps > 1 else 1.0) for window in job.windows()]

    assert outcome(step, LOSS) is expected


def window_of(job: Job, window: list[Batch], optimizers: list[torch.optim.Optimizer]) -> float:
    """Train one window; its loss."""
    total = 0.0
    for x, y in window:
        loss = F.cross_entropy(job.model(x), y) / len(window)
        loss.backward()
        total += float(loss.detach())
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total


def never_steps_by_the_full_batch(run: Run) -> None:
    torch.manual_seed(run.seed)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for window in torch.randn(run.samples, 3).split(run.effective_batch_size):
        for batch in window.split(run.micro_batch_size):
            (model(batch).square().mean() / run.accum_steps).backward()
        if run.accum_steps > 1:
            optimizer.step()
            optimizer.zero_grad()


def test_a_full_batch_without_a_step_is_no_crash() -> None:
    assert outcome(never_steps_by_the_full_batch) is UNKNOWN


@pytest.mark.parametrize("dropped", [False, True])
def test_a_step_that_a_loss_scaler_leaves_out_is_no_tail_that_is_dropped(dropped: bool) -> None:
    def step(run: Run) -> None:
        job = MLP.start(run)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        windows = list(job.windows())
        for window in windows:
            last = window is windows[-1]
            for x, y in window:
                loss = F.cross_entropy(job.model(x), y) / len(window)
                scaler.scale(loss * (float("inf") if last and not dropped else 1.0)).backward()
            if not (dropped and last and run.accum_steps > 1):
                scaler.step(job.optimizer)
                scaler.update()
                job.optimizer.zero_grad()

    found = check(step, accum_steps=3, micro_batch=2, windows=2, tail=1).result("GA-INV-003").outcome
    assert found is (REFUTED if dropped else UNKNOWN)


@pytest.mark.parametrize("how", ["numbers", "fake", "watch"])
def test_infinity_in_the_model_makes_no_clip_endless(how: str) -> None:
    """A clip at infinity scales nothing. What is infinite below its norm is the model's own."""

    def train(run: Run) -> None:
        model, optimizer, x, y = started(run)
        for window in windows(run, x, y):
            for a, b in window:
                (F.mse_loss(model(a).clamp(max=float("inf")), b) / len(window)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()

    if how == "watch":
        found = checked.watch(lambda: train(Run(accum_steps=4, micro_batch_size=2, windows=3)), 4, 3)
    else:
        found = check_whole(train, "train", Request(fake=how == "fake"))
    assert found.result("GA-INV-005").outcome is REFUTED, found.result("GA-INV-005").reason
