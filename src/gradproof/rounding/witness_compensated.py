"""Inputs on which pairwise, compensated and blocked summation err far.

A beam search over gradients, one addition at a time, for the others than pairwise.
Kahan: the error of the last addition stays in the result, half an ulp of the sum; and y = x - late errs where it
crosses into the next binade, which an x at the largest term does as long as `late` is negative. So the search drives
both: sums that round down, terms near the largest one whose y is a tie. Neumaier: the last subtraction rounds, so the
sum of the terms has to be near a tie; errors in the sum of the errors are of second order. Blocks: ties within a block,
and a last term that makes the sum of the block such that the next addition is a tie as well.

No optimality is claimed. Numbers are integers in units of the smallest subnormal while the search runs; the gradients
are compared, and are to be judged, in exact rationals (`error_of`). Sources: Kahan 1965; Neumaier 1974; Higham,
Accuracy and Stability of Numerical Algorithms (2nd ed.), sections 4.2 and 4.3.

Pairwise summation has dynamic programming over positions and low bits.
The sum of two numbers of one binade is a multiple of half the new spacing, so it errs by a tie or not at all, and a tie
leaves an even result. An error at one node thus needs an odd operand, and an odd operand carries no tie: not every
addition can err by half an ulp, and the half-ulp bound of certificates is not attained (the exact worst case of fp16 is
1.16 times smaller at N = 16, 1.21 at N = 32). Terms of lower binades, on a finer grid, give near-ties, at the price of
smaller errors below them; operands of opposite signs err more than their sum is worth.

Only two things about a subtree matter to the rest: which binade its value lies in, and the lowest bits of its
significand; all other bits are free. So the state is a position i (the value is about i 2^-bits of the largest one)
and the significand modulo R, and its worth the largest total error in one direction. Top down, the chosen states give
numbers: an exact sum z = t + e for the wanted result t, one operand near its position with its residue, the other one
the rest.

No optimality is claimed: the gradients are compared, and are to be judged, in exact rationals (`error_of`). Source of
the parities: rounding to nearest even, IEEE 754-2019 section 4.3.1; Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from gradproof.arith.bounds import accumulation_witness
from gradproof.arith.formats import Format, binade, format_named
from gradproof.rounding.accumulation import Setting, error_of, largest, terms

R = 4  # significands are distinguished modulo this
NEVER = -(10**60)


@dataclass
class Plan:
    """The worth of every state, for n terms |x_i| <= 1/n in a format, positions in steps of 2^-bits.

    `loose`, for other n than powers of two: the position of a sum is the nearest one to those of its operands.
    """

    n: int
    f: Format
    bits: int
    loose: bool = False
    tables: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    pairs: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    mixes: dict[tuple[int, int, int], tuple[list[int], int]] = field(default_factory=dict)

    @cached_property
    def whole(self) -> bool:
        """Whether n is a power of two."""
        return self.n & (self.n - 1) == 0

    def value(self, m: int, i: int) -> Fraction:
        """The value at a position of a sum of m terms."""
        return Fraction(i * m, self.n << self.bits)

    def ulp(self, m: int, i: int) -> int:
        """Exponent of the spacing at a position."""
        return max(binade(self.value(m, i)), self.f.emin) - self.f.p + 1

    @cached_property
    def unit(self) -> int:
        """Exponent of the unit of errors, below every spacing."""
        return min(self.ulp(1, i) for i in self.positions(1))

    def positions(self, m: int) -> list[int]:
        """Positions that are no end of a binade, nor near one where positions are met only roughly."""
        some = [i for i in range(1, 2**self.bits) if i & (i - 1)] if self.whole else []
        if not self.whole:
            last, width = 2**self.bits - 1, max(2, 2**self.bits // 128)
            inner = {*range(last - width, last), *range(2 * width, last, width)}
            some = [i for i in inner if binade(self.value(m, i - width)) == binade(self.value(m, i + width))]
        if m == 1 and not self.whole:  # most numbers there are some fl(g / n)
            some = [
                i
                for i in some
                if 4 * self.n * self.f.spacing(self.value(1, i)) >= 3 * self.f.spacing(self.n * self.value(1, i))
            ]
        return some + [-i for i in some]

    def table(self, m: int) -> dict[int, list[int]]:
        """For each position of a sum of m terms the worth of each residue."""
        if m not in self.tables:
            self.tables[m] = {i: [0] * R for i in self.positions(1)} if m == 1 else self._table(m)
        return self.tables[m]

    def _table(self, m: int) -> dict[int, list[int]]:
        first, second = m // 2, m - m // 2
        made = {i: [NEVER] * R for i in self.positions(m)}
        others = sorted(self.table(second))
        for a in self.table(first):
            for b in others:
                i, off = divmod(a * first + b * second + m // 2, m)
                near = off == m // 2 or (self.loose and not self.whole)
                if not self.loose and not self.whole:
                    i, near = (a + b) // 2, (a + b) % 2 == 0 and abs(a - b) <= m
                if i in made and near and (first != second or a <= b):
                    for rest, worth in enumerate(self._worths(m, i, a, b)):
                        if worth > made[i][rest]:
                            made[i][rest] = worth
                            self.pairs[m, i, rest] = (a, b)
        return {i: worths for i, worths in made.items() if max(worths) > NEVER}

    def _worths(self, m: int, i: int, a: int, b: int) -> list[int]:
        mix, g = self.mix(m, a, b)
        shift, each = self.ulp(m, i) - g, 1 << (g - self.unit)
        if -shift > R.bit_length() - 1:
            return [NEVER] * R
        if shift < 1:
            steps = 1 << -shift
            residues = range(R)
            return [
                min((mix[z] for z in residues if z * steps % R == rest), default=NEVER) if rest % steps == 0
                else NEVER for rest in residues
            ]  # fmt: skip
        wide = 1 << shift
        return [
            max(mix[(rest * wide + e) % R] + e * each for e in range(-most, most + 1))
            for rest, most in ((rest, wide // 2 - rest % 2) for rest in range(R))
        ]

    def mix(self, m: int, a: int, b: int) -> tuple[list[int], int]:
        """The worth of two operands by the residue of their sum in units of the finer spacing, and its exponent."""
        if (m, a, b) not in self.mixes:
            first, second = m // 2, m - m // 2
            fa, fb, ea, eb = self.table(first)[a], self.table(second)[b], self.ulp(first, a), self.ulp(second, b)
            if ea < eb:
                fa, fb, ea, eb = fb, fa, eb, ea
            coarse = [(x << (ea - eb), worth) for x, worth in enumerate(fa)]
            mix = [max(worth + fb[(z - x) % R] for x, worth in coarse) for z in range(R)]
            self.mixes[m, a, b] = (mix, eb)
        return self.mixes[m, a, b]

    def best(self) -> tuple[int, int, int]:
        """The greatest worth at the root, in units; its position and residue."""
        return max((worth, i, rest) for i, worths in self.table(self.n).items() for rest, worth in enumerate(worths))

    def terms(self) -> list[Fraction]:
        """Terms that realise the best state."""
        _, i, rest = self.best()
        spacing = Fraction(2) ** self.ulp(self.n, i)
        return self._terms(self.n, i, (_near(self.value(self.n, i) / spacing, rest)) * spacing)

    def _terms(self, m: int, i: int, t: Fraction) -> list[Fraction]:
        if m == 1:
            return [t]
        first, second = m // 2, m - m // 2
        spacing = Fraction(2) ** self.ulp(m, i)
        a, b = self.pairs[m, i, int(t / spacing) % R]
        mix, g = self.mix(m, a, b)
        step, rounds = Fraction(2) ** g, self.ulp(m, i) - g
        z = t
        if rounds >= 1:
            wide, at = 1 << rounds, int(t / step)
            most = wide // 2 - int(t / spacing) % 2
            z += step * max(range(-most, most + 1), key=lambda e: mix[(at + e) % R] + (e << (g - self.unit)))
        left = self._left(m, a, b, z)
        return self._terms(first, a, left) + self._terms(second, b, z - left)

    def _left(self, m: int, a: int, b: int, z: Fraction) -> Fraction:
        """The first operand of a sum z: the coarser one has the residue worth most, the other one is the rest."""
        first, second = m // 2, m - m // 2
        swap = self.ulp(first, a) < self.ulp(second, b)
        (k, i), (other, j) = ((second, b), (first, a)) if swap else ((first, a), (second, b))
        coarse, fine = Fraction(2) ** self.ulp(k, i), Fraction(2) ** self.ulp(other, j)
        worth, rest, at = self.table(k)[i], self.table(other)[j], int(z / fine)
        x = max(range(R), key=lambda x: worth[x] + rest[(at - x * int(coarse / fine)) % R])
        drift = (z - self.value(first, a) - self.value(second, b)) * k / m if not self.whole else 0
        chosen = _near((self.value(k, i) + drift) / coarse, x) * coarse
        if not self.whole and min(k, other) == 1:
            tries = [chosen + j * R * coarse for j in range(-8, 9)]
            leaves = [[v for v, terms in ((y, k), (z - y, other)) if terms == 1] for y in tries]
            chosen = max(zip(tries, leaves, strict=True), key=lambda pair: sum(self._gain(v) for v in pair[1]))[0]
        return z - chosen if swap else chosen

    def _gain(self, x: Fraction) -> Fraction:
        g = gradient(x, self.n, self.f)
        return g / self.n - x if self.f.round(g / self.n) == x else Fraction(-1)


def _near(x: Fraction, rest: int) -> int:
    """The integer near x with a given residue modulo R."""
    k = round(x)
    return k + (rest - k + R // 2) % R - R // 2


def gradient(x: Fraction, n: int, f: Format) -> Fraction:
    """The largest |g| <= 1 with fl(g / n) = x, or one near n x where there is none."""
    near = max(min(f.round(n * x), Fraction(1)), Fraction(-1))
    tries = [near + k * f.spacing(near) for k in (2, 1, 0, -1)]
    return next((g for g in tries if abs(g) <= 1 and f.representable(g) and f.round(g / n) == x), near)


def pairwise_witness(n: int, fmt_name: str) -> list[Fraction]:
    """Gradients |g_i| <= 1 of a format whose pairwise mean, sum of fl(g_i / n), errs as far as this search finds.

    g_i / n is exact where n is a power of two and no subnormal is needed. Raises ValueError for n < 1.
    """
    if n < 1:
        raise ValueError("a window has at least one micro-batch")
    f = format_named(fmt_name)
    if n == 1:
        return [Fraction(1)]
    setting = Setting(n, fmt_name, order="pairwise")
    first = accumulation_witness(n, fmt_name)
    found = [(error_of(setting, first), first)]
    most = max(3, min(7, f.p - 4))
    plans = [Plan(n, f, bits) for bits in ((most,) if f.p > 16 else range(min(4, most), most + 1))]
    if n & (n - 1):
        plans = [Plan(n, f, bits, loose) for bits, loose in ((5, False), (6, True), (9, False))]
        plans += [Plan(n, f, 9, True)] if n <= 64 else []
    for plan in plans:
        if plan.table(n):
            g = [gradient(f.round(x), n, f) for x in plan.terms()]
            found.append((error_of(setting, g), g))
    return max(found)[1]


# -- Compensated and blocked sums: a beam search.
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
class CompensatedMachine:
    """An order of summation as steps on integers: held numbers and a term give held numbers; held numbers a result.

    `lost` says what of the exact sum is no longer in the held numbers; `wanted` gives terms worth a try.
    """

    p: int
    most: int
    step: Callable[[Numbers, int, int], Numbers]
    result: Callable[[Numbers], int]
    kept: Callable[[Numbers], int]
    wanted: Callable[[Numbers, int], Iterator[int]]


def kahan(p: int, most: int, way: int) -> CompensatedMachine:
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
        for down in range(1, min(6 if k < 8 else 2, most.bit_length() + 1)):
            yield from near(1 << (most.bit_length() - down), p)
        yield from (x + late for x in ties(total, most - late, p, way))

    return CompensatedMachine(p, most, step, lambda h: h[0], lambda h: h[0] - h[1], wanted)


def neumaier(p: int, most: int, way: int) -> CompensatedMachine:
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

    return CompensatedMachine(p, most, step, lambda h: rounded(h[0] - h[1], p), lambda h: h[0] - h[1], wanted)


def blocked(p: int, most: int, way: int, size: int) -> CompensatedMachine:
    """`sums.blocked`; held are the sum of the full blocks and the sum of the present block."""

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

    return CompensatedMachine(p, most, step, lambda h: rounded(h[0] + h[1], p), lambda h: h[0] + h[1], wanted)


def near(x: int, p: int) -> Iterator[int]:
    """Numbers at and below x, at growing distances."""
    step = spacing(x - 1, p)
    yield from (x - k * step for k in range(8))
    yield from (x - (k + j) * step for k in (1 << i for i in range(3, max(p - 4, 4))) for j in range(2))


def machine(order: str, p: int, most: int, way: int) -> CompensatedMachine:
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
    machine: CompensatedMachine
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
