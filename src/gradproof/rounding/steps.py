"""Steps on which a step contract is tried: operands at the ends of binades, ties and their neighbours, subnormals.

They prove nothing; the evidence in `proved/` does. They are there to refute a promise that is too strong: an error of
half an ulp is made at a tie, and in a 16-bit format as in fp32 every promise that is known is sharp at one of these
operands. A square root is cut 2^-240 below its last place, which no promise but a false one can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from itertools import product

from gradproof.arith.formats import FORMATS, Format, binade
from gradproof.arith.soft import near_sqrt
from gradproof.rounding.contracts import (
    ADD_FORMS,
    LEMMAS,
    QUOTIENT_FORMS,
    ROUND_FORMS,
    SQRT_FORMS,
    Form,
    Step,
    lemma_named,
)

Operands = tuple[Fraction, ...]
WEIGHTS = (1, 2, 3, 5, 6, 7, 8, 64)
DIVISORS = (3, 6, 7, 20, 63)


def named(patterns: Iterable[str]) -> list[str]:
    """Names of the lemmas that shell patterns match, as in the table. Raises KeyError for one that matches none."""
    asked = list(patterns)
    for pattern in asked:
        if not any(fnmatchcase(name, pattern) for name in LEMMAS):
            raise KeyError(f"no lemma is called {pattern!r}")
    return [name for name in LEMMAS if any(fnmatchcase(name, pattern) for pattern in asked)]


def form_of(name: str) -> Form:
    """What a lemma promises of one step. Raises KeyError for an unknown lemma."""
    lemma, last = lemma_named(name), name.rpartition("/")[2]
    if last == "table":
        return _table(lemma.operator)
    if lemma.operator == "divide-add":
        return QUOTIENT_FORMS[last]
    return POWER_OF_TWO if last == "power-of-two" else (ADD_FORMS if lemma.operator == "add" else ROUND_FORMS)[last]


POWER_OF_TWO = Form("N a power of two, |z| >= 2^emin: e = 0", lambda c: abs(c.z) < c.normal or c.t == c.z)


@cache
def _table(operator: str) -> Form:
    forms = [ROUND_FORMS[form] for form in (SQRT_FORMS if operator == "sqrt" else ROUND_FORMS)]
    return Form(" and ".join(form.words for form in forms), lambda c: all(form.holds(c) for form in forms))


def tried(name: str) -> tuple[tuple[Operands, Step], ...]:
    """The steps of the lemma's operator to try, none of which overflows, with their operands."""
    return _tried(_operation(name), lemma_named(name).fmt, name.endswith("power-of-two"))


def _operation(name: str) -> str:
    """The operator of a lemma; of quotients and their sums, which of them."""
    operator = lemma_named(name).operator
    return name.rpartition("/")[2] if operator == "divide-add" else operator


@cache
def _tried(operator: str, fmt: str, powers: bool) -> tuple[tuple[Operands, Step], ...]:
    made = ((given, _step(operator, fmt, given)) for given in dict.fromkeys(_directed(operator, fmt, powers)))
    return tuple((given, one) for given, one in made if one is not None)


def step(name: str, given: Sequence[Fraction]) -> Step:
    """The rounded operation on these operands. Raises ValueError where it overflows, or they are none of its own."""
    lemma = lemma_named(name)
    made = _step(_operation(name), lemma.fmt, tuple(given))
    if made is None:
        raise ValueError(f"{name}: {', '.join(map(str, given))} are no operands")
    return made


def _step(operator: str, formats: str, given: Operands) -> Step | None:
    own, fmt = FORMATS[formats.partition("-")[0]], FORMATS[formats.rpartition("-")[2]]
    if operator != "round" and not all(own.representable(x) for x in given):
        return None
    try:
        if operator in QUOTIENT_FORMS:
            return _of_quotients(operator, fmt, given)
        z = _exact(operator, given)
        s, x = given if operator == "add" else (Fraction(0), Fraction(0))
        return Step(fmt, z, fmt.round(z), s, x)
    except (OverflowError, ZeroDivisionError, ValueError):
        return None


