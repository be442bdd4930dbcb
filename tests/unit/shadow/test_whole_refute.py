"""What the numbers of two real runs refute, and at which line; and what is only odd, which they must not refute."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from test_whole_real import started, trained, windows
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.core.outcome import Outcome
from gradproof.shadow.judge import two_runs
from gradproof.shadow.judge.two_runs import attempted, check_whole
from gradproof.shadow.request import Request
from gradproof.shadow.tape.run import Run

HOLDS, REFUTED = Outcome.HOLDS, Outcome.REFUTED
Step = Callable[[Any], Any]
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")


def loop(run: Run, after_pass: Any = None, before_step: Any = None, after_step: Any = None) -> None:
    """A right loop with what a test does in between."""
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            if after_pass is not None:
                after_pass(model, optimizer)
        if before_step is not None:
            before_step(model, optimizer)
        optimizer.step()
        if after_step is not None:
            after_step(model, optimizer)
        optimizer.zero_grad()


# Right steps that look odd


def logs_norms_by_clipping_at_infinity(run: Run) -> None:
    loop(run, after_pass=lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), float("inf")))


def clips_by_a_plain_number(run: Run) -> None:
    def clip(model: nn.Module, _: Any) -> None:
        norm = sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None) ** 0.5
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(min(1.0, 0.1 / norm))

    loop(run, before_step=clip)


def carries_momentum_in_the_gradient(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(0.9)


def begins_with_the_gradient_of_a_decay(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for p in model.parameters():
            p.grad = 0.01 * p.detach()
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()


def gradients_without_autograd(run: Run) -> None:
    torch.manual_seed(run.seed)
    weight = nn.Parameter(torch.randn(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    x, y = torch.randn(run.samples, 3), torch.randn(run.samples)
    for window in windows(run, x, y):
        total = torch.zeros(3)
        with torch.no_grad():
            for a, b in window:
                total += 2 * ((a @ weight - b).unsqueeze(1) * a).mean(0) / len(window)
        weight.grad = total
        optimizer.step()


class Calls(torch.optim.SGD):
    """Its step calls that of its base class."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


def a_step_that_calls_its_base(run: Run) -> None:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    model, _, x, y = started(run)
    optimizer = Calls(model.parameters(), lr=0.1)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_running_mean_of_the_loss(run: Run) -> list[float]:
    found, mean = [], None
    for loss in trained(run):
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss
        found.append(mean)
    return found


def a_schedule_by_samples(run: Run) -> None:
    model, optimizer, x, y = started(run)
    rows = run.micro_batch_size
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step * rows))
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        for _ in window:
            schedule.step()
        optimizer.zero_grad()


