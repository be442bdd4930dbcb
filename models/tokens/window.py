"""Windows of token counts: K micro-batches with N_m valid targets each, weighed by their window's total.

A target is valid when its label is not `ignore_index`. The right normaliser of a window is the total of its valid
targets, so that each weighs 1 / sum N_m whatever micro-batch it lies in. A window without a valid target has no
gradient: nothing is divided and the optimizer does not step. Equation `token_window` of the training contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Number = Any
Vector = tuple[Any, ...]


@dataclass(frozen=True)
class TokenBatch:
    """One micro-batch: the sum of its valid tokens' gradients (one number an element), valid and ignored labels."""

    total: Vector
    valid: Number
    ignored: Number


Window = Sequence[TokenBatch]


@dataclass(frozen=True)
class TokenStep:
    """What a window did: the gradient that the optimizer consumed, the weights after it, and the number of steps."""

    gradient: Vector
    params: Vector
    steps: int


class TokenWindow:
    """The reference: summed losses, divided by the window's valid tokens as each is accumulated."""

    def train(self, params: Vector, batches: Window, k: int, rate: Number) -> list[TokenStep]:
        """Train on windows of k micro-batches in turn, the last with what is left; one record a window."""
        windows = [batches[first : first + k] for first in range(0, len(batches), k)]
        done: list[TokenStep] = []
        for number in range(len(windows)):
            done.append(self.window(done[-1].params if done else params, windows, number, rate))
        return done

    def window(self, params: Vector, windows: Sequence[Window], number: int, rate: Number) -> TokenStep:
        """Train on window `number`, counted from 0, of all windows."""
        return self.run(params, windows[number], rate)

    def run(self, params: Vector, window: Window, rate: Number) -> TokenStep:
        """Train on one window from `params` with SGD at the learning rate `rate`."""
        buffer: Vector = (0,) * len(params)
        if self.skips(window):
            return TokenStep(buffer, params, 0)
        for batch in window:
            share = self.share(batch, window)
            buffer = tuple(b + g for b, g in zip(buffer, share, strict=True))
        buffer = self.finish(buffer, window)
        return TokenStep(buffer, tuple(p - rate * g for p, g in zip(params, buffer, strict=True)), 1)

    def skips(self, window: Window) -> bool:
        """Whether the window has no valid token, and so no step."""
        return bool(sum(b.valid for b in window) == 0)

    def normaliser(self, window: Window) -> Number:
        """The total of valid tokens in the window."""
        return sum(b.valid for b in window)

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """What the micro-batch adds to the buffer."""
        total = self.normaliser(window)
        return tuple(g / total for g in batch.total)

    def finish(self, buffer: Vector, window: Window) -> Vector:
        """Nothing is left to be done at the boundary."""
        return buffer


class WeightedMeans(TokenWindow):
    """The same from mean losses: the mean of a micro-batch times N_m / sum N_m; one without a target adds nothing."""

    def share(self, batch: TokenBatch, window: Window) -> Vector:
        """Mean, then weight. The mean of no target is 0 / 0, which is never taken."""
        if batch.valid == 0:
            return (0,) * len(batch.total)
        return tuple(self.weighed(g / batch.valid, batch, window) for g in batch.total)

    def weighed(self, mean: Number, batch: TokenBatch, window: Window) -> Number:
        """A mean gradient times the micro-batch's part of the window's valid tokens."""
        return mean * batch.valid / self.normaliser(window)


class FixedConstant(WeightedMeans):
    """What is often done: (1/K) times the sum of the micro-batches' mean gradients. Right for equal counts alone."""

    def weighed(self, mean: Number, batch: TokenBatch, window: Window) -> Number:
        """The mean over K: a micro-batch without a target counts too."""
        return mean / len(window)


class Empty(TokenWindow):
    """The empty body: never steps."""

    def run(self, params: Vector, window: Window, rate: Number) -> TokenStep:
        """Return at once."""
        return TokenStep((0,) * len(params), params, 0)
