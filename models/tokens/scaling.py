"""One element under SGD and AdamW, to see what a factor on the gradient does: a missing 1/K is the factor K.

SGD is linear in the gradient, so the factor is one on the learning rate. AdamW divides the first moment by the root of
the second: m -> c m and v -> c^2 v leave m / sqrt v alone (Kingma and Ba 2015, section 2.1), and eps alone notices.
With default betas no gradients at all make |m| / sqrt v more than 7.28 (Cauchy and Schwarz on the two weighted sums).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradproof.harness import sqrt
from models.registry import CROSSING, Mutant, registered

Number = Any


@dataclass(frozen=True)
class State:
    """A weight with its first and second moment; for SGD `m` is the momentum buffer and `v` stays."""

    w: Number
    m: Number
    v: Number


@dataclass(frozen=True)
class SgdSetup:
    """Hyperparameters of SGD. `norm` is the most that a clip lets through, None: no clip."""

    rate: Number
    momentum: Number
    decay: Number
    norm: Number | None
    nesterov: bool


@dataclass(frozen=True)
class Setup:
    """Hyperparameters of AdamW, `norm` as for SGD."""

    rate: Number
    beta1: Number
    beta2: Number
    eps: Number
    decay: Number
    norm: Number | None = None


class Sgd:
    """torch.optim.SGD with momentum and nesterov, without dampening and weight decay."""

    def step(self, state: State, g: Number, setup: SgdSetup) -> State:
        """The state after a step on the gradient g."""
        d = self.gradient(g, state, setup)
        m = setup.momentum * state.m + d
        direction = d + setup.momentum * m if setup.nesterov else m
        return State(state.w - setup.rate * direction, m, state.v)

    def gradient(self, g: Number, state: State, setup: SgdSetup) -> Number:
        """What enters the buffer."""
        return g


class SgdDecay(Sgd):
    """SGD with weight decay, which is coupled: it is added to the gradient and not scaled with it."""

    def gradient(self, g: Number, state: State, setup: SgdSetup) -> Number:
        """g + decay w."""
        return g + setup.decay * state.w


class SgdClipped(Sgd):
    """SGD behind a clip, of one element: the norm is the magnitude."""

    def gradient(self, g: Number, state: State, setup: SgdSetup) -> Number:
        """g, at most `norm` in magnitude."""
        return clipped(g, setup.norm)


class SgdClippedAbove(Sgd):
    """The clip looks at the gradient and not at its magnitude."""

    def gradient(self, g: Number, state: State, setup: SgdSetup) -> Number:
        """g, at most `norm`; below there is no bound."""
        return setup.norm if g > setup.norm else g


class SgdEmpty(Sgd):
    """The empty body: stays at zero."""

    def step(self, state: State, g: Number, setup: SgdSetup) -> State:
        """A buffer that is no sum of gradients, and a weight that is the buffer."""
        return State(1 + g * g, g * g, state.v)


def clipped(g: Number, norm: Number) -> Number:
    """g, at most `norm` in magnitude."""
    if g > norm:
        return norm
    return -norm if g < -norm else g


class AdamW:
    """torch.optim.AdamW: decoupled decay, and eps beside the root of the corrected second moment."""

    def moments(self, state: State, g: Number, setup: Setup) -> tuple[Number, Number]:
        """First and second moment after the gradient g."""
        b1, b2 = setup.beta1, setup.beta2
        return b1 * state.m + (1 - b1) * g, b2 * state.v + (1 - b2) * g * g

    def direction(self, first: Number, root: Number, setup: Setup) -> Number:
        """Corrected first moment over the root of the corrected second and eps."""
        return first / (root + setup.eps)

    def step(self, state: State, g: Number, setup: Setup, corrections: tuple[Number, Number]) -> State:
        """The state after a step; `corrections` are 1 - beta1^t and 1 - beta2^t."""
        d = self.gradient(g, state, setup)
        m, v = self.moments(state, d, setup)
        update = self.direction(m / corrections[0], sqrt(v / corrections[1]), setup)
        return State(state.w * (1 - setup.rate * setup.decay) - setup.rate * update, m, v)

    def gradient(self, g: Number, state: State, setup: Setup) -> Number:
        """What enters the moments."""
        return g


class AdamEmpty(AdamW):
    """The empty body: no moment, no direction of its own."""

    def moments(self, state: State, g: Number, setup: Setup) -> tuple[Number, Number]:
        """Whatever the gradient is."""
        return g + 1, g * g + 1

    def direction(self, first: Number, root: Number, setup: Setup) -> Number:
        """A direction that knows nothing of the root."""
        return first + 8


class CoupledDecay(AdamW):
    """Adam with L2: the decay is added to the gradient."""

    def gradient(self, g: Number, state: State, setup: Setup) -> Number:
        """g + decay w."""
        return g + setup.decay * state.w


class AdamClipped(AdamW):
    """A clip stands before the moments."""

    def gradient(self, g: Number, state: State, setup: Setup) -> Number:
        """g, at most `norm` in magnitude."""
        return clipped(g, setup.norm)


class KeepsEps(AdamW):
    """An eps of its own beside the one that is set."""

    def direction(self, first: Number, root: Number, setup: Setup) -> Number:
        """Never quite zero."""
        return first / (root + setup.eps + 1)


class EpsInside(AdamW):
    """eps under the root: it is added to the second moment."""

    def direction(self, first: Number, root: Number, setup: Setup) -> Number:
        """first / sqrt(v + eps)."""
        return first / sqrt(root * root + setup.eps)


class NotSquared(AdamW):
    """The second moment is of the gradients, not of their squares."""

    def moments(self, state: State, g: Number, setup: Setup) -> tuple[Number, Number]:
        """Both linear."""
        m, _ = super().moments(state, g, setup)
        return m, setup.beta2 * state.v + (1 - setup.beta2) * abs(g)


_ROWS = [
    ("unclipped", "GA-LR-001", "nanoGPT#168", Sgd),
    ("sgd_decay", "GA-LR-001", "keras#19990", SgdDecay),
    ("sgd_clipped", "GA-LR-001", "nanoGPT#168", SgdClipped),
    ("clipped_above", "GA-LR-001", CROSSING, SgdClippedAbove),
    ("coupled_decay", "GA-LR-001", "pytorch#41679", CoupledDecay),
    ("adam_clipped", "GA-LR-001", "nanoGPT#168", AdamClipped),
    ("keeps_eps", "GA-LR-001", "nanochat#304", KeepsEps),
    ("eps_inside", "GA-LR-001", "spd#760", EpsInside),
    ("not_squared", "GA-LR-001", "tensorflow#9047", NotSquared),
]

SCALING_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
