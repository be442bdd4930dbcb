"""The checker of certificates: exact rationals, no solver, and of the code that makes them the formats alone.

Row k of a certificate says `x_k = sum of c x_j + e_k` over earlier rows, |x_k| <= reach_k and |e_k| <= error_k, and
why. The checker recomputes each constant from the rows before. Then it adds up the equations times their multipliers:
every number but the errors has to cancel against the result, the last row; an input that is left over counts with its
reach. By Farkas' lemma no solution of the rows exceeds what is left (Schrijver, Theory of Linear and Integer
Programming, section 7.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from gradproof.arith.formats import FORMATS


class Refused(ValueError):
    """The certificate proves nothing: which row, and why."""


def check(certificate: Mapping[str, Any]) -> Fraction:
    """The bound that a certificate proves for |result|. Raises Refused where it proves none."""
    try:
        rows = [_row(row) for row in certificate["rows"]]
        claimed, multipliers = Fraction(certificate["bound"]), [Fraction(m) for m in certificate["multipliers"]]
        total = _add_up(rows, multipliers)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise Refused(str(error)) from error
    if total > claimed:
        raise Refused(f"the rows give {float(total):.6g}, more than the bound {float(claimed):.6g}")
    return claimed


def _row(row: Any) -> tuple[str, str, list[tuple[Fraction, int]], Fraction, Fraction]:
    kind, fmt, terms, reach, error = row
    return kind, fmt, [(Fraction(c), int(j)) for c, j in terms], Fraction(reach), Fraction(error)


def _add_up(rows: list[Any], multipliers: list[Fraction]) -> Fraction:
    grids: list[Fraction] = []
    left = [Fraction(0)] * len(rows)
    errors = [Fraction(0)] * len(rows)
    for k, (kind, fmt, terms, reach, error) in enumerate(rows):
        if any(not 0 <= j < k for _, j in terms) or error < 0 or (multipliers[k] and not terms):
            raise Refused(f"row {k}: a later row, a negative error, or a multiplier without an equation")
        grids.append(_justified(k, kind, fmt, terms, reach, error, rows, grids))
        m = multipliers[k]
        left[k] += m
        errors[k] += m
        for c, j in terms:
            if kind in ("residual", "ordered"):
                errors[j] += m * c
            else:
                left[j] -= m * c
    left[-1] -= 1
    if any(x and rows[k][0] not in ("input", "constant") for k, x in enumerate(left)):
        raise Refused("the equations do not add up to the result")
    inputs = sum((abs(x) * rows[k][3] for k, x in enumerate(left) if x), Fraction(0))
    return inputs + sum((abs(x) * rows[k][4] for k, x in enumerate(errors) if x), Fraction(0))


def _justified(
    k: int, kind: str, fmt: str, terms: list[Any], reach: Fraction, error: Fraction, rows: list[Any], grids: list[Any]
) -> Fraction:  # fmt: skip
    """A power of two that the number is a multiple of (0: none). Raises Refused where a constant is too small."""
    most = sum((abs(c) * rows[j][3] for c, j in terms), Fraction(0))
    grid = min((abs(c) * grids[j] if _power(c) else Fraction(0) for c, j in terms), default=Fraction(0))
    f = FORMATS.get(fmt)
    if kind in ("input", "constant") and not terms and not error and not (fmt and kind == "constant"):
        return f.tiny if f else Fraction(0)
    if kind == "exact" and not fmt and reach >= most:
        return grid
    if not f or not terms or most > f.largest:
        raise Refused(f"row {k} ({kind}, {fmt or 'reals'}) has no reason that is known")
    (c, j), alone, source = terms[0], len(terms) == 1, FORMATS.get(rows[terms[0][1]][1])
    scaled = kind == "shift" and alone and source == f and _power(c)
    widened = kind == "widen" and alone and abs(c) == 1 and source and source.p <= f.p and source.emin >= f.emin
    if reach >= most and (widened or (grid >= f.tiny and (scaled or (kind == "fits" and most <= grid * 2**f.p)))):
        return grid
    rounded = kind == "round" and error >= f.worst_error(most)
    if reach >= f.round(most) and (rounded or (scaled and error >= f.tiny / 2)):
        return max(grid, f.tiny)
    made = rows[j][2] if kind in ("residual", "ordered") and alone and c == 1 and source == f else []
    if rows[j][0] in ("round", "fits") and len(made) == 2 and all(m == 1 and rows[i][1] == fmt for m, i in made):
        y = rows[made[1][1]][3]
        e = f.worst_error(2 * y)
        first = f.worst_error(y + e)
        if (kind == "ordered" or error >= first + f.worst_error(e + first)) and reach >= rows[j][4] + error:
            return f.tiny
    raise Refused(f"row {k} ({kind}, {fmt or 'reals'}) does not follow from the rows before it")


def _power(c: Fraction) -> bool:
    return c != 0 and abs(c.numerator) & (abs(c.numerator) - 1) == 0 and c.denominator & (c.denominator - 1) == 0
