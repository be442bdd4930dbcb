"""Checksums of tensors: whether one holds what it held, without a copy of it.

A write through `.data` or NumPy moves no version counter. A checksum sees it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import _disable_current_modes

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WIDTH = 512
UNMADE = (UninitializedBuffer, UninitializedParameter)


def plain(tensor: Tensor) -> bool:
    """Whether a tensor has a storage with numbers, and no dispatch of its own."""
    kind = type(tensor)
    ordinary = (
        kind is Tensor
        or kind is torch.nn.Parameter
        or (kind.__torch_dispatch__ is Tensor.__torch_dispatch__ and not isinstance(tensor, UNMADE))
    )
    with_numbers = not (tensor.is_meta or tensor.is_nested or inside(tensor))
    return ordinary and with_numbers and tensor.layout is torch.strided


def inside(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func, which has no storage of its own."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def checksum(tensor: Tensor) -> Tensor | None:
    """A sum of the elements' bits with odd factors that differ by position, modulo 2^64, on the device.

    None for what has no numbers to read: the meta device, a subclass that dispatches by itself, a nested, quantised or
    sparse tensor, a storage that was freed, a CUDA graph that is being captured.
    """
    if not plain(tensor) or tensor.is_quantized or _freed(tensor):
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    with torch.no_grad(), _disable_current_modes():
        flat = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg().contiguous().flatten()
        flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
        return _summed(flat.view(BITS[flat.element_size()]))


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


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two checksums are equal; what has none is taken for unchanged. Waits for the device."""
    if one is None or other is None or one.device != other.device:
        return True
    with _disable_current_modes():
        return torch.equal(one, other)


def same_memory(one: Any, other: Any) -> bool:
    """Whether two are tensors with one memory."""
    address = torch._C.TensorBase.data_ptr  # not the method, by which the memory of a tensor is given away
    return isinstance(one, Tensor) and isinstance(other, Tensor) and address(one) == address(other)
