"""Neutral terms over the reals, in a normal form that is sound by construction. No solver is needed to read them.

A number is a `Poly`: a linear combination, with rational coefficients, of monomials; a monomial is a multiset of atoms.
Atoms are variables, applications of uninterpreted functions, reciprocals, indicators of a truth value, and sums: a sum
of several terms that enters a product becomes one atom, divided by its leading coefficient, so that products of sums
are never multiplied out and a term stays as large as the computation that made it. Everything is hash-consed in one
`Pool`: two equal normal forms are one object. Terms of two pools must not be compared.

Division. `a / b` is `a` times the reciprocal of `b`, and a reciprocal is total: that of 0 is 0 (a meadow; Bergstra and
Tucker, "The rational numbers as an abstract data type", J. ACM 54(2), 2007). With that convention every law used here
holds for all arguments: 1/(ab) = (1/a)(1/b), 1/(1/a) = a. `x * (1/x) = 1` does not hold at 0, and is not used: `x / x`
is folded only for a constant x. An equality of two terms therefore holds wherever every divisor is not 0, and claims
nothing of a step that divides by 0.

Truth values are `Truth`s: true, false, `positive` and `zero` of a polynomial, and connectives. `ite(c, a, b)` is
`b + [c] (a - b)` with the indicator [c] in {0, 1}, whose powers are itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

Coefficient = int | Fraction
Terms = tuple[tuple[int, Coefficient], ...]
Key = tuple[object, ...]


class Poly:
    """A polynomial: (monomial, coefficient) pairs in the order of the monomials' numbers; monomial 0 is empty."""

    __slots__ = ("id", "terms")

    def __init__(self, number: int, terms: Terms) -> None:
        self.id, self.terms = number, terms

    @property
    def constant(self) -> Coefficient | None:
        """The value of a constant, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == 0 else None


class Atom:
    """A factor: `variable` (name), `apply` (name, arguments), `sum`, `inverse` (of an atom), `indicator` (a truth)."""

    __slots__ = ("args", "id", "kind", "name")

    def __init__(self, number: int, kind: str, name: str, args: tuple[Poly | Atom | Truth, ...]) -> None:
        self.id, self.kind, self.name, self.args = number, kind, name, args


class Truth:
    """A truth value: `true`, `false`, `positive` and `zero` (of a Poly), `not`, `and`, `or` (of truth values)."""

    __slots__ = ("args", "id", "kind")

    def __init__(self, number: int, kind: str, args: tuple[Poly | Truth, ...]) -> None:
        self.id, self.kind, self.args = number, kind, args


Node = Poly | Atom | Truth


def tidy(c: Coefficient) -> Coefficient:
    """A whole Fraction as an int: the same number, quicker to add."""
    return c.numerator if isinstance(c, Fraction) and c.denominator == 1 else c


def _root(x: Fraction) -> Fraction | None:
    """The rational square root of a square, else None."""
    if x < 0:
        return None
    a, b = math.isqrt(x.numerator), math.isqrt(x.denominator)
    return Fraction(a, b) if a * a == x.numerator and b * b == x.denominator else None


AT_ZERO: dict[str, Fraction] = {
    "exp": Fraction(1), "sin": Fraction(0), "cos": Fraction(1), "tanh": Fraction(0), "erf": Fraction(0),
    "sigmoid": Fraction(1, 2), "log1p": Fraction(0), "expm1": Fraction(0), "erfinv": Fraction(0), "atan": Fraction(0),
    "sqrt": Fraction(0), "floor": Fraction(0), "round": Fraction(0),
}  # fmt: skip
"""Functions that are rational at 0."""

EXACT: dict[str, Callable[[Fraction], Fraction | None]] = {
    "sqrt": _root,
    "floor": lambda x: Fraction(math.floor(x)),
    "round": lambda x: Fraction(round(x)),
    "log": lambda x: Fraction(0) if x == 1 else None,
}
"""Functions that are rational at some other constants."""

POWER_LIMIT = 8
"""Largest whole exponent that `pow` multiplies out; beyond it, `pow` is a function like the others."""


class TermPool:
    """The terms of one proof: constructors in normal form."""

    def __init__(self) -> None:
        self._polys: dict[Terms, Poly] = {}
        self._atoms: dict[Key, Atom] = {}
        self._truths: dict[Key, Truth] = {}
        self._monomials: dict[tuple[tuple[int, int], ...], int] = {(): 0}
        self.monomials: list[tuple[tuple[int, int], ...]] = [()]
        self.atoms: list[Atom] = []
        self._products: dict[tuple[int, int], int] = {}
        self._factors: dict[int, tuple[Coefficient, int]] = {}
        self.zero, self.one = self._poly(()), self._poly(((0, 1),))
        self.true, self.false = self._truth("true", ()), self._truth("false", ())

    # Hash-consing.

    def _poly(self, terms: Terms) -> Poly:
        found = self._polys.get(terms)
        if found is None:
            found = self._polys[terms] = Poly(len(self._polys), terms)
        return found

    def _atom(self, kind: str, name: str, args: tuple[Node, ...]) -> Atom:
        key = (kind, name, *(a.id for a in args))
        found = self._atoms.get(key)
        if found is None:
            found = self._atoms[key] = Atom(len(self.atoms), kind, name, args)
            self.atoms.append(found)
        return found

    def _truth(self, kind: str, args: tuple[Poly | Truth, ...]) -> Truth:
        key = (kind, *(a.id for a in args))
        found = self._truths.get(key)
        if found is None:
            found = self._truths[key] = Truth(len(self._truths), kind, args)
        return found

    def _monomial(self, powers: tuple[tuple[int, int], ...]) -> int:
        found = self._monomials.get(powers)
        if found is None:
            found = self._monomials[powers] = len(self.monomials)
            self.monomials.append(powers)
        return found

    def _single(self, atom: Atom) -> Poly:
        return self._poly(((self._monomial(((atom.id, 1),)), 1),))

    # Numbers.

    def number(self, x: Coefficient) -> Poly:
        """A rational constant."""
        return self._poly(((0, tidy(x)),)) if x else self.zero

    def variable(self, name: str) -> Poly:
        """A real variable."""
        return self._single(self._atom("variable", name, ()))

    def combine(self, parts: Iterable[tuple[Coefficient, Poly]]) -> Poly:
        """A linear combination."""
        total: dict[int, Coefficient] = {}
        for factor, poly in parts:
            for monomial, c in poly.terms:
                add = c if factor == 1 else factor * c
                total[monomial] = total[monomial] + add if monomial in total else add
        return self._poly(tuple(sorted((m, tidy(c)) for m, c in total.items() if c)))

    def scale(self, a: Poly, c: Coefficient) -> Poly:
        """A rational multiple."""
        if not c:
            return self.zero
        return a if c == 1 else self._poly(tuple((m, tidy(c * k)) for m, k in a.terms))

    def factor(self, a: Poly) -> tuple[Coefficient, int]:
        """A polynomial other than 0 as coefficient times monomial: a sum becomes one atom."""
        if len(a.terms) == 1:
            return a.terms[0][1], a.terms[0][0]
        found = self._factors.get(a.id)
        if found is None:
            lead = a.terms[0][1]
            primitive = self.scale(a, Fraction(1) / lead)
            found = lead, self._monomial(((self._atom("sum", "", (primitive,)).id, 1),))
            self._factors[a.id] = found
        return found

    def _product(self, a: int, b: int) -> int:
        if a == 0 or b == 0:
            return a or b
        key = (a, b) if a < b else (b, a)
        found = self._products.get(key)
        if found is None:
            powers = dict(self.monomials[a])
            for atom, n in self.monomials[b]:
                powers[atom] = 1 if self.atoms[atom].kind == "indicator" else powers.get(atom, 0) + n
            found = self._products[key] = self._monomial(tuple(sorted(powers.items())))
        return found

    def mul(self, a: Poly, b: Poly) -> Poly:
        """A product."""
        if not a.terms or not b.terms:
            return self.zero
        if a.constant is not None:
            return self.scale(b, a.terms[0][1])
        if b.constant is not None:
            return self.scale(a, b.terms[0][1])
        (c, m), (d, n) = self.factor(a), self.factor(b)
        return self._poly(((self._product(m, n), tidy(c * d)),))

    def div(self, a: Poly, b: Poly) -> Poly:
        """A quotient; by a divisor that may be 0, the product with its total reciprocal. ZeroDivisionError: b is 0."""
        if b.constant is not None:
            return self.scale(a, 1 / Fraction(b.constant))
        return self.mul(a, self.inverse(b))

    def inverse(self, a: Poly) -> Poly:
        """The total reciprocal of a polynomial that is no constant."""
        c, m = self.factor(a)
        powers = self.monomials[m]
        if len(powers) == 1 and powers[0][1] == 1:
            atom = self.atoms[powers[0][0]]
            if atom.kind == "inverse" and isinstance(atom.args[0], Atom) and atom.args[0].kind == "sum":
                inner = atom.args[0].args[0]
                return self.scale(inner, 1 / Fraction(c)) if isinstance(inner, Poly) else self.zero
        turned = sorted((self._turned(self.atoms[atom]), n) for atom, n in powers)
        return self._poly(((self._monomial(tuple(turned)), tidy(1 / Fraction(c))),))

    def _turned(self, atom: Atom) -> int:
        """The number of an atom's reciprocal."""
        if atom.kind == "inverse":
            return atom.args[0].id
        return atom.id if atom.kind == "indicator" else self._atom("inverse", "", (atom,)).id

    def apply(self, name: str, args: Sequence[Poly]) -> Poly:
        """An uninterpreted function, folded where its value at a constant is rational."""
        constant = args[0].constant
        if name == "pow" and args[1].constant is not None:
            folded = self._power(args[0], Fraction(args[1].constant))
        elif constant is None or len(args) != 1:
            folded = None
        else:
            at = AT_ZERO.get(name) if constant == 0 else None
            known = EXACT.get(name)
            value = known(Fraction(constant)) if at is None and known is not None else at
            folded = None if value is None else self.number(value)
        return self._single(self._atom("apply", name, tuple(args))) if folded is None else folded

    def _power(self, a: Poly, n: Fraction) -> Poly | None:
        if n == Fraction(1, 2):
            return self.apply("sqrt", (a,))
        if n.denominator != 1 or not 0 <= n <= POWER_LIMIT:
            return None
        result = self.one
        for _ in range(int(n)):
            result = self.mul(result, a)
        return result

    # Truth values.

    def less(self, a: Poly, b: Poly) -> Truth:
        """a < b."""
        d = self.combine(((1, b), (-1, a)))
        if d.constant is not None:
            return self.true if d.constant > 0 else self.false
        return self._truth("positive", (self.scale(d, 1 / abs(Fraction(d.terms[0][1]))),))

    def equal(self, a: Poly, b: Poly) -> Truth:
        """a = b."""
        d = self.combine(((1, b), (-1, a)))
        if d.constant is not None:
            return self.true if d.constant == 0 else self.false
        return self._truth("zero", (self.scale(d, Fraction(1) / d.terms[0][1]),))

    def negate(self, a: Truth) -> Truth:
        """not a."""
        if a is self.true or a is self.false:
            return self.false if a is self.true else self.true
        inner = a.args[0]
        return inner if a.kind == "not" and isinstance(inner, Truth) else self._truth("not", (a,))

    def junction(self, kind: str, args: Iterable[Truth]) -> Truth:
        """`and` or `or` of truth values."""
        neutral, absorbing = (self.true, self.false) if kind == "and" else (self.false, self.true)
        parts = {a.id: a for a in args if a is not neutral}
        if absorbing.id in parts:
            return absorbing
        if len(parts) < 2:
            return next(iter(parts.values()), neutral)
        return self._truth(kind, tuple(parts[i] for i in sorted(parts)))

    def ite(self, c: Truth, a: Poly, b: Poly) -> Poly:
        """a where c holds, else b."""
        if c is self.true or a is b:
            return a
        if c is self.false:
            return b
        if c.kind == "not" and isinstance(c.args[0], Truth):
            return self.ite(c.args[0], b, a)
        chosen = self.mul(self._single(self._atom("indicator", "", (c,))), self.combine(((1, a), (-1, b))))
        return self.combine(((1, b), (1, chosen)))
