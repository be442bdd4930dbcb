"""Certificates: the rows of a straight-line program on linear floats, and the multipliers that prove its bound.

The multipliers are the derivatives of the result in the errors, one reverse pass (Linnainmaa 1976); by linear
programming duality no multipliers prove a smaller bound from the same rows, where every input cancels. The numbers
are exact; `farkas.check` validates them without this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from gradproof.arith.bounds import BITS, SHORT, rational, rounding, short, units
from gradproof.arith.formats import FORMATS
from gradproof.arith.linear import Linear, joined, times
from gradproof.core.check import digest_of

VERSION = 2
ZERO, ONE = Fraction(0), Fraction(1)


class LinearRow(NamedTuple):
    """A row: as a node of linear floats, its terms by place; `top` and `slack` are units."""

    kind: str
    fmt: str | None
    terms: tuple[tuple[Fraction, int], ...]
    top: int
    slack: int
    name: str
    of_error: bool


@dataclass(frozen=True)
class Certificate:
    """Rows in the order of the program, one multiplier each, and the bound on |result|, the last row.

    `case`: the bound is for the case that the exact result of that row is at most so many units.
    """

    rows: tuple[LinearRow, ...]
    multipliers: tuple[Fraction, ...]
    bound: Fraction
    case: tuple[int, int] | None = None

    @cached_property
    def _text(self) -> dict[str, Any]:
        drop = min(((z & -z).bit_length() for r in self.rows for z in (r.top, r.slack) if z), default=BITS) - 1
        finest = max((FORMATS[name].p - FORMATS[name].emin for name in {r.fmt for r in self.rows} if name), default=0)
        drop = min(drop, BITS - finest - SHORT - 10)
        case = {} if self.case is None else {"case": {"row": self.case[0], "edge": f"{self.case[1] >> drop:x}"}}
        known: dict[int, str] = {}

        def word(c: Fraction) -> str:
            return known.get(id(c)) or known.setdefault(id(c), str(c))

        rows = [
            [r.kind, r.fmt or "", [[word(c), j] for c, j in r.terms], f"{r.top >> drop:x}", f"{r.slack >> drop:x}"]
            for r in self.rows
        ]
        held = {"version": VERSION, "unit": BITS - drop, "bound": str(self.bound), "rows": rows, **case}
        return {**held, "multipliers": [word(m) for m in self.multipliers]}

    def text(self) -> dict[str, Any]:
        """As JSON values, unit u: a row is kind, format, terms (coefficient, row), reach and error in 2^-u, in hex."""
        return self._text

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_of(self.text())


def rows_of(result: Linear) -> tuple[LinearRow, ...]:
    """Every node that the result rests on, operands first; sums of quotients are joined."""
    place: dict[int, int] = {}
    made: list[LinearRow] = []
    stack: list[tuple[Linear, Any]] = [(result, None)]
    while stack:
        node, known = stack.pop()
        if known is not None:
            if id(node) not in place:
                place[id(node)] = len(made)
                kind, terms, slack = known
                held = tuple((c, place[id(n)]) for c, n in terms)
                made.append(LinearRow(kind, node.fmt, held, node.top, slack, node.name, node.of_error))
        elif id(node) not in place:
            known = joined(node)
            stack.append((node, known))
            stack.extend((n, None) for _, n in known[1] if id(n) not in place)
    return tuple(made)


def limited(rows: Sequence[LinearRow], k: int, edge: Fraction) -> tuple[LinearRow, ...]:
    """The rows in the case that what row k rounds, a sum with a quotient, is at most the edge."""
    row = rows[k]
    r, (_, s), (c, g) = rounding(FORMATS[str(row.fmt)]), *row.terms
    tops = (rows[s].top, times(rows[g].top, c))
    most, error = r.contract("joint", tops, c.denominator, units(edge))
    return (*rows[:k], row._replace(top=r.round(most), slack=short(error)), *rows[k + 1 :])


def certify(result: Linear) -> Certificate:
    """The bound on |result| that its rows prove, with the multipliers."""
    return from_rows(rows_of(result))


def from_rows(rows: Sequence[LinearRow], case: tuple[int, int] | None = None) -> Certificate:
    """The bound on the last row that the rows prove, with the multipliers."""
    left = [ZERO] * len(rows)
    errors = list(left)
    left[-1] = ONE
    products: dict[tuple[int, int], tuple[Fraction, Fraction, Fraction]] = {}
    for k in range(len(rows) - 1, -1, -1):
        m, row = left[k], rows[k]
        if not m.numerator:
            continue
        errors[k] = _plus(errors[k], m)
        held = errors if row.of_error else left
        for c, j in row.terms:
            if c is ONE or m is ONE:
                held[j] = _plus(held[j], m if c is ONE else c)
                continue
            key = (id(m), id(c))  # both are kept alive by the entry
            if key not in products:
                products[key] = (m, c, m * c)
            held[j] = _plus(held[j], products[key][2])
    bound = _weighed((m, r.top) for m, r in zip(left, rows, strict=True) if not r.terms)
    bound += _weighed((e, r.slack) for e, r in zip(errors, rows, strict=True))
    # An input's remainder stays in the sum; its own row has no equation to multiply.
    return Certificate(tuple(rows), tuple(m if r.terms else ZERO for m, r in zip(left, rows, strict=True)), bound, case)


def _plus(a: Fraction, b: Fraction) -> Fraction:
    return b if a is ZERO else a + b


def _weighed(pairs: Iterable[tuple[Fraction, int]]) -> Fraction:
    """The sum of |m| z, by denominators."""
    sums: dict[int, int] = {}
    for m, z in pairs:
        if z and m is not ZERO:
            sums[m.denominator] = sums.get(m.denominator, 0) + abs(m.numerator) * z
    return sum((rational(z) / d for d, z in sums.items()), ZERO)
