"""The exact worst case of accumulation in a small format, over every input: dynamic programming on its lattice.

All numbers of a format are whole multiples of its smallest subnormal, so the error of an addition is a difference of
integers. For each number t that a sum can round to, keep the least exact sum of gradients that leads there, least(t):
the error t - least(t) / n is then the largest one at t, and nothing else about the past counts. An addition of two
independent sums is least(t) = min over fl(a + b) = t of least(a) + least(b), a min-plus convolution and a rounding.

What is left out, and why nothing is lost:
- Signs. The inputs are symmetric and rounding to nearest even is odd, so the largest sum is minus the least at -t.
- Dominance. Of all b with fl(a + b) = t, a run of neighbours, the one of the least exact sum counts: the smallest b, or
  one that is reached from it through `lower`, each time the next number with a lower exact sum.
- A number whose least exact sum is as low as what is left can make it is done: the operands come in that order.
- Unreachable numbers are dropped after each addition; a + b and b + a are looked at once, equal subtrees summed once.

No contract on rounding is used: what rounds to a number follows from the midpoints between neighbours (IEEE 754-2019,
section 4.3.1). Sources: Bellman, Dynamic Programming, 1957; Muller et al., Handbook of Floating-Point Arithmetic (2nd
ed.), section 2.1, for the lattice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from gradproof.arith.formats import Format, format_named
from gradproof.rounding.accumulation import Setting, accumulated, error_of

Ints = np.ndarray[Any, np.dtype[Any]]
TABLE = 2**26  # entries of a table of places: 256 MiB
WIDEST = 2**60  # units of the smallest subnormal, in any sum of gradients and n times any number
MOST_NUMBERS = 2**17  # numbers that one sum can be
TOGETHER = 256  # numbers of one operand between two looks at what is done


@dataclass(frozen=True)
class Exhaustive:
    """The largest |G - mean| of a setting over all inputs, gradients that attain it, numbers visited, seconds taken."""

    setting: Setting
    worst: Fraction
    witness: list[Fraction]
    states: int
    seconds: float


@dataclass(frozen=True)
class Grid:
    """Numbers of a format in units of its smallest subnormal; `low[k]` to `high[k]` are the integers that round to
    `values[k]`."""

    values: Ints
    low: Ints
    high: Ints

    def places(self, exact: Ints) -> Ints:
        """The places of what some integers round to."""
        return np.searchsorted(self.low, exact, side="right") - 1


@lru_cache(maxsize=64)
def grid(fmt: Format, reach: Fraction) -> Grid:
    """The numbers of magnitude at most `reach`, and the next one on either side.

    Raises OverflowError where the reach exceeds the largest number, or the lattice is too fine for 64-bit integers.
    """
    if reach > fmt.largest:
        raise OverflowError(f"a {fmt.name} sum may exceed {float(fmt.largest):.6g}")
    if reach / fmt.tiny >= WIDEST:
        raise OverflowError(f"{fmt.name} numbers up to {float(reach):g} are multiples of {float(fmt.tiny):g}: too many")
    some: list[int] = []
    for x in fmt.nonnegative():
        some.append(int(x / fmt.tiny))
        if x > reach:
            break
        if len(some) > MOST_NUMBERS:
            raise OverflowError(f"more than {MOST_NUMBERS} {fmt.name} numbers up to {float(reach):g}")
    half, even = np.array(some, dtype=np.int64), np.arange(len(some)) % 2 == 0
    values, even = np.concatenate([-half[:0:-1], half]), np.concatenate([even[:0:-1], even])
    twice = values[:-1] + values[1:]
    last = np.where(even[:-1], twice // 2, -(-twice // 2) - 1)  # the last integer that rounds to the lower neighbour
    return Grid(values, np.concatenate([values[:1], last + 1]), np.concatenate([last, values[-1:]]))


@dataclass(eq=False)
class Sums:
    """What a sum of independent gradients can be: numbers, and the least exact sum of gradients that leads to each.

    Both are in units of the smallest subnormal, `values` increasing. Addition, and multiplication and division by a
    constant, round to the format, as `Soft` does.
    """

    fmt: Format
    values: Ints
    least: Ints
    parts: tuple[Sums, ...] = ()
    origin: Ints | None = None
    known: dict[tuple[int, Any], Sums] = field(default_factory=dict)

    @cached_property
    def lower(self) -> Ints | None:
        """For each place the next one with a lower exact sum, one past the end where there is none; None: nowhere."""
        past, stack, least = len(self.least), list[int](), self.least.tolist()
        found = np.full(past + 1, past, dtype=np.int32)
        for k in range(past - 1, -1, -1):
            while stack and least[stack[-1]] >= least[k]:
                stack.pop()
            found[k] = stack[-1] if stack else past
            stack.append(k)
        return found if bool(np.any(found < past)) else None

    @cached_property
    def place(self) -> Callable[[Ints], Ints]:
        """The place of the first value not below each integer from 0 on, counted from the first value."""
        steps = self.values - self.values[0]
        if steps[-1] >= TABLE:
            return lambda wanted: np.searchsorted(steps, wanted)
        table = np.repeat(np.arange(len(steps), dtype=np.int32), np.diff(steps, prepend=-1))
        return lambda wanted: table.take(wanted)

    def reach(self) -> Fraction:
        """The largest magnitude."""
        return int(max(-self.values[0], self.values[-1])) * self.fmt.tiny

    def numbers(self) -> int:
        """How many numbers this sum and all that it is made of can be."""
        seen: dict[int, Sums] = {}
        stack = [self]
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen[id(node)] = node
                stack.extend(node.parts)
        return sum(len(node.values) for node in seen.values())

    def __add__(self, other: Sums) -> Sums:
        key = (id(other), "+")
        if key not in self.known:
            self.known[key] = _added(self, other)
        return self.known[key]

    def __mul__(self, c: Fraction) -> Sums:
        return self.scaled(self.fmt.round(Fraction(c)))

    def __truediv__(self, c: Fraction | int) -> Sums:
        return self.scaled(1 / self.fmt.round(Fraction(c)))

    def scaled(self, c: Fraction) -> Sums:
        """fl(c x), c exact. Raises OverflowError."""
        key = (0, c)
        if key not in self.known:
            self.known[key] = self if c == 1 else _times(self, c)
        return self.known[key]

    def trace(self, k: int) -> list[int]:
        """Gradients, in units, that lead to `values[k]` with the least sum."""
        if not self.parts:
            return [int(self.values[k])]
        if self.origin is not None:
            source = self.parts[0]
            fit = (self.origin == k) & (source.least == self.least[k])
            return source.trace(int(np.flatnonzero(fit)[0]))
        a, b = self.parts
        sums = grid(self.fmt, a.reach() + b.reach())
        at = int(np.searchsorted(sums.values, self.values[k]))
        low = np.searchsorted(b.values, sums.low[at] - a.values)
        high = np.searchsorted(b.values, sums.high[at] - a.values, side="right")
        for i in np.flatnonzero(low < high):
            hit = np.flatnonzero(b.least[low[i] : high[i]] == self.least[k] - a.least[i])
            if len(hit):
                return a.trace(int(i)) + b.trace(int(low[i] + hit[0]))
        raise ArithmeticError("a sum that no operands lead to")


def _kept(fmt: Format, values: Ints, least: Ints, never: int, parts: tuple[Sums, ...]) -> Sums:
    reached = least != never
    return Sums(fmt, values[reached], least[reached].astype(np.int64), parts)


def _times(a: Sums, c: Fraction) -> Sums:
    exact = [abs(c) * int(v) * a.fmt.tiny for v in a.values]
    if max(exact) > a.fmt.largest:
        raise OverflowError(f"a {a.fmt.name} product may exceed {float(a.fmt.largest):.6g}")
    sign = np.where(a.values < 0, -1, 1) * (1 if c > 0 else -1)
    rounded = np.array([abs(int(a.fmt.round(x) / a.fmt.tiny)) for x in exact], dtype=np.int64) * sign
    values, origin = np.unique(rounded, return_inverse=True)
    least = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(least, origin, a.least)
    return Sums(a.fmt, values, least, (a,), origin)


def _added(a: Sums, b: Sums) -> Sums:
    """fl(a + b) of independent sums."""
    sums = grid(a.fmt, a.reach() + b.reach())
    widest = int(max(abs(x).max() for x in (a.least, b.least, sums.values)))
    if widest * 2 >= WIDEST:
        raise OverflowError(f"{a.fmt.name} sums of gradients of more than 60 bits")
    kind = np.int32 if widest < 2**29 else np.int64
    never = int(np.iinfo(kind).max)
    least = np.full(len(sums.values), never, dtype=kind)
    if b.lower is not None and a.lower is None:
        _lower_all(b, a, sums, least)
    else:
        _lower_all(a, b, sums, least)
    return _kept(a.fmt, sums.values, least, never, (a, b))


def _lower_all(a: Sums, b: Sums, sums: Grid, least: Ints) -> None:
    """Lower `least` at each number that fl(a + b) can be to the least exact sum that leads there.

    Each term that is made with a number x of a is at least `excess(x) + floor(t)` at t. So the x are taken by their
    excess, and a t that has come down to what the next of them allow is done.
    """
    kind, never = least.dtype, least.dtype.type(np.iinfo(least.dtype).max)
    low, high = sums.low.astype(kind), sums.high.astype(kind)
    values = np.append(b.values.astype(kind), never)  # one past the end, for `lower`
    following = values.take(b.lower) if b.lower is not None else None
    ends = b.least.astype(kind)
    slope = max(1, round(int(a.least[-1] + b.least[-1]) / max(1, int(a.values[-1] + b.values[-1]))))
    excess = a.least - slope * a.values
    floor = slope * sums.low + (b.least - slope * b.values).min()
    order, left = np.argsort(excess, kind="stable"), np.arange(len(sums.values))
    for at in range(0, len(order), TOGETHER):
        left = left[least[left] > floor[left] + excess[order[at]]]
        low_left, high_left, held = low[left], high[left], least[left]
        some = order[at : at + TOGETHER]
        smallest = a.values[some] if a is b else np.full(len(some), b.values[0])
        begin = np.searchsorted(high_left, a.values[some] + smallest)
        end = np.searchsorted(low_left, a.values[some] + b.values[-1], side="right")
        for i, first, begins, ends_at in zip(some, smallest, begin, end, strict=True):
            if begins >= ends_at:
                continue
            window, v = slice(begins, ends_at), kind.type(a.values[i])
            wanted, last = low_left[window] - v, high_left[window] - v
            wanted[0] = max(int(wanted[0]), int(first))
            k = b.place(wanted - values[0])
            never_here = values.take(k) > last
            if following is not None and b.lower is not None:
                _follow(k, b.lower, following, last)
            found = ends.take(k)
            found += kind.type(a.least[i])
            found[never_here] = never
            np.minimum(held[window], found, out=held[window])
        least[left] = held


def _follow(k: Ints, lower: Ints, following: Ints, last: Ints) -> None:
    """Move each place on to the next with a lower exact sum, while that is within reach."""
    more = np.flatnonzero(following.take(k) <= last)
    while len(more):
        k[more] = lower.take(k[more])
        more = more[following.take(k[more]) <= last[more]]


def leaf(setting: Setting) -> Sums:
    """One gradient: every number of the buffer's format up to the magnitude, exactly as it is."""
    own = setting.magnitude if setting.scale != "none" else setting.magnitude / setting.n
    return numbers_up_to(format_named(setting.buffer), own)


