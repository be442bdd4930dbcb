"""Symbolic numbers: reals, integers, floats that a stub rounds, and IEEE terms.

A `Sym` is a term with what the interval pass knows of it: a range [lo, hi], a grid (it is an integer multiple of that
power of two) and a format. `fmt is None` means an exact number; a number with a format is rounded after every operation
by the stub that the run has chosen. In a run without a stub every number is exact. Truth values fork the exploration.

An `Ieee` is a number of a format in the solver's own theory of floating point, bit for bit.

In a run with a stub each rounded operation becomes a fresh number that is bound by the stub's contract. A stub is a
module of the workspace with

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

import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from gradproof.arith import smt
from gradproof.arith.context import ManyValued, Operators, Refusal, current, refused
from gradproof.arith.formats import FORMATS, Format, widest
from gradproof.arith.linear import power_of_two

ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = {"+": "add", "-": "add", "*": "multiply", "/": "divide"}


class SymBool:
    """A symbolic truth value. Asking for its truth forks the path."""

    __slots__ = ("term",)

    def __init__(self, term: smt.Term) -> None:
        self.term = term

    def __bool__(self) -> bool:
        return current().branch(self.term)

    def __and__(self, other: Any) -> SymBool:
        return SymBool(smt.both([self.term, as_bool(other)]))

    def __or__(self, other: Any) -> SymBool:
        return SymBool(smt.either([self.term, as_bool(other)]))

    def __invert__(self) -> SymBool:
        return SymBool(smt.negate(self.term))

    __rand__ = __and__
    __ror__ = __or__


def as_bool(x: Any) -> smt.Term:
    """The term of a symbolic or plain truth value. Raises TypeError for anything else."""
    if isinstance(x, SymBool):
        return x.term
    if isinstance(x, bool):
        return smt.truth(x)
    raise Refusal(f"a condition is a truth value, not {type(x).__name__}")


class Sym(Operators, ManyValued):
    """A symbolic number; see the module's text for its fields."""

    __slots__ = ("fmt", "grid", "hi", "lo", "term")

    def __init__(
        self,
        term: smt.Term,
        lo: Fraction | None = None,
        hi: Fraction | None = None,
        fmt: str | None = None,
        grid: Fraction | None = None,
    ) -> None:
        self.term, self.lo, self.hi, self.fmt, self.grid = term, lo, hi, fmt, grid

    def _do(self, sign: str, other: Any, swap: bool = False) -> Any:
        return _binary(sign, other, self) if swap else _binary(sign, self, other)

    def _ask(self, sign: str, other: Any) -> SymBool:
        return SymBool(ORDER[sign](self.term, lift(other).term))

    def __neg__(self) -> Sym:
        lo, hi = (None, None) if self.lo is None or self.hi is None else (-self.hi, -self.lo)
        return Sym(-self.term, lo, hi, self.fmt, self.grid)

    def __abs__(self) -> Sym:
        term = smt.ite(self.term >= 0, self.term, -self.term)
        if self.lo is None or self.hi is None:
            return Sym(term, None, None, self.fmt, self.grid)
        least = Fraction(0) if self.lo <= 0 <= self.hi else min(abs(self.lo), abs(self.hi))
        return Sym(term, least, max(abs(self.lo), abs(self.hi)), self.fmt, self.grid)

    def sqrt(self) -> Any:
        """The square root, by the run in progress."""
        return current().root(self)

    def exact(self) -> Sym:
        """The same number without a format: what is done with it from here on is done over the reals."""
        return Sym(self.term, self.lo, self.hi, None, self.grid)

    def convert(self, name: str) -> Sym:
        """The number in a format: unchanged in a run over the reals, free when it widens, else rounded."""
        if not current().rounds:
            return self
        to = FORMATS[name]
        if self.fmt is not None and FORMATS[self.fmt].p <= to.p and FORMATS[self.fmt].emin >= to.emin:
            return Sym(self.term, self.lo, self.hi, name, self.grid)
        rounded: Sym = current().rounder().fl(self.exact(), name, False)
        return rounded

    def __mod__(self, other: int) -> Sym:
        return Sym(self.term % _whole(self, other))

    def __floordiv__(self, other: int) -> Sym:
        return Sym(self.term / _whole(self, other))

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term == lift(other).term)

    def __ne__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term != lift(other).term)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        raise Refusal("a symbolic number has no hash: equal values would have to share it")


