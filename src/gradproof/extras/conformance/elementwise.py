"""Elementwise operators of PyTorch, each with the machine that it is claimed to be on each device.

What the CPU does was measured, with torch 2.13 on x86-64; the claims about CUDA come from ATen's sources and are
settled by running the rows there. 16-bit operands are computed in fp32 and rounded once; for a single addition,
subtraction, multiplication or square root that is the correctly rounded result (24 >= 2 p + 2). On the CPU a Python
scalar stays in fp32 in a product and in a quotient; a sum, and `_foreach_mul_`, round it to the 16-bit format first. A
sum with `alpha` in 16 bits is two functions: the vector body fuses in fp32, the last elements round the product to 16
bits. The square root in fp32 is not correctly rounded, only within one ulp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.extras.conformance.machine import Bits, Machine, Program, Values

TORCH: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES = tuple(TORCH)

SINGLE = "single rounding"
ONCE = "each operation in fp32, rounded once to storage"

Kernel = Callable[[list[Tensor], float], Tensor]


def to_tensor(bits: Bits, name: str, device: str) -> Tensor:
    """Bit patterns as a tensor of a dtype, moved as integers, so that nothing is flushed on the way."""
    if name == "fp32":
        return torch.from_numpy(bits.view(np.int32).copy()).view(torch.float32).to(device)
    return torch.from_numpy(bits.astype(np.uint16).view(np.int16)).view(TORCH[name]).to(device)


def to_bits(tensor: Tensor) -> Bits:
    """The bit patterns of a tensor of fp32, fp16 or bf16."""
    flat = tensor.detach().reshape(-1)
    if flat.dtype == torch.float32:
        wide: Bits = flat.contiguous().view(torch.int32).cpu().numpy().view(np.uint32)
        return wide
    narrow: Bits = flat.contiguous().view(torch.int16).cpu().numpy().view(np.uint16).astype(np.uint32)
    return narrow


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: the call, the program that it is claimed to be, and the machine's habits.

    `habits` holds what differs from plain rounding, for every device; `by_device` what differs on one. `single`: the
    claim is one correct rounding to storage. `control`: habits of a machine that is not this kernel, and that a run
    must tell apart from it; "program" there replaces the program. `result`: dtype of the result, where it is another.
    `otherwise`: habits of a second machine, by device, that may have computed an element instead. `ulps`: how many
    neighbours away a result may be, by device and dtype; 0 elsewhere.
    """

    name: str
    arity: int
    kernel: Kernel
    program: Program
    control: Mapping[str, Any]
    scalars: tuple[float, ...] = (1.0,)
    single: bool = True
    habits: Mapping[str, Any] = field(default_factory=dict)
    by_device: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = DTYPES
    devices: tuple[str, ...] = ("cpu", "cuda")
    result: str = ""
    otherwise: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ulps: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def claim(self, dtype: str, device: str) -> str:
        """The claim in words."""
        words = SINGLE if self.single else ONCE
        if away := self.ulps.get((device, dtype), 0):
            words = f"bound: within {away} ulp of the correct rounding"
        if device in self.otherwise:
            words += ", or each in 16 bits"
        if {**self.habits, **self.by_device.get(device, {})}.get("contract"):
            words += ", a*b+c fused"
        if self.by_device.get(device, {}).get("reciprocal"):
            words += ", times fl(1/scalar)"
        return words

    def machine(self, dtype: str, device: str) -> Machine:
        """The machine that this operator is claimed to be."""
        base = Machine(self.result or dtype, dtype if self.single else "fp32", "fp32")
        if self.result:
            base = replace(base, work=self.result, source=dtype)
        return _changed(base, {**self.habits, **self.by_device.get(device, {})}, dtype)

    def second(self, dtype: str, device: str) -> Machine | None:
        """The other machine that may have computed an element, if there is one."""
        return (
            _changed(self.machine(dtype, device), self.otherwise[device], dtype) if device in self.otherwise else None
        )

    def wrong(self, dtype: str, device: str) -> tuple[Machine, Program]:
        """The control: a machine and a program that this operator is not."""
        changes = {k: v for k, v in self.control.items() if k != "program"}
        machine = _changed(self.machine(dtype, device), changes, dtype)
        return machine, self.control.get("program", self.program)


def _changed(base: Machine, changes: Mapping[str, Any], dtype: str) -> Machine:
    """A machine with changed habits; "storage" is the storage format, "other" a scalar's format that is not base's."""
    other = "fp32" if base.scalar != "fp32" else "bf16" if dtype == "fp32" else dtype
    return replace(base, **{k: {"storage": dtype, "other": other}.get(str(v), v) for k, v in changes.items()})


