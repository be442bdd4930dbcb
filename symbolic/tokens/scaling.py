"""What a missing 1/K does to the step, GA-LR-001: SGD and AdamW under a gradient that is c times as large.

Two runs start from the same weights, the second on c times the gradients of the first. While their weights agree the
gradients are those of the same weights, so one step from any related pair of states is an induction over all steps.
What the steps themselves are is compared with sums over all gradients so far, not with another run of the same text:
`sgd_is` and `adamw_is`, from any state, so that what holds of these steps holds of all. Sources: PyTorch,
torch.optim.SGD; Kingma and Ba 2015, section 3; Loshchilov and Hutter 2019, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gradproof.harness import sqrt
from models.tokens.scaling import Setup, SgdSetup, State

CLAUSE = "GA-LR-001"
BETA1, BETA2 = Fraction(9, 10), Fraction(999, 1000)
RATE, K = Fraction(1, 1000), 8


def limit(b1: Any, b2: Any) -> Any:
    """The most that m^2 / v can be: 52.86 at the default betas, of which the root is 7.27."""
    return (1 - b1) * (1 - b1) * b2 / ((1 - b2) * (b2 - b1 * b1))


def state(k: Any) -> State:
    """Any weight and moments."""
    return State(k.real("w"), k.real("m"), k.real("v"))


def sgd_setup(k: Any) -> SgdSetup:
    """Any rate and momentum, with or without nesterov; decay and clip for the subjects that have them."""
    nesterov = bool(k.choose("nesterov", [False, True]))
    rate, momentum, decay, norm = (k.real(name) for name in ("rate", "momentum", "decay", "norm"))
    k.assume((rate > 0) & (decay >= 0) & (norm > 0))
    return SgdSetup(rate, momentum, decay, norm, nesterov)


Enters = Callable[[Any, Any, SgdSetup], Any]


def plain(g: Any, w: Any, setup: SgdSetup) -> Any:
    """The gradient itself."""
    return g


def with_decay(g: Any, w: Any, setup: SgdSetup) -> Any:
    """Coupled weight decay."""
    return g + setup.decay * w


def within_norm(g: Any, w: Any, setup: SgdSetup) -> Any:
    """The gradient over what its magnitude has too much, in parts of the norm."""
    return g / (1 if abs(g) <= setup.norm else abs(g) / setup.norm)


def sgd_is(k: Any, sgd: Any, setup: SgdSetup, enters: Enters, start: State, gradients: Sequence[Any]) -> None:
    """SGD from any state: buffer t is the sum of momentum^(t - i) d_i, and the weight has moved by all directions."""
    k.scenario(start, setup, gradients=tuple(gradients))
    now, entered, moved = start, [], 0
    for t, g in enumerate(gradients, 1):
        entered.append(enters(g, now.w, setup))
        now = sgd.step(now, g, setup)
        kept = [entered[i] * power(setup.momentum, t - 1 - i) for i in range(t)]
        buffer = start.m * power(setup.momentum, t) + sum(kept)
        moved = moved + (entered[-1] + buffer * setup.momentum if setup.nesterov else buffer)
        k.check(CLAUSE, k.same(now.m, buffer), f"step {t}: the buffer is the sum of what entered")
        k.check(CLAUSE, k.same(start.w - now.w, moved * setup.rate), f"step {t}: the weight moves by every direction")
        k.check(CLAUSE, k.same(now.v, start.v), f"step {t}: SGD has no second moment")


def power(x: Any, count: int) -> Any:
    """x to the power of a whole number, by multiplication."""
    return 1 if count == 0 else x * power(x, count - 1)


def adamw_is(k: Any, adam: Any) -> None:
    """AdamW over several steps from any state: both moments are weighted sums, and the decay is not in them."""
    start, gradients, eps = state(k), k.reals("gradient", k.bound("steps")), k.real("eps")
    setup, _ = adam_setup(k, eps)
    first, second = (k.reals(f"1 - {name}^t", len(gradients), 0, 1) for name in ("beta1", "beta2"))
    k.assume((eps > 0) & (start.v >= 0))
    for correction in (*first, *second):
        k.assume(correction > 0)
    k.scenario(start, setup, gradients=gradients)
    now, b1, b2 = start, setup.beta1, setup.beta2
    k.cover("gradients of both signs, and decay", (gradients[0] > 0) & (gradients[-1] < 0) & (setup.decay > 0))
    for t, (gradient, c1, c2) in enumerate(zip(gradients, first, second, strict=True), 1):
        before, now = now, adam.step(now, gradient, setup, (c1, c2))
        m = start.m * power(b1, t) + sum((1 - b1) * power(b1, t - i) * g for i, g in enumerate(gradients[:t], 1))
        v = start.v * power(b2, t) + sum((1 - b2) * power(b2, t - i) * g * g for i, g in enumerate(gradients[:t], 1))
        k.check(CLAUSE, k.same(now.m, m), f"step {t}: the first moment is the weighted sum of the gradients")
        k.check(CLAUSE, k.same(now.v, v), f"step {t}: the second moment is the weighted sum of their squares")
        left = (before.w - now.w - setup.rate * setup.decay * before.w) * (sqrt(now.v / c2) + eps) * c1
        k.check(CLAUSE, k.same(left, setup.rate * now.m), f"step {t}: what is not decay is the corrected ratio")


def _sgd(k: Any, sgd: Any, less_decay: bool, enters: Enters | None = None) -> None:
    """Base: the first step, from empty buffers, and what one step is, from any state. Step: a later one."""
    now, first, g, count, setup = state(k), k.real("first g"), k.real("g"), k.real("K"), sgd_setup(k)
    k.assume(count >= 1)

    def steps(words: str, start: State, gradient: Any) -> None:
        decay = setup.decay / count if less_decay else setup.decay
        scaled = sgd.step(start, gradient, replace(setup, rate=count * setup.rate, decay=decay))
        without = sgd.step(State(start.w, count * start.m, start.v), count * gradient, setup)
        k.check(CLAUSE, k.same(without.w, scaled.w), f"{words}: the weights are the same")
        k.check(CLAUSE, k.same(without.m, count * scaled.m), f"{words}: the buffer is K times as large")

    def base() -> None:
        if enters is not None:
            sgd_is(k, sgd, setup, enters, now, [first])
        steps("the first step", State(now.w, 0 * now.m, now.v), first)

    def step() -> None:
        k.cover("eight micro-batches", (g > 0) & (count == K) & (setup.momentum > 0))
        steps("a later step", now, g)

    k.inductive(base, step)


def like_larger_rate(k: Any, sgd: Any) -> None:
    """SGD: without 1/K at rate eta the weights are those with 1/K at rate K eta, for every K and every step."""
    _sgd(k, sgd, less_decay=False)


def steps_like_larger_rate(k: Any, sgd: Any) -> None:
    """The same of torch's SGD, whose steps are compared with their sums first."""
    _sgd(k, sgd, less_decay=False, enters=plain)


