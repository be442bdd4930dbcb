"""Which rounded operators a linear chain is made of: what the kernels must do for its bound to speak of them.

A node says what was computed by its form. A form of one term with a coefficient is a quotient where the coefficient is
1/c for a number c of the format, else a product; x / 2^k and x 2^-k are the same number and are called a quotient.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gradproof.arith.formats import FORMATS
from gradproof.rounding.certificate import Row

SUMS = ("residual", "ordered")
QUOTIENTS = ("quotient", "joint", "pair")
ROUNDED = ("round", "fits", "shift", *SUMS, *QUOTIENTS)


def operators_of(rows: Sequence[Row]) -> set[str]:
    """Operators with their formats: "add fp32", "multiply fp32", "divide fp32", "convert fp16"; exact ones are none."""
    return {f"{name} {row.fmt}" for row in rows if row.kind in ROUNDED and row.fmt for name in _operators(row, rows)}


def _operators(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    if row.kind in QUOTIENTS:
        return ("divide",) if row.kind == "quotient" else ("divide", "add")
    if row.kind in SUMS or len(row.terms) > 1:
        return ("add",)
    [(c, j)] = row.terms
    if abs(c) == 1:
        return () if rows[j].fmt == row.fmt else ("convert",)
    quotient = abs(c) < 1 and FORMATS[str(row.fmt)].representable(Fraction(1) / c)
    return ("divide",) if quotient else ("multiply",)
