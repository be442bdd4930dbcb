"""CrossHair's contract of AdamW: CROSS-AW-001 of adamw-kernel-v1, a second family of solvers beside Z3's induction.

As in `symbolic.accumulation.contracts`, a factory takes a subject and gives a function of plain ints; the model runs on
`Ratio`. Weights and the first moment before the first step are any ints. Signs of the gradients and the decay are
distinguished by cases, so that each path is linear. Every root is one of a square: the second moment starts at zero and
an element's gradients have one size, so v_hat = g^2; 1 - b2 and 1 - b2^2 are squares, and so is g^2 + eps, which a
wrong step may take the root of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gradproof.harness import Ratio
from models.adamw.model import Hyper, State, Step
from symbolic.adamw.closed_form import Sums, closed, power, sums
from symbolic.crosshair_kit import Contract, Numbers, pick, same

RATE, BETA1, BETA2, EPS = Fraction(1, 2), Fraction(1, 2), Fraction(24, 25), Fraction(105, 16)
SIZES = (1, 2)
"""|g| of each element."""
STEPS = {"step": 3, "vectorised": 2}
"""Steps of a form. The third root of 1 - b2^t is no rational, and the vectorised form takes it."""


def hyper(number: Numbers, decay: int) -> Hyper:
    """One choice of rationals, and the decay in quarters."""
    rate, one, two, eps = (number(x.numerator) / x.denominator for x in (RATE, BETA1, BETA2, EPS))
    return Hyper(rate, one, two, eps, number(decay) / 4)


def alike(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Whether two vectors are equal."""
    return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))


def signed(code: int, t: int) -> tuple[int, int]:
    """The gradients of step t: the first element's sign is bit t of the code, the second's is that of bit 0."""
    return tuple(size if code >> bit & 1 else -size for size, bit in zip(SIZES, (t, 0), strict=True))  # type: ignore[return-value]


def decoupled(done: Step, without: Step, params: Sequence[Any], d: int) -> bool:
    """AW-INV-001: the moments are those without decay, and each weight differs by rate decay theta."""
    taken = all(same((b - a) * 8, p * d) for p, a, b in zip(params, done.params, without.params, strict=True))
    return taken and alike(done.state.m, without.state.m) and alike(done.state.v, without.state.v)


def corrected(done: Step, grads: Sequence[int]) -> bool:
    """AW-BND-001, AW-BND-002, AW-INV-002, of the second element, whose gradient is one number in all steps."""
    g, m_hat, v_hat = grads[1], done.m_hat[1], done.v_hat[1]
    return (
        same(m_hat, g)
        and same(v_hat, g * g)
        and all(v >= 0 for v in done.state.v)
        and done.factor1 > 1
        and done.factor2 > 1
    )


def is_closed_form(done: Step, params: Sequence[Any], m: Any, rows: Sequence[tuple[int, int]], given: Hyper) -> bool:
    """AW-EQ-001: (theta c - theta') (1 - b1^t) (|g| + eps) = rate m_t, with both moments as sums over the gradients."""
    t = len(rows)
    powers, zero = (power(given.beta1, t), power(given.beta2, t)), 0 * m
    for i, size in enumerate(SIZES):
        added: Sums = sums([row[i] for row in rows], given)
        want = closed((m, zero)[i], zero, added, powers, given)
        moved = params[i] * (1 - given.rate * given.decay) - done.params[i]
        if not (same(done.state.m[i], want.m) and same(done.state.v[i], want.v)):
            return False
        if not same(moved * (1 - want.power1) * (size + given.eps), given.rate * want.m):
            return False
    return len(done.params) == len(SIZES)


def closed_form(subject: Any, number: Numbers = Ratio) -> Contract:
    """All obligations, of both forms, over the first steps of a training: closed moments, weights and corrections."""

    def contract(code: int, d: int, p: int, q: int, m: int) -> bool:
        """
        pre: 0 <= code <= 7 and 1 <= d <= 2
        post: _
        """
        code, d = pick(code, 0, 7), pick(d, 1, 2)
        for form, steps in STEPS.items():
            given, plain = hyper(number, d), hyper(number, 0)
            params, rows = (number(p), number(q)), [signed(code, t) for t in range(steps)]
            state = State((number(m), number(0)), (number(0), number(0)), number(1), number(1))
            for t in range(steps):
                grads = tuple(number(g) for g in rows[t])
                try:
                    done, without = (getattr(subject, form)(params, grads, state, h) for h in (given, plain))
                except (ValueError, ZeroDivisionError):  # the right step takes roots of squares, and divides by no zero
                    return False
                if not decoupled(done, without, params, d) or not corrected(done, rows[t]):
                    return False
                if not is_closed_form(done, params, number(m), rows[: t + 1], given):
                    return False
                state = done.state
        return True

    return contract


def moves(subject: Any, number: Numbers = Ratio) -> Contract:
    """A step that moves the weight to another one than zero."""

    def contract(p: int) -> bool:
        """
        post: not _
        """
        zero = number(0)
        state = State((number(1),), (zero,), number(1), number(1))
        done = subject.vectorised((number(p),), (number(1),), state, hyper(number, 1))
        return not same(done.params[0], number(p)) and not same(done.params[0], zero)

    return contract


def keeps_a_square(subject: Any, number: Numbers = Ratio) -> Contract:
    """A second moment above zero after a gradient below it."""

    def contract(g: int) -> bool:
        """
        pre: -2 <= g <= 2
        post: not _
        """
        g, zero = pick(g, -2, 2), number(0)
        state = subject.advance((number(g),), State((zero,), (zero,)), hyper(number, 0))
        return g < 0 and bool(state.v[0] > 0)

    return contract


COVERS: Mapping[str, Sequence[Callable[..., Contract]]] = {"closed_form": (moves, keeps_a_square)}

BOUNDS: Mapping[str, Mapping[str, int]] = {"closed_form": {"steps": 3, "elements": 2, "decays": 2}}