def like_larger_rate_and_less_decay(k: Any, sgd: Any) -> None:
    """SGD with coupled decay: without 1/K at rate eta it is rate K eta with the decay divided by K."""
    _sgd(k, sgd, less_decay=True, enters=with_decay)


def clipped_step(k: Any, sgd: Any) -> None:
    """SGD behind a clip: without 1/K the step is 1 to K times as long; once where both clip, K where neither does.

    Its steps, of gradients of either sign, are compared with their sums on a path of their own.
    """
    if k.choose("compared", ["with 1/K", "with sums"]) == "with sums":
        sgd_is(k, sgd, sgd_setup(k), within_norm, state(k), k.reals("gradient", k.bound("steps")))
        return
    g, count, norm, rate = (k.real(name) for name in ("g", "K", "norm", "rate"))
    k.assume((g > 0) & (count >= 1) & (norm > 0) & (rate > 0))
    setup, start = SgdSetup(rate, 0 * rate, 0 * rate, norm, False), State(0 * g, 0 * g, 0 * g)
    short, long = (0 - sgd.step(start, x, setup).w for x in (g, count * g))
    k.cover("between the two", (count * g > norm) & (g < norm))
    k.check(CLAUSE, (short <= long) & (long <= count * short), "1 to K times as long")
    if g >= norm:
        k.check(CLAUSE, k.same(long, short), "both are clipped: the missing 1/K changes nothing")
    if count * g <= norm:
        k.check(CLAUSE, k.same(long, count * short), "neither is clipped: K times as long")


