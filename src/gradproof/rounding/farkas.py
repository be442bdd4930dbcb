"""The checker of certificates: exact numbers, no solver, and of the code that makes them the rounding of formats alone.

Row k of a certificate says `x_k = sum of c x_j + e_k` over earlier rows, |x_k| <= reach_k, |e_k| <= error_k, and why.
The checker recomputes each constant from the rows before, in whole units rounded against the claim, and adds up the
equations times their multipliers: all but the errors cancels against the result, the last row; an input that is left
counts with its reach (Farkas' lemma; Schrijver, 7.3). A `case` bounds the exact result of one row by an edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import lcm
from typing import Any

from gradproof.arith.bounds import BITS, rounding
from gradproof.arith.formats import FORMATS


class Refused(ValueError):
    """The certificate proves nothing: which row, and why."""


def check(certificate: Mapping[str, Any], case: tuple[int, Fraction] | None = None) -> Fraction:
    """The bound that a certificate proves for |result|, in the case asked for. Raises Refused where it proves none."""
    try:
        unit, claimed, given = certificate["unit"], Fraction(certificate["bound"]), certificate.get("case")
        edge = None if given is None else (given["row"], int(given["edge"], 16))
        if type(unit) is not int or not 0 <= unit <= BITS or (edge and (edge[0], Fraction(edge[1], 2**unit))) != case:
            raise Refused(f"a unit of 2^-{unit}, or another case than the one asked for")
        words = {c for row in certificate["rows"] for c, _ in row[2]} | {*certificate["multipliers"]}
        over = lcm(*(Fraction(word).denominator for word in words))
        whole = {word: int(Fraction(word) * over) for word in words}
        rows = [(k, f, [(whole[c], j) for c, j in t], int(r, 16), int(e, 16)) for k, f, t, r, e in certificate["rows"]]
        total = _added_up(rows, [whole[m] for m in certificate["multipliers"]], over, unit, edge)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError, AttributeError) as error:
        raise Refused(str(error)) from error
    if Fraction(total, over * over << unit) > claimed:
        raise Refused(f"the rows give more than the bound {float(claimed):.6g}")
    return claimed


def _added_up(rows: list[Any], scaled: list[int], over: int, unit: int, edge: Any) -> int:
    grids: list[int] = []
    left, errors = [0] * len(rows), [0] * len(rows)
    for k, ((kind, _, terms, _, error), m) in enumerate(zip(rows, scaled, strict=True)):
        if any(not 0 <= j < k for _, j in terms) or error < 0 or (m and not terms):
            raise Refused(f"row {k}: a later row, a negative error, or a multiplier without an equation")
        grids.append(_justified(k, rows, grids, over, unit, edge[1] if edge and k == edge[0] else None))
        left[k] += m * over
        errors[k] += m * over
        held, sign = (errors, 1) if kind in ("residual", "ordered") else (left, -1)
        for c, j in terms:
            held[j] += sign * m * c
    left[-1] -= over * over
    if any(x and rows[k][0] not in ("input", "constant") for k, x in enumerate(left)):
        raise Refused("the equations do not add up to the result")
    return sum(abs(x) * row[3] + abs(e) * row[4] for x, e, row in zip(left, errors, rows, strict=True))


def _justified(k: int, rows: list[Any], grids: list[int], over: int, unit: int, edge: int | None) -> int:
    """A power of two that the number is a multiple of (0: none). Raises Refused where a constant is too small."""
    kind, fmt, terms, reach, error = rows[k]
    f = rounding(FORMATS[fmt], unit) if fmt else None
    if kind in ("input", "constant") and not terms and not error and reach >= 0 and not (f and kind == "constant"):
        return f.tiny if f else 0
    tops = [-(-abs(c) * rows[j][3] // over) for c, j in terms]
    most, grid = sum(tops), min((_power(abs(c) * grids[j], over) for c, j in terms), default=0)
    if kind == "exact" and not f and reach * over >= sum(abs(c) * rows[j][3] for c, j in terms):
        return grid
    if not f or not terms:
        raise Refused(f"row {k} ({kind}, {fmt or 'reals'}) has no reason that is known")
    (c, j), last, count, source = terms[0], abs(terms[-1][0]), len(terms), rows[terms[0][1]][1]
    n, made = over // max(last, 1), rows[j][2] if rows[j][0] in ("round", "fits") else []
    same = n * last == over and all(rows[i][1] == fmt for _, i in terms)
    need, least, held = -1, 0, f.tiny
    quotients = same and (kind, count, abs(c)) in (("quotient", 1, last), ("joint", 2, over), ("pair", 2, last))
    added = [(x, rows[i][1]) for x, i in made[:3]]
    exactly = kind == "fits" and f.tiny <= grid and most <= grid << f.p
    exactly |= kind == "widen" and (count, abs(c)) == (1, over) and source in FORMATS and f.holds(FORMATS[source])
    if kind == "round" or quotients:
        most, need = f.contract(kind, tops, n, edge)
        least, held = f.round(most), max(grid, f.tiny) if kind == "round" else f.tiny
    elif kind == "shift" and count == 1 and source == fmt and _power(abs(c) << 2 * unit, over):
        need, least, held = (0, f.round(most), grid) if grid >= f.tiny else (f.tiny // 2, f.round(most), f.tiny)
    elif exactly:
        need, least, held = 0, most, grid
    elif kind in ("residual", "ordered") and (count, c, source, added) == (1, over, fmt, [(over, fmt)] * 2):
        need = 0 if kind == "ordered" else f.residual_error(rows[rows[j][2][1][1]][3])
        least, most = f.round(rows[j][4] + error), 0
    if need < 0 or error < need or reach < least or most > f.largest:
        raise Refused(f"row {k} ({kind}, {fmt or 'reals'}) does not follow from the rows before it")
    return held


def _power(a: int, over: int) -> int:
    q, rest = divmod(a, over)  # a / over where that is a power of two, else 0
    return q if not rest and q & (q - 1) == 0 else 0
