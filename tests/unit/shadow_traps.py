"""Training functions on which a verifier is easily wrong: each was found by a reader who tried to fool this one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from shadow_steps import batches
from torch import Tensor, nn
from torch.nn import functional as F

Change = Callable[[nn.Module], object]
SERIES = np.random.RandomState(1).randn(64).astype("float32")


def train(
    run: Any, before: Change | None = None, after: Change | None = None, each: Change | None = None,
    scale: bool = True, model: nn.Module | None = None, lr: float = 0.1,
) -> None:  # fmt: skip
    """A regression; the hooks run after each backward pass, before the step and after it."""
    model = model or nn.Linear(3, 2)
    optimizer, count = torch.optim.SGD(model.parameters(), lr=lr), 0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        loss = F.mse_loss(model(x), y)
        (loss / window if scale else loss).backward()
        count += 1
        if each:
            each(model)
        if count == window:
            if before:
                before(model)
            optimizer.step()
            optimizer.zero_grad()
            count = 0
            if after:
                with torch.no_grad():
                    after(model)


def same_data_again(run: Any) -> None:
    """Every micro-batch is drawn with the generator at its seed."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            own = torch.Generator().manual_seed(run.seed)
            x = torch.randn(run.micro_batch_size, 3, generator=own)
            y = torch.randn(run.micro_batch_size, 2, generator=own)
            (F.mse_loss(model(x), y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def branch_on_a_number(run: Any) -> None:
    """A large gradient is scaled by N; in the recorded run none is large."""

    def before(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if torch.stack([g.square().sum() for g in grads]).sum().item() > 5.0:
            for g in grads:
                g.mul_(run.accum_steps)

    train(run, before)


def clip_by_python_numbers(run: Any) -> None:
    """Clipped after every micro-batch, by a factor that Python computed."""

    def each(model: nn.Module) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        for g in grads:
            g.mul_(min(1.0, 50 / norm))

    train(run, each=each)


def best_then_numpy(run: Any) -> None:
    """A branch on data that hides a value that left for NumPy and came back."""
    model = nn.Linear(3, 2)
    optimizer, best = torch.optim.SGD(model.parameters(), lr=0.1), None
    count = 0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            if best is None or loss < best:
                best = loss * 1.0
        count += 1
        if count == window:
            for p in model.parameters():
                p.grad = torch.from_numpy(p.grad.numpy() * np.float32(0.5))  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def another_model_is_stepped(run: Any) -> None:
    """The optimizer holds the parameters of a copy."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
    count = 0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        F.mse_loss(model(x), y).backward()
        count += 1
        if count == window:
            optimizer.step()
            model.zero_grad()
            count = 0


def one_window_only(run: Any) -> None:
    """Trains one window, whatever is asked for."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(run.samples, 3), torch.randn(run.samples, 2)
    for a, b, window in list(batches(run, x, y))[: run.accum_steps]:
        (F.mse_loss(model(a), b) / window).backward()
    optimizer.step()
    optimizer.zero_grad()


def learning_rate_zero(run: Any) -> None:
    """N times the gradient; the learning rate of a warm-up is still 0."""

    def before(model: nn.Module) -> None:
        for p in model.parameters():
            p.grad.mul_(run.accum_steps)  # type: ignore[union-attr]

    train(run, before, lr=0.0)


def averaged(run: Any, times: int, decay: float) -> None:
    """A running average of the weights, advanced `times` times a step."""
    model = nn.Linear(3, 2)
    average = copy.deepcopy(model).requires_grad_(False)

    def after(model: nn.Module) -> None:
        for _ in range(times):
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.mul_(decay).add_(p, alpha=1 - decay)

    train(run, after=after, model=model)


def average_a_step(run: Any) -> None:
    """Right."""
    averaged(run, 1, 0.9)


def average_n_times(run: Any) -> None:
    """Advanced N times a step."""
    averaged(run, run.accum_steps, 0.9)


def average_decays_by_n(run: Any) -> None:
    """The decay depends on N."""
    averaged(run, 1, 0.9**run.accum_steps)


def swa_n_times(run: Any) -> None:
    """torch's own averaged model, advanced N times a step."""
    model = nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    train(run, after=lambda m: [average.update_parameters(m) for _ in range(run.accum_steps)], model=model)


def decay_by_n(run: Any) -> None:
    """Weights shrink after the last step, by an amount that depends on N."""
    train(run, after=lambda m: [p.mul_(1 - 0.01 * run.accum_steps) for p in m.parameters()])


def clamped_weights(run: Any) -> None:
    """Right: a Wasserstein critic clamps its weights after every step."""
    train(run, after=lambda m: [p.clamp_(-0.3, 0.3) for p in m.parameters()])


def losses_summed(run: Any) -> None:
    """Right: one backward pass of the sum of a window's losses."""
    model, losses = nn.Linear(3, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        losses.append(F.mse_loss(model(x), y) / window)
        if len(losses) == window:
            torch.stack(losses).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses = []


def by_hand(run: Any, factor: float) -> None:
    """A step without torch.optim."""
    model, count = nn.Linear(3, 2), 0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        (F.mse_loss(model(x), y) * factor / window).backward()
        count += 1
        if count == window:
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)  # type: ignore[arg-type]
                p.grad = None
            count = 0


def step_by_hand(run: Any) -> None:
    """Right."""
    by_hand(run, 1.0)


def step_by_hand_unscaled(run: Any) -> None:
    """The 1/N is missing."""
    by_hand(run, run.accum_steps)


def clip_each(run: Any) -> None:
    """A clip after every micro-batch that binds at large gradients only."""

    def each(model: nn.Module) -> None:
        norm = torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum().sqrt()
        for p in model.parameters():
            p.grad.mul_(torch.clamp(50 / norm, max=1.0))  # type: ignore[union-attr]

    train(run, each=each)


def hook_clamps(run: Any) -> None:
    """A hook clamps what every micro-batch brings, at large gradients only."""
    model = nn.Linear(3, 2)
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-50, 50))
    train(run, model=model)


def overlapping_windows(run: Any) -> None:
    """Right; every micro-batch is a view of one NumPy array that overlaps the one before."""
    model, begin = nn.Linear(4, 1), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(run.windows):
        for _ in range(run.accum_steps):
            rows = np.lib.stride_tricks.sliding_window_view(SERIES, 5)[begin : begin + run.micro_batch_size]
            begin += run.micro_batch_size
            x, y = torch.tensor(rows[:, :4]), torch.tensor(rows[:, 4])
            (F.mse_loss(model(x)[:, 0], y) / run.accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluated_twice(run: Any) -> None:
    """LBFGS runs the micro-batches of a window as often as it likes."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    pairs = list(batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)))
    for first in range(0, len(pairs), run.accum_steps):

        def closure(first: int = first) -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros(())
            for x, y, window in pairs[first : first + run.accum_steps]:
                loss = F.mse_loss(model(x), y) / window
                loss.backward()
                total = total + loss.detach()
            return total

        optimizer.step(closure)  # type: ignore[arg-type]


def returned_sum(run: Any) -> dict[str, Any]:
    """Returns the sum of the micro-batches' losses as NumPy numbers, one a window."""
    model, count = nn.Linear(3, 2), 0
    optimizer, stated, total = torch.optim.SGD(model.parameters(), lr=0.1), [], 0.0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randn(run.samples, 2)):
        loss = F.mse_loss(model(x), y)
        (loss / window).backward()
        count, total = count + 1, total + loss.item()
        if count == window:
            optimizer.step()
            optimizer.zero_grad()
            stated.append(np.float32(total))
            count, total = 0, 0.0
    return {"loss": stated}


def labels_without_padding(run: Any) -> None:
    """Right at these labels; wrong where the micro-batches ignore different numbers of them."""
    model = nn.Linear(3, 4)
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for x, y, window in batches(run, torch.randn(run.samples, 3), torch.randint(0, 4, (run.samples,))):
        (F.cross_entropy(model(x), y, ignore_index=-100) / window).backward()
        count += 1
        if count == window:
            optimizer.step()
            optimizer.zero_grad()
            count = 0


OUTER = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def deep_copy_in_training(run: Any) -> None:
    """Batch statistics of a model that is a copy of one outside."""
    train(run, model=copy.deepcopy(OUTER))


def deep_copy_frozen(run: Any) -> None:
    """Right: the same with the statistics frozen."""
    train(run, model=copy.deepcopy(OUTER).eval())
