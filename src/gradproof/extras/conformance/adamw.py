"""One step of AdamW from moments that are not zero: fused, foreach and one tensor at a time, against bounds.

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
from functools import cache
from typing import Any

import numpy as np
import torch

from gradproof.arith.formats import FORMATS
from gradproof.extras.conformance.elementwise import DTYPES, to_bits, to_tensor
from gradproof.extras.conformance.machine import Bits, Values, decode, encode
from gradproof.extras.conformance.reductions import DECAY, EPS, LR
from gradproof.extras.conformance.report import Result, not_run
from gradproof.extras.conformance.trials import Row, Trial, bounded, each_element

FORMS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "single": {"foreach": False, "fused": False},
}
BETAS = (0.9, 0.999)
STEPS = (1, 10, 1000)
CLAIM = "bound: p', m' and v' of one step from given moments"
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


@dataclass(frozen=True, slots=True)
class Case:
    """Operands (p, g, m, v) as bit patterns, and the number of the step that is made."""

    operands: tuple[Bits, Bits, Bits, Bits]
    t: int

    def values(self, dtype: str) -> tuple[Values, ...]:
        """The operands as numbers."""
        return tuple(decode(b, dtype) for b in self.operands)


def drawn(dtype: str, count: int, seed: int, t: int) -> Case:
    """Random operands; v > 0, and g or m is zero in a few places."""
    rng = np.random.default_rng([seed, t])
    reach, square = REACH[dtype]

    def signed(low: int, high: int) -> Values:
        made: Values = np.ldexp(
            rng.uniform(0.5, 1, count) * rng.choice([-1.0, 1.0], count), rng.integers(low, high, count)
        )
        return made

    p, g, m, v = signed(-10, 4), signed(-reach, reach), signed(-reach, reach), np.abs(signed(-square, square))
    g[: min(count, 3)], m[1 : min(count, 2)] = [0.0, 0.0, -0.0][: min(count, 3)], 0.0
    return Case((encode(p, dtype), encode(g, dtype), encode(m, dtype), encode(v, dtype)), t)


def stepped(case: Case, form: str, dtype: str, device: str) -> tuple[Bits, Bits, Bits]:
    """Bit patterns of the parameter and both moments after a step of torch's AdamW."""
    p, g, m, v = (to_tensor(b, dtype, device) for b in case.operands)
    p.requires_grad_()
    p.grad = g
    optimizer = torch.optim.AdamW([p], lr=LR, betas=BETAS, weight_decay=DECAY, eps=EPS, **FORMS[form])
    before = torch.tensor(float(case.t - 1), device=device if form == "fused" else "cpu")
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
    m, v = exact_mean(g, m), exact_square(g, v)
    update = Fraction(LR) / first * m / (root(v / second) + Fraction(EPS))
    return p * (1 - Fraction(LR) * Fraction(DECAY)) - update, m, v


def exact_mean(g: Fraction, m: Fraction) -> Fraction:
    """m' over the reals."""
    beta = Fraction(BETAS[0])
    return beta * m + (1 - beta) * g


def exact_square(g: Fraction, v: Fraction) -> Fraction:
    """v' over the reals."""
    beta = Fraction(BETAS[1])
    return beta * v + (1 - beta) * g * g


Exact = Callable[[Fraction, Fraction, Fraction, Fraction], Fraction]


def exacts(t: int) -> tuple[Exact, Exact, Exact]:
    """p', m' and v' over the reals as functions of p, g, m and v, each no more work than it needs."""
    return (
        lambda p, g, m, v: exact_step(p, g, m, v, t)[0],
        lambda p, g, m, v: exact_mean(g, m),
        lambda p, g, m, v: exact_square(g, v),
    )


def wanted(case: Case, dtype: str, unit: Unit) -> list[tuple[Values, Values]]:
    """p', m' and v' in float64, each with its bound."""
    p, g, m, v = case.values(dtype)
    (b1, b2), u, eta = BETAS, unit.u, unit.eta
    first, second = (float(c) for c in corrections(case.t))
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


def trials(form: str, dtype: str, device: str, count: int, seed: int) -> Iterator[Trial]:
    """One step from random moments, at the first step, the tenth and the thousandth; all three results."""
    for t in STEPS:
        case = drawn(dtype, count, seed, t)
        got = stepped(case, form, dtype, device)
        for index, (want, bound) in enumerate(wanted(case, dtype, unit(form, dtype))):
            note = f"{OUTPUTS[index]} after step {t}; parameter, gradient, exp_avg, exp_avg_sq"
            yield from each_element(case.operands, got[index], want, bound, exacts(t)[index], dtype, note)


def rows(device: str, full: bool = False, seed: int = 0) -> list[Result]:
    """Every form in every dtype."""
    count, ready = 10**5 if full else 2000, device == "cpu" or torch.cuda.is_available()
    found = []
    for form in FORMS:
        for dtype in DTYPES:
            row = Row(f"AdamW({form}), from moments", dtype, device, CLAIM, {})
            if not ready:
                found.append(not_run(row.operator, dtype, device, CLAIM, "no CUDA device is at hand"))
            else:
                found.append(bounded(row, lambda: trials(form, dtype, device, count, seed)))  # noqa: B023
    return found
