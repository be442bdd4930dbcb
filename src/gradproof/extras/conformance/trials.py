"""Rows whose claim is a bound: every trial is an exact error beside an exact bound.

A row's control is the same claim with a bound 32 times smaller: inputs that do not refute that one say nothing, and
the row is an ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from gradproof.extras.conformance.machine import Bits, Values, decode, encode, known
from gradproof.extras.conformance.report import (
    ERROR,
    HOLDS,
    REFUTED,
    Fact,
    Result,
    hexadecimal,
    ratio_of,
)

CONTROL = Fraction(1, 32)
SHOWN, EXACT = 8, 300


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured error and its bound, with the inputs that gave it; `cases` numbers were compared."""

    error: Fraction
    bound: Fraction
    inputs: tuple[str, ...]
    got: str
    want: str
    note: str
    cases: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What a row says besides its trials."""

    operator: str
    dtype: str
    device: str
    claim: str
    flags: Mapping[str, Any]


def judge(row: Row, trials: Iterable[Trial], names: Callable[[], tuple[str, ...]], shrink: Fraction) -> Result:
    """The outcome of a row: REFUTED by the first error above `shrink` times its bound, ERROR without any trial."""
    worst, off, cases, first = 0.0, 0, 0, None
    for t in trials:
        cases += t.cases
        ratio = ratio_of(t.error, t.bound * shrink)
        worst = max(worst, ratio)
        if ratio > 1:
            off += 1
            first = first or Fact(t.inputs, t.got, t.want, t.note)
    outcome, reason = (REFUTED, "") if off else (HOLDS, "")
    if not cases:
        outcome, reason = ERROR, "no trial was made"
    found = (row.operator, row.dtype, row.device, row.claim, outcome, cases, off, first)
    return Result(*found, names(), worst, row.flags, {}, reason)


def bounded(
    row: Row,
    trials: Callable[[], Iterable[Trial]],
    names: Callable[[], tuple[str, ...]] = tuple,
    facts: Mapping[str, Any] | None = None,
) -> Result:
    """A row with its control; never raises."""
    try:
        made = list(trials())
        result = judge(row, made, names, Fraction(1))
        control = judge(row, made, tuple, CONTROL)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as e:
        return _crashed(row, e)
    result = replace(result, facts=dict(facts or {}))
    if result.outcome == HOLDS and control.outcome != REFUTED:
        return replace(result, outcome=ERROR, reason="the inputs do not refute a bound 32 times smaller")
    return result


def exactly(row: Row, trials: Callable[[], Iterable[Trial]], control: Callable[[], Iterable[Trial]]) -> Result:
    """A row whose errors must all be zero, with a control that must not; never raises."""
    try:
        result = judge(row, trials(), tuple, Fraction(1))
        if result.outcome == HOLDS and judge(row, control(), tuple, Fraction(1)).outcome != REFUTED:
            return replace(result, outcome=ERROR, reason="the inputs do not tell this kernel from its control")
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as e:
        return _crashed(row, e)
    return replace(result, ratio=None)


def _crashed(row: Row, e: Exception) -> Result:
    reason = f"{type(e).__name__}: {e}"[:300]
    return Result(row.operator, row.dtype, row.device, row.claim, ERROR, flags=row.flags, reason=reason)


def shown(bits: Bits, name: str) -> tuple[str, ...]:
    """The first few bit patterns of an array, as text."""
    return tuple(hexadecimal(b, known(name).bits) for b in bits[:SHOWN])


def sample(kind: str, name: str, length: int, rng: np.random.Generator) -> Bits:
    """Numbers of a kind: uniform, positive, wide (many exponents), cancelling, ones, small (about subnormal).

    Raises KeyError for an unknown kind.
    """
    f = known(name)
    x = rng.uniform(-1, 1, length)
    if kind == "cancelling":
        x = np.ldexp(x, rng.integers(0, 8, length))
        half = length // 2
        x[half : 2 * half] = -x[:half] + np.ldexp(rng.uniform(-1, 1, half), 2 - f.p)
        x = rng.permutation(x)
    made: dict[str, Callable[[], Values]] = {
        "uniform": lambda: x,
        "positive": lambda: np.abs(x),
        "wide": lambda: np.ldexp(x, rng.integers(-14, 4, length)),
        "cancelling": lambda: x,
        "ones": lambda: np.ones(length),
        "small": lambda: np.ldexp(x, f.emin + 3),
    }
    return encode(made[kind](), name)


def value(bits: Bits, name: str) -> Fraction:
    """The exact value of one result. Raises ValueError for a NaN and OverflowError for an infinity."""
    return Fraction(float(decode(bits, name)[0]))


def each_element(
    operands: Sequence[Bits],
    got: Bits,
    want: Values,
    bound: Values,
    exact: Callable[..., Fraction],
    name: str,
    note: str,
) -> Iterator[Trial]:
    """Trials of an elementwise operator whose claim is a bound.

    `want`: the result over the reals, in float64, within 2^-12 of the bound. Every element is compared with it; those
    closest to the bound, and a few others, with `exact` of their operands as rationals.
    """
    width, numbers, results = known(name).bits, [decode(b, name) for b in operands], decode(got, name)
    error = np.abs(results - want)
    order = np.argsort(-(error / bound))
    every = np.flatnonzero(~(error <= bound * (1 + 2.0**-12)))
    for at in [*order[:EXACT], *range(0, len(got), max(1, len(got) // EXACT))]:
        error_at = abs(Fraction(float(results[at])) - exact(*(Fraction(float(n[at])) for n in numbers)))
        patterns = tuple(hexadecimal(b[at], width) for b in operands)
        yield Trial(
            error_at, Fraction(float(bound[at])), patterns, hexadecimal(got[at], width), f"{want[at]:.9g}", note
        )
    at = int(every[0]) if len(every) else int(order[0])
    patterns = tuple(hexadecimal(b[at], width) for b in operands)
    yield Trial(Fraction(len(every)), Fraction(0), patterns, hexadecimal(got[at], width), f"{want[at]:.9g}",
                f"{note}, every element, in float64", len(got))  # fmt: skip
