"""Degree 2: a rounding errs by at most half an ulp of the binade below the largest exact result (contract S1).

The constant comes from an interval pass, so the condition is linear; it is never a free factor (1 + d). Source:
Muller et al., Handbook of Floating-Point Arithmetic, section 2.3.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any


def contract(z: Any, r: Any, site: Any) -> list[Any]:
    """|r - z| <= half an ulp, as two linear conditions."""
    return [r - z <= site.half_ulp, z - r <= site.half_ulp]


def enclose(site: Any) -> tuple[Fraction, Fraction]:
    """The exact range, widened by the error."""
    return site.lo - site.half_ulp, site.hi + site.half_ulp
