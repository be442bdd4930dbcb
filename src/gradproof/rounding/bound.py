"""Both sides of a question about accumulation: the proven bound, and an input that comes near it, replayed exactly.

Sizes, relative error and norms: what an absolute tolerance says about gradients that are not of size one.
Rounding to nearest has no unit of length: without underflow, gradients times a power of two err by that power times as
much. So an absolute tolerance EPS at max |g| = X is a relative one, EPS / X; below half an ulp of X it fails at N = 2.
Over d elements, each in a buffer of its own, the errors of one element add up to ||E||_2 <= sqrt(d) E (KANI-GA-030);
the witness of one element, repeated, attains it. Roots are bounded by rationals on the safe side.

`relative_bound` is the closed form of KANI-GA-029, for any size at once, and for gradients of different sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import isqrt
from typing import Any

from gradproof.arith.bounds import units
from gradproof.arith.formats import FORMATS, Format, binade, format_named
from gradproof.core.check import digest_of
from gradproof.core.outcome import Outcome
from gradproof.rounding.accumulation import Setting, difference, error_of, largest, term_difference
from gradproof.rounding.certificate import LinearRow, certify, from_rows, limited, rows_of
from gradproof.rounding.farkas import check
from gradproof.rounding.lemma_store import require_contracts
from gradproof.rounding.witness_sequential import beyond, sequential_witness


# -- A bound for every order of addition: atomics, split reductions, any binary tree.
def coarse(fmt: str, n: int, term: Fraction) -> tuple[Fraction, Fraction]:
    """b' and q: the least multiple of a power of two q that is at least `term`, with n b' <= 2^p q, q >= tiny.

    Raises ValueError where n > 2^p, for which there is none.
    """
    f = format_named(fmt)
    if n > 2**f.p:
        raise ValueError(f"the bound for every order is for at most 2^{f.p} terms in {fmt}")
    step = max(f.tiny, Fraction(2) ** (binade(n * term) - f.p))
    while n * (wide := -(-term // step) * step) > step * 2**f.p:
        step *= 2
    return wide, step


def any_order_bound(fmt: str, n: int, term: Fraction) -> Fraction:
    """Worst |fl(sum) - sum| of n numbers |x_i| <= term of a format, over every binary tree of additions.

    Raises ValueError for n < 1, n > 2^p or a term that is not positive, OverflowError where a sum may leave the format.
    """
    if n < 1 or term <= 0:
        raise ValueError("at least one term, of a positive magnitude")
    f = format_named(fmt)
    wide, _ = coarse(fmt, n, term)
    if n * wide > f.largest:
        raise OverflowError(f"a {fmt} sum of {n} terms may exceed {float(f.largest):.6g}")
    return stairs(f.half_ulp, n, wide)


def stairs(half_ulp: Callable[[Fraction], Fraction], n: int, wide: Fraction) -> Fraction:
    """The sum of half_ulp(m wide) for m = 2..n, one binade at a time."""
    total, m = Fraction(0), 2
    while m <= n:
        edge = Fraction(2) ** (binade(m * wide) + (Fraction(2) ** binade(m * wide) != m * wide))
        last = min(n, int(edge / wide))
        total += (last - m + 1) * half_ulp(m * wide)
        m = last + 1
    return total


ASSUMED = ("round to nearest, ties to even, each operation rounded once", "no overflow, which the bound excludes")


@dataclass(frozen=True)
class BoundAnswer:
    """`bound` is proved for every input; `attained` is the error at `witness`, exactly. `ratio` is their quotient."""

    setting: Setting
    bound: Fraction
    attained: Fraction
    witness: tuple[Fraction, ...]
    certificate: dict[str, Any] | None
    contracts: tuple[str, ...]
    assumes: tuple[str, ...] = ASSUMED

    @property
    def ratio(self) -> Fraction | None:
        """Bound over attained; None where nothing is attained."""
        return self.bound / self.attained if self.attained else None

    def outcome(self, tolerance: Fraction) -> Outcome:
        """HOLDS where the bound is within the tolerance, REFUTED where the witness is beyond it, else UNKNOWN."""
        if self.bound <= tolerance:
            return Outcome.HOLDS
        return Outcome.REFUTED if self.attained > tolerance else Outcome.UNKNOWN


def answer(setting: Setting) -> BoundAnswer:
    """The bound, with its certificate, and the witness. Raises OverflowError and NonLinear as linear floats do."""
    bound, made, contracts = proved(setting)
    found = witness(setting)
    return BoundAnswer(setting, bound, error_of(replayed(setting), found), tuple(found), made, contracts)


def proved(setting: Setting) -> tuple[Fraction, dict[str, Any] | None, tuple[str, ...]]:
    """The bound, the certificate that the checker accepted, and the proved contracts that it rests on.

    Every order at once has no certificate. Raises LemmaRefused where a contract is not proved.
    """
    bound, text, rows = bounded(setting)
    return bound, text, tuple(require_contracts(rows))


def bounded(setting: Setting) -> tuple[Fraction, dict[str, Any] | None, tuple[LinearRow, ...]]:
    """The bound, the certificate that the checker accepted, and its rows; nothing is said of the contracts.

    Where the runs beyond the edge were enumerated, the certificate is for the other case, and the bound for both.
    """
    if setting.order == "any":
        bound, rows = _any(setting)
        return bound, None, rows
    rows = rows_of(difference(setting))
    more = beyond(setting)
    last = max((k for k, r in enumerate(rows) if r.kind == "joint"), default=None)
    if more is None or last is None:
        text = from_rows(rows).text()
        return check(text), text, rows
    text = from_rows(limited(rows, last, more.edge), (last, units(more.edge))).text()
    return max(check(text, (last, more.edge)), more.worst), text, rows


def _any(setting: Setting) -> tuple[Fraction, tuple[LinearRow, ...]]:
    """n times what one term errs by before it is added, and the additions in every tree of them."""
    if setting.scale == "after" or setting.weights:
        raise ValueError("every order at once is for equal terms, scaled before they are added")
    one, term = term_difference(setting)
    made = certify(one)
    if setting.n == 1:
        return made.bound, made.rows
    added = term + term
    added.alone = True
    trees = any_order_bound(setting.buffer, setting.n, term.reach) if term.reach else Fraction(0)
    return setting.n * made.bound + trees, rows_of(added)


def replayed(setting: Setting) -> Setting:
    """The setting with an order that can be replayed: left to right is one of them where any is asked for."""
    return replace(setting, order="sequential") if setting.order == "any" else setting


def witness(setting: Setting) -> list[Fraction]:
    """Gradients on which the setting errs far; no claim that nothing errs farther."""
    one = replayed(setting)
    if one.inputs:
        tried = [_tied_inputs(one), [one.reach] * one.n]
        if one.scale == "divide" and one.order == "sequential" and one.n & (one.n - 1) == 0 and _narrower(one):
            tried.append(_late_inputs(one))
        return max(tried, key=lambda made: error_of(one, made))
    if largest(FORMATS[one.buffer], one.reach / (one.n if one.scale == "divide" else 1)) == 0:
        return [largest(FORMATS[one.buffer], one.reach)] * one.n
    if one.scale == "multiply" or (one.order == "sequential" and one.scale == "divide"):
        found, edge = sequential_witness(one.n, one.buffer, one.magnitude), beyond(one)
        return list(edge.witness) if edge is not None and edge.worst > error_of(one, found) else found
    from gradproof.rounding.witness_compensated import witness_for

    if one.order == "pairwise" and (one.scale != "divide" or one.magnitude != 1):
        return _plain_sums(one)
    return witness_for(one)


def _plain_sums(setting: Setting) -> list[Fraction]:
    """The worst of a few gradients, for an order without a search of its own."""
    f = FORMATS[setting.buffer]
    last = largest(f, setting.reach)
    tried = [sequential_witness(setting.n, setting.buffer, setting.magnitude)] if setting.scale == "divide" else []
    tried += [[last] * setting.n, [last - k % 2 * f.spacing(last) for k in range(setting.n)]]
    return max(tried, key=lambda made: error_of(setting, made))


def _tied_inputs(setting: Setting) -> list[Fraction]:
    """Reals midway between the largest number and the one below it, all of which are rounded the same way."""
    f = FORMATS[str(setting.inputs)]
    top = largest(f, setting.reach)
    if top == 0:
        return [setting.reach] * setting.n
    below = top - f.spacing(top * (1 - f.u))
    return [(top + below) / 2] * setting.n


def _narrower(setting: Setting) -> bool:
    """Whether every number of the inputs' format is one of the buffer's."""
    given, kept = FORMATS[str(setting.inputs)], FORMATS[setting.buffer]
    return given.p <= kept.p and given.tiny >= kept.tiny and given.largest <= kept.largest


def _late_inputs(setting: Setting) -> list[Fraction]:
    """Numbers of the narrow format whose sum errs far, each almost half a spacing above its rounding."""
    f = FORMATS[str(setting.inputs)]
    step = f.spacing(setting.magnitude * (1 - f.u))
    top = (setting.magnitude / step - Fraction(1, 2)).__floor__() * step  # half a step above it is still no more
    if top <= 0:
        return _tied_inputs(setting)
    part = Fraction(1, 2) - Fraction(1, 2**20)
    return [g + part * f.spacing(g) for g in sequential_witness(setting.n, setting.buffer, top, setting.inputs)]


def thresholds(setting: Setting, tolerance: Fraction, most: int = 2**16) -> dict[str, int | None]:
    """Over N = 2^k up to `most`: the largest N that is proved, the first that is refuted, and the first undecided."""
    found: dict[str, int | None] = {"true up to": None, "undecided from": None, "false from": None}
    n = 1
    while n <= most:
        own = replace(setting, n=n)
        if proved(own)[0] <= tolerance:
            found["true up to"] = n
        elif error_of(replayed(own), witness(own)) > tolerance:
            found["false from"] = n
            return found
        elif found["undecided from"] is None:
            found["undecided from"] = n
        n *= 2
    return found


def bits(x: Fraction, f: Format) -> str:
    """A number of a format as its bit pattern, in hexadecimal. Raises ValueError where it is none."""
    if not f.representable(x):
        raise ValueError(f"{x} is no {f.name} number")
    packed = {"fp16": ">e", "fp32": ">f", "fp64": ">d", "bf16": ">f"}[f.name]
    return struct.pack(packed, float(x)).hex()[: f.bits // 4]


def as_json(found: BoundAnswer) -> dict[str, Any]:
    """An answer as JSON values; rationals are strings, the witness is bit patterns where it has any."""
    s, f = found.setting, FORMATS[found.setting.buffer]
    plain = all(f.representable(g) for g in found.witness)
    return {
        "setting": {**asdict(s), "magnitude": str(s.magnitude), "weights": [str(w) for w in s.weights]},
        "bound": str(found.bound), "bound_float": float(found.bound),
        "attained": str(found.attained), "attained_float": float(found.attained),
        "ratio": None if found.ratio is None else float(found.ratio),
        "witness": [bits(g, f) for g in found.witness] if plain else [str(g) for g in found.witness],
        "contracts": list(found.contracts),
        "certificate": None if found.certificate is None else digest_of(found.certificate),
        "assumes": list(found.assumes),
    }  # fmt: skip


# -- Relative error and norms.
PLACES = 2**64


def power(n: int) -> int:
    """The number itself, a power of two. Raises ValueError for any other."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"the largest N is a power of two, not {n}")
    return n


