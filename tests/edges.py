"""Gradients that cancel, are swamped, or are divided late: the tables of docs/edges.md.

`python -m tests.edges` prints every table, and `python -m tests.edges NAME` one. Exact, by software floats and bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gradproof.arith.formats import FORMATS
from gradproof.rounding.accumulation import Setting, error_of, exact_mean
from gradproof.rounding.bound import proved, relative_bound, thresholds
from gradproof.rounding.edge_cases import (
    DIVIDE,
    DIVISORS,
    MULTIPLY,
    NAMES,
    SCALES,
    WINDOWS,
    reach_of_orders,
    smallest_survivor,
    worst,
)  # fmt: skip

ORDERED = (3, 4, 7, 8)
SIZES, MOST = (Fraction(1, 10**4), Fraction(1), Fraction(10**4)), 1024
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


def division_bounds(fmt: str, n: int) -> tuple[Fraction, Fraction]:
    """What division before, and after, the accumulation may lose for |g| <= 1: certified bounds."""

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
    """The contract's tolerances at three sizes of the largest gradient in Markdown."""

    for setting, eps in ((Setting(1), Fraction(1, 10**5)), (Setting(1, buffer="fp16"), Fraction(1, 10**3))):
        yield f"{setting.buffer}:"
        yield ""
        yield "| tolerance | max abs(g) | relative | half ulps of max abs(g) | N = 2^k |"
        yield "|---|---|---|---|---|"
        for x in SIZES:
            numbers = (eps, x, eps / x, eps / FORMATS[setting.buffer].half_ulp(x))
            found = thresholds(replace(setting, magnitude=x), eps, MOST)
            yield f"| {' | '.join(f'{float(z):.3g}' for z in numbers)} | {_ladder(found)} |"
        yield ""


def _ladder(found: Mapping[str, int | None]) -> str:
    """Where a tolerance is true, undecided and false, over N = 2^k up to MOST."""
    true = found["true up to"]
    words = [f"true up to {'never' if true is None else true}" + (" or more" if true == MOST else "")]
    return ", ".join([*words, *(f"{k} {v}" for k, v in found.items() if v and k != "true up to")])


def tables() -> Mapping[str, Callable[[], Iterator[str]]]:
    """Every table by name."""

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


def survival_rows() -> Iterator[str]:
    """The smallest fp16 gradient that survives a division by N, for each loss scale, in Markdown."""
    yield f"| loss scale | {' | '.join(f'N = {n}' for n in WINDOWS)} |"
    yield "|---|" + "---|" * len(WINDOWS)
    for s in SCALES:
        yield f"| {s} | {' | '.join(_least(*smallest_survivor(s, n)) for n in WINDOWS)} |"


def _least(threshold: Fraction, itself: bool) -> str:
    return f"{'' if itself else '> '}{float(threshold):.3g}"


def reciprocal_rows() -> Iterator[str]:
    """The table of both methods in Markdown."""
    yield "| format | N | x / N, ulps | x * fl(1/N), ulps | times as much | results that differ |"
    yield "|---|---|---|---|---|---|"
    for fmt in NAMES:
        for n in DIVISORS:
            quotient, product = worst(DIVIDE, n, fmt), worst(MULTIPLY, n, fmt)
            times = float(product.ulps / quotient.ulps)
            yield f"| {fmt} | {n} | {quotient.ulps} | {product.ulps} | {times:.3g} | {float(product.share):.1%} |"


if __name__ == "__main__":
    sys.exit(main())
