"""Full runs: buf.add_(g_i / n) over n recorded gradients, against the bound proven for these very g_i.

The bound of an element is that of the accumulation in the buffer's format and of the n divisions in the gradients'
format (on CUDA, where dividing by a Python scalar multiplies by its reciprocal, of those products), for the largest
|g_i| recorded there, rounded up to a power of two, and for n times the largest quotient where n is no power of two. The
reference is the exact mean of the recorded g_i: rationals for a sample, for the witnesses, and for the elements nearest
to their bound; two float64 numbers a sum elsewhere (Ogita, Rump and Oishi, SIAM J. Sci. Comput. 26(6), 2005, Sum2), off
by at most (n 2^-53)^2 n max |g_i|, which is doubled and counted as measured error, with 2^-49 of the error for the
comparison in float64. An element that this slack alone lifts above its bound is decided in rationals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradproof.arith.bounds import accumulation_bound, accumulation_witness, scaling_bound
from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance.elementwise import TORCH, operator_named, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, Values, decode, encode, exact_sum, known
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    NO_CUDA,
    NOT_RUN,
    REFUTED,
    Fact,
    KernelResult,
    RowClaim,
    attempted,
    hexadecimal,
    ratio_of,
)

PAIRS = (("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"))
CLAIM = "bound: accumulation and scaling, of the recorded g_i"
SAMPLE, CLOSE, CLOSEST = 48, 0.9, 200
DECIDED = 500_000  # elements above their bound by the reference's own slack, decided in rationals

Gradients = Callable[[int], Tensor]


@lru_cache(maxsize=4096)
def bound_for(gradient: str, buffer: str, n: int, exponent: int, reciprocal: bool = False) -> Fraction:
    """Proven bound on |buffer - mean g_i| for |g_i| <= 2^exponent. Raises OverflowError where the sum may overflow.

    `reciprocal`: the device multiplies by fl(1/n), kept in fp32, where it is asked to divide by n.
    """
    reach = Fraction(2) ** exponent
    return accumulation_bound(buffer, n, term_bound(gradient, n, reach, reciprocal)) + division_bound(
        gradient, n, reach, reciprocal
    )


def term_bound(gradient: str, n: int, reach: Fraction, reciprocal: bool = False) -> Fraction:
    """n times the largest fl(g / n) for |g| <= reach: the magnitude that the accumulation's bound is for."""
    f, single = FORMATS[gradient], FORMATS["fp32"]
    largest = max(reach / n, f.round(reach / n))
    if reciprocal:
        largest = max(largest, f.round(single.round(reach * single.round(Fraction(1, n)))))
    return n * largest


def division_bound(gradient: str, n: int, reach: Fraction, reciprocal: bool = False) -> Fraction:
    """Worst error of n divisions g_i / n, |g_i| <= reach, or of n products with fl(1/n) in fp32."""
    if not reciprocal or n & (n - 1) == 0:
        return scaling_bound(gradient, n, reach)
    f, single = FORMATS[gradient], FORMATS["fp32"]
    r = single.round(Fraction(1, n))
    first = max(single.half_ulp(reach * r), single.tiny / 2)
    second = Fraction(0) if gradient == "fp32" else max(f.half_ulp(reach * r + first), f.tiny / 2)
    return n * (reach * abs(r - Fraction(1, n)) + first + second)


@dataclass(slots=True)
class Record:
    """What is kept of a run: the compensated sum, the largest magnitude, and every g_i of the chosen elements."""

    chosen: list[int]
    high: Tensor
    low: Tensor
    largest: Tensor
    columns: list[Bits] = field(default_factory=list)
    spare: list[Tensor] = field(default_factory=list)

    def add(self, g: Tensor) -> None:
        """Take in one recorded gradient: TwoSum, in memory that is kept from step to step."""
        if not self.spare:
            self.spare = [torch.empty_like(self.high) for _ in range(4)]
        total, wide, back, error = self.spare
        wide.copy_(g)
        torch.add(self.high, wide, out=total)
        torch.sub(total, self.high, out=back)
        torch.sub(total, back, out=error)
        torch.sub(self.high, error, out=error)
        torch.sub(wide, back, out=back)
        torch.add(error, back, out=error)
        self.low += error
        torch.maximum(self.largest, wide.abs_(), out=self.largest)
        self.spare[0], self.high = self.high, total
        self.columns.append(to_bits(g[self.chosen]))


def accumulate(
    gradients: Gradients, n: int, gradient: str, buffer: str, device: str, chosen: Sequence[int]
) -> tuple[Tensor, Record]:
    """The buffer after n steps of buf.add_(g / n), and what was recorded. Raises ValueError for another dtype."""
    first = gradients(0)
    buf = torch.zeros(first.numel(), dtype=TORCH[buffer], device=device)
    high, low, largest = (torch.zeros(first.numel(), dtype=torch.float64, device=device) for _ in range(3))
    record = Record(list(chosen), high, low, largest)
    for i in range(n):
        g = gradients(i)
        if g.dtype != TORCH[gradient]:
            raise ValueError(f"a {g.dtype} gradient in a run of {gradient} gradients")
        buf.add_(g / n)
        record.add(g)
    return buf, record


