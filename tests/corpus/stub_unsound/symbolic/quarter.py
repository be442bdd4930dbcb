"""An unsound rounding stub: it promises a quarter of an ulp."""

from __future__ import annotations

from fractions import Fraction
from typing import Any


def contract(z: Any, r: Any, site: Any) -> list[Any]:
    """|r - z| <= a quarter of an ulp, which no rounding keeps."""
    return [r - z <= site.half_ulp / 2, z - r <= site.half_ulp / 2]


def enclose(site: Any) -> tuple[Fraction, Fraction]:
    """The exact range, widened by the error."""
    return site.lo - site.half_ulp, site.hi + site.half_ulp
