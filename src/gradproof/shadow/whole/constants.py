"""Constants that stand for a rational: 1/3 typed into a loop is a float near it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

NEAR = {
    "float64": ((Fraction(1, 2**52), 2**16),),
    "float32": ((Fraction(1, 2**24), 4096), (Fraction(3, 2**24), 1024)),
}
"""Greatest relative distance, and greatest denominator, of a snapped constant, nearest first.

float64: 2^-52, two roundings (`1 / N / T` has two). float32: 2^-24, one rounding, else three (autograd divides by the
window's tokens and multiplies by the micro-batch's). Two rationals of these denominators below 1 lie farther apart
than that, or are equal.
"""

RECIPROCAL = 2**18
"""Greatest denominator of a snapped 1/k in float32: 1/k and 1/(k+1) are 2^-18 apart, far more than three roundings."""


def simplest(low: Fraction, high: Fraction) -> Fraction:
    """The rational of least denominator in [low, high], 0 < low <= high (Stern-Brocot, by continued fractions)."""
    whole = math.ceil(low)
    if whole <= high:
        return Fraction(whole)
    floor = whole - 1
    return floor + 1 / simplest(1 / (high - floor), 1 / (low - floor))


def snapped(x: float) -> Fraction:
    """The rational that a finite float stands for: itself when nothing simpler is near enough."""
    exact = Fraction(x)
    if exact.denominator <= NEAR["float32"][0][1]:
        return exact
    kinds = ["float32", "float64"] if _single(x) else ["float64"]
    for kind in kinds:
        for reach, limit in NEAR[kind]:
            size = abs(exact)
            found = simplest(size * (1 - reach), size * (1 + reach))
            if found.denominator <= limit or (kind == "float32" and _reciprocal(found)):
                return found if exact > 0 else -found
    return exact


def _reciprocal(x: Fraction) -> bool:
    return x.numerator == 1 and x.denominator <= RECIPROCAL


def _single(x: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(x)) == x


@dataclass(slots=True)
class Snap:
    """Snapping, and what it changed: the float and the rational it was read as."""

    changed: dict[float, Fraction] = field(default_factory=dict)

    def read(self, x: float) -> Fraction:
        """The rational for a finite constant."""
        found = snapped(x)
        if found != Fraction(x):
            self.changed[x] = found
        return found
