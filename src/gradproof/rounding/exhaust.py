"""Rounding on integers, and additions of a 16-bit format, all of them.

A number of a format is an integer times a unit. Rounding to nearest even of an integer or of a ratio of integers is
exact in int64 below 2^53, and it is the same in every unit in which the subnormal grid is no coarser than 1. fp16 in
units of its smallest subnormal needs 41 bits, so every pair is literally added. bf16 spans 261 bits: there the
exponents of s and x differ by d, the unit is the last place of x, and a class (d, significands, sign) stands for all
its scaled copies.

Symmetries: addition commutes, so |s| >= |x|; rounding is odd, so s >= 0. Then z = s + x >= 0. A class may be checked
that no pair has (a significand without its leading bit above the subnormals): that asks for more, never for less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradproof.arith.formats import Format

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
GAP = 12
EXPONENT_BITS = 52


@dataclass
class Count:
    """Cases looked at, how many broke the promise, and the first one that did."""

    cases: int = 0
    violations: int = 0
    first: str = ""

    def add(self, kept: Mask, described: Callable[[int], str]) -> None:
        """One batch of cases. `described` words the case at an index."""
        self.cases += kept.size
        if not kept.all():
            broken = np.flatnonzero(~kept)
            self.first = self.first or described(int(broken[0]))
            self.violations += broken.size


def bit_length(v: Ints) -> Ints:
    """Bits of each integer in 0 <= v < 2^53, read from the exponent of the float64 that equals it; 0 has none."""
    exponent: Ints = (v.astype(np.float64).view(np.int64) >> EXPONENT_BITS) - 1022
    return np.maximum(exponent, 0)


@dataclass(frozen=True)
class Rounded:
    """z >= 0 cut to p bits: z = (head << shift) + tail, and its rounding t to nearest even."""

    length: Ints
    shift: Ints
    low: Ints
    tail: Ints
    t: Ints


def round_units(z: Ints, p: int) -> Rounded:
    """Integers 0 <= z < 2^53, in units no finer than the subnormal grid, rounded to p bits, ties to even."""
    length = bit_length(z)
    shift = np.maximum(length - p, 0)
    head = z >> shift
    low = head << shift
    tail = z - low
    gap = np.left_shift(1, shift)
    twice = tail << 1
    up = (twice > gap) | ((twice == gap) & ((head & 1) == 1))
    return Rounded(length, shift, low, tail, low + np.where(up, gap, 0))


def representable(v: Ints, p: int) -> Mask:
    """Whether integers are numbers of precision p, range aside."""
    r = round_units(np.abs(v), p)
    kept: Mask = r.tail == 0
    return kept


@dataclass(frozen=True)
class Additions:
    """A batch of additions s + x in one unit: z, its parts, t and |e|."""

    p: int
    s: Ints
    x: Ints
    z: Ints
    r: Rounded
    signed: Ints
    error: Ints

    @classmethod
    def of(cls, s: Ints, x: Ints, p: int) -> Additions:
        """Add and round."""
        z = s + x
        r = round_units(z, p)
        signed = r.t - z
        return cls(p, s, x, z, r, signed, np.abs(signed))


Check = Callable[[Additions], Mask]


def _half_ulp(a: Additions) -> Mask:
    """2^p |e| <= 2^k where 2^k is the binade of z; a smaller z than 2^emin is held to its own binade, which is more."""
    kept: Mask = (a.error << a.p) <= np.left_shift(1, np.maximum(a.r.length, 1) - 1)
    return kept


def _grid(a: Additions) -> Mask:
    """t lies between the neighbours of z, so no number of the format is between z and t."""
    above = a.r.low + np.where(a.r.tail > 0, np.left_shift(1, a.r.shift), 0)
    kept: Mask = (a.r.low <= a.r.t) & (a.r.t <= above)
    return kept


def _fast2sum(a: Additions) -> Mask:
    """t - s and x - (t - s) are numbers of the format, so both subtractions are exact."""
    return representable(a.r.t - a.s, a.p) & representable(a.signed, a.p)


def _multiples(a: Additions) -> Mask:
    joined = np.where((a.s | a.x) == 0, 1, a.s | a.x)
    kept: Mask = (a.z > ((joined & -joined) << a.p)) | (a.error == 0)
    return kept


def _ftz(a: Additions) -> Mask:
    """With units of tiny, 2^emin is 2^(p-1) of them; a class in coarser units is no subnormal sum."""
    least = 1 << (a.p - 1)
    kept: Mask = ((a.r.t >= least) & (a.z >= least)) | (a.z <= least)
    return kept


ADD_CHECKS: Mapping[str, Check] = {
    "half-ulp": _half_ulp,
    "relative": lambda a: (a.error << a.p) <= a.z,
    "at-most-terms": lambda a: (a.error <= np.abs(a.x)) & (a.error <= a.s),
    "grid": _grid,
    "error-representable": _fast2sum,
    "exact": lambda a: (a.r.tail != 0) | (a.error == 0),
    "multiples": _multiples,
    "subnormal": lambda a: (a.z > (1 << (a.p - 1))) | (a.error == 0),
    "ftz": _ftz,
}


@dataclass
class Tally:
    """Counts of several promises, made in one pass."""

    counts: dict[str, Count]
    stands_for: int = 0
    skipped: int = 0
    notes: dict[str, int] = field(default_factory=dict)


def finite_units(f: Format) -> Ints:
    """Every finite number >= 0 of a format in units of its smallest subnormal. Raises ValueError above 2^52."""
    if f.largest / f.tiny >= 2**52:
        raise ValueError(f"{f.name} spans too many bits for int64")
    return np.array([int(x / f.tiny) for x in f.nonnegative()], dtype=np.int64)


def pairs(f: Format) -> Iterator[tuple[Ints, Ints]]:
    """Every pair s >= |x| of finite numbers, in units of tiny, one row a value of s (small ones together)."""
    values = finite_units(f)
    for i, s in enumerate(values):
        below = values[: i + 1]
        x = np.concatenate([-below[:0:-1], below])
        yield np.broadcast_to(s, x.shape), x


def classes(f: Format) -> Iterator[tuple[Ints, Ints]]:
    """Every class of pairs whose exponents differ by at most p + GAP, in units of the last place of x.

    Beyond p + 1 the other term is below half the spacing next to s, so t = s: see `far`.
    """
    all_m = np.arange(2**f.p, dtype=np.int64)
    high = all_m[2 ** (f.p - 1) :]
    for d in range(f.p + GAP + 1):
        s = np.repeat((all_m if d == 0 else high) << d, 2 * len(all_m))
        x = np.tile(np.concatenate([-all_m, all_m]), len(s) // (2 * len(all_m)))
        kept = np.abs(x) <= s
        yield s[kept], x[kept]


def far(f: Format) -> Count:
    """t = s for every class whose exponents differ by p + 2 to p + GAP; smaller x only come closer to s."""
    count = Count()
    for d, (s, x) in enumerate(classes(f)):
        if d >= f.p + 2:
            count.add(round_units(s + x, f.p).t == s, _pair(s, x))
    return count


def _pair(s: Ints, x: Ints) -> Callable[[int], str]:
    return lambda i: f"{int(s[i])} + {int(x[i])} units"


def additions(f: Format, checks: Mapping[str, Check] = ADD_CHECKS, literal: bool = True) -> Tally:
    """Every addition of a format: all pairs of numbers, or all classes of pairs. Overflowing sums are left out.

    The literal pass needs a format below 2^52 units (fp16, tiny ones); memory stays below a few MiB.
    """
    tally = Tally({name: Count() for name in checks})
    largest = int(f.largest / f.tiny) if literal else None
    for s, x in pairs(f) if literal else classes(f):
        a = Additions.of(s, x, f.p)
        if largest is not None and int(a.r.t[-1]) > largest:
            fits = a.r.t <= largest
            tally.skipped += int(fits.size - fits.sum())
            a = Additions.of(s[fits], x[fits], f.p)
        for name, check in checks.items():
            tally.counts[name].add(check(a), _pair(a.s, a.x))
    n = 2 ** (f.p - 1) * (f.emax - f.emin + 2)
    tally.stands_for = n * n if not literal else next(iter(tally.counts.values())).cases
    if not literal:
        gap = far(f)
        tally.notes = {"far cases": gap.cases, "far violations": gap.violations}
        for count in tally.counts.values():
            count.add(np.array([gap.violations == 0]), lambda _: "exponents that differ by more than p + 1: t is not s")
    return tally
