"""Where tracked values begin: parameters at their first read, float data at its source, and what is injected there.

Data is first *pending*: a storage that a random operator filled, or that no operator made. It becomes a leaf when an
operator reads it, unless that operator only changes it in place, as initialisers of parameters do. Its place in the
stream of its site is taken when it is met.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.record.names import NAMES, Sites, shape_of
from gradproof.shadow.record.storages import (
    Held,
    State,
    Storages,
    array,
    const,
    covers,
    dtype_name,
    fingerprint,
    finite,
    flat,
    storage_of,
    trainable,
    window,
    writable,
)  # fmt: skip
from gradproof.shadow.tape import (
    Blind,
    Const,
    Init,
    Leaf,
    Location,
    Source,
    Tape,
    initialising,
    places,
    recomputing,
    user_place,
)

Inject = Callable[[Source, tuple[int, ...], str, NDArray[Any]], NDArray[Any] | None]

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


OBJECTS = "distributed_c10d.py:"
"""In the site of what torch itself sends from rank to rank about the user's objects."""
BYTES = "storage.py:"
"""How the site of bytes begins that torch copies from storage to storage, as in a deep copy."""


class Leaves:
    """Declares leaves on a tape."""

    def __init__(self, tape: Tape, storages: Storages, origins: Origins, inject: Inject | None) -> None:
        self.kept: list[torch.Tensor] = []
        self.tape, self.storages, self.inject = tape, storages, inject
        self.origins = origins
        self.sites = Sites()
        self.names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self.taken: set[str] = set()
        self.declared: set[tuple[int, int, tuple[int, ...]]] = set()
        self.buffers: dict[int, str] = {}
        self.modules: set[int] = set()
        self.parents: dict[int, tuple[weakref.ref[Any], weakref.ref[torch.nn.Module], str]] = {}
        self.exported = False
        self.draws: dict[tuple[int, torch.dtype, tuple[int, ...]], Source] = {}
        self.restore: list[tuple[torch.Tensor, torch.Tensor, int]] = []

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

    def site(self, tensor: torch.Tensor) -> str:
        """The site that makes a tensor, under the name that it has where the micro-batches are made."""
        known: Callable[..., str] = getattr(self.inject, "site", lambda site, *_: site)
        return known(self.sites.here(tensor), tuple(tensor.shape), shape_of(tensor))

    def source(self, tensor: torch.Tensor, held: Held, unseen: bool) -> None:
        """A storage was filled by a random operator, or by something that is no operator."""
        if tensor.dim() == 0 or tensor.is_complex():
            held.scalar = unseen and tensor.is_floating_point()
            return
        source = None if unseen else self._drawn_again(tensor)
        if source is None:
            site = self.site(tensor)
            source = Source("data", site, self.sites.advance(site, tensor.numel()))
            if not unseen:
                self.draws[mark_of(tensor)] = source
            if not tensor.is_floating_point() and not site.startswith(BYTES) and OBJECTS not in site:
                self.tape.integers.setdefault(site, []).append(array(tensor))
                self.tape.drawn.append(site)
                self.tape.chance.update([] if unseen else [site])
        if not tensor.is_floating_point():
            if not unseen or tensor.untyped_storage()._cdata not in self.buffers:
                self.origins.born(tensor, source.name, source.first)
            return
        buffer = self.buffers.get(tensor.untyped_storage()._cdata) if unseen else None
        source = source if buffer is None else Source("buffer", buffer)
        shape, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        if not covers(tensor):
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            shape, stride, offset = (size,), (1,), 0
        held.state, held.pending = State.PENDING, Pending(source, user_place(), shape, stride, offset, unseen)

    def _drawn_again(self, tensor: torch.Tensor) -> Source | None:
        """The source of random numbers that checkpointing draws a second time, with the generator put back."""
        if torch._C._current_graph_task_id() == -1 or not recomputing():
            return None
        known = self.draws.get(mark_of(tensor))
        if known is None:
            what = "a checkpoint draws other random numbers when it computes its forward pass again"
            help = "leave preserve_rng_state at True, and draw from the default generator"
            self.tape.blind.append(Blind("random-recompute", what, user_place(), help))
        return known

    def refill(self, tensor: torch.Tensor, held: Held) -> None:
        """A random operator wrote to a tensor: initialisation, data, or new data in a tracked storage."""
        if held.state is State.TRACKED:
            site = self.site(tensor)
            source = Source("data", site, self.sites.advance(site, tensor.numel()))
            self._declare(tensor, source, user_place(), unseen=False, trained=held.trained)
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
        name = self.name(tensor) or self.call(tensor, self.path(tensor) or f"param{len(self.tape.params)}")
        self.tape.params.append(name)
        self._declare(tensor, Source("param", name), user_place(), unseen=True, trained=True)
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
        if pending.unseen and self.exported:
            self.tape.notes.append(f"{pending.place}: float data entered after a tracked tensor had left for Python")
        if pending.unseen:
            self._copied(whole, pending)
        self._declare(whole, pending.source, pending.place, pending.unseen, trained=False)

    def _copied(self, whole: torch.Tensor, pending: Pending) -> None:
        """Bytes that equal a tracked storage's, of more than one value, were copied where nobody saw it."""
        storage = whole.untyped_storage()
        mark = fingerprint(storage)
        same = any(held.print == mark for held in self.storages.held.values() if held.state is State.TRACKED)
        if same and whole.numel() > 1 and bool((flat(whole) != flat(whole)[0]).any()):
            what = f"a tensor holds the numbers of a tracked one ({pending.source.name}): no operator copied them"
            help = "copy with clone() or copy_(); make a constant, or data that is read again, once, before the loop"
            self.tape.blind.append(Blind("unseen-copy", f"{what}, or the same are made again", pending.place, help))

    def _declare(self, tensor: torch.Tensor, source: Source, place: Location, unseen: bool, trained: bool) -> None:
        held = self.storages.meet(tensor)
        if held.state is not State.TRACKED and not covers(tensor):
            self.begin(tensor)
        natural = array(tensor)
        value = self._inject(tensor, source, unseen, natural)
        self.storages.track(tensor)
        held.trained = held.trained or trained
        held.label = source.name
        held.print = fingerprint(tensor.untyped_storage())
        laid = getattr(self.inject, "laid", lambda *_: ())(source, tuple(tensor.shape))
        self.tape.items.append(Leaf(self.storages.ref(tensor, held), source, value, place, natural, unseen, laid))
        if source.kind == "param":
            self.kept.append(tensor)

    def begin(self, tensor: torch.Tensor) -> None:
        """A storage begins to be tracked while it holds numbers that are not."""
        blank = self.storages.meet(tensor).blank
        held = self.storages.track(tensor)
        if not blank:
            whole = flat(tensor)
            self.tape.items.append(Init(held.number, const(whole), whole.numel()))

    def _inject(self, tensor: torch.Tensor, source: Source, unseen: bool, natural: NDArray[Any]) -> NDArray[Any]:
        if self.inject is None:
            return natural
        chosen = self.inject(source, tuple(tensor.shape), dtype_name(tensor.dtype), natural.copy())
        if chosen is None:
            return natural
        if unseen and not writable(tensor.untyped_storage()):
            self.tape.notes.append(f"{source.name}: read-only, or a mapped file; its numbers were left as they are")
            return natural
        fresh = torch.from_numpy(np.ascontiguousarray(chosen, dtype=np.float64)).reshape(tensor.shape)
        target = window(tensor, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        before = target.clone() if unseen and source.kind != "param" else None
        target.copy_(fresh)
        if before is not None:
            self.restore.append((target, before, fingerprint(target.untyped_storage())))
        return array(target)

    def shares(self, storage: torch.UntypedStorage) -> bool:
        """Whether the memory of a storage overlaps that of data from outside of torch, into which numbers were put."""
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        others = (t.untyped_storage() for t, _, _ in self.restore)
        spans = ((o.data_ptr(), o.data_ptr() + o.nbytes()) for o in others if o._cdata != storage._cdata)
        return any(first < end and begin < last for first, last in spans)

    def put_back(self) -> None:
        """Undo injections into data that the user's program made outside of the run, where nobody wrote since."""
        for target, before, mark in reversed(self.restore):
            if fingerprint(target.untyped_storage()) == mark:
                target.copy_(before)
        self.restore.clear()


def mark_of(tensor: torch.Tensor) -> tuple[int, torch.dtype, tuple[int, ...]]:
    """What tells one draw of random numbers from another."""
    return fingerprint(tensor.untyped_storage()), tensor.dtype, tuple(tensor.shape)


def plain(name: str) -> str:
    """A parameter's name without the prefixes of wrappers."""
    for prefix in ("module.", "_orig_mod.", "_forward_module."):
        name = name.removeprefix(prefix)
    return name


# -- Running averages of weights: numbers made of weights alone, kept in a tensor that is not trained.
#
# What an operator makes of weights (and constants) outside of a backward pass and of autograd's graph is followed, with
# the numbers of weight updates that went before. An average is an untrained tensor of a weight's size that such a value
# was written into, or a new tensor that is made of weights at two different times, as `e = d * e + (1 - d) * p` is. It
# is kept alive to the end of the run, where both runs must agree in it: no later event of a training loop reads an
# average, so that an update too many, or a decay that depends on N, would show nowhere else.

MIXED = " in line "
"""Between the weight and the line in the name of an average that is a new tensor each time."""


@dataclass(frozen=True, slots=True)
class Average:
    """The tensor, the weight that it averages, and the line that wrote it first."""

    tensor: torch.Tensor
    of: str
    place: Location


@dataclass(frozen=True, slots=True)
class MadeAverage:
    """What a value is made of: its first weight, the size of its largest, the updates before the weights were read."""

    of: str
    size: int
    oldest: int
    newest: int


class Averages:
    """The averages of one recording: kept in place by storage and offset, kept as new tensors by weight and line."""

    def __init__(self, storages: Storages) -> None:
        self.storages, self.updates = storages, 0
        self._found: dict[tuple[int, int], Average] = {}
        self._fresh: dict[tuple[str, Location], Average] = {}

    def look(
        self, given: Sequence[torch.Tensor], written: Sequence[torch.Tensor], out: object, place: Location,
        gradients: set[int], backward: bool,
    ) -> None:  # fmt: skip
        """A tracked operator read `given` and ran; `gradients` are storages of gradients."""
        if any(weight(self._held(t)) is not None for t in written):
            self.updates += not backward
        elif written:
            for target, sources in paired(written, given):
                self._write(target, sources, place, gradients, backward)
        else:
            made = None if backward else self.made_of(given)
            for tensor in tensors_in(out):
                if storage_of(tensor) is not None:
                    self._make(tensor, None if tensor.requires_grad else made, place)

    def _make(self, tensor: torch.Tensor, made: MadeAverage | None, place: Location) -> None:
        self._held(tensor).made = made
        if made is not None and made.oldest < made.newest and tensor.numel() >= made.size:
            self._fresh[made.of, place] = Average(tensor, made.of, place)

    def _write(
        self,
        target: torch.Tensor,
        sources: Sequence[torch.Tensor],
        place: Location,
        gradients: set[int],
        backward: bool,
    ) -> None:
        """One tensor that is no weight was written."""
        held, storage = self._held(target), target.untyped_storage()._cdata
        trained = target.requires_grad and (not NAMES.optimized or id(target) in NAMES.optimized)
        made = None if backward or trained or storage in gradients else self.made_of(sources)
        held.made = made
        apart = [t for t in sources if t is not target]
        kept = made is not None and any(t.shape == target.shape and self.made_of([t]) for t in apart)
        if made is not None and kept and target.numel() >= made.size:
            self._found.setdefault((storage, int(target.storage_offset())), Average(target, made.of, place))

    def made_of(self, given: Sequence[torch.Tensor]) -> MadeAverage | None:
        """What a value of these is made of; None where one is neither a weight, nor made of some, nor constant."""
        found = []
        for tensor in given:
            known = self._held(tensor)
            owner = weight(known)
            if not tensor.is_floating_point() or (owner is None and known.state is not State.KNOWN and not known.made):
                return None
            if owner is not None:
                found.append(MadeAverage(known.label, owner.numel(), self.updates, self.updates))
            elif isinstance(known.made, MadeAverage):
                found.append(known.made)
        if not found:
            return None
        oldest, newest = min(m.oldest for m in found), max(m.newest for m in found)
        return MadeAverage(found[0].of, max(m.size for m in found), oldest, newest)

    def _held(self, tensor: torch.Tensor) -> Held:
        return self.storages.meet(tensor)

    def named(self) -> dict[str, Average]:
        """Every average that is kept in place under the name of its weight; further ones of a weight are numbered."""
        found: dict[str, Average] = {}
        for average in self._found.values():
            name, number = average.of, 2
            while name in found:
                name, number = f"{average.of}#{number}", number + 1
            found[name] = average
        return found

    def mixed(self) -> dict[str, Average]:
        """The last new tensor of each line that was made of a weight at different times, under names of its own."""
        return {f"{a.of}{MIXED}{a.place.line}": a for a in self._fresh.values()}


def paired(
    written: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:  # fmt: skip
    """Each written tensor with what is read for it: of several, itself and the next other one of its shape."""
    if len(written) == 1:
        return [(written[0], list(given))]
    own = {id(t) for t in written}
    others, pairs = [t for t in given if id(t) not in own], []
    for target in written:
        source = next((t for t in others if t.shape == target.shape), None)
        others = [t for t in others if t is not source]
        read = [t for t in given if t is target]
        pairs.append((target, read if source is None else [*read, source]))
    return pairs


def weight(held: Held) -> torch.Tensor | None:
    """A parameter that is trained and lives in a storage: where optimizers were made, one that they were given."""
    owners = (ref() for ref in held.owners)
    trained = NAMES.optimized
    return next((p for p in owners if p is not None and p.requires_grad and (not trained or id(p) in trained)), None)


# -- Which integer data an untracked tensor holds: for every element its number among all integer data of the run.
#
# Token ids and labels enter the tape by value. Beside the value a `Const` keeps these numbers (`Tape.origins` has site
# and place of each), so that two runs can be asked which samples they read. Views share their storage; what only moves
# elements is done once more with the numbers. Whatever else writes or makes a storage leaves it without numbers.

COPIES = frozenset({"aten.clone", "aten._to_copy", "aten.lift", "aten.lift_fresh_copy", "aten.expand_copy"})
MOVES = frozenset({"aten.stack", "aten.cat", "aten.flip", "aten.roll", "aten.repeat"})
ELSEWHERE = -1
"""The number of an element that is no integer data."""
MOST = 1 << 16
"""Elements of a storage up to which it is followed."""


class Origins:
    """The numbers of one recording, which lie beside the storages with the fingerprint of their bytes."""

    def __init__(self, tape: Tape, storages: Storages) -> None:
        self.tape, self.storages, self.count = tape, storages, 0

    def born(self, tensor: torch.Tensor, site: str, first: int) -> None:
        """Integer data: every element of its storage has a number of its own."""
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        self.tape.origins.append((self.count, site, first))
        self._keep(tensor, np.arange(self.count, self.count + total) if total <= MOST else None)
        self.count += total

    def of(self, tensor: torch.Tensor) -> NDArray[np.int64] | None:
        """The numbers of a tensor's elements; None for a tensor that was written since, or never had any."""
        held = self.storages.get(tensor)
        if held is None or held.origin is None:
            return None
        numbers, dtype, seen = held.origin
        if dtype is not tensor.dtype or seen != fingerprint(tensor.untyped_storage()):
            held.origin = None
            return None
        at = places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))
        return np.asarray(numbers[at])

    def const(self, tensor: torch.Tensor) -> Const:
        """An untracked tensor by value, with its numbers."""
        return Const(array(tensor), dtype_name(tensor.dtype), self.of(tensor))

    def after(self, spec: Spec, func: Any, args: Any, kwargs: Any, out: Any, written: Sequence[torch.Tensor]) -> None:
        """An untracked operator ran."""
        for tensor in written:
            if (held := self.storages.get(tensor)) is not None:
                held.origin = None
        if written or not isinstance(out, torch.Tensor) or storage_of(out) is None or out.is_floating_point():
            return
        copied = spec.base in COPIES
        if not copied and (spec.base not in MOVES or kwargs):
            return
        given = list(args[0]) if isinstance(args[0], list | tuple) else [args[0]]
        found = [self.of(t) for t in given]
        if all(f is None for f in found) or any(t.dtype is not out.dtype for t in given if not copied):
            return
        numbers = [
            torch.from_numpy(np.full(t.shape, ELSEWHERE) if f is None else f) for t, f in zip(given, found, strict=True)
        ]
        made = numbers[0] if copied else func(numbers if isinstance(args[0], list | tuple) else numbers[0], *args[1:])
        self._put(out, made)

    def _put(self, tensor: torch.Tensor, numbers: torch.Tensor) -> None:
        total = tensor.untyped_storage().nbytes() // tensor.element_size()
        if numbers.shape != tensor.shape or total > MOST:
            return
        whole = np.full(total, ELSEWHERE)
        whole[places(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))] = numbers.numpy()
        self._keep(tensor, whole)

    def _keep(self, tensor: torch.Tensor, numbers: NDArray[np.int64] | None) -> None:
        known = None if numbers is None else (numbers, tensor.dtype, fingerprint(tensor.untyped_storage()))
        self.storages.meet(tensor).origin = known
