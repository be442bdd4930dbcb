"""Inputs that make pairwise summation err far: dynamic programming over positions and low bits.

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

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from gradproof.arith.bounds import accumulation_witness
from gradproof.arith.formats import Format, binade, format_named
from gradproof.rounding.accumulation import Setting, error_of

R = 4  # significands are told apart modulo this
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
