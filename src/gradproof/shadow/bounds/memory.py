"""The memory of tensors: which have one, what it holds, and where in it a tensor lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.bounds.domain import FORMATS, Box

FLOATS = {dtype: name for name, dtype in FORMATS.items()}


@contextmanager
def aside() -> Iterator[None]:
    """The mode's own use of tensors."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def odd(tensor: Tensor) -> bool:
    """Whether a tensor has no storage of real numbers of its own."""
    return not stored(tensor) or tensor.is_complex()


def stored(tensor: Tensor) -> bool:
    """Whether a tensor has a storage of its own."""
    wrapper = hasattr(type(tensor), "__tensor_flatten__")
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested and not wrapper


def common(tensors: Sequence[Tensor]) -> str:
    """The format in which an operator on these computes: the widest of tensors with dimensions, else of all."""
    floats = [t for t in tensors if t.dtype in FLOATS]
    names = [FLOATS[t.dtype] for t in floats if t.dim()] or [FLOATS[t.dtype] for t in floats]
    if {"float16", "bfloat16"} <= set(names):
        names.append("float32")
    return next((name for name in FORMATS if name in names), "")


def trainable(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf of autograd that requires gradients, and no view of one."""
    if not tensor.requires_grad or (tensor._base is not None and tensor._base.requires_grad):
        return False
    return bool(tensor.is_leaf)


def numbers_of(tensor: Tensor) -> Tensor:
    """A copy of a tensor's numbers in float64."""
    return tensor.detach().to("cpu", torch.float64, copy=True)


def flat(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor, in one dimension."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))


def whole(tensor: Tensor) -> bool:
    """Whether a tensor is its whole storage, in order."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.numel() == count and tensor.is_contiguous()


def strided(part: Tensor, tensor: Tensor) -> Tensor:
    """The elements of a flat array at which a tensor is, as a view."""
    return part.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def certain(value: Box) -> bool:
    """Whether every number in an enclosure has the same whole part; of truth values, whether they are sure."""
    low, high, err = value.parts
    return torch.equal((low - err).trunc(), (high + err).trunc())


def inside(numbers: Tensor, value: Box) -> bool:
    """Whether numbers lie in their enclosures."""
    low, high, err = value.parts
    return bool(((numbers >= low - err) & (numbers <= high + err)).all())
