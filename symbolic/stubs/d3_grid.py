"""Degree 3: half an ulp, and monotone against the ends of the range (contracts S1 and S2).

Because rounding is monotone, lo <= z <= hi gives fl(lo) <= r <= fl(hi): partial sums do not inflate, so the bounds
of a chain of n additions stay at i/n instead of growing with every step.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from symbolic.stubs import d2_half_ulp


def contract(z: Any, r: Any, site: Any) -> list[Any]:
    """Half an ulp, inside the rounded ends."""
    lo, hi = enclose(site)
    return [*d2_half_ulp.contract(z, r, site), r >= lo, r <= hi]


def enclose(site: Any) -> tuple[Fraction, Fraction]:
    """The rounded ends of the exact range."""
    return site.fmt.round(site.lo), site.fmt.round(site.hi)
