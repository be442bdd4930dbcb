"""Harnesses over the accumulation loop: KANI-GA-001, -002, -004, -006 and -007 of the contract.

Each is assume, act, check. A gradient |g_i| <= 1 is the domain of the contract's absolute tolerance; the losses and
the stale buffer are bounded alike, which loses nothing over the reals because every clause is homogeneous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import and_
from typing import Any

from gradproof.core.protocol import Event
from gradproof.harness import FORMATS, exact, round_to
from models.accumulation.loop import Config, MicroBatch, Record


def mean(values: Sequence[Any]) -> Any:
    """The exact mean, whatever the format of the values."""
    return sum((exact(v) for v in values[1:]), exact(values[0])) / len(values)


def only_update(k: Any, clause: str, record: Record) -> tuple[Any, ...]:
    """The one gradient that was applied; the clause fails if there was not exactly one, of the right width."""
    k.check(clause, len(record.updates) == 1, "exactly one gradient is applied")
    k.check(clause, len(record.updates[0]) == k.bound("elements"), "every element has a gradient")
    return record.updates[0]


def columns(k: Any, make: Callable[[str], Sequence[Any]]) -> list[Sequence[Any]]:
    """One vector of inputs an element, `elements` of them, independent of each other."""
    return [make(f"g{j}") for j in range(k.bound("elements"))]


def run_loop(k: Any, loop: Any, batches: list[MicroBatch], config: Config, left: Sequence[Any]) -> Record:
    """Run the loop from zero weights and a buffer that holds `left`."""
    k.scenario(batches, config, left)
    record: Record = loop.run((0,) * len(left), batches, config, tuple(left))
    return record


def one_window(k: Any, loop: Any, grads: Sequence[Sequence[Any]], config: Config) -> Record:
    """Run one window from a clean buffer; `grads` has a row of micro-batches for each element."""
    batches = [MicroBatch(0, tuple(row)) for row in zip(*grads, strict=True)]
    return run_loop(k, loop, batches, config, (0,) * len(grads))


def numerical_equivalence(k: Any, loop: Any) -> None:
    """GA-EQ-001 in floats: |G_accum - G_full| <= epsilon, for an fp32 and for an fp16 forward pass."""
    forward = k.choose("forward", ["fp32", "fp16"])
    n = k.upto("micro_batches")
    made, config = ("fp32", Config(n)) if forward == "fp32" else ("fp64", Config(n, gradient_format="fp16"))
    grads = columns(k, lambda name: k.floats(name, n, made, -1, 1))
    applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, config))
    k.cover("largest window, fp16 forward", n == k.bound("micro_batches") and forward == "fp16")
    k.cover("a gradient at the edge of its range", grads[0][0] == 1)
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        error = abs(exact(got) - mean(row))
        k.check("GA-EQ-001", error <= k.tolerance("GA-EQ-001", forward), f"{forward}, N={n}, element {j}")


def buffer_precision(k: Any, loop: Any) -> None:
    """GA-INV-004 by value, for a window of N micro-batches and for the windows of a run of N = 1."""
    if k.choose("a sum, or every rounding", ["a sum", "every rounding"]) == "a sum":
        precise_sum(k, loop)
    else:
        rounded_once(k, loop)


def precise_sum(k: Any, loop: Any) -> None:
    """fp16 gradients stay within the tolerance that an fp16 buffer breaks at N = 8."""
    n = k.bound("micro_batches")
    grads = columns(k, lambda name: k.floats(name, n, "fp16", -1, 1))
    applied = only_update(k, "GA-INV-004", one_window(k, loop, grads, Config(n, gradient_format="fp16")))
    k.cover("a positive and a negative gradient", (grads[0][0] > 0) & (grads[0][1] < 0))
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        error = abs(exact(got) - mean(row))
        k.check("GA-INV-004", error <= k.tolerance("GA-EQ-001", "fp16"), f"element {j}, N={n}, the tolerance")
        k.check("GA-INV-004", error <= k.tolerance("GA-EQ-001", "fp32"), f"element {j}, N={n}, what fp32 gives")


NATIVE = "fp64"  # what a gradient is before the backward pass has rounded it
FORMATS_OF = [(None, "fp32"), ("fp16", "fp32"), ("bf16", "fp32"), (None, "fp16"), ("fp32", "fp16"), ("fp16", "bf16")]
"""The formats of the backward pass (None: as the gradient comes) and of the buffer."""
CLIPPED = {"fp32": [False, True], "fp16": [False], "bf16": [False]}
"""Buffers that are clipped: 1e-6 is no number of a 16-bit format, and libraries round it differently there."""


def rounded_once(k: Any, loop: Any) -> None:
    """A gradient is rounded once to the format of the backward pass and once to the buffer's, in every window.

    With N = 2 their sum is rounded once more, to the buffer's format: u / 2 at most, as its size is at most 1. A half
    and the loss scale are powers of two, at which nothing rounds but underflow. The largest norm is above every norm;
    under a clip gradients are positive, so that their squares have a positive sum. Roundings are those of the stub: the
    same number has the same rounding, whatever it is.
    """
    made, buffer = k.choose("formats of the backward pass and of the buffer", FORMATS_OF)
    n = k.choose("N", [1, 2])
    scaled, clipped = k.choose("scaled", [False, True]), k.choose("clipped", CLIPPED[buffer])
    skip = k.choose("skipped window", [None, 1])
    windows, width = k.bound("windows"), k.bound("elements")
    config = Config(n, buffer_format=buffer, gradient_format=made, skip=frozenset(() if skip is None else {skip}))
    config = replace(config, max_norm=4 if clipped else None, loss_scale=8 if scaled else None)
    grads = columns(k, lambda name: k.floats(name, n * windows, NATIVE, Fraction(1, 2) if clipped else -1, 1))
    batches = [MicroBatch(0, tuple(row)) for row in zip(*grads, strict=True)]
    record = run_loop(k, loop, batches, config, (0,) * width)
    tried = [v for e, v in zip(record.events, record.values, strict=True) if e in (Event.STEP, Event.SKIP)]
    k.check("GA-INV-004", [len(v) for v in tried] == [width] * windows, "one attempt a window, with every element")
    k.cover("a step after a skipped one", skip == 1)
    claims = []
    for w, value in enumerate(tried):
        for got, row in zip(value, grads, strict=True):
            own = [g if made is None else round_to(g, made) for g in row[n * w : n * w + n]]
            right = mean([round_to(g, buffer) for g in own])
            lost = (n - 1) * FORMATS[buffer].u / 2 + 4 * FORMATS[buffer].tiny
            claims.append(abs(exact(got) - right) <= lost)
    k.check("GA-INV-004", reduce(and_, claims), f"the mean of {n}, each rounded to {made or NATIVE} and to {buffer}")


def single_micro_batch(k: Any, loop: Any) -> None:
    """GA-EQ-001, N = 1: G_accum = g_1, in IEEE arithmetic (equal, so +0 and -0 are one value)."""
    fmt = k.choose("format", ["fp32", "fp16"])
    n = k.bound("micro_batches")
    grads = columns(k, lambda name: k.floats(name, n, fmt, -65504, 65504))
    applied = only_update(k, "GA-EQ-001", one_window(k, loop, grads, Config(n, buffer_format=fmt)))
    k.cover("a gradient other than zero", grads[0][0] > 0)
    for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
        k.check("GA-EQ-001", k.same(got, row[0]), f"{fmt}, element {j}: G = g_1")


def exact_equivalence(k: Any, loop: Any) -> None:
    """GA-EQ-001 over the reals: equal mean-reduced micro-batches give the full-batch gradient, in a tail window too."""
    n = k.upto("micro_batches")
    total = k.choose("micro-batches in the data", sorted({1, n, n + 1, 2 * n - 1}))
    size = k.upto("samples")
    samples = columns(k, lambda name: k.reals(name, total * size, -1, 1))
    cuts = range(0, total * size, size)
    batches = [MicroBatch(0, tuple(mean(row[i : i + size]) for row in samples)) for i in cuts]
    record = run_loop(k, loop, batches, Config(n), (0,) * len(samples))
    starts = range(0, total * size, n * size)
    k.check("GA-EQ-001", len(record.updates) == len(starts), "one gradient a window")
    k.cover("a tail window", total % n != 0)
    k.cover("the largest window", n == k.bound("micro_batches"))
    for i, applied in zip(starts, record.updates, strict=True):
        for j, (got, row) in enumerate(zip(applied, samples, strict=True)):
            want = mean(row[i : i + n * size])
            k.check("GA-EQ-001", k.same(got, want), f"window at sample {i}, element {j}: G_accum = G_full")


def loss_and_zeroing(k: Any, loop: Any) -> None:
    """GA-INV-001 and -002: cycles from a dirty buffer; each reports its mean loss and applies its own gradient."""
    n, cycles = k.upto("micro_batches"), k.bound("cycles")
    total = k.choose("micro-batches in the data", sorted({cycles * n, cycles * n - n // 2}))
    stale = k.reals("stale", k.bound("elements"), -1, 1)
    losses = k.reals("loss", total, -1, 1)
    grads = columns(k, lambda name: k.reals(name, total, -1, 1))
    batches = [MicroBatch(x, tuple(row)) for x, *row in zip(losses, *grads, strict=True)]
    record = run_loop(k, loop, batches, Config(n), stale)
    windows = [slice(i, i + n) for i in range(0, total, n)]
    k.cover("a stale gradient", stale[0] != 0)
    k.cover("the largest window", n == k.bound("micro_batches"))
    k.cover("a tail window", total % n != 0)
    k.check("GA-INV-001", len(record.losses) == len(windows), "one reported loss a window")
    for i, (loss, window) in enumerate(zip(record.losses, windows, strict=True)):
        k.check("GA-INV-001", k.same(loss, mean(losses[window])), f"N={n}, cycle {i + 1}: loss = mean of the losses")
    k.check("GA-INV-002", len(record.updates) == len(windows), "one applied gradient a window")
    for i, (applied, window) in enumerate(zip(record.updates, windows, strict=True)):
        for j, (got, row) in enumerate(zip(applied, grads, strict=True)):
            want = mean(row[window])
            k.check("GA-INV-002", k.same(got, want), f"N={n}, cycle {i + 1}, element {j}: nothing of another cycle")