def numbers_up_to(f: Format, own: Fraction) -> Sums:
    """One input: every number of a format of magnitude at most `own`."""
    all_of_them = grid(f, min(own, f.largest)).values
    values = all_of_them[np.array([abs(int(v)) * f.tiny <= own for v in all_of_them])]
    return Sums(f, values, values)


def exhaustive(setting: Setting) -> Exhaustive:
    """The exact worst case of a setting and gradients that attain it, evaluated again in exact rationals.

    Every number of the buffer's format with |g| <= magnitude counts, in every place, subnormal results of the scaling
    too. Raises ValueError for inputs of another format, weights and compensated orders, OverflowError where a sum may
    overflow or the lattice does not fit 64-bit integers (bf16 and fp32 with all their exponents), ArithmeticError where
    the gradients found do not attain the worst case.
    """
    start = time.perf_counter()
    if setting.inputs or setting.weights or setting.order in ("kahan", "neumaier", "any"):
        raise ValueError(f"no lattice for this setting: {setting.describe()}")
    one = leaf(setting)
    total = accumulated(setting, [one] * setting.n)
    share = 1 if setting.scale == "none" else setting.n
    errors = [share * int(v) - int(m) for v, m in zip(total.values, total.least, strict=True)]
    worst = max(errors)
    f = one.fmt
    witness = [x * f.tiny for x in total.trace(errors.index(worst))]
    result = Fraction(worst, share) * f.tiny
    if error_of(setting, witness) != result:
        raise ArithmeticError(f"the gradients found do not attain {float(result):.6g}")
    return Exhaustive(setting, result, witness, total.numbers(), time.perf_counter() - start)
