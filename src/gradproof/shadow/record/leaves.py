"""Where tracked values begin: parameters at their first read, float data at its source.

Data is first *pending*: a storage that a random operator filled, or that no operator made. It becomes a leaf when an
operator reads it, unless that operator only changes it in place, as initialisers of parameters do.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from gradproof.shadow.record.storages import (
    Held,
    State,
    Storages,
    array,
    const,
    covers,
    fingerprint,
    finite,
    flat,
    trainable,
    window,
)  # fmt: skip
from gradproof.shadow.tape import (
    Blind,
    Init,
    Leaf,
    Location,
    Source,
    Tape,
    initialising,
    user_place,
)

MAX_DEPTH = 64
"""Modules are nested less deeply than this."""


@dataclass(slots=True)
class Pending:
    """Data that nobody has read yet: its source, its place, and its geometry in the storage."""

    source: Source
    place: Location
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    unseen: bool


class Leaves:
    """Declares leaves on a tape."""

    def __init__(self, tape: Tape, storages: Storages) -> None:
        self.kept: list[torch.Tensor] = []
        self.tape, self.storages = tape, storages
        self.names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self.taken: set[str] = set()
        self.declared: set[tuple[int, int, tuple[int, ...]]] = set()
        self.buffers: dict[int, str] = {}
        self.modules: set[int] = set()
        self.parents: dict[int, tuple[weakref.ref[Any], weakref.ref[torch.nn.Module], str]] = {}

    # Names

    def adopt(self, module: torch.nn.Module) -> None:
        """Name the parameters and buffers of a module that have no name yet."""
        self.modules.update(id(part) for part in module.modules())
        for name, parameter in module.named_parameters():
            if type(parameter) is torch.nn.Parameter and self.name(parameter) is None:
                self.call(parameter, plain(name))
                self.own(parameter)
        for name, buffer in module.named_buffers():
            if buffer.layout is torch.strided and not buffer.is_meta and self.storages.get(buffer) is None:
                self.buffers.setdefault(buffer.untyped_storage()._cdata, plain(name))

    def registered(self, module: torch.nn.Module, name: str, part: Any) -> None:
        """A module was given a parameter or a module."""
        if isinstance(part, torch.nn.Module):
            self.parents[id(part)] = (weakref.ref(part), weakref.ref(module), name)
        elif type(part) is torch.nn.Parameter:
            self.parents[id(part)] = (weakref.ref(part), weakref.ref(module), name)
            self.own(part)

    def path(self, part: Any) -> str:
        """The name of a parameter in the outermost module that holds it, or nothing."""
        steps: list[str] = []
        while (known := self.parents.get(id(part))) is not None and known[0]() is part and len(steps) < MAX_DEPTH:
            steps.append(known[2])
            part = known[1]()
        return plain(".".join(reversed(steps)))

    def call(self, tensor: torch.Tensor, name: str) -> str:
        """Give a parameter a name; a taken one gets a number. Returns the name that it has."""
        chosen, number = name, 2
        while chosen in self.taken:
            chosen, number = f"{name}#{number}", number + 1
        self.taken.add(chosen)
        self.names[id(tensor)] = (weakref.ref(tensor), chosen)
        return chosen

    def name(self, tensor: torch.Tensor) -> str | None:
        """The name of a parameter, or None."""
        known = self.names.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def claim(self, tensor: torch.Tensor) -> str:
        """The name of a parameter; one that has none is called after the module that holds it, or by number."""
        return self.name(tensor) or self.call(tensor, self.path(tensor) or f"param{len(self.names)}")

    def own(self, parameter: torch.Tensor) -> None:
        """A parameter lives in its storage: what is written there before the first read is initialisation."""
        if parameter.layout is not torch.strided or parameter.is_meta:
            return
        held = self.storages.meet(parameter)
        if all(ref() is not parameter for ref in held.owners):
            held.owners.append(weakref.ref(parameter))

    # Sources

    def glance(self, tensor: torch.Tensor) -> Held:
        """A tensor is about to be used: if its storage was never met it is a source, or a parameter."""
        held = self.storages.get(tensor)
        if held is None:
            held = self.storages.meet(tensor)
            if not trainable(tensor) and not held.owners:
                self.source(tensor, held, unseen=True)
        if trainable(tensor) and held.state is not State.TRACKED:
            self.own(tensor)
        return held

    def source(self, tensor: torch.Tensor, held: Held, unseen: bool) -> None:
        """A storage was filled by a random operator, or by something that is no operator."""
        if tensor.dim() == 0 or tensor.is_complex():
            held.scalar = unseen and tensor.is_floating_point()
            return
        if not tensor.is_floating_point():
            return
        place = user_place()
        buffer = self.buffers.get(tensor.untyped_storage()._cdata) if unseen else None
        source = Source("data", str(place)) if buffer is None else Source("buffer", buffer)
        shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        if not covers(tensor):
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            shape, stride, offset = (size,), (1,), 0
        held.state, held.pending = State.PENDING, Pending(source, place, shape, stride, offset, unseen)

    def refill(self, tensor: torch.Tensor, held: Held) -> None:
        """A random operator wrote to a tensor: initialisation, data, or new data in a tracked storage."""
        if held.state is State.TRACKED:
            place = user_place()
            self._declare(tensor, Source("data", str(place)), place, trained=held.trained)
        elif held.owners or trainable(tensor):
            held.state, held.pending = State.KNOWN, None
        elif held.state is State.KNOWN:
            self.source(tensor, held, unseen=False)

    # Reads

    def read(self, tensor: torch.Tensor, held: Held) -> None:
        """An operator is about to read a tensor: declare what it stands for."""
        if held.state is State.TRACKED and not held.owners and not tensor.requires_grad:
            return
        undeclared = held.state is not State.TRACKED and (held.owners or held.pending is not None)
        if undeclared and initialising():
            return
        if trainable(tensor):
            self.parameter(tensor, held)
        for ref in held.owners:
            owner = ref()
            if owner is not None and owner is not tensor:
                self.parameter(owner, held)
        if held.state is State.PENDING:
            self._data(tensor, held)

    def parameter(self, tensor: torch.Tensor, held: Held) -> None:
        """Declare a parameter, unless it was, or what it holds was computed from parameters."""
        if tensor.untyped_storage()._cdata != held.weak.cdata or not tensor.is_floating_point():
            return
        key = (held.weak.cdata, int(tensor.storage_offset()), tuple(tensor.shape))
        if key in self.declared:
            return
        if held.state is State.TRACKED and (held.trained or not isinstance(tensor, torch.nn.Parameter)):
            return
        self.declared.add(key)
        name = self.claim(tensor)
        self._declare(tensor, Source("param", name), user_place(), trained=True)
        held.label = name

    def _data(self, tensor: torch.Tensor, held: Held) -> None:
        pending: Pending = held.pending
        whole = window(tensor, pending.shape, pending.stride, pending.offset)
        held.state, held.pending = State.KNOWN, None
        fine, broken = finite(array(whole))
        if broken:
            self.tape.blind.append(
                Blind("nan-data", f"NaN in the data from {pending.source.name}", pending.place, "clean the data")
            )
        if not fine:
            return
        if pending.unseen:
            self._copied(whole, pending)
        self._declare(whole, pending.source, pending.place, trained=False)

    def _copied(self, whole: torch.Tensor, pending: Pending) -> None:
        """Bytes that equal a tracked storage's, of more than one value, were copied where nobody saw it."""
        storage = whole.untyped_storage()
        mark = fingerprint(storage)
        same = any(held.print == mark for held in self.storages.held.values() if held.state is State.TRACKED)
        if same and whole.numel() > 1 and bool((flat(whole) != flat(whole)[0]).any()):
            what = f"a tensor holds the numbers of a tracked one ({pending.source.name}): no operator copied them"
            help = "copy with clone() or copy_(); make a constant, or data that is read again, once, before the loop"
            self.tape.blind.append(Blind("unseen-copy", f"{what}, or the same are made again", pending.place, help))

    def _declare(self, tensor: torch.Tensor, source: Source, place: Location, trained: bool) -> None:
        held = self.storages.meet(tensor)
        if held.state is not State.TRACKED and not covers(tensor):
            self.begin(tensor)
        self.storages.track(tensor)
        held.trained = held.trained or trained
        held.label = source.name
        held.print = fingerprint(tensor.untyped_storage())
        self.tape.items.append(Leaf(self.storages.ref(tensor, held), source, array(tensor), place))
        if source.kind == "param":
            self.kept.append(tensor)

    def begin(self, tensor: torch.Tensor) -> None:
        """A storage begins to be tracked while it holds numbers that are not."""
        blank = self.storages.meet(tensor).blank
        held = self.storages.track(tensor)
        if not blank:
            whole = flat(tensor)
            self.tape.items.append(Init(held.number, const(whole), whole.numel()))


def plain(name: str) -> str:
    """A parameter's name without the prefixes of wrappers."""
    for prefix in ("module.", "_orig_mod.", "_forward_module."):
        name = name.removeprefix(prefix)
    return name
