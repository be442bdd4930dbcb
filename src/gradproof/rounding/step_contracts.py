"""Step contracts: what one rounded operation promises about its exact result, as data with an exact meaning.

z is the exact result of an operation, t = fl(z) its rounding to nearest even, e = t - z, u = 2^-p, and tiny the
smallest subnormal. A `Form` says a promise in words and decides it on rationals; a `Lemma` is a form of one operator in
one format. Every lemma excludes overflow: t is finite.

Sources: IEEE 754-2019, sections 3.3, 4.3.1 and 5.4.1; Muller et al., Handbook of Floating-Point Arithmetic (2nd ed.),
chapters 2 and 4 (Sterbenz; Hauser: sums that end subnormal are exact; Dekker 1971: Fast2Sum).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from itertools import product

from gradproof.arith.bounds import MOST_ODD, odd_part
from gradproof.arith.formats import FORMATS, Format, binade
from gradproof.arith.soft import near_sqrt
from gradproof.rounding.certificate import LinearRow

TABLE_N = tuple(sorted({*range(1, 65), *(2**k for k in range(13))}))
DEFINITION = "IEEE 754-2019, 5.4.1: the operation returns the rounding of its exact result"
FINITE = "no overflow: operands and result are finite"


@dataclass(frozen=True, slots=True)
class Step:
    """One rounded operation on rationals; s and x are the terms of an addition, n what a quotient is divided by."""

    fmt: Format
    z: Fraction
    t: Fraction
    s: Fraction = Fraction(0)
    x: Fraction = Fraction(0)
    n: int = 1

    @property
    def error(self) -> Fraction:
        """|t - z|."""
        return abs(self.t - self.z)

    @property
    def normal(self) -> Fraction:
        """Smallest positive normal number."""
        return Fraction(2) ** self.fmt.emin


@dataclass(frozen=True, slots=True)
class Form:
    """A promise: its words, and whether a step keeps it."""

    words: str
    holds: Callable[[Step], bool]


@dataclass(frozen=True, slots=True)
class Lemma:
    """One promise of one operator in one format. `assumes` holds names of lemmas and statements in words."""

    name: str
    operator: str
    fmt: str
    statement: str
    assumes: tuple[str, ...]


def _half_ulp(c: Step) -> bool:
    k = c.fmt.emin if c.z == 0 else max(binade(c.z), c.fmt.emin)
    return c.error <= c.fmt.u * Fraction(2) ** k


def _grid(c: Step) -> bool:
    step = c.fmt.spacing(c.z)
    return (c.z / step).__floor__() * step <= c.t <= (c.z / step).__ceil__() * step


def _fast2sum(c: Step) -> bool:
    s, x = (c.s, c.x) if abs(c.s) >= abs(c.x) else (c.x, c.s)
    a = c.fmt.round(c.t - s)
    return a == c.t - s and c.fmt.round(x - a) == c.z - c.t


def _power_of_two_in(a: Fraction) -> Fraction:
    return Fraction(a.numerator & -a.numerator, a.denominator)


def _multiples(c: Step) -> bool:
    common = [_power_of_two_in(a) for a in (c.s, c.x) if a != 0]
    return not common or abs(c.z) > 2**c.fmt.p * min(common) or c.t == c.z


ROUND_FORMS: Mapping[str, Form] = {
    "half-ulp": Form("|z| <= 2^(k+1), k >= emin => |e| <= u 2^k", _half_ulp),
    "relative": Form("|z| >= 2^emin => |e| <= u |z|", lambda c: abs(c.z) < c.normal or c.error <= c.fmt.u * abs(c.z)),
    "subnormal": Form("|z| <= 2^emin => |e| <= tiny / 2", lambda c: abs(c.z) > c.normal or 2 * c.error <= c.fmt.tiny),
    "grid": Form("B a number of the format, |z| <= B => |t| <= B; the same of z <= B and of z >= B", _grid),
    "exact": Form("z a number of the format => e = 0", lambda c: not c.fmt.representable(c.z) or c.t == c.z),
    "ftz": Form(
        "where |t| or |z| is below 2^emin and the result is flushed to 0, that costs at most 2^emin",
        lambda c: (abs(c.t) >= c.normal and abs(c.z) >= c.normal) or abs(c.z) <= c.normal,
    ),
}

ADD_FORMS: Mapping[str, Form] = {
    "half-ulp": Form("|s + x| <= 2^(k+1), k >= emin => |e| <= u 2^k", _half_ulp),
    "relative": Form("|e| <= u |s + x|, subnormal results included", lambda c: c.error <= c.fmt.u * abs(c.z)),
    "at-most-terms": Form("|e| <= |x| and |e| <= |s|", lambda c: c.error <= min(abs(c.s), abs(c.x))),
    "grid": Form("B a number of the format, |s + x| <= B (so too |s| <= B - b, |x| <= b) => |t| <= B", _grid),
    "error-representable": Form(
        "e is a number of the format; where |s| >= |x|, a = fl(t - s) and fl(x - a) = -e are exact", _fast2sum
    ),
    "exact": Form("s + x a number of the format => e = 0", ROUND_FORMS["exact"].holds),
    "multiples": Form("s and x multiples of a power of two q >= tiny, |s + x| <= 2^p q => e = 0", _multiples),
    "subnormal": Form("|s + x| <= 2^emin => e = 0", lambda c: abs(c.z) > c.normal or c.t == c.z),
    "ftz": ROUND_FORMS["ftz"],
}

SIXTEEN = ("fp16", "bf16")
THREE = (*SIXTEEN, "fp32")
NARROWING = ("fp32-fp16", "fp32-bf16")
EXACT_RESULT = {
    "multiply": "z = x c, c = fl(1/N) or any number of the format",
    "divide": "z = x / N",
    "fma": "z = a b + c",
    "sqrt": "z = sqrt(x)",
}
SQRT_FORMS = ("half-ulp", "relative", "grid", "exact")
BINADES = "binades scaled by powers of two round alike while z is normal; only one of them is enumerated"
ODD = "rounding is odd, fl(-z) = -fl(z): z >= 0 is looked at"
COMMUTES = "addition commutes: |s| >= |x| is looked at"
PIECES = (
    "between a number and a midpoint next to it the rounding is constant, e is linear and e / z monotone: numbers, "
    "midpoints and points between them decide every real z"
)
REALS = (
    "z is any fp64 number here. Midpoints of fp32 are fp64 numbers, so between two neighbours of fp64 the rounding is "
    "constant, e linear and e / z monotone: every real z is covered (at a midpoint both neighbours are equally far)"
)
SCALED = (
    "one of the two encodings takes s in [1, 2), as rounding is odd, and exponent differences up to 25: other binades "
    "are scaled copies while the sum is normal, and beyond that difference t = s"
)


def _round_lemma(fmt: str, form: str) -> Lemma:
    extra = {"fp32": (REALS,), "fp16": (ODD, PIECES), "bf16": (ODD, PIECES, BINADES)}[fmt]
    words = f"every real z: {ROUND_FORMS[form].words}"
    return Lemma(f"round/{fmt}/{form}", "round", fmt, words, (FINITE, *extra))


def _add_lemma(fmt: str, form: str) -> Lemma:
    extra: tuple[str, ...] = (ODD, COMMUTES, BINADES) if fmt == "bf16" else (ODD, COMMUTES)
    if fmt == "fp32":
        extra = {
            "half-ulp": ("add/fp32/error-representable", "add/fp32/subnormal", COMMUTES, SCALED),
            "relative": ("add/fp32/half-ulp", "add/fp32/subnormal"),
            "at-most-terms": ("add/fp32/error-representable", COMMUTES),
            "error-representable": (COMMUTES,),
            "multiples": ("add/fp32/exact", "a multiple of q of at most 2^p q is a number of the format (3.3)"),
        }.get(form, ())
    words = f"z = s + x: {ADD_FORMS[form].words}"
    return Lemma(f"add/{fmt}/{form}", "add", fmt, words, (FINITE, *extra))


def _derived(operator: str, fmt: str, form: str) -> Lemma:
    words = f"{EXACT_RESULT[operator]}: {ROUND_FORMS[form].words}"
    return Lemma(f"{operator}/{fmt}/{form}", operator, fmt, words, (FINITE, DEFINITION, f"round/{fmt}/{form}"))


def _table(operator: str, fmt: str) -> Lemma:
    forms = ", ".join(SQRT_FORMS if operator == "sqrt" else ROUND_FORMS)
    over = "" if operator == "sqrt" else ", N in 1..64 and powers of two to 4096, c = fl(1/N)"
    extra: tuple[str, ...] = (BINADES,) if fmt != "fp16" or operator == "sqrt" else ()
    if fmt == "fp32" and operator != "sqrt":
        extra += ("normal results only; an even N halves the results of N / 2",)
    words = f"{EXACT_RESULT[operator]}, every positive x{over}: {forms}"
    return Lemma(
        f"{operator}/{fmt}/table", operator, fmt, words, (FINITE, *(() if operator == "sqrt" else (ODD,)), *extra)
    )


def _convert_lemmas() -> list[Lemma]:
    made = []
    for pair in NARROWING:
        for form, meaning in ROUND_FORMS.items():
            words = f"z any fp32 number: {meaning.words}"
            made.append(Lemma(f"convert/{pair}/{form}", "convert", pair, words, (FINITE, ODD, BINADES)))
    for fmt in SIXTEEN:
        words = f"every finite {fmt} number is an fp32 number"
        made.append(Lemma(f"convert/{fmt}-fp32/exact", "convert", f"{fmt}-fp32", words, ()))
    return made


def _power_of_two_lemma(operator: str, fmt: str) -> Lemma:
    words = f"{EXACT_RESULT[operator]}, N a power of two, |z| >= 2^emin: e = 0"
    why = "a normal number times a power of two is a number of the format while it stays normal (3.3)"
    return Lemma(f"{operator}/{fmt}/power-of-two", operator, fmt, words, (f"round/{fmt}/exact", DEFINITION, why))


def _quotient(c: Step) -> bool:
    m = odd_part(c.n)
    return abs(c.z) < c.normal or 2 * m * c.error <= (m - 1) * c.fmt.spacing(c.z)


def _joint(c: Step) -> bool:
    m, w = odd_part(c.n), c.fmt.spacing(c.x)
    k, h = c.fmt.spacing(c.t) / (2 * w), (m - 1) // 2
    return abs(c.x) < c.normal or k < 1 or c.error <= (k + Fraction(h - h % int(k), m)) * w


def _pair(c: Step) -> bool:
    m, most = odd_part(c.n), max(abs(c.s), abs(c.x))
    w = c.fmt.spacing(most)
    low = w < c.normal or most < c.normal
    return low or c.fmt.spacing(c.t) > 2 * w or c.error <= (1 + Fraction(m - 2, m)) * w


QUOTIENT_FORMS: Mapping[str, Form] = {
    "quotient": Form("|fl(g / N) - g / N| <= (m - 1) / (2 m) w", _quotient),
    "joint": Form(
        "t = fl(s + fl(g / N)), half its spacing = k w, k a power of two => "
        "|t - (s + g / N)| <= (k + D / m) w, D the largest multiple of k that is at most (m - 1) / 2",
        _joint,
    ),
    "pair": Form(
        "t = fl(fl(g / N) + fl(h / N)), spacing at most 2 w => |t - (g + h) / N| <= (1 + (m - 2) / m) w", _pair
    ),
}
FINER = (
    "a number s on a grid finer than half the spacing of t is smaller than fl(g / N), so t has at most twice the "
    "spacing w; smaller quotients lie on finer grids and lose less"
)


def _quotient_lemmas(fmt: str) -> list[Lemma]:
    made = []
    for form, meaning in QUOTIENT_FORMS.items():
        said = f"N = m 2^j, m odd, 3 <= m <= {MOST_ODD}, g / N normal with spacing w: {meaning.words}"
        extra = (FINITE, ODD, BINADES) if form == "quotient" else (FINITE, ODD, BINADES, FINER)
        made.append(Lemma(f"divide-add/{fmt}/{form}", "divide-add", fmt, said, extra))
    return made


def _all() -> dict[str, Lemma]:
    made = [_round_lemma(fmt, form) for fmt in THREE for form in ROUND_FORMS]
    made += [_add_lemma(fmt, form) for fmt in THREE for form in ADD_FORMS]
    for operator in EXACT_RESULT:
        for fmt in THREE:
            forms = SQRT_FORMS if operator == "sqrt" else tuple(ROUND_FORMS)
            made += [_derived(operator, fmt, form) for form in forms]
            if operator != "fma":
                made.append(_table(operator, fmt))
            if operator in ("multiply", "divide"):
                made.append(_power_of_two_lemma(operator, fmt))
    made += _convert_lemmas()
    made += [lemma for fmt in THREE for lemma in _quotient_lemmas(fmt)]
    return {lemma.name: lemma for lemma in made}


LEMMAS: Mapping[str, Lemma] = _all()


def lemma_named(name: str) -> Lemma:
    """The lemma called `name`. Raises KeyError that lists the operators known."""
    if name not in LEMMAS:
        known = sorted({lemma.operator for lemma in LEMMAS.values()})
        raise KeyError(f"no lemma {name!r}; operators: {', '.join(known)}; formats: {', '.join(FORMATS)}")
    return LEMMAS[name]


DERIVED_ADD = ("add/fp32/relative", "add/fp32/multiples")


def method(lemma: Lemma) -> str:
    """`solvers`, `exhaustion` or `derivation`."""
    form = lemma.name.rpartition("/")[2]
    if lemma.name in DERIVED_ADD or (lemma.operator in EXACT_RESULT and form != "table"):
        return "derivation"
    return "solvers" if lemma.fmt == "fp32" and lemma.operator in ("round", "add") else "exhaustion"


def premises(lemma: Lemma) -> tuple[str, ...]:
    """Names of the lemmas that this one rests on."""
    return tuple(a for a in lemma.assumes if a in LEMMAS)


# -- Which rounded operators a linear chain is made of: what the kernels must do for its bound to speak of them.
SUMS = ("residual", "ordered")
QUOTIENTS = ("quotient", "joint", "pair")
ROUNDED = ("round", "fits", "shift", *SUMS, *QUOTIENTS)


def operators_of(rows: Sequence[LinearRow]) -> set[str]:
    """Operators with their formats: "add fp32", "multiply fp32", "divide fp32", "convert fp16"; exact ones are none."""
    return {f"{name} {row.fmt}" for row in rows if row.kind in ROUNDED and row.fmt for name in _operators(row, rows)}


def _operators(row: LinearRow, rows: Sequence[LinearRow]) -> tuple[str, ...]:
    if row.kind in QUOTIENTS:
        return ("divide",) if row.kind == "quotient" else ("divide", "add")
    if row.kind in SUMS or len(row.terms) > 1:
        return ("add",)
    [(c, j)] = row.terms
    if abs(c) == 1:
        return () if rows[j].fmt == row.fmt else ("convert",)
    quotient = abs(c) < 1 and FORMATS[str(row.fmt)].representable(Fraction(1) / c)
    return ("divide",) if quotient else ("multiply",)


# -- Steps on which a step contract is tried: operands at the ends of binades, ties and their neighbours, subnormals.
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
        return _table_form(lemma.operator)
    if lemma.operator == "divide-add":
        return QUOTIENT_FORMS[last]
    return POWER_OF_TWO if last == "power-of-two" else (ADD_FORMS if lemma.operator == "add" else ROUND_FORMS)[last]


POWER_OF_TWO = Form("N a power of two, |z| >= 2^emin: e = 0", lambda c: abs(c.z) < c.normal or c.t == c.z)


@cache
def _table_form(operator: str) -> Form:
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


def refuting_case(name: str) -> tuple[Operands, Step]:
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
