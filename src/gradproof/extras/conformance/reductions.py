"""Reductions of PyTorch against bounds that hold for every order of summation, judged in exact rationals.

Sum of n numbers in any order in fp32: (n - 1) u sum |x_i| (Jeannerod and Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013;
additions do not underflow). 16-bit operands are added in fp32 and the result is rounded once. A norm: squares, any
order, a root, relatively (1 + u)^(n/2 + 2) - 1 with a root within one ulp (Higham, section 3.5). One step of AdamW from
zero moments is p (1 - lr wd) - lr g/(|g| + eps) over the reals, since both bias corrections cancel: three roundings of
p and at most 13 of the update; underflow of g^2 moves sqrt(v) by less than 2^-70, nothing beside eps.

One step of AdamW from moments that are not zero: fused, foreach and one tensor at a time, against bounds.

Over the reals: m' = b1 m + (1 - b1) g, v' = b2 v + (1 - b2) g^2, p' = p (1 - lr wd) - s m' / (sqrt(v'/c2) + eps), with
s = lr / (1 - b1^t) and c2 = 1 - b2^t. Each operation and each constant errs by u relatively, or by eta on underflow,
where u and eta are those of fp32 in the fused form, which rounds to storage at the end, and those of storage in the
others, a little enlarged because they compute in fp32 first. Then (Higham, section 3.4, first order; the rest is in the
factor 1 + 32 u):

    m'   3 u (1 - b1) (|g| + |m|) + 2 u b1 |m| + u |m'| + 2 eta, by a product and a sum or by a lerp
    v'   4 u v' + 3 eta, for nothing cancels
    d    the denominator, relatively: that of v' / 1.7 (its root), 2 u (the root), 3 u (quotient, constant, sum), and
         eps / d, which a 16-bit scalar may lose
    p'   2 u |p| + u |p'| + |U| (r + 3 u) / (1 - r) + s |error of m'| / (d (1 - r)) + 2 eta, U = s m' / d
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance import matmul
from gradproof.extras.conformance.elementwise import DTYPES, TORCH, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, Machine, Values, decode, encode, exact_dot, exact_sum, probe
from gradproof.extras.conformance.report import (
    KernelResult,
    KernelTrial,
    RowClaim,
    bounded,
    each_element,
    exactly,
    hexadecimal,
    sample,
    shown,
    stored,
    value,
)

U = FORMATS["fp32"].u
KINDS = ("uniform", "positive", "wide", "cancelling", "ones", "small")
LENGTHS = (1, 2, 3, 7, 64, 1000, 4099)
LR, DECAY, EPS = 1e-3, 1e-2, 1e-8
VALUE = 0.7

Reduce = Callable[[Tensor], Tensor]
Checked = tuple[Fraction, Fraction]


def sum_bound(x: Bits, name: str) -> tuple[Fraction, Fraction]:
    """The exact sum, and the bound for any order."""
    exact = exact_sum(x, name)
    return exact, stored(name, exact, (len(x) - 1) * U * exact_sum(x, name, magnitudes=True))


def mean_bound(x: Bits, name: str) -> tuple[Fraction, Fraction]:
    """The exact mean and its bound: the sum's, then a division by n, or a product with fl(1/n)."""
    n, exact = len(x), exact_sum(x, name)
    error = (n - 1) * U * exact_sum(x, name, magnitudes=True) / n
    error = error * (1 + 3 * U) + 3 * U * abs(exact) / n + FORMATS["fp32"].tiny
    return exact / n, stored(name, exact / n, error)


def check_sum(got: Bits, x: Bits, name: str, bound: Callable[..., tuple[Fraction, Fraction]] = sum_bound) -> Checked:
    """Error and bound of a computed sum."""
    exact, most = bound(x, name)
    return abs(value(got, name) - exact), most


check_mean = partial(check_sum, bound=mean_bound)
"""Error and bound of a computed mean."""


