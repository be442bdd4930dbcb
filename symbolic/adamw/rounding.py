"""What one fp32 step of AdamW in torch's order may lose, from any state: KANI-AW-009 of `adamw-kernel-v1`.

h_k = (1 - u)^-k - 1 <= k u / (1 - k u), u = 2^-24. With w = 1 - b1, c = 1 - rate decay, s = rate / (1 - b1^t),
R = sqrt(1 - b2^t), D = sqrt(v') / R + eps, all of them as torch's doubles, and m', v', theta' over the reals:

    |dm'|     <= h_1 |m| + h_4 w |g - m|                              (w < 1/2; from g with weight b1 otherwise)
    |dv'|     <= h_4 v'
    |dtheta'| <= h_3 |theta| c + h_10 s |m'| / D + (1 + h_10) s |dm'| / D

Each phase is claimed by itself, and the next one starts from any number within the claim of the one before. A w of 1/2
or more has to be a number of fp32: of another one torch takes 1 - w after w was rounded, and the error of that is u w
and no part of b1, so that m' may be further off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gradproof.harness import FORMATS, sqrt
from symbolic.adamw.closed_form import Sums, closed, is_update
from symbolic.adamw.step import hyperparameters

# -- Numbers with a factor for each rounding: a sum of exact terms X_i, each times a factor within [1/P_i, P_i].
#
# An operation that rounds to nearest multiplies its result by 1 + d, |d| <= u, which lies in [1/s, s], s = 1 / (1 - u).
# So every factor is a product of such ones: P = s^k after k of them. The rules by which they are counted are proved for
# all numbers by `rules`: product, quotient, a sum without cancellation, root, and what a factor costs. Source: Higham,
# Accuracy and Stability (2nd ed.), sections 3.1 and 3.4 (the counter <k>). No operation over- or underflows.

TERMS = ("one term", "another term", "a third term")
"""As many terms as a number of a claim may have."""


def grown(k: int, fmt: str = "fp32") -> Fraction:
    """(1 - u)^-k: the most that k roundings to a format multiply by. It is at most 1 / (1 - k u)."""
    return 1 / (1 - FORMATS[fmt].u) ** k


@dataclass(frozen=True)
class Term:
    """An exact number, and how many roundings to fp32 and to fp16 its factor is made of."""

    exact: Any
    single: int = 0
    half: int = 0

    @property
    def most(self) -> Fraction:
        """P: the factor is at most this and at least its reciprocal."""
        return grown(self.single) * grown(self.half, "fp16")

    def times(self, exact: Any, other: Term) -> Term:
        """A product or quotient with another term, before it is rounded: its exact value is given."""
        return Term(exact, self.single + other.single, self.half + other.half)

    def stored(self, fmt: str = "fp32") -> Term:
        """One rounding more. Raises ValueError for a format other than fp32 and fp16."""
        if fmt not in ("fp32", "fp16"):
            raise ValueError(f"no factor counts roundings to {fmt}")
        return Term(self.exact, self.single + (fmt == "fp32"), self.half + (fmt == "fp16"))


class Factored:
    """A sum of terms. Each operator makes one operation and rounds its result to fp32.

    Numbers that were not rounded yet are added up to one term, and the rounding of their sum multiplies it whole.

    `k` and `clause` are the kit and the clause of the questions that a divisor or a root raises.
    """

    def __init__(self, terms: Sequence[Term], k: Any, clause: str) -> None:
        self.terms, self.k, self.clause = tuple(terms), k, clause

    def _made(self, terms: Sequence[Term]) -> Factored:
        return Factored([t.stored() for t in terms], self.k, self.clause)

    def _lift(self, other: Any) -> Factored:
        return other if isinstance(other, Factored) else Factored([Term(other)], self.k, self.clause)

    def rounded(self, fmt: str) -> Factored:
        """One rounding to a format."""
        return Factored([t.stored(fmt) for t in self.terms], self.k, self.clause)

    def __neg__(self) -> Factored:
        return Factored([Term(-t.exact, t.single, t.half) for t in self.terms], self.k, self.clause)

    def __add__(self, other: Any) -> Factored:
        terms = [*self.terms, *self._lift(other).terms]
        if any(t.single or t.half for t in terms):
            return self._made(terms)
        return self._made([Term(sum((t.exact for t in terms[1:]), terms[0].exact))])

    def __sub__(self, other: Any) -> Factored:
        return self + -self._lift(other)

    def __mul__(self, other: Any) -> Factored:
        one, two = self, self._lift(other)
        return self._made([a.times(a.exact * b.exact, b) for a in one.terms for b in two.terms])

    def __truediv__(self, other: Any) -> Factored:
        divisor = self._lift(other).whole()
        return self._made([t.times(t.exact / divisor.exact, divisor) for t in self.terms])

    def __rtruediv__(self, other: Any) -> Factored:
        return self._lift(other) / self

    def sqrt(self) -> Factored:
        """The root: half of the factors, rounded up, and one more."""
        term = self.whole()
        return self._made([Term(sqrt(term.exact), -(-term.single // 2), -(-term.half // 2))])

    def whole(self) -> Term:
        """One term for all: terms that are shown not to be negative do not cancel, so the largest factor serves."""
        if len(self.terms) == 1:
            return self.terms[0]
        for t in self.terms:
            self.k.check(self.clause, t.exact >= 0, "no term of a divisor or of a root is negative")
        total = self.exact()
        return Term(total, max(t.single for t in self.terms), max(t.half for t in self.terms))

    def exact(self) -> Any:
        """What the number is without rounding."""
        first, *rest = (t.exact for t in self.terms)
        return sum(rest, first)


def band(factor: Any, most: Any) -> Any:
    """A positive factor within [1/P, P], without a division."""
    return (factor * most >= 1) & (factor <= most)


def rules(k: Any, clause: str) -> None:
    """The rules of counting, for any u in (0, 1), any P, Q >= 1 and any factors within them."""
    u, s, d, p, q, a, b, c = (k.real(name) for name in ("u", "s", "d", "P", "Q", "a", "b", "a / b"))
    summed = [k.real(f"{name} of a sum") for name in ("X", "Y", "P", "a", "b")]
    rooted = [k.real(name) for name in ("under a root", "P of a root", "root")]
    charge = [k.real(name) for name in ("Z", "|Z|", "factor", "P of the factor")]
    k.assume((u > 0) & (u < 1) & (s * (1 - u) == 1) & (d <= u) & (-d <= u))
    k.cover("a rounding error", d > 0)
    k.check(clause, band(1 + d, s), "one rounding")
    k.assume((p >= 1) & (q >= 1) & (a > 0) & (b > 0) & band(a, p) & band(b, q))
    k.check(clause, a * b * (p * q) >= 1, "a product, from below")
    k.check(clause, a * b <= p * q, "a product, from above")
    k.assume(c * b == a)
    k.check(clause, c * (p * q) >= 1, "a quotient, from below")
    k.check(clause, c <= p * q, "a quotient, from above")
    _sum(k, clause, *summed)
    _root(k, clause, *rooted)
    _charge(k, clause, *charge)


def _sum(k: Any, clause: str, x: Any, y: Any, p: Any, a: Any, b: Any) -> None:
    k.assume((x >= 0) & (y >= 0) & (p >= 1) & (a > 0) & (b > 0) & band(a, p) & band(b, p))
    k.check(clause, x * a + y * b <= p * (x + y), "a sum without cancellation, from above")
    k.check(clause, (x * a + y * b) * p >= x + y, "a sum without cancellation, from below")


def _root(k: Any, clause: str, under: Any, most: Any, r: Any) -> None:
    k.assume((under > 0) & (most >= 1) & band(under, most * most) & (r >= 0) & (r * r == under))
    k.check(clause, band(r, most), "a root has half of the factors")


def _charge(k: Any, clause: str, z: Any, size: Any, f: Any, most: Any) -> None:
    k.assume((size >= z) & (size >= -z) & (most >= 1) & (f > 0) & band(f, most))
    k.check(clause, z * (f - 1) <= (most - 1) * size, "what a factor costs, above")
    k.check(clause, -z * (f - 1) <= (most - 1) * size, "what a factor costs, below")


@dataclass(frozen=True)
class Claim:
    """A number over the reals as a sum of parts, and how many roundings each may be charged with."""

    parts: Sequence[tuple[Any, int]]

    def exact(self) -> Any:
        """The sum of the parts."""
        first, *rest = (x for x, _ in self.parts)
        return sum(rest, first)


def errors(k: Any, label: str) -> tuple[Any, ...]:
    """Inputs for `charged`, one for each term that a number may have; every input is drawn before the first check."""
    return tuple(k.real(f"{label}: error of {term}") for term in TERMS)


def charged(k: Any, clause: str, number: Factored, claim: Claim, label: str, drawn: Sequence[Any]) -> None:
    """The number is its claim over the reals, and errs by at most sum (s^k_i - 1) |part i|.

    Raises ValueError for a number of more terms than `drawn`.
    """
    terms = number.terms
    if len(terms) > len(drawn):
        raise ValueError(f"{label} has {len(terms)} terms, and {len(drawn)} errors are drawn")
    first, *rest = (t.exact for t in terms)
    k.check(clause, k.same(sum(rest, first), claim.exact()), f"{label}, over the reals")
    error, most = 0, 0
    for t, e in zip(terms, drawn, strict=False):
        room = (t.most - 1) * abs(t.exact)
        k.assume((e <= room) & (-e <= room))
        error = e + error
    for part, count in claim.parts:
        most = (grown(count) - 1) * abs(part) + most
    k.check(clause, error <= most, f"{label}, above")
    k.check(clause, -error <= most, f"{label}, below")


# -- The harnesses

CLAUSE = "AW-EQ-001"
START, MOMENT, SQUARE, BELOW, WEIGHT, UPDATE = 1, 4, 4, 6, 3, 10
"""Roundings that are charged: to what lerp starts from, to what it adds, to v', to D, to the weight, to the update."""


