"""A run without numbers: the engine on fake tensors, which have a shape, strides, a type and a device.

What torch makes of an operator depends on these alone. It is asked once for each form of the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gradproof.shadow.ops.schema import Spec, tensors_in
from gradproof.shadow.whole.arithmetic import number
from gradproof.shadow.whole.engine import NO_NUMBERS
from gradproof.shadow.whole.plain_numbers import NoNumbers
from gradproof.shadow.whole.runs import Called
from gradproof.shadow.whole.unseen import digest

DEVICE = torch.ops.prim.device.default
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
        self.plain: dict[str, bool] = {}
        self.states: dict[torch.device, dict[str, Any]] = {}

    def call(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """The results of an operator."""
        if spec.name not in self.plain:
            self.plain[spec.name] = by_form(func, spec)
        if not self.plain[spec.name] or torch.is_inference_mode_enabled():
            return func(*args, **kwargs)
        given: list[torch.Tensor] = []
        try:
            form = (spec.name, torch.get_default_dtype(), self._form(args, given), self._form(kwargs, given))
        except UnknownForm:
            return func(*args, **kwargs)
        found = self.known.get(form)
        if found is not None:
            kind, results = found
            made = [self._made(result, given) for result in results]
            return made[0] if kind is FakeTensor else kind(made)
        out = func(*args, **kwargs)
        if form not in self.known:
            self.known[form] = self._results(out, given)
        return out

    def _form(self, value: Any, given: list[torch.Tensor]) -> Form:
        kind = type(value)
        if kind is FakeTensor:
            dtype = value.dtype
            if value.constant is not None or value.layout is not torch.strided or dtype.is_complex:
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
        plain = made.layout is torch.strided and not made.is_complex() and made.constant is None
        return form if alike and plain else None

    def _made(self, result: int | Made, given: list[torch.Tensor]) -> torch.Tensor:
        if isinstance(result, int):
            return given[result]
        shape, stride = result.shape, result.stride
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(shape, stride, dtype=result.dtype, device="meta")
            if result.storage is not None:
                plain.set_(given[result.storage].untyped_storage(), result.offset, shape, stride)
        return self._fake(plain, result.device)

    def _fake(self, plain: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A new fake tensor, which holds what one holds that torch made."""
        if device not in self.states:
            made = FakeTensor(self.mode, plain, device)
            self.states[device] = dict(vars(made))
            return made
        again = torch.Tensor._make_subclass(
            FakeTensor, plain, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(again)
        vars(again).update(self.states[device])
        return again


def by_form(func: Any, spec: Spec) -> bool:
    """Whether the results of an operator depend on the form of its arguments alone, and nothing but it is changed."""
    if not spec.name.startswith("aten.") or spec.alters or spec.moves or spec.short.startswith("lift"):
        return False
    return not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)


class Fake(Called):  # type: ignore[no-untyped-call]
    """An engine for tensors without numbers. Nothing can reach a tensor but through an operator."""

    def __init__(self, mode: FakeTensorMode, *given: Any) -> None:
        super().__init__(*given)
        self.mode, self.forms = mode, Forms(mode)
        self.outside: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def operate(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """Run one operator; real tensors, which the function took from outside, become data."""
        if any(not isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            args, kwargs = self._faked(args), self._faked(kwargs)
        base = spec.short
        if base in NO_NUMBERS:
            return self.read(func, base, args, kwargs)
        return super().operate(func, spec, args, kwargs)

    def made_by(self, func: Any, spec: Spec, args: Any, kwargs: Any) -> Any:
        """The results of an operator."""
        return self.forms.call(func, spec, args, kwargs)

    def read(self, func: Any, base: str, args: Any, kwargs: Any) -> Any:
        """A number that the laws know; there is no other."""
        found = number(self.laws, self.value(args[0])) if base == "_local_scalar_dense" else None
        if found is not None:
            kind = args[0].dtype
            return float(found) if kind.is_floating_point else bool(found) if kind is torch.bool else int(found)
        self.facts.reads.append((self.location(), base))
        raise NoNumbers(f"{base} needs a number, and in a run without numbers there is none")

    def _faked(self, value: Any) -> Any:
        """Arguments with real tensors, which the function took from outside, as fake ones: they are data."""
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            return self._outside(value)
        if isinstance(value, list | tuple):
            found = [self._faked(part) for part in value]
            return found if isinstance(value, list) else tuple(found)
        if isinstance(value, dict):
            return {name: self._faked(part) for name, part in value.items()}
        return value

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self.outside:
            made: torch.Tensor = self.mode.from_tensor(tensor)
            self.outside[id(tensor)] = (tensor, made, digest(tensor))
            self.memory.write(made, self.held(tensor, made))
        _, made, held = self.outside[id(tensor)]
        if digest(tensor) != held:
            self.lose("a tensor that was made outside of the function was changed by something that is no operator")
        return made