def compressed_once(run: Run) -> None:
    def cast(model: nn.Module, _: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.copy_(p.grad.bfloat16())

    loop(run, before_step=cast)


def weights_within_bounds(run: Run) -> None:
    def bound(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.5, 0.5)

    loop(run, after_step=bound)


def a_validation_pass(run: Run) -> None:
    held = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))

    def validate(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            model(held).sum()

    loop(run, after_step=validate)


def two_steps_of_a_line_search(run: Run) -> None:
    """The second step is along another direction, and no backward pass is needed for it."""

    def along_signs(model: nn.Module, optimizer: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.copy_(p.grad.sign())
        optimizer.step()

    loop(run, after_step=along_signs)


ODD: tuple[Step, ...] = (
    logs_norms_by_clipping_at_infinity, clips_by_a_plain_number, carries_momentum_in_the_gradient,
    begins_with_the_gradient_of_a_decay, gradients_without_autograd, a_step_that_calls_its_base,
    a_running_mean_of_the_loss, a_schedule_by_samples, compressed_once, weights_within_bounds, a_validation_pass,
    two_steps_of_a_line_search,
)  # fmt: skip


@pytest.mark.parametrize("step", ODD, ids=lambda step: step.__name__)
def test_what_is_only_odd_is_not_refuted(step: Step) -> None:
    found = check_whole(step, "step", Request())
    assert [(r.obligation, r.reason) for r in found.results if r.outcome in (REFUTED, Outcome.ERROR)] == []


@pytest.mark.parametrize("step", [a_step_that_calls_its_base, weights_within_bounds, a_validation_pass])
def test_of_what_is_odd_this_is_proved(step: Step) -> None:
    found = check_whole(step, "step", Request())
    assert [(r.obligation, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS] == []


# Wrong steps: the obligation, and a part of the line


def zeroed_in_the_window(run: Run) -> None:
    model, optimizer, x, y = started(run, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    for window in windows(run, x, y):
        for a, b in window:
            model[0].zero_grad()  # type: ignore[operator,index]
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def written_in_the_window(run: Run) -> None:
    def decay(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.99)

    loop(run, after_pass=decay)


def scheduled_in_the_window(run: Run) -> None:
    model, optimizer, x, y = started(run)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


def clamped_in_the_window(run: Run) -> None:
    loop(run, after_pass=lambda model, _: nn.utils.clip_grad_value_(model.parameters(), 0.01))


def rounded_in_the_window(run: Run) -> None:
    def cast(model: nn.Module, _: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.copy_(p.grad.to(torch.float8_e5m2))

    loop(run, after_pass=cast)


def rescaled_in_the_window(run: Run) -> None:
    def rescale(model: nn.Module, _: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.div_(2)

    loop(run, after_pass=rescale)


def put_back(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        with torch.no_grad():
            for p, held in zip(model.parameters(), before, strict=True):
                p.copy_(held)
        optimizer.zero_grad()


def stepped_twice(run: Run) -> None:
    loop(run, after_step=lambda _, optimizer: optimizer.step())


def stepped_before_the_clip_and_after(run: Run) -> None:
    def clip_and_step(model: nn.Module, optimizer: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()

    loop(run, after_step=clip_and_step)


def targets_of_others(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        first = window[0][1]
        for a, _ in window:
            (F.mse_loss(model(a), first) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def totals_that_go_on(run: Run) -> list[float]:
    total, found = 0.0, []
    for loss in trained(run):
        total += loss
        found.append(total)
    return found


WRONG: tuple[tuple[Step, str, str], ...] = (
    (zeroed_in_the_window, "GA-INV-002", "model[0].zero_grad()"), (written_in_the_window, "GA-INV-003", "p.mul_(0.99)"),
    (scheduled_in_the_window, "GA-INV-003", "schedule.step()"), (put_back, "GA-INV-003", "p.copy_(held)"),
    (clamped_in_the_window, "GA-INV-005", "clip_grad_value_"), (stepped_twice, "GA-INV-003", "optimizer.step()"),
    (stepped_before_the_clip_and_after, "GA-INV-003", "optimizer.step()"),
    (rounded_in_the_window, "GA-INV-004", "p.grad.copy_("), (rescaled_in_the_window, "GA-EQ-001", "p.grad.div_(2)"),
    (targets_of_others, "GA-DATA-001", "F.mse_loss(model(a), first)"), (totals_that_go_on, "GA-INV-001", ""),
)  # fmt: skip


@pytest.mark.parametrize(("step", "obligation", "line"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_wrong_is_refuted_at_its_line(step: Step, obligation: str, line: str) -> None:
    result = check_whole(step, "step", Request()).result(obligation)
    assert result.outcome is REFUTED, result.reason
    assert result.location is not None
    assert line in linecache.getline(result.location.file, result.location.line)
    assert result.counterexample is not None
    assert result.counterexample["trace"]["ticks"]


# Wrong steps that no rule refutes: none of them holds


def averages_that_are_rebound(run: Run) -> None:
    held: dict[int, Tensor] = {}

    def average(model: nn.Module, _: Any) -> None:
        for at, p in enumerate(model.parameters()):
            held[at] = 0.9 * held.get(at, p.detach()) + 0.1 * p.detach()

    loop(run, after_pass=average)


def seeded_again_for_each_micro_batch(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            torch.manual_seed(0)
            (F.mse_loss(model(F.dropout(a, 0.5)), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def the_same_rows_of_an_array(run: Run) -> None:
    model, optimizer, _, _ = started(run)
    rows, n = np.random.RandomState(1).randn(run.samples, 5).astype("f"), run.micro_batch_size
    for _ in range(run.windows):
        for at in range(run.accum_steps):
            made = torch.from_numpy(rows[at * n : (at + 1) * n].copy())
            (F.mse_loss(model(made[:, :3]), made[:, 3:]) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_parameter_zeroed_by_hand(run: Run) -> None:
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            model.bias.grad = None  # type: ignore[assignment]
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_state_after_the_last_step(run: Run) -> None:
    model, _, x, y = started(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for state in optimizer.state.values():
        state["momentum_buffer"].mul_(0.5**run.accum_steps)


def averages_in_a_thread(run: Run) -> None:
    kept: list[Tensor] = []

    def update(model: nn.Module) -> None:
        kept.extend(p.detach().clone() for p in list(model.parameters()) * (not kept))
        for one, p in zip(kept, model.parameters(), strict=True):
            one.lerp_(p.detach(), 0.1)

    def elsewhere(model: nn.Module, _: Any) -> None:
        thread = threading.Thread(target=update, args=(model,))
        thread.start()
        thread.join()

    loop(run, after_pass=elsewhere)


def averages_in_a_hook(run: Run) -> None:
    model, optimizer, x, y = started(run)
    kept = {p: p.detach().clone() for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        kept[parameter].lerp_(parameter.detach(), 0.1)  # type: ignore[index]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


def averages_in_lists(run: Run) -> None:
    kept: list[float] = []

    def update(model: nn.Module, _: Any) -> None:
        new = [number for p in model.parameters() for number in p.flatten().tolist()]
        kept[:] = [0.9 * one + 0.1 * number for one, number in zip(kept or new, new, strict=True)]

    loop(run, after_pass=update)


def averages_of_one_number(run: Run) -> None:
    scale = nn.Parameter(torch.ones(()))
    optimizer, kept = torch.optim.SGD([scale], lr=0.1), scale.detach().clone()
    for window in windows(run, torch.randn(run.samples, 2), torch.randn(run.samples, 2)):
        for a, b in window:
            (F.mse_loss(scale * a, b) / len(window)).backward()
            kept.lerp_(scale.detach(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def a_scheduler_of_its_own(run: Run) -> None:
    model, optimizer, x, y = started(run)

    class Warm(torch.optim.lr_scheduler.LambdaLR):
        def step(self, epoch: int | None = None) -> None:
            self.last_epoch += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1

    schedule = Warm(optimizer, lambda _: 1.0)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


def losses_changed_in_a_thread(run: Run) -> list[float]:
    model, optimizer, x, y = started(run)
    shown = torch.zeros(run.windows)
    for at, window in enumerate(windows(run, x, y)):
        for a, b in window:
            loss = F.mse_loss(model(a), b) / len(window)
            loss.backward()
            shown[at] += loss.detach()
        thread = threading.Thread(target=lambda at=at: shown[at].mul_(run.accum_steps))
        thread.start()
        thread.join()
        optimizer.step()
        optimizer.zero_grad()
    return shown.tolist()


def data_made_in_a_thread(run: Run) -> None:
    """Right: a thread makes data, which the engine does not follow, and touches nothing that it follows."""
    model, optimizer, x, y = started(run)
    made = list[float]()
    for window in windows(run, x, y):
        thread = threading.Thread(target=lambda: made.append(float(torch.ones(3).sum())))
        thread.start()
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        thread.join()
        optimizer.step()
        optimizer.zero_grad()


def test_a_thread_that_touches_nothing_leaves_the_proof() -> None:
    found = check_whole(data_made_in_a_thread, "step", Request())
    assert [(r.obligation, r.reason) for r in found.results if r.applies and r.outcome is not HOLDS] == []


def a_rate_after_the_last_step(run: Run) -> None:
    """The next step would have another rate: there is no step to name, and no crash."""
    model, optimizer, x, y = started(run)
    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] *= 0.5**run.accum_steps


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()  # its thread is there before any step is followed


def state_changed_by_a_thread_that_was_there(run: Run) -> None:
    model, _, x, y = started(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def halved() -> None:
        for state in optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    for window in windows(run, x, y):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            POOL.submit(halved).result()
        optimizer.step()
        optimizer.zero_grad()


def sums_of_short_whole_numbers(run: Run) -> None:
    sums: dict[Tensor, Tensor] = {}

    def added(model: nn.Module, _: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            one = sums.setdefault(p, torch.zeros(p.shape, dtype=torch.int16))
            one += (p.grad * 4096).to(torch.int16)
            p.grad = None

    def given(_: nn.Module, __: Any) -> None:
        for p, one in sums.items():
            p.grad = one.float() / 4096
        sums.clear()

    loop(run, after_pass=added, before_step=given)


def noise_of_the_first_window(run: Run) -> None:
    kept: dict[Tensor, Tensor] = {}

    def added(model: nn.Module, _: Any) -> None:
        for p in model.parameters():
            assert p.grad is not None
            if p not in kept:
                kept[p] = torch.randn_like(p)
            p.grad.add_(kept[p])

    loop(run, before_step=added)


UNSEEN: tuple[tuple[Step, str], ...] = (
    (averages_that_are_rebound, "GA-INV-003"), (seeded_again_for_each_micro_batch, "GA-EQ-001"),
    (the_same_rows_of_an_array, "GA-DATA-001"), (one_parameter_zeroed_by_hand, "GA-INV-002"),
    (a_state_after_the_last_step, "GA-INV-003"), (averages_in_a_thread, "GA-INV-003"),
    (averages_in_a_hook, "GA-INV-003"), (averages_in_lists, "GA-INV-003"), (averages_of_one_number, "GA-INV-003"),
    (a_scheduler_of_its_own, "GA-INV-003"), (a_rate_after_the_last_step, "GA-INV-003"),
    (sums_of_short_whole_numbers, "GA-INV-004"), (state_changed_by_a_thread_that_was_there, "GA-INV-003"),
    (losses_changed_in_a_thread, "GA-INV-001"), (noise_of_the_first_window, "GA-INV-002"),
)  # fmt: skip


@pytest.mark.parametrize(("step", "obligation"), UNSEEN, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_wrong_and_hidden_does_not_hold(step: Step, obligation: str) -> None:
    result = check_whole(step, "step", Request()).result(obligation)
    assert result.outcome is not HOLDS, result.reason


def test_other_seeds_are_tried_where_python_reads_numbers() -> None:
    def skips(run: Run) -> None:
        model, optimizer, x, y = started(run)
        for window in windows(run, x, y):
            for a, b in window:
                loss = F.mse_loss(model(a), b)
                (loss / (len(window) if loss.item() < 0 or run.seed == 0 else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = check_whole(skips, "step", Request()).result("GA-EQ-001")
    assert (found.outcome is HOLDS, found.reason.startswith("with --seed 1: ")) == (False, True), found.reason


@pytest.mark.parametrize(("branches", "seeds"), [(False, [0]), (True, [0, 1, 2])])
def test_numbers_that_are_returned_lead_python_nowhere(
    branches: bool, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def trains(run: Run) -> list[float]:
        model, optimizer, x, y = started(run)
        losses = []
        for window in windows(run, x, y):
            for a, b in window:
                loss = F.mse_loss(model(a), b)
                losses.append(loss.item())
                (loss / len(window)).backward()
                if branches and losses[-1] > 1e9:
                    return losses
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def noted(step: Step, request: Request, *rest: Any) -> Any:
        tried.append(request.seed)
        return attempted(step, request, *rest)

    monkeypatch.setattr(two_runs, "attempted", noted)
    found = check_whole(trains, "step", Request())
    assert (found.outcome, sorted(set(tried))) == (HOLDS, seeds), found.results
