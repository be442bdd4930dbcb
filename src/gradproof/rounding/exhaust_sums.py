"""A quotient g / N by a number that is no power of two, and its sum with a number: both errors looked at together.

N = m 2^j, m odd; G is the significand of g. In units w of its last place g / N is G 2^b / m, rounded to X with p bits,
and m X = G 2^b + d. What a sum with another number loses depends on X and that number modulo the spacing of the result,
2^r w: the other number is a whole or a half of it there. So every G and r decide every pair of numbers. Where r > 6,
ties ask for X to be a multiple of 2^6, and then d = 0, and a sum that is no tie loses less than half a spacing by more
than d / m; that is looked at once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gradproof.arith.formats import Format
from gradproof.rounding.exhaust import Count, Ints, Mask, Tally

CHUNK = 1 << 14
RANGE = 6


def significands(f: Format, odd: range) -> Iterator[tuple[int, Ints, Ints]]:
    """Every odd m with X and d of every significand of the format, in chunks."""
    for m in odd:
        for at in range(2 ** (f.p - 1), 2**f.p, CHUNK):
            g = np.arange(at, min(at + CHUNK, 2**f.p), dtype=np.int64)
            low = m.bit_length() - 1
            wide = g << low
            z = np.where(wide >= m << (f.p - 1), wide, wide << 1)
            x = (2 * z + m) // (2 * m)
            yield m, x, x * m - z


def quotients_and_sums(f: Format, odd: range, less: int = 0) -> Tally:
    """Count what breaks each promise. `less` > 0 asks for an error smaller by less / m, which is wrong (for tests)."""
    tally = Tally({name: Count() for name in ("quotient", "joint", "pair")})
    for m, x, d in significands(f, odd):
        h = (m - 1) // 2
        words = _words(m, x, d)
        tally.counts["quotient"].add(np.abs(d) <= h - less, words)
        tally.counts["pair"].add(((x + d) % 2 == 0) & (np.abs(d) <= h - less), words)
        for r in range(1, RANGE + 1):
            for offset in (0, 2 ** (r - 1)):
                tally.counts["joint"].add(_kept(m, x + offset, d, r, less), words)
        tally.counts["joint"].add((x % 2**RANGE != 0) | (d == 0), words)
    return tally


def _kept(m: int, x: Ints, d: Ints, r: int, less: int) -> Mask:
    """|e + d / m| <= 2^(r-1) + D / m, where e rounds x to a multiple of 2^r: both ways at a tie."""
    half, h = 2 ** (r - 1), (m - 1) // 2
    most = m * half + h - h % half - less
    rest = x % (2 * half)
    e = np.where(rest < half, -rest, 2 * half - rest)
    kept: Mask = (np.abs(m * e + d) <= most) & ((rest != half) | (np.abs(d - m * half) <= most))
    return kept


def _words(m: int, x: Ints, d: Ints) -> Callable[[int], str]:
    return lambda i: f"m = {m}, quotient {int(x[i])}, off by {int(d[i])}/{m} units in the last place"
