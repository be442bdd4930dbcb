"""The proof of a rounding stub: what it promises is true of rounding to nearest even.

Rounding is piecewise constant: between two neighbours a < b with midpoint m it is a up to m and b from there on.
The error is linear on each piece, so its extremes are at the neighbours and at the midpoint; the promises are
judged there, binade by binade, with the binade as the site's range. That is every real in the range of a 16-bit
format, without sampling. The points are float64 arrays, which hold them and their differences exactly (at most 32
significant bits). For fp32 one binade with spacing 1 stands for all: the binades are scaled copies of it
(subnormals have its spacing and a smaller range), and the solver quantifies over the reals in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradproof.harness import FORMATS, Format, Site
from models.registry import Mutant
from symbolic.stubs import d3_grid

Reals = NDArray[np.float64]


def exactly(x: Fraction) -> float:
    """A Fraction as the float64 that equals it. Raises ValueError when there is none."""
    near = float(x)
    if Fraction(near) != x:
        raise ValueError(f"{x} is no float64")
    return near


@dataclass(frozen=True, slots=True)
class ArraySite:
    """A site whose constants compare exactly and quickly with float64 arrays."""

    site: Site

    @property
    def lo(self) -> Fraction:
        """Lower end of the exact range."""
        return self.site.lo

    @property
    def hi(self) -> Fraction:
        """Upper end of the exact range."""
        return self.site.hi

    @property
    def half_ulp(self) -> float:
        """The site's constant."""
        return exactly(self.site.half_ulp)

    @property
    def fmt(self) -> Any:
        """The site's rounding."""
        return SimpleNamespace(round=lambda x: exactly(self.site.fmt.round(x)))


