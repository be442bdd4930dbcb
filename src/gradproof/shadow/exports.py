"""What the recorder patches while it records: ways out of torch, the start of autograd, and names of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as modules

from gradproof.shadow.places import by_torch, user_place
from gradproof.shadow.storages import State

if TYPE_CHECKING:
    from gradproof.shadow.recorder import Recorder

WAYS_OUT = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__", "__reduce_ex__", "__repr__")
WRITABLE = frozenset({"numpy", "__array__", "data_ptr", "__dlpack__", "to_dlpack"})


class Exports:
    """Patches of one recorder; `remove` undoes what `install` did."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.handles: list[Any] = []
        self.undo: list[Callable[[], None]] = []
        self.depth = 0

    def install(self) -> None:
        """Patch."""
        for name in WAYS_OUT:
            self._patch(torch.Tensor, name, self._leaving(name, getattr(torch.Tensor, name)))
        self._patch(torch.utils, "swap_tensors", self._swap)
        self._patch(torch.autograd, "_engine_run_backward", self._engine(vars(torch.autograd)["_engine_run_backward"]))
        self.handles = [
            modules.register_module_forward_pre_hook(self._forward),
            modules.register_module_parameter_registration_hook(self.recorder.leaves.registered),
            modules.register_module_module_registration_hook(self.recorder.leaves.registered),
        ]

    def remove(self) -> None:
        """Undo the patches, the last one first."""
        while self.undo:
            self.undo.pop()()
        while self.handles:
            self.handles.pop().remove()

    def _patch(self, owner: Any, name: str, new: Any) -> None:
        had = name in vars(owner)
        old = vars(owner).get(name)

        def undone() -> None:
            if had:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        setattr(owner, name, new)
        self.undo.append(undone)

    def _leaving(self, name: str, original: Any) -> Any:
        recorder = self.recorder

        def leave(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not recorder.quiet and not self.depth:
                self.left(name, tensor)
            self.depth += 1
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self.depth -= 1

        return leave

    def left(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor is handed to something that is not torch."""
        held = self.recorder.storages.get(tensor)
        if tensor.layout is not torch.strided or tensor.is_meta or (name == "data_ptr" and by_torch()):
            return
        if held is None:
            if tensor.is_floating_point():
                self.recorder.has_read(user_place(), f".{name}()")
            return
        if name not in WRITABLE:  # what may be written is no leaf yet: initialisers and augmentations work so
            self.recorder.declare(tensor, held)
        if held.state is not State.KNOWN or held.owners:
            self.recorder.has_read(user_place(), f".{name}()")
        if held.state is State.TRACKED:
            note = f"{user_place()}: .{name}() of a tracked tensor"
            self.recorder.leaves.exported = True
            if note not in self.recorder.tape.notes:
                self.recorder.tape.notes.append(note)
        elif name in WRITABLE and held.state is State.KNOWN and not held.owners:
            del self.recorder.storages.held[held.weak.cdata]

    def _swap(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """`torch.utils.swap_tensors` refuses tensors that have weak references, which the recorder's have."""
        if type(one) is not type(other) or not (one.is_leaf and other.is_leaf) or one.dtype != other.dtype:
            place = user_place()
            self.recorder.lost("geometry", "swap_tensors on tensors of two kinds", place, "write with copy_()")
        grads = one.grad, other.grad
        one.grad = other.grad = None
        one.data, other.data = other.data, one.data
        one.grad, other.grad = grads[1], grads[0]
        one.__dict__, other.__dict__ = other.__dict__, one.__dict__
        flags = one.requires_grad, other.requires_grad
        one.requires_grad_(flags[1])
        other.requires_grad_(flags[0])

    def _engine(self, original: Any) -> Any:
        recorder = self.recorder

        def run(*args: Any, **kwargs: Any) -> Any:
            recorder.calls.append(recorder.place())
            try:
                return original(*args, **kwargs)
            finally:
                recorder.calls.pop()
                if not recorder.calls and kwargs.get("accumulate_grad"):
                    recorder.micro += 1

        return run

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) not in self.recorder.leaves.modules:
            self.recorder.leaves.adopt(module)
            if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
                self.recorder.tape.notes.append("recurrent layers were recorded without MKL-DNN")
