"""A user's own training function as the subject of step proofs: its harness, and generic mutants of it.

`gradproof init` writes a workspace that uses both. The subject is the function of a `Run` itself, so that nothing of it
is written again. A mutant is the same function, called while torch is made to do what the bug would make it do: its
loss counts too much, its gradients are never zeroed, and so on. Only windows of several micro-batches are disturbed:
the full batch, `accum_steps` 1, is trained as it is.

A mutant that finds nothing to change (a loop that fills its gradients with zeros by hand) leaves the function as it
is, and the check says that the mutant was not killed: WEAK, never green.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gradproof.execution.methods.recorded_step import ANYWHERE, USERS, StepSetting
from gradproof.shadow.record.patches import MISSING

Function = Callable[[Any], Any]
SMALL = 2.0**-10
"""A norm to which gradients are clipped: far below any that training starts with."""


@dataclass
class Loop:
    """What a mutant sees of one call: the window's length, the optimizers, the backward passes since the last step."""

    length: int
    optimizers: list[Optimizer] = field(default_factory=list)
    passes: int = 0
    within: bool = False

    def met(self, optimizer: Optimizer) -> None:
        """An optimizer that was made, or that steps."""
        if not any(o is optimizer for o in self.optimizers):
            self.optimizers.append(optimizer)

    def parameters(self) -> list[Tensor]:
        """The parameters of the optimizers that have a gradient."""
        return [p for o in self.optimizers for g in o.param_groups for p in g["params"] if p.grad is not None]


class Bug:
    """What goes wrong around a backward pass, with zero_grad, or in what the function returns. This one: nothing."""

    zeroes = True

    def weight(self, loop: Loop) -> float:
        """The factor of the loss of this backward pass."""
        return 1.0

    def after(self, loop: Loop) -> None:
        """What happens after a backward pass."""

    def returned(self, loop: Loop, value: Any) -> Any:
        """What the function returns."""
        return value


class NotDivided(Bug):
    """Each loss counts as often as the window has micro-batches."""

    def weight(self, loop: Loop) -> float:
        """The window's length."""
        return float(loop.length)


class FirstCountsTwice(Bug):
    """The first micro-batch of a window counts twice."""

    def weight(self, loop: Loop) -> float:
        """Two for the first pass after a step."""
        return 2.0 if loop.passes == 1 else 1.0


class Misreported(FirstCountsTwice):
    """The first loss of a window counts twice, and the losses that the function returns are too large."""

    def returned(self, loop: Loop, value: Any) -> Any:
        """Every number times the window's length."""
        return _times(value, float(loop.length))


class NeverZeroed(Bug):
    """zero_grad does nothing, and `p.grad = None` neither."""

    zeroes = False


class StepEveryMicroBatch(Bug):
    """Every optimizer steps after each backward pass."""

    def after(self, loop: Loop) -> None:
        """The steps."""
        for optimizer in loop.optimizers:
            optimizer.step()


class ClipEveryMicroBatch(Bug):
    """The gradients are clipped after each backward pass."""

    def after(self, loop: Loop) -> None:
        """The clip."""
        torch.nn.utils.clip_grad_norm_(loop.parameters(), SMALL)


class SumInBf16(Bug):
    """What has been accumulated is rounded to bfloat16 after each backward pass."""

    def after(self, loop: Loop) -> None:
        """The rounding."""
        for parameter in loop.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(parameter.grad.to(torch.bfloat16))


BUGS: Mapping[str, tuple[str, Bug]] = MappingProxyType(
    {
        "not_divided": ("GA-EQ-001", NotDivided()),
        "first_counts_twice": ("GA-EQ-001", FirstCountsTwice()),
        "loss_misreported": ("GA-INV-001", Misreported()),
        "never_zeroed": ("GA-INV-002", NeverZeroed()),
        "step_every_micro_batch": ("GA-INV-003", StepEveryMicroBatch()),
        "sum_in_bf16": ("GA-INV-004", SumInBf16()),
        "clip_every_micro_batch": ("GA-INV-005", ClipEveryMicroBatch()),
    }
)
"""Name -> the obligation that the bug must be seen to break, and the bug."""


