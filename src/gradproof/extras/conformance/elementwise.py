"""Elementwise operators of PyTorch, each with the machine that it is claimed to be on each device.

What the CPU does was measured, with torch 2.13 on x86-64; the claims about CUDA come from ATen's sources and are
settled by running the rows there. 16-bit operands are computed in fp32 and rounded once; for a single addition,
subtraction, multiplication or square root that is the correctly rounded result (24 >= 2 p + 2). On the CPU a Python
scalar stays in fp32 in a product and in a quotient; a sum, and `_foreach_mul_`, round it to the 16-bit format first. A
sum with `alpha` in 16 bits is two functions: the vector body fuses in fp32, the last elements round the product to 16
bits. The square root in fp32 is not correctly rounded, only within one ulp.

Inputs are bit patterns. A structured set meets itself in every pair (or triple): both signs of zero, subnormal and
boundary significands in exponents at both ends, around one and in between, infinities and NaN. Random inputs are half
uniform bit patterns and half numbers whose exponents are close, because sums of uniform bit patterns are mostly one of
their operands; random triples are half of them near a cancellation of a * b with c, where a fused product shows.

Every output is compared bit for bit. Each chunk of inputs runs whole; the first one also with a stride and in pieces of
seven, because the vectorised body, the strided loop and the scalar tail of a kernel are three pieces of code. Each row
also runs its control, a machine that it is not: a comparison that cannot tell the two apart is an ERROR, not an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradproof.extras.conformance.machine import (
    SAMPLE,
    Bits,
    Machine,
    Mask,
    Program,
    decode,
    disagree,
    encode,
    explain,
    known,
    run,
)
from gradproof.extras.conformance.report import (
    BLIND,
    ERROR,
    HOLDS,
    NOT_RUN,
    REFUTED,
    Fact,
    KernelResult,
    RowClaim,
    attempted,
    hexadecimal,
)

CHUNK = 100_003  # odd, so that the scalar tail of a vectorised kernel runs too
EXPONENTS_FROM_ONE = (-2, -1, 0, 1, 2)


def all_patterns(name: str) -> Bits:
    """Every bit pattern of a 16-bit format. Raises ValueError for a wider one."""
    if known(name).bits > 16:
        raise ValueError(f"{name} has too many bit patterns to run them all")
    return np.arange(2 ** known(name).bits, dtype=np.uint32)


def structured(name: str, few: bool = False) -> Bits:
    """Special, boundary and ordinary numbers of a format; `few` for triples."""
    f = known(name)
    top = 2 ** (f.bits - f.p) - 1
    far = {0, 1, 2, f.p, f.p + 1, 2 * f.p, top - 2, top - 1, top}
    near = {f.emax + k for k in (*EXPONENTS_FROM_ONE, -f.p - 1, -f.p, 1 - f.p, -f.emax // 2, f.emax // 2)}
    half, ones = 2 ** (f.p - 2), 2 ** (f.p - 1) - 1
    significands = (0, 1, ones) if few else (0, 1, 2, 3, half - 1, half, half + 1, ones - 1, ones)
    if few:
        far, near = {0, 1, top - 1, top}, {f.emax, f.emax - 1, f.emax - f.p, f.emax // 2}
    fields = sorted(e for e in far | near if 0 <= e <= top)
    patterns = [s << (f.bits - 1) | e << (f.p - 1) | m for s in (0, 1) for e in fields for m in significands]
    return np.array(sorted(set(patterns)), dtype=np.uint32)


def close(name: str, rng: np.random.Generator, count: int, arity: int) -> list[Bits]:
    """Random numbers whose exponents differ by at most p + 2; triples are near c = -a b."""
    f = known(name)
    top = 2 ** (f.bits - f.p) - 1
    base = rng.integers(0, top, count)
    found = []
    for _ in range(arity):
        field = np.clip(base + rng.integers(-f.p - 2, f.p + 3, count), 0, top - 1)
        found.append(_signed(name, rng, field))
    if arity == 3:
        found[1:] = [_signed(name, rng, f.emax + rng.integers(-3, 3, count)) for _ in range(2)]
        minus = encode(-decode(found[1], name) * decode(found[2], name), name)
        found[0] = (minus.astype(np.int64) + rng.integers(-3, 4, count)).astype(np.uint32)
    return found


def _signed(name: str, rng: np.random.Generator, field: npt.NDArray[np.int64]) -> Bits:
    """Numbers of these exponent fields, with random signs and significands."""
    f = known(name)
    sign = rng.integers(0, 2, len(field)) << (f.bits - 1)
    patterns: Bits = (sign | field << (f.p - 1) | rng.integers(0, 2 ** (f.p - 1), len(field))).astype(np.uint32)
    return patterns


def uniform(name: str, rng: np.random.Generator, count: int, arity: int) -> list[Bits]:
    """Random bit patterns, each equally likely."""
    return [rng.integers(0, 2 ** known(name).bits, count, dtype=np.uint64).astype(np.uint32) for _ in range(arity)]


def cases(name: str, arity: int, count: int, seed: int) -> Iterator[list[Bits]]:
    """Chunks of operands: everything structured first (all patterns for one 16-bit operand), then `count` random ones.

    Raises ValueError for an arity other than 1, 2 or 3.
    """
    if arity not in (1, 2, 3):
        raise ValueError(f"operators take one to three tensors, not {arity}")
    if arity == 1 and known(name).bits == 16:
        yield [all_patterns(name)]
        return
    grids = np.meshgrid(*[structured(name, few=arity == 3)] * arity, indexing="ij")  # every pair or triple of the set
    special = [np.ascontiguousarray(grid.ravel()) for grid in grids]
    for start in range(0, len(special[0]), CHUNK):
        yield [s[start : start + CHUNK] for s in special]
    rng = np.random.default_rng([seed, arity, known(name).bits, known(name).p])
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        draw = uniform if (start // CHUNK) % 2 == 0 else close
        if size < CHUNK and start == 0:
            halves = [uniform(name, rng, size // 2, arity), close(name, rng, size - size // 2, arity)]
            yield [np.concatenate(pair) for pair in zip(*halves, strict=True)]
        else:
            yield draw(name, rng, size, arity)


# -- The operators, each with what it is claimed to compute.
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
    """An operator: the call, the name of the program that it is claimed to be, and the machine's habits.

    `habits` holds what differs from plain rounding, for every device; `by_device` what differs on one. `single`: the
    claim is one correct rounding to storage. `control`: habits of a machine that is not this kernel, and that a run
    must tell apart from it; "computes" there replaces the program. `result`: dtype of the result, where it is another.
    `otherwise`: habits of a second machine, by device, that may have computed an element instead. `ulps`: how many
    neighbours away a result may be, by device and dtype; 0 elsewhere.
    """

    name: str
    arity: int
    kernel: Kernel
    computes: str
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

    @property
    def program(self) -> Program:
        """What it is claimed to compute."""
        return PROGRAMS[self.computes]

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
        changes = {k: v for k, v in self.control.items() if k != "computes"}
        machine = _changed(self.machine(dtype, device), changes, dtype)
        return machine, PROGRAMS[self.control.get("computes", self.computes)]


def _changed(base: Machine, changes: Mapping[str, Any], dtype: str) -> Machine:
    """A machine with changed habits; "storage" is the storage format, "other" a scalar's format that is not base's."""
    other = "fp32" if base.scalar != "fp32" else "bf16" if dtype == "fp32" else dtype
    return replace(base, **{k: {"storage": dtype, "other": other}.get(str(v), v) for k, v in changes.items()})


PROGRAMS: Mapping[str, Program] = {
    "add": lambda m, x, s: m.add(x[0], x[1]),
    "sub": lambda m, x, s: m.add(x[0], -x[1]),
    "mul": lambda m, x, s: m.mul(x[0], x[1]),
    "div": lambda m, x, s: m.div(x[0], x[1]),
    "mul scalar": lambda m, x, s: m.mul(x[0], m.constant(s)),
    "div scalar": lambda m, x, s: m.div_scalar(x[0], s),
    "add scalar": lambda m, x, s: m.add(x[0], m.constant(s)),
    "add alpha": lambda m, x, s: m.muladd(m.constant(s), x[1], x[0]),
    "sqrt": lambda m, x, s: m.sqrt(x[0]),
    "far sqrt": lambda m, x, s: m.mul(m.sqrt(x[0]), np.array([SLACK])),
    "reciprocal": lambda m, x, s: m.div(np.ones(1), x[0]),
    "convert": lambda m, x, s: x[0],
    "addcmul": lambda m, x, s: m.muladd(m.mul(m.constant(s), x[1]), x[2], x[0]),
    "addcdiv": lambda m, x, s: m.add(x[0], m.div(m.mul(m.constant(s), x[1]), x[2])),
}


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
    Operator("add_(tensor)", 2, lambda x, s: x[0].clone().add_(x[1]), "add", NARROW),
    Operator("sub(tensor)", 2, lambda x, s: x[0] - x[1], "sub", NARROW),
    Operator("mul(tensor)", 2, lambda x, s: x[0] * x[1], "mul", NARROW),
    Operator("div(tensor)", 2, lambda x, s: x[0] / x[1], "div", NARROW, single=False),
    Operator("add(scalar)", 1, lambda x, s: x[0] + s, "add scalar", COARSE, SCALARS, single=False,
             by_device=STORED),
    Operator("mul(scalar)", 1, lambda x, s: x[0] * s, "mul scalar", COARSE, SCALARS, single=False),
    Operator(
        "div(scalar)", 1, lambda x, s: x[0].clone().div_(s), "div scalar", COARSE, SCALARS, single=False,
        by_device={"cuda": {"reciprocal": True}},
    ),
    Operator(
        "add(tensor, alpha)", 2, lambda x, s: torch.add(x[0], x[1], alpha=s), "add alpha", NARROW, (0.7,),
        single=False, habits={"contract": True}, dtypes=("fp32",),
    ),
    Operator(
        "add(tensor, alpha)", 2, lambda x, s: torch.add(x[0], x[1], alpha=s), "add alpha", NARROW, (0.7,),
        single=False, habits={"contract": True}, by_device=STORED, dtypes=("fp16", "bf16"),
        otherwise={"cpu": {"contract": False, "work": "storage"}},
    ),
    Operator("sqrt", 1, lambda x, s: x[0].sqrt(), "sqrt", {"computes": "far sqrt"}, dtypes=("fp32",),
             ulps={("cpu", "fp32"): 1}),
    Operator("sqrt", 1, lambda x, s: x[0].sqrt(), "sqrt", NARROW, dtypes=("fp16", "bf16")),
    Operator("reciprocal", 1, lambda x, s: x[0].reciprocal(), "reciprocal", NARROW,
             single=False),
    Operator("to(fp16)", 1, lambda x, s: x[0].to(torch.float16), "convert", NARROW, dtypes=("fp32",), result="fp16"),
    Operator("to(bf16)", 1, lambda x, s: x[0].to(torch.bfloat16), "convert", NARROW, dtypes=("fp32",), result="bf16"),
    Operator("_foreach_add_(tensors)", 2, _foreach("_foreach_add_"), "add", NARROW),
    Operator("_foreach_mul_(tensors)", 2, _foreach("_foreach_mul_"), "mul", NARROW),
    Operator("_foreach_mul_(scalar)", 1, _foreach("_foreach_mul_"), "mul scalar", COARSE, SCALARS, single=False,
             by_device=STORED),
    Operator("_foreach_mul(scalar)", 1, lambda x, s: torch._foreach_mul([x[0]], s)[0], "mul scalar", COARSE, SCALARS,
             single=False),
    Operator("_foreach_div_(scalar)", 1, _foreach("_foreach_div_"), "div scalar", COARSE, SCALARS, single=False),
    Operator("_foreach_div_(tensors)", 2, _foreach("_foreach_div_"), "div", NARROW, single=False),
    Operator(
        "addcmul", 3, lambda x, s: torch.addcmul(x[0], x[1], x[2], value=s), "addcmul", NARROW,
        (1.0, 0.7), single=False, habits={"contract": True}, devices=("cpu",),
    ),
    Operator(
        "addcdiv", 3, lambda x, s: torch.addcdiv(x[0], x[1], x[2], value=s), "addcdiv", NARROW, (1.0, -0.001),
        single=False, devices=("cpu",),
    ),
)  # fmt: skip


def operator_named(name: str, dtype: str = "fp32") -> Operator:
    """The operator of the table that has a row for a dtype. Raises KeyError."""
    found = [o for o in OPERATORS if o.name == name and dtype in o.dtypes]
    if not found:
        raise KeyError(f"no operator {name!r} with a row for {dtype}")
    return found[0]


# -- Every output against the machine that the operator is claimed to be.
FULL, QUICK = 10**7, 10**5
STRIDED, PIECES = 20_011, 700

Outputs = Iterator[tuple[list[Bits], float, Bits]]


def outputs(op: Operator, dtype: str, device: str, count: int, seed: int) -> Outputs:
    """Operands, scalar and what the kernel returned, chunk by chunk, in all three layouts."""
    for scalar in op.scalars:
        for index, operands in enumerate(cases(dtype, op.arity, max(1, count // len(op.scalars)), seed)):
            tensors = [to_tensor(b, dtype, device) for b in operands]
            yield operands, scalar, to_bits(op.kernel(tensors, scalar))
            if index:
                continue
            apart = [torch.stack([t[:STRIDED]] * 2, 1)[:, 0] for t in tensors]
            yield [b[:STRIDED] for b in operands], scalar, to_bits(op.kernel(apart, scalar))
            step = max(1, len(operands[0]) // PIECES)
            chosen = [b[::step][:PIECES] for b in operands]
            pieces = zip(*(torch.split(to_tensor(b, dtype, device), 7) for b in chosen), strict=True)
            yield chosen, scalar, np.concatenate([to_bits(op.kernel(list(p), scalar)) for p in pieces])


@dataclass(slots=True)
class KernelTally:
    """What a comparison of outputs with one machine has seen so far."""

    cases: int = 0
    off: int = 0
    first: Fact | None = None
    kept: dict[float, tuple[list[list[Bits]], list[Bits]]] = field(default_factory=dict)

    def count(
        self, operands: list[Bits], got: Bits, want: Bits, different: Mask, formats: tuple[str, str], scalar: float
    ) -> None:
        """Add one chunk; `formats` are those of an operand and of a result."""
        self.cases += len(got)
        if not different.any():
            return
        self.off += int(different.sum())
        at = int(np.argmax(different))
        if self.first is None:
            inputs = tuple(hexadecimal(b[at], formats[0]) for b in operands)
            shown = (hexadecimal(got[at], formats[1]), hexadecimal(want[at], formats[1]))
            self.first = Fact(inputs, *shown, note=f"scalar={scalar!r}")
        seen, results = self.kept.setdefault(scalar, ([[] for _ in operands], []))
        if sum(map(len, results)) < 2 * SAMPLE:
            chosen = np.concatenate([np.flatnonzero(different)[:SAMPLE], np.flatnonzero(~different)[:SAMPLE]])
            for store, b in zip(seen, operands, strict=True):
                store.append(b[chosen])
            results.append(got[chosen])

    def names(self, program: Program, machine: Machine) -> tuple[str, ...]:
        """What detection calls the differences; with several scalars, only the names that fit them all."""
        found: list[tuple[str, ...]] = []
        for scalar, (seen, results) in self.kept.items():
            operands = [np.concatenate(parts) for parts in seen]
            found.append(explain(program, machine, operands, np.concatenate(results), scalar))
        common = [n for n in found[0] if all(n in names for names in found)] if found else []
        return tuple(common) or tuple(dict.fromkeys(n for names in found for n in names))


def compare(
    machine: Machine, program: Program, found: Outputs, dtype: str, second: Machine | None = None, ulps: int = 0
) -> KernelTally:
    """Compare outputs with what a machine returns for a program, or the operator's second machine."""
    tally = KernelTally()
    for operands, scalar, got in found:
        want = run(program, machine, operands, scalar)
        different = disagree(got, want, machine.fmt)
        if second is not None and different.any():
            different &= disagree(got, run(program, second, operands, scalar), machine.fmt)
        if ulps and different.any():
            different &= distance(got, want, machine.fmt) > ulps
        tally.count(operands, got, want, different, (dtype, machine.fmt), scalar)
    return tally


