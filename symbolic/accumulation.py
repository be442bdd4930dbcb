"""Harnesses over the accumulation loop: KANI-GA-001, -002, -004, -006, -007, -008 and -009 of the contract.

Each is assume, act, check. A gradient |g_i| <= 1 is the domain of the contract's absolute tolerance; the losses and
the stale buffer are bounded alike, which loses nothing over the reals because every clause is homogeneous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradproof.arith import exact
from models.accumulation import Config, MicroBatch, Record


def mean(values: Sequence[Any]) -> Any:
    """The exact mean, whatever the format of the values."""
    return sum((exact(v) for v in values[1:]), exact(values[0])) / len(values)


def only_update(k: Any, clause: str, record: Record) -> Any:
    """The first element of the one gradient that was applied; the clause fails if there was not exactly one."""
    k.check(clause, len(record.updates) == 1, "exactly one gradient is applied")
    return record.updates[0][0]


def one_window(k: Any, loop: Any, grads: Sequence[Any], losses: Sequence[Any], config: Config) -> Record:
    """Run one window of one-element gradients from a clean buffer."""
    batches = [MicroBatch(x, (g,)) for x, g in zip(losses, grads, strict=True)]
    k.scenario(batches, config, (0,))
    record: Record = loop.run((0,), batches, config, (0,))
    return record


def numerical_equivalence(k: Any, loop: Any) -> None:
    """GA-EQ-001 in floats: |G_accum - G_full| <= epsilon, for an fp32 and for an fp16 forward pass."""
    forward = k.choose("forward", ["fp32", "fp16"])
    n = k.upto("micro_batches")
    if forward == "fp32":
        grads, config = k.floats("g", n, "fp32", -1, 1), Config(n)
    else:
        grads, config = k.floats("g", n, "fp64", -1, 1), Config(n, gradient_format="fp16")
    record = one_window(k, loop, grads, [0] * n, config)
    applied = only_update(k, "GA-EQ-001", record)
    k.cover("largest window, fp16 forward", n == k.bound("micro_batches") and forward == "fp16")
    k.cover("a gradient at the edge of its range", grads[0] == 1)
    error = abs(exact(applied) - mean(grads))
    k.check("GA-EQ-001", error <= k.tolerance("GA-EQ-001", forward), f"{forward}, N={n}")


def buffer_precision(k: Any, loop: Any) -> None:
    """GA-INV-004 by value: fp16 gradients stay within the tolerance that an fp16 buffer breaks at N = 8."""
    n = k.bound("micro_batches")
    grads = k.floats("g", n, "fp16", -1, 1)
    record = one_window(k, loop, grads, [0] * n, Config(n, gradient_format="fp16"))
    applied = only_update(k, "GA-INV-004", record)
    k.cover("all gradients positive", grads[0] > 0)
    error = abs(exact(applied) - mean(grads))
    k.check("GA-INV-004", error <= k.tolerance("GA-EQ-001", "fp16"), f"N={n}, the contract's tolerance")
    k.check("GA-INV-004", error <= k.tolerance("GA-EQ-001", "fp32"), f"N={n}, what an fp32 buffer gives")


def single_micro_batch(k: Any, loop: Any) -> None:
    """GA-EQ-001, N = 1: G_accum = g_1 exactly, in IEEE arithmetic."""
    fmt = k.choose("format", ["fp32", "fp16"])
    g = k.float("g", fmt, -65504, 65504)
    record = one_window(k, loop, [g], [0], Config(1, buffer_format=fmt))
    applied = only_update(k, "GA-EQ-001", record)
    k.cover("a gradient other than zero", g > 0)
    k.check("GA-EQ-001", k.same(applied, g), f"{fmt}: G = g_1")


def exact_equivalence(k: Any, loop: Any) -> None:
    """GA-EQ-001 over the reals: equal mean-reduced micro-batches give the full-batch gradient, in a tail window too."""
    n = k.upto("micro_batches")
    total = k.choose("micro-batches in the data", sorted({1, n, n + 1, 2 * n - 1}))
    size = k.upto("samples")
    samples = k.reals("s", total * size, -1, 1)
    parts = [samples[i : i + size] for i in range(0, total * size, size)]
    batches = [MicroBatch(0, (mean(p),)) for p in parts]
    config = Config(n)
    k.scenario(batches, config, (0,))
    record = loop.run((0,), batches, config, (0,))
    windows = [samples[i : i + n * size] for i in range(0, total * size, n * size)]
    k.check("GA-EQ-001", len(record.updates) == len(windows), "one gradient a window")
    k.cover("a tail window", total % n != 0)
    k.cover("the largest window", n == k.bound("micro_batches"))
    for i, (window, applied) in enumerate(zip(windows, record.updates, strict=True)):
        k.check("GA-EQ-001", k.same(applied[0], mean(window)), f"window {i + 1}: G_accum = G_full")


def weighted_equivalence(k: Any, loop: Any) -> None:
    """GA-EQ-001 for unequal counts: the weight of a micro-batch is its samples (or tokens) over the window's."""
    n = k.upto("micro_batches")
    most = k.bound("samples")
    counts = [int(k.choose("samples", list(range(1, most + 1)))) for _ in range(n)]
    samples = k.reals("s", sum(counts), -1, 1)
    starts = [sum(counts[:i]) for i in range(n)]
    parts = [samples[a : a + c] for a, c in zip(starts, counts, strict=True)]
    batches = [MicroBatch(mean(p), (mean(p),), c) for p, c in zip(parts, counts, strict=True)]
    config = Config(n)
    k.scenario(batches, config, (0,))
    record = loop.run((0,), batches, config, (0,))
    applied = only_update(k, "GA-EQ-001", record)
    k.cover("unequal counts", len(set(counts)) > 1)
    k.check("GA-EQ-001", k.same(applied, mean(samples)), f"counts {counts}: G_accum = G_full")


def loss_and_zeroing(k: Any, loop: Any) -> None:
    """GA-INV-001 and -002: two cycles from a dirty buffer; each reports its mean loss and applies its own gradient."""
    n = k.upto("micro_batches")
    stale = k.real("stale", -1, 1)
    losses = k.reals("loss", 2 * n, -1, 1)
    grads = k.reals("g", 2 * n, -1, 1)
    batches = [MicroBatch(x, (g,)) for x, g in zip(losses, grads, strict=True)]
    config = Config(n)
    k.scenario(batches, config, (stale,))
    record = loop.run((0,), batches, config, (stale,))
    k.cover("a stale gradient", stale != 0)
    k.cover("the largest window", n == k.bound("micro_batches"))
    k.check("GA-INV-001", len(record.losses) == 2, "one reported loss a window")
    for cycle, loss in enumerate(record.losses):
        want = mean(losses[cycle * n : (cycle + 1) * n])
        k.check("GA-INV-001", k.same(loss, want), f"cycle {cycle + 1}: total loss = mean of the micro-batch losses")
    k.check("GA-INV-002", len(record.updates) == 2, "one applied gradient a window")
    for cycle, applied in enumerate(record.updates):
        want = mean(grads[cycle * n : (cycle + 1) * n])
        k.check("GA-INV-002", k.same(applied[0], want), f"cycle {cycle + 1}: no gradient of another cycle")
