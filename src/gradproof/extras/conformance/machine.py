"""Correct rounding in vectors, machines that differ in one habit, and names for the ways in which a kernel parts.

Values are float64 arrays that hold numbers of a format of at most 24 significand bits; every such number is a float64.
`round_to` scales by powers of two, so that all that it computes with are normal float64 numbers, which no flush mode of
the CPU changes. Each operation of a machine rounds the exact result once:

- a product of two 24-bit significands has 48 bits, so float64 holds it exactly;
- a sum may not fit: TwoSum (Knuth) gives its error, and a sum rounded to odd rounds on correctly to p <= 51 bits, into
  the subnormal range too (Boldo and Melquiond, IEEE Trans. Comput. 57(4), 2008). a * b + c is such a sum;
- a quotient a/b that is not a midpoint m of the target (p + 1 bits) differs from it by |a - m b|/b, relatively at least
  2^-(p + 25) >= 2^-49, and an exact one is a float64; so the float64 quotient never lands on a wrong midpoint. The same
  holds for square roots, which are never midpoints (Figueroa, SIGNUM Newsletter 30(3), 1995: 53 >= 2 p + 2). Fewer bits
  in the subnormal range only widen the gap.

An elementwise kernel is explained by the machine that returns its outputs, all of them: the claimed machine with one
habit changed, or, failing that, two. Reductions choose their own order, so they are asked questions instead, whose
answers do not depend on the order: does 1 + 2^-12 survive a product, does a one survive beside 2^j, does a subnormal
survive, does a sum that ends just above a midpoint round up. Source of the habits: NVIDIA, Floating Point and IEEE 754
for NVIDIA GPUs; Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021 (tensor cores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from gradproof.arith.formats import FORMATS, Format

Bits = npt.NDArray[np.uint32]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

TF32 = Format("tf32", 19, 11, -126, 127)
KNOWN = {name: f for name, f in FORMATS.items() if f.p <= 24} | {"tf32": TF32}


def known(name: str) -> Format:
    """A format that this module can round to: fp16, bf16, fp32, tf32. Raises ValueError for another name."""
    if name not in KNOWN:
        raise ValueError(f"no vectorised rounding to {name!r}; known: {', '.join(KNOWN)}")
    return KNOWN[name]


def decode(bits: Bits, name: str) -> Values:
    """The values of bit patterns of a format; exact, subnormals and the sign of zero included."""
    f = known(name)
    wide = bits.astype(np.int64)
    field, fraction = (wide >> (f.p - 1)) & (2 ** (f.bits - f.p) - 1), wide & (2 ** (f.p - 1) - 1)
    hidden = np.where(field > 0, fraction + 2 ** (f.p - 1), fraction)
    size = np.ldexp(hidden.astype(np.float64), np.maximum(field, 1) + f.emin - f.p)
    size = np.where(field == 2 ** (f.bits - f.p) - 1, np.where(fraction > 0, np.nan, np.inf), size)
    signed: Values = np.copysign(size, np.where(wide >> (f.bits - 1), -1.0, 1.0))
    return signed


def encode(x: Values, name: str, toward_zero: bool = False) -> Bits:
    """Bit patterns of x rounded to a format, to nearest even or toward zero; every NaN becomes one pattern.

    A pattern without its sign counts the numbers of the format from zero, so what is rounded up to the next power of
    two, or to infinity, has the pattern that follows.
    """
    f = known(name)
    infinity = 2 ** (f.bits - 1) - 2 ** (f.p - 1)
    size = np.where(np.isfinite(x), np.abs(x), 0.0)
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, f.emin), f.emin).astype(np.int64)
    units = np.ldexp(size, f.p - 1 - exponent)
    count = (np.trunc(units) if toward_zero else np.rint(units)).astype(np.int64) + ((exponent - f.emin) << (f.p - 1))
    count = np.minimum(count, infinity - 1 if toward_zero else infinity)
    count = np.where(np.isinf(x), infinity, count) | (np.signbit(x).astype(np.int64) << (f.bits - 1))
    result: Bits = np.where(np.isnan(x), infinity + 2 ** (f.p - 2), count).astype(np.uint32)
    return result


def round_to(x: Values, name: str, toward_zero: bool = False) -> Values:
    """x rounded to a format. A residue that float64 lost must have been folded in by `odd_sum`."""
    return decode(encode(x, name, toward_zero), name)


def odd_sum(x: Values, y: Values) -> Values:
    """x + y rounded to odd: exact where float64 holds the sum, else the neighbour with an odd significand."""
    with np.errstate(all="ignore"):
        total = x + y
        back = total - x
        error = (x - (total - back)) + (y - back)
    inexact = np.isfinite(total) & (error != 0)
    raw = np.ascontiguousarray(total).view(np.uint64)
    even = (raw & np.uint64(1)) == 0
    away = (error > 0) == (total > 0)
    moved = np.where(away, raw + np.uint64(1), raw - np.uint64(1)).view(np.float64)
    result: Values = np.where(inexact & even, moved, total)
    return result


def flush(x: Values, name: str) -> Values:
    """Subnormal numbers of a format become zeros of their sign."""
    small = np.abs(x) < 2.0 ** known(name).emin
    result: Values = np.where(small, np.copysign(0.0, x), x)
    return result


@dataclass(frozen=True, slots=True)
class Machine:
    """How a kernel computes: its storage format, the format of each operation, and its habits.

    `work`: format each operation rounds to before the result is rounded to `fmt`. `scalar`: format to which a Python
    scalar is rounded on entry. `contract`: a * b + c is rounded once. `factors`: format to which the factors of
    products are rounded first. `reciprocal`: x / scalar is x * fl(1 / scalar). `source`: format of the operands, where
    it is not `fmt`.
    """

    fmt: str
    work: str
    scalar: str
    contract: bool = False
    flush_inputs: bool = False
    flush_results: bool = False
    factors: str = ""
    reciprocal: bool = False
    toward_zero: bool = False
    source: str = ""

    def enter(self, bits: Bits) -> Values:
        """The values of an operand as the kernel sees them."""
        x = decode(bits, self.source or self.fmt)
        return flush(x, self.source or self.fmt) if self.flush_inputs else x

    def constant(self, s: float) -> Values:
        """A Python scalar as the kernel sees it."""
        return round_to(np.array([s], dtype=np.float64), self.scalar)

    def settle(self, x: Values, name: str = "") -> Values:
        """x, exact or rounded to odd, rounded to the work format (or to `name`)."""
        to = name or self.work
        rounded = round_to(x, to, self.toward_zero)
        if not self.flush_results:
            return rounded
        # A result is tiny after rounding with an unbounded exponent (IEEE 754-2019, 7.5; so x86 flushes).
        f = known(to)
        limit = 2.0**f.emin - (0.0 if self.toward_zero else 2.0 ** (f.emin - f.p - 1))
        flushed: Values = np.where(np.abs(x) < limit, np.copysign(0.0, x), rounded)
        return flushed

    def add(self, x: Values, y: Values) -> Values:
        """fl(x + y)."""
        return self.settle(odd_sum(x, y))

    def product(self, x: Values, y: Values) -> Values:
        """x * y without rounding, of the factors as the kernel sees them."""
        if self.factors:
            x, y = round_to(x, self.factors), round_to(y, self.factors)
        with np.errstate(all="ignore"):
            exact: Values = x * y
        return exact

    def mul(self, x: Values, y: Values) -> Values:
        """fl(x * y)."""
        return self.settle(self.product(x, y))

    def muladd(self, x: Values, y: Values, z: Values) -> Values:
        """x * y + z, in one rounding or in two."""
        exact = self.product(x, y)
        return self.settle(odd_sum(exact if self.contract else self.settle(exact), z))

    def div(self, x: Values, y: Values) -> Values:
        """fl(x / y)."""
        with np.errstate(all="ignore"):
            quotient: Values = x / y
        return self.settle(quotient)

    def div_scalar(self, x: Values, s: float) -> Values:
        """x / s, by a division or through the reciprocal."""
        c = self.constant(s)
        return self.mul(x, self.div(np.ones(1), c)) if self.reciprocal else self.div(x, c)

    def sqrt(self, x: Values) -> Values:
        """fl(sqrt(x))."""
        with np.errstate(all="ignore"):
            root: Values = np.sqrt(x)
        return self.settle(root)

    def leave(self, x: Values) -> Bits:
        """Bit patterns of a result, rounded once more if the work format is not the storage format."""
        return encode(self.settle(x, self.fmt), self.fmt)


Program = Callable[[Machine, Sequence[Values], float], Values]


def run(program: Program, machine: Machine, operands: Sequence[Bits], scalar: float) -> Bits:
    """Bit patterns that a machine returns for a program on bit patterns of its operands' format."""
    entered = [machine.enter(b) for b in operands]
    return machine.leave(program(machine, entered, scalar))