def distance(got: Bits, want: Bits, name: str) -> npt.NDArray[np.int64]:
    """How many neighbours of a format lie between two bit patterns; NaN is far from everything."""
    top = 2 ** (known(name).bits - 1)
    places = [np.where(b >= top, top - b.astype(np.int64), b.astype(np.int64)) for b in (got, want)]
    nan = np.isnan(decode(got, name)) != np.isnan(decode(want, name))
    return np.where(nan, np.int64(2**40), np.abs(places[0] - places[1]))


def conform(op: Operator, dtype: str, device: str, count: int = QUICK, seed: int = 0) -> KernelResult:
    """One row: the operator against its claim, `count` random inputs and every structured one; never raises."""
    row = RowClaim(op.name, dtype, device, op.claim(dtype, device))
    if device not in op.devices or dtype not in op.dtypes:
        return row.result(NOT_RUN, reason="no exact claim is made here; see its row with a bound")

    def made() -> KernelResult:
        machine, away = op.machine(dtype, device), op.ulps.get((device, dtype), 0)
        found = outputs(op, dtype, device, count, seed)
        tally = compare(machine, op.program, found, dtype, op.second(dtype, device), away)
        (wrong, program), again = op.wrong(dtype, device), outputs(op, dtype, device, min(count, QUICK), seed)
        caught = compare(wrong, program, again, dtype, ulps=away).off > 0
        result = row.result(
            REFUTED if tally.off else HOLDS, cases=tally.cases, mismatches=tally.off, first=tally.first,
            names=tally.names(op.program, machine), facts=also(op, dtype, device, min(count, QUICK), seed),
        )  # fmt: skip
        return result if caught else replace(result, outcome=ERROR, reason=BLIND)

    return attempted(row, made)


def also(op: Operator, dtype: str, device: str, count: int, seed: int) -> Mapping[str, Any]:
    """How often the kernel differs from operations rounded straight to storage, and from unfused ones."""
    base, facts = op.machine(dtype, device), {}
    rivals = {}
    if op.ulps or (not op.single and dtype != "fp32"):
        rivals[f"differs from operations rounded to {dtype}"] = base if op.ulps else replace(base, work=dtype)
    if base.contract:
        rivals["differs from unfused operations"] = replace(base, contract=False)
    for name, machine in rivals.items():
        tally = compare(machine, op.program, outputs(op, dtype, device, count, seed), dtype)
        facts[name] = f"{tally.off} of {tally.cases}"
    return facts


def all_rows(device: str, count: int = QUICK, seed: int = 0) -> Iterator[KernelResult]:
    """Every elementwise row of a device."""
    return (conform(op, dtype, device, count, seed) for op in OPERATORS for dtype in op.dtypes)
