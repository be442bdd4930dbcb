"""Rounding: an enclosure of every value, and a bound on how far the machine's value may lie from it.

Four components. `lo <= exact value <= hi`, and `|machine's value - exact value| <= err`, elementwise, for every leaf in
its range (`Ranges`) that is a number of its format. `grid` says of which format the machine's value is a number, so
that a copy into the same format costs nothing.

One operation costs u |result| and the underflow unit. A sum of m terms costs (m - 1) u sum |x_i| in every order of
summation, an inner product of n terms n u sum |x_i y_i| with and without fused multiply-add; neither needs a factor
1 / (1 - n u) under rounding to nearest (Rump, "Error estimation of floating-point summation and dot product", BIT 52,
2012; Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J. Matrix Anal.
Appl. 34, 2013). u is that of the operator's narrowest output. u of the 16-bit formats carries 2 u of fp32 for kernels
that round twice.

Assumed: rounding to nearest and gradual underflow, and functions within `ULPS` units in the last place. For which
kernels that is assumed is in `bounds.rules` and `bounds.kernels`.

The bookkeeping is in float64 and rounded outward. What has no bound (a divisor that may be zero, an overflow) is an
unknown element; storing one raises NoBound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradproof.arith.formats import FORMATS, Format
from gradproof.shadow.bounds import enclosure
from gradproof.shadow.bounds.enclosure import FUNCTIONS, Array, NoBound, Parts, above, below, corners, quotients, sums
from gradproof.shadow.locations import Location

FORMAT: dict[str, Format] = {
    "float64": FORMATS["fp64"], "float32": FORMATS["fp32"], "float16": FORMATS["fp16"], "bfloat16": FORMATS["bf16"],
}  # fmt: skip
CODE = {"": 0, "float64": 1, "float32": 2, "float16": 3, "bfloat16": 4}
NAME = {code: name for name, code in CODE.items()}
NORMAL = np.array([0.0, *(2.0 ** FORMAT[name].emin for name in FORMAT)])
"""The least normal number of each format, by its code; a product below it may lose digits when it is stored."""
CHARGED = 16
"""Added to a format's code: the rounding into this format has been charged, the value is not stored yet."""

FITS = {(a, a) for a in CODE} | {("float32", "float64"), ("float16", "float64"), ("bfloat16", "float64")} | {
    ("float16", "float32"), ("bfloat16", "float32"),
}  # fmt: skip
"""Pairs of formats: every number of the first is one of the second."""

ULPS = 4.0
"""Assumed error of a kernel's exp, log, tanh, ... in units in the last place."""

ERF = 2.0
"""The size of which erf's error is counted in units in the last place: gelu's kernels without AVX-512 have an absolute
error (as Abramowitz and Stegun 7.1.26 has, 1.5e-7), measured as 8.3 units of roundoff of 1."""

SLACK = 1 + 2.0**-47
"""Outward inflation: covers 32 roundings of float64 on numbers of one sign."""

TINY = 2.0**-1000
Key = tuple[str, Location]


