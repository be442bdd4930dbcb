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
from torch.optim.optimizer import Optimizer

from gradproof.execution.methods.recorded_step import ANYWHERE, USERS, StepSetting
from gradproof.shadow.follow.unseen import replaced
from gradproof.shadow.tape.calls import ZERO, params_of, seen, steps

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
        return [p for optimizer in self.optimizers for p in params_of(optimizer) if p.grad is not None]


@dataclass(frozen=True)
class Bug:
    """What goes wrong. `weight`: the factor of the loss of a backward pass. `after`: what happens after each pass.

    `returned`: what numbers that the function returns are multiplied by. `zeroes`: whether zero_grad does anything, and
    `p.grad = None`. By default nothing goes wrong.
    """

    weight: Callable[[Loop], float] = lambda loop: 1.0
    after: Callable[[Loop], object] = lambda loop: None
    returned: Callable[[Loop], float] = lambda loop: 1.0
    zeroes: bool = True


def _length(loop: Loop) -> float:
    return float(loop.length)


def _first_twice(loop: Loop) -> float:
    return 2.0 if loop.passes == 1 else 1.0


def _step(loop: Loop) -> None:
    for optimizer in loop.optimizers:
        optimizer.step()


def _to_bf16(loop: Loop) -> None:
    """What has been accumulated is rounded to bfloat16."""
    for parameter in loop.parameters():
        assert parameter.grad is not None
        parameter.grad.copy_(parameter.grad.to(torch.bfloat16))


BUGS: Mapping[str, tuple[str, Bug]] = MappingProxyType(
    {
        "not_divided": ("GA-EQ-001", Bug(weight=_length)),
        "first_counts_twice": ("GA-EQ-001", Bug(weight=_first_twice)),
        "loss_misreported": ("GA-INV-001", Bug(weight=_first_twice, returned=_length)),
        "never_zeroed": ("GA-INV-002", Bug(zeroes=False)),
        "step_every_micro_batch": ("GA-INV-003", Bug(after=_step)),
        "sum_in_bf16": ("GA-INV-004", Bug(after=_to_bf16)),
        "clip_every_micro_batch": (
            "GA-INV-005",
            Bug(after=lambda loop: torch.nn.utils.clip_grad_norm_(loop.parameters(), SMALL)),
        ),
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
        return _times(value, bug.returned(loop))

    return train


@contextmanager
def disturbed(loop: Loop, bug: Bug) -> Iterator[None]:
    """Torch with a bug, as long as it lasts; afterwards everything is as it was."""

    def stepping(optimizer: Optimizer) -> None:
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
        stack.enter_context(steps(stepping, lambda _: None))
        stack.enter_context(replaced(torch.autograd, "backward", passed))
        stack.enter_context(replaced(Optimizer, "add_param_group", grouped))
        if not bug.zeroes:
            stack.enter_context(replaced(torch.Tensor, "grad", _kept()))
            stack.enter_context(seen({ZERO: lambda *_, **__: None}))
        yield


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
    if factor == 1.0:
        return value
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
