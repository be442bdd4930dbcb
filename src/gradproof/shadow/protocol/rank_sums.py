"""Which gradients were summed over the ranks, and still hold that sum where a step applies them.

DistributedDataParallel sums in the backward pass of a forward pass outside of `no_sync`: the sum is complete when every
parameter has its gradient, or with the pass where some may be unused. `all_reduce` of a gradient sums as well. What is
written afterwards is seen by checksum; torch's own clips and the loss scaler may scale a sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.core.outcome import Outcome
from gradproof.shadow.locations import Location
from gradproof.shadow.record.checksums import checksum, same
from gradproof.shadow.result import RECORDED, Result

Call = Callable[..., Any]
SUM = torch.distributed.ReduceOp.SUM if torch.distributed.is_available() else None
COLLECTIVES = (
    "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip
NAME = "GA-SYNC-001"
LOCAL = "stepped on a gradient that was not summed over the ranks after the last micro-batch"
UNSUMMED = "not every gradient was seen to be summed over the ranks between its last arrival and the step"
NO_SUM = "no sum over the ranks was seen"
HELP = "let the last micro-batch of every window synchronise"


@dataclass(slots=True)
class SeenGradient:
    """A gradient as it was last seen. `whole`: the sum over all ranks; `local`: the rank's own under no_sync."""

    param: Tensor
    sum: Tensor | None
    whole: bool
    local: bool = False

    @property
    def kept(self) -> bool:
        """Whether the gradient is what it was."""
        grad = self.param.grad
        return grad is not None and self.sum is not None and same(self.sum, checksum(grad))


@dataclass(slots=True)
class Summing:
    """A DistributedDataParallel: its parameters, whether its next backward pass sums, and what that has not brought."""

    params: list[Tensor]
    sums: bool = False
    missing: set[int] = field(default_factory=set)


def world_of(group: Any = None) -> int:
    """The ranks of a process group, by default of all; 1 where there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size(group)


class RankSums:
    """The sums over ranks of the recorded windows. `on`: one of these windows runs."""

    def __init__(self) -> None:
        self.on = self.seen = self.judged = False
        self.by_hand = False
        self.unsummed: Location | None = None
        self.local: Location | None = None
        self.held: dict[int, SeenGradient] = {}
        self._modules: weakref.WeakKeyDictionary[nn.Module, Summing] = weakref.WeakKeyDictionary()

    @property
    def _idle(self) -> bool:
        return not self.on or (world_of() < 2 and not self.seen)

    def made(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> None:
        """A DistributedDataParallel was made: it sums the gradients of what it was given, and of nothing else."""
        original(module, *args, **kwargs)
        self._module(module)

    def _module(self, module: Any) -> Summing:
        if module not in self._modules:
            named, ignored = module.module.named_parameters(), module.parameters_to_ignore
            self._modules[module] = Summing([p for name, p in named if p.requires_grad and name not in ignored])
        return self._modules[module]

    def forward(self, original: Call, module: Any, *args: Any, **kwargs: Any) -> Any:
        """DistributedDataParallel.forward, which decides whether the next backward pass sums."""
        own = self._module(module)
        if torch.is_grad_enabled():
            pending = own.sums and own.missing  # the next pass sums all the same
            own.sums = bool(module.require_backward_grad_sync)
            self.by_hand |= bool(self.on and pending and not own.sums)
            own.missing = {id(p) for p in own.params}
        return original(module, *args, **kwargs)

    def reduce(self, original: Call, tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False) -> Any:
        """torch.distributed.all_reduce, of gradients or of something else. A sum is one over all ranks."""
        made = original(tensor, op, group, async_op)
        if self.on:
            summed = op in (SUM, torch.distributed.ReduceOp.AVG) and world_of(group) == world_of() and not async_op
            own = [one.param for one in self.held.values() if is_gradient(tensor, one.param)]
            self._note(own, summed)
            self.by_hand |= tensor.numel() > 1 and not (own and summed)
        return made

    def collective(self, original: Call, *args: Any, **kwargs: Any) -> Any:
        """Another exchange between ranks: what it does to gradients is not followed."""
        self.by_hand |= self.on
        return original(*args, **kwargs)

    def scaled(self, call: Callable[[], Any]) -> Any:
        """A clip, or the loss scaler: what is a sum stays one."""
        kept = [] if self._idle else [one for one in self.held.values() if one.kept]
        made = call()
        for one in kept:
            one.sum = None if one.param.grad is None else checksum(one.param.grad)
        return made

    def arrived(self, reached: Iterable[Tensor]) -> None:
        """A backward pass has ended."""
        if self._idle:
            return
        arrived = [p for p in reached if p.grad is not None]
        self._note(arrived, False)
        module: Any
        for module, own in list(self._modules.items()):
            if not own.sums or not own.missing & {id(p) for p in arrived}:
                continue
            own.missing -= {id(p) for p in arrived}
            if not own.missing or module.find_unused_parameters or module.static_graph:
                own.missing = set()
                if module.process_group.size() == world_of() and not module._comm_hooks:
                    self._note(own.params, True)

    def _note(self, params: Iterable[Tensor], whole: bool) -> None:
        local = {id(p) for own in self._modules.values() if not own.sums for p in own.params}
        self.seen |= whole and world_of() > 1
        for p in params:
            if p.grad is not None:
                self.held[id(p)] = SeenGradient(p, checksum(p.grad), whole, id(p) in local)

    def applied(self, params: Iterable[Tensor], location: Location) -> None:
        """An optimizer is about to apply the gradients of these."""
        if self._idle:
            return
        self.judged = True
        for p in (p for p in params if p.grad is not None):
            one = self.held.get(id(p))
            if one is not None and one.kept and (one.whole or one.local):
                self.local = self.local or (None if one.whole else location)
            else:
                self.unsummed = self.unsummed or location

    def result(self, help: str) -> Result:
        """GA-SYNC-001 of the recorded windows. `help`: what decides it otherwise."""
        if self.local is not None and not self.by_hand:
            return Result(NAME, Outcome.REFUTED, LOCAL, self.local, HELP, "events", RECORDED)
        if not self.seen or not self.judged:
            return Result(NAME, Outcome.UNKNOWN, NO_SUM, None, help, "events", RECORDED)
        if self.unsummed or self.local:
            return Result(NAME, Outcome.OPAQUE, UNSUMMED, self.unsummed or self.local, help, "events", RECORDED)
        why = "each gradient was summed over the ranks before its step"
        return Result(NAME, Outcome.HOLDS, why, domain="events", reach=RECORDED)


def is_gradient(tensor: Tensor, param: Tensor) -> bool:
    """Whether a tensor is the gradient of a parameter: the same numbers, at the same place."""
    address, grad = torch._C.TensorBase.data_ptr, param.grad
    if grad is None or grad.layout is not torch.strided or tensor.layout is not torch.strided:
        return grad is tensor
    return address(grad) == address(tensor) and grad.numel() == tensor.numel()