def exact_dot(x: Bits, y: Bits, name: str) -> Fraction:
    """sum x_i y_i as a rational. Raises ValueError for infinities, NaN, or more than 2^14 terms."""
    if len(x) > 2**14:
        raise ValueError("an exact dot product is for at most 2^14 terms")
    f = known(name)
    (sx, ex), (sy, ey) = _integers(x, f), _integers(y, f)
    return _gather(sx * sy, ex + ey)


def exact_sum(x: Bits, name: str, magnitudes: bool = False) -> Fraction:
    """sum x_i, or sum |x_i|, as a rational. Raises ValueError for infinities and NaN."""
    significands, exponents = _integers(x, known(name))
    return _gather(np.abs(significands) if magnitudes else significands, exponents)


def _integers(x: Bits, f: Format) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Significands and exponents of units with x = s 2^e."""
    mag = x.astype(np.int64) & (2 ** (f.bits - 1) - 1)
    field = mag >> (f.p - 1)
    if np.any(field == 2 ** (f.bits - f.p) - 1):
        raise ValueError("an infinity or a NaN has no exact value")
    fraction = mag & (2 ** (f.p - 1) - 1)
    significand = np.where(field > 0, fraction + 2 ** (f.p - 1), fraction)
    negative = (x.astype(np.int64) >> (f.bits - 1)) & 1
    return np.where(negative == 1, -significand, significand), np.maximum(field, 1) - f.emax - f.p + 1


def _gather(significands: Any, exponents: Any) -> Fraction:
    terms = (int(significands[exponents == e].sum()) * Fraction(2) ** int(e) for e in np.unique(exponents))
    return sum(terms, Fraction(0))


# -- Names for the ways in which a kernel parts from the model.
SAMPLE = 2000
FLUSHES = "FTZ: subnormal inputs or results are flushed to zero"
UNEXPLAINED = "unexplained: no machine with one or two changed habits returns these outputs"

Dot = Callable[[Values, Values], Values]


def disagree(got: Bits, want: Bits, name: str) -> Mask:
    """Where two arrays of bit patterns differ; every NaN is the same NaN, the zeros are two."""
    different: Mask = got != want
    if different.any():
        different &= ~(np.isnan(decode(got, name)) & np.isnan(decode(want, name)))
    return different


@dataclass(frozen=True, slots=True)
class _Counting(Machine):
    settled: list[str] = field(default_factory=list)

    def settle(self, x: Values, name: str = "") -> Values:
        self.settled.append(name or self.work)
        return Machine.settle(self, x, name)


def roundings(program: Program, base: Machine, arity: int, scalar: float) -> int:
    """How often a program rounds on a machine before the result is stored."""
    counting = _Counting(**{name: getattr(base, name) for name in Machine.__dataclass_fields__})
    program(counting, [np.ones(1)] * arity, scalar)
    return len(counting.settled)


def habits(base: Machine, steps: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Names of changed habits, with the change to the machine, most specific first."""
    yield "FTZ: subnormal results are flushed to zero", {"flush_results": True}
    yield "DAZ: subnormal inputs are read as zero", {"flush_inputs": True}
    yield "FTZ and DAZ: subnormal inputs and results are flushed", {"flush_inputs": True, "flush_results": True}
    if base.contract:
        yield "no FMA contraction: the product is rounded before the sum", {"contract": False}
    else:
        yield "FMA contraction: a*b + c in one rounding", {"contract": True}
    yield "TF32: factors are rounded to 11 bits", {"factors": "tf32"}
    if base.work != "fp32" and steps <= 1:
        yield f"double rounding: to fp32, then to {base.fmt}", {"work": "fp32"}
    elif base.work != "fp32":
        yield "higher precision intermediate: fp32", {"work": "fp32"}
    if base.work != base.fmt:
        yield f"reduced-precision intermediate: {base.fmt}", {"work": base.fmt}
    if base.scalar != base.fmt:
        yield f"the scalar is rounded to {base.fmt} first", {"scalar": base.fmt}
    elif base.scalar != "fp32":
        yield "the scalar keeps fp32", {"scalar": "fp32"}
    if base.reciprocal:
        yield "true division by the scalar", {"reciprocal": False}
    else:
        yield "reciprocal: multiplies by fl(1/scalar)", {"reciprocal": True}
    yield "truncation: rounds toward zero", {"toward_zero": True}


