"""Certificates: the rows of a straight-line program on linear floats, and the multipliers that prove its bound.

The multipliers are the derivatives of the result in the errors, one reverse pass (Linnainmaa 1976); by linear
programming duality no multipliers prove a smaller bound from the same rows, where every input cancels. The numbers
are exact rationals; `farkas.check` validates them without this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradproof.arith.linear import Linear
from gradproof.core import digest_of

VERSION = 1


@dataclass(frozen=True)
class Certificate:
    """Rows in the order of the program, one multiplier each, and the bound on |result|, the last row."""

    rows: tuple[Linear, ...]
    multipliers: tuple[Fraction, ...]
    bound: Fraction

    def text(self) -> dict[str, Any]:
        """As JSON values: a row is kind, format, terms (coefficient, row), reach, error; rationals are strings."""
        place = {id(node): k for k, node in enumerate(self.rows)}
        rows = [
            [n.kind, n.fmt or "", [[str(c), place[id(m)]] for c, m in n.terms], str(n.reach), str(n.error)]
            for n in self.rows
        ]
        held = {"version": VERSION, "bound": str(self.bound), "rows": rows}
        return {**held, "multipliers": [str(m) for m in self.multipliers]}

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return digest_of(self.text())


def ordered(result: Linear) -> list[Linear]:
    """Every node that the result rests on, operands first."""
    seen: set[int] = set()
    made: list[Linear] = []
    stack: list[tuple[Linear, bool]] = [(result, False)]
    while stack:
        node, done = stack.pop()
        if done:
            made.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((operand, False) for _, operand in node.terms)
    return made


def certify(result: Linear) -> Certificate:
    """The bound on |result| that its rows prove, with the multipliers."""
    rows = ordered(result)
    left = {id(node): Fraction(0) for node in rows}
    errors = dict(left)
    left[id(result)] = Fraction(1)
    for node in reversed(rows):
        m = left[id(node)]
        errors[id(node)] += m
        for c, operand in node.terms if m else ():
            held = errors if node.of_error else left
            held[id(operand)] += m * c
    free = (n for n in rows if not n.terms and left[id(n)])
    bound = _sum(abs(left[id(n)]) * n.reach for n in free)
    bound += _sum(abs(errors[id(n)]) * n.error for n in rows if n.error)
    # An input's remainder stays in the sum; its own row has no equation to multiply.
    return Certificate(tuple(rows), tuple(left[id(n)] if n.terms else Fraction(0) for n in rows), bound)


def _sum(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))