def numbers(name: str) -> Reals:
    """Every finite number >= 0 of a 16-bit format, in increasing order, from its bit patterns."""
    if name == "fp16":
        return np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    return (np.arange(0, 0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def points(name: str) -> tuple[Reals, Reals]:
    """z and fl(z) at every number, every midpoint and next to it, for all z >= 0 in increasing order."""
    low, high = numbers(name)[:-1], numbers(name)[1:]
    middle, nudge = (low + high) / 2, (high - low) / 2**20
    to_even = np.where(np.arange(len(low)) % 2 == 0, low, high)
    z = np.stack([low, middle - nudge, middle, middle + nudge], axis=1)
    r = np.stack([low, low, to_even, high], axis=1)
    return z.ravel(), r.ravel()


def binades(f: Format, z: Reals) -> list[tuple[Fraction, NDArray[np.intp]]]:
    """(2^(k+1), indices of the z in (2^k, 2^(k+1)]); all subnormals and zero are one group."""
    edges = [Fraction(2) ** k for k in range(f.emin, f.emax + 2)]
    group = np.searchsorted([exactly(e) for e in edges], z, side="left")
    return [(edge, np.flatnonzero(group == i)) for i, edge in enumerate(edges) if (group == i).any()]


def broken_at(stub: Any, z: Reals, r: Reals, site: Site) -> str:
    """The first of these points, or of their negatives, at which a promise is broken; else an empty text."""
    mirrored = Site(site.fmt, -site.hi, -site.lo, site.shift)
    for sign, where in ((1, site), (-1, mirrored)):
        low, high = (exactly(end) for end in stub.enclose(where))
        for promise in [*stub.contract(sign * z, sign * r, ArraySite(where)), low <= sign * r, sign * r <= high]:
            broken = np.flatnonzero(~np.broadcast_to(promise, z.shape))
            if broken.size:
                at = broken[0]
                return f"z = {sign * float(z[at])!r} is rounded to {sign * float(r[at])!r}"
    return ""


def sound(k: Any, stub: Any) -> None:
    """Every promise of the stub is kept by rounding to nearest even, and it promises something."""
    name = k.choose("format", [*k.params["formats"], "fp32"])
    f = FORMATS[name]
    one = Fraction(1)
    far = stub.contract(one, one + 4 * f.spacing(one), Site(f, one, one))
    k.check(k.claim.id, not all(far), f"{name}: a value four ulps away is excluded")
    k.cover("every format", name == "fp32")
    k.check(k.claim.id, k.bound("values") >= 2**16, "every bit pattern is within the bound")
    if name == "fp32":
        _one_binade(k, stub, f)
    else:
        _every_real(k, stub, f)


def _every_real(k: Any, stub: Any, f: Format) -> None:
    z, r = points(f.name)
    for i, (edge, at) in enumerate(binades(f, z)):
        inside = Site(f, Fraction(z[at[0]]), Fraction(z[at[-1]]))
        broken = broken_at(stub, z[at], r[at], inside)
        k.check(k.claim.id, not broken, f"{f.name}, every real up to {float(edge)!r}: {broken}")
        if i % 8 == 0:
            _wide_sites(k, stub, f, z[: at[-1] + 1], r[: at[-1] + 1])
    relate: Any = getattr(stub, "relate", lambda *_: [])
    for promise in relate(z[:-1], r[:-1], z[1:], r[1:]):
        k.check(k.claim.id, bool(np.all(promise)), f"{f.name}: monotone")
    for exponent in range(1, k.bound("shifts") + 1):
        exact, rounded = _halved(f, exponent)
        site = Site(f, Fraction(0), Fraction(exact[-1]), shift=True)
        broken = broken_at(stub, exact, rounded, site)
        k.check(k.claim.id, not broken, f"{f.name}, every x / {2**exponent}: {broken}")


def _wide_sites(k: Any, stub: Any, f: Format, z: Reals, r: Reals) -> None:
    """The same points, as inner points of ranges that reach over zero or over many binades."""
    top = Fraction(z[-1])
    for low in (-top, Fraction(0), -top / 4):
        broken = broken_at(stub, z, r, Site(f, low, top))
        k.check(k.claim.id, not broken, f"{f.name}, range [{float(low)!r}, {float(top)!r}]: {broken}")


@cache
def _halved(f: Format, exponent: int) -> tuple[Reals, Reals]:
    """x / 2^k and its rounding, for every x whose quotient is subnormal or nearly so; all other quotients are exact."""
    x = numbers(f.name)[: 2 ** (f.p - 1) * (exponent + 2)]
    z = x / 2**exponent
    return z, np.array([exactly(f.round(Fraction(v))) for v in z])


def _one_binade(k: Any, stub: Any, f: Format) -> None:
    """fp32: every real in a binade, as an inner point of several ranges; then every quotient in the subnormal range."""
    low, high = Fraction(2) ** (f.p - 1), Fraction(2) ** f.p
    unit = k.choose("spacing", [Fraction(1), f.tiny])
    shift = unit != 1
    if shift:
        low = Fraction(0)
    pairs = [_nearest(k, i, low, high, unit) for i in (1, 2)]
    ranges = [(low, high), (-high, high), (Fraction(0), high), (low, 4 * high)]
    for ends in ranges[: 2 if shift else 4]:
        site = Site(f, ends[0] * unit, ends[1] * unit, shift)
        for z, r in (pairs[0], (-pairs[0][0], -pairs[0][1])):
            if z is not pairs[0][0] and ends[0] != -high:
                continue
            bottom, top = stub.enclose(site)
            for promise in [*stub.contract(z, r, site), r >= bottom, r <= top]:
                k.check(k.claim.id, promise, f"{f.name}: every real in a binade, within [{ends[0]}, {ends[1]}]")
    relate: Any = getattr(stub, "relate", lambda *_: [])
    for promise in [] if shift else relate(*pairs[0], *pairs[1]):
        k.check(k.claim.id, promise, f"{f.name}: monotone in a binade")


def _nearest(k: Any, i: int, low: Fraction, high: Fraction, unit: Fraction) -> tuple[Any, Any]:
    """A real z in [low, high] units and the nearest multiple of the unit, ties to even."""
    z, m = k.real(f"z{i}", low, high), k.int(f"m{i}", int(low), int(high))
    k.assume((m <= z) & (z < m + 1))
    up = (z - m > Fraction(1, 2)) | ((z - m == Fraction(1, 2)) & (m % 2 == 1))
    r = m + 1 if up else m
    k.cover("a tie", z - m == Fraction(1, 2))
    return z * unit, r * unit


def _half_of_half_ulp(z: Any, r: Any, site: Any) -> list[Any]:
    return [abs(r - z) <= site.half_ulp / 2]


def _no_tie(z: Any, r: Any, site: Any) -> list[Any]:
    return [abs(r - z) < site.half_ulp]


def _narrow_grid(z: Any, r: Any, site: Any) -> list[Any]:
    lo, hi = d3_grid.enclose(site)
    return [*d3_grid.contract(z, r, site), r <= hi - (hi - lo) / 2**12]


def _strictly_monotone(z1: Any, r1: Any, z2: Any, r2: Any) -> list[Any]:
    return [(z1 >= z2) | (r1 < r2)]


def _narrow_range(site: Any) -> tuple[Fraction, Fraction]:
    return site.lo, site.hi


def _exact_over_zero(z: Any, r: Any, site: Any) -> list[Any]:
    return [r == z] if site.lo < 0 < site.hi else d3_grid.contract(z, r, site)


def _shifts_never_round(z: Any, r: Any, site: Any) -> list[Any]:
    plain = getattr(site, "site", site)
    return [r == z] if plain.shift and plain.fmt.name == "fp32" else d3_grid.contract(z, r, site)


def _stub(contract: Any, **more: Any) -> Any:
    return SimpleNamespace(**{"contract": contract, "enclose": d3_grid.enclose} | more)


UNSOUND: Mapping[str, Mutant] = {
    "half_of_half_ulp": Mutant("half_of_half_ulp", "", "half the true error", _stub(_half_of_half_ulp)),
    "no_tie": Mutant("no_tie", "", "ties taken for impossible", _stub(_no_tie)),
    "exact_over_zero": Mutant("exact_over_zero", "", "ranges over zero taken to be exact", _stub(_exact_over_zero)),
    "shifts_never_round": Mutant(
        "shifts_never_round", "", "quotients by powers of two taken to be exact", _stub(_shifts_never_round)
    ),
    "narrow_grid": Mutant("narrow_grid", "", "the upper end taken for unreachable", _stub(_narrow_grid)),
    "narrow_range": Mutant(
        "narrow_range",
        "",
        "the exact range taken for that of the roundings",
        _stub(d3_grid.contract, enclose=_narrow_range),
    ),
    "strictly_monotone": Mutant(
        "strictly_monotone",
        "",
        "two reals taken never to have one rounding",
        _stub(d3_grid.contract, relate=_strictly_monotone),
    ),
}

NO_PROMISE = _stub(lambda z, r, site: [])
