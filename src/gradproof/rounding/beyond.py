"""The runs whose last exact sum lies beyond the power of two below its bound, one by one.

Where N is no power of two, fl(g / N) may be above 1 / N, and N such terms may sum to a little more than 1. Rounding
there errs by up to a whole ulp of 1, twice what it does below, so the bound of a certificate jumps. But few runs get
there: every term and every partial sum is within a few ulps of the largest one that it can be. Those are enumerated
here, and the certificate is for the other case, a last sum of at most 1.

A run is followed from left to right. A partial sum that is so small that even the largest terms do not lift the last
sum beyond the edge is dropped; of each one that is kept, the least and the largest sum of gradients that lead to it
count. All terms of such a run are positive, or all are negative, and rounding is odd, so positive ones are followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from gradproof.arith.formats import Format, binade, format_named
from gradproof.arith.units import Rounding
from gradproof.rounding.setting import Setting

MOST_RUNS = 150_000
Range = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Beyond:
    """The edge, the largest |G - mean| of the runs beyond it, and gradients that attain it, if any run gets there."""

    edge: Fraction
    worst: Fraction
    witness: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """A sum of gradients, the last one of them, and the path before; all in whole units."""

    total: int
    last: int
    before: Path | None

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
def beyond(setting: Setting) -> Beyond | None:
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
) -> Beyond | None:
    bits, n = f.p - f.emin, setting.n
    made = [tuple(int(v * 2**bits) for v in (x, g, h)) for x, (g, h) in found.items()]
    ends = _followed(Rounding(f, bits), made, [int(-(-least * 2**bits // 1)) for least in low])
    if ends is None:
        return None
    errors = [(n * t - a.total, a) for t, (a, _) in ends.items()] + [(b.total - n * t, b) for t, (_, b) in ends.items()]
    if not errors:
        return Beyond(edge, Fraction(0), ())
    most, path = max(errors, key=lambda e: e[0])
    return Beyond(edge, Fraction(most, n << bits), tuple(Fraction(g, 2**bits) for g in path.gradients()))


def _followed(r: Rounding, made: list[tuple[int, ...]], low: list[int]) -> dict[int, tuple[Path, Path]] | None:
    """The last sums, each with the paths of the least and of the largest gradients; None where they are too many."""
    none = Path(0, 0, None)
    kept, runs = {0: (none, none)}, 0
    for i, least in enumerate(low):
        more = i == len(low) - 1  # the last sum is to be more than the edge
        grown: dict[int, tuple[Path, Path]] = {}
        for s, (a, b) in kept.items():
            for x, g, h in made:
                if s + x < least + more:
                    break
                runs += 1
                t = r.round(s + x)
                before = grown.get(t)
                c = before[0] if before and before[0].total <= a.total + g else Path(a.total + g, g, a)
                d = before[1] if before and before[1].total >= b.total + h else Path(b.total + h, h, b)
                grown[t] = (c, d)
            if runs > MOST_RUNS:
                return None
        kept = grown
    return kept
