"""Matrix products under every flag, scattered sums, and what the kernels do at the edges, against bounds and the model.

Write S = sum |a_i b_i| over the k terms of one element. Without TF32 an fp32 product is any order of fused or unfused
additions: k u S / (1 - k u), u = 2^-24. Tensor cores multiply 16-bit factors exactly and add with truncation, so u is
2^-23 there (Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021; Valpey et al., NFM 2025); TF32 keeps 11
bits of each factor, rounded or cut: 2 * 2^-10 S + 2^-20 S more. Reduced-precision reductions may round each partial
sum to 16 bits: k u16 S / (1 - k u16), where that is finite. The result is rounded to storage once more. Each element is
compared in float64, a sample in exact rationals.

Sums that are scattered, by index_add_ and scatter_add_. Each place receives n terms |x| <= b, added in storage in
whatever order; the bound is `any_order_bound`. Under torch.use_deterministic_algorithms(True) eight runs must give the
same bits; without it whether they do is a fact.

Cancelled and infinite things are rows of facts, each with its inputs, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.arith.bounds import accumulation_bound, accumulation_witness, scaling_bound
from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance.accumulation import term_bound
from gradproof.extras.conformance.elementwise import DTYPES, TORCH, to_bits, to_tensor
from gradproof.extras.conformance.machine import (
    FLUSHES,
    Bits,
    Machine,
    Values,
    decode,
    encode,
    exact_dot,
    exact_sum,
    known,
    probe,
)
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    NOT_RUN,
    REFUTED,
    Fact,
    KernelResult,
    KernelTrial,
    RowClaim,
    attempted,
    bounded,
    hexadecimal,
    raised,
    sample,
    shown,
    stored,
    value,
)
from gradproof.rounding.bound import any_order_bound
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


def trial(total: Total, dtype: str, device: str) -> KernelTrial:
    """The same as a trial whose bound is zero."""
    terms, got = added(total, dtype, device)
    error = abs(value(got, dtype) - COUNT * value(terms, dtype))
    note = f"{COUNT} times the smallest subnormal"
    patterns = hexadecimal(got[0], dtype), hexadecimal(COUNT, dtype)
    return KernelTrial(error, Fraction(0), shown(terms, dtype), *patterns, note)


INF, NAN = math.inf, math.nan
SWAMPED = {"fp16": (1024, 2048, 4096, 8192), "bf16": (128, 256, 512, 1024, 4096), "fp32": (1024, 8192)}


def collect(
    operator: str, dtype: str, device: str, claim: str, facts: Callable[[], Iterator[Fact]], **more: Any
) -> KernelResult:
    """A row of facts: REFUTED by the first that differs; never raises."""
    row = RowClaim(operator, dtype, device, claim)

    def judged() -> KernelResult:
        made = list(facts())
        off = [f for f in made if f.got != f.want]
        stated = {f"{f.note} {' '.join(f.inputs)}".strip(): f.got for f in made[:40]}
        outcome, reason = (REFUTED if off else HOLDS, "") if made else (ERROR, "no fact was found")
        return row.result(
            outcome, cases=len(made), mismatches=len(off), first=off[0] if off else None, facts={**stated, **more},
            reason=reason,
        )  # fmt: skip

    return attempted(row, judged)


def texts(bits: Bits, name: str) -> tuple[str, ...]:
    """Bit patterns as text; NaN as "nan", since its payload is not claimed."""
    values = decode(bits, name)
    return tuple("nan" if np.isnan(v) else hexadecimal(b, name) for b, v in zip(bits, values, strict=True))


def summed(terms: Sequence[float], dtype: str, device: str) -> tuple[Bits, Bits]:
    """A buffer of zeros after `terms` were added in turn, on the device and in the model."""
    bits = encode(np.array(terms, dtype=np.float64), dtype)
    buffer = torch.zeros(1, dtype=TORCH[dtype], device=device)
    machine, total = Machine(dtype, dtype, dtype), np.zeros(1)
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


def edge_rows(device: str) -> list[KernelResult]:
    """Accumulations at the edges, bit for bit."""

    def facts(dtype: str, name: str) -> Iterator[Fact]:
        for terms in edges(dtype)[name]:
            got, want = summed(terms, dtype, device)
            inputs = texts(encode(np.array(terms), dtype), dtype)
            yield Fact(inputs, texts(got, dtype)[0], texts(want, dtype)[0])

    made = [
        collect(f"buf.add_: {name}", dtype, device, "single rounding", lambda d=dtype, n=name: facts(d, n))  # type: ignore[misc]
        for dtype in DTYPES
        for name in edges(dtype)
    ]
    add = torch.Tensor.add
    return [replace(r, names=named(lambda x: add(x, 0), r.dtype, device, 1)) if r.mismatches else r for r in made]


def negative_zero_in_grad(device: str) -> KernelResult:
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


def swamping(device: str, counts: dict[str, tuple[int, ...]] | None = None) -> list[KernelResult]:
    """All gradients one, divided by N: the mean is 1, the buffer stops where the sum rounds back to itself."""

    def facts(dtype: str, many: tuple[int, ...]) -> Iterator[Fact]:
        for n in many:
            got, want = summed([1.0 / n] * n, dtype, device)
            yield Fact((f"N={n}",), f"{decode(got, dtype)[0]:g}", f"{decode(want, dtype)[0]:g}", "mean of ones")

    chosen = (counts or SWAMPED).items()
    return [
        collect("swamping, all ones", d, device, "single rounding", lambda d=d, m=m: facts(d, m))  # type: ignore[misc]
        for d, m in chosen
    ]


def survival(device: str, threshold: Callable[[int, int], tuple[Fraction, bool]] = smallest_survivor) -> KernelResult:
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


def orders(device: str, n: int, dtype: str, elements: int = 2000, seed: int = 0) -> KernelResult:
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
            stated[f"largest error, division {name}"] = error
            stated[f"bound, division {name}"] = limit
            yield Fact((f"N={n}",), str(error <= limit), "True", f"division {name} within its bound")

    stated: dict[str, Any] = {}
    claim = "same bits" if n & (n - 1) == 0 else "each within its bound"
    result = collect(f"division order, N={n}", dtype, device, claim, facts)
    return replace(result, facts={**result.facts, **stated} if stated else {"elements": elements})


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


def scaler_skips(device: str) -> KernelResult:
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


def special_rows(device: str, full: bool = False) -> list[KernelResult]:
    """Every fact of a device."""
    few = None if full else {"fp16": (2048, 4096), "bf16": (256, 512), "fp32": (1024,)}
    found = [*edge_rows(device), negative_zero_in_grad(device), *swamping(device, few)]
    found += [survival(device), scaler_skips(device)]
    for dtype in DTYPES:
        found += [orders(device, n, dtype, 20_000 if full else 500) for n in (2, 3, 5, 6, 7, 8)]
    return found


# -- Matrix products under every flag.
SHAPES = ((5, 2, 7), (33, 257, 17), (64, 4096, 64), (1, 8192, 1))
QUICK_SHAPES = ((5, 2, 7), (33, 257, 17), (8, 2048, 8))
EXACT = 24
KINDS = ("uniform", "positive", "wide")


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings of torch: TF32 in fp32 products, 16-bit partial sums, deterministic algorithms."""

    tf32: bool = False
    reduced: bool = False
    deterministic: bool = False

    def stated(self, dtype: str) -> dict[str, Any]:
        """The flags that matter for a dtype, by name."""
        own = {"allow_tf32": self.tf32} if dtype == "fp32" else {"reduced_precision_reduction": self.reduced}
        return {**own, "deterministic": self.deterministic}