def _whole(x: Sym, other: int) -> smt.Term:
    if not smt.is_int(x.term) or not isinstance(other, int) or other <= 0:
        raise Refusal("% and // are for symbolic integers and positive constants")
    return smt.whole(other)


def lift(x: Any) -> Sym:
    """A Sym of a Sym, int, Fraction or float (its exact value). Raises TypeError for anything else."""
    if isinstance(x, Sym):
        return x
    if isinstance(x, bool) or not isinstance(x, int | Fraction | float):
        raise Refusal(f"no symbolic number can be made of {type(x).__name__}")
    f = Fraction(x)
    return Sym(smt.number(f), f, f, None, _dyadic(f))


def _dyadic(f: Fraction) -> Fraction | None:
    """The largest power of two that divides a dyadic rational; None for other rationals and zero is on any grid."""
    d = f.denominator
    if d & (d - 1):
        return None
    n = abs(f.numerator)
    return Fraction(n & -n, d) if n else Fraction(2) ** 200


def constant_of(x: Sym) -> Fraction | None:
    """The value of a number that the interval pass knows exactly."""
    return x.lo if x.lo is not None and x.lo == x.hi else None


def _power_of_two(c: Fraction | None) -> bool:
    return c is not None and power_of_two(c)


def _binary(op: str, left: Any, right: Any) -> Any:
    if not isinstance(left, Sym | int | Fraction | float) or not isinstance(right, Sym | int | Fraction | float):
        return NotImplemented
    a, b = lift(left), lift(right)
    fmt = widest(a.fmt, b.fmt)
    if fmt is not None:
        a, b = _in_format(a, fmt), _in_format(b, fmt)
    if op == "/" and (constant_of(b) == 0 or _may_be_zero(b)):
        raise ZeroDivisionError("division by zero on a feasible path")
    exact = Sym(_term(op, a, b), *_interval(op, a, b), None, _grid(op, a, b))
    if fmt is None or _neutral(op, a, b):
        return Sym(exact.term, exact.lo, exact.hi, fmt, exact.grid)
    shift = op in "*/" and (_power_of_two(constant_of(b)) or (op == "*" and _power_of_two(constant_of(a))))
    return current().rounder().fl(exact, fmt, shift, OPERATORS[op])


def _in_format(x: Sym, fmt: str) -> Sym:
    """A constant is rounded to the format it meets; a number that has a format keeps it.

    torch keeps a scalar that meets a 16-bit tensor in fp32, NumPy rounds it to 16 bits: there the run refuses to guess.
    """
    c = constant_of(x)
    if x.fmt is not None or c is None or FORMATS[fmt].representable(c):
        return x
    if FORMATS[fmt].bits == 16:
        raise current().rounder().refuse(f"{c} is no {fmt} number, and torch and NumPy round such a scalar differently")
    return lift(FORMATS[fmt].round(c))


def _may_be_zero(x: Sym) -> bool:
    """Whether x is zero on this path; forks where it can be, so that no quotient is taken for granted."""
    if x.lo is not None and x.hi is not None and not x.lo <= 0 <= x.hi:
        return False
    return current().branch(x.term == 0)


def _neutral(op: str, a: Sym, b: Sym) -> bool:
    """x + 0, x - 0, x * 1 and x / 1 are x in every format."""
    ca, cb = constant_of(a), constant_of(b)
    if op == "+":
        return ca == 0 or cb == 0
    if op == "-":
        return cb == 0
    return cb == 1 or (op == "*" and ca == 1)


def _term(op: str, a: Sym, b: Sym) -> smt.Term:
    if op == "/":
        return smt.to_real(a.term) / smt.to_real(b.term)
    x, y = (a.term, b.term) if smt.is_int(a.term) == smt.is_int(b.term) else (smt.to_real(a.term), smt.to_real(b.term))
    return {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}[op]()


