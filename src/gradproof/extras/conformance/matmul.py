"""Matrix products under every flag that changes how they are computed, and scattered sums, against bounds.

Write S = sum |a_i b_i| over the k terms of one element. Without TF32 an fp32 product is any order of fused or unfused
additions: k u S / (1 - k u), u = 2^-24. Tensor cores multiply 16-bit factors exactly and add with truncation, so u is
2^-23 there (Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021; Valpey et al., NFM 2025); TF32 keeps 11
bits of each factor, rounded or cut: 2 * 2^-10 S + 2^-20 S more. Reduced-precision reductions may round each partial
sum to 16 bits: k u16 S / (1 - k u16), where that is finite. The result is rounded to storage once more. Each element is
compared in float64, a sample in exact rationals.

Sums that are scattered, by index_add_ and scatter_add_. Each place receives n terms |x| <= b, added in storage in
whatever order; the bound is `any_order_bound`. Under torch.use_deterministic_algorithms(True) eight runs must give the
same bits; without it whether they do is a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.arith.bounds import accumulation_witness
from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import special
from gradproof.extras.conformance.elementwise import DTYPES, TORCH, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, Values, decode, encode, exact_dot, exact_sum, known, probe
from gradproof.extras.conformance.reductions import stored
from gradproof.extras.conformance.report import (
    NOT_RUN,
    Result,
    Row,
    Trial,
    attempted,
    bounded,
    hexadecimal,
    raised,
    sample,
    shown,
    value,
)
from gradproof.rounding.bound import any_order_bound

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

    def told(self, dtype: str) -> dict[str, Any]:
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


def trials(dtype: str, device: str, flags: Flags, full: bool, seed: int) -> Iterator[Trial]:
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
) -> Iterator[Trial]:
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
    yield Trial(Fraction(len(beyond)), Fraction(0), (*shown(a[at[0]], dtype), *shown(b[:, at[1]], dtype)),
                hexadecimal(got[at[0] * n + at[1]], known(dtype).bits), f"{reference[at]:.9g}",
                f"{note}, every element in float64, at {at[0]}, {at[1]}", m * n)  # fmt: skip
    for place in {*map(int, worst), *map(int, rng.integers(0, m * n, EXACT // 2))}:
        row, column = divmod(place, n)
        left, right = np.ascontiguousarray(a[row]), np.ascontiguousarray(b[:, column])
        mask = np.uint32(2 ** (f.bits - 1) - 1)
        exact, size = exact_dot(left, right, dtype), exact_dot(left & mask, right & mask, dtype)
        value = Fraction(float(decode(got[place : place + 1], dtype)[0]))
        patterns = (*shown(left, dtype), *shown(right, dtype))
        yield Trial(abs(value - exact), stored(dtype, exact, factor * size), patterns,
                    hexadecimal(got[place], f.bits), f"{float(exact):.9g}", f"{note}, at {row}, {column}")  # fmt: skip


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


def repeatable(dtype: str, device: str, flags: Flags, seed: int) -> dict[str, Any]:
    """Whether the same product gives the same bits eight times, and the same bits as under default flags."""
    shape, rng = (64, 4096, 64), np.random.default_rng(seed)
    a, b = sample("uniform", dtype, 64 * 4096, rng), sample("uniform", dtype, 4096 * 64, rng)
    plain = Flags()
    with applied(plain):
        default = product(a, b, shape, dtype, device)
    with applied(flags):
        runs = [product(a, b, shape, dtype, device) for _ in range(8)]
    return {
        "same bits in 8 runs": all(np.array_equal(runs[0], r) for r in runs),
        "elements that differ from flags off": int((runs[0] != default).sum()),
        "of": len(default),
    }


def settings(dtype: str) -> list[Flags]:
    """Every combination of the flags that matter for a dtype."""
    either = (False, True)
    if dtype == "fp32":
        return [Flags(tf32=t, deterministic=d) for t in either for d in either]
    return [Flags(reduced=r, deterministic=d) for r in either for d in either]


def rows(device: str, full: bool = False, seed: int = 0) -> Iterator[Result]:
    """The product on a device under default flags, and on CUDA under every flag; NOT_RUN without CUDA."""
    for dtype in DTYPES:
        if device == "cpu":
            yield _row(Row("matmul", dtype, "cpu", "bound: any order in fp32, rounded once"), Flags(), full, seed)
        for flags in settings(dtype):
            row = Row("matmul", dtype, "cuda", "bound: what these flags allow", flags.told(dtype))
            yield _row(row, flags, full, seed)


def _row(row: Row, flags: Flags, full: bool, seed: int) -> Result:
    dtype, device = row.dtype, row.device

    def made() -> Iterator[Trial]:
        yield from trials(dtype, device, flags, full, seed)
        if not flags.tf32:  # which cuts a subnormal factor
            with applied(flags):
                yield special.trial(lambda x: (x.unsqueeze(0) @ torch.ones_like(x).unsqueeze(1))[0], dtype, device)

    def judged() -> Result:
        try:
            names = asked(dtype, device, flags)
            facts = repeatable(dtype, device, flags, seed) if device == "cuda" else {}
        except RuntimeError as e:
            return row.result(NOT_RUN, reason=raised(e))
        return bounded(row, made, lambda: names, {"dtype": str(TORCH[dtype]), **facts})

    return attempted(row, judged)


# -- Sums that are scattered: within the bound for every order, and repeatable when asked.
SCATTERED = ("uniform", "positive", "ones", "small")
LENGTHS = (1, 2, 3, 7, 64, 250, 1000, 4099)
WITNESSES = (2, 4, 8)
MANY, PLACES, RUNS = 2**16, 5, 8
SCATTER_CLAIM = "bound: any order of additions in storage"

Scatter = Callable[[Tensor, Tensor, Tensor], Tensor]


def _columns(total: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """scatter_add_ of scatter_rows, whose index is expanded: another kernel."""
    wide = total.unsqueeze(1).repeat(1, 3)
    return wide.scatter_add_(0, index.unsqueeze(1).expand(-1, 3), torch.stack([x, x, x], 1))[:, 1]


SCATTERS: tuple[tuple[str, Scatter], ...] = (
    ("index_add_ (scattered)", lambda total, index, x: total.index_add_(0, index, x)),
    ("scatter_add_", lambda total, index, x: total.scatter_add_(0, index, x)),
    ("scatter_add_ (scatter_rows)", _columns),
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
                yield (
                    sample(kind, dtype, length, rng),
                    index,
                    places,
                    f"{kind}, n={length}, repeat={again}, seed={seed}",
                )
    for n in WITNESSES:
        terms = encode(np.array([float(g / n) for g in accumulation_witness(n, dtype)]), dtype)
        yield terms, np.zeros(n, dtype=np.int64), 1, f"the witness, n={n}"


def scatter_trials(scatter: Scatter, dtype: str, device: str, repeats: int, seed: int) -> Iterator[Trial]:
    """The sum in every place against the bound for its terms."""
    for x, index, places, note in inputs(dtype, repeats, seed):
        got = scattered(scatter, x, index, places, dtype, device)
        for place in np.unique(index):
            own = x[index == place]
            reach = Fraction(float(np.abs(decode(own, dtype)).max()))
            bound = any_order_bound(dtype, len(own), reach) if reach else Fraction(0)
            error = abs(value(got[place : place + 1], dtype) - exact_sum(own, dtype))
            pattern = hexadecimal(got[place], known(dtype).bits)
            told = f"{note}, place {place}, {len(own)} terms"
            yield Trial(error, bound, shown(own, dtype), pattern, f"within {float(bound):.6g}", told, len(own))


def repeated(scatter: Scatter, dtype: str, device: str, seed: int) -> Trial:
    """2^16 terms into five places, eight times: the error counts sums whose bits are not those of the first run."""
    rng = np.random.default_rng([seed, MANY])
    x, index = sample("uniform", dtype, MANY, rng), rng.integers(0, PLACES, MANY)
    runs = [scattered(scatter, x, index, PLACES, dtype, device) for _ in range(RUNS)]
    off = [(r, p) for r in range(RUNS) for p in range(PLACES) if runs[r][p] != runs[0][p]]
    run, place = off[0] if off else (0, 0)
    width = known(dtype).bits
    told = f"{RUNS} runs of {MANY} terms, seed={seed}; run {run}, place {place}"
    return Trial(Fraction(len(off)), Fraction(0), shown(x, dtype), hexadecimal(runs[run][place], width),
                 hexadecimal(runs[0][place], width), told, MANY)  # fmt: skip


def scatter_rows(device: str, full: bool = False, seed: int = 0) -> Iterator[Result]:
    """Every scattered sum of a device, with deterministic algorithms off and on."""
    for name, scatter in SCATTERS:
        for dtype in DTYPES:
            yield from (scatter_row(name, scatter, dtype, device, full, seed, on) for on in (False, True))


def scatter_row(name: str, scatter: Scatter, dtype: str, device: str, full: bool, seed: int, on: bool) -> Result:
    """One row, with deterministic algorithms on or off; the setting that was there before comes back. Never raises."""
    claim = SCATTER_CLAIM + (", the same bits in 8 runs" if on else "")
    row = Row(name, dtype, device, claim, {"deterministic": on})

    def one_place(x: Tensor) -> Tensor:
        index = torch.zeros(len(x), dtype=torch.int64, device=device)
        return scatter(torch.zeros(1, dtype=x.dtype, device=device), index, x)

    def judged() -> Result:
        with applied(Flags(deterministic=on)):
            try:
                again = repeated(scatter, dtype, device, seed)
            except RuntimeError as e:
                return row.result(NOT_RUN, reason=raised(e))
            return bounded(
                row,
                lambda: [*scatter_trials(scatter, dtype, device, 10 if full else 1, seed), *([again] if on else [])],
                lambda: special.named(one_place, dtype, device),
                facts={f"same bits in {RUNS} runs": again.error == 0},
            )

    return attempted(row, judged)