@contextmanager
def applied(flags: Flags) -> Iterator[None]:
    """torch under these flags; what was set before comes back."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(matmul, n) for n in names]
    was = torch.are_deterministic_algorithms_enabled()
    try:
        for n, wanted in zip(names, (flags.tf32, flags.reduced, flags.reduced), strict=True):
            setattr(matmul, n, wanted)
        torch.use_deterministic_algorithms(flags.deterministic)
        yield
    finally:
        for n, old in zip(names, before, strict=True):
            setattr(matmul, n, old)
        torch.use_deterministic_algorithms(was)


def relative(dtype: str, device: str, flags: Flags, k: int) -> Fraction:
    """The factor c with |error before the last rounding| <= c S for k terms. Raises ValueError where none is finite."""
    u = FORMATS["fp32"].u
    if device == "cuda" and (dtype != "fp32" or flags.tf32):
        u = 2 * u
    extra = (
        Fraction(1, 2**9) + Fraction(1, 2**20) if dtype == "fp32" and flags.tf32 and device == "cuda" else Fraction(0)
    )
    if dtype != "fp32" and flags.reduced and device == "cuda":
        u = FORMATS[dtype].u
    if k * u >= 1:
        raise ValueError(f"{k} terms have no finite bound when partial sums keep {dtype}")
    return k * u / (1 - k * u) * (1 + extra) + extra


def product(a: Bits, b: Bits, shape: tuple[int, int, int], dtype: str, device: str) -> Bits:
    """Bit patterns of an (m, k) by (k, n) product."""
    m, k, n = shape
    left, right = to_tensor(a, dtype, device).view(m, k), to_tensor(b, dtype, device).view(k, n)
    return to_bits(left @ right)


def trials(dtype: str, device: str, flags: Flags, full: bool, seed: int) -> Iterator[KernelTrial]:
    """Every shape and kind: one trial for all elements in float64, and one for each of a sample in rationals."""
    with applied(flags):
        for shape in SHAPES if full else QUICK_SHAPES:
            m, k, n = shape
            if k * FORMATS[dtype].u >= 1 and dtype != "fp32" and flags.reduced and device == "cuda":
                shape = (m, k, n) = (m, int(1 / FORMATS[dtype].u) // 2, n)
            factor = relative(dtype, device, flags, k)
            for kind in KINDS:
                rng = np.random.default_rng([seed, *shape, KINDS.index(kind)])
                a, b = sample(kind, dtype, m * k, rng), sample(kind, dtype, k * n, rng)
                got = product(a, b, shape, dtype, device)
                yield from _compare(a.reshape(m, k), b.reshape(k, n), got, factor, dtype, kind, rng)


def _compare(
    a: Bits, b: Bits, got: Bits, factor: Fraction, dtype: str, kind: str, rng: np.random.Generator
) -> Iterator[KernelTrial]:
    x, y, f, (m, k), n = decode(a, dtype), decode(b, dtype), FORMATS[dtype], a.shape, b.shape[1]
    reference, total = x @ y, np.abs(x) @ np.abs(y)
    bound = total * float(factor) * (1 + 2.0**-40) + 2 * k * 2.0**-53 * total
    if dtype != "fp32":
        bound += np.maximum(float(f.u) * (np.abs(reference) + bound), float(f.tiny) / 2)
    error = np.abs(decode(got, dtype).reshape(m, n) - reference)
    beyond = np.argwhere(~(error <= bound))
    worst = np.argsort(-(error / np.maximum(bound, 2.0**-200)).ravel())[: EXACT // 2]
    note = f"{kind}, {m}x{k} by {k}x{n}"
    at = tuple(beyond[0]) if len(beyond) else (0, 0)
    yield KernelTrial(Fraction(len(beyond)), Fraction(0), (*shown(a[at[0]], dtype), *shown(b[:, at[1]], dtype)),
                hexadecimal(got[at[0] * n + at[1]], dtype), f"{reference[at]:.9g}",
                f"{note}, every element in float64, at {at[0]}, {at[1]}", m * n)  # fmt: skip
    for place in {*map(int, worst), *map(int, rng.integers(0, m * n, EXACT // 2))}:
        row, column = divmod(place, n)
        left, right = np.ascontiguousarray(a[row]), np.ascontiguousarray(b[:, column])
        mask = np.uint32(2 ** (f.bits - 1) - 1)
        exact, size = exact_dot(left, right, dtype), exact_dot(left & mask, right & mask, dtype)
        value = Fraction(float(decode(got[place : place + 1], dtype)[0]))
        patterns = (*shown(left, dtype), *shown(right, dtype))
        yield KernelTrial(abs(value - exact), stored(dtype, exact, factor * size), patterns,
                    hexadecimal(got[place], dtype), f"{float(exact):.9g}", f"{note}, at {row}, {column}")  # fmt: skip


def asked(dtype: str, device: str, flags: Flags) -> tuple[str, ...]:
    """What designed inputs say about the product under these flags, at a size where split reductions are chosen."""
    length = 512 if device == "cuda" else 48

    def dot(x: Values, y: Values) -> Values:
        found = []
        for start in range(0, len(x), 256):
            a, b = x[start : start + 256], y[start : start + 256]
            rows = len(a)
            bits = product(
                encode(a.ravel(), dtype), encode(b.T.ravel(), dtype), (rows, x.shape[1], rows), dtype, device
            )
            found.append(np.diag(decode(bits, dtype).reshape(rows, rows)))
        return np.concatenate(found)

    with applied(flags):
        return probe(dot, dtype, length=length).names(dtype)


def settings(dtype: str) -> list[Flags]:
    """Every combination of the flags that matter for a dtype."""
    own = "tf32" if dtype == "fp32" else "reduced"
    return [Flags(**{own: on}, deterministic=d) for on in (False, True) for d in (False, True)]


def rows(device: str, full: bool = False, seed: int = 0) -> Iterator[KernelResult]:
    """The product on a device under default flags, and on CUDA under every flag; NOT_RUN without CUDA."""
    for dtype in DTYPES:
        if device == "cpu":
            yield _row(RowClaim("matmul", dtype, "cpu", "bound: any order in fp32, rounded once"), Flags(), full, seed)
        for flags in settings(dtype):
            row = RowClaim("matmul", dtype, "cuda", "bound: what these flags allow", flags.stated(dtype))
            yield _row(row, flags, full, seed)


def _row(row: RowClaim, flags: Flags, full: bool, seed: int) -> KernelResult:
    dtype, device = row.dtype, row.device

    def made() -> Iterator[KernelTrial]:
        yield from trials(dtype, device, flags, full, seed)
        if not flags.tf32:  # which cuts a subnormal factor
            with applied(flags):
                yield trial(lambda x: (x.unsqueeze(0) @ torch.ones_like(x).unsqueeze(1))[0], dtype, device)

    def judged() -> KernelResult:
        try:
            names = asked(dtype, device, flags)
        except RuntimeError as e:
            return row.result(NOT_RUN, reason=raised(e))
        return bounded(row, made, lambda: names, {"dtype": str(TORCH[dtype])})

    return attempted(row, judged)


# -- Sums that are scattered: within the bound for every order, and repeatable when asked.
SCATTERED = ("uniform", "positive", "ones", "small")
LENGTHS = (1, 2, 3, 7, 64, 250, 1000, 4099)
WITNESSES = (2, 4, 8)
MANY, PLACES, RUNS = 2**16, 5, 8
SCATTER_CLAIM = "bound: any order of additions in storage"

Scatter = Callable[[Tensor, Tensor, Tensor], Tensor]


def _columns(total: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """scatter_add_ of rows, whose index is expanded: another kernel."""
    wide = total.unsqueeze(1).repeat(1, 3)
    return wide.scatter_add_(0, index.unsqueeze(1).expand(-1, 3), torch.stack([x, x, x], 1))[:, 1]


SCATTERS: tuple[tuple[str, Scatter], ...] = (
    ("index_add_ (scattered)", lambda total, index, x: total.index_add_(0, index, x)),
    ("scatter_add_", lambda total, index, x: total.scatter_add_(0, index, x)),
    ("scatter_add_ (rows)", _columns),
)


def scattered(scatter: Scatter, x: Bits, index: Any, places: int, dtype: str, device: str) -> Bits:
    """Bit patterns of `places` sums from zero; `index` (int64, as long as x) says where each term goes."""
    total = torch.zeros(places, dtype=TORCH[dtype], device=device)
    return to_bits(scatter(total, torch.from_numpy(index).to(device), to_tensor(x, dtype, device)))


def inputs(dtype: str, repeats: int, seed: int) -> Iterator[tuple[Bits, Any, int, str]]:
    """Terms, their places, the number of places, and a note; no place receives more than 2^p terms."""
    for kind in SCATTERED:
        for length in LENGTHS:
            for again in range(repeats):
                rng = np.random.default_rng([seed, length, again, SCATTERED.index(kind)])
                places = PLACES * -(-2 * length // 2 ** known(dtype).p)
                index = rng.integers(0, places, length)
                note = f"{kind}, n={length}, repeat={again}, seed={seed}"
                yield sample(kind, dtype, length, rng), index, places, note
    for n in WITNESSES:
        terms = encode(np.array([float(g / n) for g in accumulation_witness(n, dtype)]), dtype)
        yield terms, np.zeros(n, dtype=np.int64), 1, f"the witness, n={n}"


def scatter_trials(scatter: Scatter, dtype: str, device: str, repeats: int, seed: int) -> Iterator[KernelTrial]:
    """The sum in every place against the bound for its terms."""
    for x, index, places, note in inputs(dtype, repeats, seed):
        got = scattered(scatter, x, index, places, dtype, device)
        for place in np.unique(index):
            own = x[index == place]
            reach = Fraction(float(np.abs(decode(own, dtype)).max()))
            bound = any_order_bound(dtype, len(own), reach) if reach else Fraction(0)
            error = abs(value(got[place : place + 1], dtype) - exact_sum(own, dtype))
            pattern = hexadecimal(got[place], dtype)
            stated = f"{note}, place {place}, {len(own)} terms"
            yield KernelTrial(error, bound, shown(own, dtype), pattern, f"within {float(bound):.6g}", stated, len(own))


def repeated(scatter: Scatter, dtype: str, device: str, seed: int) -> KernelTrial:
    """2^16 terms into five places, eight times: the error counts sums whose bits are not those of the first run."""
    rng = np.random.default_rng([seed, MANY])
    x, index = sample("uniform", dtype, MANY, rng), rng.integers(0, PLACES, MANY)
    runs = [scattered(scatter, x, index, PLACES, dtype, device) for _ in range(RUNS)]
    off = [(r, p) for r in range(RUNS) for p in range(PLACES) if runs[r][p] != runs[0][p]]
    run, place = off[0] if off else (0, 0)
    stated = f"{RUNS} runs of {MANY} terms, seed={seed}; run {run}, place {place}"
    return KernelTrial(Fraction(len(off)), Fraction(0), shown(x, dtype), hexadecimal(runs[run][place], dtype),
                 hexadecimal(runs[0][place], dtype), stated, MANY)  # fmt: skip


def scatter_rows(device: str, full: bool = False, seed: int = 0) -> Iterator[KernelResult]:
    """Every scattered sum of a device, with deterministic algorithms off and on."""
    for name, scatter in SCATTERS:
        for dtype in DTYPES:
            yield from (scatter_row(name, scatter, dtype, device, full, seed, on) for on in (False, True))


def scatter_row(name: str, scatter: Scatter, dtype: str, device: str, full: bool, seed: int, on: bool) -> KernelResult:
    """One row, with deterministic algorithms on or off; the setting that was there before comes back. Never raises."""
    claim = SCATTER_CLAIM + (", the same bits in 8 runs" if on else "")
    row = RowClaim(name, dtype, device, claim, {"deterministic": on})

    def one_place(x: Tensor) -> Tensor:
        index = torch.zeros(len(x), dtype=torch.int64, device=device)
        return scatter(torch.zeros(1, dtype=x.dtype, device=device), index, x)

    def judged() -> KernelResult:
        with applied(Flags(deterministic=on)):
            try:
                again = repeated(scatter, dtype, device, seed)
            except RuntimeError as e:
                return row.result(NOT_RUN, reason=raised(e))
            return bounded(
                row,
                lambda: [*scatter_trials(scatter, dtype, device, 10 if full else 1, seed), *([again] if on else [])],
                lambda: named(one_place, dtype, device),
                facts={f"same bits in {RUNS} runs": again.error == 0},
            )

    return attempted(row, judged)
