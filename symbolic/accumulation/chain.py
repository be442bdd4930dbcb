"""Harnesses of any length on linear floats: KANI-GA-020 to -023 and -031 of the contract.

The loop is run on numbers that are linear in their inputs up to a bounded rounding error; each claim is decided by a
certificate. So N is as large as a real window is.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gradproof.harness import accumulation_bound, exact, scaling_bound
from models.accumulation.loop import Config, MicroBatch
from symbolic.accumulation.loop import columns, mean, one_window, only_update, run_loop


def within_tolerance(k: Any, loop: Any) -> None:
    """GA-EQ-001 in floats at one N: |G_accum - G_full| <= epsilon, for each forward format that the claim names."""
    forward = k.choose("forward", list(k.params["forward"]))
    n = k.bound("micro_batches")
    made, config = ("fp32", Config(n)) if forward == "fp32" else ("fp64", Config(n, gradient_format="fp16"))
    grads = columns(k, lambda name: k.floats(name, n, made, -1, 1))
    applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, config))
    k.cover("the last format", forward == list(k.params["forward"])[-1])
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        error = abs(exact(got) - mean(row))
        k.check("GA-EQ-001", error <= k.tolerance("GA-EQ-001", forward), f"{forward}, N={n}, element {j}")


def sharp_bound(k: Any, loop: Any) -> None:
    """GA-EQ-001 in fp32: the error is at most u (N^2 - 1) / (3 N), and what underflow in g / N adds, for N = 2^k."""
    n = k.bound("micro_batches")
    grads = columns(k, lambda name: k.floats(name, n, "fp32", -1, 1))
    applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, Config(n)))
    most = accumulation_bound("fp32", n, Fraction(1)) + scaling_bound("fp32", n, Fraction(1))
    k.cover("a power of two", n & (n - 1) == 0)
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        k.check("GA-EQ-001", abs(exact(got) - mean(row)) <= most, f"N={n}, element {j}: E_N = {float(most):.6g}")


def weighted(k: Any, loop: Any) -> None:
    """GA-EQ-001 in fp32 with weights n_i / n: |G_accum - sum of (n_i / n) g_i| <= epsilon, for given counts."""
    n, given = k.bound("micro_batches"), list(k.params["counts"])
    counts = [given[i % len(given)] for i in range(n)]
    grads = columns(k, lambda name: k.floats(name, n, "fp32", -1, 1))
    batches = [MicroBatch(0, row, c) for row, c in zip(zip(*grads, strict=True), counts, strict=True)]
    applied = only_update(k, "GA-EQ-001", run_loop(k, loop, batches, Config(n), (0,) * len(grads)))
    k.cover("unequal counts", len(set(counts)) > 1)
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        shares = [exact(g) * Fraction(c, sum(counts)) for g, c in zip(row, counts, strict=True)]
        error = abs(exact(got) - sum(shares[1:], shares[0]))
        k.check("GA-EQ-001", error <= k.tolerance("GA-EQ-001", "fp32"), f"{sum(counts)} tokens, element {j}")


# -- Harnesses of 16-bit buffers on every input: KANI-GA-027 and -028 of the contract.
#
# The loop runs on numbers that stand for every number of the format; each claim is decided by the exact worst case.


def buffer_within_tolerance(k: Any, loop: Any) -> None:
    """GA-EQ-001 for a buffer of 16 bits: |G_accum - G_full| <= epsilon for every |g_i| <= 1 of the buffer's format."""
    fmt, n = k.params["buffer"], k.bound("micro_batches")
    grads = columns(k, lambda name: k.floats(name, n, fmt, -1, 1))
    applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, Config(n, buffer_format=fmt)))
    k.cover("a buffer of 16 bits", fmt in ("fp16", "bf16"))
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        error = abs(exact(got) - mean(row))
        k.check("GA-EQ-001", error <= k.tolerance("GA-EQ-001", fmt), f"{fmt} buffer, N={n}, element {j}")


def order_within_tolerance(k: Any, summed: Any) -> None:
    """The same of any order and scale that `rounding.setting` knows (params: buffer, order, scale), one element."""
    fmt, n = k.params["buffer"], k.bound("micro_batches")
    grads = k.floats("g", n, fmt, -1, 1)
    got = summed.result(grads, fmt, k.params["order"], k.params["scale"])
    k.cover("more than one micro-batch", n > 1)
    claimed, words = k.tolerance("GA-EQ-001", fmt), f"{fmt}, {k.params['order']}, {k.params['scale']}, N={n}"
    k.check("GA-EQ-001", abs(exact(got) - mean(grads)) <= claimed, words)


# -- KANI-GA-026: what every rounded operation promises, each promise behind the evidence of the lemma that states it.


def kept(k: Any, promises: Any) -> None:
    """Each named step contract is kept on every step that is tried, is proved, and promises something."""
    names = k.lemmas()
    name = k.choose("lemma", names)
    promise = promises.of(name)
    k.cover("the last of the named contracts", name == names[-1])
    k.check("GA-EQ-001", k.refuses(name, promise), f"{name}: a wrong result is excluded")
    k.check("GA-EQ-001", k.keeps(name, promise, k.bound("steps")), f"{name}: {promise.words}")
