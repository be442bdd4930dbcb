"""IEEE terms: numbers of a format in the solver's own theory of floating point, bit for bit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gradproof.arith import smt
from gradproof.arith.context import ManyValued, Refusal
from gradproof.arith.formats import FORMATS, widest
from gradproof.arith.symbolic import SymBool


class Ieee(ManyValued):
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
