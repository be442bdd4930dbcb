"""Harnesses over windows of token counts: GA-TOK-001 and GA-TOK-002 of the training contract.

A micro-batch has N_m valid targets, any integer from 0 up, and any number of ignored ones. The sum of its valid
tokens' gradients is an arbitrary real (zero where there is none), so the applied gradient is sum_m S_m / sum_m N_m for
all of them only if every valid token weighs 1 / sum_m N_m: one token's gradient may be anything while the others stay.

What is demanded of the right normaliser is sums over windows, nowhere divided: G sum N = sum S in each window, and
after window t the weights are those of the start less the rate times the sum of the gradients of windows 1 .. t.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import product
from operator import and_
from typing import Any

from models.tokens.window import TokenBatch, TokenStep

WEIGHT, EQUAL = "GA-TOK-001", "GA-TOK-002"


def counted(k: Any, count: int) -> list[Any]:
    """Valid targets of each micro-batch: integers from 0 up, without an upper bound."""
    return [k.int(f"N[{m}]", 0) for m in range(count)]


def window_of(k: Any, counts: Sequence[Any]) -> list[TokenBatch]:
    """Micro-batches of these counts, with arbitrary gradients and any number of ignored labels."""
    batches = []
    for m, n in enumerate(counts):
        sums = k.reals(f"S{m}", k.bound("elements"))
        for s in sums:
            k.assume((n > 0) | (s == 0))
        batches.append(TokenBatch(sums, n, k.int(f"ignored[{m}]", 0)))
    return batches


class Training:
    """A subject's training on windows of `size` of these micro-batches, from any weights at any learning rate."""

    def __init__(self, k: Any, clause: str, loop: Any, batches: Sequence[TokenBatch], size: int) -> None:
        self.k, self.clause = k, clause
        self.start, self.rate = k.reals("w", k.bound("elements")), k.real("rate")
        self.windows = [batches[first : first + size] for first in range(0, len(batches), size)]
        k.scenario(list(batches), params=self.start, rate=self.rate)
        try:
            self.steps: list[TokenStep] = loop.train(self.start, list(batches), size, self.rate)
        except ZeroDivisionError:
            k.check(clause, False, "a division by zero")
            raise

    def check(self, holds: Any, words: str) -> None:
        """One demand of the clause."""
        self.k.check(self.clause, holds, words)

    def equal(self, pairs: Iterable[tuple[Any, Any]], words: str) -> None:
        """Every pair is equal: one question for the elements of a vector."""
        self.check(reduce(and_, [self.k.same(got, want) for got, want in pairs]), words)

    def steps_where_a_token_is_valid(self) -> None:
        """A step in each window that has a valid token; no gradient and no step in the others."""
        self.check(len(self.steps) == len(self.windows), "a record for each window")
        for t, (step, window) in enumerate(zip(self.steps, self.windows, strict=True), 1):
            self.check(len(step.gradient) == len(step.params) == len(self.start), f"window {t}: every element")
            if sum(b.valid for b in window) == 0:
                self.check(step.steps == 0, f"window {t}, no valid token: no step")
                self.equal([(g, 0) for g in step.gradient], f"window {t}, no valid token: gradient zero")
            else:
                self.check(step.steps == 1, f"window {t}: one step")

    def weights_follow(self) -> None:
        """After each window the weights are those of the start less rate times the sum of all gradients so far."""
        for t, step in enumerate(self.steps, 1):
            sums = [sum(part) for part in zip(*(s.gradient for s in self.steps[:t]), strict=True)]
            moved = [before - after for before, after in zip(self.start, step.params, strict=True)]
            pairs = [(m, self.rate * g) for m, g in zip(moved, sums, strict=True)]
            self.equal(pairs, f"window {t}: the step is of its gradient")

    def each_token_weighs_the_same(self) -> None:
        """G sum N = sum S in every window and every element."""
        self.steps_where_a_token_is_valid()
        for t, (step, window) in enumerate(zip(self.steps, self.windows, strict=True), 1):
            total = sum(b.valid for b in window)
            sums = [sum(part) for part in zip(*(b.total for b in window), strict=True)]
            pairs = [(g * total, want) for g, want in zip(step.gradient, sums, strict=True)]
            self.equal(pairs, f"window {t}: each token weighs 1 / sum N_m")
        self.weights_follow()


