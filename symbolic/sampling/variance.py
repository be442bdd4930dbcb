"""The variance of the gradient estimate against the effective batch: KANI-GT-501 of the training contract.

Expectations over draws with replacement are exact: every sequence of draws is one of P^B that are equally likely, and
all of them are walked through, with the population's gradients as inputs.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from symbolic.accumulation.loop import mean

CLAUSE = "GA-VAR-001"


def variance_of_a_window(k: Any, subject: Any) -> None:
    """GA-VAR-001: E G = the population's mean and E (G - mean)^2 = sigma^2 / B, for every population of the size."""
    count = k.upto("population")
    sizes, most = (
        product(range(1, k.bound("samples") + 1), range(1, k.bound("micro_batches") + 1)),
        k.bound("sequences"),
    )
    size, n = k.choose("size and N", [(m, windows) for m, windows in sizes if count ** (m * windows) <= most])
    gradients = k.reals("g", count, None, None)
    center = mean(gradients)
    places = list(product(range(count), repeat=size * n))
    found = [subject.run(gradients, [count * (i % 3) + place for i, place in enumerate(d)], size, n) for d in places]
    k.check(CLAUSE, all(g is not None for g in found), "a gradient is accumulated")
    k.cover("gradients that differ", gradients[0] != gradients[-1])
    k.cover("several micro-batches of several samples", size > 1 and n > 1 and count > 2)
    stated = f"{count} samples, windows of {n} x {size}"
    k.check(CLAUSE, k.same(mean(found), center), f"{stated}: no bias")
    spread = mean([(g - center) * (g - center) for g in found])
    population = mean([(g - center) * (g - center) for g in gradients])
    k.check(CLAUSE, k.same(spread * (size * n), population), f"{stated}: sigma^2 / B")
