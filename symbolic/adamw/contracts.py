"""CrossHair contracts of AdamW: CROSS-AW-001 to -005 of adamw-kernel-v1, a second family beside Z3's inductions.

As in `symbolic.accumulation.contracts`, a factory takes a subject and gives a function of plain ints; the model runs on
`Ratio`. Weights, first moments and updates are any ints; what is squared, and every hyperparameter, is distinguished by
cases, so that each path is linear. A root is one of a number that is a square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradproof.harness import Ratio
from models.adamw.model import Hyper, State, fresh
from symbolic.crosshair_kit import Contract, Numbers, pick, same

RATES = 2
STEPS = 3


def hyper(number: Numbers, decay: int = 0, eps: int = 1) -> Hyper:
    """Rate 1/2, betas 1/2 and 3/4, and decay in quarters."""
    return Hyper(number(1) / RATES, number(1) / 2, number(3) / 4, number(eps), number(decay) / 4)


def numbers(number: Numbers, *given: int) -> tuple[Any, ...]:
    """A vector."""
    return tuple(number(x) for x in given)


def alike(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two vectors are equal."""
    return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))


def decoupled(subject: Any, number: Numbers = Ratio) -> Contract:
    """AW-INV-001: with and without decay the moments are equal, and each weight differs by rate decay theta."""

    def contract(d: int, g: int, p1: int, p2: int, m: int, u: int) -> bool:
        """
        pre: 1 <= d <= 2 and -1 <= g <= 1
        post: _
        """
        d, g = pick(d, 1, 2), pick(g, -1, 1)
        params, grads, state = numbers(number, p1, p2), numbers(number, g, 2), State(numbers(number, m, 1), (0, 1))
        made = [hyper(number, x) for x in (d, 0)]
        one, two = (subject.advance(subject.gradient(params, grads, h), state, h) for h in made)
        gone = [
            subject.moved(i, p, number(u), made[1]) - subject.moved(i, p, number(u), made[0])
            for i, p in enumerate(params)
        ]
        taken = all(same(x * (4 * RATES), p * d) for x, p in zip(gone, params, strict=True))
        return alike(one.m, two.m) and alike(one.v, two.v) and taken

    return contract


def nonnegative(subject: Any, number: Numbers = Ratio) -> Contract:
    """AW-BND-001: from any v >= 0 a step leaves (1 - b2) g^2 <= v' <= max(v, g^2)."""

    def contract(v: int, g: int) -> bool:
        """
        pre: v >= 0 and -2 <= g <= 2
        post: _
        """
        g = pick(g, -2, 2)
        after = subject.advance(numbers(number, g), State((number(0),), (number(v),)), hyper(number)).v[0]
        within = after <= (v if v > g * g else g * g)
        return bool(after >= 0) and bool(after * 4 >= g * g) and bool(within)

    return contract


def corrected_moments(subject: Any, state: State, given: Hyper) -> tuple[Any, Any]:
    """m_hat and v_hat of the first element."""
    one, two = subject.powers(state, given)
    return subject.corrected(state.m[0], one), subject.corrected(state.v[0], two)


def finite(subject: Any, number: Numbers = Ratio) -> Contract:
    """AW-BND-002: |m_hat| <= G and 0 <= v_hat <= G^2 over the first steps, where |g| <= G = 2."""

    def contract(g1: int, g2: int) -> bool:
        """
        pre: -2 <= g1 <= 2 and -2 <= g2 <= 2
        post: _
        """
        given, state = hyper(number), fresh(1)
        for g in (pick(g1, -2, 2), pick(g2, -2, 2)):
            state = subject.advance(numbers(number, g), state, given)
            try:
                m_hat, v_hat = corrected_moments(subject, state, given)
            except ZeroDivisionError:
                return False
            if not (m_hat >= -2 and m_hat <= 2 and v_hat >= 0 and v_hat <= 4):
                return False
        return True

    return contract


