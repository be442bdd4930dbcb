"""The gradient buffers of the known parameters, watched by identity and version counter, never by copying.

A look costs about half a microsecond a parameter, and there are a few looks a micro-batch. Tensors of inference mode
have no version counter: of these only the identity is watched.
"""

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


Change = tuple[Tensor, str]
"""A parameter whose `.grad` is not what it was, and how: gone, new (it was None), other (another tensor), written."""


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
        self._records: list[Held] = []
        self._edition = -1

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._edition = -1

    def changes(self, only: Iterable[Tensor] | None = None) -> list[Change]:
        """Every buffer that changed, or those of the parameters given; each change is told once."""
        if only is not None:
            return self._changed([self._record(p) for p in only])
        if self._edition != self.names.edition:
            self._edition = self.names.edition
            self._records = [self._record(p) for p in self.names.params()]
        return self._changed(self._records)

    def _record(self, param: Tensor) -> Held:
        held = self._held.get(id(param))
        if held is None or held.param() is not param:
            held = self._held[id(param)] = Held(weakref.ref(param))
        return held

    def _changed(self, records: list[Held]) -> list[Change]:
        found: list[Change] = []
        for held in records:
            param = held.param()
            grad = None if param is None else param.grad
            if param is None or grad is None:
                if param is not None and held.grad is not None:
                    held.grad, held.due = None, False
                    found.append((param, "gone"))
                continue
            same = held.grad is not None and held.grad() is grad
            try:
                version = grad._version
            except RuntimeError:
                version = -1
            if same and version == held.version:
                continue
            found.append((param, "written" if same else "new" if held.grad is None else "other"))
            held.version = version
            if not same:
                held.grad = weakref.ref(grad)
        return found

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
