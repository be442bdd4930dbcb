"""AdamW against its closed form, for every step: KANI-AW-008 of `adamw-kernel-v1`.

Kingma and Ba 2015, section 3, unroll the moments to sums over the gradients. From any moments m_0 and v_0,

    m_t = b1^t m_0 + (1 - b1) sum_i b1^(t-i) g_i          v_t = b2^t v_0 + (1 - b2) sum_i b2^(t-i) g_i^2

and Loshchilov and Hutter 2019, algorithm 2, line 12, gives the weight. Here it is an equation without a quotient, and
its root is defined by its square, so that it shares no line with the models:

    (theta (1 - rate decay) - theta') (1 - b1^t) (r / s + eps) = rate m_t,   r, s >= 0,   r^2 = v_t,   s^2 = 1 - b2^t

The part of the decay is a claim of its own (AW-INV-001): the same step without it loses nothing of theta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from gradproof.harness import sqrt
from models.adamw.model import Hyper, State, Step, fresh
from symbolic.adamw.step import DECOUPLED, VECTORISED, hyperparameters

FORMS = ("step", "vectorised")
STEPS = 3
"""Steps that are written out: the third is the first one after which two gradients have been discounted twice."""


def power(x: Any, n: int) -> Any:
    """x^n."""
    return x * power(x, n - 1) if n else 1


@dataclass(frozen=True)
class Sums:
    """What an element's gradients add up to, each discounted by its age: sum b1^(t-i) g_i and sum b2^(t-i) g_i^2."""

    first: Any
    second: Any


def sums(grads: Sequence[Any], hyper: Hyper) -> Sums:
    """The sums of t gradients, term by term: the newest has age 0."""
    aged = list(enumerate(reversed(grads)))
    return Sums(
        sum(power(hyper.beta1, age) * g for age, g in aged),
        sum(power(hyper.beta2, age) * g * g for age, g in aged),
    )


@dataclass(frozen=True)
class Closed:
    """One element after t steps from moments m and v: the powers are b1^t and b2^t."""

    m: Any
    v: Any
    power1: Any
    power2: Any


def closed(m: Any, v: Any, added: Sums, powers: tuple[Any, Any], hyper: Hyper) -> Closed:
    """The closed form of both moments."""
    one, two = powers
    return Closed(one * m + (1 - hyper.beta1) * added.first, two * v + (1 - hyper.beta2) * added.second, one, two)


def lemma(k: Any, condition: Any, words: str) -> None:
    """A claim that later ones may use."""
    k.check(VECTORISED, condition, words)
    k.assume(condition)


@dataclass(frozen=True)
class Made:
    """A step of one form from one state, with the decay and without it."""

    with_decay: Step
    without: Step


def make(subject: Any, form: str, weights: Sequence[Any], grads: Sequence[Any], state: State, hyper: Hyper) -> Made:
    """Both steps."""
    step = getattr(subject, form)
    return Made(step(weights, grads, state, hyper), step(weights, grads, state, replace(hyper, decay=0)))


def pinned(k: Any, words: str, made: Made, before: Sequence[Any], want: Sequence[Closed], hyper: Hyper) -> None:
    """All that a step gives back: without decay it is the closed form, and the decay takes rate decay theta from it."""
    done, one, two = made.without, want[0].power1, want[0].power2
    sizes = {len(part) for step in (done, made.with_decay) for part in _vectors(step).values()}
    k.check(VECTORISED, sizes == {len(before)}, f"{words}: as many elements as before")
    for name, got, due in (("b1^t", done.state.power1, one), ("b2^t", done.state.power2, two)):
        lemma(k, k.same(got, due), f"{words}: {name}")
    for name, got, due in (("b1^t", done.factor1, one), ("b2^t", done.factor2, two)):
        k.check(VECTORISED, k.same(got * (1 - due), 1), f"{words}: 1 / (1 - {name})")
    for i, (p, w) in enumerate(zip(before, want, strict=True)):
        _element(k, f"{words}, element {i}", i, done, p, w, hyper)
    _decoupled(k, words, made, before, hyper)


def _vectors(done: Step) -> dict[str, Sequence[Any]]:
    return {"theta": done.params, "m": done.state.m, "v": done.state.v, "m_hat": done.m_hat, "v_hat": done.v_hat}


def _element(k: Any, words: str, i: int, done: Step, p: Any, want: Closed, hyper: Hyper) -> None:
    lemma(k, k.same(done.state.m[i], want.m), f"{words}: m")
    lemma(k, k.same(done.state.v[i], want.v), f"{words}: v")
    k.check(VECTORISED, k.same(done.m_hat[i] * (1 - want.power1), want.m), f"{words}: m_hat")
    lemma(k, k.same(done.v_hat[i] * (1 - want.power2), want.v), f"{words}: v_hat")
    k.check(VECTORISED, is_update(k, p - done.params[i], want, hyper), f"{words}: theta")


def is_update(k: Any, lost: Any, want: Closed, hyper: Hyper) -> Any:
    """Whether what a weight loses besides its decay is the update of algorithm 2, line 12."""
    r, s = sqrt(want.v), sqrt(1 - want.power2)
    return k.same(lost * (1 - want.power1) * (r + hyper.eps * s), hyper.rate * want.m * s)


