"""A run without numbers: the function is called on fake tensors, of any size."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from gradproof.shadow.locations import Location, initialising
from gradproof.shadow.ops.forms import DEVICE, Forms
from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.whole.engine import NO_NUMBERS
from gradproof.shadow.whole.loop_events import HANDED_ON
from gradproof.shadow.whole.plain_numbers import NoNumbers
from gradproof.shadow.whole.runs import Called
from gradproof.shadow.whole.terms import NOBODY
from gradproof.shadow.whole.unseen import digest
from gradproof.shadow.whole.values import number


class Fake(Called):  # type: ignore[no-untyped-call]
    """An engine for tensors without numbers. Nothing can reach a tensor but through an operator."""

    def __init__(self, mode: FakeTensorMode, *given: Any) -> None:
        super().__init__(*given)
        self.mode, self.forms = mode, Forms(mode)
        self.outside: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}
        self.computed: list[tuple[int, int, Location]] = []  # with parameters: the window, the passes before, the line

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator; real tensors, which the function took from outside, become data."""
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            args, kwargs = tree_map_only(torch.Tensor, self._outside, (args, kwargs))
        if spec.short in NO_NUMBERS:
            return self._read(spec.short, args[0])
        out = super().operate(func, spec, args, kwargs)
        if self.passes and self._computes(spec, tensors_in((args, kwargs)), out):
            self.computed.append((self.window, self.passes, self.location()))
        return out

    def _computes(self, spec: Spec, given: list[torch.Tensor], out: Any) -> bool:
        """Whether an operator computes with parameters alone, outside of autograd, steps and backward passes."""
        if self.stepping or torch._C._current_graph_task_id() != -1 or spec.short in HANDED_ON:
            return False
        if (torch.is_grad_enabled() and any(one.requires_grad for one in given)) or initialising():
            return False
        weights = {one.untyped_storage()._cdata for one in self.declared.values()}
        if not any(one.untyped_storage()._cdata in weights for one in given):
            return False
        values = [self.value(one) for one in tensors_in(out) if one.numel() > 1]
        return any(self.terms.owners[term] == NOBODY for value in values for part in value.parts for term in part)

    def _read(self, base: str, tensor: torch.Tensor) -> Any:
        """A number that the laws know; there is no other."""
        found = number(self.laws, self.value(tensor)) if base == "_local_scalar_dense" else None
        if found is not None:
            kind = tensor.dtype
            return float(found) if kind.is_floating_point else bool(found) if kind is torch.bool else int(found)
        self.facts.reads.append((self.location(), base))
        raise NoNumbers(f"{base} needs a number, and in a run without numbers there is none")

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor, which the function took from outside, as a fake one: it is data."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.outside:
            made: torch.Tensor = self.mode.from_tensor(tensor)
            self.outside[id(tensor)] = (tensor, made, digest(tensor))
            self.memory.write(made, self.held(tensor, made))
        _, made, held = self.outside[id(tensor)]
        if digest(tensor) != held:
            self.lose("a tensor that was made outside of the function was changed by something that is no operator")
        return made
