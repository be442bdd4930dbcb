"""What the schema of an operator says, and what it should have said: which arguments it writes, what it makes.

Source of the facts: `native_functions.yaml` of torch 2.6 to 2.13, and `torch/csrc/distributed/c10d/Ops.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

SILENT_WRITES: dict[str, tuple[str, ...]] = {
    "aten.native_batch_norm": ("running_mean", "running_var"),
    "aten.cudnn_batch_norm": ("running_mean", "running_var"),
    "aten.miopen_batch_norm": ("running_mean", "running_var"),
    "aten.batch_norm_update_stats": ("running_mean", "running_var"),
    "aten.batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten.batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
}
"""Operators whose schema does not say that they write these arguments. All of c10d writes its first argument."""

BY_LENGTHS = {torch.ops.aten._pack_padded_sequence.default: 1, torch.ops.aten._pad_packed_sequence.default: 1}
"""Operators whose results have shapes by the numbers of an argument, which no tag says."""

IMPLICIT = "CompositeImplicitAutograd"

GEOMETRY = frozenset(
    f"aten.{name}" for name in ("set_", "resize_", "resize_as_", "resize", "_resize_output_", "set_data", "set")
)
"""Operators that change the storage, or its size, under a tensor."""


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
        """The tensors that the operator writes."""
        return [t for at in self.written for t in tensors_in(self.argument(at, args, kwargs))]

    def written_in(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The tensors that a call writes. A fused optimizer divides gradients only where it has a loss scale."""
        fused = self.base.startswith("aten._fused_") and kwargs.get("grad_scale") is None
        places = [at for at in self.written if not (fused and self.arguments[at] == "grads")]
        return [t for at in places for t in tensors_in(self.argument(at, args, kwargs))]

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


def choosing(func: Any, args: Any) -> list[torch.Tensor]:
    """The tensors whose numbers decide what shape the result of an operator has."""
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
