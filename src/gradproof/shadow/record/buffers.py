"""The gradient buffers of the known parameters, and the parameters that a backward pass reaches.

The buffers are watched by identity and version counter, never by copying. A look costs about half a microsecond a
parameter, and there are a few looks a micro-batch. Tensors of inference mode have no version counter: of these only the
identity is watched. A write through `.data` or NumPy moves no version counter. So where no operator is recorded,
checksums are compared: of the weights before and after each step, and of sums over the ranks until they are applied.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.names import Names


@dataclass(slots=True)
class HeldBuffer:
    """What a parameter's `.grad` was when it was last looked at. `due`: applied by a step and not zeroed since.

    `sums`: its checksum, where it is a sum over the ranks that is not applied yet. `weights`: that of the parameter.
    """

    param: weakref.ref[Tensor]
    grad: weakref.ref[Tensor] | None = None
    version: int = 0
    due: bool = False
    sums: Tensor | None = None
    weights: Tensor | None = None


Change = tuple[Tensor, str]
"""A parameter whose `.grad` is not what it was, and how: gone, new (it was None), other (another tensor), written."""


def all_zero(grad: Tensor) -> bool:
    """Whether every element is zero. Waits for the device."""
    with torch.no_grad(), _disable_current_modes():
        values = grad.coalesce().values() if grad.is_sparse else grad
        return not bool(values.any())


def other_dtypes(params: Iterable[Tensor]) -> list[tuple[Tensor, str]]:
    """The parameters whose gradient is not float32, and its dtype."""
    held = [(p, p.grad.dtype) for p in params if p.grad is not None]
    return [(p, str(dtype).removeprefix("torch.")) for p, dtype in held if dtype is not torch.float32]


BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WIDTH = 512
UNMADE = (UninitializedBuffer, UninitializedParameter)
PLAIN = torch.Tensor.__torch_dispatch__


def checksum(tensor: Tensor) -> Tensor | None:
    """A sum of the elements' bits with odd factors that differ by position, modulo 2^64, on the device.

    None for what has no numbers to read: the meta device, a subclass that dispatches by itself, a nested or quantised
    tensor, a storage that was freed, a CUDA graph that is being captured.
    """
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized or isinstance(tensor, UNMADE):
        return None
    if tensor.layout is torch.strided and type(tensor) in (Tensor, torch.nn.Parameter) and _freed(tensor):
        return None
    if type(tensor).__torch_dispatch__ is not PLAIN:
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    with torch.no_grad(), _disable_current_modes():
        plain = tensor.detach() if tensor.layout is not torch.strided else tensor.detach().as_subclass(Tensor)
        total = torch.zeros((), dtype=torch.int64, device=plain.device)
        for part in _parts(plain):
            flat = part.resolve_conj().resolve_neg().contiguous().flatten()
            flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
            total = 5 * total + _summed(flat.view(BITS[flat.element_size()]))
        return total


def _freed(tensor: Tensor) -> bool:
    """Whether the storage is too small for the tensor, as where a parameter was offloaded."""
    if not tensor.numel():
        return False
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() < (tensor.storage_offset() + last + 1) * tensor.element_size()


def _summed(bits: Tensor) -> Tensor:
    """A checksum of integers, eight bytes at a time: that is how fast memory is read."""
    each = 8 // bits.element_size()
    bits = bits.clone() if bits.storage_offset() % each else bits
    whole = bits.numel() // (each * WIDTH) * each * WIDTH
    rows = bits[:whole].view(torch.int64).view(-1, WIDTH) if whole else bits.new_zeros(0, WIDTH, dtype=torch.int64)
    rest = bits[whole:]
    factors = torch.arange(1, 2 * max(len(rows), each * WIDTH), 2, device=bits.device)
    wide = factors[:WIDTH]
    sums = rows @ wide if bits.device.type == "cpu" else (rows * wide).sum(1)
    return 3 * (sums * factors[: len(rows)]).sum() + (rest * factors[: len(rest)]).sum()


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that hold a tensor's numbers."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    where = (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
    return (*where, tensor.values())


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two checksums are equal; what has none is taken for unchanged. Waits for the device."""
    if one is None or other is None or one.device != other.device:
        return True
    with _disable_current_modes():
        return torch.equal(one, other)


