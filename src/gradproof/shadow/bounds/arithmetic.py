"""What one operation rounds: arithmetic, comparisons, sums, products of matrices, and functions.

torch's functions of float64 are taken to be within 2^-45 of the truth, relatively; the four operations are IEEE's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gradproof.shadow.bounds.domain import SLACK, Box, Domain, NoBound, above, below, common_format, infinite, rule

WIDE = 2.0**-45
LEAST = 1e-300
ULPS = 4.0
"""Assumed error of a kernel's exp, log, tanh, ... in units in the last place."""
ERF = 2.0
"""The size of which erf's error is counted in units in the last place: gelu's kernels without AVX-512 have an absolute
error (as Abramowitz and Stegun 7.1.26 has, 1.5e-7), measured as 8.3 units of roundoff of 1."""


# -- Arithmetic


def _sum(a: Tensor, b: Tensor, end: Callable[[Tensor], Tensor]) -> Tensor:
    """One end of a sum, moved outward only where float64 was not exact (Knuth's TwoSum tells)."""
    total = a + b
    other = total - a
    residue = (a - (total - other)) + (b - other)
    return torch.where(residue < 0 if end is below else residue > 0, end(total), total)


@rule("add")
def add(d: Domain, x: Any, y: Any, alpha: float = 1) -> Box:
    """`x + alpha y`, exact where one side is zero; of truth values, or."""
    a, b = d.lift(x), d.lift(y)
    if a.format is b.format is torch.bool:
        return either(d, a, b)
    b = b if alpha == 1 else mul(d, b, alpha)
    low, high = _sum(a.parts[0], b.parts[0], below), _sum(a.parts[1], b.parts[1], above)
    err = a.parts[2] + b.parts[2]
    exact = infinite(low, high) | (a.none & d.holds(b)) | (b.none & d.holds(a))
    size = torch.where(exact, 0.0, torch.maximum(low.abs(), high.abs()) + err)
    return d.made(low, high, err + d.lost(size))


@rule("sub")
def sub(d: Domain, x: Any, y: Any, alpha: float = 1) -> Box:
    """`x - alpha y`."""
    return add(d, x, neg(d, y), alpha)


@rule("neg")
def neg(d: Domain, x: Any) -> Box:
    """Exact."""
    a = d.lift(x)
    return Box(d, (-a.parts[1], -a.parts[0], a.parts[2]), d.format if a.format is torch.bool else a.format)


def _corners(f: Callable[[Tensor, Tensor], Tensor], a: Box, b: Box) -> tuple[Tensor, Tensor]:
    """The ends of a product or a quotient; zero times anything finite is zero."""
    four = [f(x, y) for x in a.parts[:2] for y in b.parts[:2]]
    low, high = reduce(torch.minimum, four), reduce(torch.maximum, four)
    nought = (low == 0) & (high == 0) & ((a.size_of == 0) | (b.size_of == 0))
    return torch.where(nought, low, below(low)), torch.where(nought, high, above(high))


def _power(x: Box) -> Tensor:
    """Where the value is zero, or plus or minus a power of two, for certain."""
    low = x.parts[0]
    return x.sharp & low.isfinite() & ((torch.frexp(low)[0].abs() == 0.5) | (low == 0))


def _rounded(
    d: Domain, low: Tensor, high: Tensor, err: Tensor, exact: Tensor, grows: Tensor, times: float = 1.0
) -> Box:
    """A product or quotient, which may underflow alone where it is `exact`, unless it `grows`."""
    size = torch.maximum(low.abs(), high.abs()) + err
    least = (torch.minimum(low.abs(), high.abs()) - err).clamp(min=0.0) * (low * high > 0)
    under = (~grows & (least < d.normal)).to(torch.float64) * d.eta
    lost = torch.where(exact, under, d.lost(torch.where(exact, 0.0, size), times))
    return d.made(low, high, torch.where(size > 0, err + lost, 0.0))


@rule("mul")
def mul(d: Domain, x: Any, y: Any) -> Box:
    """A product: exact, but for underflow, where one side is a power of two; of truth values, and."""
    a, b = d.lift(x), d.lift(y)
    if a.format is b.format is torch.bool:
        return both(d, a, b)
    low, high = _corners(torch.mul, a, b)
    low = low.clamp(min=0.0) if a is b else low
    err = a.size_of * b.parts[2] + b.size_of * a.parts[2] + a.parts[2] * b.parts[2]
    by, of = _power(a) & d.holds(b), _power(b) & d.holds(a)
    return _rounded(d, low, high, err, by | of, (by & (a.parts[0].abs() >= 1)) | (of & (b.parts[0].abs() >= 1)))