def corrects(subject: Any, number: Numbers = Ratio) -> Contract:
    """AW-INV-002: m_hat and v_hat of a constant gradient are it and its square, and each factor is above 1."""

    def contract(g: int) -> bool:
        """
        pre: -2 <= g <= 2
        post: _
        """
        given, state, g = hyper(number), fresh(1), pick(g, -2, 2)
        for _ in range(STEPS):
            state = subject.advance(numbers(number, g), state, given)
            try:
                m_hat, v_hat = corrected_moments(subject, state, given)
                factors = [subject.corrected(number(1), power) for power in subject.powers(state, given)]
            except ZeroDivisionError:
                return False
            if not (same(m_hat, g) and same(v_hat, g * g) and all(x > 1 for x in factors)):
                return False
        return True

    return contract


def first_step(subject: Any, form: str, given: Hyper, g: int, *more: Any) -> Any:
    """The first step of a form from moments m and v = 0: v_hat = g^2, so that every root is one of a square."""
    p, m = more
    return getattr(subject, form)((p,), (g,), State((m,), (0 * p,), 1, 1), given)


def vectorised(subject: Any, number: Numbers = Ratio) -> Contract:
    """AW-EQ-001: both arrangements give the paper's weight: (theta c - theta') (|g| + eps) (1 - b1) = rate m'."""

    def contract(g: int, d: int, p: int, m: int) -> bool:
        """
        pre: 1 <= g <= 2 and 0 <= d <= 1
        post: _
        """
        g, d = pick(g, 1, 2), pick(d, 0, 1)
        given = hyper(number, d, 2 * g + 1)  # g^2 + eps is a square too, so that eps under the root has a value
        one, two = (
            first_step(subject, form, given, number(g), number(p), number(m)) for form in ("step", "vectorised")
        )
        moved = number(p) * (1 - given.rate * given.decay) - two.params[0]
        due = (number(m) + g) / 2 * given.rate
        return (
            alike(one.params, two.params)
            and alike(one.state.m, two.state.m)
            and alike(one.state.v, two.state.v)
            and same(moved * (3 * g + 1) / 2, due)
        )

    return contract


def decays(subject: Any, number: Numbers = Ratio) -> Contract:
    """A weight that its decay changes."""

    def contract(p: int) -> bool:
        """
        post: not _
        """
        return not same(subject.moved(0, number(p), number(0), hyper(number, 1)), number(p))

    return contract


def keeps_a_square(subject: Any, number: Numbers = Ratio) -> Contract:
    """A second moment above zero after a gradient below it."""

    def contract(g: int) -> bool:
        """
        pre: -2 <= g <= 2
        post: not _
        """
        g = pick(g, -2, 2)
        state = subject.advance(numbers(number, g), State((number(0),), (number(0),)), hyper(number))
        return g < 0 and bool(state.v[0] > 0)

    return contract


def reaches_the_bound(subject: Any, number: Numbers = Ratio) -> Contract:
    """A corrected moment that is the largest gradient."""

    def contract(g: int) -> bool:
        """
        pre: -2 <= g <= 2
        post: not _
        """
        state = subject.advance(numbers(number, pick(g, -2, 2)), fresh(1), hyper(number))
        return same(corrected_moments(subject, state, hyper(number))[0], 2)

    return contract


def moves(subject: Any, number: Numbers = Ratio) -> Contract:
    """A step that moves the weight to another one than zero."""

    def contract(p: int) -> bool:
        """
        post: not _
        """
        done = first_step(subject, "vectorised", hyper(number), number(1), number(p), number(1))
        return not same(done.params[0], number(p)) and not same(done.params[0], number(0))

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {
    "decoupled": (decays,),
    "nonnegative": (keeps_a_square,),
    "finite": (reaches_the_bound,),
    "corrects": (reaches_the_bound,),
    "vectorised": (moves,),
}

BOUNDS: Mapping[str, Mapping[str, int]] = {
    "decoupled": {"elements": 2, "decays": 2, "gradients": 1},
    "nonnegative": {"steps": 1, "gradients": 2},
    "finite": {"steps": 2, "gradients": 2},
    "corrects": {"steps": 3, "gradients": 2},
    "vectorised": {"steps": 1, "gradients": 2},
}