def one_step(k: Any, kernel: Any) -> None:
    """Base: the rules by which roundings are counted. Step: the phases of one optimizer step, from any state."""
    k.inductive(lambda: rules(k, CLAUSE), lambda: _phases(k, kernel))


def _phases(k: Any, kernel: Any) -> None:
    phases: dict[str, Callable[[Any, Any], None]] = {
        "m'": _first, "v'": _second, "D": _below, "theta'": _moved, "without rounding": _exactly,
    }  # fmt: skip
    phases[k.choose("phase", [*phases])](k, kernel)


def _number(k: Any, x: Any, single: int = 0) -> Factored:
    """A number that has met so many roundings."""
    return Factored([Term(x, single)], k, CLAUSE)


def _first(k: Any, kernel: Any) -> None:
    """Scalars are rounded once, on their way to fp32. Where w >= 1/2 it is a number of fp32, so that 1 - w is exact."""
    m, g, w, rest = (k.real(name) for name in ("m", "g", "1 - b1", "b1 at most 1/2"))
    off, far_off = errors(k, "m'"), errors(k, "m' from the gradient")
    k.assume((w > 0) & (w < Fraction(1, 2)) & (rest >= 0) & (rest <= Fraction(1, 2)))
    k.cover("a gradient that turns the moment", (m > 0) & (g < 0))
    near, far = Claim([(m, START), (w * (g - m), MOMENT)]), Claim([(g, START), (-rest * (g - m), MOMENT)])
    moment, grad = _number(k, m), _number(k, g)
    charged(k, CLAUSE, kernel.first(moment, grad, _number(k, w, 1)), near, "m'", off)
    charged(k, CLAUSE, kernel.first_far(moment, grad, _number(k, rest, 1)), far, "m' from the gradient", far_off)


