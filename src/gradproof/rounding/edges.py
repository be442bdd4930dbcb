"""Gradients that cancel, are swamped, or are divided late: exact, by software floats and proved bounds.

Run `python -m gradproof.rounding.edges` for every table of this module and its neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gradproof.arith.formats import FORMATS
from gradproof.rounding.setting import Setting

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
    from gradproof.rounding.scales import relative_bound
    from gradproof.rounding.setting import error_of, exact_mean

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
    from gradproof.rounding.answer import proved

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
    from gradproof.rounding.survival import reach_of_orders

    yield "| format | N | smallest g, before | after | overflows from, before | after | bound, before | after |"
    yield "|---|---|---|---|---|---|---|---|"
    for fmt in ("fp16", "bf16", "fp32"):
        for n in ORDERED:
            numbers = (*reach_of_orders(1, n, fmt).values(), *division_bounds(fmt, n))
            before, over, after, late, *bounds = (f"{float(x):.4g}" for x in numbers)
            yield f"| {fmt} | {n} | {' | '.join((before, after, over, late, *bounds))} |"


def size_rows() -> Iterator[str]:
    """The contract's tolerances at three sizes in Markdown."""
    from gradproof.rounding.scales import rows

    for setting, eps in ((Setting(1), Fraction(1, 10**5)), (Setting(1, buffer="fp16"), Fraction(1, 10**3))):
        yield f"{setting.buffer}:"
        yield ""
        yield from rows(setting, (eps,), most=1024)
        yield ""


def tables() -> Mapping[str, Callable[[], Iterator[str]]]:
    """Every table by name."""
    from gradproof.rounding.reciprocals import reciprocal_rows
    from gradproof.rounding.survival import survival_rows

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


if __name__ == "__main__":
    sys.exit(main())