def _add(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.add(x[0], x[1])


def _sub(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.add(x[0], -x[1])


def _mul(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.mul(x[0], x[1])


def _div(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.div(x[0], x[1])


def _mul_scalar(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.mul(x[0], m.constant(s))


def _div_scalar(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.div_scalar(x[0], s)


def _add_scalar(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.add(x[0], m.constant(s))


def _add_alpha(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.muladd(m.constant(s), x[1], x[0])


def _sqrt(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.sqrt(x[0])


def _far_sqrt(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.mul(m.sqrt(x[0]), np.array([SLACK]))


def _convert(m: Machine, x: Sequence[Values], s: float) -> Values:
    return x[0]


def _addcmul(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.muladd(m.mul(m.constant(s), x[1]), x[2], x[0])


def _addcdiv(m: Machine, x: Sequence[Values], s: float) -> Values:
    return m.add(x[0], m.div(m.mul(m.constant(s), x[1]), x[2]))


def _foreach(name: str) -> Kernel:
    """A foreach operator on a list of two uneven parts, so that the list form really runs."""

    def kernel(x: list[Tensor], s: float) -> Tensor:
        cut = max(1, x[0].numel() // 3)
        parts = [list(torch.split(t.clone(), cut)) for t in x]
        getattr(torch, name)(*parts if len(parts) > 1 else (parts[0], s))
        return torch.cat(parts[0])

    return kernel


SCALARS = (1 / 3, 3.0, 0.1, 1 / 7, 5.0, 2.0**-16, 65536.0)
NARROW = {"toward_zero": True}
COARSE = {"scalar": "other"}
STORED = {"cpu": {"scalar": "storage"}}
SLACK = 1 + 2.0**-20

OPERATORS: tuple[Operator, ...] = (
    Operator("add_(tensor)", 2, lambda x, s: x[0].clone().add_(x[1]), _add, NARROW),
    Operator("sub(tensor)", 2, lambda x, s: x[0] - x[1], _sub, NARROW),
    Operator("mul(tensor)", 2, lambda x, s: x[0] * x[1], _mul, NARROW),
    Operator("div(tensor)", 2, lambda x, s: x[0] / x[1], _div, NARROW, single=False),
    Operator("add(scalar)", 1, lambda x, s: x[0] + s, _add_scalar, COARSE, SCALARS, single=False,
             by_device=STORED),
    Operator("mul(scalar)", 1, lambda x, s: x[0] * s, _mul_scalar, COARSE, SCALARS, single=False),
    Operator(
        "div(scalar)", 1, lambda x, s: x[0].clone().div_(s), _div_scalar, COARSE, SCALARS, single=False,
        by_device={"cuda": {"reciprocal": True}},
    ),
    Operator(
        "add(tensor, alpha)", 2, lambda x, s: torch.add(x[0], x[1], alpha=s), _add_alpha, NARROW, (0.7,),
        single=False, habits={"contract": True}, dtypes=("fp32",),
    ),
    Operator(
        "add(tensor, alpha)", 2, lambda x, s: torch.add(x[0], x[1], alpha=s), _add_alpha, NARROW, (0.7,),
        single=False, habits={"contract": True}, by_device=STORED, dtypes=("fp16", "bf16"),
        otherwise={"cpu": {"contract": False, "work": "storage"}},
    ),
    Operator("sqrt", 1, lambda x, s: x[0].sqrt(), _sqrt, {"program": _far_sqrt}, dtypes=("fp32",),
             ulps={("cpu", "fp32"): 1}),
    Operator("sqrt", 1, lambda x, s: x[0].sqrt(), _sqrt, NARROW, dtypes=("fp16", "bf16")),
    Operator("reciprocal", 1, lambda x, s: x[0].reciprocal(), lambda m, x, s: m.div(np.ones(1), x[0]), NARROW,
             single=False),
    Operator("to(fp16)", 1, lambda x, s: x[0].to(torch.float16), _convert, NARROW, dtypes=("fp32",), result="fp16"),
    Operator("to(bf16)", 1, lambda x, s: x[0].to(torch.bfloat16), _convert, NARROW, dtypes=("fp32",), result="bf16"),
    Operator("_foreach_add_(tensors)", 2, _foreach("_foreach_add_"), _add, NARROW),
    Operator("_foreach_mul_(tensors)", 2, _foreach("_foreach_mul_"), _mul, NARROW),
    Operator("_foreach_mul_(scalar)", 1, _foreach("_foreach_mul_"), _mul_scalar, COARSE, SCALARS, single=False,
             by_device=STORED),
    Operator("_foreach_mul(scalar)", 1, lambda x, s: torch._foreach_mul([x[0]], s)[0], _mul_scalar, COARSE, SCALARS,
             single=False),
    Operator("_foreach_div_(scalar)", 1, _foreach("_foreach_div_"), _div_scalar, COARSE, SCALARS, single=False),
    Operator("_foreach_div_(tensors)", 2, _foreach("_foreach_div_"), _div, NARROW, single=False),
    Operator(
        "addcmul", 3, lambda x, s: torch.addcmul(x[0], x[1], x[2], value=s), _addcmul, NARROW,
        (1.0, 0.7), single=False, habits={"contract": True}, devices=("cpu",),
    ),
    Operator(
        "addcdiv", 3, lambda x, s: torch.addcdiv(x[0], x[1], x[2], value=s), _addcdiv, NARROW, (1.0, -0.001),
        single=False, devices=("cpu",),
    ),
)  # fmt: skip


def operator_named(name: str, dtype: str = "fp32") -> Operator:
    """The operator of the table that has a row for a dtype. Raises KeyError."""
    found = [o for o in OPERATORS if o.name == name and dtype in o.dtypes]
    if not found:
        raise KeyError(f"no operator {name!r} with a row for {dtype}")
    return found[0]
