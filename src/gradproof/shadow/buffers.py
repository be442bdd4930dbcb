"""The gradient buffers of the known parameters, watched by identity and version counter, never by copying."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.names import Names


@dataclass(slots=True)
class Held:
    """What a parameter's `.grad` was when it was last looked at. `due`: applied by a step and not zeroed since."""

    param: weakref.ref[Tensor]
    grad: weakref.ref[Tensor] | None = None
    version: int = 0
    due: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A parameter whose `.grad` is not what it was. `how`: gone, new (it was None), other (another tensor), written."""

    param: Tensor
    how: str


def version_of(grad: Tensor) -> int:
    """The version counter; inference tensors have none."""
    return -1 if grad.is_inference() else grad._version


def all_zero(grad: Tensor) -> bool:
    """Whether every element is zero. Waits for the device."""
    with torch.no_grad(), _disable_current_modes():
        values = grad.coalesce().values() if grad.is_sparse else grad
        return not bool(values.any())


class Buffers:
    """Finds what changed since it was last asked."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._held: dict[int, Held] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()

    def changes(self, only: Iterable[Tensor] | None = None) -> list[Change]:
        """Every buffer that changed, or those of the parameters given; each change is told once."""
        found = []
        for param in self.names.params() if only is None else only:
            how = self._look(param)
            if how:
                found.append(Change(param, how))
        return found

    def _look(self, param: Tensor) -> str:
        held = self._held.get(id(param))
        if held is None or held.param() is not param:
            held = self._held[id(param)] = Held(weakref.ref(param))
        grad = param.grad
        before = None if held.grad is None else held.grad()
        if grad is None:
            how = "" if held.grad is None else "gone"
            held.grad, held.due = None, False
            return how
        version = version_of(grad)
        if grad is before:
            how = "" if version == held.version else "written"
        else:
            how = "new" if held.grad is None else "other"
            held.grad = weakref.ref(grad)
        held.version = version
        return how

    def applied(self, params: Iterable[Tensor]) -> None:
        """An optimizer applied these: their buffers are to be zeroed before the next arrival."""
        for param in params:
            held = self._held.get(id(param))
            if held is not None and held.grad is not None:
                held.due = True

    def zeroed(self, params: Iterable[Tensor]) -> None:
        """These were seen to be zeroed."""
        for param in params:
            held = self._held.get(id(param))
            if held is not None:
                held.due = False

    def unseen_zeros(self) -> list[Tensor]:
        """Applied and never seen to be zeroed, yet zero: written past the version counter (`p.grad.data.zero_()`)."""
        found = []
        for held in self._held.values():
            param = held.param() if held.due else None
            if param is not None and param.grad is not None:
                held.due = False
                if all_zero(param.grad):
                    found.append(param)
        return found


def found_skip(optimizer: Any) -> Tensor | None:
    """The flag by which a fused optimizer skips its update on an infinite gradient, or None."""
    flag = getattr(optimizer, "found_inf", None)
    return flag.detach().clone() if isinstance(flag, Tensor) else None