def _interval(op: str, a: Sym, b: Sym) -> tuple[Fraction | None, Fraction | None]:
    if a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return None, None
    if op == "+":
        return a.lo + b.lo, a.hi + b.hi
    if op == "-":
        return a.lo - b.hi, a.hi - b.lo
    if op == "/":
        if b.lo <= 0 <= b.hi:
            return None, None
        ends = [x / y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    else:
        ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(ends), max(ends)


def _grid(op: str, a: Sym, b: Sym) -> Fraction | None:
    if a.grid is None or b.grid is None:
        return None
    if op in "+-":
        return min(a.grid, b.grid)
    if op == "*":
        return a.grid * b.grid
    c = constant_of(b)
    return a.grid / c if c is not None and _power_of_two(c) else None


# -- Numbers in the solver's theory of floating point.
class Ieee(Operators, ManyValued):
    """A symbolic number of an IEEE format; every operation rounds to nearest even."""

    __slots__ = ("fmt", "term")

    def __init__(self, term: smt.Term, fmt: str) -> None:
        self.term, self.fmt = term, fmt

    @classmethod
    def variable(cls, name: str, fmt: str) -> Ieee:
        """A fresh constant."""
        f = FORMATS[fmt]
        return cls(smt.ieee(name, f.p, f.bits), fmt)

    def convert(self, fmt: str) -> Ieee:
        """This number in another format."""
        f = FORMATS[fmt]
        return self if fmt == self.fmt else Ieee(smt.ieee_convert(self.term, f.p, f.bits), fmt)

    def _pair(self, other: Any) -> tuple[Ieee, Ieee, str]:
        if isinstance(other, Ieee):
            name = widest(self.fmt, other.fmt) or self.fmt
            return self.convert(name), other.convert(name), name
        f = FORMATS[self.fmt]
        return self, Ieee(smt.ieee_number(Fraction(other), f.p, f.bits), self.fmt), self.fmt

    def _do(self, sign: str, other: Any, swap: bool = False) -> Ieee:
        a, b, name = self._pair(other)
        x, y = (b, a) if swap else (a, b)
        return Ieee(smt.IEEE_BINARY[sign](x.term, y.term), name)

    def _ask(self, sign: str, other: Any) -> SymBool:
        swap, op = sign[0] == ">", sign.replace(">", "<")
        if not isinstance(other, Ieee):
            other = self._edge(op, Fraction(other), swap)
        if other is None:
            return SymBool(smt.truth(False))
        a, b, _ = self._pair(other)
        x, y = (b, a) if swap else (a, b)
        return SymBool(smt.IEEE_BINARY[op](x.term, y.term))

    def _edge(self, op: str, c: Fraction, swap: bool) -> Ieee | None:
        """The number of this format that decides a comparison with c as c itself would; None where nothing equals c."""
        f = FORMATS[self.fmt]
        if abs(c) > f.largest:
            raise Refusal(f"{c} is beyond the range of {self.fmt}")
        if f.representable(c):
            return Ieee(smt.ieee_number(c, f.p, f.bits), self.fmt)
        if op == "==":
            return None
        step = f.spacing(c)
        # x < c exactly if x < above, x <= c if x <= below, c < x if below < x, c <= x if above <= x.
        below, above = (c / step).__floor__() * step, (c / step).__ceil__() * step
        strict = op == "<"
        near = (below if strict else above) if swap else (above if strict else below)
        return Ieee(smt.ieee_number(near, f.p, f.bits), self.fmt)

    def __abs__(self) -> Ieee:
        return Ieee(smt.ieee_abs(self.term), self.fmt)

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return self._ask("==", other)

    def __bool__(self) -> bool:
        return not bool(self == 0)

    def __hash__(self) -> int:
        raise Refusal("a symbolic number has no hash: equal values would have to share it")

    def sqrt(self) -> Ieee:
        """Correctly rounded square root."""
        return Ieee(smt.ieee_sqrt(self.term), self.fmt)

    def finite(self) -> SymBool:
        """Neither an infinity nor a NaN."""
        return SymBool(smt.ieee_finite(self.term))


# -- The machine that rounds by a stub.
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

    def __init__(self, stub: Stub, requirements: LemmaRequirements, operators: set[str] | None = None) -> None:
        self.stub, self.requirements = stub, requirements
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
        if reason := self.requirements.objection(self.stub, site):
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


class LemmaRequirements:
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
            if reply.answer is not smt.SolverAnswer.UNSAT:
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
