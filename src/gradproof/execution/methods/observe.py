"""Observation of a training step by hooks that the harness owns: nothing here is taken from the subject's word.

| what | how |
|---|---|
| a backward pass, the factor on its loss, its loss | hook on the loss tensor that the criterion returned |
| g_i as it arrives at each leaf, before accumulation | tensor hooks on the leaves, copied to the CPU in its own dtype |
| the gradient applied, and that a step happened | optimizer step pre-hook, copied |
| a step attempt | the same hook, or `step` of the watched GradScaler |
| zero, unscale, schedule, clip | `zero_grad` and `step` of the instances, the scaler's methods, torch.nn.utils |
| a zero without `zero_grad` | after a step, every `.grad` is absent or 0 when the next backward begins |
| weights that the step did not give | at each forward and at the end: beside a twin optimizer, leaf beside master |

A clip with an infinite limit reads the norm and is no clip. The twin is an optimizer of the same class and form on
copies of the weights, with the hyperparameters and the gradients that the real one had at each step.

A fused optimizer's hooks fire although the scaler's inf suppresses the update: `skipped` is read from the flag that
the scaler leaves on the optimizer (`found_inf`), and gradients that are still scaled are divided by `grad_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradproof.execution.methods.counterexample import heard, tell
from gradproof.execution.methods.property import Batch, Job, make_optimizer
from gradproof.shadow.tape.calls import ATTEMPT, CLIP, PASS, SCHEDULE, UNSCALE, ZERO, Nested, params_of, seen, steps

# -- What any PyTorch loop does, seen as phases: backward passes, clips, steps and zeroes of the optimizers of torch.
FIRST = 16
"""Weights that a step tells, at most."""


@contextmanager
def phases() -> Iterator[None]:
    """Tell every loop inside the block. What torch does is not changed."""
    zero, clip = _reporting("zero", lambda *_: ()), _reporting("clip", lambda _, result: _number(result))
    backward = _reporting("backward", lambda roots, _: _number(*roots[:1]))
    with seen({ZERO: zero, CLIP: clip, PASS: backward}), steps(lambda _: None, _stepped):
        yield


def _reporting(event: str, state: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Reports a call when it has returned, but for one inside another, and for gradients that are returned."""
    busy = Nested()

    def call(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        outer = not busy and kwargs.get("accumulate_grad", True)
        result = busy.call(plain, *args, **kwargs)
        if outer:
            tell(event, state(args[0] if args else None, result), True)
        return result

    return call


def _number(value: Any) -> float | None:
    """A tensor of one element as a number."""
    return float(value.detach()) if isinstance(value, Tensor) and value.numel() == 1 else None


def _stepped(optimizer: Optimizer) -> None:
    stated: list[float] = []
    for weight in params_of(optimizer)[:FIRST]:
        stated += weight.detach().flatten()[: FIRST - len(stated)].tolist()
    tell("step", tuple(stated), True)


@dataclass(eq=False)
class Backward:
    """One backward pass: its micro-batch, the factor that the subject put on the loss, what reached the leaves."""

    index: int
    reduction: str
    loss: float
    factor: float
    grads: list[Tensor | None]
    sizes: list[int]

    @cached_property
    def vector(self) -> Tensor:
        """All leaves in one vector of doubles (exact for every 16- and 32-bit format); what never arrived is zero."""
        return vector_of(self.grads, self.sizes)

    @cached_property
    def finite(self) -> bool:
        """Whether every element is."""
        return bool(self.vector.isfinite().all())


@dataclass(eq=False)
class Applied:
    """One call of the real optimizer: after how many backward passes, with which gradients and learning rate."""

    after: int
    grads: list[Tensor | None]
    skipped: bool
    learning_rate: float


@dataclass(eq=False)
class Clip:
    """One observed call of clip_grad_norm_: in which window, its limit, the norm before."""

    window: int
    limit: float
    before: float


@dataclass(eq=False)
class Trace:
    """Everything that was seen. Events are the names of the window protocol, in order.

    `unzeroed`: the first backward found something in the buffers and no zero before it. `astray`: where weights were
    first seen that are not those of the observed steps, or a leaf that is not its master's copy; else empty. `rate`:
    the learning rate at the end.
    """

    events: list[str] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    leftover: list[Tensor | None] = field(default_factory=list)
    weights: list[list[Tensor]] = field(default_factory=list)
    unzeroed: bool = False
    astray: str = ""
    rate: float = 0.0

    def schedules(self) -> list[int]:
        """How often the schedule advanced: before the first step attempt, then after each."""
        counts = [0]
        for event in self.events:
            counts += [0] if event == "step" else []
            counts[-1] += event == "schedule"
        return counts


def vector_of(grads: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor:
    """Gradients as one vector of doubles; an absent one is zero."""
    pairs = zip(grads, sizes, strict=True)
    return torch.cat([torch.zeros(n) if g is None else g.flatten() for g, n in pairs]).double()


def copied(tensor: Tensor | None) -> Tensor | None:
    """A copy on the CPU in the same dtype."""
    return None if tensor is None else tensor.detach().to(device="cpu", copy=True)


def copied_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU in the same dtypes."""
    return [t.detach().to(device="cpu", copy=True) for t in tensors]


class Twin:
    """The weights as the observed steps alone would make them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.weights = [torch.nn.Parameter(p.detach().clone()) for p in job.masters]
        self.optimizer = make_optimizer(job.config, self.weights)

    def step(self, scale: float) -> None:
        """Step with the gradients and the hyperparameters that the job's optimizer has now."""
        for own, master in zip(self.weights, self.job.masters, strict=True):
            own.grad = None if master.grad is None else master.grad.detach() / scale
        for group, real in zip(self.optimizer.param_groups, self.job.optimizer.param_groups, strict=True):
            group.update({k: v for k, v in real.items() if k != "params"})
        self.optimizer.step()

    def differs(self) -> str:
        """Which weight is not the twin's, up to rounding, or which leaf is not its master's copy; else nothing."""
        for k, (own, leaf, master) in enumerate(zip(self.weights, self.job.leaves, self.job.masters, strict=True)):
            a, b = own.detach(), master.detach()
            if not torch.equal(a, b) and not torch.allclose(a, b, rtol=8 * 2.0**-24, atol=2.0**-40):
                return f"weight {k} is not what the optimizer's steps on the gradients it was given make of it"
            if leaf is not master and not torch.equal(leaf.detach(), master.detach().to(leaf.dtype)):
                return f"parameter {k} of the model is not the copy of its master weight"
        return ""


class Watch:
    """Watches one job. Build the job with `criterion`, then enter `watching`."""

    def __init__(self, loss: Callable[[Tensor, Batch, str], Tensor]) -> None:
        self.trace = Trace()
        self._loss = loss
        self._sizes: list[int] = []
        self._in_scaler = False
        self._untold = ""
        self._job: Job | None = None

    def criterion(self, output: Tensor, batch: Batch, reduction: str = "mean") -> Tensor:
        """The harness's loss, hooked: a backward pass through it opens a record."""
        loss = self._loss(output, batch, reduction)
        value = float(loss.detach())

        def arrived(grad: Tensor) -> None:
            record = Backward(batch.index, reduction, value, float(grad), [None] * len(self._sizes), self._sizes)
            self.trace.backwards.append(record)
            self._infer_zero()
            self._note("accumulate")

        if loss.requires_grad:
            cast(Any, loss).register_hook(arrived)
        return loss

    def _infer_zero(self) -> None:
        """Before an accumulation into a buffer that nobody was seen to zero: is it empty all the same?"""
        held = next((e for e in reversed(self.trace.events) if e in ("zero", "accumulate", "step")), None)
        if self._job is None or held in ("zero", "accumulate"):
            return
        grads = [p.grad for p in (*self._job.masters, *self._job.leaves)]
        empty = all(g is None or not bool(g.any()) for g in grads)
        if empty and held == "step":
            self._note("zero")
        self.trace.unzeroed = self.trace.unzeroed or (not empty and held is None)

    def _weigh(self, twin: Twin, where: str) -> None:
        said = "" if self.trace.astray else twin.differs()
        if said:
            self.trace.astray = f"{where}: {said}"

    def _note(self, event: str) -> None:
        self.trace.events.append(event)
        self._tell(event)

    def _tell(self, event: str) -> None:
        """Tell the event before this one, with what it left in the buffers; the last one is `end`."""
        if self._job is None or not heard():
            return
        if self._untold:
            grads = [copied(p.grad) for p in self._job.masters]
            tell(self._untold, tuple(vector_of(grads, [p.numel() for p in self._job.masters]).tolist()))
        self._untold = event
        if event == "end":
            self._tell("")

    def _attempt(self) -> None:
        self._note("step")
        self.trace.attempts.append(len(self.trace.backwards))

    @contextmanager
    def watching(self, job: Job) -> Iterator[Trace]:
        """Hook the job for the time of the block; at its end note `end` and what was left in the buffers."""
        self._sizes, self._job, twin = [p.numel() for p in job.leaves], job, Twin(job)

        def before_forward(*_: Any) -> None:
            self._weigh(twin, f"after {len(self.trace.backwards)} micro-batches")

        handles = [cast(Any, p).register_hook(self._leaf_hook(k)) for k, p in enumerate(job.leaves)]
        handles.append(job.model.register_forward_pre_hook(before_forward))
        around = {
            ZERO: self._noting(job.optimizer, "zero"), SCHEDULE: self._noting(job.scheduler, "schedule"),
            UNSCALE: self._noting(job.scaler, "unscale"), ATTEMPT: self._attempting(job), CLIP: self._clipping(),
        }  # fmt: skip
        with seen(around), steps(self._stepping(job, twin), self._stepped(job)):
            yield self.trace
        for handle in handles:
            handle.remove()
        self._weigh(twin, "at the end")
        self._note("end")
        self.trace.rate = float(job.optimizer.param_groups[0]["lr"])
        self.trace.leftover = [copied(p.grad) for p in job.masters]

    def _leaf_hook(self, k: int) -> Callable[[Tensor], None]:
        def arrived(grad: Tensor) -> None:
            self.trace.backwards[-1].grads[k] = copied(grad)

        return arrived

    def _stepping(self, job: Job, twin: Twin) -> Callable[[Optimizer], None]:
        def stepping(optimizer: Optimizer) -> None:
            if optimizer is not job.optimizer:
                return
            if not self._in_scaler:
                self._attempt()
            found = getattr(optimizer, "found_inf", None)
            scale = getattr(optimizer, "grad_scale", None)
            grads = [copied(p.grad) for p in job.masters]
            if scale is not None:
                grads = [None if g is None else g / float(scale) for g in grads]
            skipped = found is not None and float(found) > 0
            if not self.trace.weights:
                self.trace.weights.append(copied_all(job.masters))
            rate = float(optimizer.param_groups[0]["lr"])
            self.trace.applied.append(Applied(len(self.trace.backwards), grads, skipped, rate))
            if not skipped:
                twin.step(1.0 if scale is None else float(scale))

        return stepping

    def _stepped(self, job: Job) -> Callable[[Optimizer], None]:
        def stepped(optimizer: Optimizer) -> None:
            if optimizer is job.optimizer:
                self.trace.weights.append(copied_all(job.masters))

        return stepped

    def _noting(self, owner: Any, event: str) -> Callable[..., Any]:
        """Notes calls of one object, but for those that the scaler's own step makes."""

        def noting(plain: Callable[..., Any], own: Any, *args: Any, **kwargs: Any) -> Any:
            if own is owner and not self._in_scaler:
                self._note(event)
            return plain(own, *args, **kwargs)

        return noting

    def _attempting(self, job: Job) -> Callable[..., Any]:
        def attempting(plain: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler is not job.scaler:
                return plain(scaler, *args, **kwargs)
            self._attempt()
            self._in_scaler = True
            try:
                return plain(scaler, *args, **kwargs)
            finally:
                self._in_scaler = False

        return attempting

    def _clipping(self) -> Callable[..., Any]:
        busy = Nested()

        def clipping(plain: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if busy:
                return plain(parameters, *args, **kwargs)
            params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            limit = float(args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value", math.inf)))
            if math.isfinite(limit):
                self._note("clip")
            before = busy.call(plain, params, *args, **kwargs)
            if before is not None:
                self.trace.clips.append(Clip(len(self.trace.attempts), limit, float(before)))
            return before

        return clipping
