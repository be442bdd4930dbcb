"""Gradients that cancel, are swamped, or are divided late: exact, by software floats and proved bounds.

Run `python -m gradproof.rounding.edge_cases` for every table of this module and its neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding.accumulation import Setting

ORDERED = (3, 4, 7, 8)
ONES = (("bf16", 256), ("bf16", 512), ("bf16", 4096), ("fp16", 2048), ("fp16", 4096), ("fp32", 2**25))


@dataclass(frozen=True)
class Cancelled:
    """Gradients whose mean is near zero: `error` is |G - mean|, `relative` that over |mean|, None where mean is zero.

    `against` is the error over mean |g_i|, which KANI-GA-029 bounds by `allowed`.
    """

    setting: Setting
    gradients: tuple[Fraction, ...]
    mean: Fraction
    error: Fraction
    against: Fraction
    allowed: Fraction

    @property
    def relative(self) -> Fraction | None:
        """The error over |mean|."""
        return self.error / abs(self.mean) if self.mean else None


def cancelling(fmt: str, places: int | None) -> Cancelled:
    """1, 1.5 u, -1 and -(1.5 - 2^-places) u in a window of four: relative error 2^(places - 1); None: the mean is zero.

    fl(1 + 1.5 u) is 1 + 2 u, so u / 2 too much stays when the rest cancels. Raises ValueError unless the last gradient
    is a number of the format.
    """
    from gradproof.rounding.accumulation import error_of, exact_mean
    from gradproof.rounding.scaling import relative_bound

    u = FORMATS[fmt].u
    left = Fraction(0) if places is None else Fraction(1, 2**places)
    g = (Fraction(1), Fraction(3, 2) * u, Fraction(-1), (left - Fraction(3, 2)) * u)
    setting = Setting(4, buffer=fmt)
    c, a = relative_bound(setting)
    sizes = sum(map(abs, g), Fraction(0)) / 4
    error = error_of(setting, g)
    return Cancelled(setting, g, exact_mean(setting, g), error, error / sizes, c + a / sizes)


def swamped(fmt: str, n: int) -> Fraction:
    """The mean of n ones, 1/n added n times, where n is a power of two: min(1, 2^p / n), since 2^p / n + 1/n is a tie.

    Raises ValueError for other n, and where 1/n is no normal number.
    """
    f = FORMATS[fmt]
    if n < 1 or n & (n - 1) or Fraction(1, n) < Fraction(2) ** f.emin:
        raise ValueError(f"the closed form is for powers of two in the normal range of {fmt}")
    return min(Fraction(1), Fraction(2**f.p, n))


def swamped_by_adding(fmt: str, n: int) -> Fraction:
    """The same by n additions."""
    f, total = FORMATS[fmt], Fraction(0)
    for _ in range(n):
        total = f.round(total + f.round(Fraction(1, n)))
    return total


def division_bounds(fmt: str, n: int) -> tuple[Fraction, Fraction]:
    """What division before, and after, the accumulation may lose for |g| <= 1: certified bounds."""
    from gradproof.rounding.bound import proved

    one = Setting(n, buffer=fmt)
    return proved(one)[0], proved(replace(one, scale="after"))[0]


def cancelling_rows() -> Iterator[str]:
    """Cancellation in Markdown."""
    yield "| format | error over abs(mean) | error over mean abs(g) | allowed, KANI-GA-029 |"
    yield "|---|---|---|---|"
    for fmt in ("bf16", "fp16", "fp32"):
        for places in (1, FORMATS[fmt].p - 1, None):
            made = cancelling(fmt, places)
            relative = "the mean is 0" if made.relative is None else f"{float(made.relative):.3g}"
            yield f"| {fmt} | {relative} | {float(made.against):.3g} | {float(made.allowed):.3g} |"


def swamped_rows() -> Iterator[str]:
    """Means of ones in Markdown."""
    yield "| format | N | mean of N ones |"
    yield "|---|---|---|"
    yield from (f"| {fmt} | {n} | {float(swamped(fmt, n)):g} |" for fmt, n in ONES)


def order_rows() -> Iterator[str]:
    """Division before and after the accumulation in Markdown."""

    yield "| format | N | smallest g, before | after | overflows from, before | after | bound, before | after |"
    yield "|---|---|---|---|---|---|---|---|"
    for fmt in ("fp16", "bf16", "fp32"):
        for n in ORDERED:
            numbers = (*reach_of_orders(1, n, fmt).values(), *division_bounds(fmt, n))
            before, over, after, late, *bounds = (f"{float(x):.4g}" for x in numbers)
            yield f"| {fmt} | {n} | {' | '.join((before, after, over, late, *bounds))} |"


def size_rows() -> Iterator[str]:
    """The contract's tolerances at three sizes in Markdown."""
    from gradproof.rounding.scaling import rows

    for setting, eps in ((Setting(1), Fraction(1, 10**5)), (Setting(1, buffer="fp16"), Fraction(1, 10**3))):
        yield f"{setting.buffer}:"
        yield ""
        yield from rows(setting, (eps,), most=1024)
        yield ""


def tables() -> Mapping[str, Callable[[], Iterator[str]]]:
    """Every table by name."""
    from gradproof.rounding.reciprocal import reciprocal_rows

    return {
        "sizes": size_rows, "reciprocals": reciprocal_rows, "cancelling": cancelling_rows, "orders": order_rows,
        "swamping": swamped_rows, "survival": survival_rows,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are named, or all of them; 2 for a name that there is not."""
    known = tables()
    names = list(sys.argv[1:] if arguments is None else arguments) or list(known)
    for name in names:
        if name not in known:
            print(f"no table {name!r}; known: {', '.join(known)}", file=sys.stderr)
            return 2
        print(f"## {name}", "", *known[name](), "", sep="\n")
    return 0


# -- Which gradients survive in a 16-bit buffer, by loss scale and N, and where they overflow, as closed forms.
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


if __name__ == "__main__":
    sys.exit(main())
