"""Symbolic numbers: reals, integers and stubbed floats over one term type.

A `Sym` is a term with what the interval pass knows of it: a range [lo, hi], a grid (it is an integer multiple of that
power of two) and a format. `fmt is None` means an exact number; a number with a format is rounded after every operation
by the stub that the run has chosen. In a run without a stub every number is exact. Truth values fork the exploration.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gradproof.arith import smt
from gradproof.arith.context import ManyValued, Refusal, current
from gradproof.arith.formats import FORMATS, widest

Interval = tuple[Fraction, Fraction]
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


class Sym(ManyValued):
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

    def __add__(self, other: Any) -> Any:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("/", other, self)

    def __neg__(self) -> Sym:
        lo, hi = (None, None) if self.lo is None or self.hi is None else (-self.hi, -self.lo)
        return Sym(-self.term, lo, hi, self.fmt, self.grid)

    def __abs__(self) -> Sym:
        term = smt.ite(self.term >= 0, self.term, -self.term)
        if self.lo is None or self.hi is None:
            return Sym(term, None, None, self.fmt, self.grid)
        least = Fraction(0) if self.lo <= 0 <= self.hi else min(abs(self.lo), abs(self.hi))
        return Sym(term, least, max(abs(self.lo), abs(self.hi)), self.fmt, self.grid)

    def __mod__(self, other: int) -> Sym:
        return Sym(self.term % _whole(self, other))

    def __floordiv__(self, other: int) -> Sym:
        return Sym(self.term / _whole(self, other))

    def __lt__(self, other: Any) -> SymBool:
        return SymBool(self.term < lift(other).term)

    def __le__(self, other: Any) -> SymBool:
        return SymBool(self.term <= lift(other).term)

    def __gt__(self, other: Any) -> SymBool:
        return SymBool(self.term > lift(other).term)

    def __ge__(self, other: Any) -> SymBool:
        return SymBool(self.term >= lift(other).term)

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
    return c is not None and c > 0 and c.numerator & (c.numerator - 1) == 0 and c.denominator & (c.denominator - 1) == 0


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


def exact_of(x: Sym) -> Sym:
    """The same number without a format: what is done with it from here on is done over the reals."""
    return Sym(x.term, x.lo, x.hi, None, x.grid)


def convert(x: Sym, name: str) -> Sym:
    """x in the format `name`: unchanged in a run over the reals, free when it widens, else rounded."""
    if not current().rounds:
        return x
    to = FORMATS[name]
    if x.fmt is not None and FORMATS[x.fmt].p <= to.p and FORMATS[x.fmt].emin >= to.emin:
        return Sym(x.term, x.lo, x.hi, name, x.grid)
    rounded: Sym = current().rounder().fl(exact_of(x), name, False)
    return rounded