@dataclass(frozen=True, slots=True)
class LoopMutant:
    """A mutant of a user's function. `subject` is called like the function; `reference`: how it was made."""

    name: str
    obligation: str
    reference: str
    subject: Function


def mutants_of(function: Function) -> Mapping[str, LoopMutant]:
    """The generic mutants of a training function, by name."""
    return {
        name: LoopMutant(name, obligation, "made by gradproof around the loop", mutated(function, bug))
        for name, (obligation, bug) in BUGS.items()
    }


def mutated(function: Function, bug: Bug) -> Function:
    """The function with a bug in every window of several micro-batches."""

    def train(run: Any) -> Any:
        if run.accum_steps == 1:
            return function(run)
        loop = Loop(run.accum_steps)
        with disturbed(loop, bug):
            value = function(run)
        return bug.returned(loop, value)

    return train


@contextmanager
def disturbed(loop: Loop, bug: Bug) -> Iterator[None]:
    """Torch with a bug, as long as it lasts; afterwards everything is as it was."""

    def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        loop.met(optimizer)
        if not loop.within:
            loop.passes = 0

    backward, added = torch.autograd.backward, Optimizer.add_param_group

    def passed(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if loop.within:
            backward(tensors, *args, **kwargs)
            return
        loop.passes += 1
        loop.within = True
        try:
            backward(_weighed(tensors, bug.weight(loop)), *args, **kwargs)
            bug.after(loop)
        finally:
            loop.within = False

    def grouped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        added(optimizer, *args, **kwargs)
        loop.met(optimizer)

    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(stepping).remove)
        stack.enter_context(replaced(torch.autograd, "backward", passed))
        stack.enter_context(replaced(Optimizer, "add_param_group", grouped))
        if not bug.zeroes:
            stack.enter_context(replaced(torch.Tensor, "grad", _kept()))
            for owner in (Optimizer, torch.nn.Module):
                stack.enter_context(replaced(owner, "zero_grad", _nothing))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value, as long as it lasts; one that is inherited is inherited again."""
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _nothing(owner: Any, *args: Any, **kwargs: Any) -> None:
    """zero_grad that zeroes nothing."""


def _kept() -> property:
    """The attribute `grad` of tensors, which cannot be cleared."""
    held: Any = torch.Tensor.grad

    def assign(tensor: Tensor, value: Any) -> None:
        if value is not None:
            held.__set__(tensor, value)

    def delete(tensor: Tensor) -> None:
        """Nothing is deleted."""

    return property(held.__get__, assign, delete)


def _weighed(tensors: Any, weight: float) -> Any:
    if weight == 1.0:
        return tensors
    return tensors * weight if isinstance(tensors, Tensor) else [t * weight for t in tensors]


def _times(value: Any, factor: float) -> Any:
    """Every float and float tensor in what a function returned, times a factor."""
    if isinstance(value, Mapping):
        return {key: _times(part, factor) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_times(part, factor) for part in value]
    tensor = isinstance(value, Tensor) and value.is_floating_point()
    return value * factor if tensor or isinstance(value, float) else value


class LoopHarness:
    """The function as it is: one loop, which makes its own model, data and optimizer from the run."""

    blamed: Mapping[str, str] = {name: ANYWHERE if name == "loss_misreported" else USERS for name in BUGS}
    """The bugs act around the user's lines, so that any of these may be blamed; what is returned has no line."""

    def step(self, subject: Function, setting: StepSetting) -> Function:
        """The subject."""
        return subject

    def covers(self, settings: Sequence[StepSetting]) -> Sequence[str]:
        """A short last window, where one is asked for."""
        return ["a short last window"] if any(s.tail for s in settings) else []

    def reached(self, setting: StepSetting) -> Iterable[str]:
        """By the configuration alone."""
        return ["a short last window"] if setting.tail else []
