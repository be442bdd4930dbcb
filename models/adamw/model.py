"""AdamW in plain Python: moments, bias correction, decoupled weight decay. Subject of `adamw-kernel-v1`.

Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2, with b = beta, l = learning rate, d = weight decay:

    m' = b1 m + (1 - b1) g            v' = b2 v + (1 - b2) g^2
    m_hat = m' / (1 - b1^t)           v_hat = v' / (1 - b2^t)
    theta' = theta (1 - l d) - l m_hat / (sqrt(v_hat) + eps)

Written once in operators and `gradproof.arith`; the same text runs on float, Fraction, NumPy scalars, torch tensors,
symbolic reals and stubbed floats. A vector is a tuple of numbers, one for each element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradproof.harness import sqrt

Number = Any
Vector = tuple[Any, ...]


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters: 0 <= beta < 1; `rate` and `decay` multiply, as torch's lr and weight_decay do."""

    rate: Number
    beta1: Number
    beta2: Number
    eps: Number
    decay: Number


@dataclass(frozen=True)
class State:
    """Moments of every element after t steps, with b1^t and b2^t."""

    m: Vector
    v: Vector
    power1: Number = 1
    power2: Number = 1


@dataclass(frozen=True)
class Step:
    """What one step did: weights and state after it, corrected moments, and the factors 1 / (1 - b^t)."""

    params: Vector
    state: State
    m_hat: Vector
    v_hat: Vector
    factor1: Number
    factor2: Number


def fresh(width: int) -> State:
    """The state before the first step."""
    return State((0,) * width, (0,) * width)


class AdamW:
    """The reference, in the arrangement of the paper (`step`) and in that of torch's kernels (`vectorised`)."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """One step, each element by itself."""
        grads = self.gradient(params, grads, hyper)
        now = self.advance(grads, state, hyper)
        power1, power2 = self.powers(now, hyper)
        m_hat = tuple(self.corrected(m, power1) for m in now.m)
        v_hat = tuple(self.corrected(v, power2) for v in now.v)
        moves = tuple(self.update(m, v, hyper) for m, v in zip(m_hat, v_hat, strict=True))
        after = tuple(self.moved(p, u, hyper) for p, u in zip(params, moves, strict=True))
        return Step(after, now, m_hat, v_hat, self.corrected(1, power1), self.corrected(1, power2))

    def vectorised(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """The same step as torch's foreach and fused kernels arrange it: corrections on scalars, not on elements."""
        now = self.advance(self.gradient(params, grads, hyper), state, hyper)
        power1, power2 = self.powers(now, hyper)
        size, root = hyper.rate / (1 - power1), sqrt(1 - power2)
        kept = tuple(p * (1 - hyper.rate * hyper.decay) for p in params)
        moves = tuple(size * m / self.below(v, root, hyper) for m, v in zip(now.m, now.v, strict=True))
        after = tuple(p - u for p, u in zip(kept, moves, strict=True))
        m_hat, v_hat = (tuple(x / (1 - p) for x in xs) for xs, p in ((now.m, power1), (now.v, power2)))
        return Step(after, now, m_hat, v_hat, 1 / (1 - power1), 1 / (1 - power2))

    def below(self, v: Number, root: Number, hyper: Hyper) -> Number:
        """The divisor of the vectorised form: sqrt(v) over sqrt(1 - b2^t), and eps outside both."""
        return sqrt(v) / root + hyper.eps

    def gradient(self, params: Vector, grads: Vector, hyper: Hyper) -> Vector:
        """The gradient that enters the moments: nothing of the weights."""
        return grads

    def advance(self, grads: Vector, state: State, hyper: Hyper) -> State:
        """Phases update_first_moment and update_second_moment, and one more factor of each power."""
        m = tuple(self.first(old, g, hyper) for old, g in zip(state.m, grads, strict=True))
        v = tuple(self.second(old, g, hyper) for old, g in zip(state.v, grads, strict=True))
        return State(m, v, state.power1 * hyper.beta1, state.power2 * hyper.beta2)

    def first(self, m: Number, g: Number, hyper: Hyper) -> Number:
        """Equation adam_moments."""
        return m * hyper.beta1 + g * (1 - hyper.beta1)

    def second(self, v: Number, g: Number, hyper: Hyper) -> Number:
        """Equation adam_variance; the square is written so that its range is seen to start at zero."""
        return v * hyper.beta2 + abs(g) * abs(g) * (1 - hyper.beta2)

    def powers(self, state: State, hyper: Hyper) -> tuple[Number, Number]:
        """b1^t and b2^t of the step that is made."""
        return state.power1, state.power2

    def corrected(self, value: Number, power: Number) -> Number:
        """Equation bias_correction."""
        return value / (1 - power)

    def update(self, m_hat: Number, v_hat: Number, hyper: Hyper) -> Number:
        """Phase adam_step: what the gradient moves the weight by."""
        return hyper.rate * m_hat / (sqrt(v_hat) + hyper.eps)

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """Equation weight_update with phase weight_decay: the decay multiplies the weight alone."""
        return p * (1 - hyper.rate * hyper.decay) - update


class Empty(AdamW):
    """The empty body: it has the reference's interface and does nothing. Every harness must refute it."""

    def step(self, params: Vector, grads: Vector, state: State, hyper: Hyper) -> Step:
        """Everything stays as it was; the corrections are those of no step at all."""
        return Step(params, state, state.m, state.v, 1, 1)

    vectorised = step

    def advance(self, grads: Vector, state: State, hyper: Hyper) -> State:
        """The state as it was."""
        return state

    def moved(self, p: Number, update: Number, hyper: Hyper) -> Number:
        """The weight as it was."""
        return p
