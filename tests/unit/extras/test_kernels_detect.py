"""Artificial kernels, each with one defect, and the names that detection gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from gradproof.extras.conformance.elementwise import cases, operator_named, to_bits, to_tensor
from gradproof.extras.conformance.machine import (
    UNEXPLAINED,
    Bits,
    Dot,
    Machine,
    Program,
    Values,
    decode,
    encode,
    explain,
    flush,
    odd_sum,
    probe,
    round_to,
)

FMA = "FMA contraction"


def add(m: Machine, x: Sequence[Values], s: float) -> Values:
    """fl(a + b)."""
    return m.add(x[0], x[1])


def times(m: Machine, x: Sequence[Values], s: float) -> Values:
    """fl(a b)."""
    return m.mul(x[0], x[1])


def fused(m: Machine, x: Sequence[Values], s: float) -> Values:
    """a + b c, in one rounding or in two."""
    return m.muladd(x[1], x[2], x[0])


def plain(name: str, **habits: bool) -> Machine:
    """A machine that rounds each operation to its storage format."""
    return Machine(name, name, name, **habits)


def inputs(name: str, arity: int) -> list[Bits]:
    """Structured and random bit patterns, one array an operand."""
    chunks = list(cases(name, arity, 20_000, 1))
    return [np.concatenate(c) for c in zip(*chunks, strict=True)]


def short(names: Sequence[str]) -> tuple[str, ...]:
    """Each name before its colon, with the formats and the bits behind it."""
    parts = [name.partition(":") for name in names]
    return tuple(" ".join([head, *re.findall(r"\b(?:fp|bf)\d+|\d+(?= bits)", rest)]) for head, _, rest in parts)


def named(program: Program, base: Machine, bits: list[Bits], got: Bits, scalar: float = 1.0) -> tuple[str, ...]:
    """The short names of an artificial kernel, which must not be the claimed one."""
    found = explain(program, base, bits, got, scalar)
    assert found != ()
    return short(found)


def values(bits: list[Bits], name: str) -> list[Values]:
    """Operands as numbers."""
    return [decode(b, name) for b in bits]


def test_a_kernel_that_conforms_has_no_name() -> None:
    bits = inputs("fp32", 2)
    tensors = [to_tensor(b, "fp32", "cpu") for b in bits]
    assert explain(add, plain("fp32"), bits, to_bits(tensors[0] + tensors[1])) == ()


def test_a_flushing_cpu_is_named() -> None:
    """The real kernel under the real flush mode, which on x86 flushes inputs and results."""
    bits = [b[:4000] for b in inputs("fp32", 2)]
    tensors = [to_tensor(b, "fp32", "cpu") for b in bits]
    assert torch.set_flush_denormal(True)
    try:
        got = to_bits(tensors[0] * tensors[1])
    finally:
        torch.set_flush_denormal(False)
    assert named(times, plain("fp32"), bits, got) == ("FTZ and DAZ",)


def test_flushed_results_and_flushed_inputs_are_told_apart() -> None:
    bits = inputs("fp32", 2)
    x, y = values(bits, "fp32")
    with np.errstate(all="ignore"):
        tiny = np.abs(x * y) < 2.0**-126 - 2.0**-151
        results = encode(np.where(tiny, np.copysign(0.0, x * y), x * y), "fp32")
        read = encode(flush(x, "fp32") * flush(y, "fp32"), "fp32")
    assert named(times, plain("fp32"), bits, results) == ("FTZ",)
    assert named(times, plain("fp32"), bits, read) == ("DAZ",)


def test_a_contracted_product_is_named() -> None:
    bits = inputs("fp32", 3)
    a, b, c = values(bits, "fp32")
    with np.errstate(all="ignore"):
        got = encode(odd_sum(b * c, a), "fp32")
        rounded = encode(odd_sum(round_to(b * c, "fp32"), a), "fp32")
    assert named(fused, plain("fp32"), bits, got) == (FMA,)
    assert named(fused, plain("fp32", contract=True), bits, rounded) == (f"no {FMA}",)


def test_the_cpu_contracts_addcmul() -> None:
    """The real kernel: an unfused claim about it is refuted, by name."""
    op, bits = operator_named("addcmul"), inputs("fp32", 3)
    got = to_bits(op.kernel([to_tensor(b, "fp32", "cpu") for b in bits], 1.0))
    base = op.machine("fp32", "cpu")
    assert explain(op.program, base, bits, got) == ()
    assert FMA in named(op.program, plain("fp32"), bits, got)


def test_masked_mantissas_are_named_tf32() -> None:
    bits = inputs("fp32", 2)
    tensors = [to_tensor((b + 0x0FFF + ((b >> 13) & 1)) & np.uint32(0xFFFFE000), "fp32", "cpu") for b in bits]
    finite = np.all([np.isfinite(v) for v in values(bits, "fp32")], axis=0)
    got = to_bits(tensors[0] * tensors[1])[finite]
    assert named(times, plain("fp32"), [b[finite] for b in bits], got) == ("TF32 11",)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_wide_intermediate_is_named(name: str) -> None:
    bits = inputs(name, 3)
    a, b, c = (to_tensor(x, name, "cpu") for x in bits)
    got = to_bits((a.float() + b.float() * c.float()).to(a.dtype))
    assert "higher precision intermediate fp32" in named(fused, plain(name), bits, got)
    narrow = to_bits(a + b * c)
    base = Machine(name, "fp32", "fp32")
    assert named(fused, base, bits, narrow) == (f"reduced-precision intermediate {name}",)


def test_double_rounding_is_named() -> None:
    """(1 + 2^-10) + 2^-11 (1 - 2^-20) is below a midpoint of fp16; fp32 rounds it to the midpoint first."""
    ulp = 2.0**-10
    columns = [[1 + ulp, 1.0, 3.0], [1 + ulp, 1 + ulp, 1.0], [ulp / 2 * (1 - ulp), ulp, 2.0]]
    bits = [encode(np.array(c), "fp16") for c in columns]
    machine = Machine("fp16", "fp32", "fp32", contract=True)
    got = machine.leave(fused(machine, values(bits, "fp16"), 1.0))
    assert "double rounding fp32 fp16" in named(fused, plain("fp16", contract=True), bits, got)


def test_scalars_and_reciprocals_are_named() -> None:
    op, bits = operator_named("div(scalar)", "fp32"), inputs("fp32", 1)
    x = to_tensor(bits[0], "fp32", "cpu")
    base = op.machine("fp32", "cpu")
    product = to_bits(x * float(torch.tensor(1.0) / torch.tensor(7.0)))
    assert named(op.program, base, bits, product, 7.0) == ("reciprocal",)
    half, many = operator_named("mul(scalar)", "fp16"), inputs("fp16", 1)
    y = to_tensor(many[0], "fp16", "cpu")
    stored = to_bits(y * torch.tensor(1 / 3, dtype=torch.float16))
    machine = half.machine("fp16", "cpu")
    assert any("scalar" in name for name in named(half.program, machine, many, stored, 1 / 3))


def test_truncation_is_named() -> None:
    bits = inputs("fp16", 2)
    x, y = values(bits, "fp16")
    with np.errstate(all="ignore"):
        got = encode(odd_sum(x, y), "fp16", toward_zero=True)
    assert named(add, plain("fp16"), bits, got) == ("truncation",)


def test_what_nothing_explains_is_said_to_be_unexplained() -> None:
    bits = inputs("fp16", 2)
    x, y = values(bits, "fp16")
    got = encode(odd_sum(x, y), "fp16") ^ np.uint32(1)
    assert named(add, plain("fp16"), bits, got) == short([UNEXPLAINED])


def sequential(work: str, factors: str = "", toward_zero: bool = False) -> Callable[[str], Dot]:
    """A dot product, term after term, with partial sums in `work`."""

    def of(storage: str) -> Dot:
        machine = Machine(storage, work, work, factors=factors, toward_zero=toward_zero)

        def dot(x: Values, y: Values) -> Values:
            total = np.zeros(len(x))
            for i in range(x.shape[1]):
                total = machine.settle(odd_sum(machine.product(x[:, i], y[:, i]), total))
            return decode(encode(total, storage), storage)

        return dot

    return of


PROBED = [
    ("fp32", sequential("fp32"), ()),
    ("fp16", sequential("fp32"), ()),
    ("fp16", sequential("fp16"), ("reduced-precision accumulation 11",)),
    ("bf16", sequential("bf16"), ("reduced-precision accumulation 8",)),
    ("fp32", sequential("fp32", factors="tf32"), ("TF32 11",)),
    ("fp32", sequential("fp32", toward_zero=True), ("truncation",)),
]


@pytest.mark.parametrize(("storage", "kernel", "names"), PROBED)
def test_dot_products_are_asked(storage: str, kernel: Callable[[str], Dot], names: tuple[str, ...]) -> None:
    found = short(probe(kernel(storage), storage, length=12).names(storage))
    if storage == "fp32" and names and names[0].startswith("TF32"):
        found = tuple(n for n in found if not n.startswith("FTZ"))
    assert found == names


def test_a_split_reduction_is_found() -> None:
    """Four partial sums in fp32, each rounded to bf16 before they are added: split-K with reduced precision."""

    def dot(x: Values, y: Values) -> Values:
        parts = [(x[:, i::4] * y[:, i::4]).sum(1) for i in range(4)]
        total = np.zeros(len(x))
        for part in parts:
            total = round_to(total + round_to(part, "bf16"), "bf16")
        return total

    assert short(probe(dot, "bf16", length=16).names("bf16")) == ("reduced-precision accumulation 8",)


def test_wide_and_flushing_accumulators_are_found() -> None:
    wide = probe(lambda x, y: round_to((x * y).sum(1), "fp32"), "fp32", length=12)
    assert wide.accumulator_bits > 50
    assert "higher precision intermediate" in wide.names("fp32")[0]
    flushing = probe(lambda x, y: flush((flush(x, "fp16") * y).sum(1), "fp16"), "fp16", length=12)
    assert "FTZ" in short(flushing.names("fp16"))
