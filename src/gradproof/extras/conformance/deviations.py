"""Names for the ways in which a kernel parts from the model.

An elementwise kernel is explained by the machine that returns its outputs, all of them: the claimed machine with one
habit changed, or, failing that, two. Reductions choose their own order, so they are asked questions instead, whose
answers do not depend on the order: does 1 + 2^-12 survive a product, does a one survive beside 2^j, does a subnormal
survive, does a sum that ends just above a midpoint round up. Source of the habits: NVIDIA, Floating Point and IEEE 754
for NVIDIA GPUs; Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7, 2021 (tensor cores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from gradproof.extras.conformance.machine import (
    Bits,
    Machine,
    Mask,
    Program,
    Values,
    decode,
    known,
    run,
)

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