@dataclass(frozen=True, slots=True)
class AccumulationSetting:
    """A run: n gradients of a format into a buffer of a format."""

    n: int
    gradient: str
    buffer: str
    device: str
    note: str = ""

    @property
    def reciprocal(self) -> bool:
        """Whether the device is claimed to multiply by fl(1/n) where it is asked to divide by n."""
        return operator_named("div(scalar)", self.gradient).machine(self.gradient, self.device).reciprocal

    @property
    def name(self) -> str:
        """Formats as the reports write them."""
        return self.gradient if self.gradient == self.buffer else f"{self.gradient}->{self.buffer}"


def errors(buf: Tensor, record: Record, n: int) -> Values:
    """|n buffer - sum| for every element, plus what the compensated sum and the comparison in float64 may be off."""
    scaled = buf.double() * n
    error = ((scaled - record.high) - record.low).abs()
    slack = 16 * 2.0**-53 * error + 2.0**-103 * scaled.abs() + 2 * (n * 2.0**-53) ** 2 * n * record.largest
    return (error + slack).cpu().numpy()


def bounds(record: Record, s: AccumulationSetting) -> Values:
    """n times the proven bound of every element, by the power of two above its largest |g_i|."""
    largest = record.largest.cpu().numpy()
    mantissa, exponent = np.frexp(largest)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    result = np.zeros(len(largest))
    for e in np.unique(exponent[largest > 0]):
        result[(exponent == e) & (largest > 0)] = float(
            bound_for(s.gradient, s.buffer, s.n, int(e), s.reciprocal) * s.n
        )
    return result


