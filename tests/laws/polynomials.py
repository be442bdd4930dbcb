"""Polynomials over atoms: a normal form of what an operator computes for all real arguments.

An atom is a variable, or a function that is not looked into (`exp` of a polynomial, the largest of some): equal
arguments give one atom. A comparison is an atom that is 0 or 1, and a choice between a and b is c * a + (1 - c) * b.
Two polynomials that are equal are equal numbers, whatever the variables are; two that differ say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Monomial = tuple[tuple[int, int], ...]
Polynomial = dict[Monomial, Fraction]
Function = Callable[..., Any]
SIMPLE = 10**6
"""A Python float is the rational of no larger denominator that rounds to it, if there is one."""


KEYS: list[tuple[Any, ...]] = []
NUMBERED: dict[tuple[Any, ...], int] = {}
TRUTHS = ("mask", "positive", "zero", "isnan", "isinf", "signbit")


def atom(*key: Any) -> Polynomial:
    """The atom of a key: ("exp", argument)."""
    number = NUMBERED.setdefault(key, len(KEYS))
    if number == len(KEYS):
        KEYS.append(key)
    return {((number, 1),): Fraction(1)}


def number(x: Any) -> Polynomial:
    """A constant."""
    if isinstance(x, float):
        if math.isnan(x):
            return {}  # where an operator is not defined, no law says anything
        if math.isinf(x):
            return atom("constant", str(x))
        near = Fraction(x).limit_denominator(SIMPLE)
        x = near if float(near) == x else Fraction(x)
    return {(): Fraction(x)} if x else {}


def constant(p: Polynomial) -> Fraction | None:
    """The rational that a polynomial is, if it is one."""
    return Fraction(0) if not p else p[()] if len(p) == 1 and () in p else None


def add(p: Polynomial, q: Polynomial, by: Any = 1) -> Polynomial:
    """p + by * q."""
    found = dict(p)
    for monomial, c in q.items():
        total = found.get(monomial, 0) + by * c
        if total:
            found[monomial] = total
        else:
            del found[monomial]
    return found


def times(a: Monomial, b: Monomial) -> Monomial:
    """A product of powers; of what is 0 or 1 every power is the first."""
    if not a or not b:
        return a or b
    powers = dict(a)
    for one, by in b:
        powers[one] = powers.get(one, 0) + by
        if KEYS[one][0] in TRUTHS:
            powers[one] = min(powers[one], 1)
    return tuple(sorted((one, by) for one, by in powers.items() if by))


def mul(p: Polynomial, q: Polynomial) -> Polynomial:
    """p * q."""
    found: Polynomial = {}
    for a, x in p.items():
        for b, y in q.items():
            monomial = times(a, b)
            total = found.get(monomial, 0) + x * y
            if total:
                found[monomial] = total
            else:
                del found[monomial]
    return found


def frozen(p: Polynomial) -> tuple[Any, ...]:
    """A polynomial as a part of a key."""
    return tuple(sorted(p.items()))


def scaled(p: Polynomial) -> tuple[Fraction, Polynomial]:
    """A polynomial as its first coefficient times the rest."""
    by = p[min(p)]
    return by, {monomial: c / by for monomial, c in p.items()}


def div(p: Polynomial, q: Polynomial) -> Polynomial:
    """p / q."""
    if not q:
        return mul(p, atom("constant", "1/0"))
    by, rest = scaled(q)
    ((monomial, _),) = rest.items() if len(rest) == 1 else ((None, None),)
    if monomial is None:
        return mul(p, {m: c / by for m, c in atom("inverse", frozen(rest)).items()})
    return mul(p, {tuple((one, -power) for one, power in monomial): 1 / by})


def positive(p: Polynomial) -> Polynomial:
    """Whether p > 0, as 0 or 1."""
    held = constant(p)
    if held is not None:
        return number(int(held > 0))
    by, rest = scaled(p)
    return atom("positive", by > 0, frozen(rest))


def zero(p: Polynomial) -> Polynomial:
    """Whether p = 0."""
    held = constant(p)
    return number(int(not held)) if held is not None else atom("zero", frozen(scaled(p)[1]))


def choice(c: Polynomial, p: Polynomial, q: Polynomial) -> Polynomial:
    """p where c is 1, and q where it is 0."""
    return add(mul(c, p), mul(add(number(1), c, -1), q))


def power(p: Polynomial, q: Polynomial) -> Polynomial:
    """p to the power q."""
    by = constant(q)
    if by is None or by.denominator > 2:
        return atom("pow", frozen(p), frozen(q))
    root = p if by.denominator == 1 else atom("sqrt", frozen(p))
    made = number(1)
    for _ in range(abs(by.numerator)):
        made = mul(made, root)
    return made if by >= 0 else div(number(1), made)


ONE = number(1)
ELEMENTWISE: dict[str, Function] = {
    "add": add, "sub": lambda p, q: add(p, q, -1), "mul": mul, "div": div, "neg": lambda p: add({}, p, -1),
    "reciprocal": lambda p: div(ONE, p), "sqrt": lambda p: power(p, number(0.5)), "pow": power,
    "rsqrt": lambda p: power(p, number(-0.5)), "where": choice,
    "gt": lambda p, q: positive(add(p, q, -1)), "lt": lambda p, q: positive(add(q, p, -1)),
    "ge": lambda p, q: add(ONE, positive(add(q, p, -1)), -1), "le": lambda p, q: add(ONE, positive(add(p, q, -1)), -1),
    "eq": lambda p, q: zero(add(p, q, -1)), "ne": lambda p, q: add(ONE, zero(add(p, q, -1)), -1),
    "maximum": lambda p, q: choice(positive(add(p, q, -1)), p, q),
    "minimum": lambda p, q: choice(positive(add(q, p, -1)), p, q),
    "bitwise_and": mul, "bitwise_or": lambda p, q: add(add(p, q), mul(p, q), -1),
    "bitwise_not": lambda p: add(ONE, p, -1), "bitwise_xor": lambda p, q: add(add(p, q), mul(p, q), -2),
}  # fmt: skip
ELEMENTWISE |= {"fmax": ELEMENTWISE["maximum"], "fmin": ELEMENTWISE["minimum"]}
OPAQUE = frozenset({
    "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor",
    "fmod", "log", "log10", "log1p", "log2", "remainder", "round", "sign", "signbit", "sin", "sinh", "tan",
    "tanh", "trunc", "isnan", "isinf", "erf_inv",
})  # fmt: skip
"""Functions of one element, or two, of which nothing more is used."""
