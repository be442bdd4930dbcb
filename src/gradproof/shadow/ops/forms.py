"""What torch makes of an operator on fake tensors, which have a shape, strides, a type and a device, and no numbers.

It depends on these alone. Torch is asked once for each form of the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.shadow.ops.schema import Spec, spec_of

DEVICE = torch.ops.prim.device.default
"""Asks for the device of a fake tensor: an operator, of which a backward pass calls thousands."""
PLAIN = frozenset({
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
})  # fmt: skip
Form = tuple[Any, ...]


class UnknownForm(Exception):
    """An argument that is no plain tensor and no plain number."""


@dataclass(frozen=True, slots=True)
class Made:
    """One result that is a new tensor. `storage`: the tensor argument whose storage it has."""

    storage: int | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class Forms:
    """What torch made of each operator at each form of its arguments."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.known: dict[Form, tuple[type, list[int | Made]] | None] = {}

    def call(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """The results of an operator."""
        if not by_form(func) or torch.is_inference_mode_enabled():
            return func(*args, **kwargs)
        form, given = self._asked(spec, args, kwargs)
        found = None if form is None else self.known.get(form)
        if found is not None:
            kind, results = found
            made = [self._made(result, given) for result in results]
            return made[0] if kind is FakeTensor else kind(made)
        out = func(*args, **kwargs)
        if form is not None and form not in self.known:
            changed = self._asked(spec, args, kwargs)[0] != form
            self.known[form] = None if changed else self._results(out, given)
        return out

    def _asked(self, spec: Spec, args: Any, kwargs: Any) -> tuple[Form | None, list[torch.Tensor]]:
        """The form of a call and its tensors, in order."""
        given: list[torch.Tensor] = []
        try:
            form = (spec.name, torch.get_default_dtype(), self._form(args, given), self._form(kwargs, given))
        except UnknownForm:
            return None, given
        return form, given

    def _form(self, value: Any, given: list[torch.Tensor]) -> Form:
        kind = type(value)
        if kind is FakeTensor:
            dtype = value.dtype
            own = value.fake_mode is self.mode and value.constant is None
            if not own or value.layout is not torch.strided or dtype.is_complex or value.is_neg():
                raise UnknownForm
            given.append(value)
            return (value.shape, value.stride(), value.storage_offset(), dtype, value.fake_device)
        if kind in PLAIN:
            return (kind, value)
        if kind is list or kind is tuple:
            return (kind, *[self._form(part, given) for part in value])
        if kind is dict:
            return (kind, *[(name, self._form(part, given)) for name, part in value.items()])
        raise UnknownForm

    def _results(self, out: Any, given: list[torch.Tensor]) -> tuple[type, list[int | Made]] | None:
        """The results, as they can be made again; None where they cannot."""
        made = [out] if type(out) is FakeTensor else out if type(out) in (list, tuple) else []
        found = [self._result(one, given) if type(one) is FakeTensor else None for one in made]
        kept = [one for one in found if one is not None]
        return (type(out), kept) if kept and len(kept) == len(made) else None

    def _result(self, made: FakeTensor, given: list[torch.Tensor]) -> int | Made | None:
        """The number of the argument that a result is, or what it is a new tensor of."""
        same = next((at for at, one in enumerate(given) if one is made), None)
        if same is not None:
            return same
        storage = made.untyped_storage()
        at = next((at for at, one in enumerate(given) if one.untyped_storage()._cdata == storage._cdata), None)
        form = Made(at, tuple(made.shape), made.stride(), int(made.storage_offset()), made.dtype, made.fake_device)
        alike = self._made(form, given).untyped_storage().nbytes() == storage.nbytes()
        plain = made.layout is torch.strided and not (made.is_complex() or made.is_neg()) and made.constant is None
        return form if alike and plain else None

    def _made(self, result: int | Made, given: list[torch.Tensor]) -> torch.Tensor:
        if isinstance(result, int):
            return given[result]
        shape, stride = result.shape, result.stride
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(shape, stride, dtype=result.dtype, device="meta")
            if result.storage is not None:
                plain.set_(given[result.storage].untyped_storage(), result.offset, shape, stride)
        return FakeTensor(self.mode, plain, result.device)


@lru_cache(maxsize=8192)
def by_form(func: Any) -> bool:
    """Whether the results of an operator depend on the form of its arguments alone, and nothing but it is changed."""
    spec = spec_of(func)
    if spec is None or not spec.name.startswith("aten.") or spec.alters or spec.moves or spec.short.startswith("lift"):
        return False
    return not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