def explain(
    program: Program, base: Machine, operands: Sequence[Bits], got: Bits, scalar: float = 1.0
) -> tuple[str, ...]:
    """Names of the habits that turn `base` into a machine with exactly these outputs; several if several do.

    Empty where `base` itself explains the outputs; `UNEXPLAINED` where nothing does.
    """
    off = disagree(got, run(program, base, operands, scalar), base.fmt)
    if not off.any():
        return ()
    chosen = np.concatenate([np.flatnonzero(off)[:SAMPLE], np.flatnonzero(~off)[:SAMPLE]])
    seen, outputs = [b[chosen] for b in operands], got[chosen]
    known_habits = list(habits(base, roundings(program, base, len(operands), scalar)))
    for size in (1, 2):
        found = []
        for group in combinations(known_habits, size):
            change: dict[str, object] = {}
            for _, part in group:
                change |= part
            machine = replace(base, **change)  # type: ignore[arg-type]
            if not disagree(outputs, run(program, machine, seen, scalar), base.fmt).any():
                found.append(" and ".join(name for name, _ in group))
        if found:
            return tuple(found)
    return (UNEXPLAINED,)


@dataclass(frozen=True, slots=True)
class Probed:
    """What a dot product does with designed inputs: bits its factors and its accumulator keep, and its habits.

    `asked` is the largest precision of the accumulator that the inputs could show.
    """

    factor_bits: int
    accumulator_bits: int
    asked: int
    flushes: bool
    truncates: bool

    def names(self, storage: str) -> tuple[str, ...]:
        """The habits by name, for operands stored in a format."""
        found = []
        if self.factor_bits < known(storage).p:
            cut = {11: "TF32: ", 8: "bf16 products: "}.get(self.factor_bits, "cut products: ")
            found.append(f"{cut}factors are rounded to {self.factor_bits} bits")
        if self.accumulator_bits < min(24, self.asked):
            found.append(f"reduced-precision accumulation: partial sums keep {self.accumulator_bits} bits")
        elif self.accumulator_bits > 24:
            found.append(f"higher precision intermediate: partial sums keep {self.accumulator_bits} bits or more")
        if self.flushes:
            found.append(FLUSHES)
        if self.truncates and self.accumulator_bits >= 24:
            found.append("truncation: the accumulator rounds toward zero")
        return tuple(found)


