"""Which backward passes DistributedDataParallel sums over the ranks, module by module."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def is_gradient(tensor: Tensor, param: Tensor) -> bool:
    """Whether a tensor is the gradient of a parameter: the same numbers, at the same place."""
    address = torch._C.TensorBase.data_ptr
    return param.grad is not None and address(param.grad) == address(tensor) and param.grad.numel() == tensor.numel()


class Ranks:
    """The DistributedDataParallel modules whose forward pass was seen.

    A forward pass that records for a derivative decides whether the next backward pass sums: then it is `due`.
    """

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._due: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    def forward(self, module: nn.Module) -> None:
        """A forward pass of a DistributedDataParallel."""
        self._modules.add(module)
        if torch.is_grad_enabled():
            self._due[module] = bool(module.require_backward_grad_sync)

    def shared(self, params: Iterable[Tensor]) -> list[Tensor]:
        """Those of these parameters that a DistributedDataParallel of several ranks answers for."""
        if not self._modules or torch.distributed.get_world_size() < 2:
            return []
        owned = {id(p) for module in self._modules for p in module.parameters()}
        return [p for p in params if id(p) in owned]

    def changing(self) -> set[int]:
        """The ids of the parameters whose gradients the backward pass that runs replaces by a sum over the ranks."""
        if not self._due or torch.distributed.get_world_size() < 2:
            return set()
        return {id(p) for module, due in self._due.items() if due for p in module.parameters()}

    def summed(self, changed: Iterable[Tensor]) -> list[Tensor]:
        """The parameters that a backward pass summed, which changed these. A forward pass is for one backward pass."""
        arrived, found = {id(p) for p in changed}, list[Tensor]()
        for module in list(self._due):
            own = [p for p in module.parameters() if p.requires_grad]
            if arrived & {id(p) for p in own}:
                found += own if self._due.pop(module) else []
        return found
