"""Rules by which training loops weigh tokens, right and wrong, and counts of tokens that tell them apart.

A rule gives the weight of one valid token of each micro-batch in the window's gradient. The wrong rules are those of
published loops (the LOSS rows of the project's list of bugs: transformers#34191, #46204, #34242, ms-swift#10117,
composer#3273, verl#5625 and their kin). Two rules that agree on every recorded vector of counts cannot be told apart by
a recording; `count_vectors` are vectors on which all of them differ, and a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Counts:
    """One window. `valid[r][k]`: tokens with a loss in micro-batch k of rank r; `tokens` with the padding.

    `samples` likewise; `first`: valid labels in column 0, which a causal shift removes; `planned`: micro-batches of a
    full window.
    """

    valid: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    samples: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    planned: int

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return len(self.valid)

    def total(self, table: tuple[tuple[int, ...], ...]) -> int:
        """Sum over ranks and micro-batches."""
        return sum(sum(row) for row in table)


Weighing = list[list[Fraction]]
Rule = Callable[[Counts, int, int], Fraction]


def _f(over: int, under: int) -> Fraction:
    return Fraction(over, under) if under else Fraction(0)


RULES: dict[str, Rule] = {
    "right": lambda c, r, k: _f(1, c.total(c.valid)),
    "mean of means": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][k]),
    "mean of means, by the planned length": lambda c, r, k: _f(1, c.ranks * c.planned * c.valid[r][k]),
    "first column counted": lambda c, r, k: _f(1, c.total(c.valid) + c.total(c.first)),
    "averaged by device": lambda c, r, k: _f(1, c.ranks * sum(c.valid[r])),
    "summed by device": lambda c, r, k: _f(1, sum(c.valid[r])),
    "averaged over devices twice": lambda c, r, k: _f(1, c.ranks * c.total(c.valid)),
    "divided by the length again": lambda c, r, k: _f(1, len(c.valid[r]) * c.total(c.valid)),
    "sum of means": lambda c, r, k: _f(1, c.ranks * c.valid[r][k]),
    "sum": lambda c, r, k: Fraction(1),
    "samples for tokens": lambda c, r, k: _f(1, c.total(c.samples)),
    "means weighted by samples": lambda c, r, k: _f(c.samples[r][k], c.total(c.samples) * c.valid[r][k]),
    "all tokens for valid ones": lambda c, r, k: _f(1, c.total(c.tokens)),
    "means weighted by all tokens": lambda c, r, k: _f(c.tokens[r][k], c.total(c.tokens) * c.valid[r][k]),
    "count of the last micro-batch": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][-1]),
    "count of the first micro-batch": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.valid[r][0]),
    "count so far": lambda c, r, k: _f(1, c.ranks * sum(c.valid[r][: k + 1])),
    "only the last micro-batch": lambda c, r, k: _f(int(k == len(c.valid[r]) - 1), c.ranks * c.valid[r][-1]),
    "times the length": lambda c, r, k: _f(len(c.valid[r]), c.total(c.valid)),
    "means over the padding": lambda c, r, k: _f(1, c.ranks * len(c.valid[r]) * c.tokens[r][k]),
}  # fmt: skip
"""The weight of one valid token of micro-batch k on rank r, by rule."""


def weighing(rule: str, counts: Counts) -> Weighing:
    """Weights by rank and micro-batch. Raises KeyError for a rule that is not in `RULES`."""
    made = RULES[rule]
    return [[made(counts, r, k) for k in range(len(row))] for r, row in enumerate(counts.valid)]


def count_vectors(n: int, ranks: int = 1, length: int = 4, samples: int = 2) -> list[Counts]:
    """Windows of `n` micro-batches of up to `samples` sequences, padded to `length` tokens or up to two more.

    They tell all rules apart for two ranks and n > 1; with one rank, rules about devices agree with others, and with
    n = 1 most do. The counts are small and differ between neighbouring micro-batches; the last window is one
    micro-batch short when n > 1. Raises ValueError for n or ranks below 1, or fewer than three tokens a sequence.
    """
    if n < 1 or ranks < 1 or length < 3:
        raise ValueError("at least one micro-batch, one rank and three tokens a sequence")
    whole = [_window(n, n, ranks, length, samples, shift) for shift in range(2)]
    return whole + ([_window(n - 1, n, ranks, length, samples, 1)] if n > 1 else [])


def _window(n: int, planned: int, ranks: int, length: int, samples: int, shift: int) -> Counts:
    most = samples * (length - 1)
    rows: list[tuple[tuple[int, ...], ...]] = [(), (), (), ()]
    for r in range(ranks):
        valid = tuple(1 + (2 * k + 3 * r + shift + (k * k) % 3) % most for k in range(n))
        held = tuple(max(1, samples - (k + r + shift) % 2) for k in range(n))
        padded = tuple(h * (length + (k + r + shift) % 3) for k, h in enumerate(held))
        fitting = tuple(min(v, h * (length - 1)) for v, h in zip(valid, held, strict=True))
        columns = (fitting, padded, held, tuple(min(h, v) for v, h in zip(fitting, held, strict=True)))
        rows = [(*row, column) for row, column in zip(rows, columns, strict=True)]
    return Counts(rows[0], rows[1], rows[2], rows[3], planned)


def alike(vectors: Sequence[Counts]) -> list[tuple[str, str]]:
    """Pairs of rules that no vector tells apart."""
    seen = {name: [weighing(name, counts) for counts in vectors] for name in RULES}
    names = sorted(seen)
    return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if seen[a] == seen[b]]


def closest(found: Sequence[tuple[Counts, Weighing]]) -> list[str]:
    """Rules that explain weights which were found at some counts: the names of all that agree everywhere."""
    return [name for name in RULES if found and all(weighing(name, counts) == weights for counts, weights in found)]
