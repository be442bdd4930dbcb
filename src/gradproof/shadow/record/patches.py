"""Replacing functions and methods for a while, and putting back exactly what was there.

A replacement that somebody wrapped or copied meanwhile is left alone; `active` makes it inert.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as modules

from gradproof.shadow.places import LIBRARY, TORCH, by_torch, owner, user_place
from gradproof.shadow.record.storages import State

if TYPE_CHECKING:
    from gradproof.shadow.record.recorder import Recorder


# -- What the recorder patches while it records: ways out of torch, the start of autograd, and names of parameters.
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


Replacement = Callable[..., Any]
MISSING = object()


def all_subclasses(cls: type) -> list[type]:
    """A class and every subclass that exists."""
    found, seen = [cls], {cls}
    for c in found:
        below: list[type] = type.__subclasses__(c)
        found += (s for s in below if s not in seen)
        seen.update(below)
    return found


class Patches:
    """A stack of replacements."""

    def __init__(self) -> None:
        self.active = False
        self._attributes: list[tuple[Any, str, Any, Any]] = []
        self._functions: dict[int, tuple[Any, Any]] = {}

    def wrap(self, original: Replacement, around: Replacement) -> Replacement:
        """A function that calls `around(original, *args, **kwargs)` while the patches are active."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        return wrapper

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of an object or class."""
        self._attributes.append((owner, name, vars(owner).get(name, MISSING), value))
        setattr(owner, name, value)

    def method(self, cls: type, name: str, around: Replacement) -> None:
        """Wrap a method where this very class defines it, once."""
        original = vars(cls).get(name)
        if original is None or any(owner is cls and n == name for owner, n, _, _ in self._attributes):
            return
        self.attribute(cls, name, self.wrap(original, around))

    def function(self, original: Replacement, around: Replacement) -> None:
        """Wrap a function; `everywhere` then puts the wrapper into every module that holds it."""
        self._functions[id(original)] = (original, self.wrap(original, around))

    def everywhere(self) -> None:
        """Put the wrappers of the functions into every module that was imported, under whatever name."""
        for module, name, held in self._holding(self._functions.keys()):
            if held is self._functions[id(held)][0]:
                self.attribute(module, name, self._functions[id(held)][1])

    def restore(self) -> None:
        """Put everything back, the last replacement first, then what was imported from a patched module meanwhile."""
        self.active = False
        while self._attributes:
            owner, name, before, ours = self._attributes.pop()
            if vars(owner).get(name, MISSING) is not ours:
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        wrappers = {id(wrapper): original for original, wrapper in self._functions.values()}
        for module, name, held in self._holding(wrappers.keys()):
            setattr(module, name, wrappers[id(held)])
        self._functions.clear()

    def _holding(self, wanted: Collection[int]) -> list[tuple[Any, str, Any]]:
        """Every global name of an imported module that holds an object of one of these ids.

        An installed package is looked through once, and again when it has more or fewer names.
        """
        found, ids = [], frozenset(wanted)
        scanned = _SCANNED.setdefault(frozenset(_label(f) for f, _ in self._functions.values()), {})
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            before = scanned.get(id(names))
            if before is not None and before[1] == len(names):
                places = before[2]
            else:
                places = () if ids.isdisjoint(map(id, list(names.values()))) else _places(names, ids)
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and owner(file) in (LIBRARY, TORCH):
                    scanned[id(names)] = (names, len(names), places)
            found += [(module, name, names[name]) for name in places if id(names.get(name)) in ids]
        return found


_SCANNED: dict[frozenset[str], dict[int, tuple[dict[str, Any], int, tuple[str, ...]]]] = {}
"""By the functions that are looked for: the globals of installed packages, how many they were, and who held one.

A function and its wrappers have one label, for they stand in the same places.
"""


def _label(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"


def _places(names: dict[str, Any], ids: frozenset[int]) -> tuple[str, ...]:
    return tuple(name for name, held in list(names.items()) if id(held) in ids)
