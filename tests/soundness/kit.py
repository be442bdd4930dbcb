"""What the steps are made of: tasks with model, data, loss and optimizer, a list of all steps, and a probe.

A step is a function that takes a `Run` and trains, as gradproof calls it. A task says what the full batch is; the
oracle trains it with a loop of its own. Only the oracle sets a probe: gradproof sees none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradproof.shadow.tape.run import Run

Batch = tuple[Tensor, Tensor]
Train = Callable[[Run], Any]
Share = Callable[[Tensor, Tensor, list[Batch]], Tensor]
Report = Callable[[list[float]], list[float]]


@dataclass(slots=True)
class Handed:
    """One call of an optimizer's step: its gradients, weights and learning rates, and the samples since the last."""

    gradients: list[Tensor | None]
    weights: list[Tensor]
    rates: list[float]
    samples: list[Tensor]


@dataclass(slots=True)
class Probe:
    """What the oracle listens with. `still`: no weight moves. `changed`: the samples of the first window are others.

    `magnitude`: by what the weights are multiplied at first, and the samples where they are no tokens.
    """

    still: bool = False
    changed: bool = False
    magnitude: float = 1.0
    handed: list[Handed] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    model: nn.Module | None = None
    samples: list[Tensor] = field(default_factory=list)
    inside: bool = False
    kept: list[Tensor] = field(default_factory=list)

    def weights(self) -> list[Tensor]:
        """The parameters as they are."""
        made = [] if self.model is None else list(self.model.parameters())
        return [p.detach().double().clone() for p in [*made, *self.kept]]

    def hand(self, gradients: Iterable[Tensor | None], rates: list[float]) -> None:
        """Note gradients that are applied; inside of an optimizer's step they replace what it was called with."""
        kept = [None if g is None else g.detach().clone() for g in gradients]
        self.dtypes |= {g.dtype for g in kept if g is not None}
        if self.inside:
            self.handed[-1].gradients = kept
            self.handed[-1].samples += self.samples
        else:
            self.handed.append(Handed(kept, self.weights(), rates, self.samples))
        self.samples = []

    def before(self, optimizer: Optimizer, *_: Any) -> None:
        """Note what an optimizer's step is called with."""
        groups = optimizer.param_groups
        self.hand([p.grad for g in groups for p in g["params"]], [float(g["lr"]) for g in groups])
        self.inside = True

    def after(self, *_: Any) -> None:
        """The optimizer's step is over."""
        self.inside = False

    def forward(self, model: nn.Module, given: tuple[Any, ...]) -> None:
        """Note the samples of a forward pass that trains."""
        if model.training and torch.is_grad_enabled() and given and isinstance(given[0], Tensor):
            self.samples.append(given[0].detach().double().clone().reshape(len(given[0]), -1))


class Listening:
    """The probe of the moment; None when gradproof calls."""

    probe: Probe | None = None


def hand_over(gradients: Iterable[Tensor | None], rates: Iterable[float] = ()) -> None:
    """Tell the oracle which gradients the step applies, where no optimizer is called or a closure makes them."""
    if Listening.probe is not None:
        Listening.probe.hand(list(gradients), list(rates))


def accumulates(*buffers: Tensor) -> None:
    """Tell the oracle which tensors gradients are summed in."""
    if Listening.probe is not None:
        Listening.probe.dtypes |= {b.dtype for b in buffers}