def judge(
    buf: Tensor,
    record: Record,
    s: AccumulationSetting,
    columns: Callable[[list[int]], list[Bits]],
    scale: Fraction = Fraction(1),
) -> KernelResult:
    """The outcome of a run; `columns` replays the g_i of further elements, `scale` shrinks the bound for controls."""
    measured, limit = errors(buf, record, s.n), bounds(record, s) * float(scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(measured == 0, 0.0, measured / limit)
    ratios[np.isnan(ratios)] = np.inf
    order = np.argsort(-ratios)[: max(CLOSEST, min(int((ratios > 1).sum()), DECIDED))]
    known_already = set(record.chosen)
    near = [int(i) for i in order if ratios[i] > CLOSE and int(i) not in known_already]
    again = columns(near) if near else []
    got = to_bits(buf)
    worst, first, off = 0.0, None, 0
    for places, store in ((record.chosen, record.columns), (near, again)):
        for k, e in enumerate(places):
            ratio = _exact_ratio(store, k, int(got[e]), float(record.largest[e]), s, scale)
            ratios[e] = 0.0
            worst = max(worst, ratio)
            if ratio > 1:
                off += 1
                inputs = tuple(hexadecimal(c[k], s.gradient) for c in store[:16])
                text = f"element {e}, first {len(inputs)} of {s.n} gradients"
                first = first or Fact(inputs, hexadecimal(got[e], s.buffer), f"ratio {ratio:.6g}", text)
    undecided = int((ratios > 1).sum())
    outcome, reason = (REFUTED if off else HOLDS), ""
    if undecided and not off:
        outcome, reason = ERROR, f"{undecided} elements are too close to their bound to be decided in float64"
    facts: dict[str, Any] = {"n": s.n, "elements": buf.numel(), "exact elements": len(record.chosen) + len(near)}
    facts["largest error"] = float(np.max(measured, initial=0.0)) / s.n
    words = f"buf.add_(g / {s.n}) {s.note}".strip()
    return KernelResult(words, s.name, s.device, CLAIM, outcome, buf.numel(), off, first,
                  (), max(worst, float(np.max(ratios, initial=0.0))), {}, facts, reason)  # fmt: skip


def _exact_ratio(
    store: Sequence[Bits], k: int, got: int, largest: float, s: AccumulationSetting, scale: Fraction
) -> float:
    total = exact_sum(np.array([c[k] for c in store], dtype=np.uint32), s.gradient)
    value = float(decode(np.array([got], dtype=np.uint32), s.buffer)[0])
    if not math.isfinite(value):
        return math.inf
    if largest == 0:
        return ratio_of(abs(Fraction(value)), Fraction(0))
    mantissa, exponent = math.frexp(largest)
    exponent -= int(mantissa == 0.5)
    bound = bound_for(s.gradient, s.buffer, s.n, exponent, s.reciprocal)
    return ratio_of(abs(Fraction(value) - total / s.n), bound * scale)


def drawn(n: int, elements: int, gradient: str, buffer: str, device: str, seed: int) -> Gradients:
    """Gradients by number: windows of four long random vectors, with the witness and its negative in front.

    The windows are recomputed from `seed`, so that a gradient is the same whenever it is asked for.
    """
    rng = np.random.default_rng([seed, n, known(gradient).bits, known(gradient).p])
    quarter = -(-elements // 4)
    length = quarter + 4096
    x = [rng.uniform(-1, 1, length), rng.uniform(0, 1, length), rng.uniform(0.9375, 1, length)]
    x.append(np.ldexp(rng.uniform(-1, 1, length), rng.integers(-12, 1, length)))
    base = to_tensor(encode(np.stack(x).ravel(), gradient), gradient, device).view(4, length)
    starts = rng.integers(0, 4096, n)
    bits = encode(np.array([float(w) for w in accumulation_witness(n, buffer)]), gradient)
    worst = to_tensor(bits, gradient, device)

    def gradient_number(i: int) -> Tensor:
        at = int(starts[i])
        g = base[:, at : at + quarter].contiguous().view(-1)[:elements]
        g[0], g[1] = worst[i], -worst[i]
        return g

    return gradient_number


def run(
    n: int,
    gradient: str,
    buffer: str,
    device: str = "cpu",
    elements: int = 10**6,
    seed: int = 0,
    gradients: Gradients | None = None,
    note: str = "",
    scale: Fraction = Fraction(1),
) -> KernelResult:
    """One full run; never raises. `gradients`: recorded ones, by number, the same at every call; else drawn."""
    s = AccumulationSetting(n, gradient, buffer, device, note)

    def made() -> KernelResult:
        source = gradients or drawn(n, elements, gradient, buffer, device, seed)
        size = source(0).numel()
        rng = np.random.default_rng([seed, n])
        chosen = sorted({0, min(1, size - 1), *map(int, rng.integers(0, size, SAMPLE))})
        buf, record = accumulate(source, n, gradient, buffer, device, chosen)
        return judge(buf, record, s, lambda places: [to_bits(source(i)[places]) for i in range(n)], scale)

    return attempted(RowClaim(f"buf.add_(g / {n})", s.name, device, CLAIM), made)


def all_runs(device: str, counts: Sequence[int], elements: int, seed: int = 0) -> Iterator[KernelResult]:
    """Every n in `counts` for every pair of formats."""
    return (run(n, gradient, buffer, device, elements, seed) for gradient, buffer in PAIRS for n in counts)


# -- Real micro-batch gradients: a small transformer, in every dtype, with its loss scaled.
VOCABULARY, LENGTH, WIDTH, HEADS, BATCH = 17, 8, 16, 2, 4
SCALES = {"fp32": 1.0, "fp16": 1024.0, "bf16": 1024.0}


def small_transformer(seed: int) -> nn.Module:
    """An embedding, one encoder layer and a head, without dropout; its weights are drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), layer, nn.Linear(WIDTH, VOCABULARY)).train()


def micro_batches(n: int, dtype: str, device: str, scale: float, seed: int = 0) -> list[Tensor]:
    """Flat gradients of n micro-batches, each of its own loss times `scale`."""
    model = small_transformer(seed).to(device=device, dtype=TORCH[dtype])
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(device)
        output = model(tokens[:, :-1])
        loss = F.cross_entropy(output.float().flatten(0, 1), tokens[:, 1:].flatten())
        model.zero_grad()
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        found.append(flat(p.grad for p in model.parameters()))
    return found


def flat(gradients: Iterable[Tensor | None]) -> Tensor:
    """The gradients of a model as one vector; missing ones are left out. Raises ValueError where one is not finite."""
    vector = torch.cat([g.detach().reshape(-1).clone() for g in gradients if g is not None])
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("a scaled gradient is not finite: GradScaler skips such a step")
    return vector


Source = Callable[[int, str, str, float], list[Tensor]]


def real_runs(device: str, counts: Iterable[int], source: Source = micro_batches) -> Iterator[KernelResult]:
    """Recorded gradients of `source` accumulated in every pair of formats, with loss scaling in 16 bits."""
    for n in counts:
        kept: dict[str, list[Tensor]] = {}
        for gradient, buffer in PAIRS:
            scale = SCALES[gradient]
            if device == "cuda" and not torch.cuda.is_available():
                name = AccumulationSetting(n, gradient, buffer, device).name
                yield RowClaim(f"transformer, n={n}", name, device, CLAIM).result(NOT_RUN, reason=NO_CUDA)
                continue
            if gradient not in kept:
                kept[gradient] = source(n, gradient, device, scale)
            note = f"transformer, loss scale {scale:g}"
            yield run(n, gradient, buffer, device, gradients=kept[gradient].__getitem__, note=note)
