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
    first, later = ((*_window(k, at), *_numbers(k, f"buffer{at}", f"sum{at}")) for at in (" at first", ""))
    k.inductive(lambda: _filled(k, tail, *first), lambda: _one_more(k, tail, *later))


def _numbers(k: Any, *names: str) -> tuple[Any, ...]:
    return tuple(k.real(name) for name in names)


def _window(k: Any, at: str = "") -> tuple[Held, Any, Any]:
    """A window of r <= N micro-batches with any number of samples in all, and any of them in this one; its gradient."""
    n, r, total, size, count = (k.int(f"{name}{at}", 1) for name in ("N", "r", "samples", "size", "count"))
    k.assume((r <= n) & (count <= total))
    return Held(n, r, total, size), count, k.real(f"g{at}")


def _filled(k: Any, tail: Any, held: Held, count: Any, g: Any, buffer: Any, weighted: Any) -> None:
    """One micro-batch in a buffer that was empty; and at the end, G W = S is G = S / W."""
    k.check(CLAUSE, k.same(tail.share(g, count, held) * held.total, g * count), "the first one weighs the same")
    k.assume(buffer * held.total == weighted)
    k.cover("a gradient other than zero", buffer > 0)
    k.check(CLAUSE, buffer == weighted / held.total, "the mean over the window's samples")


def _one_more(k: Any, tail: Any, held: Held, count: Any, g: Any, buffer: Any, weighted: Any) -> None:
    n, r, total, size = held.n, held.r, held.total, held.size
    k.cover("a tail", r < n)
    k.cover(
        "a tail with a short last micro-batch", (r < n) & (r > 1) & (count < size) & (total == (r - 1) * size + count)
    )
    k.assume(buffer * held.total == weighted)
    k.scenario(held, g=g, count=count)
    buffer = buffer + tail.share(g, count, held)
    k.check(CLAUSE, k.same(buffer * held.total, weighted + g * count), "each sample of the window weighs the same")


def documented_scale(k: Any, tail: Any) -> None:
    """GA-TAIL-001: dividing by N makes the tail's gradient r/N of the mean over its r equal micro-batches, exactly."""
    (first, g, *last), later = _equal(k, " at last", "g", "buffer", "mean"), _equal(k, "", "g", "buffer", "sum")
    k.inductive(lambda: _first_scaled(k, tail, first, g, *last), lambda: _scaled(k, tail, *later))


def _equal(k: Any, at: str, *names: str) -> tuple[Any, ...]:
    """A window of r <= N equal micro-batches, and some numbers."""
    n, r, size = (k.int(f"{name}{at}", 1) for name in ("N", "r", "size"))
    k.assume(r <= n)
    return (Held(n, r, r * size, size), *_numbers(k, *(f"{name}{at}" for name in names)))


def _first_scaled(k: Any, tail: Any, held: Held, g: Any, buffer: Any, mean: Any) -> None:
    """One micro-batch in a buffer that was empty; at the end G N = S, and the mean M has M r = S: G = (r/N) M."""
    n, r = held.n, held.r
    k.check(CLAUSE, k.same(tail.share(g, held.size, held) * n, g), "the first one weighs 1/N")
    k.assume(buffer * n == mean * r)
    k.cover("half of the gradient is lost", (2 * r == n) & (mean > 0))
    k.check(CLAUSE, buffer == mean * r / n, "scale r/N")


def _scaled(k: Any, tail: Any, held: Held, g: Any, buffer: Any, total: Any) -> None:
    n = held.n
    k.cover("a tail of one of many", (held.r == 1) & (n > 64))
    k.assume(buffer * n == total)
    buffer = buffer + tail.share(g, held.size, held)
    k.check(CLAUSE, k.same(buffer * n, total + g), "each gradient of the window weighs 1/N")
