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

from gradproof.arith.formats import Format, format_named
from gradproof.arith.units import Rounding

DOWN, UP = 1, -1
TRIED = 64


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
    """A partial sum in floats, n times what it has lost, its last gradient and the sum before, in whole units."""

    total: int
    lost: int
    last: int = 0
    before: Partial | None = None


class Search:
    """Numbers are in units of 2^-bits, below half the smallest subnormal; |g| <= most, a number of `given` if named."""

    def __init__(self, n: int, f: Format, magnitude: Fraction, given: Format | None = None) -> None:
        self.given = Rounding(given, f.p - f.emin + 2) if given else None
        self.n, self.f, self.whole, self.bits = n, f, n & (n - 1) == 0, f.p - f.emin + 2
        self.r = Rounding(f, self.bits)
        self.most = int(magnitude * 2**self.bits)
        self.term = int(f.round(magnitude / n) * 2**self.bits)
        self.known: dict[tuple[int, int], int | None] = {}

    def spacing(self, x: int) -> int:
        """Distance between neighbours in the binade of x."""
        return 1 << max(x.bit_length() - self.r.p, self.r.low + 1)

    def quotient(self, g: int) -> int:
        """fl(g / n)."""
        step = max((g // self.n).bit_length() - self.r.p, self.r.low + 1)
        whole, rest = divmod(g, self.n << step)
        half = self.n << (step - 1)
        return (whole + (rest > half or (rest == half and whole & 1))) << step

    def outermost(self, x: int, way: int) -> int | None:
        """The largest (DOWN) or smallest (UP) number 0 <= g <= most with fl(g / n) = x > 0; None where none is near."""
        if (x, way) not in self.known:
            self.known[x, way] = self._outermost(x, way)
        return self.known[x, way]

    def _outermost(self, x: int, way: int) -> int | None:
        if self.whole:
            g, r = x * self.n, self.given or self.r
            return g if g <= self.most and g == r.below(g) else None
        half = self.spacing(x) >> 1
        limit = min(self.n * (x + half), self.most) if way == DOWN else self.n * (x - half)
        step = self.spacing(limit)
        g = limit // step * step if way == DOWN else -(-limit // step) * step
        for _ in range(3):
            if g > self.most:
                return None
            if self.quotient(g) == x:
                return g
            g -= way * step
        return None

    def ties(self, total: int, way: int) -> Iterator[int]:
        """Terms with total + x a tie to an even number below (DOWN) or above, the largest first."""
        limit = total + self.term
        for _ in range(2):
            edge, ulp = 1 << (limit.bit_length() - 1), self.spacing(limit)
            half = ulp >> 1
            e = (limit - half) // ulp
            tie = (e - (e % 2 if way == DOWN else 1 - e % 2)) * ulp + half
            while tie > max(total, edge):
                yield tie - total
                tie -= 2 * ulp
            limit = edge - max(ulp >> 3, 1)
            if limit <= total:
                return

    def terms(self, total: int, way: int, tries: int) -> Iterator[int]:
        """Terms to try: ties, or for the first one the numbers below the largest; at last the largest, which fits."""
        most = self.term
        if total:
            near = islice(self.ties(total, way), TRIED)
            held = (x for x in near if x > 0 and x % self.spacing(x) == 0 and self.outermost(x, way) is not None)
            yield from islice(held, tries)
        else:
            x = self.r.round(most - (most >> (self.r.p - 3))) if self.whole else most
            steps = range(1 if self.whole else tries)
            yield from (z for i in steps if (z := x - i * self.spacing(x)) > 0)
        yield most
        yield self.r.round(max(most - 2 * self.spacing(most), 0))
        if self.given:
            yield self.given.below(most * self.n) // self.n

    def run(self, way: int) -> Partial:
        """The partial sum of n terms that has lost most, of those that the beam met."""
        how = effort(self.n)
        kept = [Partial(0, 0)]
        for i in range(self.n):
            grown: dict[int, Partial] = {}
            for one in kept:
                for x in self.terms(one.total, way, how.tries * (8 if i == 0 else 1)):
                    g = self.outermost(x, way)
                    if g is None:
                        continue
                    total = self.r.round(one.total + x)
                    lost = one.lost + way * (g - self.n * (total - one.total))
                    if total not in grown or grown[total].lost < lost:
                        grown[total] = Partial(total, lost, g, one)
            kept = sorted(grown.values(), key=lambda p: (p.lost, p.total), reverse=True)[: how.beam]
        return kept[0]


def sequential_witness(n: int, fmt: str, magnitude: Fraction = Fraction(1), given: str | None = None) -> list[Fraction]:
    """n gradients 0 <= g_i <= magnitude of the format, for fl(g / n) summed from left to right.

    `given`: a narrower format that the gradients are numbers of; then n is a power of two. Raises ValueError for n < 1.
    """
    if n < 1 or (given and n & (n - 1)):
        raise ValueError("a window has at least one micro-batch, and a power of two of them in a narrower format")
    search = Search(n, format_named(fmt), magnitude, format_named(given) if given else None)
    if not search.term:
        return [Fraction(search.r.below(search.most), 1 << search.bits)] * n
    made: list[Fraction] = []
    one = max((search.run(way) for way in ((DOWN,) if search.whole else (DOWN, UP))), key=lambda p: p.lost)
    while one.before is not None:
        made.append(Fraction(one.last, 1 << search.bits))
        one = one.before
    return made[::-1]
