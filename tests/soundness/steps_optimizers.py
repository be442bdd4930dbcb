"""Steps about optimizers: when they step, which there are, schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from gradproof.shadow.tape.run import Run
from tests.soundness.kit import Job, Task, freeze, right, wrong
from tests.soundness.tasks import LINEAR, MLP

Parameters = Iterable[nn.Parameter]


def with_optimizer(make: Any, **given: Any) -> Task:
    """The small regression with another optimizer."""
    return replace(LINEAR, optimizer=lambda parameters: make(parameters, lr=0.1, **given))


ADAM = with_optimizer(torch.optim.Adam)
ADAMW_FUSED = with_optimizer(torch.optim.AdamW, fused=True)
ADAMW_FOREACH = with_optimizer(torch.optim.AdamW, foreach=True)
MOMENTUM = with_optimizer(torch.optim.SGD, momentum=0.9)
ADAGRAD = with_optimizer(torch.optim.Adagrad)
RMSPROP = with_optimizer(torch.optim.RMSprop)
DECAYED = with_optimizer(torch.optim.SGD, weight_decay=0.1)


def whole(output: Tensor, target: Tensor, window: Any) -> Tensor:
    """The loss of a micro-batch, not divided."""
    return F.mse_loss(output, target)


# When it steps


@wrong("steps", LINEAR, "GA-INV-003")
def a_step_for_each_micro_batch(run: Run) -> None:
    """Shares are divided, and each is stepped alone."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            job.apply()


@wrong("steps", LINEAR, "GA-INV-003")
def a_step_twice(run: Run) -> None:
    """Two steps with the same gradients, when they were accumulated."""
    job = LINEAR.start(run)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        if len(window) > 1:
            job.optimizer.step()
        job.apply()


@wrong("steps", MLP, "GA-INV-003")
def a_step_before_the_last_micro_batch(run: Run) -> None:
    """The index is off by one."""
    job = MLP.start(run)
    for i, (x, y) in enumerate(job.batches()):
        (F.cross_entropy(job.model(x), y) / run.accum_steps).backward()
        if (i + 2) % run.accum_steps == 0:
            job.apply()


@wrong("steps", LINEAR, "GA-INV-003")
def a_step_at_index_zero(run: Run) -> None:
    """The first step comes after one micro-batch."""
    job = LINEAR.start(run)
    for i, (x, y) in enumerate(job.batches()):
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        if i % run.accum_steps == 0:
            job.apply()


