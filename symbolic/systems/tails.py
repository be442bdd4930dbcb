"""Harnesses over a window that may be short: KANI-GT-406 to -408 of the training contract.

Inductions over the micro-batches of a window of any length r, with gradients and counts of any size. G is the buffer,
S the sum of count g so far, W the samples of the whole window: G W = S at every micro-batch, so that G = S / W at its
end, which is the mean over the samples that the window holds.
"""

from __future__ import annotations

from typing import Any

from models.systems.tails import Held

CLAUSE = "GA-TAIL-001"


def what_it_holds(k: Any, tail: Any) -> None:
    """GA-TAIL-001: the buffer is the mean over the samples that the window holds, for every r and N, r <= N."""
    k.inductive(lambda: _empty_buffer(k), lambda: _one_more(k, tail))


def _empty_buffer(k: Any) -> None:
    """Nothing is in the buffer; and at the end, G W = S is G = S / W."""
    total, buffer, weighted = k.real("samples at last", 1), k.real("buffer at last"), k.real("sum at last")
    k.check(CLAUSE, 0 * total == 0, "an empty buffer")
    k.assume(buffer * total == weighted)
    k.cover("a gradient other than zero", buffer > 0)
    k.check(CLAUSE, buffer == weighted / total, "the mean over the window's samples")


def _window(k: Any) -> tuple[Held, Any]:
    """A window of r <= N micro-batches with any number of samples in all, and any of them in this one."""
    n, r, total, size, count = (k.int(name, 1) for name in ("N", "r", "samples", "size", "count"))
    k.assume((r <= n) & (count <= total))
    k.cover("a tail", r < n)
    k.cover(
        "a tail with a short last micro-batch", (r < n) & (r > 1) & (count < size) & (total == (r - 1) * size + count)
    )
    return Held(n, r, total, size), count


def _one_more(k: Any, tail: Any) -> None:
    held, count = _window(k)
    buffer, weighted, g = k.real("buffer"), k.real("sum"), k.real("g")
    k.assume(buffer * held.total == weighted)
    k.scenario(held, g=g, count=count)
    buffer = buffer + tail.share(g, count, held)
    k.check(CLAUSE, k.same(buffer * held.total, weighted + g * count), "each sample of the window weighs the same")


def documented_scale(k: Any, tail: Any) -> None:
    """GA-TAIL-001: dividing by N makes the tail's gradient r/N of the mean over its r equal micro-batches, exactly."""
    k.inductive(lambda: _nothing(k), lambda: _scaled(k, tail))


def _nothing(k: Any) -> None:
    """G N = S, and the mean M satisfies M r = S: at the end G = (r/N) M."""
    n, r = k.int("N at last", 1), k.int("r at last", 1)
    buffer, mean = k.real("buffer at last"), k.real("mean at last")
    k.assume((r <= n) & (buffer * n == mean * r))
    k.cover("half of the gradient is lost", (2 * r == n) & (mean > 0))
    k.check(CLAUSE, buffer == mean * r / n, "scale r/N")


def _scaled(k: Any, tail: Any) -> None:
    n, r, size = k.int("N", 1), k.int("r", 1), k.int("size", 1)
    k.assume(r <= n)
    k.cover("a tail of one of many", (r == 1) & (n > 64))
    buffer, total, g = k.real("buffer"), k.real("sum"), k.real("g")
    k.assume(buffer * n == total)
    buffer = buffer + tail.share(g, size, Held(n, r, r * size, size))
    k.check(CLAUSE, k.same(buffer * n, total + g), "each gradient of the window weighs 1/N")
