"""Inputs on which left-to-right accumulation errs as far as a search finds, for any number of micro-batches.

Two errors are driven the same way. The addition s + x errs by half an ulp of the sum, downwards, where its exact result
is a tie whose lower neighbour is even (upwards: the upper one): that fixes x modulo twice that ulp. The quotient g / n
errs where g / n is no number of the format: of the gradients with fl(g / n) = x the outermost one is taken. The search
keeps the partial sums that have lost most (a beam). For n = 2^k quotients are exact, the largest ties lose most, and
the bound u (n^2 - 1) / (3 n) is attained. Source of the ties: Higham, Accuracy and Stability, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from gradproof.arith.formats import Format, binade, format_named

DOWN, UP = 1, -1


@dataclass(frozen=True)
class Effort:
    """Terms that are tried for one partial sum, and partial sums that are kept."""

    tries: int
    beam: int


def effort(n: int) -> Effort:
    """More where quotients err and n is small; for n = 2^k the first tie is the best one."""
    if n & (n - 1) == 0:
        return Effort(2, 1)
    return Effort(48, 24) if n <= 16 else Effort(24, 6) if n <= 64 else Effort(12, 1)


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial sum in floats, what it has lost, its last gradient and the sum before."""

    total: Fraction
    lost: Fraction
    last: Fraction = Fraction(0)
    before: Partial | None = None


def outermost(x: Fraction, n: int, f: Format, most: Fraction, way: int) -> Fraction | None:
    """The largest (DOWN) or smallest (UP) number 0 <= g <= most with fl(g / n) = x > 0; None where there is none."""
    if n & (n - 1) == 0:
        return x * n if x * n <= most and f.representable(x * n) else None
    half = f.spacing(x) / 2
    limit = min(n * (x + half), most) if way == DOWN else n * (x - half)
    step = f.spacing(limit)
    g = (limit / step).__floor__() * step if way == DOWN else -(-limit // step) * step
    for _ in range(3):
        if g > most:
            return None
        if f.round(g / n) == x:
            return g
        g -= way * step
    return None


def ties(total: Fraction, most: Fraction, f: Format, way: int) -> Iterator[Fraction]:
    """Terms x <= most with total + x a tie to an even number below (DOWN) or above, the largest first."""
    limit = total + most
    for _ in range(2):
        edge, ulp = Fraction(2) ** binade(limit), f.spacing(limit)
        e = (limit / ulp - Fraction(1, 2)).__floor__()
        tie = (e - (e % 2 if way == DOWN else 1 - e % 2) + Fraction(1, 2)) * ulp
        while tie > max(total, edge):
            yield tie - total
            tie -= 2 * ulp
        limit = edge - ulp / 8
        if limit <= total:
            return


def sequential_witness(n: int, fmt: str, magnitude: Fraction = Fraction(1)) -> list[Fraction]:
    """n gradients 0 <= g_i <= magnitude of the format, for fl(g / n) summed from left to right.

    Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a window has at least one micro-batch")
    f = format_named(fmt)
    ways = (DOWN,) if n & (n - 1) == 0 else (DOWN, UP)
    found = [_searched(n, f, f.round(magnitude / n), magnitude, way) for way in ways]
    made: list[Fraction] = []
    one = max(found, key=lambda p: p.lost)
    while one.before is not None:
        made.append(one.last)
        one = one.before
    return made[::-1]


def _searched(n: int, f: Format, term: Fraction, magnitude: Fraction, way: int) -> Partial:
    how = effort(n)
    kept = [Partial(Fraction(0), Fraction(0))]
    for i in range(n):
        grown: dict[Fraction, Partial] = {}
        for one in kept:
            for x in _terms(one.total, n, f, term, way, how.tries * (8 if i == 0 else 1)):
                g = outermost(x, n, f, magnitude, way)
                if g is None:
                    continue
                total = f.round(one.total + x)
                lost = one.lost + way * (g / n - (total - one.total))
                if total not in grown or grown[total].lost < lost:
                    grown[total] = Partial(total, lost, g, one)
        kept = sorted(grown.values(), key=lambda p: (p.lost, p.total), reverse=True)[: how.beam]
    return kept[0]


def _terms(total: Fraction, n: int, f: Format, most: Fraction, way: int, tries: int) -> Iterator[Fraction]:
    """Terms to try: ties, or for the first one the numbers below the largest; at last the largest, which fits."""
    found: Iterator[Fraction]
    if total:
        found = islice((x for x in ties(total, most, f, way) if f.representable(x)), tries)
    else:
        x = f.round(most * (1 - 8 * f.u)) if n & (n - 1) == 0 else most
        found = (x - i * f.spacing(x) for i in range(1 if n & (n - 1) == 0 else tries))
    yield from (x for x in found if x > 0)
    yield most
    yield f.round(most - 2 * f.spacing(most))