def shapes(micro_batches: int, windows: int) -> list[tuple[int, int]]:
    """(K, micro-batches in all): every K, full windows and tails, at most that many micro-batches and windows."""
    sizes = range(1, micro_batches + 1)
    return [(size, count) for count in sizes for size in range(1, count + 1) if count <= size * windows]


def token_weights(k: Any, loop: Any) -> None:
    """GA-TOK-001 over several windows with counts of their own, the last one short: 1 / sum N_m each in every one."""
    size, count = k.choose("K and micro-batches", shapes(k.bound("micro_batches"), k.bound("windows")))
    counts = counted(k, count)
    batches = window_of(k, counts)
    training = Training(k, WEIGHT, loop, batches, size)
    parts = training.windows
    totals = [sum(b.valid for b in window) for window in parts]
    k.cover("unequal counts", (counts[0] == 1) & (counts[-1] == 3))
    k.cover("a micro-batch without a target", (counts[0] == 0) & (totals[0] > 0))
    k.cover("an ignored label", (batches[0].ignored > 0) & (totals[0] > 0))
    k.cover("the largest window", size == k.bound("micro_batches"))
    if len(parts) > 2 and size > 1:
        k.cover("no valid target in an inner window", (totals[0] > 0) & (totals[1] == 0) & (totals[2] > 0))
        k.cover("a tail whose count is its own", (len(parts[-1]) < size) & (totals[-1] > totals[0]))
    training.each_token_weighs_the_same()


def equal_counts(k: Any, loop: Any) -> None:
    """GA-TOK-002: N_m = N >= 1 for all m, and the applied gradient is sum S_m / (N K)."""
    count, n = k.upto("micro_batches"), k.int("N", 1)
    batches = window_of(k, [n] * count)
    k.cover("the largest window of counts above one", (count == k.bound("micro_batches")) & (n > 1))
    training = Training(k, EQUAL, loop, batches, count)
    training.steps_where_a_token_is_valid()
    for j, g in enumerate(training.steps[0].gradient):
        training.check(k.same(g * n * count, sum(b.total[j] for b in batches)), f"element {j}: 1 / (N K) each")
    training.weights_follow()


def fixed_constant(k: Any, loop: Any) -> None:
    """GA-TOK-002: what the fixed constant consumes, (1/K) sum S_m / N_m over the micro-batches with a target."""
    counts = counted(k, k.upto("micro_batches"))
    batches = window_of(k, counts)
    k.cover("an empty micro-batch beside another", (counts[0] == 0) & (counts[-1] > 1))
    training = Training(k, EQUAL, loop, batches, len(batches))
    training.steps_where_a_token_is_valid()
    for j, g in enumerate(training.steps[0].gradient):
        means = sum(b.total[j] / b.valid for b in batches if b.valid > 0)
        training.check(k.same(g * len(batches), means), f"element {j}: the means over K")
    training.weights_follow()


def smallest(least: int, micro_batches: int, tokens: int) -> list[tuple[int, ...]]:
    """Every window of counts from `least` up with a valid token, fewer micro-batches first, then fewer tokens."""
    sizes = range(1, micro_batches + 1)
    found = [c for k in sizes for c in product(range(least, tokens + 1), repeat=k) if 0 < sum(c) <= tokens]
    return sorted(found, key=lambda c: (len(c), sum(c), c))


def in_order(k: Any, loop: Any) -> None:
    """GA-TOK-001 window by window, the smallest first: the first that is refuted is the smallest counterexample."""
    options = smallest(int(k.params["least"]), k.bound("micro_batches"), k.bound("tokens"))
    counts = k.choose("counts", options)
    batches = window_of(k, counts)
    k.cover("unequal counts", len(set(counts)) > 1)
    Training(k, WEIGHT, loop, batches, len(batches)).each_token_weighs_the_same()
