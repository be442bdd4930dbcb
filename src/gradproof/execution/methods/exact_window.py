"""Exact judgement of one window: what was applied against the exact mean of the run's own gradients.

Write x_i for the gradient of micro-batch i as it arrived at the leaves, f_i for the factor that the subject put on
its loss (the gradient that arrived at the loss), and w_i for the right weight: 1/m in a window of m equal
micro-batches, count_i / sum of counts otherwise. The micro-batch's own gradient is x_i / f_i, so the right result is
sum_i w_i x_i / f_i = sum_i x_i / r_i with r_i = f_i / w_i. A loss scale makes every r_i that power of two; a subject
that divides by m at the end has r_i = m; one that forgets to divide has it too, and is caught.

Where every r_i is one power of two r, sum_i x_i - r G is rounded correctly by math.fsum and the addition's proven
bound applies as it is. Otherwise (`late`) the subject owes up to two more roundings a window (its late division and
the loss scale), and its sum was rounded in binades other than ours, at most twice as wide. An r_i within 2^-20 of a
power of two counts as that power: the rounding of the weight itself to fp32 belongs to g_i, not to the accumulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

from gradproof.arith.bounds import accumulation_bound
from gradproof.arith.formats import format_named
from gradproof.execution.methods.property import Case, Cell, Observed

BUFFER = "fp32"
SNAP = 2.0**-20
SIGNIFICAND = 16


@dataclass(frozen=True, slots=True)
class WindowError:
    """How far one applied gradient is from the exact mean.

    `element` is the one whose `error` is largest in proportion to its own `bound`, and `ratio` is that proportion;
    None: an error where the bound is zero.
    """

    linf: float
    l2: float
    element: int
    error: float
    bound: float
    ratio: float | None
    mean: tuple[float, ...]
    bounds: tuple[float, ...]
    late: bool

    @property
    def within(self) -> bool:
        """Whether no element errs by more than its proven bound."""
        return self.ratio is not None and self.ratio <= 1


@lru_cache(maxsize=16384)
def _bound(n: int, significand: int, exponent: int) -> Fraction:
    return accumulation_bound(BUFFER, n, n * Fraction(significand, SIGNIFICAND) * Fraction(2) ** exponent)


def element_bound(n: int, largest: float, late: bool, tiny: Fraction) -> Fraction:
    """Proven bound for n terms |x_i| <= largest. The magnitude is rounded up to 4 significant bits, to be cached."""
    if largest == 0:
        return Fraction(0)
    mantissa, exponent = math.frexp(largest)
    bound = _bound(n, math.ceil(mantissa * SIGNIFICAND), exponent)
    if late:
        bound = 2 * bound + 2 * format_named(BUFFER).u * n * Fraction(largest)
    return bound + tiny


def power_of_two(ratios: Sequence[float]) -> float | None:
    """The one power of two that every ratio is within SNAP of, or None."""
    if not all(math.isfinite(r) and r > 0 for r in ratios):
        return None
    powers = {2.0 ** round(math.log2(r)) for r in ratios}
    power = powers.pop()
    return power if not powers and all(abs(r / power - 1) <= SNAP for r in ratios) else None


def judge_window(
    terms: Sequence[Sequence[float]], ratios: Sequence[float], applied: Sequence[float], ftz: bool = False
) -> WindowError:
    """Compare the applied gradient with sum_i terms_i / ratios_i, element by element.

    `ftz`: the device may flush subnormal results to zero. Raises ValueError for a value that is not finite and
    for a ratio that is zero.
    """
    if not all(math.isfinite(v) for row in (*terms, applied) for v in row):
        raise ValueError("a gradient is not finite")
    if not all(math.isfinite(r) and r != 0 for r in ratios):
        raise ValueError("a micro-batch's loss arrived with factor zero or not finite")
    power = power_of_two(ratios)
    late, r = power is None, power or 1.0
    scaled = [[v / s for v in row] for row, s in zip(terms, ratios, strict=True)]
    rows: Sequence[Sequence[float]] = scaled if late else terms
    f = format_named(BUFFER)
    under = Fraction(0) if r == 1 and not late else (Fraction(2) ** f.emin if ftz else f.tiny)
    errors: list[float] = []
    bounds: list[float] = []
    mean: list[float] = []
    worst, at, loosest = -1.0, 0, Fraction(0)
    for e, (column, got) in enumerate(zip(zip(*rows, strict=True), applied, strict=True)):
        exact, peak = math.fsum(column), max(map(abs, column))
        error = abs(math.fsum((*column, -r * got)))
        bound = element_bound(len(column), peak, late, under * Fraction(r))
        ratio = 0.0 if error == 0 else math.inf if bound == 0 else error / float(bound)
        errors.append(error / r)
        mean.append(exact / r)
        bounds.append(float(bound) / r)
        if ratio > worst:
            worst, at, loosest = ratio, e, bound
    if worst > 0.99 and not late and math.isfinite(worst):
        exactly = abs(sum((Fraction(row[at]) for row in rows), Fraction(0)) - Fraction(r) * Fraction(applied[at]))
        worst = float(exactly / loosest) if exactly <= loosest else max(float(exactly / loosest), math.nextafter(1, 2))
    l2 = math.sqrt(math.fsum(e * e for e in errors))
    bound_at = float(loosest / Fraction(r))
    ratio_or_none = worst if math.isfinite(worst) else None
    return WindowError(max(errors), l2, at, errors[at], bound_at, ratio_or_none, tuple(mean), tuple(bounds), late)


# -- What a property's walk over its grid gave: cells judged, covers reached, and the worst measured row of each kind.
@dataclass
class WindowTally:
    """What the reference's walk over the grid gave."""

    judged: dict[str, int] = field(default_factory=dict)
    covers: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    runs: int = 0

    def add(self, case: Case, seen: Observed) -> None:
        """Count one passed case; keep the worst row of each kind."""
        self.runs += 1
        cell = str(Cell(case.net, case.n))
        self.judged[cell] = self.judged.get(cell, 0) + seen.judged
        self.notes |= seen.notes
        optimizer = {f"{case.optimizer} {case.form}"} if seen.judged else set()
        for name in seen.covers | optimizer:
            self.covers.setdefault(name, case.to_json())
        for row in seen.rows:
            key = (row["column"], row["net"], row["n"], row["note"])
            held = self.rows.get(key)
            if held is None or _badness(row) > _badness(held):
                self.rows[key] = {**row, "case": case.to_json()}


def _badness(row: Mapping[str, Any]) -> tuple[float, float]:
    return (row["ratio"] if row["ratio"] is not None else 0.0, row["measured"])
