"""Harnesses over one step of AdamW, for every step at once: KANI-AW-005 to -007 of `adamw-kernel-v1`.

Each is a base (the state before the first step) and one step from any state that satisfies the invariant, for as many
elements as the bound `elements` says; weights, gradients and hyperparameters are any real numbers in their domains.
What a step computes is pinned in `symbolic.adamw.closed_form`; here are bounds and the correction, judged by what it
makes of a constant gradient.
"""

from __future__ import annotations

from typing import Any

from models.adamw.model import Hyper, State, fresh

DECOUPLED, NONNEGATIVE, FINITE, CORRECTION, VECTORISED = (
    "AW-INV-001", "AW-BND-001", "AW-BND-002", "AW-INV-002", "AW-EQ-001",
)  # fmt: skip


def hyperparameters(k: Any, at: str = "") -> Hyper:
    """Any rate > 0, betas in (0, 1), eps > 0 and decay >= 0."""
    rate, one, two, eps, decay = (k.real(f"{name}{at}") for name in ("rate", "beta1", "beta2", "eps", "decay"))
    for positive in (rate, one, two, eps):
        k.assume(positive > 0)
    k.assume((one < 1) & (two < 1))
    k.assume(decay >= 0)
    return Hyper(rate, one, two, eps, decay)


def any_state(k: Any, width: int) -> State:
    """A state between two steps: any first moment, a second moment that is not negative, powers in (0, 1]."""
    one, two = k.real("power1"), k.real("power2")
    for power in (one, two):
        k.assume((power > 0) & (power <= 1))
    v = k.reals("v", width)
    for x in v:
        k.assume(x >= 0)
    return State(k.reals("m", width), v, one, two)


def remains(k: Any, clause: str, state: State, words: str) -> None:
    """A state is again one of `any_state`."""
    for v in state.v:
        k.check(clause, v >= 0, f"{words}: v is not negative")
    for power in (state.power1, state.power2):
        k.check(clause, (power > 0) & (power <= 1), f"{words}: the powers lie in (0, 1]")


def nonnegative(k: Any, subject: Any) -> None:
    """AW-BND-001, every t: v stays within [0, G^2] where |g| <= G, and a gradient leaves its share in it."""
    width = k.bound("elements")
    k.inductive(lambda: _nonnegative_base(k, width), lambda: _nonnegative_step(k, subject, width))


def _nonnegative_base(k: Any, width: int) -> None:
    """The second moment starts at zero."""
    k.check(NONNEGATIVE, fresh(width).v == (0,) * width, "v starts at zero")


def _nonnegative_step(k: Any, subject: Any, width: int) -> None:
    hyper, state, most = hyperparameters(k), any_state(k, width), k.real("G")
    grads = k.reals("g", width)
    k.assume(most >= 0)
    for g, v in zip(grads, state.v, strict=True):
        k.assume(abs(g) <= most)
        k.assume(v <= most * most)
    k.cover("a gradient below zero", grads[1] < 0)
    after = subject.advance(grads, state, hyper).v
    for i, (g, v) in enumerate(zip(grads, after, strict=True)):
        k.check(NONNEGATIVE, v >= 0, f"element {i}: v >= 0")
        k.check(NONNEGATIVE, v <= most * most, f"element {i}: v <= G^2")
        k.check(NONNEGATIVE, (v > 0) | (g == 0), f"element {i}: a gradient leaves its square in v")


def finite(k: Any, subject: Any) -> None:
    """AW-BND-002, every t: |m_hat| <= G and 0 <= v_hat <= G^2 where |g| <= G.

    Invariant: |m| <= G (1 - b1^t) and 0 <= v <= G^2 (1 - b2^t), an average of what came with weights that add up to
    1 - b^t.
    """
    width = k.bound("elements")
    k.inductive(lambda: _finite_base(k, width), lambda: _finite_step(k, subject, width))