def root_above(d: int) -> Fraction:
    """The least multiple of 1 / PLACES that is no less than the square root. Raises ValueError for negative d."""
    below = root_below(d)
    return below if below * below == d else below + Fraction(1, PLACES)


def root_below(d: int) -> Fraction:
    """The largest multiple of 1 / PLACES that is no more than the square root. Raises ValueError for negative d."""
    if d < 0:
        raise ValueError("the root of a negative number")
    return Fraction(isqrt(d * PLACES * PLACES), PLACES)


@dataclass(frozen=True)
class Norm:
    """The Euclidean norm of the error over `elements`, each of which is accumulated as the answer's one.

    Raises ValueError without an element.
    """

    of: BoundAnswer
    elements: int

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ValueError("a norm needs at least one element")

    @property
    def bound(self) -> Fraction:
        """No norm of an error is larger."""
        return self.of.bound * root_above(self.elements)

    @property
    def attained(self) -> Fraction:
        """No more than the norm where every element is the witness."""
        return self.of.attained * root_below(self.elements)

    def outcome(self, tolerance: Fraction) -> Outcome:
        """HOLDS where the bound is within the tolerance, REFUTED where the witness is beyond it, else UNKNOWN."""
        if self.bound <= tolerance:
            return Outcome.HOLDS
        return Outcome.REFUTED if self.attained > tolerance else Outcome.UNKNOWN


