"""Inputs on which left-to-right accumulation errs as far as a search finds, for any number of micro-batches.

Two errors are driven the same way. The addition s + x errs by half an ulp of the sum, downwards, where its exact result
is a tie whose lower neighbour is even (upwards: the upper one): that fixes x modulo twice that ulp. The quotient g / n
errs where g / n is no number of the format: of the gradients with fl(g / n) = x the outermost one is taken. The search
keeps the partial sums that have lost most (a beam). For n = 2^k quotients are exact, the largest ties lose most, and
the bound u (n^2 - 1) / (3 n) is attained. Source of the ties: Higham, Accuracy and Stability, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from gradproof.arith.bounds import Rounding
from gradproof.arith.formats import Format, binade, format_named
from gradproof.rounding.accumulation import Setting

# -- The runs whose last exact sum lies beyond the power of two below its bound, one by one.
MOST_RUNS = 150_000
Range = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class BeyondSearch:
    """The edge, the largest |G - mean| of the runs beyond it, and gradients that attain it, if any run gets there."""

    edge: Fraction
    worst: Fraction
    witness: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class SearchPath:
    """A sum of gradients or in floats, the last gradient, the path before, and n times what it lost; whole units."""

    total: int
    last: int = 0
    before: SearchPath | None = None
    lost: int = 0

    def gradients(self) -> list[int]:
        """The gradients, the first one first."""
        made, one = [], self
        while one.before is not None:
            made.append(one.last)
            one = one.before
        return made[::-1]


def _plain(setting: Setting) -> bool:
    """Left to right, quotients by no power of two, of gradients that are numbers of the buffer's format."""
    divided = setting.scale == "divide" and setting.order == "sequential" and not setting.inputs
    return divided and setting.n & (setting.n - 1) != 0


def _edge(most: Fraction, f: Format) -> Fraction | None:
    """The power of two just below the bound on the last exact sum, where a case there pays; else None."""
    if most == 0:
        return None
    edge = Fraction(2) ** binade(most)
    return edge if 0 < most - edge <= 8 * f.u * edge and most <= f.largest else None


def _highest(setting: Setting, f: Format) -> list[Fraction]:
    """The largest exact sums of 1, 2, ... terms."""
    x = f.round(setting.magnitude / setting.n)
    sums, total = [x], x
    for _ in range(setting.n - 1):
        sums.append(total + x)
        total = f.round(sums[-1])
    return sums


@lru_cache(maxsize=256)
def beyond(setting: Setting) -> BeyondSearch | None:
    """The worst of the runs whose last exact sum is beyond the edge; None where nobody looked.

    Runs are not enumerated where there is no edge, or where there are too many of them.
    """
    f = format_named(setting.buffer)
    sums = _highest(setting, f) if _plain(setting) else [Fraction(0)]
    edge = _edge(sums[-1], f)
    if edge is None:
        return None
    low = _least(sums, edge, f)
    tops = [Fraction(0), *(f.round(z) for z in sums[:-1])]
    fewest = min(least - top for least, top in zip(low, tops, strict=True))
    found = _gradients(setting, f, fewest) if fewest > 0 else None
    return None if found is None else _worst(setting, f, found, low, edge)


def _least(sums: list[Fraction], edge: Fraction, f: Format) -> list[Fraction]:
    """What each exact sum has to exceed, or reach, for the last one to be beyond the edge."""
    low = [edge]
    for above in sums[-2::-1]:
        low.append(low[-1] - sums[0] - f.half_ulp(2 * above))
    return low[::-1]


def _gradients(setting: Setting, f: Format, fewest: Fraction) -> dict[Fraction, Range] | None:
    """The quotients of at least `fewest`, the largest first, each with the least and the largest gradient."""
    made: dict[Fraction, Range] = {}
    g = f.round(setting.magnitude)
    g = g if g <= setting.magnitude else g - f.spacing(g)
    while g > 0 and (x := f.round(g / setting.n)) >= fewest:
        made[x] = (g, made.get(x, (g, g))[1])
        if len(made) > MOST_RUNS:
            return None
        g -= f.spacing(g * (1 - f.u))
    return made


def _worst(
    setting: Setting, f: Format, found: Mapping[Fraction, Range], low: list[Fraction], edge: Fraction
) -> BeyondSearch | None:
    bits, n = f.p - f.emin, setting.n
    made = [tuple(int(v * 2**bits) for v in (x, g, h)) for x, (g, h) in found.items()]
    ends = _followed(Rounding(f, bits), made, [int(-(-least * 2**bits // 1)) for least in low])
    if ends is None:
        return None
    errors = [(n * t - a.total, a) for t, (a, _) in ends.items()] + [(b.total - n * t, b) for t, (_, b) in ends.items()]
    if not errors:
        return BeyondSearch(edge, Fraction(0), ())
    most, path = max(errors, key=lambda e: e[0])
    return BeyondSearch(edge, Fraction(most, n << bits), tuple(Fraction(g, 2**bits) for g in path.gradients()))


def _followed(
    r: Rounding, made: list[tuple[int, ...]], low: list[int]
) -> dict[int, tuple[SearchPath, SearchPath]] | None:
    """The last sums, each with the paths of the least and of the largest gradients; None where they are too many."""
    none = SearchPath(0)
    kept, runs = {0: (none, none)}, 0
    for i, least in enumerate(low):
        more = i == len(low) - 1  # the last sum is to be more than the edge
        grown: dict[int, tuple[SearchPath, SearchPath]] = {}
        for s, (a, b) in kept.items():
            for x, g, h in made:
                if s + x < least + more:
                    break
                runs += 1
                t = r.round(s + x)
                before = grown.get(t)
                c = before[0] if before and before[0].total <= a.total + g else SearchPath(a.total + g, g, a)
                d = before[1] if before and before[1].total >= b.total + h else SearchPath(b.total + h, h, b)
                grown[t] = (c, d)
            if runs > MOST_RUNS:
                return None
        kept = grown
    return kept


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


class WitnessSearch:
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

    def run(self, way: int) -> SearchPath:
        """The partial sum of n terms that has lost most, of those that the beam met."""
        how = effort(self.n)
        kept = [SearchPath(0)]
        for i in range(self.n):
            grown: dict[int, SearchPath] = {}
            for one in kept:
                for x in self.terms(one.total, way, how.tries * (8 if i == 0 else 1)):
                    g = self.outermost(x, way)
                    if g is None:
                        continue
                    total = self.r.round(one.total + x)
                    lost = one.lost + way * (g - self.n * (total - one.total))
                    if total not in grown or grown[total].lost < lost:
                        grown[total] = SearchPath(total, g, one, lost)
            kept = sorted(grown.values(), key=lambda p: (p.lost, p.total), reverse=True)[: how.beam]
        return kept[0]


def sequential_witness(n: int, fmt: str, magnitude: Fraction = Fraction(1), given: str | None = None) -> list[Fraction]:
    """n gradients 0 <= g_i <= magnitude of the format, for fl(g / n) summed from left to right.

    `given`: a narrower format that the gradients are numbers of; then n is a power of two. Raises ValueError for n < 1.
    """
    if n < 1 or (given and n & (n - 1)):
        raise ValueError("a window has at least one micro-batch, and a power of two of them in a narrower format")
    search = WitnessSearch(n, format_named(fmt), magnitude, format_named(given) if given else None)
    if not search.term:
        return [Fraction(search.r.below(search.most), 1 << search.bits)] * n
    one = max((search.run(way) for way in ((DOWN,) if search.whole else (DOWN, UP))), key=lambda p: p.lost)
    return [Fraction(g, 1 << search.bits) for g in one.gradients()]
