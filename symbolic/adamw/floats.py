"""Harnesses over AdamW in stubbed fp32: KANI-AW-001 to -003 of `adamw-kernel-v1`.

Hyperparameters are torch's defaults, as the doubles' decimals, rounded to fp32 where they meet a number of it. What
rounding may cost is stated in half ulps of the largest result of each operation.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from gradproof.harness import FORMATS, exact
from models.adamw.model import Hyper, State, Step, fresh
from symbolic.adamw.step import DECOUPLED, FINITE, NONNEGATIVE

DEFAULTS = Hyper(Fraction(1, 1000), Fraction(9, 10), Fraction(999, 1000), Fraction(1, 10**8), Fraction(1, 100))
U = FORMATS["fp32"].u
COARSE = Fraction(1, 10**4)
"""A claim is asked with this much room first, then with none: a counterexample of the first survives real rounding."""
REACH = 4 * DEFAULTS.rate
"""Larger than any update of AdamW's: |m_hat| / sqrt(v_hat) <= (1 - b1) / sqrt(1 - b2) < 3.2 (Kingma and Ba, 2.1)."""


def decoupled(k: Any, subject: Any) -> None:
    """AW-INV-001 in floats: the moments do not see the decay, and the weight loses rate decay theta.

    Moments from any state |m| <= 1, 0 <= v <= 1, and the last phase from any update up to REACH. Three roundings of
    numbers up to 1 + REACH, and one of the factor 1 - rate decay.
    """
    width, without = k.bound("elements"), replace(DEFAULTS, decay=Fraction(0))
    params, grads = k.floats("theta", width, "fp32", -1, 1), k.floats("g", width, "fp32", -1, 1)
    m, v = k.floats("m", width, "fp32", -1, 1), k.floats("v", width, "fp32", 0, 1)
    updates = k.floats("update", width, "fp32", -REACH, REACH)
    k.cover("a weight to decay", params[0] == 1)
    moments = []
    for hyper in (DEFAULTS, without):
        moments.append(subject.advance(subject.gradient(params, grads, hyper), State(m, v), hyper))
    for i in range(width):
        for name, a, b in (("m", moments[0].m[i], moments[1].m[i]), ("v", moments[0].v[i], moments[1].v[i])):
            k.check(DECOUPLED, abs(exact(a) - exact(b)) <= COARSE, f"element {i}: {name} does not see the decay")
            k.check(DECOUPLED, k.same(a, b), f"element {i}: {name} does not see the decay at all")
    room = 6 * U * (1 + REACH)
    for i, (p, u) in enumerate(zip(params, updates, strict=True)):
        decayed, plain = (exact(subject.moved(p, u, hyper)) for hyper in (DEFAULTS, without))
        lost = plain - decayed - DEFAULTS.rate * DEFAULTS.decay * exact(p)
        k.check(DECOUPLED, abs(lost) <= room, f"element {i}: the decay takes rate decay theta")


def nonnegative(k: Any, subject: Any) -> None:
    """AW-BND-001 in floats: v >= 0 and v <= 1 + rounding after every step, and each square leaves its share.

    Any gradients |g| <= 1. A step rounds five times, numbers up to 1.
    """
    state = fresh(1)
    for t, g in enumerate(k.floats("g", k.bound("steps"), "fp32", -1, 1)):
        state = subject.advance((g,), state, DEFAULTS)
        v, square = exact(state.v[0]), exact(abs(g)) * exact(abs(g))
        k.check(NONNEGATIVE, v >= -COARSE, f"step {t + 1}: v is not far below zero")
        k.check(NONNEGATIVE, v >= 0, f"step {t + 1}: v >= 0")
        k.check(NONNEGATIVE, v <= 1 + 8 * (t + 1) * U, f"step {t + 1}: v <= 1")
        share = square * (1 - DEFAULTS.beta2)
        k.check(NONNEGATIVE, v >= share - 8 * U, f"step {t + 1}: v holds (1 - b2) g^2")
        k.cover(f"a gradient below zero at step {t + 1}", g < 0)


def finite(k: Any, subject: Any) -> None:
    """AW-BND-002 in floats: the corrected moments stay by the range of the gradients, and the update by rate G / eps.

    No operation of a step may leave the range of fp32: the stub refuses one that could. The first corrected moments are
    the gradient and its square. A correction multiplies rounding by up to 1 / (1 - b2) = 1000.
    """
    state, params, grown = fresh(1), (Fraction(0),), 1 / (1 - DEFAULTS.beta2)
    for t, gradient in enumerate(k.floats("g", k.bound("steps"), "fp32", -1, 1)):
        done: Step = subject.step(params, (gradient,), state, DEFAULTS)
        m_hat, v_hat = exact(done.m_hat[0]), exact(done.v_hat[0])
        k.check(FINITE, abs(m_hat) <= 1 + 128 * U, f"step {t + 1}: |m_hat| <= G")
        k.check(FINITE, (v_hat >= 0) & (v_hat <= 1 + 16 * grown * U), f"step {t + 1}: 0 <= v_hat <= G^2")
        moved = abs(exact(done.params[0]))
        k.check(FINITE, moved <= (1 + Fraction(1, 100)) * DEFAULTS.rate / DEFAULTS.eps, f"step {t + 1}: the update")
        if t == 0:
            square = exact(abs(gradient)) * exact(abs(gradient))
            k.check(FINITE, abs(m_hat - exact(gradient)) <= 128 * U, "m_hat of the first step is its gradient")
            k.check(FINITE, abs(v_hat - square) <= 16 * grown * U, "v_hat of the first step is its square")
        k.cover(f"the largest gradient at step {t + 1}", gradient == 1)
        state = done.state
