"""Inputs on which compensated and blocked summation err far: a beam search over gradients, one addition at a time.

Kahan: the error of the last addition stays in the result, half an ulp of the sum; and y = x - late errs where it
crosses into the next binade, which an x at the largest term does as long as `late` is negative. So the search drives
both: sums that round down, terms near the largest one whose y is a tie. Neumaier: the last subtraction rounds, so the
sum of the terms has to be near a tie; errors in the sum of the errors are of second order. Blocks: ties within a block,
and a last term that makes the sum of the block such that the next addition is a tie as well.

No optimality is claimed. Numbers are integers in units of the smallest subnormal while the search runs; the gradients
are compared, and are to be judged, in exact rationals (`error_of`). Sources: Kahan 1965; Neumaier 1974; Higham,
Accuracy and Stability of Numerical Algorithms (2nd ed.), sections 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from gradproof.arith.formats import Format, format_named
from gradproof.rounding.accumulation import Setting, error_of, largest, terms
from gradproof.rounding.witness_pairwise import pairwise_witness

DOWN, UP = 1, -1
BEAM, LONG = 6, 256  # partial sums that are kept: more for a few terms, fewer for more than LONG
Numbers = tuple[int, ...]
Chain = tuple[int, "Chain"] | tuple[()]


def rounded(z: int, p: int) -> int:
    """The multiple of the spacing nearest to z, ties to even, for p significand bits."""
    cut = abs(z).bit_length() - p
    if cut <= 0:
        return z
    low, half = z & ((1 << cut) - 1), 1 << (cut - 1)
    up = low > half or (low == half and (z >> cut) & 1)
    return (z >> cut) + up << cut


def spacing(z: int, p: int) -> int:
    """Distance between the neighbours of z, in units."""
    return 1 << max(abs(z).bit_length() - p, 0)


def ties(total: int, most: int, p: int, way: int = DOWN) -> Iterator[int]:
    """Terms of at most `most` that make the sum with total a tie which rounds down (or up): a few, the largest first.

    In three binades, the sum may lie in a lower one than the largest possible one.
    """
    step = spacing(rounded(total + most, p), p)
    for wide in (step, step // 2, step // 4):
        if wide >= 2:
            past = wide // 2 if way == DOWN else wide // 2 + wide
            top = (total + most - past) // (2 * wide) * 2 * wide + past
            yield from (top - total - 2 * k * wide for k in range(3))


@dataclass(frozen=True)
class Partial:
    """What the machine holds, the exact sum of the terms in it (times n), and the gradients, the last one first."""

    held: Numbers
    exact: int
    made: Chain


@dataclass(frozen=True)
class Machine:
    """An order of summation as steps on integers: held numbers and a term give held numbers; held numbers a result.

    `lost` says what of the exact sum is no longer in the held numbers; `wanted` gives terms worth a try.
    """

    p: int
    most: int
    step: Callable[[Numbers, int, int], Numbers]
    result: Callable[[Numbers], int]
    kept: Callable[[Numbers], int]
    wanted: Callable[[Numbers, int], Iterator[int]]


def kahan(p: int, most: int, way: int) -> Machine:
    """`sums.kahan`; held are the total and what is late."""

    def step(held: Numbers, x: int, k: int) -> Numbers:
        total, late = held
        y = rounded(x - late, p)
        t = rounded(total + y, p)
        return t, rounded(rounded(t - total, p) - y, p)

    def wanted(held: Numbers, k: int) -> Iterator[int]:
        total, late = held
        yield from near(most, p)
        yield from near(most + late, p)
        for binade in range(1, min(6 if k < 8 else 2, most.bit_length() + 1)):
            yield from near(1 << (most.bit_length() - binade), p)
        yield from (x + late for x in ties(total, most - late, p, way))

    return Machine(p, most, step, lambda h: h[0], lambda h: h[0] - h[1], wanted)


def neumaier(p: int, most: int, way: int) -> Machine:
    """`sums.neumaier`; held are the total and the sum of the errors."""

    def step(held: Numbers, x: int, k: int) -> Numbers:
        total, late = held
        t = rounded(total + x, p)
        return t, rounded(late + t - total - x, p)

    def wanted(held: Numbers, k: int) -> Iterator[int]:
        yield from near(most, p)
        yield from ties(held[0] - held[1], most, p, way)
        yield from (x - way for x in ties(held[0] - held[1], most, p))
        yield from ties(held[0], most, p, way)

    return Machine(p, most, step, lambda h: rounded(h[0] - h[1], p), lambda h: h[0] - h[1], wanted)


def blocked(p: int, most: int, way: int, size: int) -> Machine:
    """`sums.blocked`; held are the sum of the full blocks and the sum of the block at hand."""

    def step(held: Numbers, x: int, k: int) -> Numbers:
        total, block = held
        block = rounded(block + x, p)
        return (total, block) if (k + 1) % size else (rounded(total + block, p), 0)

    def wanted(held: Numbers, k: int) -> Iterator[int]:
        total, block = held
        yield from ties(block, most, p, way)
        yield from near(most, p)
        if (k + 1) % size == 0:
            half = spacing(block + most, p) // 2
            for goal in ties(total, block + most - 2 * half, p, way):
                yield from (goal - block + shift for shift in (half, 0, -half))

    return Machine(p, most, step, lambda h: rounded(h[0] + h[1], p), lambda h: h[0] + h[1], wanted)


def near(x: int, p: int) -> Iterator[int]:
    """Numbers at and below x, at growing distances."""
    step = spacing(x - 1, p)
    yield from (x - k * step for k in range(8))
    yield from (x - (k + j) * step for k in (1 << i for i in range(3, max(p - 4, 4))) for j in range(2))


def machine(order: str, p: int, most: int, way: int) -> Machine:
    """The machine of an order. Raises ValueError where there is none."""
    if order == "kahan":
        return kahan(p, most, way)
    if order == "neumaier":
        return neumaier(p, most, way)
    if order == "sequential" or order.startswith("blocked:"):
        return blocked(p, most, way, int(order.partition(":")[2] or 1))
    raise ValueError(f"no search for the order {order!r}")


@dataclass
class Gradients:
    """Gradients of a setting for terms: the largest (smallest) that gives the term, or one near."""

    setting: Setting
    way: int

    @cached_property
    def fmt(self) -> Format:
        """The format of the buffer."""
        return format_named(self.setting.buffer)

    @cached_property
    def own(self) -> Fraction:
        """The largest gradient that the setting allows, a number of the format."""
        return largest(self.fmt, self.setting.reach)

    def term(self, g: Fraction) -> Fraction:
        """What reaches the buffer."""
        from gradproof.arith.soft import Soft

        made: Fraction = terms(self.setting, [Soft(g, self.setting.buffer)] * self.setting.n)[0].value
        return made

    def of(self, x: Fraction) -> tuple[Fraction, Fraction]:
        """A gradient near the term x, and the term that it gives."""
        s, f = self.setting, self.fmt
        g = min(f.round(x * s.n if s.scale in ("divide", "multiply") else x), self.own)
        for k in (1, 0, -1) if s.scale in ("divide", "multiply") and s.n & (s.n - 1) else (0,):
            more = g + self.way * k * f.spacing(g)
            if 0 <= more <= self.own and f.representable(more) and self.term(more) == x:
                return more, x
        return g, self.term(g)


def witness_for(setting: Setting) -> list[Fraction]:
    """Gradients of a setting on which it errs as far as this search finds; |g_i| <= magnitude, numbers of the buffer.

    Pairwise sums of fl(g / n), |g| <= 1, have a search of their own. Raises ValueError for inputs of another format,
    weights, and the order `any`.
    """
    if setting.inputs or setting.weights:
        raise ValueError(f"no search for this setting: {setting.describe()}")
    if setting.order == "pairwise" and setting.scale == "divide" and setting.magnitude == 1:
        return pairwise_witness(setting.n, setting.buffer)
    found = [_search(setting, way).run() for way in (DOWN, UP)]
    return max(found, key=lambda g: error_of(setting, g))


def _search(setting: Setting, way: int) -> _Search:
    made = Gradients(setting, way)
    most = int(made.term(made.own) / made.fmt.tiny)
    return _Search(setting, made, machine(setting.order, made.fmt.p, most, way), most, way)


@dataclass
class _Search:
    setting: Setting
    made: Gradients
    machine: Machine
    most: int
    way: int

    def run(self) -> list[Fraction]:
        self.share = self.setting.n if self.setting.scale in ("divide", "multiply") else 1
        n, self.top = self.setting.n, int(self.made.own / self.made.fmt.tiny)
        self.exact = self.setting.scale == "divide" and n & (n - 1) == 0
        self.known: dict[int, tuple[int, int]] = {}
        width = BEAM * 16 if n <= 4 else BEAM * 4 if n <= 8 else BEAM if n <= LONG else BEAM // 3
        beam = [Partial(self._first(g), g, (g, ())) for g in self._starts()]
        for k in range(1, self.setting.n):
            following: dict[Numbers, Partial] = {}
            for partial in beam:
                for g, x in self._choices(partial.held, k):
                    held = self.machine.step(partial.held, x, k)
                    if held not in following or self.way * (partial.exact + g - following[held].exact) > 0:
                        following[held] = Partial(held, partial.exact + g, (g, partial.made))
            ranked = sorted(following.values(), key=self._lost, reverse=True)
            beam = ranked[:width] + sorted(ranked[width:], key=self._error, reverse=True)[: width // 2]
        witnesses = [[g * self.made.fmt.tiny for g in _listed(partial.made)] for partial in beam]
        return max(witnesses, key=lambda g: error_of(self.setting, g))

    def _starts(self) -> list[int]:
        step = spacing(self.top - 1, self.machine.p)
        return [g for g in (self.top - k * step for k in (0, 1, 2, 3, 8, 16)) if g > 0]

    def _first(self, g: int) -> Numbers:
        x = int(self.made.term(g * self.made.fmt.tiny) / self.made.fmt.tiny)
        return self.machine.step((0, 0), x, 0)

    def _choices(self, held: Numbers, k: int) -> Iterator[tuple[int, int]]:
        tiny = self.made.fmt.tiny
        for x in dict.fromkeys(self.machine.wanted(held, k)):
            if 0 < x <= self.most and rounded(x, self.machine.p) == x:
                if self.exact and x * self.setting.n <= self.top:
                    yield x * self.setting.n, x
                    continue
                if x not in self.known:
                    g, got = self.made.of(x * tiny)
                    self.known[x] = (int(g / tiny), int(got / tiny))
                yield self.known[x]

    def _lost(self, partial: Partial) -> tuple[int, int]:
        kept = self.machine.kept(partial.held)
        held = kept - self.machine.result(partial.held)
        return self.way * (partial.exact - self.share * kept), self.way * held

    def _error(self, partial: Partial) -> int:
        return self.way * (partial.exact - self.share * self.machine.result(partial.held))


def _listed(made: Chain) -> list[int]:
    found = []
    while made:
        found.append(made[0])
        made = made[1]
    return found[::-1]