@dataclass(frozen=True, slots=True)
class Radius:
    """How far a leaf may lie from its recorded value: `relative`, `absolute` (of it), or in [-`box`, `box`]."""

    relative: float = 0.0
    absolute: float = 0.0
    box: float | None = None

    def interval(self, value: Array) -> tuple[Array, Array]:
        """Lowest and highest number of every element, rounded outward when it is not the recorded one."""
        value = np.asarray(value, dtype=np.float64)
        if self.box is not None:
            return np.full(value.shape, -abs(self.box)), np.full(value.shape, abs(self.box))
        if self.relative == 0 and self.absolute == 0:
            return value, value
        reach = (np.abs(value) * abs(self.relative) + abs(self.absolute)) * SLACK
        return below(value - reach), above(value + reach)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The range of every leaf: by name, else by kind, else `default`, which is the recorded value alone."""

    default: Radius = Radius()
    kinds: Mapping[str, Radius] = field(default_factory=dict)
    names: Mapping[str, Radius] = field(default_factory=dict)

    def of(self, kind: str, name: str) -> Radius:
        """The radius of one leaf."""
        return self.names.get(name, self.kinds.get(kind, self.default))


class Domain:
    """The domain. `charged` totals what each operator and line of the user's code added; `silent` ones add nothing."""

    def __init__(self, ranges: Ranges | None = None, silent: frozenset[Key] = frozenset(), scale: float = 1.0) -> None:
        self.ranges, self.silent, self.scale = ranges or Ranges(), silent, scale
        self.charged: dict[Key, float] = {}
        self.key: Key = ("", Location("", 0))
        self.reason = ""
        self.set_format("float64")

    def begin(self, key: Key, dtypes: Sequence[str]) -> None:
        """Before an operator with results of these formats: its roundings are those of the narrowest.

        Raises NoBound for a floating-point format that is not known here.
        """
        self.key, self.reason = key, ""
        self.set_format(min(dtypes, key=_precision, default="float64"))

    def set_format(self, dtype: str) -> None:
        """The format of the next roundings. Raises NoBound for one that is not known here."""
        if dtype not in FORMAT:
            raise NoBound(f"no rounding bound for {dtype}")
        made = FORMAT[dtype]
        self.dtype, self.largest, self.normal = dtype, float(made.largest), 2.0**made.emin
        self.u = (float(made.u) + (2.0**-23 if made.p < 24 else 0.0)) * self.scale
        self.eta = float(made.tiny) / 2 * self.scale
        self.code = CHARGED + CODE[dtype]

    # Making and storing.

    def const(self, x: Array) -> Parts:
        """A constant: exact, or charged one rounding where it is no number of the operator's format."""
        value = np.asarray(x, dtype=np.float64)
        grid = np.full(value.shape, CODE[self.dtype], dtype=np.int8)
        made = FORMAT[self.dtype]
        if made.p >= 53:
            return value, value, np.zeros(value.shape), grid
        with np.errstate(over="ignore", invalid="ignore"):
            inside = np.isfinite(value)
            step = np.ldexp(1.0, np.maximum(np.frexp(np.where(inside, value, 0))[1] - 1, made.emin) - made.p + 1)
            exact = ~inside | ((np.fmod(np.where(inside, value, 0), step) == 0) & (np.abs(value) <= self.largest))
        lost = self._lost(np.where(exact, 0.0, np.abs(value)))
        return self._done(value, value, lost, np.where(exact, grid, self.code))

    def truth(self, x: Array) -> Parts:
        """Concrete truth values are sure (`enclose.NO` and `enclose.YES`)."""
        return (np.asarray(x, dtype=np.int8),)

    def leaf(self, kind: str, name: str, dtype: str, value: Array) -> Parts:
        """Every number of the leaf's format in its range; no error of its own."""
        lo, hi = self.ranges.of(kind, name).interval(value)
        return lo, hi, np.zeros(value.shape), np.full(value.shape, CODE[dtype], dtype=np.int8)

    def rounded(self, a: Parts, dtype: str) -> Parts:
        """The value as stored: one rounding unless it has been charged, or the format holds it already.

        Raises NoBound where an element is unknown, or may overflow.
        """
        lo, hi, err, grid = a
        if dtype not in FORMAT:
            raise NoBound(f"no rounding bound for {dtype}")
        inner = self.dtype
        self.set_format(dtype)
        size = np.where(lo == hi, np.abs(lo), np.maximum(np.abs(lo), np.abs(hi))) + err
        free = np.zeros(grid.shape, dtype=bool)
        for code, name in NAME.items():
            if name and (name, dtype) in FITS:
                free |= (grid == code) | (grid == CHARGED + code)
        kept = free & (grid < CHARGED)
        lost = np.where(free | _infinite(lo, hi), 0.0, self._lost(size))
        out = self._done(lo, hi, err + lost, np.where(kept, grid, CODE[dtype]).astype(np.int8))
        self.set_format(inner)
        if not bool(np.all(np.isfinite(out[2]))):
            raise NoBound(self.reason or "no bound is known for an element")
        return out

    def _lost(self, size: Array, times: float | Array = 1.0) -> Array:
        """`times` roundings of a result of at most this size, noted for the report."""
        lost = np.asarray(np.where(size > 0, times * (self.u * size + self.eta), 0.0) * SLACK)
        if self.key in self.silent:
            return np.zeros_like(lost)
        finite = lost[np.isfinite(lost)]
        self.charged[self.key] = self.charged.get(self.key, 0.0) + float(finite.sum())
        return lost

    def _done(self, lo: Array, hi: Array, err: Array, grid: Array) -> Parts:
        """Mark what is unknown: not a number, an infinite error, or an overflow of the operator's format."""
        with np.errstate(invalid="ignore", over="ignore"):
            constant = _infinite(lo, hi)
            err = np.where(constant, 0.0, np.where(err > 0, err * SLACK + TINY, err))
            size = np.maximum(np.abs(lo), np.abs(hi)) + err
            over = ~constant & (size > self.largest)
            bad = np.isnan(lo) | np.isnan(hi) | np.isnan(err) | over | (~constant & ~np.isfinite(size))
        if bool(np.any(over)) and not self.reason:
            self.reason = f"a value may overflow {self.dtype}"
        grid = np.broadcast_to(np.asarray(grid, dtype=np.int8), lo.shape)
        return np.where(bad, -np.inf, lo), np.where(bad, np.inf, hi), np.where(bad, np.inf, err), grid

    # Arithmetic.

    def add(self, a: Parts, b: Parts) -> Parts:
        """Exact where one side is zero."""
        (al, ah, ae, ag), (bl, bh, be, bg) = a, b
        with np.errstate(invalid="ignore", over="ignore"):
            lo, hi = sums(al, ah, bl, bh)
            az, bz = np.broadcast_arrays(zero(a), zero(b))
            err = ae + be
            size = np.where(az | bz, 0.0, np.maximum(np.abs(lo), np.abs(hi)) + err)
            size = np.where(_infinite(lo, hi), 0.0, size)
            grid = np.where(az, bg, np.where(bz, ag, self.code))
        return self._done(lo, hi, err + self._lost(size), grid)

    def sub(self, a: Parts, b: Parts) -> Parts:
        """As the sum."""
        return self.add(a, self.neg(b))

    def neg(self, a: Parts) -> Parts:
        """Exact."""
        return -a[1], -a[0], a[2], a[3]

    def mul(self, a: Parts, b: Parts) -> Parts:
        """Exact, but for underflow, where one side is a power of two."""
        (al, ah, ae, ag), (bl, bh, be, bg) = a, b
        with np.errstate(invalid="ignore", over="ignore"):
            lo, hi = corners(al, ah, bl, bh)
            lo = np.maximum(lo, 0.0) if a is b else lo
            err = size_of(a) * be + size_of(b) * ae + ae * be
            pa, pb = np.broadcast_arrays(power(a), power(b))
            big = np.maximum(np.abs(lo), np.abs(hi)) + err
            low = np.minimum(np.abs(lo), np.abs(hi)) * (lo * hi > 0)
            kept = np.where(pa, bg, ag)
            same, less = pa | pb, _shrinks(a, b, pa, pb) & (low < np.maximum(self.normal, NORMAL[kept % CHARGED]))
            lost = np.where(same, np.where(less, self.eta, 0.0), self._lost(np.where(same, 0.0, big)))
            grid = np.where(same & ~less, kept, self.code)
        return self._done(lo, hi, err + np.where(big > 0, lost, 0.0), grid)

    def div(self, a: Parts, b: Parts) -> Parts:
        """Unknown where the divisor may be zero. By one constant: two roundings, kernels multiply by its inverse."""
        (al, ah, ae, ag), (bl, bh, be, _) = a, b
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            least = np.where(bl > 0, bl, np.where(bh < 0, -bh, 0.0))
            machine = below(least - be)
            if bool(np.any(machine <= 0)) and not self.reason:
                self.reason = "a divisor may be zero"
            lo, hi = quotients(al, ah, bl, bh)
            size = np.maximum(np.abs(lo), np.abs(hi))
            err = np.where(machine > 0, (ae + size * be) / machine * SLACK, np.inf)
            pb = np.broadcast_to(power(b), lo.shape)
            small = np.minimum(np.abs(lo), np.abs(hi)) * (lo * hi > 0) < np.maximum(self.normal, NORMAL[ag % CHARGED])
            less = pb & (np.abs(bl) > 1) & small
            times = 2.0 if bl.size == 1 and bool(np.all((bl == bh) & (be == 0))) else 1.0
            lost = np.where(pb, np.where(less, self.eta, 0.0), self._lost(np.where(pb, 0.0, size + err), times))
            err = np.where(size + err > 0, err + lost, 0.0)
            grid = np.where(pb & ~less, ag, self.code)
        return self._done(lo, hi, err, grid)

    def sum(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """Over axes, in any order."""
        count = math.prod(a[0].shape[k] for k in axes)
        return self.sums([(a, lambda p: np.asarray(p.sum(axis=axes)))], count) if axes else a

    def sums(self, terms: Sequence[tuple[Parts, Callable[[Array], Array]]], most: int) -> Parts:
        """Sums of elements, in any order: each function adds elements of one array; `most` is the most in one sum.

        Terms that are zero for certain are not counted.
        """

        def total(f: Callable[[Parts], Array]) -> Array:
            found = [add(np.asarray(f(parts), dtype=np.float64)) for parts, add in terms]
            return np.asarray(sum(found[1:], start=found[0]))

        with np.errstate(invalid="ignore", over="ignore"):
            size = total(lambda p: size_of(p) + p[2]) * SLACK
            off = size * (most * 2.0**-53) * SLACK
            low, high = below(total(lambda p: p[0]) - off), above(total(lambda p: p[1]) + off)
            low = np.where(total(lambda p: ~(p[0] >= 0)) == 0, np.maximum(low, 0.0), low)
            counted = total(lambda p: ~zero(p))
            lost = self._lost(size, np.maximum(counted - 1, 0))
            err = total(lambda p: p[2]) * (1 + most * 2.0**-52) + np.where(size > 0, lost, 0.0)
        grids = {code for parts, _ in terms for code in np.unique(parts[3]).tolist()}
        stored = grids.pop() if len(grids) == 1 else 0
        none = counted == 0
        low, high, err = np.where(none, 0.0, low), np.where(none, 0.0, high), np.where(none, 0.0, err)
        over = np.where(size > self.largest, np.inf, err)
        return self._done(low, high, over, np.where(counted <= 1, stored, self.code))

    def larger(self, a: Parts, b: Parts) -> Parts:
        """The larger of two: what is certainly larger, or no farther away than either was."""
        (al, ah, ae, ag), (bl, bh, be, bg) = a, b
        first, second = al - ae >= bh + be, bl - be >= ah + ae
        sides = [(al, bl, np.maximum(al, bl)), (ah, bh, np.maximum(ah, bh)), (ae, be, np.maximum(ae, be))]
        low, high, err = (np.where(first, x, np.where(second, y, both)) for x, y, both in sides)
        grid = np.where(first, ag, np.where(second, bg, np.where(ag == bg, ag, 0)))
        return low, high, err, grid.astype(np.int8)

    def largest_of(self, a: Parts, axes: tuple[int, ...]) -> Parts:
        """The largest along axes. Raises NoBound where there is none."""
        if any(a[0].shape[axis] == 0 for axis in axes):
            raise NoBound("the largest of no elements")
        low, high, err, grid = (p.max(axis=axes) for p in a)
        return low, high, err, np.where(a[3].min(axis=axes) == grid, grid, 0).astype(np.int8)

    def matmul(self, a: Parts, b: Parts) -> Parts:
        """Any order, with or without fused multiply-add. Raises NoBound at an infinite operand."""
        (al, ah, ae, _), (bl, bh, be, _) = a, b
        n = al.shape[-1]
        sa, sb = size_of(a), size_of(b)
        if not bool(np.all(np.isfinite(sa))) or not bool(np.all(np.isfinite(sb))):
            raise NoBound(self.reason or "an operand of a matrix product is infinite or has no bound")
        grow = (1 + (n + 4) * 2.0**-52) * SLACK
        ma, mb = (al + ah) / 2, (bl + bh) / 2
        ra, rb = above(np.maximum(ah - ma, ma - al)), above(np.maximum(bh - mb, mb - bl))
        ra, rb = np.where(al == ah, 0.0, ra), np.where(bl == bh, 0.0, rb)
        middle = ma @ mb
        radius = (np.abs(ma) @ rb + ra @ sb) * grow + (sa @ sb) * ((n + 2) * 2.0**-53) * grow
        err = (sa @ be + ae @ (sb + be)) * grow
        size = ((sa + ae) @ (sb + be)) * grow
        lost = self._lost(size, float(n)) + np.where(size > 0, n * self.eta, 0.0)
        err = np.where(size > self.largest, np.inf, err + lost)
        if bool(np.any(size > self.largest)) and not self.reason:
            self.reason = f"a value may overflow {self.dtype}"
        code = np.where(size > 0, self.code, CODE[self.dtype])
        return self._done(below(middle - radius), above(middle + radius), err, code)

    def function(self, name: str, args: Sequence[Parts]) -> Parts:
        """An enclosure from monotony and a bound on the slope; `ULPS` units in the last place for the kernel's own."""
        if name not in FUNCTIONS:
            raise NoBound(f"no rounding bound for the function {name!r}")
        with np.errstate(all="ignore"):
            lo, hi, err = FUNCTIONS[name](*[p[:3] for p in args])
            size = np.maximum(np.abs(lo), np.abs(hi)) + err
            size = np.maximum(size, ERF) if name == "erf" else size
            exact = name in ("floor", "round")
            gone = 1 / self.largest if name == "sigmoid" else 0.0  # kernels return 0 where exp(-x) overflows
            lost = 0.0 if exact else gone + self._lost(np.where(np.isfinite(size), size, 0.0), 2 * self.ulps(name))
        if not bool(np.all(np.isfinite(err))) and not self.reason:
            self.reason = f"{name} may leave its domain or overflow"
        return self._done(lo, hi, err + lost, np.full(lo.shape, self.code))

    @staticmethod
    def ulps(name: str) -> float:
        """Units in the last place assumed: 1 for the square root (MKL rounds no better), else `ULPS` or twice that."""
        return 1.0 if name == "sqrt" else 2 * ULPS if name in ("sigmoid", "softplus", "pow") else ULPS

    # Truth values.

    def less(self, a: Parts, b: Parts) -> Parts:
        """What the exact evaluation decides, and whether the machine must decide so too."""
        (al, ah, ae, _), (bl, bh, be, _) = a, b
        with np.errstate(invalid="ignore"):
            sure = (above(ah + ae) < below(bl - be)) | (below(al - ae) >= above(bh + be)) | ((ae == 0) & (be == 0))
        return (enclosure.verdict(ah < bl, al >= bh, sure),)

    def equal(self, a: Parts, b: Parts) -> Parts:
        """As `less`; equal only where both are points."""
        alike = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
        apart = (a[1] < b[0]) | (b[1] < a[0])
        sides = (self.less(a, b)[0] == enclosure.YES) | (self.less(b, a)[0] == enclosure.YES)
        return (enclosure.verdict(alike, apart, sides | ((a[2] == 0) & (b[2] == 0))),)

    negated = staticmethod(enclosure.negated)
    both = staticmethod(enclosure.both)

    def where(self, c: Parts, a: Parts, b: Parts) -> Parts:
        """The exact side, or both; the machine may take the other one unless the condition is sure."""
        (al, ah, ae, ag), (bl, bh, be, bg) = a, b
        cond = c[0]
        first, second = (
            (cond == enclosure.YES) | (cond == enclosure.MOSTLY_YES),
            (cond == enclosure.NO) | (cond == enclosure.MOSTLY_NO),
        )
        with np.errstate(invalid="ignore", over="ignore"):
            gap = above(np.maximum(np.maximum(ah - bl, bh - al), 0.0))
            alike = (al == ah) & (bl == bh) & (al == bl)
            either = np.where(alike, np.maximum(ae, be), np.maximum(ae, be) + gap)
        lo = np.where(first, al, np.where(second, bl, np.minimum(al, bl)))
        hi = np.where(first, ah, np.where(second, bh, np.maximum(ah, bh)))
        err = np.where(cond == enclosure.YES, ae, np.where(cond == enclosure.NO, be, either))
        grid = np.where(cond == enclosure.YES, ag, np.where(cond == enclosure.NO, bg, np.where(ag == bg, ag, 0)))
        return lo, hi, err, grid.astype(np.int8)


def size_of(a: Parts) -> Array:
    """Largest magnitude of the exact value."""
    return np.maximum(np.abs(a[0]), np.abs(a[1]))


def zero(a: Parts) -> Array:
    """Where machine and exact value are zero for certain."""
    return np.asarray((a[0] == 0) & (a[1] == 0) & (a[2] == 0))


def power(a: Parts) -> Array:
    """Where the value is zero, or plus or minus a power of two, for certain."""
    fraction = np.frexp(a[0])[0]
    return np.asarray((a[0] == a[1]) & (a[2] == 0) & np.isfinite(a[0]) & ((np.abs(fraction) == 0.5) | (a[0] == 0)))


def _shrinks(a: Parts, b: Parts, pa: Array, pb: Array) -> Array:
    return ~((pa & (np.abs(a[0]) >= 1)) | (pb & (np.abs(b[0]) >= 1))) & (pa | pb)


def _infinite(lo: Array, hi: Array) -> Array:
    return np.asarray((lo == hi) & np.isinf(lo))


def narrower(one: str, other: str) -> bool:
    """Whether a format has fewer digits than another one."""
    return 0 < _precision(one) < _precision(other)


def _precision(dtype: str) -> int:
    return FORMAT[dtype].p if dtype in FORMAT else 0
