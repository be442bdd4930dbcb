"""Steps that an adversarial reader of `check` wrote, with what they end with, for an oracle that knows no gradproof."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.shadow.tape.run import Run

Ends = list[Tensor]
OUT: dict[str, Ends] = {}
"""What the last run of a step ended with; only the oracle reads it."""
Step = Callable[[Run], Any]
RATE = 0.1


def windows(run: Run) -> Iterator[list[tuple[Tensor, Tensor]]]:
    x, y = torch.randn(run.samples, 3, dtype=run.dtype), torch.randn(run.samples, 1, dtype=run.dtype)
    batches = list(zip(x.split(run.micro_batch_size), y.split(run.micro_batch_size), strict=True))
    for i in range(0, len(batches), run.accum_steps):
        yield batches[i : i + run.accum_steps]


def start(run: Run) -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 1).to(run.dtype)
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def end(*tensors: Tensor) -> None:
    OUT["end"] = [t.detach().clone() for t in tensors]


def reference(run: Run) -> None:
    """The full batch, with plain SGD and nothing else."""
    model, _ = start(run)
    for window in windows(run):
        loss = sum(F.mse_loss(model(a), b) for a, b in window) / len(window)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= RATE * g
    end(*model.parameters())


# Wrong


class Idle(torch.optim.Optimizer):
    """SGD that changes a copy of each weight."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.clone().sub_(group["lr"] * p.grad)


def own_optimizer_that_moves_nothing(run: Run) -> None:
    model, _ = start(run)
    optimizer = Idle(model.parameters(), RATE)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def own_optimizer_that_moves_nothing_exported(run: Run) -> None:
    model, _ = start(run)
    optimizer = Idle(model.parameters(), RATE)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        np.abs(model.weight.detach().numpy()).max()
        optimizer.zero_grad()
    end(*model.parameters())


def last_window_added_from_state(run: Run) -> None:
    model, optimizer = start(run)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        for p in model.parameters():
            old = optimizer.state[p].get("old")
            optimizer.state[p]["old"] = p.grad.clone()
            p.grad += 0 if old is None else old
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def sum_in_state_that_is_never_reset(run: Run) -> None:
    model, optimizer = start(run)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            for p in model.parameters():
                state = optimizer.state[p]
                state["sum"] = state["sum"] + p.grad if "sum" in state else p.grad.clone()
                p.grad = None
        for p in model.parameters():
            p.grad = optimizer.state[p]["sum"].clone()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def teacher_for_each_micro_batch(run: Run) -> None:
    model, optimizer = start(run)
    teacher = copy.deepcopy(model)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            with torch.no_grad():
                for q, p in zip(teacher.parameters(), model.parameters(), strict=True):
                    q.copy_(0.9 * q + 0.1 * p)
        optimizer.step()
        optimizer.zero_grad()
    end(*teacher.parameters())


class Counting(nn.Module):
    """Its forward is never called, as in Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))

    def training_step(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(a.mean(0), alpha=0.1)
        return F.mse_loss(self.net(a), b)


def buffer_of_a_module_that_is_not_called(run: Run) -> None:
    torch.manual_seed(run.seed)
    model = Counting().to(run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for window in windows(run):
        for a, b in window:
            (model.training_step(a, b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(model.mean)


def report_of_the_last_sample(run: Run) -> list[float]:
    model, optimizer = start(run)
    out = []
    for window in windows(run):
        for a, b in window:
            loss = F.mse_loss(model(a), b)
            (loss / len(window)).backward()
            last = float(F.mse_loss(model(a[-1:]), b[-1:]).detach())
        optimizer.step()
        optimizer.zero_grad()
        out.append(last)
    return out


def report_a_fifth_too_small(run: Run) -> list[float]:
    """Beside multiplications in bf16, whose roundings are no excuse for a fifth."""
    model, optimizer = start(run)
    out = []
    for window in windows(run):
        total = 0.0
        for a, b in window:
            made = F.linear(a.bfloat16(), model.weight.bfloat16(), model.bias.bfloat16()).to(run.dtype)
            loss = F.mse_loss(made, b)
            (loss / len(window)).backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        out.append(total / (len(window) + (len(window) > 1)))
    return out


# Right


def sums_in_state(run: Run) -> None:
    model, optimizer = start(run)
    for p in model.parameters():
        optimizer.state[p]["sum"] = torch.zeros_like(p)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
            for p in model.parameters():
                optimizer.state[p]["sum"] += p.grad
                p.grad = None
        for p in model.parameters():
            p.grad = optimizer.state[p]["sum"].clone()
        optimizer.step()
        optimizer.zero_grad()
        for p in model.parameters():
            optimizer.state[p]["sum"].zero_()
    end(*model.parameters())


class Bank(torch.optim.Optimizer):
    """It keeps the sums itself."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.sums: dict[Tensor, Any] = {}

    def accumulate(self, share: float) -> None:
        for p in self.param_groups[0]["params"]:
            self.sums[p] = self.sums.get(p, 0) + p.grad * share
            p.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p -= self.param_groups[0]["lr"] * self.sums[p]
        self.sums.clear()


def optimizer_with_sums_of_its_own(run: Run) -> None:
    model, _ = start(run)
    optimizer = Bank(model.parameters(), RATE)
    for window in windows(run):
        for a, b in window:
            F.mse_loss(model(a), b).backward()
            optimizer.accumulate(1 / len(window))
        optimizer.step()
    end(*model.parameters())