def adam_setup(k: Any, eps: Any) -> tuple[Setup, tuple[Any, Any]]:
    """Any rate, betas and decay, and any corrections that they can have."""
    rate, b1, b2, decay, norm = (k.real(name) for name in ("rate", "beta1", "beta2", "decay", "norm"))
    c1, c2 = k.real("1 - beta1^t"), k.real("1 - beta2^t")
    for x in (b1, b2):
        k.assume((x >= 0) & (x < 1))
    for x in (c1, c2):
        k.assume((x > 0) & (x <= 1))
    k.assume((decay >= 0) & (norm > 0) & (rate > 0))
    return Setup(rate, b1, b2, eps, decay, norm), (c1, c2)


def scale_invariant(k: Any, adam: Any) -> None:
    """AdamW, eps = 0: c times the gradients give the same weights, c times m and c^2 times v, at every step."""
    now, first, g, c = state(k), k.real("first g"), k.real("g"), k.real("c")
    setup, corrections = adam_setup(k, 0)
    k.assume((c > 0) & (first != 0) & (now.v > 0) & (setup.beta2 > 0))
    k.scenario(now, setup, g=g)

    def steps(words: str, start: State, gradient: Any) -> None:
        one = adam.step(start, gradient, setup, corrections)
        many = adam.step(State(start.w, c * start.m, c * c * start.v), c * gradient, setup, corrections)
        k.check(CLAUSE, k.same(many.m, c * one.m), f"{words}: the first moment is c times as large")
        k.check(CLAUSE, k.same(many.v, c * c * one.v), f"{words}: the second moment is c^2 times as large")
        k.check(CLAUSE, k.same(many.w, one.w), f"{words}: the weights are the same")

    def base() -> None:
        empty = State(now.w, 0 * c, 0 * c)
        one, many = (adam.gradient(x, empty, setup) for x in (first, c * first))
        k.check(CLAUSE, k.same(many, c * one), "the first step: c times as much enters")
        steps("the first step", empty, first)

    def step() -> None:
        k.cover("a factor of eight", (c == K) & (setup.decay > 0))
        steps("a later step", now, g)

    k.inductive(base, step)


def eps_effect(k: Any, adam: Any) -> None:
    """AdamW: with root r of v_hat, c times the gradients change the update by (c - 1) eps / (c r + eps) of itself."""
    first, root, least, eps, c = (k.real(name) for name in ("m_hat", "r", "least r", "eps", "c"))
    k.assume((root > 0) & (least > 0) & (least <= root) & (eps > 0) & (c >= 1))
    setup = Setup(RATE, BETA1, BETA2, eps, 0)
    one, many = adam.direction(first, root, setup), adam.direction(c * first, c * root, setup)
    k.cover("a factor of eight and a gradient", (c == K) & (first > 0))
    k.check(CLAUSE, k.same((many - one) * (c * root + eps), one * (c - 1) * eps), "exactly, where r is known")
    size = abs(one)
    k.check(CLAUSE, abs(many - one) * (c * least + eps) <= size * (c - 1) * eps, "at most, where r is at least that")
    k.check(CLAUSE, (abs(many) >= size) & (abs(many) <= c * size), "1 to c times as long, never more")


def first_step(k: Any, adam: Any) -> None:
    """AdamW from empty moments: the first step is shorter than the rate whatever the gradient is multiplied by."""
    g, c, eps, rate = (k.real(name) for name in ("g", "c", "eps", "rate"))
    k.assume((c >= 1) & (eps > 0) & (rate > 0))
    setup, corrections = Setup(rate, BETA1, BETA2, eps, 0), (1 - BETA1, 1 - BETA2)
    moved = adam.step(State(0 * g, 0 * g, 0 * g), c * g, setup, corrections).w
    k.cover("a gradient", (g > 1) & (c == K))
    k.check(CLAUSE, (moved < rate) & (-moved < rate), "shorter than the rate")