def probe(dot: Dot, storage: str, length: int = 64, factors: bool = True) -> Probed:
    """Ask a dot product of vectors of `storage` numbers what it keeps.

    `dot` takes two arrays of shape (rows, length) and returns one number a row, in the storage format; every right
    answer is representable there. `factors`: False for a sum, whose second argument is all ones.
    """
    keeps, asked = _accumulator_bits(dot, storage, length, factors)
    return Probed(_factor_bits(dot, storage, length), keeps, asked, *_habits(dot, storage, length, factors))


def _factor_bits(dot: Dot, storage: str, length: int) -> int:
    p = known(storage).p
    x, y = np.zeros((p, length)), np.ones((p, length))
    for kept in range(1, p + 1):
        x[kept - 1, 0] = 1 + 2.0 ** (1 - kept)
    right = dot(x, y) == x[:, 0]
    return p if right.all() else int(np.argmin(right))


def _accumulator_bits(dot: Dot, storage: str, length: int, factors: bool) -> tuple[int, int]:
    """The largest j + 1 such that a one beside 2^j and -2^j is counted wherever the three stand, and the largest asked.

    The large terms are products of two factors, so that they may exceed what the storage format holds exactly.
    """
    most = min(60, 2 * known(storage).emax - 2 if factors else known(storage).emax)
    places = [(0, length - 1), (0, length // 2), (length // 3, length - 2), (1, 2)]
    spread = set(range(0, length, max(1, length // 32)))
    where = [
        (a, b, i)
        for a, b in places
        for i in sorted(spread | {a - 1, a + 1, b - 1, b + 1})
        if 0 <= i < length and i not in (a, b)
    ]
    rows = np.arange(len(where))
    first, second, one = (np.array(column) for column in zip(*where, strict=True))
    for j in range(1, most + 1):
        x, y = np.zeros((len(where), length)), np.ones((len(where), length))
        left = j // 2 if factors else j
        x[rows, one], x[rows, first], x[rows, second] = 1.0, 2.0**left, -(2.0**left)
        y[rows, first] = y[rows, second] = 2.0 ** (j - left)
        if not np.all(dot(x, y) == 1.0):
            return j, most + 1
    return most + 1, most + 1


def _habits(dot: Dot, storage: str, length: int, factors: bool) -> tuple[bool, bool]:
    """Whether subnormals are flushed, and whether 2^12 + (3/4) 2^-11, above a midpoint of 24 bits, rounds down."""
    f = known(storage)
    tiny, one = np.zeros((1, length)), np.ones((1, length))
    tiny[0, 0] = 2.0 ** (f.emin - f.p + 1)
    flushes = dot(tiny, one)[0] != tiny[0, 0]
    x, y = np.zeros((1, length)), np.ones((1, length))
    x[0, :3] = 4096.0, 2.0**-6, -4096.0
    y[0, 1] = 0.75 * 2.0**-5
    if not factors:
        x, y = x * y, np.ones((1, length))
    return bool(flushes), bool(dot(x, y)[0] == 0.0)
