"""Which gradients survive in a 16-bit buffer, by loss scale and N, and where they overflow, as closed forms.

With loss scale S, a power of two, the gradient that arrives is h = fl(S g), and fl(h / N) goes into the buffer. It is
not zero exactly when |h| > N tiny / 2: a tie rounds to even, to zero. So h must reach the next number of the format
above N tiny / 2, and S |g| the midpoint below that number, itself included if the number is the even one. Dividing
after the accumulation asks only S |g| > tiny / 2, and overflows about N times earlier: partial sums round, up or down,
so the exact number is found by bisection (sums of equal terms grow with the term). Source: IEEE 754-2019, section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from gradproof.arith.formats import FORMATS, Format

SCALES, WINDOWS = (1, 128, 1024, 65536), (1, 2, 3, 4, 8, 64, 1024)


def smallest_survivor(scale: int, n: int, fmt: str = "fp16") -> tuple[Fraction, bool]:
    """The threshold of |g| below which fl(fl(S g) / N) is zero, and whether the threshold itself survives.

    Raises ValueError for a scale that is no power of two, and for n < 1.
    """
    if scale < 1 or scale & (scale - 1) or n < 1:
        raise ValueError("the closed form is for loss scales that are powers of two and n >= 1")
    f = FORMATS[fmt]
    limit = n * f.tiny / 2
    step = f.spacing(limit)
    reached = ((limit / step).__floor__() + 1) * step
    below = reached - f.spacing(reached - step)
    even = (reached / f.spacing(reached)).numerator % 2 == 0
    return (reached + below) / 2 / scale, even


def survivor_by_search(scale: int, n: int, fmt: str = "fp16") -> tuple[Fraction, bool]:
    """The same by looking at every number h >= 0 of the format, in order: the first with fl(h / n) != 0.

    Uses nothing but the rounding of software floats. Raises ValueError where no number survives.
    """
    f = FORMATS[fmt]
    below = Fraction(0)
    for h in f.nonnegative():
        if f.round(h / n):
            middle = (below + h) / 2
            return middle / scale, f.round(middle) == h
        below = h
    raise ValueError(f"no {fmt} number survives a division by {n}")


def reach_of_orders(scale: int, n: int, fmt: str = "fp16") -> dict[str, Fraction]:
    """Where g starts to survive, and to overflow, for N equal gradients, by when the division is made."""
    f = FORMATS[fmt]
    over = overflow(f)
    return {
        "before: survives from": smallest_survivor(scale, n, fmt)[0],
        "before: overflows from": over / scale,
        "after: survives from": f.tiny / 2 / scale,
        "after: overflows from": late_overflow(n, fmt) / scale,
    }


def overflow(f: Format) -> Fraction:
    """The least number that rounds to infinity."""
    return f.largest + f.spacing(f.largest) / 2


@cache
def late_overflow(n: int, fmt: str = "fp16") -> Fraction:
    """The threshold of h from which n equal terms fl(h) overflow when they are added from left to right."""
    f = FORMATS[fmt]
    low, high = 0, (f.emax - f.emin + 2) * 2 ** (f.p - 1) - 1
    if not overflows(f, number(f, high), n):
        return overflow(f)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overflows(f, number(f, middle), n) else (middle, high)
    return (number(f, low) + number(f, high)) / 2


def number(f: Format, k: int) -> Fraction:
    """The k-th number of a format, 0 the first."""
    e, m = divmod(k, 2 ** (f.p - 1))
    return k * f.tiny if e == 0 else (2 ** (f.p - 1) + m) * f.tiny * 2 ** (e - 1)


def overflows(f: Format, term: Fraction, n: int) -> bool:
    """Whether n equal terms overflow when they are added from left to right."""
    total = Fraction(0)
    for _ in range(n):
        if total + term >= overflow(f):
            return True
        after = f.round(total + term)
        if after == total:
            return False
        total = after
    return False


def survival_rows() -> Iterator[str]:
    """The smallest fp16 gradient that survives a division by N, for each loss scale, in Markdown."""
    yield f"| loss scale | {' | '.join(f'N = {n}' for n in WINDOWS)} |"
    yield "|---|" + "---|" * len(WINDOWS)
    for s in SCALES:
        yield f"| {s} | {' | '.join(_least(*smallest_survivor(s, n)) for n in WINDOWS)} |"


def _least(threshold: Fraction, itself: bool) -> str:
    return f"{'' if itself else '> '}{float(threshold):.3g}"