def _second(k: Any, kernel: Any) -> None:
    v, g, beta, w = (k.real(name) for name in ("v", "g of the square", "b2", "1 - b2"))
    off = errors(k, "v'")
    k.assume((v >= 0) & (beta > 0) & (beta < 1) & (w > 0) & (w < 1))
    k.cover("a square to add", g > 1)
    made = kernel.second(_number(k, v), _number(k, g), _number(k, beta, 1), _number(k, w, 1))
    charged(k, CLAUSE, made, Claim([(v * beta + w * g * g, SQUARE)]), "v'", off)


def _below(k: Any, kernel: Any) -> None:
    """From any v' within its claim; q is its root over the reals."""
    q, root, eps = (k.real(name) for name in ("sqrt(v')", "sqrt(1 - b2^t)", "eps"))
    off = errors(k, "D")
    k.assume((q >= 0) & (root > 0) & (root <= 1) & (eps > 0))
    made = kernel.below(_number(k, q * q, SQUARE), _number(k, root, 1), _number(k, eps, 1))
    charged(k, CLAUSE, made, Claim([(q / root + eps, BELOW)]), "D", off)


def _moved(k: Any, kernel: Any) -> None:
    """From any D within its claim and any m' = m + dm, whatever dm is."""
    names = ("theta", "1 - rate decay", "m'", "dm'", "D", "rate / (1 - b1^t)")
    p, kept, m, dm, below, size = (k.real(name) for name in names)
    off = errors(k, "theta'")
    k.assume((kept > 0) & (below > 0) & (size > 0))
    k.cover("a weight that moves through zero", (p > 0) & (p * kept * below < size * m))
    moment = Factored([Term(m), Term(dm)], k, CLAUSE)
    made = kernel.moved(_number(k, p), _number(k, kept, 1), moment, _number(k, below, BELOW), _number(k, size, 1))
    parts = [(p * kept, WEIGHT), (-size * m / below, UPDATE), (-size * dm / below, UPDATE)]
    charged(k, CLAUSE, made, Claim(parts), "theta'", off)


