"""The stub_float machine: each rounded operation becomes a fresh number bound by a stub's contract.

A stub is a module of the workspace with

- `contract(z, r, site)`: conditions that hold between an exact z and its rounding r,
- `enclose(site)`: the range of r,
- optionally `relate(z1, r1, z2, r2)`: conditions between two roundings to one format.

What is true of rounding at a site is known here without the stub: the error is at most half an ulp, and rounding is
monotone. Each promise of a stub is checked, by the solver, to follow from that at every site at which it is used; a
stub that promises more gives no answer.

The constants of a site (half an ulp, the range) come from an interval pass, so that every condition is linear. A number
that is certainly representable is not rounded at all; the same exact term is rounded once (the stub is functional).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from gradproof.arith import smt
from gradproof.arith.context import refused
from gradproof.arith.formats import FORMATS, Format
from gradproof.arith.symbolic import Sym, as_bool


class OutOfRange(BaseException):
    """The stub says nothing sound about this operation: no range, possible overflow, or a promise that is not kept."""


@dataclass(frozen=True, slots=True)
class Site:
    """One rounded operation: its format, the range of its exact result, and whether only underflow can round it."""

    fmt: Format
    lo: Fraction
    hi: Fraction
    shift: bool = False

    @property
    def reach(self) -> Fraction:
        """Largest magnitude of the exact result."""
        return max(abs(self.lo), abs(self.hi))

    @property
    def half_ulp(self) -> Fraction:
        """Largest error of one rounding at this site."""
        return self.fmt.tiny / 2 if self.shift else self.fmt.half_ulp(self.reach)


class Stub(Protocol):
    """A rounding stub, as the module's text says."""

    def contract(self, z: Any, r: Any, site: Site) -> list[Any]:
        """Conditions between z and its rounding r."""
        ...

    def enclose(self, site: Site) -> tuple[Fraction, Fraction]:
        """Range of the rounding."""
        ...


def certainly_representable(z: Sym, fmt: Format) -> bool:
    """z is a multiple of a grid no finer than the subnormals and at most 2^p grid steps large: no rounding."""
    if z.grid is None or z.lo is None or z.hi is None:
        return False
    return z.grid >= fmt.tiny and max(abs(z.lo), abs(z.hi)) <= z.grid * 2**fmt.p


class Rounder:
    """Applies one stub along one path. `operators` collects what is rounded, as "add fp32"."""

    def __init__(self, stub: Stub, founded: Founded, operators: set[str] | None = None) -> None:
        self.stub, self.founded = stub, founded
        self.constraints: list[smt.Term] = []
        self.sites = 0
        self.operators: set[str] = set() if operators is None else operators
        self._seen: dict[tuple[str, str], Sym] = {}
        self._by_format: dict[str, list[tuple[Sym, Sym]]] = {}

    def fl(self, z: Sym, name: str, shift: bool, operator: str = "convert") -> Sym:
        """The rounding of the exact z, made by `operator`, to the format `name`. Raises OutOfRange."""
        fmt = FORMATS[name]
        self.operators.add(f"{operator} {name}")
        if z.lo is None or z.hi is None:
            raise self.refuse(f"a {name} operation has no known range; give its inputs bounds")
        if max(abs(z.lo), abs(z.hi)) > fmt.largest:
            raise self.refuse(f"a {name} result may exceed {float(fmt.largest):.6g}")
        if z.lo == z.hi:
            value = fmt.round(z.lo)
            return Sym(smt.number(value), value, value, name, None)
        if certainly_representable(z, fmt):
            return Sym(z.term, z.lo, z.hi, name, z.grid)
        at = (name, smt.key(z.term))
        if at not in self._seen:
            self._seen[at] = self._round(z, name, Site(fmt, z.lo, z.hi, shift))
        return self._seen[at]

    def refuse(self, reason: str) -> OutOfRange:
        """Tell the run why it gives no answer: it remembers, even if the exception is swallowed."""
        refused(reason)
        return OutOfRange(reason)

    def _round(self, z: Sym, name: str, site: Site) -> Sym:
        if reason := self.founded.objection(self.stub, site):
            raise self.refuse(reason)
        self.sites += 1
        lo, hi = self.stub.enclose(site)
        grid = site.fmt.tiny if z.grid is None else max(z.grid, site.fmt.tiny)
        r = Sym(smt.real(f"fl{self.sites}"), lo, hi, name, grid)
        plain, exact = Sym(r.term, lo, hi), Sym(z.term, z.lo, z.hi)
        self.constraints += [as_bool(c) for c in self.stub.contract(exact, plain, site)]
        relate = getattr(self.stub, "relate", None)
        earlier = self._by_format.setdefault(name, [])
        if relate is not None:
            for z1, r1 in earlier:
                self.constraints += [as_bool(c) for c in relate(z1, r1, exact, plain)]
        earlier.append((exact, plain))
        return r


class Founded:
    """Whether a stub's promises follow, at a site, from what is true of rounding there; sites are judged once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._known: dict[Site, str] = {}

    def objection(self, stub: Stub, site: Site) -> str:
        """An empty text, or which promise does not follow."""
        if site not in self._known:
            self._known[site] = self._objection(stub, site)
        return self._known[site]

    def _objection(self, stub: Stub, site: Site) -> str:
        one, two = self._point(1, site), self._point(2, site)
        truth = [*one[2], *two[2], *_monotone(one, two)]
        lo, hi = stub.enclose(site)
        relate: Any = getattr(stub, "relate", lambda *_: [])
        promises = [*stub.contract(one[0], one[1], site), one[1] >= lo, one[1] <= hi]
        promises += relate(one[0], one[1], two[0], two[1])
        where = f"{site.fmt.name} on [{float(site.lo):.6g}, {float(site.hi):.6g}]"
        for promise in promises:
            reply = smt.solve([*truth, smt.negate(as_bool(promise))], {}, self.seconds)
            if reply.answer is not smt.Answer.UNSAT:
                return f"the stub promises more than rounding keeps, {where}: {reply.answer}"
        return ""

    def _point(self, i: int, site: Site) -> tuple[Sym, Sym, list[smt.Term]]:
        """z and fl(z) with what is true of them: half an ulp, and the rounded ends of the range."""
        z, r = Sym(smt.real(f"site_z{i}"), site.lo, site.hi), Sym(smt.real(f"site_r{i}"))
        low, high = site.fmt.round(site.lo), site.fmt.round(site.hi)
        near = [r - z <= site.half_ulp, z - r <= site.half_ulp]
        return z, r, [as_bool(c) for c in (z >= site.lo, z <= site.hi, *near, r >= low, r <= high)]


def _monotone(one: tuple[Sym, Sym, list[smt.Term]], two: tuple[Sym, Sym, list[smt.Term]]) -> list[smt.Term]:
    z1, r1, z2, r2 = one[0], one[1], two[0], two[1]
    return [as_bool((z1 > z2) | (r1 <= r2)), as_bool((z2 > z1) | (r2 <= r1))]