def relative_bound(setting: Setting) -> tuple[Fraction, Fraction]:
    """c and a with |G - mean| <= c mean |g_i| + a for all inputs of any size that overflow nowhere: KANI-GA-029.

    c is (n - 1) u where n is a power of two, n u where the quotients round, (n - 1) u (1 + 2 u) + 2 u for products with
    fl(1/n); a is what underflow costs. Gradients rounded to `inputs` first pay that as well. Raises ValueError for
    other orders than left to right, for a division afterwards, weights, and inputs wider than the buffer.
    """
    if setting.order != "sequential" or setting.scale not in ("divide", "multiply") or setting.weights:
        raise ValueError("the relative form is for equal weights, scaled before they are added from left to right")
    f, n = FORMATS[setting.buffer], setting.n
    exact = n & (n - 1) == 0
    own, more = (0, 0) if exact else (1, 0) if setting.scale == "divide" else (0, 2)
    lost = (n - 1 + own) * f.u
    low = Fraction(0) if n == 1 else f.tiny / 2
    c, a = lost * (1 + more * f.u) + more * f.u, n * low * (1 + lost)
    if setting.inputs is None:
        return c, a
    given = FORMATS[setting.inputs]
    if given.p > f.p or given.emin < f.emin:
        raise ValueError(f"{given.name} gradients are rounded again by a {f.name} buffer")
    return c + (1 + c) * given.u, a + (1 + c) * given.tiny / 2
