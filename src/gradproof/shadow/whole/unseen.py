"""Writes that are no operators: NumPy, another process, or a kernel of an extension changes the memory of a tensor.

A tensor whose memory somebody else can reach is compared whole, by checksum. What writes into any other asked nobody
for its memory, as a kernel of an extension does: of it at most SAMPLED elements are compared.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.shadow.record.buffers import BITS, checksum, same
from gradproof.shadow.whole.patches import replaced
from gradproof.shadow.whole.values import Value, weakly

SAMPLED = 1024
WAYS_OUT = ("numpy", "__array__", "data_ptr", "__dlpack__")
"""Methods that give away the memory of a tensor."""
OF_STORAGES = ("__setitem__", "fill_", "copy_", "data_ptr")
"""Methods of a storage that write, or give its memory away."""


class Escapes:
    """The storages whose memory was given away. An array that nobody holds any more reaches nothing.

    What another library owns cannot be resized, and neither can what NumPy was given: the latter is known here.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[Any, Callable[[], Any]]]] = {}

    def left(self, storage: torch.UntypedStorage, found: Any, foreign: bool = False) -> None:
        """Python has got the memory of a storage, as `found`. `foreign`: it was another library's before."""
        if storage._cdata not in self._held and foreign:
            found = None
        array = weakref.ref(found) if isinstance(found, numpy.ndarray) else lambda: True
        self._held.setdefault(storage._cdata, []).append((weakly(storage), array))

    def reach(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else can reach the memory of a tensor."""
        storage = tensor.untyped_storage()
        given = [(weak, array) for weak, array in self._held.get(storage._cdata, ()) if not weak.expired()]
        if storage.device.type == "cpu" and (storage.is_shared() or (not given and not storage.resizable())):
            return True
        alive = [(weak, array) for weak, array in given if array() is not None]
        self._held[storage._cdata] = alive or given[:1]
        return bool(alive)


class Unchanged:
    """What tensors held when they were kept."""

    def __init__(self, escapes: Escapes) -> None:
        self.escapes = escapes
        self._seen: dict[str, tuple[torch.Tensor, Value, bool, torch.Tensor | None]] = {}

    def keep(self, name: str, tensor: torch.Tensor, value: Value) -> None:
        """Keep what a tensor holds."""
        whole = self.escapes.reach(tensor)
        self._seen[name] = (tensor.detach(), value, whole, checksum(tensor) if whole else fingerprint(tensor))

    def left(self, storage: torch.UntypedStorage) -> None:
        """The memory of a storage is given away now: what it holds is kept whole from here on."""
        for name, (tensor, value, whole, before) in list(self._seen.items()):
            if not whole and tensor.untyped_storage()._cdata == storage._cdata and same(before, fingerprint(tensor)):
                self._seen[name] = (tensor, value, True, checksum(tensor))

    def changed(self, kind: str, read: Callable[[torch.Tensor], Value | None]) -> Iterator[str]:
        """The kept tensors of a kind that no operator wrote, and that hold something else; each is forgotten."""
        for name in [name for name in self._seen if name.startswith(kind)]:
            tensor, value, whole, before = self._seen.pop(name)
            if read(tensor) is value and not same(before, checksum(tensor) if whole else fingerprint(tensor)):
                yield name

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()


def fingerprint(tensor: torch.Tensor) -> torch.Tensor | None:
    """At most SAMPLED elements of a tensor, as bits, at an odd distance; all of a tensor that has gaps."""
    size = tensor.numel()
    with torch.no_grad(), _disable_current_modes():
        plain = tensor.detach()
        if plain.is_complex() or plain.element_size() not in BITS or tensor.is_quantized:
            return checksum(tensor)
        if not plain.is_contiguous():
            ordered = sorted(zip(plain.stride(), plain.shape, strict=True), reverse=True)
            dense = [math.prod(n for _, n in ordered[at + 1 :]) for at in range(len(ordered))]
            if any(n > 1 and step != whole for (step, n), whole in zip(ordered, dense, strict=True)):
                return checksum(tensor)
            plain = plain.as_strided((size,), (1,))
        step = max(1, size // SAMPLED) | 1
        return plain.reshape(-1)[::step].clone().view(BITS[plain.element_size()])


@contextmanager
def ways_out(
    left: Callable[[torch.Tensor, Any, bool], None], written: Callable[[torch.UntypedStorage], None]
) -> Iterator[None]:
    """`left` is called with each tensor whose memory is given away, and with what was given.

    `written` is called with each storage that Python is about to write, or to give away, by itself.
    """

    def leaving(original: Any) -> Any:
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            own = self.layout is torch.strided and not self.is_meta and self.untyped_storage().resizable()
            found = original(self, *args, **kwargs)
            left(self, found, not own)
            return found

        return call

    def writing(original: Any) -> Any:
        def call(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            written(self)
            return original(self, *args, **kwargs)

        return call

    with ExitStack() as stack:
        for name in OF_STORAGES:
            stack.enter_context(replaced(torch.UntypedStorage, name, writing(getattr(torch.UntypedStorage, name))))
        for name in WAYS_OUT:
            stack.enter_context(replaced(torch.Tensor, name, leaving(getattr(torch.Tensor, name))))
        yield