def _finite_base(k: Any, width: int) -> None:
    """Before the first step both sides are zero."""
    start, most = fresh(width), k.real("G at first")
    k.assume(most >= 0)
    for m, v in zip(start.m, start.v, strict=True):
        k.check(FINITE, abs(m) <= most * (1 - start.power1), "m starts within its bound")
        k.check(FINITE, v <= most * most * (1 - start.power2), "v starts within its bound")


def _finite_step(k: Any, subject: Any, width: int) -> None:
    hyper, state, most = hyperparameters(k), any_state(k, width), k.real("G")
    params, grads = k.reals("theta", width), k.reals("g", width)
    k.assume(most >= 0)
    for g, m, v in zip(grads, state.m, state.v, strict=True):
        k.assume(abs(g) <= most)
        k.assume(abs(m) <= most * (1 - state.power1))
        k.assume(v <= most * most * (1 - state.power2))
    k.cover("a gradient as large as it may be", grads[0] == most)
    k.scenario(hyper, state, params=params, grads=grads)
    done = subject.step(params, grads, state, hyper)
    now = done.state
    for i in range(width):
        k.check(FINITE, abs(now.m[i]) <= most * (1 - now.power1), f"element {i}: |m| within its bound again")
        k.check(FINITE, now.v[i] <= most * most * (1 - now.power2), f"element {i}: v within its bound again")
        k.check(FINITE, abs(done.m_hat[i]) <= most, f"element {i}: |m_hat| <= G")
        k.check(FINITE, (done.v_hat[i] >= 0) & (done.v_hat[i] <= most * most), f"element {i}: 0 <= v_hat <= G^2")
        moved = abs(done.params[i] - params[i] * (1 - hyper.rate * hyper.decay))
        k.check(FINITE, moved * hyper.eps <= hyper.rate * most, f"element {i}: the update is at most rate G / eps")
    remains(k, FINITE, now, "after the step")
    k.check(FINITE, now.power1 < state.power1, "the step is counted")


def corrects(k: Any, subject: Any) -> None:
    """AW-INV-002, every t >= 1: 1/(1 - b^t) > 1, and the corrected moments of a constant gradient are that gradient."""
    width = k.bound("elements")
    k.inductive(lambda: _corrects_base(k, width), lambda: _corrects_step(k, subject, width))


def _corrects_base(k: Any, width: int) -> None:
    """b^0 = 1, and the moments of no gradient at all are zero times it."""
    start, g = fresh(width), k.real("g at first")
    k.check(CORRECTION, start.power1 == 1 and start.power2 == 1, "no factor yet")
    for m, v in zip(start.m, start.v, strict=True):
        k.check(CORRECTION, m == g * (1 - start.power1), "m of a constant gradient is g (1 - b1^0)")
        k.check(CORRECTION, v == g * g * (1 - start.power2), "v of a constant gradient is g^2 (1 - b2^0)")


def _corrects_step(k: Any, subject: Any, width: int) -> None:
    hyper, grads = hyperparameters(k), k.reals("g", width)
    one, two = k.real("power1"), k.real("power2")
    for power in (one, two):
        k.assume((power > 0) & (power <= 1))
    m = tuple(g * (1 - one) for g in grads)
    v = tuple(g * g * (1 - two) for g in grads)
    k.cover("a later step", (one < 1) & (two < 1))
    done = subject.step(k.reals("theta", width), grads, State(m, v, one, two), hyper)
    for factor in (done.factor1, done.factor2):
        k.check(CORRECTION, factor > 1, "1 / (1 - b^t) > 1")
    for power, before in ((done.state.power1, one), (done.state.power2, two)):
        k.check(CORRECTION, (power > 0) & (power < before), "b^t falls and stays above zero")
    for i, g in enumerate(grads):
        k.check(CORRECTION, k.same(done.m_hat[i], g), f"element {i}: m_hat of a constant gradient is it")
        k.check(CORRECTION, k.same(done.v_hat[i], g * g), f"element {i}: v_hat of a constant gradient is its square")
        k.check(CORRECTION, k.same(done.state.m[i], g * (1 - done.state.power1)), f"element {i}: m again")
        k.check(CORRECTION, k.same(done.state.v[i], g * g * (1 - done.state.power2)), f"element {i}: v again")