def check_norm(got: Bits, x: Bits, name: str, parts: int = 0) -> tuple[Fraction, Fraction]:
    """Error and bound of a computed norm, compared through its square: |r^2 - S| against S ((1 + d)^2 - 1).

    `parts`: number of tensors whose norms were taken first, each in storage, and then combined.
    """
    pieces = np.array_split(x, len(x) // 2**13 + 1)
    square = sum((exact_dot(piece, piece, name) for piece in pieces), Fraction(0))
    d = (1 + U) ** ((len(x) + 1) // 2 + 2) - 1
    if name != "fp32":
        d = (1 + d) * (1 + FORMATS[name].u) - 1
    if parts:
        d = (1 + d) * (1 + U) ** ((parts + 1) // 2 + 2) * (1 + (FORMATS[name].u if name != "fp32" else 0)) - 1
    floor = 4 * FORMATS[name].tiny if name != "fp32" else FORMATS["fp32"].tiny
    r = value(got, name)
    return abs(r * r - square), square * ((1 + d) ** 2 - 1) + floor * (2 * r + floor)


Check = Callable[[Bits, Bits, str], Checked]

REDUCTIONS: tuple[tuple[str, Reduce, Check], ...] = (
    ("sum", lambda t: t.sum(), check_sum),
    ("sum(dim=0, strided)", lambda t: torch.stack([t, t, t], 1).sum(0)[1], check_sum),
    ("index_add_", lambda t: _scatter(t), check_sum),
    ("mean", lambda t: t.mean(), check_mean),
    ("linalg_vector_norm", lambda t: torch.linalg.vector_norm(t), check_norm),
)


def _scatter(t: Tensor) -> Tensor:
    """Every element added to one place, in fp32: the order is the device's."""
    total = torch.zeros(1, dtype=torch.float32, device=t.device)
    total.index_add_(0, torch.zeros(t.numel(), dtype=torch.int64, device=t.device), t.float())
    return total.to(t.dtype)


def reduction_trials(
    reduce: Reduce, check: Check, dtype: str, device: str, repeats: int, seed: int
) -> Iterator[KernelTrial]:
    """Every kind at every length, `repeats` times."""
    for kind in KINDS:
        if kind == "small" and check is check_norm:
            continue
        for length in LENGTHS:
            for again in range(repeats):
                rng = np.random.default_rng([seed, length, again, KINDS.index(kind)])
                x = sample(kind, dtype, length, rng)
                got = to_bits(reduce(to_tensor(x, dtype, device)))
                error, bound = check(got, x, dtype)
                note = f"{kind}, n={length}, repeat={again}, seed={seed}"
                pattern = hexadecimal(got[0], dtype)
                yield KernelTrial(error, bound, shown(x, dtype), pattern, f"within {float(bound):.6g}", note, length)


def asked(reduce: Reduce, check: Check, dtype: str, device: str) -> tuple[str, ...]:
    """What designed inputs say about a reduction; of a norm, whose squares underflow, nothing."""
    if check is not check_sum:
        return matmul.named(reduce, dtype, device, want=1) if check is check_mean else ()

    def dot(x: Values, y: Values) -> Values:
        rows = [to_bits(reduce(to_tensor(encode(r, dtype), dtype, device))) for r in x * y]
        return decode(np.concatenate(rows), dtype)

    return probe(dot, dtype, length=16, factors=False).names(dtype)


CLIPS = (1.0, 0.1, 5.0, 1000.0)
SIZES = ((1,), (2,), (1, 1), (3,), (7, 64), (1000,), (3, 129, 17, 1), (4099, 64))


def clipped(
    dtype: str, device: str, repeats: int, seed: int
) -> Iterator[tuple[str, float, list[Bits], Bits, list[Tensor]]]:
    """A note, the limit, gradients, the norm that clip_grad_norm_ returns, and parameters with clipped gradients."""
    for sizes in SIZES:
        for number in range(seed, seed + repeats * len(CLIPS)):
            rng, limit = np.random.default_rng([number, len(sizes)]), CLIPS[number % len(CLIPS)]
            grads = [sample(("uniform", "wide", "positive")[i % 3], dtype, n, rng) for i, n in enumerate(sizes)]
            params = [torch.zeros(n, dtype=TORCH[dtype], device=device, requires_grad=True) for n in sizes]
            for p, g in zip(params, grads, strict=True):
                p.grad = to_tensor(g, dtype, device)
            norm = to_bits(torch.nn.utils.clip_grad_norm_(params, limit))
            yield f"sizes {sizes}, seed={number}", limit, grads, norm, params


def clip_norm_trials(dtype: str, device: str, repeats: int, seed: int) -> Iterator[KernelTrial]:
    """The norm that clip_grad_norm_ returns."""
    for note, _, grads, norm, _ in clipped(dtype, device, repeats, seed):
        x = np.concatenate(grads)
        error, bound = check_norm(norm, x, dtype, parts=len(grads))
        pattern = hexadecimal(norm[0], dtype)
        yield KernelTrial(error, bound, shown(x, dtype), pattern, f"square within {float(bound):.6g}", note, len(x))


def clip_coefficient(norm: Bits, limit: float, dtype: str, device: str) -> Values:
    """min(1, fl(limit * fl(1 / fl(norm + 1e-6)))), each operation stored in the gradients' dtype."""
    keep = Machine(dtype, "fp32", "fp32")
    step = Machine(dtype, "fp32", dtype if device == "cpu" else "fp32")
    above = decode(step.leave(step.add(decode(norm, dtype), step.constant(1e-6))), dtype)
    inverse = decode(keep.leave(keep.div(np.ones(1), above)), dtype)
    return np.minimum(decode(keep.leave(keep.mul(inverse, keep.constant(limit))), dtype), 1.0)


def clip_scale_trials(
    dtype: str, device: str, repeats: int, seed: int, coefficient: Callable[..., Values] = clip_coefficient
) -> Iterator[KernelTrial]:
    """Clipped gradients, bit for bit, given the norm: the error counts gradients that differ, the bound is zero."""
    machine = Machine(dtype, "fp32", "fp32")
    for note, limit, grads, norm, params in clipped(dtype, device, repeats, seed):
        factor = coefficient(norm, limit, dtype, device)
        for g, p in zip(grads, params, strict=True):
            assert p.grad is not None
            got, want = to_bits(p.grad), machine.leave(machine.mul(decode(g, dtype), factor))
            off = np.flatnonzero(got != want)
            at = int(off[0]) if len(off) else 0
            patterns = (hexadecimal(g[at], dtype), hexadecimal(norm[0], dtype))
            yield KernelTrial(Fraction(len(off)), Fraction(0), patterns, hexadecimal(got[at], dtype),
                        hexadecimal(want[at], dtype), f"gradient and norm; {note}", len(g))  # fmt: skip


def adam_bound(p: Values, name: str) -> Values:
    """Bound on one step's error, in float64."""
    u, f = float(U), FORMATS[name]
    error = (4 * u * np.abs(p) + 16 * u * LR) * (1 + 2.0**-40) + 2.0**-100
    if name != "fp32":
        error += float(f.u) * (np.abs(p) + LR + error) + float(f.tiny) / 2
    return error


def adam_trials(dtype: str, device: str, count: int, seed: int) -> Iterator[KernelTrial]:
    """One fused step on `count` elements."""
    rng = np.random.default_rng(seed)
    reach = 12 if dtype == "fp16" else 40
    g = encode(np.ldexp(rng.uniform(-1, 1, count), rng.integers(-reach, reach, count)), dtype)
    g[: min(count, 5)] = encode(np.array([0.0, -0.0, 1.0, -1.0, 2.0**-14]), dtype)[: min(count, 5)]
    p = encode(np.ldexp(rng.uniform(-1, 1, count), rng.integers(-10, 4, count)), dtype)
    parameter = to_tensor(p, dtype, device).requires_grad_()
    parameter.grad = to_tensor(g, dtype, device)
    torch.optim.AdamW([parameter], lr=LR, weight_decay=DECAY, eps=EPS, fused=True).step()
    after = to_bits(parameter)
    pv, gv = decode(p, dtype), decode(g, dtype)
    want = pv * (1 - LR * DECAY) - LR * gv / (np.abs(gv) + EPS)

    def exact(p: Fraction, g: Fraction) -> Fraction:
        return p * (1 - Fraction(LR) * Fraction(DECAY)) - Fraction(LR) * g / (abs(g) + Fraction(EPS))

    return each_element((p, g), after, want, adam_bound(pv, dtype), exact, dtype, "parameter and gradient")


def compound_operands(divide: bool, dtype: str, count: int, seed: int) -> list[Bits]:
    """a, b and c within [2^-4, 8]; in an eighth of them a is the term of smaller b and c, rounded, with the other sign.

    What is left there is at most half an ulp of a, and in fp16 a subnormal number.
    """
    rng, few = np.random.default_rng(seed), count // 8
    a, b, c = (np.ldexp(rng.uniform(0.5, 1, count), rng.integers(-3, 3, count)) for _ in range(3))
    b[:few], c[:few] = rng.uniform(2.0**-7, 2.0**-6, few), rng.uniform(0.5, 1, few)
    bits = [encode(x * rng.choice([-1.0, 1.0], count), dtype) for x in (a, b, c)]
    bits[0][:few] = encode(-compound_term(divide, *(decode(x[:few], dtype) for x in bits[1:])), dtype)
    return bits


def compound_term(divide: bool, b: Values, c: Values) -> Values:
    """v b c, or v b / c, in float64."""
    return VALUE * b / c if divide else VALUE * b * c


def compound_bound(a: Values, term: Values, name: str) -> Values:
    """Four roundings of the term and one of the sum, in fp32, then one to storage, where the sum may be subnormal."""
    u, f = float(U), FORMATS[name]
    bound: Values = 4 * u * np.abs(term) + u * np.abs(a + term) + 2.0**-44 * np.abs(a)
    if name != "fp32":
        bound += np.maximum(float(f.u) * (np.abs(a + term) + bound), float(f.tiny) / 2)
    return bound


def compound_trials(divide: bool, dtype: str, device: str, count: int, seed: int) -> Iterator[KernelTrial]:
    """a + v b c and a + v b / c: four roundings at most, in any order, fused or not."""
    bits = compound_operands(divide, dtype, count, seed)
    call = torch.addcdiv if divide else torch.addcmul
    got = to_bits(call(*(to_tensor(b, dtype, device) for b in bits), value=VALUE))
    a, b, c = (decode(x, dtype) for x in bits)
    term = compound_term(divide, b, c)

    def exact(x: Fraction, y: Fraction, z: Fraction) -> Fraction:
        return x + Fraction(VALUE) * y / z if divide else x + Fraction(VALUE) * y * z

    note = "operands within [2^-4, 8], some cancel"
    return each_element(bits, got, a + term, compound_bound(a, term, dtype), exact, dtype, note)


def rows(device: str, full: bool = False, seed: int = 0) -> Iterator[KernelResult]:
    """Every reduction row of a device."""
    repeats, count = (40, 10**6) if full else (2, 10**4)
    for dtype in DTYPES:
        for name, reduce, check in REDUCTIONS:
            yield bounded(
                RowClaim(name, dtype, device, "bound: any order in fp32, rounded once"),
                lambda: reduction_trials(reduce, check, dtype, device, repeats, seed),  # noqa: B023
                lambda: asked(reduce, check, dtype, device),  # noqa: B023
            )
        yield from _steps(dtype, device, repeats, count, seed)


def _steps(dtype: str, device: str, repeats: int, count: int, seed: int) -> Iterator[KernelResult]:
    def row(operator: str, claim: str) -> RowClaim:
        return RowClaim(operator, dtype, device, claim)

    yield bounded(
        row("clip_grad_norm_ (norm)", "bound: any order, norm of norms"),
        lambda: clip_norm_trials(dtype, device, repeats, seed),
    )
    yield exactly(
        row("clip_grad_norm_ (scaling)", "bit for bit, given the norm"),
        lambda: clip_scale_trials(dtype, device, repeats, seed),
        lambda: clip_scale_trials(dtype, device, 1, seed, wrong_coefficient),
    )
    yield bounded(
        row("AdamW(fused), one step", "bound: 4u|p| + 16u lr, rounded once"),
        lambda: adam_trials(dtype, device, count, seed),
    )
    for name, term in (("addcmul", "v b c"), ("addcdiv", "v b/c")):
        yield bounded(
            row(f"{name} (bound)", f"bound: 4u|{term}| + u|a + {term}|, rounded once"),
            lambda: compound_trials(name == "addcdiv", dtype, device, count, seed),  # noqa: B023
        )


def wrong_coefficient(norm: Bits, limit: float, dtype: str, device: str) -> Values:
    """The control of the scaling row: without the 1e-6, and one ulp off."""
    return clip_coefficient(norm, limit, dtype, device) * (1 - float(FORMATS[dtype].u))


# -- One step of AdamW from moments that are not zero.
FORMS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "single": {"foreach": False, "fused": False},
}
BETAS = (0.9, 0.999)
STEPS = (1, 10, 1000)
ADAMW_CLAIM = "bound: p', m' and v' of one step from given moments"
OUTPUTS = ("parameter", "exp_avg", "exp_avg_sq")
REACH = {"fp32": (10, 20), "fp16": (4, 8), "bf16": (10, 20)}


@dataclass(frozen=True, slots=True)
class Unit:
    """Relative and absolute error of one operation, and of the last rounding to storage (zero where there is none)."""

    u: float
    eta: float
    last_u: float = 0.0
    last_eta: float = 0.0

    def stored(self, result: Values, error: Values) -> Values:
        """The error after the rounding to storage."""
        return error + self.last_u * (np.abs(result) + error) + self.last_eta


def unit(form: str, dtype: str) -> Unit:
    """What one operation of a form errs by in a dtype."""
    single, f = FORMATS["fp32"], FORMATS[dtype]
    if dtype == "fp32":
        return Unit(float(single.u), float(single.tiny))
    if form == "fused":
        return Unit(float(single.u), float(single.tiny), float(f.u), float(f.tiny) / 2)
    return Unit(float(f.u + 4 * single.u), float(f.tiny) * 0.51)


def drawn(dtype: str, count: int, seed: int, t: int) -> list[Bits]:
    """Random operands (p, g, m, v) of step number `t`; v > 0, and g or m is zero in a few places."""
    rng = np.random.default_rng([seed, t])
    reach, square = REACH[dtype]

    def signed(low: int, high: int) -> Values:
        made: Values = np.ldexp(
            rng.uniform(0.5, 1, count) * rng.choice([-1.0, 1.0], count), rng.integers(low, high, count)
        )
        return made

    p, g, m, v = signed(-10, 4), signed(-reach, reach), signed(-reach, reach), np.abs(signed(-square, square))
    g[: min(count, 3)], m[1 : min(count, 2)] = [0.0, 0.0, -0.0][: min(count, 3)], 0.0
    return [encode(x, dtype) for x in (p, g, m, v)]


def stepped(operands: list[Bits], t: int, form: str, dtype: str, device: str) -> tuple[Bits, Bits, Bits]:
    """Bit patterns of the parameter and both moments after a step of torch's AdamW."""
    p, g, m, v = (to_tensor(b, dtype, device) for b in operands)
    p.requires_grad_()
    p.grad = g
    optimizer = torch.optim.AdamW([p], lr=LR, betas=BETAS, weight_decay=DECAY, eps=EPS, **FORMS[form])
    before = torch.tensor(float(t - 1), device=device if form == "fused" else "cpu")
    state: dict[str, Any] = {"step": before, "exp_avg": m, "exp_avg_sq": v}
    optimizer.state[p] = state
    optimizer.step()
    return to_bits(p), to_bits(state["exp_avg"]), to_bits(state["exp_avg_sq"])


@cache
def corrections(t: int) -> tuple[Fraction, Fraction]:
    """1 - b1^t and 1 - b2^t within 2^-200, of the betas that the doubles are."""
    first, second = (Fraction(math.floor((1 - Fraction(b) ** t) * 2**200), 2**200) for b in BETAS)
    return first, second


def root(x: Fraction) -> Fraction:
    """The square root of x > 0, within 2^-100 of it relatively, from below."""
    shift = 2 * max(0, 110 + (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1)
    return Fraction(math.isqrt((x.numerator << shift) // x.denominator), 2 ** (shift // 2))


def exact_step(p: Fraction, g: Fraction, m: Fraction, v: Fraction, t: int) -> tuple[Fraction, Fraction, Fraction]:
    """p', m' and v' over the reals, p' within 2^-90 of the update."""
    first, second = corrections(t)
    m, v = blended(BETAS[0], g, m), blended(BETAS[1], g * g, v)
    update = Fraction(LR) / first * m / (root(v / second) + Fraction(EPS))
    return p * (1 - Fraction(LR) * Fraction(DECAY)) - update, m, v


def blended(beta: float, new: Fraction, old: Fraction) -> Fraction:
    """A moment after a step, over the reals."""
    return Fraction(beta) * old + (1 - Fraction(beta)) * new


Exact = Callable[[Fraction, Fraction, Fraction, Fraction], Fraction]


def exacts(t: int) -> tuple[Exact, Exact, Exact]:
    """p', m' and v' over the reals as functions of p, g, m and v, each no more work than it needs."""
    return (
        lambda p, g, m, v: exact_step(p, g, m, v, t)[0],
        lambda p, g, m, v: blended(BETAS[0], g, m),
        lambda p, g, m, v: blended(BETAS[1], g * g, v),
    )


def wanted(operands: list[Bits], t: int, dtype: str, unit: Unit) -> list[tuple[Values, Values]]:
    """p', m' and v' in float64, each with its bound."""
    p, g, m, v = (decode(b, dtype) for b in operands)
    (b1, b2), u, eta = BETAS, unit.u, unit.eta
    first, second = (float(c) for c in corrections(t))
    mean, square = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    more = 1 + 32 * u
    off_mean = more * (3 * u * (1 - b1) * (np.abs(g) + np.abs(m)) + 2 * u * b1 * np.abs(m) + u * np.abs(mean) + 2 * eta)
    off_square = more * (4 * u * square + 3 * eta)
    below = np.sqrt(square / second) + EPS
    r = more * (off_square / (1.7 * square) + 5 * u) + (EPS / below if dtype != "fp32" else 0)
    scale = LR / first
    update = scale * mean / below
    after = p * (1 - LR * DECAY) - update
    off = 2 * u * np.abs(p) + u * np.abs(after) + np.abs(update) * (r + 3 * u) / (1 - r)
    off = more * (off + scale * off_mean / (below * (1 - r)) + 2 * eta)
    both = ((after, off), (mean, off_mean), (square, off_square))
    return [(x, unit.stored(x, e) * (1 + 2.0**-30)) for x, e in both]


def adamw_trials(form: str, dtype: str, device: str, count: int, seed: int) -> Iterator[KernelTrial]:
    """One step from random moments, at the first step, the tenth and the thousandth; all three results."""
    for t in STEPS:
        operands = drawn(dtype, count, seed, t)
        got = stepped(operands, t, form, dtype, device)
        for index, (want, bound) in enumerate(wanted(operands, t, dtype, unit(form, dtype))):
            note = f"{OUTPUTS[index]} after step {t}; parameter, gradient, exp_avg, exp_avg_sq"
            yield from each_element(operands, got[index], want, bound, exacts(t)[index], dtype, note)


def adamw_rows(device: str, full: bool = False, seed: int = 0) -> Iterator[KernelResult]:
    """Every form in every dtype."""
    count = 10**5 if full else 2000
    for form in FORMS:
        for dtype in DTYPES:
            row = RowClaim(f"AdamW({form}), from moments", dtype, device, ADAMW_CLAIM)
            yield bounded(row, lambda: adamw_trials(form, dtype, device, count, seed))  # noqa: B023