def keeps(*tensors: Tensor) -> None:
    """Tell the oracle which tensors belong to the weights: averages, masters."""
    if Listening.probe is not None:
        Listening.probe.kept += tensors


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(slots=True)
class Job:
    """A task that was started: model, optimizer and data."""

    run: Run
    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    lr: float

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters."""
        return list(self.model.parameters())

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients that are there."""
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def batches(self) -> list[Batch]:
        """The micro-batches, in order."""
        size = self.run.micro_batch_size
        return list(zip(self.inputs.split(size), self.targets.split(size), strict=True))

    def windows(self) -> Iterator[list[Batch]]:
        """The micro-batches of each window; the last window may be short."""
        made, n = self.batches(), self.run.accum_steps
        yield from (made[i : i + n] for i in range(0, len(made), n))

    def train(self, share: Share | None = None, before: Callable[[Job], Any] | None = None) -> list[Tensor]:
        """A right loop, but for `share`, what a micro-batch adds to the loss, and `before`, called before each step."""
        losses = []
        for window in self.windows():
            total = torch.zeros((), dtype=self.run.dtype)
            for x, y in window:
                loss = self.loss(self.model(x), y) / len(window) if share is None else share(self.model(x), y, window)
                loss.backward()
                total += loss.detach()
            if before is not None:
                before(self)
            self.apply()
            losses.append(total)
        return losses

    def zero(self) -> None:
        """Zero the gradients."""
        self.optimizer.zero_grad()

    def apply(self) -> None:
        """Step, then zero."""
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True, slots=True)
class Task:
    """Model, data, loss of a window and optimizer. `prepare` changes the full batch's gradients before a step."""

    model: Callable[[], nn.Module]
    data: Callable[[int, torch.dtype], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = sgd
    prepare: Callable[[nn.Module], Any] | None = None
    lr: float = 0.1

    def start(self, run: Run) -> Job:
        """Make model, data and optimizer; the same seed makes the same ones."""
        model = self.model().to(run.dtype)
        inputs, targets = self.data(run.samples, run.dtype)
        optimizer = self.optimizer(model.parameters())
        job = Job(run, model, optimizer, inputs, targets, self.loss, self.lr)
        if Listening.probe is not None:
            watched(job, Listening.probe)
        return job


def watched(job: Job, probe: Probe) -> None:
    """Attach the probe; hold the weights still and change the first window's samples where it asks for that.

    Random numbers cannot be compared: the oracle looks at the step without dropout.
    """
    probe.model = job.model
    for module in job.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    job.model.register_forward_pre_hook(probe.forward)
    for tensor in (*job.model.parameters(), *([job.inputs] if job.inputs.is_floating_point() else [])):
        tensor.detach().mul_(probe.magnitude)
    if probe.still:
        job.lr = 0.0
        freeze(job.optimizer)
    if probe.changed:
        first = job.inputs[: job.run.effective_batch_size]
        first.copy_(first * 0.5 + 0.25 if first.is_floating_point() else (first + 1) % (int(job.inputs.max()) + 1))


def freeze(*optimizers: Optimizer) -> None:
    """An optimizer that a step makes for itself moves nothing either, when the oracle holds the weights still."""
    if Listening.probe is not None and Listening.probe.still:
        for group in [g for o in optimizers for g in o.param_groups]:
            group["lr"] = group["lr"] * 0.0
            group["weight_decay"] = 0.0


# The list of steps

RIGHT, WRONG, BLIND, MEETS = "right", "wrong", "blind", "samples meet"
CLASSES: dict[str, tuple[str, ...]] = {
    "reductions": ("1/N", "tail", "fixed normaliser", "ignores run", "one micro-batch", "one window"),
    "masks": ("token means", "constants"),
    "buffers": ("own accumulators",),
    "hooks": ("hooks", "main_grad", "one backward pass"),
    "optimizers": ("optimizers", "schedules", "steps", "averages", "two passes", "closures", "by hand"),
    "losses": ("reported losses",),
    "control flow": ("gates", "reads", "epochs", "validation"),
    "dtypes": ("narrow weights", "loss scaling"),
    "clipping": ("clipping", "gradients changed"),
    "zeroing": ("zeroing", "gradients before the loop"),
    "data": ("data",),
    "models": ("models", "parametrizations"),
}
"""The classes of steps, and the groups that belong to each."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its label, what the oracle compares it with, and the numbers that gradproof is called with.

    A comparison with itself says nothing about a blind step, right or not: it may be neither green nor red. Where
    samples meet, the answer is OUTSIDE, and names the line. `broken` are the obligations that a wrong step breaks, or
    of which nothing can be decided.
    `reports` makes of the windows' losses what the step should return; None means that it returns nothing to compare.
    `rounding`: the relative difference in the run's own dtype that is called rounding. `by_rate`: the learning rate is
    divided by N where the gradients are not. The oracle weighs with each seed and magnitude.
    """

    name: str
    group: str
    function: Train
    reference: Train
    label: str
    broken: tuple[str, ...] = ()
    reports: Report | None = None
    tolerance: float = 1e-6
    accum_steps: int = 4
    micro_batch: int = 2
    windows: int = 2
    tail: int = 0
    rounding: float = 2e-4
    by_rate: bool = False
    seeds: tuple[int, ...] = (0,)
    magnitudes: tuple[float, ...] = (1.0,)
    bug: str = ""

    @property
    def kind(self) -> str:
        """The class that the group belongs to."""
        return next((name for name, groups in CLASSES.items() if self.group in (name, *groups)), self.group)

    @property
    def words(self) -> str:
        """The label in words."""
        return f"{self.label}: {', '.join(self.broken)}" if self.broken else self.label

    @property
    def run(self) -> Run:
        """The numbers of the run that gradproof asks for."""
        return Run(self.accum_steps, self.micro_batch, self.windows, tail=self.tail)


STEPS: dict[str, Step] = {}


def textbook(task: Task) -> Train:
    """The plain full-batch loop of a task: forward, backward, step; the loss of every window."""

    def train(run: Run) -> list[float]:
        job = task.start(run)
        size, losses = run.effective_batch_size, []
        for x, y in zip(job.inputs.split(size), job.targets.split(size), strict=True):
            job.optimizer.zero_grad()
            loss = task.loss(job.model(x), y)
            loss.backward()
            if task.prepare is not None:
                task.prepare(job.model)
            job.optimizer.step()
            losses.append(float(loss))
        return losses

    return train


def windows_losses(losses: list[float]) -> list[float]:
    """A step that reports the loss of every window."""
    return losses


def _listed(group: str, task: Task | Train, label: str, broken: tuple[str, ...], given: dict[str, Any]) -> Any:
    def listed(function: Train) -> Train:
        name = function.__name__
        if name in STEPS:
            raise ValueError(f"two steps are called {name}")
        reference = textbook(task) if isinstance(task, Task) else task
        STEPS[name] = Step(name, group, function, reference, label, broken, **given)
        return function

    return listed


def right(group: str, task: Task | Train, **given: Any) -> Any:
    """List a right step; `task`, or a function that trains as it should, is what it must agree with."""
    return _listed(group, task, RIGHT, (), given)


def wrong(group: str, task: Task | Train, *broken: str, **given: Any) -> Any:
    """List a wrong step with the obligations that it breaks."""
    return _listed(group, task, WRONG, broken, given)


def blind(group: str, task: Task | Train, *undecided: str, **given: Any) -> Any:
    """List a step about which a comparison with itself decides nothing of some obligations."""
    return _listed(group, task, BLIND, undecided, given)


def meets(group: str, task: Task | Train, *undecided: str, **given: Any) -> Any:
    """List a step in whose model or loss samples meet, so that no micro-batches give what the full batch gives."""
    return _listed(group, task, MEETS, undecided, given)
