"""The gradient estimate of an effective batch that is drawn with replacement, and what its variance comes to.

A sample of a finite population stands for its gradient in one coordinate; the trace of the covariance is the sum over
the coordinates. For B independent draws the variance of the mean is exactly sigma^2 / B, where sigma^2 is the mean
square distance of the population from its mean (Cochran, Sampling Techniques, 2.3 with replacement).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.registry import Mutant, registered_for

Number = Any


class Estimate:
    """The reference: micro-batch i takes the i-th stretch of the window's draws; every share is 1/N."""

    def run(self, population: Sequence[Number], draws: Sequence[int], size: int, n: int) -> Number | None:
        """The accumulated gradient of n micro-batches of `size`; `draws` are size * n independent places."""
        total = None
        for i in range(n):
            taken = [population[place % len(population)] for place in self.part(draws, i, size, n, len(population))]
            share = self.share(sum(taken[1:], taken[0]) / size, n)
            total = share if total is None else total + share
        return total

    def part(self, draws: Sequence[int], i: int, size: int, n: int, population: int) -> Sequence[int]:
        """The places that micro-batch i takes."""
        return draws[i * size : (i + 1) * size]

    def share(self, mean: Number, n: int) -> Number:
        """What a micro-batch adds."""
        return mean / n


class NoEstimate(Estimate):
    """The empty body."""

    def run(self, population: Sequence[Number], draws: Sequence[int], size: int, n: int) -> Number | None:
        return None


class Duplicated(Estimate):
    """Every micro-batch takes the samples of the first one: the variance is that of one micro-batch."""

    def part(self, draws: Sequence[int], i: int, size: int, n: int, population: int) -> Sequence[int]:
        return draws[:size]


class Overlapping(Estimate):
    """A micro-batch begins with the sample that the one before it ended with."""

    def part(self, draws: Sequence[int], i: int, size: int, n: int, population: int) -> Sequence[int]:
        start = max(0, i * size - i)
        return draws[start : start + size] if size > 1 else draws[max(0, i - 1) : max(0, i - 1) + 1]


class TailWithoutReplacement(Estimate):
    """The last micro-batch avoids what the window has drawn, as long as there is something left."""

    def part(self, draws: Sequence[int], i: int, size: int, n: int, population: int) -> Sequence[int]:
        mine = list(draws[i * size : (i + 1) * size])
        if i < n - 1 or n == 1:
            return mine
        used, taken = set(draws[: i * size]), []
        for place in mine:
            for step in range(population):
                if (place + step) % population not in used:
                    place = (place + step) % population
                    break
            used.add(place)
            taken.append(place)
        return taken


class UnscaledSum(Estimate):
    """No 1/N: the variance is N^2 times as large."""

    def share(self, mean: Number, n: int) -> Number:
        return mean


_ROWS = (
    ("same_samples_again", "trl#3675", Duplicated),
    ("overlapping_micro_batches", "d2l-zh#87", Overlapping),
    ("tail_without_replacement", "GradCache#18", TailWithoutReplacement),
    ("variance_unscaled", "transformers#34191", UnscaledSum),
)
MUTANTS: Mapping[str, Mutant] = registered_for("GA-VAR-001", _ROWS)