class Buffers:
    """Finds what changed since it was last asked."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._held: dict[int, HeldBuffer] = {}
        self._records: list[HeldBuffer] = []
        self._edition = -1

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._edition = -1

    def forget(self, param: Tensor) -> None:
        """Know nothing of a parameter any more."""
        self._held.pop(id(param), None)
        self._edition = -1
        self._records = []

    def changes(self, only: Iterable[Tensor] | None = None) -> list[Change]:
        """Every buffer that changed, or those of the parameters given; each change is reported once."""
        if only is not None:
            return self._changed([self._record(p) for p in only])
        return self._changed(self._known())

    def _known(self) -> list[HeldBuffer]:
        if self._edition != self.names.edition:
            self._edition = self.names.edition
            self._records = [self._record(p) for p in self.names.params()]
        return self._records

    def rewritten(self) -> list[Tensor]:
        """The parameters whose weights are not those of the last call of this method."""
        found = []
        for held in self._known():
            param = held.param()
            if param is None:
                continue
            now = checksum(param)
            if not same(held.weights, now):
                found.append(param)
            held.weights = now
        return found

    def _record(self, param: Tensor) -> HeldBuffer:
        held = self._held.get(id(param))
        if held is None or held.param() is not param:
            held = self._held[id(param)] = HeldBuffer(weakref.ref(param))
        return held

    def _changed(self, records: list[HeldBuffer]) -> list[Change]:
        found: list[Change] = []
        for held in records:
            param = held.param()
            grad = None if param is None else param.grad
            if param is None or grad is None:
                if param is not None and held.grad is not None:
                    held.grad, held.due = None, False
                    found.append((param, "gone"))
                continue
            kept = held.grad is not None and held.grad() is grad
            try:
                version = grad._version
            except RuntimeError:
                version = -1
            sums = None if held.sums is None else checksum(grad)
            if kept and version == held.version and same(held.sums, sums):
                continue
            found.append((param, "written" if kept else "new" if held.grad is None else "other"))
            held.version, held.sums = version, sums
            if not kept:
                held.grad = weakref.ref(grad)
        return found

    def applied(self, params: Iterable[Tensor]) -> None:
        """An optimizer applied these: their buffers are to be zeroed before the next arrival."""
        for param in params:
            held = self._held.get(id(param))
            if held is not None and held.grad is not None:
                held.due, held.sums = True, None

    def summed(self, params: Iterable[Tensor]) -> None:
        """These are sums over the ranks: until a step applies them their checksums are compared as well."""
        for param in params:
            self._record(param).sums = None if param.grad is None else checksum(param.grad)

    def zeroed(self, params: Iterable[Tensor]) -> None:
        """These were seen to be zeroed."""
        for param in params:
            held = self._held.get(id(param))
            if held is not None:
                held.due = False

    def swapped(self, original: Callable[..., Any], one: Tensor, other: Tensor) -> None:
        """torch.utils.swap_tensors refuses tensors with weak references: the known ones are forgotten meanwhile."""
        known = [(t, self.names.claim(t)) for t in (one, other) if self.names.knows(t)]
        for tensor, _ in known:
            self.names.forget(tensor)
            self.forget(tensor)
        original(one, other)
        for tensor, name in known:
            self.names.name(tensor, name)

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


class Reached:
    """What one backward pass at a time reaches: `leaves` are the ids of its tensors."""

    def __init__(self) -> None:
        self.leaves: set[int] = set()

    def begin(self, roots: Iterable[Tensor], inner: bool = False) -> None:
        """Read the graph of a backward pass from these tensors. `inner`: a pass inside a pass belongs to it."""
        self.leaves = self.leaves if inner else set()
        stack = [root.grad_fn for root in roots if root.grad_fn is not None]
        met = set(stack)
        while stack:
            node: Any = stack.pop()
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                self.leaves.add(id(leaf))
            for following, _ in node.next_functions:
                if following is not None and following not in met:
                    met.add(following)
                    stack.append(following)


def is_gradient(tensor: Tensor, param: Tensor) -> bool:
    """Whether a tensor is the gradient of a parameter: the same numbers, at the same place."""
    address = torch._C.TensorBase.data_ptr
    return param.grad is not None and address(param.grad) == address(tensor) and param.grad.numel() == tensor.numel()


def world_of(group: Any = None) -> int:
    """The ranks of a process group, by default of all; 1 where there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size(group)


class Ranks:
    """The DistributedDataParallel modules, with the parameters that each was given when it was made.

    A forward pass that records for a derivative decides whether the next backward pass sums. The sum is complete when
    every parameter has its gradient; where some may be unused, it is complete with the pass.
    """

    def __init__(self) -> None:
        self._given: weakref.WeakKeyDictionary[nn.Module, list[Tensor]] = weakref.WeakKeyDictionary()
        self._sums: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._missing: weakref.WeakKeyDictionary[nn.Module, set[int]] = weakref.WeakKeyDictionary()

    def made(self, module: Any) -> None:
        """A DistributedDataParallel was made: it sums the gradients of what it was given, and of nothing else."""
        ignored = module.parameters_to_ignore
        inner = module.module.named_parameters()
        self._given[module] = [p for name, p in inner if p.requires_grad and name not in ignored]

    def forward(self, module: Any) -> None:
        """A forward pass of a DistributedDataParallel."""
        if module not in self._given:
            self.made(module)
        if torch.is_grad_enabled():
            self._sums[module] = bool(module.require_backward_grad_sync)
            self._missing[module] = {id(p) for p in self._given[module]}

    def shared(self, params: Iterable[Tensor]) -> list[Tensor]:
        """Those of these parameters whose DistributedDataParallel of several ranks does not sum for now."""
        if world_of() < 2:
            return []
        owned = {id(p) for module, sums in self._sums.items() if not sums for p in self._given[module]}
        return [p for p in params if id(p) in owned]

    def summed(self, changed: Iterable[Tensor]) -> list[Tensor]:
        """The parameters whose sums over all ranks a backward pass completed, which changed these."""
        arrived, found = {id(p) for p in changed}, list[Tensor]()
        module: Any
        for module, sums in list(self._sums.items()):
            missing = self._missing.get(module, set())
            if not sums or not arrived & missing:
                continue
            missing -= arrived
            if not missing or module.find_unused_parameters or module.static_graph:
                self._missing[module] = set()
                plain = module.process_group.size() == world_of() and not module._comm_hooks
                found += self._given[module] if plain else []
        return found
