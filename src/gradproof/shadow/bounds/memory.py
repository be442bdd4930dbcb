"""The memory of tensors: which have one, what it holds, and where in it a tensor lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gradproof.shadow.bounds.enclosure import YES, Array
from gradproof.shadow.bounds.values import Box

FLOATS = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@contextmanager
def aside() -> Iterator[None]:
    """The mode's own use of tensors."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        yield


def odd(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no storage of real numbers of its own."""
    return not stored(tensor) or tensor.is_complex()


def stored(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage of its own."""
    wrapper = hasattr(type(tensor), "__tensor_flatten__")
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested and not wrapper


def common(tensors: Sequence[torch.Tensor]) -> str:
    """The format in which an operator on these computes: the widest of tensors with dimensions, else of all."""
    floats = [t for t in tensors if t.dtype in FLOATS]
    names = [FLOATS[t.dtype] for t in floats if t.dim()] or [FLOATS[t.dtype] for t in floats]
    if {"float16", "bfloat16"} <= set(names):
        names.append("float32")
    return next((name for name in FLOATS.values() if name in names), "")


def trainable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf of autograd that requires gradients, and no view of one."""
    if not tensor.requires_grad or (tensor._base is not None and tensor._base.requires_grad):
        return False
    return bool(tensor.is_leaf)


def weak(tensor: torch.Tensor) -> Any:
    """A weak reference to the storage of a tensor."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def digest(tensor: torch.Tensor) -> bytes:
    """A digest of the bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu()
    return hashlib.blake2b(held.clone().numpy().data, digest_size=16).digest()


def array(tensor: torch.Tensor) -> Array:
    """A copy of a tensor's numbers: float64, int64 or bool."""
    wide = torch.float64 if tensor.is_floating_point() else torch.int64
    wide = torch.bool if tensor.dtype is torch.bool else wide
    found: Array = torch.empty(tensor.shape, dtype=wide, device="cpu").copy_(tensor.detach()).numpy()
    return found


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, in one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its whole storage, in order."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.numel() == count and tensor.is_contiguous()


def strided(part: Array, tensor: torch.Tensor) -> Array:
    """The elements of a flat array at which a tensor is, as a view."""
    steps = tuple(n * part.itemsize for n in tensor.stride())
    return np.lib.stride_tricks.as_strided(part[tensor.storage_offset() :], tuple(tensor.shape), steps)


def certain(value: Box) -> bool:
    """Whether every number in an enclosure has the same whole part, or the truth value is sure."""
    if value.truth:
        return bool(np.all(value.parts[0] <= YES))
    low, high, err, _ = value.parts
    return bool(np.all(np.trunc(low - err) == np.trunc(high + err)))


def inside(numbers: Array, value: Box) -> bool:
    """Whether numbers lie in their enclosures."""
    low, high, err, _ = value.parts
    return bool(np.all((numbers >= low - err) & (numbers <= high + err)))