def _exactly(k: Any, kernel: Any) -> None:
    """All phases one after another, without rounding and with torch's scalars: a step of the closed form, any t."""
    hyper, one, two = hyperparameters(k), k.real("b1^t"), k.real("b2^t")
    m, v, p, g = (k.real(f"{name} of a step") for name in ("m", "v", "theta", "g"))
    k.assume((one > 0) & (one < 1) & (two > 0) & (two < 1) & (v >= 0))
    want = closed(m, v, Sums(g, g * g), (hyper.beta1, hyper.beta2), hyper)
    want = replace(want, power1=one, power2=two)
    k.cover("a gradient that turns the moment of a step", (m > 0) & (g < 0))
    first, far = kernel.first(m, g, 1 - hyper.beta1), kernel.first_far(m, g, hyper.beta1)
    second = kernel.second(v, g, hyper.beta2, 1 - hyper.beta2)
    for name, got, due in (("m'", first, want.m), ("m' from the gradient", far, want.m), ("v'", second, want.v)):
        k.check(CLAUSE, k.same(got, due), f"{name} of a step without rounding")
    divisor = kernel.below(second, sqrt(1 - two), hyper.eps)
    after = kernel.moved(p, 1 - hyper.rate * hyper.decay, first, divisor, hyper.rate / (1 - one))
    lost = p * (1 - hyper.rate * hyper.decay) - after
    k.check(CLAUSE, is_update(k, lost, want, hyper), "theta' of a step without rounding")


@dataclass(frozen=True)
class Scalars:
    """The scalars of a step as torch's doubles, exactly: 1 - b1, b2, 1 - b2, 1 - rate decay, s, R and eps."""

    weight: Fraction
    beta2: Fraction
    weight2: Fraction
    kept: Fraction
    size: Fraction
    root: Fraction
    eps: Fraction


@dataclass(frozen=True)
class Bounds:
    """m', v' and theta' over the reals, and how far a kernel's may be from each."""

    first: tuple[Fraction, Fraction]
    second: tuple[Fraction, Fraction]
    weight: tuple[Fraction, Fraction]


def cost(k: int) -> Fraction:
    """h_k."""
    return grown(k) - 1


def bounds(state: tuple[Fraction, Fraction, Fraction, Fraction], scalars: Scalars, below: Fraction) -> Bounds:
    """The bounds for (theta, g, m, v), `below` being D.

    Raises ZeroDivisionError where D is zero, and ValueError where 1 - b1 is at least 1/2 and no number of fp32.
    """
    p, g, m, v = state
    w = scalars.weight
    if w >= Fraction(1, 2) and not FORMATS["fp32"].representable(w):
        raise ValueError(f"1 - b1 = {float(w)} is at least 1/2 and no number of fp32: nothing is derived for it")
    first, second = m + w * (g - m), scalars.beta2 * v + scalars.weight2 * g * g
    start, added = (m, w) if w < Fraction(1, 2) else (g, 1 - w)
    off = cost(START) * abs(start) + cost(MOMENT) * added * abs(g - m)
    scale = scalars.size / below
    lost = cost(WEIGHT) * abs(p) * scalars.kept + scale * (cost(UPDATE) * abs(first) + grown(UPDATE) * off)
    return Bounds((first, off), (second, cost(SQUARE) * second), (p * scalars.kept - scale * first, lost))
