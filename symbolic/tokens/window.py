"""Harnesses over windows of token counts: GA-TOK-001 and GA-TOK-002 of the training contract.

A micro-batch has N_m valid targets, any integer from 0 up, and any number of ignored ones. The sum of its valid
tokens' gradients is an arbitrary real (zero where there is none), so the applied gradient is sum_m S_m / sum_m N_m for
all of them only if every valid token weighs 1 / sum_m N_m: one token's gradient may be anything while the others stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
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


def stepped(k: Any, clause: str, loop: Any, batches: list[TokenBatch]) -> tuple[TokenStep, Sequence[Any]]:
    """The loop's step and the weights before it; a division by zero breaks the clause."""
    params = k.reals("w", k.bound("elements"))
    try:
        return loop.run(params, batches, 1), params
    except ZeroDivisionError:
        k.check(clause, False, "a division by zero")
        raise


def weighs(k: Any, clause: str, step: TokenStep, params: Sequence[Any], batches: Sequence[TokenBatch]) -> None:
    """One step, with the mean over the window's valid tokens."""
    total = sum(b.valid for b in batches)
    k.check(clause, step.steps == 1, "one step")
    k.check(clause, len(step.gradient) == len(params), "every element has a gradient")
    for j, (g, before, after) in enumerate(zip(step.gradient, params, step.params, strict=True)):
        k.check(clause, k.same(g * total, sum(b.total[j] for b in batches)), f"element {j}: 1 / sum N_m each")
        k.check(clause, k.same(before - after, g), f"element {j}: the step is of that gradient")


def token_weights(k: Any, loop: Any) -> None:
    """GA-TOK-001: 1 / sum N_m each, for all counts; no valid token at all is no gradient and no step."""
    counts = counted(k, k.upto("micro_batches"))
    batches = window_of(k, counts)
    total = sum(counts)
    k.cover("unequal counts", (counts[0] == 1) & (counts[-1] == 3))
    k.cover("a micro-batch without a target", (counts[0] == 0) & (total > 0))
    k.cover("an ignored label", (batches[0].ignored > 0) & (total > 0))
    k.cover("no valid target in the window", total == 0)
    step, params = stepped(k, WEIGHT, loop, batches)
    if total == 0:
        k.check(WEIGHT, step.steps == 0, "no valid token: no step")
        for j, (g, before, after) in enumerate(zip(step.gradient, params, step.params, strict=True)):
            k.check(WEIGHT, k.same(g, 0), f"no valid token: element {j} has gradient zero")
            k.check(WEIGHT, k.same(before, after), f"no valid token: element {j} stays")
        return
    weighs(k, WEIGHT, step, params, batches)


def equal_counts(k: Any, loop: Any) -> None:
    """GA-TOK-002: N_m = N >= 1 for all m, and the applied gradient is sum S_m / (N K)."""
    count = k.upto("micro_batches")
    n = k.int("N", 1)
    batches = window_of(k, [n] * count)
    k.cover("the largest window", count == k.bound("micro_batches"))
    k.cover("a count above one", n > 1)
    step, params = stepped(k, EQUAL, loop, batches)
    k.check(EQUAL, step.steps == 1, "one step")
    for j, (g, before, after) in enumerate(zip(step.gradient, params, step.params, strict=True)):
        k.check(EQUAL, k.same(g * n * count, sum(b.total[j] for b in batches)), f"element {j}: 1 / (N K) each")
        k.check(EQUAL, k.same(before - after, g), f"element {j}: the step is of that gradient")


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
    step, params = stepped(k, WEIGHT, loop, batches)
    weighs(k, WEIGHT, step, params, batches)
