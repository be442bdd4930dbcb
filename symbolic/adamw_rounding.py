"""What one fp32 step of AdamW in torch's order may lose, from any state: KANI-AW-009 of `adamw-kernel-v1`.

h_k = (1 - u)^-k - 1 <= k u / (1 - k u), u = 2^-24. With w = 1 - b1, c = 1 - rate decay, s = rate / (1 - b1^t),
R = sqrt(1 - b2^t), D = sqrt(v') / R + eps, all of them as torch's doubles, and m', v', theta' over the reals:

    |dm'|     <= h_1 |m| + h_4 w |g - m|                              (w < 1/2; from g with weight b1 otherwise)
    |dv'|     <= h_4 v'
    |dtheta'| <= h_3 |theta| c + h_10 s |m'| / D + (1 + h_10) s |dm'| / D

Each phase is claimed by itself, and the next one starts from any number within the claim of the one before. A w of 1/2
or more has to be a number of fp32: of another one torch takes 1 - w after w was rounded, and the error of that is u w
and no part of b1, so that m' may be further off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradproof.harness import FORMATS
from symbolic.factors import Claim, Factored, Term, charged, errors, grown, rules

CLAUSE = "AW-EQ-001"
START, MOMENT, SQUARE, BELOW, WEIGHT, UPDATE = 1, 4, 4, 6, 3, 10
"""Roundings that are charged: to what lerp starts from, to what it adds, to v', to D, to the weight, to the update."""


def one_step(k: Any, kernel: Any) -> None:
    """Base: the rules by which roundings are counted. Step: the phases of one optimizer step, from any state."""
    k.inductive(lambda: rules(k, CLAUSE), lambda: _phases(k, kernel))


def _phases(k: Any, kernel: Any) -> None:
    phases: dict[str, Callable[[Any, Any], None]] = {"m'": _first, "v'": _second, "D": _below, "theta'": _moved}
    phases[k.choose("phase", [*phases])](k, kernel)


def _number(k: Any, x: Any, single: int = 0) -> Factored:
    """A number that has met so many roundings."""
    return Factored([Term(x, single)], k, CLAUSE)


def _first(k: Any, kernel: Any) -> None:
    """Scalars are rounded once, on their way to fp32. Where w >= 1/2 it is a number of fp32, so that 1 - w is exact."""
    m, g, w, rest = (k.real(name) for name in ("m", "g", "1 - b1", "b1 at most 1/2"))
    off, far_off = errors(k, "m'"), errors(k, "m' from the gradient")
    k.assume((w > 0) & (w < Fraction(1, 2)) & (rest >= 0) & (rest <= Fraction(1, 2)))
    k.cover("a gradient that turns the moment", (m > 0) & (g < 0))
    near, far = Claim([(m, START), (w * (g - m), MOMENT)]), Claim([(g, START), (-rest * (g - m), MOMENT)])
    moment, grad = _number(k, m), _number(k, g)
    charged(k, CLAUSE, kernel.first(moment, grad, _number(k, w, 1)), near, "m'", off)
    charged(k, CLAUSE, kernel.first_far(moment, grad, _number(k, rest, 1)), far, "m' from the gradient", far_off)


def _second(k: Any, kernel: Any) -> None:
    v, g, beta, w = (k.real(name) for name in ("v", "g of the square", "b2", "1 - b2"))
    off = errors(k, "v'")
    k.assume((v >= 0) & (beta > 0) & (beta < 1) & (w > 0) & (w < 1))
    k.cover("a square to add", g > 1)
    made = kernel.second(_number(k, v), _number(k, g), _number(k, beta, 1), _number(k, w, 1))
    charged(k, CLAUSE, made, Claim([(v * beta + w * g * g, SQUARE)]), "v'", off)


def _below(k: Any, kernel: Any) -> None:
    """From any v' within its claim; q is its root over the reals."""
    q, root, eps = (k.real(name) for name in ("sqrt(v')", "sqrt(1 - b2^t)", "eps"))
    off = errors(k, "D")
    k.assume((q >= 0) & (root > 0) & (root <= 1) & (eps > 0))
    made = kernel.below(_number(k, q * q, SQUARE), _number(k, root, 1), _number(k, eps, 1))
    charged(k, CLAUSE, made, Claim([(q / root + eps, BELOW)]), "D", off)


def _moved(k: Any, kernel: Any) -> None:
    """From any D within its claim and any m' = m + dm, whatever dm is."""
    names = ("theta", "1 - rate decay", "m'", "dm'", "D", "rate / (1 - b1^t)")
    p, kept, m, dm, below, size = (k.real(name) for name in names)
    off = errors(k, "theta'")
    k.assume((kept > 0) & (below > 0) & (size > 0))
    k.cover("a weight that moves through zero", (p > 0) & (p * kept * below < size * m))
    moment = Factored([Term(m), Term(dm)], k, CLAUSE)
    made = kernel.moved(_number(k, p), _number(k, kept, 1), moment, _number(k, below, BELOW), _number(k, size, 1))
    parts = [(p * kept, WEIGHT), (-size * m / below, UPDATE), (-size * dm / below, UPDATE)]
    charged(k, CLAUSE, made, Claim(parts), "theta'", off)


@dataclass(frozen=True)
class Scalars:
    """The scalars of a step as torch's doubles, exactly: 1 - b1, b2, 1 - b2, 1 - rate decay, s, R and eps."""

    weight: Fraction
    beta2: Fraction
    weight2: Fraction
    kept: Fraction
    size: Fraction
    root: Fraction
    eps: Fraction


@dataclass(frozen=True)
class Bounds:
    """m', v' and theta' over the reals, and how far a kernel's may be from each."""

    first: tuple[Fraction, Fraction]
    second: tuple[Fraction, Fraction]
    weight: tuple[Fraction, Fraction]


def cost(k: int) -> Fraction:
    """h_k."""
    return grown(k) - 1


def bounds(state: tuple[Fraction, Fraction, Fraction, Fraction], scalars: Scalars, below: Fraction) -> Bounds:
    """The bounds for (theta, g, m, v), `below` being D.

    Raises ZeroDivisionError where D is zero, and ValueError where 1 - b1 is at least 1/2 and no number of fp32.
    """
    p, g, m, v = state
    w = scalars.weight
    if w >= Fraction(1, 2) and not FORMATS["fp32"].representable(w):
        raise ValueError(f"1 - b1 = {float(w)} is at least 1/2 and no number of fp32: nothing is derived for it")
    first, second = m + w * (g - m), scalars.beta2 * v + scalars.weight2 * g * g
    start, added = (m, w) if w < Fraction(1, 2) else (g, 1 - w)
    off = cost(START) * abs(start) + cost(MOMENT) * added * abs(g - m)
    scale = scalars.size / below
    lost = cost(WEIGHT) * abs(p) * scalars.kept + scale * (cost(UPDATE) * abs(first) + grown(UPDATE) * off)
    return Bounds((first, off), (second, cost(SQUARE) * second), (p * scalars.kept - scale * first, lost))