@wrong("steps", LINEAR, "GA-INV-003")
def a_step_every_other_micro_batch(run: Run) -> None:
    """Half of N."""
    job = LINEAR.start(run)
    for i, (x, y) in enumerate(job.batches()):
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        if (i + 1) % max(run.accum_steps // 2, 1) == 0:
            job.apply()


# Optimizers


@right("optimizers", ADAM)
def adam(run: Run) -> None:
    """Adam."""
    ADAM.start(run).train()


@wrong("optimizers", ADAM, "GA-EQ-001")
def adam_without_a_share(run: Run) -> None:
    """Adam hides the missing 1/N from the weights, nearly."""
    ADAM.start(run).train(whole)


@right("optimizers", ADAMW_FUSED)
def fused_adamw(run: Run) -> None:
    """All parameters in one kernel."""
    ADAMW_FUSED.start(run).train()


@right("optimizers", ADAMW_FOREACH)
def foreach_adamw(run: Run) -> None:
    """All parameters in list operators."""
    ADAMW_FOREACH.start(run).train()


@wrong("optimizers", ADAMW_FUSED, "GA-EQ-001")
def fused_adamw_without_a_share(run: Run) -> None:
    """The 1/N is missing."""
    ADAMW_FUSED.start(run).train(whole)


@right("optimizers", MOMENTUM)
def momentum(run: Run) -> None:
    """SGD with momentum."""
    MOMENTUM.start(run).train()


@right("optimizers", ADAGRAD)
def adagrad(run: Run) -> None:
    """Adagrad."""
    ADAGRAD.start(run).train()


@right("optimizers", RMSPROP)
def rmsprop(run: Run) -> None:
    """RMSprop."""
    RMSPROP.start(run).train()


@right("optimizers", DECAYED)
def weight_decay(run: Run) -> None:
    """SGD with weight decay."""
    DECAYED.start(run).train()


@wrong("optimizers", MOMENTUM, "GA-INV-003")
def momentum_that_is_reset_when_accumulating(run: Run) -> None:
    """The state is thrown away after each window, where N is above one."""
    job = MOMENTUM.start(run)

    def before(job: Job) -> None:
        if run.accum_steps > 1:
            job.optimizer.state.clear()

    job.train(None, before)


def in_groups(parameters: Parameters) -> Optimizer:
    """One group of each parameter."""
    return torch.optim.SGD([{"params": [p], "lr": 0.1 / (i + 1)} for i, p in enumerate(parameters)], lr=0.1)


GROUPS = replace(MLP, optimizer=in_groups)


@right("optimizers", GROUPS)
def parameter_groups(run: Run) -> None:
    """Each parameter has a learning rate."""
    GROUPS.start(run).train()


def half_frozen() -> nn.Module:
    """The first layer does not train."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    return model


def of_trained(parameters: Parameters) -> Optimizer:
    """Those that train."""
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1)


FROZEN = replace(MLP, model=half_frozen, optimizer=of_trained)


@right("optimizers", FROZEN)
def frozen_parameters(run: Run) -> None:
    """The first layer is frozen."""
    FROZEN.start(run).train()


@wrong("optimizers", FROZEN, "GA-EQ-001")
def frozen_parameters_without_a_share(run: Run) -> None:
    """The first layer is frozen, and the 1/N is missing."""
    FROZEN.start(run).train(lambda output, target, window: F.cross_entropy(output, target))


def two_optimizers(run: Run) -> Any:
    """The plain full batch with an optimizer for each layer."""
    job = MLP.start(run)
    first, second = optimizers_of(job)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.cross_entropy(job.model(x), y).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()


def optimizers_of(job: Job) -> tuple[Optimizer, Optimizer]:
    """SGD for the first layer, Adam for the second."""
    made = torch.optim.SGD(job.parameters[:2], lr=0.1), torch.optim.Adam(job.parameters[2:], lr=0.01)
    freeze(*made)
    return made


@right("optimizers", two_optimizers)
def two_optimizers_of_one_model(run: Run) -> None:
    """Both step once a window."""
    job = MLP.start(run)
    first, second = optimizers_of(job)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()


@wrong("optimizers", two_optimizers, "GA-INV-003")
def two_optimizers_of_which_one_steps_too_often(run: Run) -> None:
    """The second steps with each micro-batch."""
    job = MLP.start(run)
    first, second = optimizers_of(job)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
            second.step()
            second.zero_grad()
        first.step()
        first.zero_grad()


@wrong("optimizers", two_optimizers, "GA-INV-002")
def two_optimizers_of_which_one_is_zeroed(run: Run) -> None:
    """The second layer's gradients stay."""
    job = MLP.start(run)
    first, second = optimizers_of(job)
    for window in job.windows():
        for x, y in window:
            (F.cross_entropy(job.model(x), y) / len(window)).backward()
        first.step()
        second.step()
        first.zero_grad()


# Schedules


def scheduled(run: Run) -> None:
    """The plain full batch; the rate is halved after each window."""
    job = LINEAR.start(run)
    schedule = torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)
    size = run.effective_batch_size
    for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
        F.mse_loss(job.model(x), y).backward()
        job.apply()
        schedule.step()


@right("schedules", scheduled)
def a_schedule_for_each_window(run: Run) -> None:
    """The schedule steps with the optimizer."""
    job = LINEAR.start(run)
    schedule = torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()
        schedule.step()


@wrong("schedules", scheduled, "GA-INV-003")
def a_schedule_for_each_micro_batch(run: Run) -> None:
    """The schedule steps with each micro-batch."""
    job = LINEAR.start(run)
    schedule = torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)
    for window in job.windows():
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
            schedule.step()
        job.apply()


@right("schedules", scheduled)
def a_rate_by_hand_for_each_window(run: Run) -> None:
    """The rate is set by hand."""
    job = LINEAR.start(run)
    for number, window in enumerate(job.windows()):
        for group in job.optimizer.param_groups:
            group["lr"] = job.lr * 0.5**number
        for x, y in window:
            (F.mse_loss(job.model(x), y) / len(window)).backward()
        job.apply()


@wrong("schedules", scheduled, "GA-INV-003")
def a_rate_by_hand_for_each_micro_batch(run: Run) -> None:
    """The rate is set by hand with each micro-batch."""
    job = LINEAR.start(run)
    for i, (x, y) in enumerate(job.batches()):
        job.optimizer.param_groups[0]["lr"] = job.lr * 0.5**i
        (F.mse_loss(job.model(x), y) / run.accum_steps).backward()
        if (i + 1) % run.accum_steps == 0:
            job.apply()
