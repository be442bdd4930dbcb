"""What a PyTorch training step is handed, and what it reports: the interface of the subjects of torch runs.

A subject is a class without constructor arguments whose `run(job)` trains over `job.batches`. Everything in the
job belongs to the harness: model, optimizer, scaler, schedule and criterion, so that they can be watched.

With `fp16_params` the model's own parameters are fp16; the optimizer then holds fp32 master weights, and the
`.grad` of each master weight is the fp32 accumulation buffer (Megatron's main_grad). In every other mode a master
weight is the parameter itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

MODES = ("fp32", "fp16", "bf16", "fp16_params")
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
FORMS = ("single", "foreach", "fused")
OPTIMIZERS = ("sgd", "adamw")
PAIRS = tuple((OPTIMIZERS[i % 2], FORMS[i % 3]) for i in range(6))


@dataclass(frozen=True, slots=True)
class StepConfig:
    """How the step is set up. `loss_scale` None means no GradScaler; `weighting` is `equal` or `count`."""

    n: int
    mode: str = "fp32"
    optimizer: str = "sgd"
    form: str = "single"
    weighting: str = "equal"
    max_norm: float | None = None
    loss_scale: float | None = None
    learning_rate: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One micro-batch: `count` is its number of samples, or of tokens that carry loss."""

    index: int
    inputs: Tensor
    targets: Tensor
    count: int


@dataclass
class Report:
    """What the subject says of itself: one loss a window. Everything else is observed."""

    losses: list[float] = field(default_factory=list)
    open_loss: float = 0.0

    def close(self) -> None:
        """End the window."""
        self.losses.append(self.open_loss)
        self.open_loss = 0.0


class Criterion(Protocol):
    """Loss of a micro-batch: the mean over its `count`, or with reduction `sum` the sum."""

    def __call__(self, output: Tensor, batch: Batch, reduction: str = "mean") -> Tensor: ...


@dataclass
class Job:
    """One training run. `masters` are the tensors that the optimizer updates, one a leaf and in its order."""

    config: StepConfig
    model: nn.Module
    leaves: list[nn.Parameter]
    masters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler | None
    batches: Sequence[Batch]
    criterion: Criterion

    def autocast(self) -> AbstractContextManager[Any]:
        """The forward's autocast region; disabled in the modes without one."""
        dtype = AUTOCAST.get(self.config.mode)
        return torch.autocast(self.config.device, dtype=dtype, enabled=dtype is not None)


class Subject(Protocol):
    """A training step."""

    def run(self, job: Job) -> Report: ...


def make_optimizer(config: StepConfig, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD or AdamW in its single-tensor, foreach or fused form. Raises ValueError for another name."""
    if config.form not in FORMS:
        raise ValueError(f"no optimizer form {config.form!r}; known: {', '.join(FORMS)}")
    foreach, fused = config.form == "foreach", config.form == "fused"
    if config.optimizer == "sgd":
        return torch.optim.SGD(params, lr=config.learning_rate, foreach=foreach, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=config.learning_rate, foreach=foreach, fused=fused)
    raise ValueError(f"no optimizer {config.optimizer!r}; known: {', '.join(OPTIMIZERS)}")


def place(model: nn.Module, config: StepConfig) -> tuple[nn.Module, list[nn.Parameter], list[nn.Parameter]]:
    """The model on its device and in its dtype, its leaves, and the weights that the optimizer is to hold."""
    half = config.mode == "fp16_params"
    model = model.to(device=config.device, dtype=torch.float16 if half else torch.float32)
    leaves = [p for p in model.parameters() if p.requires_grad]
    masters = [nn.Parameter(p.detach().float()) for p in leaves] if half else leaves
    return model, leaves, masters


@dataclass(frozen=True)
class Maker:
    """Builds a job around a model; the scaler's class and the criterion come from the observer."""

    criterion: Criterion
    scaler: Callable[..., torch.amp.GradScaler] = torch.amp.GradScaler

    def make(self, model: nn.Module, config: StepConfig, batches: Sequence[Batch]) -> Job:
        """A job over `batches`; the model is moved and cast in place."""
        model, leaves, masters = place(model, config)
        optimizer = make_optimizer(config, masters)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        scaler = None
        if config.loss_scale is not None:
            scaler = self.scaler(config.device, init_scale=config.loss_scale, growth_interval=1 << 30)
        return Job(config, model, leaves, masters, optimizer, scheduler, scaler, batches, self.criterion)
