"""Names of parameters: from modules that run, from optimizers that name their parameters, else by order of first use.

One registry a process, emptied when recording begins. It holds weak references only.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def functional(tensor: Tensor) -> bool:
    """Whether torch.func wrapped the tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


class Names:
    """Parameters by identity, in the order in which they became known."""

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[Tensor]] = {}
        self._names: dict[int, str] = {}
        self._taken: dict[str, int] = {}
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.edition = 0

    def clear(self) -> None:
        """Forget everything. `edition` changes with the set of parameters, and never goes back."""
        self.edition += 1
        self._held.clear()
        self._names.clear()
        self._taken.clear()
        self._modules.clear()

    def know(self, tensor: Tensor) -> None:
        """A parameter that has no name yet."""
        key = id(tensor)
        if key not in self._held:
            self.edition += 1
            self._held[key] = weakref.ref(tensor, functools.partial(self._gone, key))

    def _gone(self, key: int, _: object) -> None:
        self.edition += 1
        self._held.pop(key, None)
        self._names.pop(key, None)

    def forget(self, tensor: Tensor) -> None:
        """Know nothing of a parameter any more, and hold no reference to it."""
        self._gone(id(tensor), None)

    def name(self, tensor: Tensor, name: str) -> None:
        """Name a parameter, once. A name that another live parameter has gets a number."""
        self.know(tensor)
        if id(tensor) in self._names:
            return
        free, number = name, 2
        while self._live(free):
            free, number = f"{name}#{number}", number + 1
        self._names[id(tensor)] = free
        self._taken[free] = id(tensor)

    def module(self, module: nn.Module) -> None:
        """Name the parameters of a module that no outer module named before."""
        if module in self._modules:
            return
        self._modules.update(module.modules())
        for name, tensor in module.named_parameters():
            if not functional(tensor):
                self.name(tensor, name)

    def moved(self, module: nn.Module) -> None:
        """Name the parameters of a module before something is done to all of them, where one of them is known."""
        if module not in self._modules and any(map(self.knows, module.parameters())):
            self.module(module)

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter that something named, or an optimizer holds."""
        return id(tensor) in self._held

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter, or None."""
        return self._names.get(id(tensor))

    def claim(self, tensor: Tensor) -> str:
        """The name of a parameter; one that has none becomes `paramK`, by order."""
        found = self.name_of(tensor)
        if found is None:
            number = 0
            while self._live(f"param{number}"):
                number += 1
            self.name(tensor, f"param{number}")
            found = self._names[id(tensor)]
        return found

    def params(self) -> Iterator[Tensor]:
        """Every known parameter that is still alive."""
        for held in list(self._held.values()):
            tensor = held()
            if tensor is not None:
                yield tensor

    def _live(self, name: str) -> bool:
        key = self._taken.get(name)
        return key is not None and self._names.get(key) == name


NAMES = Names()
