"""Harnesses of 16-bit buffers on every input: KANI-GA-027 and -028 of the contract.

The loop runs on numbers that stand for every number of the format; each claim is decided by the exact worst case.
"""

from __future__ import annotations

from typing import Any

from gradproof.harness import exact
from models.accumulation import Config
from symbolic.accumulation import columns, mean, one_window, only_update


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
