"""Which rounded operators a linear chain is made of: what the kernels must do for its bound to speak of them.

A node says what was computed by its form. A form of one term with a coefficient is a quotient where the coefficient is
1/c for a number c of the format, else a product; x / 2^k and x 2^-k are the same number and are called a quotient.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from gradproof.arith.formats import FORMATS
from gradproof.arith.linear import Linear

SUMS = ("residual", "ordered")
ROUNDED = ("round", "fits", "shift", *SUMS)


def operators_of(rows: Iterable[Linear]) -> set[str]:
    """Operators with their formats: "add fp32", "multiply fp32", "divide fp32", "convert fp16"; exact ones are none."""
    found = (_operator(row) for row in rows if row.kind in ROUNDED and row.fmt is not None)
    return {f"{name} {fmt}" for name, fmt in found if name}


def _operator(row: Linear) -> tuple[str, str]:
    fmt = str(row.fmt)
    if row.kind in SUMS or len(row.terms) > 1:
        return "add", fmt
    [(c, operand)] = row.terms
    if abs(c) == 1:
        return ("" if operand.fmt == fmt else "convert"), fmt
    quotient = abs(c) < 1 and FORMATS[fmt].representable(Fraction(1) / c)
    return ("divide" if quotient else "multiply"), fmt