class EveryNth(torch.optim.Optimizer):
    """Its step is called for each micro-batch, and applies the mean of n."""

    def __init__(self, params: Any, lr: float, n: int) -> None:
        super().__init__(params, {"lr": lr})
        self.n, self.calls = n, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.calls += 1
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state.setdefault("sum", torch.zeros_like(p))
            state["sum"] += p.grad
            if self.calls % self.n == 0:
                p -= self.param_groups[0]["lr"] * state["sum"] / self.n
                state["sum"].zero_()


def optimizer_that_steps_every_nth_time(run: Run) -> None:
    model, _ = start(run)
    optimizer = EveryNth(model.parameters(), RATE, run.accum_steps)
    for window in windows(run):
        for a, b in window:
            optimizer.zero_grad()
            F.mse_loss(model(a), b).backward()
            optimizer.step()
    end(*model.parameters())


class Renamed(torch.optim.SGD):
    """Its step calls the step of its base class: one step."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def step_that_calls_its_base(run: Run) -> None:
    model, _ = start(run)
    optimizer = Renamed(model.parameters(), lr=RATE)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def rate_by_the_samples_seen(run: Run) -> None:
    model, optimizer = start(run)
    seen = 0
    for window in windows(run):
        for a, b in window:
            seen += len(a)
            optimizer.param_groups[0]["lr"] = RATE * (1 - seen / (2 * run.samples))
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def rate_too_small_to_move_a_weight(run: Run) -> None:
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 1, bias=False).to(run.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())


def weights_at_their_bound(run: Run) -> None:
    torch.manual_seed(run.seed)
    model = nn.Linear(3, 1, bias=False).to(run.dtype)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a.abs()), -b.abs() - 1) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.weight.clamp_(min=0)
    end(*model.parameters())


def weights_that_are_bound_anew(run: Run) -> None:
    model, _ = start(run)
    for window in windows(run):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for a, b in window:
            grads = torch.autograd.grad(F.mse_loss(model(a), b) / len(window), list(model.parameters()))
            sums = [s + g for s, g in zip(sums, grads, strict=True)]
        for s, p in zip(sums, model.parameters(), strict=True):
            p.data = p.data - RATE * s
    end(*model.parameters())


def weights_that_are_new_tensors(run: Run) -> None:
    model, _ = start(run)
    held = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    for window in windows(run):
        sums: dict[str, Any] = dict.fromkeys(held, 0.0)
        for a, b in window:
            loss = F.mse_loss(torch.func.functional_call(model, held, (a,)), b) / len(window)
            for k, g in zip(held, torch.autograd.grad(loss, list(held.values())), strict=True):
                sums[k] = sums[k] + g
        held = {k: (v.detach() - RATE * sums[k]).requires_grad_() for k, v in held.items()}
    end(*held.values())


def largest_loss_beside_the_mean(run: Run) -> list[dict[str, float]]:
    model, optimizer = start(run)
    out = []
    for window in windows(run):
        losses = []
        for a, b in window:
            loss = F.mse_loss(model(a), b)
            (loss / len(window)).backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        out.append({"loss": sum(losses) / len(losses), "worst": max(losses)})
    end(*model.parameters())
    return out


def parameter_without_dimensions(run: Run) -> None:
    model, _ = start(run)
    scale = nn.Parameter(torch.tensor(1.0, dtype=run.dtype))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=RATE)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a) * scale, b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters(), scale)


def sparse_embedding(run: Run) -> None:
    torch.manual_seed(run.seed)
    table = nn.Embedding(5, 4, sparse=True).to(run.dtype)
    optimizer = torch.optim.SGD(table.parameters(), lr=RATE)
    ids = torch.randint(0, 4, (run.samples, 3)).split(run.micro_batch_size)
    for i in range(0, len(ids), run.accum_steps):
        window = ids[i : i + run.accum_steps]
        for a in window:
            (table(a).pow(2).mean() / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(table.weight)


class Trainer:
    callback: Any = None


def returns_what_holds_itself(run: Run) -> Trainer:
    model, optimizer = start(run)
    for window in windows(run):
        for a, b in window:
            (F.mse_loss(model(a), b) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    end(*model.parameters())
    made = Trainer()
    made.callback = Trainer()
    made.callback.callback = made
    return made


WRONG: dict[str, tuple[Step, str]] = {
    "own optimizer that moves nothing": (own_optimizer_that_moves_nothing, "GA-INV-003"),
    "own optimizer that moves nothing, exported": (own_optimizer_that_moves_nothing_exported, "GA-INV-003"),
    "stale, from state": (last_window_added_from_state, "GA-INV-002"),
    "stale, in state": (sum_in_state_that_is_never_reset, "GA-INV-002"),
    "teacher": (teacher_for_each_micro_batch, "GA-INV-003"),
    "buffer": (buffer_of_a_module_that_is_not_called, "GA-INV-003"),
}
REPORTS: dict[str, Step] = {"last sample": report_of_the_last_sample, "a fifth": report_a_fifth_too_small}
CLEAN = (
    "stale, from state", "stale, in state", "own optimizer that moves nothing",
    "own optimizer that moves nothing, exported",
)  # fmt: skip
"""Both runs are wrong alike: the oracle compares these with the reference."""
RIGHT: tuple[Step, ...] = (
    sums_in_state, optimizer_with_sums_of_its_own, optimizer_that_steps_every_nth_time, rate_by_the_samples_seen,
    rate_too_small_to_move_a_weight, weights_at_their_bound, largest_loss_beside_the_mean, parameter_without_dimensions,
    sparse_embedding, returns_what_holds_itself, step_that_calls_its_base, weights_that_are_bound_anew,
    weights_that_are_new_tensors,
)  # fmt: skip
