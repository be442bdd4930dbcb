"""Step contracts: what one rounded operation promises about its exact result, as data with an exact meaning.

z is the exact result of an operation, t = fl(z) its rounding to nearest even, e = t - z, u = 2^-p, and tiny the
smallest subnormal. A `Form` says a promise in words and decides it on rationals; a `Lemma` is a form of one operator in
one format. Every lemma excludes overflow: t is finite.

Sources: IEEE 754-2019, sections 3.3, 4.3.1 and 5.4.1; Muller et al., Handbook of Floating-Point Arithmetic (2nd ed.),
chapters 2 and 4 (Sterbenz; Hauser: sums that end subnormal are exact; Dekker 1971: Fast2Sum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from gradproof.arith.formats import FORMATS, Format, binade
from gradproof.arith.units import MOST_ODD, odd_part

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


def premises(lemma: Lemma) -> tuple[str, ...]:
    """Names of the lemmas that this one rests on."""
    return tuple(a for a in lemma.assumes if a in LEMMAS)
