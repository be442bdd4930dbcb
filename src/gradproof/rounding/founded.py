"""Which step contracts a certificate rests on; none is used that is not proved.

An addition of two numbers of one format rests on the contracts of `add`; a product or quotient with a constant, and a
conversion, on those of `round`, because IEEE 754-2019 section 5.4.1 has them return the rounding of the exact result. A
quotient by a power of two is exact, or errs by underflow. That an error just above a power of two is no more than the
distance to it follows from half an ulp and monotony: what is nearer lies on that power.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from gradproof.arith.linear import Linear


def contracts_of(rows: Iterable[Linear]) -> list[str]:
    """Names of lemmas, sorted, that the reasons of these rows stand for."""
    found: set[str] = set()
    for row in rows:
        found |= {f"{base}/{form}" for base, form in _contracts(row)}
    return sorted(found)


def _contracts(row: Linear) -> list[tuple[str, str]]:
    fmt = str(row.fmt)
    if row.kind == "round":
        added = len(row.terms) == 2 and all(abs(c) == 1 and n.fmt == row.fmt for c, n in row.terms)
        base = f"{'add' if added else 'round'}/{fmt}"
        return [(base, "half-ulp"), (base, "grid")]
    if row.kind in ("fits", "shift"):
        return [(f"round/{fmt}", "exact"), *([(f"round/{fmt}", "subnormal")] if row.error else [])]
    if row.kind in ("residual", "ordered"):
        return [(f"add/{fmt}", "error-representable"), (f"add/{fmt}", "half-ulp")]
    if row.kind == "widen":
        return [(f"convert/{row.terms[0][1].fmt}-{fmt}", "exact")]
    return []


@cache
def _required(names: tuple[str, ...]) -> None:
    from gradproof.rounding.lemmas import require

    require(names)


def require_contracts(rows: Iterable[Linear]) -> list[str]:
    """The contracts of the rows, each proved by evidence that was checked now. Raises LemmaRefused where one is not."""
    names = contracts_of(rows)
    _required(tuple(names))
    return names
