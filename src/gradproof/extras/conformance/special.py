"""Cancelled and infinite things: what the kernels do at the edges, each with its inputs, against the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.arith.bounds import accumulation_bound, scaling_bound
from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance.accumulation import term_bound
from gradproof.extras.conformance.elementwise import DTYPES, TORCH, to_bits, to_tensor
from gradproof.extras.conformance.machine import FLUSHES, Bits, Machine, Values, decode, encode, known
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    REFUTED,
    Fact,
    Result,
    Row,
    Trial,
    attempted,
    hexadecimal,
    shown,
    value,
)
from gradproof.rounding.edge_cases import SCALES, WINDOWS, smallest_survivor

# -- Whether a sum flushes: sixteen times the smallest subnormal number of a format, which every order adds up exactly.
COUNT = 16

Total = Callable[[Tensor], Tensor]


def added(total: Total, dtype: str, device: str) -> tuple[Bits, Bits]:
    """The sixteen terms, and the bit pattern that a sum of them gives."""
    terms = np.ones(COUNT, dtype=np.uint32)
    return terms, to_bits(total(to_tensor(terms, dtype, device)))


def named(total: Total, dtype: str, device: str, want: int = COUNT) -> tuple[str, ...]:
    """FTZ by name, unless the sum is `want` smallest subnormals (a mean is one of them)."""
    return () if int(added(total, dtype, device)[1][0]) == want else (FLUSHES,)


def trial(total: Total, dtype: str, device: str) -> Trial:
    """The same as a trial whose bound is zero."""
    terms, got = added(total, dtype, device)
    width, unit = known(dtype).bits, value(terms, dtype)
    error = abs(value(got, dtype) - COUNT * unit)
    note = f"{COUNT} times the smallest subnormal"
    return Trial(error, Fraction(0), shown(terms, dtype), hexadecimal(got[0], width), hexadecimal(COUNT, width), note)


INF, NAN = math.inf, math.nan
SWAMPED = {"fp16": (1024, 2048, 4096, 8192), "bf16": (128, 256, 512, 1024, 4096), "fp32": (1024, 8192)}


def collect(
    operator: str, dtype: str, device: str, claim: str, facts: Callable[[], Iterator[Fact]], **more: Any
) -> Result:
    """A row of facts: REFUTED by the first that differs; never raises."""
    row = Row(operator, dtype, device, claim)

    def judged() -> Result:
        made = list(facts())
        off = [f for f in made if f.got != f.want]
        told = {f"{f.note} {' '.join(f.inputs)}".strip(): f.got for f in made[:40]}
        outcome, reason = (REFUTED if off else HOLDS, "") if made else (ERROR, "no fact was found")
        return row.result(
            outcome, cases=len(made), mismatches=len(off), first=off[0] if off else None, facts={**told, **more},
            reason=reason,
        )  # fmt: skip

    return attempted(row, judged)


def texts(bits: Bits, name: str) -> tuple[str, ...]:
    """Bit patterns as text; NaN as "nan", since its payload is not claimed."""
    values = decode(bits, name)
    return tuple("nan" if np.isnan(v) else hexadecimal(b, known(name).bits) for b, v in zip(bits, values, strict=True))


def summed(terms: Sequence[float], dtype: str, device: str) -> tuple[Bits, Bits]:
    """A buffer of zeros after `terms` were added in turn, on the device and in the model."""
    bits = encode(np.array(terms, dtype=np.float64), dtype)
    buffer, machine, total = (
        torch.zeros(1, dtype=TORCH[dtype], device=device),
        Machine(dtype, dtype, dtype),
        np.zeros(1),
    )
    for i, v in enumerate(decode(bits, dtype)):
        buffer.add_(to_tensor(bits[i : i + 1], dtype, device))
        total = machine.add(total, np.array([v]))
    return to_bits(buffer), encode(total, dtype)


def edges(dtype: str) -> dict[str, list[list[float]]]:
    """Sequences of terms by what they show."""
    f = FORMATS[dtype]
    big, tiny, normal, u = float(f.largest), float(f.tiny), 2.0**f.emin, float(f.u)
    half = float(f.spacing(f.largest) / 2)
    return {
        "overflow": [[big, half], [big, half * (1 - 2 * u)], [big, big], [-big, -big], [big, big, -big]],
        "infinity and NaN": [[INF, 1.0], [INF, -INF], [1.0, NAN, 1.0], [NAN], [-INF, big]],
        "subnormal": [[tiny], [tiny, tiny], [tiny, -tiny], [normal, -tiny], [normal - tiny, tiny], [-normal, tiny]],
        "signed zero": [[-0.0], [-0.0, -0.0], [0.0, -0.0], [-tiny, tiny], [tiny, -0.0]],
        "cancellation": [[0.1, -0.1], [1.0, u, -1.0], [1.0, 1.5 * u, -1.0], [u, 1.0, -1.0], [1.0, -1.0, u]],
    }


def edge_rows(device: str) -> list[Result]:
    """Accumulations at the edges, bit for bit."""

    def facts(dtype: str, name: str) -> Iterator[Fact]:
        for terms in edges(dtype)[name]:
            got, want = summed(terms, dtype, device)
            inputs = texts(encode(np.array(terms), dtype), dtype)
            yield Fact(inputs, texts(got, dtype)[0], texts(want, dtype)[0])

    rows = [
        collect(f"buf.add_: {name}", dtype, device, "single rounding", lambda d=dtype, n=name: facts(d, n))  # type: ignore[misc]
        for dtype in DTYPES
        for name in edges(dtype)
    ]
    add = torch.Tensor.add
    return [replace(r, names=named(lambda x: add(x, 0), r.dtype, device, 1)) if r.mismatches else r for r in rows]


def negative_zero_in_grad(device: str) -> Result:
    """A first gradient of -0.0 keeps its sign in `.grad`, where it is stored, but not in a buffer of zeros."""

    def facts() -> Iterator[Fact]:
        zero, minus = encode(np.array([0.0]), "fp32"), encode(np.array([-0.0]), "fp32")
        w = torch.ones(1, device=device, requires_grad=True)
        (w * to_tensor(minus, "fp32", device)).sum().backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        yield Fact(texts(minus, "fp32"), texts(to_bits(w.grad), "fp32")[0], texts(minus, "fp32")[0], "first backward")
        got, want = summed([-0.0], "fp32", device)
        yield Fact(texts(minus, "fp32"), texts(got, "fp32")[0], texts(want, "fp32")[0], "zeros.add_")
        assert texts(want, "fp32") == texts(zero, "fp32")

    return collect("-0.0 in .grad", "fp32", device, "stored, not added to zero", facts)


def swamping(device: str, counts: dict[str, tuple[int, ...]] | None = None) -> list[Result]:
    """All gradients one, divided by N: the mean is 1, the buffer stops where the sum rounds back to itself."""

    def facts(dtype: str, many: tuple[int, ...]) -> Iterator[Fact]:
        for n in many:
            got, want = summed([1.0 / n] * n, dtype, device)
            yield Fact((f"N={n}",), f"{decode(got, dtype)[0]:g}", f"{decode(want, dtype)[0]:g}", "mean of ones")

    rows = (counts or SWAMPED).items()
    return [
        collect("swamping, all ones", d, device, "single rounding", lambda d=d, m=m: facts(d, m))  # type: ignore[misc]
        for d, m in rows
    ]


def survival(device: str, threshold: Callable[[int, int], tuple[Fraction, bool]] = smallest_survivor) -> Result:
    """The closed form at its threshold and one fp32 neighbour to each side, replayed."""

    def facts() -> Iterator[Fact]:
        for scale in SCALES:
            for n in WINDOWS:
                g, inclusive = threshold(scale, n)
                at = encode(np.array([float(g)]), "fp32")
                for step, survives in ((-1, False), (0, inclusive), (1, True)):
                    bits = (at.astype(np.int64) + step).astype(np.uint32)
                    h = (to_tensor(bits, "fp32", device) * scale).to(torch.float16)
                    buffer = torch.zeros(1, dtype=torch.float16, device=device).add_(h / n)
                    note = f"S={scale} N={n} threshold {'+' if step > 0 else ''}{step} ulp"
                    yield Fact(texts(bits, "fp32"), str(bool(buffer.item() != 0)), str(survives), note)

    thresholds = {f"S={s} N={n}": str(threshold(s, n)[0]) for s in SCALES for n in WINDOWS}
    return collect("smallest survivor", "fp16", device, "closed form", facts, thresholds=thresholds)


def orders(device: str, n: int, dtype: str, elements: int = 2000, seed: int = 0) -> Result:
    """Division before against division after the accumulation, in one dtype, on uniform gradients.

    For N a power of two both give the same bits, because here |g| >= N 2^emin, so that no quotient is subnormal; for
    other N both stay within their bounds, and the facts say what each cost.
    """

    def facts() -> Iterator[Fact]:
        rng = np.random.default_rng([seed, n])
        g = rng.uniform(-1, 1, n * elements)
        least = n * 2.0 ** FORMATS[dtype].emin
        bits = encode(np.where(np.abs(g) < least, least, g), dtype).reshape(n, elements)
        before, after = both_orders(bits, dtype, device)
        if n & (n - 1) == 0:
            for i in range(elements):
                column = texts(bits[:, i], dtype)[:8]
                yield Fact(
                    column, texts(before[i : i + 1], dtype)[0], texts(after[i : i + 1], dtype)[0], f"element {i}"
                )
            return
        limits = order_bounds(dtype, n)
        for name, got, limit in (("before", before, limits[0]), ("after", after, limits[1])):
            error = max(_errors(bits, got, dtype))
            told[f"largest error, division {name}"] = error
            told[f"bound, division {name}"] = limit
            yield Fact((f"N={n}",), str(error <= limit), "True", f"division {name} within its bound")

    told: dict[str, Any] = {}
    claim = "same bits" if n & (n - 1) == 0 else "each within its bound"
    result = collect(f"division order, N={n}", dtype, device, claim, facts)
    facts_kept = {**result.facts, **told} if told else {"elements": elements}
    return Result(result.operator, dtype, device, claim, result.outcome, result.cases, result.mismatches,
                  result.first, facts=facts_kept, reason=result.reason)  # fmt: skip


def both_orders(bits: Bits, dtype: str, device: str) -> tuple[Bits, Bits]:
    """Buffers of gradients of shape (n, elements), divided by n one by one, and divided by n at the end."""
    n, elements = bits.shape
    first, last = (torch.zeros(elements, dtype=TORCH[dtype], device=device) for _ in range(2))
    for row in bits:
        g = to_tensor(row, dtype, device)
        first.add_(g / n)
        last.add_(g)
    last.div_(n)
    return to_bits(first), to_bits(last)


def order_bounds(dtype: str, n: int) -> tuple[Fraction, Fraction]:
    """Bounds for |g_i| <= 1 with the division before, and after, the accumulation."""
    f = FORMATS[dtype]
    before = accumulation_bound(dtype, n, term_bound(dtype, n, Fraction(1))) + scaling_bound(dtype, n, Fraction(1))
    summing = accumulation_bound(dtype, n, Fraction(n))
    return before, summing / n + max(f.half_ulp((n + summing) / n), f.tiny / 2)


def _errors(bits: Bits, got: Bits, dtype: str) -> Iterator[Fraction]:
    columns: Values = decode(bits, dtype)
    for i, v in enumerate(decode(got, dtype)):
        exact = sum((Fraction(float(x)) for x in columns[:, i]), Fraction(0)) / len(columns)
        yield abs(Fraction(float(v)) - exact)


def scaler_skips(device: str) -> Result:
    """GradScaler: a step with an infinite or NaN gradient changes no parameter and halves the scale; the next steps."""

    def facts() -> Iterator[Fact]:
        for name, factor in (("overflow to inf", 3e38), ("NaN", NAN), ("finite", 2.0**-10)):
            w = torch.ones(2, device=device, requires_grad=True)
            optimizer = torch.optim.SGD([w], lr=0.5)
            scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=1000)
            loss = (w * torch.tensor([factor, 1.0], device=device)).sum()
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            skipped = name != "finite"
            want = [1.0, 1.0] if skipped else [1 - 0.5 * factor, 0.5]
            yield Fact((name,), str(w.detach().cpu().tolist()), str(want), "weights after step")
            yield Fact((name,), str(scaler.get_scale()), str(512.0 if skipped else 1024.0), "scale after update")

    return collect("GradScaler", "fp32", device, "skips exactly the steps that are not finite", facts)


def rows(device: str, full: bool = False) -> list[Result]:
    """Every fact of a device."""
    few = None if full else {"fp16": (2048, 4096), "bf16": (256, 512), "fp32": (1024,)}
    found = [*edge_rows(device), negative_zero_in_grad(device), *swamping(device, few)]
    found += [survival(device), scaler_skips(device)]
    for dtype in DTYPES:
        found += [orders(device, n, dtype, 20_000 if full else 500) for n in (2, 3, 5, 6, 7, 8)]
    return found
