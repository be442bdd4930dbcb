"""What the schema of an operator says, and what it should have said: which arguments it writes, what it makes.

Source of the facts: `native_functions.yaml` of torch 2.6 to 2.13, and `torch/csrc/distributed/c10d/Ops.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

SILENT_WRITES: dict[str, tuple[str, ...]] = {
    "aten.native_batch_norm": ("running_mean", "running_var"),
    "aten.cudnn_batch_norm": ("running_mean", "running_var"),
    "aten.miopen_batch_norm": ("running_mean", "running_var"),
    "aten.batch_norm_update_stats": ("running_mean", "running_var"),
    "aten.batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten.batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
}
"""Operators whose schema does not say that they write these arguments. All of c10d writes its first argument."""

BY_LENGTHS: dict[Any, Any] = {
    torch.ops.aten._pack_padded_sequence.default: 1, torch.ops.aten._pad_packed_sequence.default: 1,
    torch.ops.aten._ctc_loss.Tensor: slice(2, 4),
}  # fmt: skip
"""Operators whose results have shapes by the numbers of these arguments, and of no others: what no tag says."""

IMPLICIT = "CompositeImplicitAutograd"

GEOMETRY = frozenset(
    f"aten.{name}" for name in ("set_", "resize_", "resize_as_", "resize", "_resize_output_", "set_data", "set")
)
"""Operators that change the storage, or its size, under a tensor."""


def is_operator(word: str) -> bool:
    """Whether torch has an operator of this name, with or without `aten.` before it and an overload behind it."""
    name = word.removeprefix("aten.").partition(".")[0]
    return bool(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


@dataclass(frozen=True, slots=True)
class Spec:
    """Facts about one operator. `written` are the positions of written arguments, in the order of the schema.

    `name` is aten.add_.Tensor, `base` aten.add_, `short` add_, `function` add, which is the same out of place. Those of
    another library than torch's own keep its name: their `short` is `mylib.add_`.
    `by_shape`: its results depend on shapes alone. `moves`: it changes where its argument lies in its storage.
    `results` are the arguments of an `out=` form that take its results: their contents are not read.
    """

    name: str
    base: str
    short: str
    function: str
    written: tuple[int, ...]
    arguments: tuple[str, ...]
    view: bool
    composite: bool
    random: bool
    by_shape: bool
    alters: bool
    moves: bool
    results: frozenset[str]

    def targets(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors that a call writes. A fused optimizer divides gradients only where it has a loss scale."""
        fused = self.base.startswith("aten._fused_") and kwargs.get("grad_scale") is None
        places = [at for at in self.written if not (fused and self.arguments[at] == "grads")]
        return [t for at in places for t in tensors_in(self.argument(at, args, kwargs))]

    def given(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors that a call is given, without those that only take its results."""
        read = {name: arg for name, arg in kwargs.items() if name not in self.results} if self.results else kwargs
        return tensors_in((args, read))

    def draws(self, args: Any, kwargs: Any) -> bool:
        """Whether a call draws random numbers: one with a probability of nought does not."""
        return self.random and ("dropout_p" not in self.arguments or bool(self.named("dropout_p", args, kwargs)))

    def argument(self, at: int, args: Any, kwargs: Any) -> Any:
        """The argument at a position of the schema, or None."""
        return args[at] if at < len(args) else kwargs.get(self.arguments[at])

    def named(self, name: str, args: Any, kwargs: Any) -> Any:
        """The argument of a name, or None where the operator has none, or it was left at its default."""
        return self.argument(self.arguments.index(name), args, kwargs) if name in self.arguments else None


@lru_cache(maxsize=8192)
def spec_of(func: Any) -> Spec | None:
    """The facts about an operator; None for one without a schema (a higher-order operator)."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return None
    name = str(func)
    base = name.rsplit(".", 1)[0]
    space, short = base.split(".", 1)
    short = short if space == "aten" else base
    in_place = short.endswith("_") and not short.endswith("__")
    arguments = tuple(a.name for a in schema.arguments)
    silent = SILENT_WRITES.get(base, arguments[:1] if space == "c10d" else ())
    written = tuple(
        i for i, a in enumerate(schema.arguments)
        if a.name in silent or (a.alias_info is not None and a.alias_info.is_write)
    )  # fmt: skip
    fresh = any(r.alias_info is None for r in schema.returns)
    return Spec(
        name, base, short, short[:-1] if in_place else short, written, arguments,
        view=bool(schema.returns) and not written and not fresh,
        composite=space == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), IMPLICIT),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        by_shape=space == "aten" and (short.startswith(("new_", "sym_")) or short.endswith("_like")),
        alters=base in GEOMETRY,
        moves=torch.Tag.inplace_view in func.tags,
        results=frozenset(a.name for a in schema.arguments if a.is_out),
    )  # fmt: skip


def read_by(func: Any, args: Any) -> list[torch.Tensor]:
    """The tensors whose numbers an operator gives to Python, or whose numbers decide what shape its result has."""
    if torch.Tag.data_dependent_output in func.tags or func is torch.ops.aten.is_nonzero.default:
        return tensors_in(args)
    by = BY_LENGTHS.get(func)
    if by is not None:
        return tensors_in(args[by])
    if torch.Tag.dynamic_output_shape not in func.tags:
        return []
    if func is torch.ops.aten.index.Tensor:
        return [t for t in tensors_in(args[1]) if t.dtype in (torch.bool, torch.uint8)]
    return tensors_in(args[1] if func is torch.ops.aten.masked_select.default else args)


def tensors_in(arg: Any, found: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Every tensor in an argument, after those that were found before."""
    found = [] if found is None else found
    if arg is None or type(arg) is int:
        return found
    if isinstance(arg, torch.Tensor):
        found.append(arg)
    elif isinstance(arg, (list, tuple)):
        for part in arg:
            tensors_in(part, found)
    elif isinstance(arg, dict):
        for part in arg.values():
            tensors_in(part, found)
    return found


# -- What torch makes of an operator on fake tensors, which have a shape, strides, a type and a device, and no numbers.
#
# It depends on these alone. Torch is asked once for each form of the arguments.
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
