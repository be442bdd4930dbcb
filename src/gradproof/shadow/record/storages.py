"""What is known about every storage that an operator met, and whether its bytes are still those that were seen.

A storage is identified by a weak reference, which keeps its address from being used again, so that memory that was
freed and handed out anew is another storage.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef

from gradproof.shadow.tape import Const, Ref

SWEEP_EVERY = 4096
SHORT = 16384
CHUNK = 1 << 17


class State(Enum):
    """KNOWN: an untracked value that operators made. PENDING: data that nobody has read yet. TRACKED: on the tape."""

    KNOWN = 0
    PENDING = 1
    TRACKED = 2


@dataclass(slots=True, eq=False)
class Held:
    """One storage. `owners` are the parameters that live in it; `trained`: it depends on a parameter.
    `scalar`: a single number of the user's, data where it is stacked with others."""

    weak: StorageWeakRef
    state: State = State.KNOWN
    number: int = -1
    dtype: torch.dtype = torch.float32
    print: int = 0
    blank: bool = False
    trained: bool = False
    scalar: bool = False
    pending: Any = None
    owners: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    label: str = ""

    @property
    def dead(self) -> bool:
        """Whether nothing holds the storage any more."""
        return bool(self.weak.expired())  # type: ignore[no-untyped-call]


class Storages:
    """All storages that operators met and that are alive."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.numbers = 0
        self._countdown = SWEEP_EVERY

    def get(self, tensor: torch.Tensor) -> Held | None:
        """What is known about a tensor's storage; None for one never met, or a tensor without a storage."""
        storage = storage_of(tensor)
        return None if storage is None else self.held.get(storage._cdata)

    def meet(self, tensor: torch.Tensor) -> Held:
        """What is known about a tensor's storage; never met before it is KNOWN. The tensor must have a storage."""
        storage = tensor.untyped_storage()
        found = self.held.get(storage._cdata)
        if found is None:
            self._sweep()
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            found = self.held[storage._cdata] = Held(weak, dtype=tensor.dtype)
        return found

    def track(self, tensor: torch.Tensor) -> Held:
        """Put a tensor's storage on the tape."""
        held = self.meet(tensor)
        if held.state is not State.TRACKED:
            held.state, held.number, held.dtype = State.TRACKED, self.numbers, tensor.dtype
            held.pending, held.blank = None, False
            self.numbers += 1
        return held

    def ref(self, tensor: torch.Tensor, held: Held) -> Ref:
        """A tracked tensor as the tape has it."""
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        return Ref(
            held.number, dtype_name(tensor.dtype), int(tensor.storage_offset()), tuple(tensor.shape),
            tuple(tensor.stride()), size,
        )  # fmt: skip

    def tracked(self) -> Iterable[tuple[Held, torch.UntypedStorage]]:
        """Every live storage on the tape."""
        for held in list(self.held.values()):
            if held.state is State.TRACKED and not held.dead:
                storage = torch.UntypedStorage._new_with_weak_ptr(held.weak.cdata)
                if storage is not None:
                    yield held, storage

    def _sweep(self) -> None:
        self._countdown -= 1
        if self._countdown <= 0:
            self._countdown = SWEEP_EVERY
            for key in [k for k, h in self.held.items() if h.dead]:
                del self.held[key]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None for sparse tensors, wrappers of other tensors, and others that have none."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_meta
        or tensor.is_nested
        or hasattr(type(tensor), "__tensor_flatten__")
    ):
        return None
    return tensor.untyped_storage()


def trainable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf of autograd that requires gradients.

    A view that was made of one under `no_grad` looks like one below autograd; once its base has changed, torch refuses
    to say whether it is a leaf.
    """
    if not tensor.requires_grad or (tensor._base is not None and tensor._base.requires_grad):
        return False
    return bool(tensor.is_leaf)


def fingerprint(storage: torch.UntypedStorage) -> int:
    """A 64-bit hash of the bytes of a storage; of a long one, of two weighted sums of its words, which is faster."""
    count = storage.nbytes()
    if count == 0:
        return 0
    if storage.device.type != "cpu":
        storage = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().untyped_storage()
    if count <= SHORT:
        return hash(ctypes.string_at(storage.data_ptr(), count))
    words = np.ctypeslib.as_array((ctypes.c_uint64 * (count // 8)).from_address(storage.data_ptr()))
    parts = [ctypes.string_at(storage.data_ptr() + words.nbytes, count - words.nbytes)]
    for start in range(0, len(words), CHUNK):
        piece = words[start : start + CHUNK]
        low, high = weights()
        parts += [np.dot(piece, low[: len(piece)]).tobytes(), np.dot(piece >> 32, high[: len(piece)]).tobytes()]
    return hash(tuple(parts))


@lru_cache(maxsize=1)
def weights() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Random odd numbers. High halves get a second sum, because a sum modulo 2^64 hardly sees their upper bits."""
    made = np.random.default_rng(20).integers(0, 2**63, (2, CHUNK), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return made[0], made[1]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of a tensor's numbers: float64, int64 or bool. Complex numbers are refused with a TypeError."""
    if tensor.is_complex():
        raise TypeError("complex tensors are not recorded")
    plain = tensor.detach()
    wide = torch.float64 if plain.is_floating_point() else torch.int64
    wide = torch.bool if plain.dtype is torch.bool else wide
    copied = torch.empty(plain.shape, dtype=wide).copy_(plain)
    found: NDArray[Any] = torch._C.TensorBase.numpy(copied)
    return found


def const(tensor: torch.Tensor) -> Const:
    """An untracked tensor by value."""
    return Const(array(tensor), dtype_name(tensor.dtype))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, in one dimension; a write to it is no write to the tensor for autograd."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def window(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """A tensor of another geometry over the same storage."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), offset, shape, stride)


def covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its whole storage, each element once."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() != count:
        return False
    step = 1
    for length, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if length != 1:
            if stride != step:
                return False
            step *= length
    return True


def finite(values: NDArray[Any]) -> tuple[bool, bool]:
    """Whether all numbers are finite, and whether one is NaN."""
    return bool(np.isfinite(values).all()), bool(np.isnan(values).any())
