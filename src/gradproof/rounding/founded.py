"""Which step contracts a certificate rests on; none is used that is not proved.

An addition of two numbers of one format rests on the contracts of `add`; a product or quotient with a constant, and a
conversion, on those of `round`, because IEEE 754-2019 section 5.4.1 has them return the rounding of the exact result. A
quotient by a power of two is exact, or errs by underflow; any other one, and its sum with a number, rests on those of
`divide-add`. That an error just above a power of two is no more than the
distance to it follows from half an ulp and monotony: what is nearer lies on that power.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gradproof.rounding.certificate import Row


def contracts_of(rows: Sequence[Row]) -> list[str]:
    """Names of lemmas, sorted, that the reasons of these rows stand for."""
    found = set()
    for row in rows:
        signs = all(abs(c.numerator) == c.denominator == 1 for c, _ in row.terms)
        formats = tuple(str(rows[j].fmt) for _, j in row.terms) if len(row.terms) <= 2 else ()
        found.add((row.kind, str(row.fmt), row.slack > 0, signs, formats))
    return sorted({name for key in found for name in _contracts(*key)})


def _contracts(kind: str, fmt: str, error: bool, signs: bool, formats: tuple[str, ...]) -> list[str]:
    halves, added = ([f"{base}/{fmt}/half-ulp", f"{base}/{fmt}/grid"] for base in ("round", "add"))
    if kind == "round":
        return added if signs and formats == (fmt, fmt) else halves
    if kind in ("quotient", "joint", "pair"):
        return [*halves, *(added if kind != "quotient" else []), f"divide-add/{fmt}/{kind}"]
    if kind in ("fits", "shift"):
        return [f"round/{fmt}/exact", *([f"round/{fmt}/subnormal"] if error else [])]
    if kind in ("residual", "ordered"):
        return [f"add/{fmt}/error-representable", f"add/{fmt}/half-ulp"]
    return [f"convert/{formats[0]}-{fmt}/exact"] if kind == "widen" else []


@cache
def _required(names: tuple[str, ...]) -> None:
    from gradproof.rounding.lemmas import require

    require(names)


def require_contracts(rows: Sequence[Row]) -> list[str]:
    """The contracts of the rows, each proved by evidence that was checked now. Raises LemmaRefused where one is not."""
    names = contracts_of(rows)
    _required(tuple(names))
    return names
