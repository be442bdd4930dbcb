"""A sound rounding stub: an error of at most half an ulp."""

from __future__ import annotations

from fractions import Fraction
from typing import Any


def contract(z: Any, r: Any, site: Any) -> list[Any]:
    """|r - z| <= half an ulp."""
    return [r - z <= site.half_ulp, z - r <= site.half_ulp]


def enclose(site: Any) -> tuple[Fraction, Fraction]:
    """The exact range, widened by the error."""
    return site.lo - site.half_ulp, site.hi + site.half_ulp
