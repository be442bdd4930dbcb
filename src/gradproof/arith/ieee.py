"""IEEE terms: numbers of a format in the solver's own theory of floating point, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gradproof import smt
from gradproof.arith.formats import FORMATS, widest
from gradproof.arith.symbolic import SymBool


class Ieee:
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

    def _do(self, op: str, other: Any, swap: bool = False) -> Ieee:
        a, b, name = self._pair(other)
        x, y = (b, a) if swap else (a, b)
        return Ieee(smt.IEEE_BINARY[op](x.term, y.term), name)

    def _ask(self, op: str, other: Any, swap: bool = False) -> SymBool:
        a, b, _ = self._pair(other)
        x, y = (b, a) if swap else (a, b)
        return SymBool(smt.IEEE_BINARY[op](x.term, y.term))

    def __add__(self, other: Any) -> Ieee:
        return self._do("+", other)

    def __radd__(self, other: Any) -> Ieee:
        return self._do("+", other, swap=True)

    def __sub__(self, other: Any) -> Ieee:
        return self._do("-", other)

    def __rsub__(self, other: Any) -> Ieee:
        return self._do("-", other, swap=True)

    def __mul__(self, other: Any) -> Ieee:
        return self._do("*", other)

    def __rmul__(self, other: Any) -> Ieee:
        return self._do("*", other, swap=True)

    def __truediv__(self, other: Any) -> Ieee:
        return self._do("/", other)

    def __rtruediv__(self, other: Any) -> Ieee:
        return self._do("/", other, swap=True)

    def __abs__(self) -> Ieee:
        return Ieee(smt.ieee_abs(self.term), self.fmt)

    def __lt__(self, other: Any) -> SymBool:
        return self._ask("<", other)

    def __le__(self, other: Any) -> SymBool:
        return self._ask("<=", other)

    def __gt__(self, other: Any) -> SymBool:
        return self._ask("<", other, swap=True)

    def __ge__(self, other: Any) -> SymBool:
        return self._ask("<=", other, swap=True)

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return self._ask("==", other)

    def __hash__(self) -> int:
        return id(self)

    def sqrt(self) -> Ieee:
        """Correctly rounded square root."""
        return Ieee(smt.ieee_sqrt(self.term), self.fmt)

    def finite(self) -> SymBool:
        """Neither an infinity nor a NaN."""
        return SymBool(smt.ieee_finite(self.term))
