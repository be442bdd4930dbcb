"""How far the fixed constant (1/K) sum of means lies from 1 / sum N_m: the error, and bounds on it.

Micro-batch m has N_m valid tokens with mean gradient g_m, |g_m| <= 1 where every token's gradient is; S = sum N_m. The
fixed constant gives g_m the share 1/K, the right normaliser N_m / S, so the update errs by sum (1/K - N_m / S) g_m, at
most sum |1/K - N_m / S|. With r = max N / min N and j of the K micro-batches above the mean S / K this is at most

    2 j (K - j) (r - 1) / (K (K - j + r j)),   largest over j = 1 .. K - 1,

because those j hold at most r j / (r j + K - j) of the tokens. With y = j / K free it is largest at
y = 1 / (1 + sqrt r):

    2 (sqrt r - 1) / (sqrt r + 1)   for every K,

where the difference is 2 (s - 1) (1 - (s + 1) y)^2 / ((s + 1) (1 + (s^2 - 1) y)) >= 0, s = sqrt r. It is attained
for each integer s: s micro-batches of N tokens and one of s^2 N.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.registry import CROSSING, Mutant, registered

Number = Any


class Bias:
    """The reference: the error of one micro-batch's share and the two bounds."""

    def error(self, tokens: Number, mean: Number, k: Number, total: Number) -> Number:
        """Share under the fixed constant less the right share, times the mean gradient."""
        return mean / k - mean * tokens / total

    def at_most(self, s: Number) -> Number:
        """Bound for every K, of s = sqrt(max N / min N)."""
        return 2 * (s - 1) / (s + 1)

    def with_above(self, above: int, k: int, r: Number) -> Number:
        """Bound with `above` of the k micro-batches above the mean, of r = max N / min N."""
        return 2 * above * (k - above) * (r - 1) / (k * (k - above + r * above))


class Empty(Bias):
    """Says that there is no bias."""

    def at_most(self, s: Number) -> Number:
        """None at all."""
        return 0 * s

    def with_above(self, above: int, k: int, r: Number) -> Number:
        """None at all."""
        return 0 * r


class HalfAndHalf(Bias):
    """Takes equally many long and short micro-batches for the worst case: (r - 1) / (r + 1)."""

    def at_most(self, s: Number) -> Number:
        """The bound at y = 1/2."""
        return (s * s - 1) / (s * s + 1)

    def with_above(self, above: int, k: int, r: Number) -> Number:
        """The same, whatever K is."""
        return (r - 1) / (r + 1)


class OneOutlier(Bias):
    """Takes one micro-batch for all the error: the others err by as much again, which is forgotten."""

    def at_most(self, s: Number) -> Number:
        """Half of it."""
        return (s - 1) / (s + 1)

    def with_above(self, above: int, k: int, r: Number) -> Number:
        """Half of it."""
        return super().with_above(above, k, r) / 2


class SumOfMeans(Bias):
    """The 1/K is missing as well."""

    def error(self, tokens: Number, mean: Number, k: Number, total: Number) -> Number:
        """Share 1 instead of 1/K."""
        return mean - mean * tokens / total


class HalfError(Bias):
    """Half of the error: every bound on it holds all the more."""

    def error(self, tokens: Number, mean: Number, k: Number, total: Number) -> Number:
        """The mean of the two shares in place of the right one."""
        return super().error(tokens, mean, k, total) / 2


_ROWS = [
    ("half_and_half", "GA-TOK-002", "torchtitan#2206", HalfAndHalf),
    ("one_outlier", "GA-TOK-002", "transformers#34191", OneOutlier),
    ("sum_of_means", "GA-TOK-002", "mlx-lm#1413", SumOfMeans),
    ("half_error", "GA-TOK-002", CROSSING, HalfError),
]

BIAS_MUTANTS: Mapping[str, Mutant] = registered(_ROWS)