def longest_step(k: Any, adam: Any) -> None:
    """AdamW: no update is as long as the root of `limit` rates, whatever the gradients are and are scaled by.

    m^2 <= limit v by Cauchy and Schwarz, and 1 - beta2^t <= (1 - beta1^t)^2: where both hold, the next step keeps them.
    """
    now, first, g, eps = state(k), k.real("first g"), k.real("g"), k.real("eps")
    setup, (c1, c2) = adam_setup(k, eps)
    b1, b2 = setup.beta1, setup.beta2
    k.assume((eps > 0) & (b2 > 0) & (1 - b2 <= (1 - b1) * (1 - b1)))
    k.scenario(now, setup, g=g)
    most = limit(b1, b2)

    def moments(words: str, start: State, gradient: Any, corrections: tuple[Any, Any]) -> None:
        m, v = adam.moments(start, adam.gradient(gradient, start, setup), setup)
        k.check(CLAUSE, m * m <= most * v, f"{words}: m^2 <= limit v")
        k.check(CLAUSE, corrections[1] <= corrections[0] * corrections[0], f"{words}: the corrections")

    def base() -> None:
        moments("the first step", State(now.w, 0 * first, 0 * first), first, (1 - b1, 1 - b2))
        k.check(CLAUSE, most > 0, "limit is a number above 0")
        k.check(CLAUSE, limit(BETA1, BETA2) < Fraction(728, 100) ** 2, "7.28 rates at the default betas")

    def step() -> None:
        k.assume((now.v >= 0) & (now.m * now.m <= most * now.v) & (c2 <= c1 * c1))
        k.cover("a gradient at the default betas", (g > 1) & (b1 == BETA1) & (b2 == BETA2))
        moments("a later step", now, g, (1 - (1 - c1) * b1, 1 - (1 - c2) * b2))

    def last() -> None:
        m, root, end1, end2 = (k.real(name) for name in ("m at last", "sqrt v_hat", "c1 at last", "c2 at last"))
        any_most = k.real("L")
        k.assume((any_most > 0) & (root >= 0) & (end1 > 0) & (end2 > 0) & (end2 <= end1 * end1))
        k.assume(m * m <= any_most * root * root * end2)
        update = adam.direction(m / end1, root, setup)
        k.check(CLAUSE, update * update < any_most, "m^2 <= L v keeps the update below the root of L")

    k.inductive(base, step)
    k.direct(last)


def as_larger_rate(k: Any, adam: Any) -> None:
    """The claim: without 1/K, K = 8 at 1e-3 steps as with 1/K at 8e-3. On the first step from empty moments.

    `params.part` is `gradient` (no decay) or `decay` (no gradient): either alone refutes it.
    """
    w, x, eps = (k.real(name) for name in ("w", "x", "eps"))
    k.assume((eps > 0) & (x > 0))
    g, decay = (x, 0 * x) if k.params["part"] == "gradient" else (0 * x, x)
    start, corrections = State(w, 0 * x, 0 * x), (1 - BETA1, 1 - BETA2)
    setup = Setup(RATE, BETA1, BETA2, eps, decay)
    without = adam.step(start, K * g, setup, corrections)
    larger = adam.step(start, g, replace(setup, rate=K * RATE), corrections)
    k.cover("any weight", w > 0)
    k.check(CLAUSE, k.same(without.w, larger.w), "the weights are the same")


def switched(k: Any, adam: Any) -> None:
    """The claim: dropping 1/K in the middle of a run changes nothing, eps = 0: on moments of gradients all equal."""
    g, w = k.real("g"), k.real("w")
    k.assume(g > 0)
    now, setup = State(w, g, g * g), Setup(RATE, BETA1, BETA2, 0, 0)
    k.cover("a gradient", g > 1)
    same, larger = (adam.step(now, x, setup, (1, 1)).w for x in (g, K * g))
    k.check(CLAUSE, k.same(larger, same), "the weights are the same")
