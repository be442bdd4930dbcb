"""Names of parameters: from modules that run, from optimizers that name their parameters, else by order of first use.

One registry a process, emptied when recording begins. It holds weak references only.
"""

from __future__ import annotations

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

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._names.clear()
        self._taken.clear()
        self._modules.clear()

    def know(self, tensor: Tensor) -> None:
        """A parameter that has no name yet."""
        key = id(tensor)
        held = self._held.get(key)
        if held is None or held() is not tensor:
            self._names.pop(key, None)
            self._held[key] = weakref.ref(tensor)

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
            below = self.behind(tensor)
            if below is not None:
                self.name(below, name)

    def behind(self, tensor: Tensor) -> Tensor | None:
        """The known parameter of which torch.func holds an alias, by its memory; any other tensor is itself."""
        if not functional(tensor):
            return tensor
        below = torch._C._functorch.get_unwrapped(tensor)
        if functional(below):
            return None
        address = torch._C.TensorBase.data_ptr
        same = (p for p in self.params() if p.shape == below.shape and address(p) == address(below))
        return next(same, None)

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter that something named, or an optimizer holds."""
        held = self._held.get(id(tensor))
        return held is not None and held() is tensor

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of a parameter, or None."""
        held = self._held.get(id(tensor))
        return self._names.get(id(tensor)) if held is not None and held() is tensor else None

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
        for key, held in list(self._held.items()):
            tensor = held()
            if tensor is None:
                del self._held[key]
                self._names.pop(key, None)
            else:
                yield tensor

    def _live(self, name: str) -> bool:
        key = self._taken.get(name)
        held = self._held.get(key) if key is not None else None
        return held is not None and held() is not None


NAMES = Names()


def name_of(tensor: Tensor) -> str | None:
    """The name of a parameter, or None where nothing named it (yet)."""
    return NAMES.name_of(tensor)


def claim(tensor: Tensor) -> str:
    """The name of a parameter; one that nothing named becomes `param0`, `param1`, by order of first use."""
    return NAMES.claim(tensor)