def _decoupled(k: Any, words: str, made: Made, before: Sequence[Any], hyper: Hyper) -> None:
    one, two = made.with_decay, made.without
    for i, (p, x, y) in enumerate(zip(before, one.params, two.params, strict=True)):
        k.check(DECOUPLED, k.same(y - x, hyper.rate * hyper.decay * p), f"{words}, element {i}: what the decay takes")
    rest = [
        (one.state.power1, two.state.power1), (one.state.power2, two.state.power2), (one.factor1, two.factor1),
        (one.factor2, two.factor2),
    ]  # fmt: skip
    for name, xs in _vectors(one).items():
        rest += [] if name == "theta" else zip(xs, _vectors(two)[name], strict=True)
    alike = reduce(and_, [k.same(x, y) for x, y in rest])
    k.check(DECOUPLED, alike, f"{words}: the decay is in no moment, no power and no factor")


def vectorised(k: Any, subject: Any) -> None:
    """AW-EQ-001 and AW-INV-001 over the reals, every t: both arrangements are the closed form, decay apart."""
    form, width = k.choose("form", FORMS), k.bound("elements")
    # every input is drawn before the first check, for the replays
    first, later = Training(k, width), LaterStep(k, width)
    k.inductive(lambda: first.judge(k, subject, form), lambda: later.judge(k, subject, form))


class Training:
    """The base. Before the first step nothing was added up; and the first steps, one after another, term by term.

    Later steps are those of `LaterStep`: it takes any state, and a step is shown here to depend on nothing else.
    """

    def __init__(self, k: Any, width: int) -> None:
        self.hyper, self.width = hyperparameters(k), width
        self.m, self.v = k.reals("m[0]", width), k.reals("v[0]", width)
        self.grads = [k.reals(f"g[{t + 1}]", width) for t in range(STEPS)]
        self.weights = [k.reals(f"theta[{t}]", width) for t in range(STEPS)]
        for x in self.v:
            k.assume(x >= 0)

    def judge(self, k: Any, subject: Any, form: str) -> None:
        """The steps of a form, one after another, and the first one again."""
        for width in range(1, 2 * self.width):
            k.check(VECTORISED, fresh(width) == State((0,) * width, (0,) * width, 1, 1), "no gradient yet")
        kept, state, made = attributes(subject), State(self.m, self.v, 1, 1), []
        for t in range(STEPS):
            done = make(subject, form, self.weights[t], self.grads[t], state, self.hyper)
            pinned(k, f"{form}, step {t + 1}", done, self.weights[t], self.after(t + 1), self.hyper)
            made.append(done.with_decay.params)
            state = done.with_decay.state
        again = getattr(subject, form)(self.weights[0], self.grads[0], State(self.m, self.v, 1, 1), self.hyper)
        for one, two in zip(again.params, made[0], strict=True):
            k.check(VECTORISED, k.same(one, two), f"{form}: the first step made again gives the same weights")
        k.check(VECTORISED, attributes(subject) == kept, f"{form}: a step leaves nothing behind but what it returns")

    def after(self, t: int) -> list[Closed]:
        """Every element after t steps."""
        powers = power(self.hyper.beta1, t), power(self.hyper.beta2, t)
        own = [sums([row[i] for row in self.grads[:t]], self.hyper) for i in range(self.width)]
        return [closed(m, v, added, powers, self.hyper) for m, v, added in zip(self.m, self.v, own, strict=True)]


def attributes(subject: Any) -> list[dict[str, str]]:
    """What an instance and its classes hold: a step that needs more than its arguments would have to keep it here."""
    return [{name: repr(x) for name, x in vars(one).items()} for one in (subject, *type(subject).__mro__[:-1])]


class LaterStep:
    """The step. One more gradient: each sum is discounted once, and the gradient or its square is added."""

    def __init__(self, k: Any, width: int) -> None:
        self.hyper = hyperparameters(k, " later")
        names = ("m[0]", "v[0]", "sum of g", "sum of g^2", "theta", "g")
        self.m, self.v, self.first, self.second, self.weights, self.grads = (
            k.reals(f"{name} later", width) for name in names
        )
        self.powers = one, two = k.real("b1^t"), k.real("b2^t")
        for x in self.powers:
            k.assume((x > 0) & (x <= 1))
        for x in (*self.v, *self.second):
            k.assume(x >= 0)
        self.next = one * self.hyper.beta1, two * self.hyper.beta2

    def judge(self, k: Any, subject: Any, form: str) -> None:
        """One step of a form, from any state that has the closed form."""
        hyper, one, two = self.hyper, self.hyper.beta1, self.hyper.beta2
        k.cover("a moment and a gradient", (self.m[0] > 0) & (self.grads[1] < 0))
        held = [Sums(s, q) for s, q in zip(self.first, self.second, strict=True)]
        more = [Sums(one * x.first + g, two * x.second + g * g) for x, g in zip(held, self.grads, strict=True)]
        before, want = (
            [closed(m, v, x, powers, hyper) for m, v, x in zip(self.m, self.v, added, strict=True)]
            for added, powers in ((held, self.powers), (more, self.next))
        )
        state = State(tuple(x.m for x in before), tuple(x.v for x in before), *self.powers)
        k.scenario(hyper, state, params=self.weights, grads=self.grads)
        done = make(subject, form, self.weights, self.grads, state, hyper)
        pinned(k, f"{form}, a later step", done, self.weights, want, hyper)