def _of_quotients(operator: str, f: Format, given: Operands) -> Step:
    *terms, n = given
    x = terms[-1] / n
    if operator == "quotient":
        return Step(f, x, f.round(x), n=int(n))
    s, held = (terms[0], terms[0]) if operator == "joint" else (terms[0] / n, f.round(terms[0] / n))
    return Step(f, s + x, f.round(held + f.round(x)), s, x, int(n))


def _exact(operator: str, given: Operands) -> Fraction:
    if operator in ("round", "convert"):
        (x,) = given
        return x
    if operator == "sqrt":
        return near_sqrt(given[0])
    if operator == "fma":
        a, b, c = given
        return a * b + c
    a, b = given
    return {"add": lambda: a + b, "multiply": lambda: a * b, "divide": lambda: a / b}[operator]()


def altered(made: Step) -> Iterator[Step]:
    """The same step with a wrong result: four ulps too high, and nothing at all."""
    for t in (made.t + 4 * made.fmt.spacing(made.t), Fraction(0)):
        if t != made.t:
            yield replace(made, t=t)


def telling(name: str) -> tuple[Operands, Step]:
    """Operands, and a wrong result of theirs that the lemma excludes. Raises ArithmeticError where there is none."""
    form = form_of(name)
    for given, right in tried(name):
        for wrong in altered(right):
            if not form.holds(wrong):
                return given, wrong
    raise ArithmeticError(f"{name} excludes none of the wrong results that are tried")


def _directed(operator: str, formats: str, powers: bool) -> Iterator[Operands]:
    f, to = FORMATS[formats.partition("-")[0]], FORMATS[formats.rpartition("-")[2]]
    some = numbers(f)
    if operator in ("round", "convert"):
        narrow = min(f, to, key=lambda one: one.p)
        yield from ((s * x,) for x in _between(narrow) for s in (1, -1))
    elif operator == "sqrt":
        yield from ((x,) for x in some)
    elif operator == "add":
        yield from _terms(f, some)
    elif operator in QUOTIENT_FORMS:
        terms = [some, *([some[::2]] if operator != "quotient" else [])]
        yield from product(*terms, [Fraction(n) for n in DIVISORS])
    elif operator == "fma":
        ones = (Fraction(1), 1 + 2 * f.u, f.tiny, Fraction(2) ** f.emin)
        yield from product(some[::3], ones, (*some[::5], -some[-1]))
    else:
        known = [Fraction(n) for n in WEIGHTS if not powers or n & (n - 1) == 0]
        factors = [f.round(1 / n) for n in known] if operator == "multiply" else known
        yield from product([*some, *(-x for x in some[::3])], factors)


@cache
def numbers(f: Format) -> tuple[Fraction, ...]:
    """Numbers >= 0 of a format: subnormals, and the first and last few of some binades."""
    low = 2 ** (f.p - 1)
    made = [k * f.tiny for k in (0, 1, 2, 3, low // 2 + 1, low - 1)]
    for e in (f.emin, f.emin + 1, -1, 0, f.emax - 1):
        ends = (low, low + 1, low + 2, 3 * low // 2 + 1, 2 * low - 2, 2 * low - 1)
        made += [m * Fraction(2) ** (e - f.p + 1) for m in ends]
    return tuple(made)


def _between(f: Format) -> Iterator[Fraction]:
    """Numbers of a format, midpoints, and what lies next to both."""
    for x in numbers(f):
        ulp = f.spacing(x)
        for part in (Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)):
            yield from (x + ulp * (part + nudge) for nudge in (Fraction(0), Fraction(1, 32)))


def _terms(f: Format, some: Sequence[Fraction]) -> Iterator[Operands]:
    """Terms of a sum: ties, what lies next to a tie, cancellation, and terms far apart, in either order."""
    for s in some:
        if s == 0:
            continue
        half = f.spacing(s) / 2
        edge = Fraction(2) ** (binade(s) + 1)
        near = [half * k for k in (Fraction(1, 2), 1, 1 + 2 * f.u, 1 - f.u, 2, 3)]
        near += [s, edge - s, edge - s + half, f.tiny, some[-1]]
        for x in near:
            yield from ((s, x), (s, -x), (-x, s))