@rule("div")
def div(d: Domain, x: Any, y: Any, rounding_mode: str | None = None) -> Box:
    """A quotient, unknown where the divisor may be zero. By one constant: kernels multiply by its inverse.

    Raises NoBound for a quotient that is rounded to a whole number.
    """
    if rounding_mode is not None:
        raise NoBound("no rounding bound is known for a quotient that is rounded to a whole number")
    a, b = d.lift(x), d.lift(y)
    low, high, off = b.parts
    machine = below(torch.where(low > 0, low, torch.where(high < 0, -high, 0.0)) - off)
    if bool((machine <= 0).any()):
        d.reason = d.reason or "a divisor may be zero"
    exact, grows, alone = _power(b) & d.holds(a), low.abs() <= 1, b.numel() == 1 and bool(b.sharp.all())
    low, high = _corners(torch.div, a, b)
    err = torch.where(machine > 0, (a.parts[2] + torch.maximum(low.abs(), high.abs()) * off) / machine, torch.inf)
    return _rounded(d, low, high, err * SLACK, exact, grows, 2.0 if alone else 1.0)


@rule("addmm", "baddbmm")
def added(d: Domain, onto: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Box:
    """`beta onto + alpha x y`: kernels add the products up, onto what is there already."""
    return matmul(d, mul(d, x, alpha), y, mul(d, onto, beta))


@rule("mm", "bmm")
def matmul(d: Domain, x: Any, y: Any, onto: Any = 0.0) -> Box:
    """Any order, with or without fused multiply-add. Raises NoBound at an infinite operand."""
    a, b, c = d.lift(x), d.lift(y), d.lift(onto)
    (al, ah, ae), (bl, bh, be) = a.parts, b.parts
    n, sa, sb = al.shape[-1] + (onto is c), a.size_of, b.size_of
    if not bool(sa.isfinite().all()) or not bool(sb.isfinite().all()):
        raise NoBound(d.reason or "an operand of a matrix product is infinite or has no bound")
    grow = (1 + (n + 4) * 2.0**-52) * SLACK
    ma, mb = (al + ah) / 2, (bl + bh) / 2
    ra, rb = above(torch.maximum(ah - ma, ma - al)), above(torch.maximum(bh - mb, mb - bl))
    ra, rb = torch.where(al == ah, 0.0, ra), torch.where(bl == bh, 0.0, rb)
    middle = ma @ mb
    radius = (ma.abs() @ rb + ra @ sb) * grow + (sa @ sb) * ((n + 2) * 2.0**-53) * grow
    err = (sa @ be + ae @ (sb + be)) * grow + c.parts[2]
    size = ((sa + ae) @ (sb + be)) * grow + c.size_of + c.parts[2]
    lost = d.lost(size, float(n)) + torch.where(size > 0, n * d.eta, 0.0)
    low, high = _sum(below(middle - radius), c.parts[0], below), _sum(above(middle + radius), c.parts[1], above)
    return _unless_over(d, size, low, high, err + lost)


def _unless_over(d: Domain, size: Tensor, low: Tensor, high: Tensor, err: Tensor) -> Box:
    """A sum, unknown where its terms may overflow in some order."""
    over = size > d.largest
    if bool(over.any()):
        d.overflows()
    return d.made(low, high, torch.where(over, torch.inf, err))


def total(d: Domain, *terms: tuple[Box, Callable[[Tensor], Tensor]]) -> Box:
    """Sums of elements, in any order: each function adds elements of one array. Zeros for certain are not counted."""

    def of(f: Callable[[Box], Tensor]) -> Tensor:
        found = [add(f(box).to(torch.float64)) for box, add in terms]
        return sum(found[1:], start=found[0])

    counted = of(lambda x: ~x.none)
    size = of(lambda x: x.size_of + x.parts[2]) * (1 + counted * 2.0**-52) * SLACK
    off = size * (counted * 2.0**-53) * SLACK
    low, high = below(of(lambda x: x.parts[0]) - off), above(of(lambda x: x.parts[1]) + off)
    low = torch.where(of(lambda x: ~(x.parts[0] >= 0)) == 0, low.clamp(min=0.0), low)
    exact = (counted <= 1) & all(d.holds(box) for box, _ in terms)
    lost = d.lost(size, torch.where(exact, 0.0, (counted - 1).clamp(min=1.0)))
    err = of(lambda x: x.parts[2]) * (1 + counted * 2.0**-52) + lost
    low, high, err = (torch.where(counted == 0, 0.0, x) for x in (low, high, err))
    return _unless_over(d, size, low, high, err)


@rule("sum")
def summed(d: Domain, x: Any, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Box:
    """The sum; what is summed in another format is converted first."""
    given = d.lift(x)
    given = given if dtype is None or dtype is torch.float64 else d.stored(given, dtype)
    return total(d, (given, lambda p: p.sum(dim, keepdim)))


# -- Truth values, choices and extremes


@rule("lt")
def less(d: Domain, x: Any, y: Any) -> Box:
    """What the exact evaluation decides, and whether the machine must decide so too."""
    (al, ah, ae), (bl, bh, be) = d.lift(x).parts, d.lift(y).parts
    sure = (above(ah + ae) < below(bl - be)) | (below(al - ae) >= above(bh + be)) | ((ae == 0) & (be == 0))
    yes, no = ah < bl, al >= bh
    return Box(d, [x.to(torch.float64) for x in (yes, ~no, ~(sure & (yes | no)))], torch.bool)


@rule("eq")
def equal(d: Domain, x: Any, y: Any) -> Box:
    """Neither is less."""
    return both(d, negated(d, less(d, x, y)), negated(d, less(d, y, x)))


@rule("logical_not", "bitwise_not")
def negated(d: Domain, x: Any) -> Box:
    """Not."""
    low, high, err = truth(d, x).parts
    return Box(d, (1 - high, 1 - low, err), torch.bool)


@rule("logical_and", "bitwise_and")
def both(d: Domain, x: Any, y: Any) -> Box:
    """And."""
    (al, ah, ae), (bl, bh, be) = truth(d, x).parts, truth(d, y).parts
    no = ((ah == 0) & (ae == 0)) | ((bh == 0) & (be == 0))
    err = torch.where(no, 0.0, torch.maximum(ae, be))
    return Box(d, (torch.minimum(al, bl), torch.minimum(ah, bh), err), torch.bool)


@rule("logical_or", "bitwise_or")
def either(d: Domain, x: Any, y: Any) -> Box:
    """Or."""
    return negated(d, both(d, negated(d, x), negated(d, y)))


def truth(d: Domain, x: Any) -> Box:
    """Whether each element differs from zero."""
    given = d.lift(x)
    return given if given.format is torch.bool else negated(d, equal(d, given, 0.0))


@rule("where")
def where(d: Domain, condition: Any, x: Any, y: Any) -> Box:
    """The exact side, or both; the machine may take the other one unless the condition is sure."""
    c, a, b = d.lift(condition), d.lift(x), d.lift(y)
    (al, ah, ae), (bl, bh, be) = a.parts, b.parts
    first, second, sure = c.parts[0] == 1, c.parts[1] == 0, c.parts[2] == 0
    gap = above(torch.maximum(ah - bl, bh - al).clamp(min=0.0))
    alike = (al == ah) & (bl == bh) & (al == bl)
    other = torch.maximum(ae, be) + torch.where(alike, 0.0, gap)
    low = torch.where(first, al, torch.where(second, bl, torch.minimum(al, bl)))
    high = torch.where(first, ah, torch.where(second, bh, torch.maximum(ah, bh)))
    err = torch.where(sure & first, ae, torch.where(sure & second, be, other))
    return Box(d, (low, high, err), common_format(a, b))


@rule("maximum", "fmax", "clamp_min")
def larger(d: Domain, x: Any, y: Any) -> Box:
    """The larger of two: what is certainly larger, or no farther away than either was."""
    a, b = d.lift(x), d.lift(y)
    (al, ah, ae), (bl, bh, be) = a.parts, b.parts
    first, second = al - ae >= bh + be, bl - be >= ah + ae
    sides = ((p, q, torch.maximum(p, q)) for p, q in zip(a.parts, b.parts, strict=True))
    return Box(d, [torch.where(first, p, torch.where(second, q, m)) for p, q, m in sides], common_format(a, b))


@rule("minimum", "fmin", "clamp_max")
def smaller(d: Domain, x: Any, y: Any) -> Box:
    """The smaller of two."""
    return neg(d, larger(d, neg(d, x), neg(d, y)))


@rule("clamp")
def clamp(d: Domain, x: Any, min: Any = None, max: Any = None) -> Box:
    """Between two bounds, numbers or tensors."""
    low = d.lift(x) if min is None else larger(d, x, min)
    return low if max is None else smaller(d, low, max)


@rule("amax")
def amax(d: Domain, x: Box, dim: Any = (), keepdim: bool = False) -> Box:
    """The largest along axes."""
    return Box(d, [p.amax(dim, keepdim) for p in x.parts], x.format)


@rule("amin")
def amin(d: Domain, x: Box, dim: Any = (), keepdim: bool = False) -> Box:
    """The smallest along axes."""
    return neg(d, amax(d, neg(d, x), dim, keepdim))


# -- Functions


def _nearest(low: Tensor, high: Tensor, err: Tensor) -> Tensor:
    """The least magnitude that the machine's argument or the exact one may have."""
    return torch.maximum(low - err, -(high + err)).clamp(min=0.0)


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1 / x, torch.inf)


def _above(f: Callable[[Tensor], Tensor], least: float) -> Callable[[Tensor], Tensor]:
    """A function where its argument is larger than a number: minus infinity at it would be no bound."""
    return lambda x: torch.where(x > least, f(x), torch.nan)


def rising(name: str, f: Callable[[Tensor], Tensor], slope: Callable[..., Tensor], ulps: float = ULPS) -> None:
    """Enter the rule of a rising function: an enclosure from monotony, and an error from the bound on its slope.

    `slope`: the largest anywhere between the machine's argument and the exact one, by the ends and the error.
    """

    @rule(name)
    def enclosed(d: Domain, x: Any) -> Box:
        low, high, err = d.lift(x).parts
        least, most = f(low), f(high)
        least, most = least - least.abs() * WIDE, most + most.abs() * WIDE
        steep = torch.where(err == 0, 0.0, slope(low, high, err) * err * (1 + WIDE))
        if name in ("exp", "sigmoid"):  # float64 may underflow
            most = torch.where(high.isneginf(), most, most.clamp(min=LEAST))
        if name == "sigmoid":
            steep = steep + 1 / d.largest  # kernels return 0 where exp(-x) overflows
        return _function(d, name, least, most, steep, ulps)


def _function(d: Domain, name: str, low: Tensor, high: Tensor, err: Tensor, ulps: float = ULPS) -> Box:
    """The result of a kernel that is off by so many units in the last place."""
    size = torch.maximum(low.abs(), high.abs()) + err
    size = size.clamp(min=ERF) if name == "erf" else size
    if not bool(err.isfinite().all()):
        d.reason = d.reason or f"{name} may leave its domain or overflow"
    return d.made(low, high, err + d.lost(torch.where(size.isfinite(), size, 0.0), 2 * ulps))


def _flattening(f: Callable[[Tensor], Tensor], of: Callable[[Tensor], Tensor], most: float) -> Callable[..., Tensor]:
    """The slope of a function that is steepest at zero, by the function of its value there."""
    return lambda *x: (of(f(_nearest(*x))) + WIDE).clamp(max=most)


rising("exp", torch.exp, lambda low, high, err: torch.exp(high + err))
rising("expm1", torch.expm1, lambda low, high, err: torch.exp(high + err))
rising("log", _above(torch.log, 0), lambda low, high, err: _inverse(low - err))
rising("log1p", _above(torch.log1p, -1), lambda low, high, err: _inverse(below(1 + low) - err))
rising(  # MKL's rounds no better than to one unit
    "sqrt",
    lambda x: torch.sqrt(x.clamp(min=0.0)),
    lambda low, high, err: _inverse(torch.sqrt(torch.maximum(low, err))),
    1.0,
)
rising("tanh", torch.tanh, _flattening(torch.tanh, lambda y: 1 - y**2, 1.0))
rising("sigmoid", torch.sigmoid, _flattening(torch.sigmoid, lambda y: y * (1 - y), 0.25), 2 * ULPS)
rising("erf", torch.erf, lambda *x: 1.1283791670955128 * torch.exp(-(_nearest(*x) ** 2)))


@rule("sin")
def sine(d: Domain, x: Any, f: Callable[[Tensor], Tensor] = torch.sin) -> Box:
    """A function with values and slopes in [-1, 1]."""
    low, high, err = d.lift(x).parts
    middle, radius = f((low + high) / 2), (high - low) / 2 + WIDE
    ends = (middle - radius).clamp(min=-1.0), (middle + radius).clamp(max=1.0)
    return _function(d, f.__name__, *ends, err.clamp(max=2.0))


@rule("cos")
def cosine(d: Domain, x: Any) -> Box:
    """The same."""
    return sine(d, x, torch.cos)


def raised(d: Domain, x: Any, n: float) -> Box:
    """The function `pow`: any exponent for a positive base, a natural number for every base."""
    low, high, err = d.lift(x).parts
    natural, positive = n >= 1 and n == math.floor(n), low - err > 0
    ends = low**n, high**n
    least, most = torch.minimum(*ends), torch.maximum(*ends)
    least = torch.where((low < 0) & (high > 0), 0.0, least) if natural and n % 2 == 0 else least
    slope = abs(n) * (torch.maximum(low.abs(), high.abs()) + err) ** (n - 1)
    slope = torch.where(positive, torch.maximum(abs(n) * (low - err).abs() ** (n - 1), slope), slope)
    known = positive | natural
    least, most = (torch.where(known, end, torch.nan) for end in (least - least.abs() * WIDE, most + most.abs() * WIDE))
    return _function(d, "pow", least, most, torch.where(err == 0, 0.0, slope * err * (1 + WIDE)), 2 * ULPS)
