"""Degree 4: a function, and a monotone one: S1, S2, and z1 <= z2 gives fl(z1) <= fl(z2) for all roundings.

Equal exact results have equal roundings, so two computations of one value cannot differ.
"""

from __future__ import annotations

from typing import Any

from symbolic.stubs.d3_grid import contract, enclose

__all__ = ["contract", "enclose", "relate"]


def relate(z1: Any, r1: Any, z2: Any, r2: Any) -> list[Any]:
    """Monotone in both directions, hence functional."""
    return [(z1 > z2) | (r1 <= r2), (z2 > z1) | (r2 <= r1)]
