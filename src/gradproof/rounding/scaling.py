"""Sizes, relative error and norms: what an absolute tolerance says about gradients that are not of size one.

Rounding to nearest has no unit of length: without underflow, gradients times a power of two err by that power times as
much. So an absolute tolerance EPS at max |g| = X is a relative one, EPS / X; below half an ulp of X it fails at N = 2.
Over d elements, each in a buffer of its own, the errors of one element add up to ||E||_2 <= sqrt(d) E (KANI-GA-030);
the witness of one element, repeated, attains it. Roots are bounded by rationals on the safe side.

`relative_bound` is the closed form of KANI-GA-029, for any size at once, and for gradients of different sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt

from gradproof.arith.formats import FORMATS
from gradproof.core.outcome import Outcome
from gradproof.rounding.accumulation import Setting
from gradproof.rounding.bound import Answer, answer, proved, thresholds

SIZES = (Fraction(1, 10**4), Fraction(1), Fraction(10**4))
PLACES = 2**64


@dataclass(frozen=True)
class Size:
    """What a tolerance says at one size. `roundings`: how many half ulps of the largest gradient it is.

    `false_at` is the error at the first N that is refuted, with `witness`. `true_up_to == most` means that or more.
    """

    magnitude: Fraction
    relative: Fraction
    roundings: Fraction
    true_up_to: int | None
    undecided: int | None
    false_from: int | None
    most: int
    false_at: Fraction | None
    witness: tuple[Fraction, ...]

    def told(self) -> str:
        """Where it is true, undecided and false."""
        true = "never" if self.true_up_to is None else f"{self.true_up_to}" + (" or more" if self.open_ended else "")
        between = [f"undecided from {self.undecided}"] if self.undecided else []
        return ", ".join(
            [f"true up to {true}", *between, *([f"false from {self.false_from}"] if self.false_from else [])]
        )

    @property
    def open_ended(self) -> bool:
        """Whether the largest N that was asked for is still true."""
        return self.true_up_to == self.most


def sizes(
    setting: Setting, tolerance: Fraction, magnitudes: Iterable[Fraction] = SIZES, most: int = 2**12
) -> list[Size]:
    """Over N = 2^k up to `most`, for each size of the largest gradient: proved, undecided, refuted with an input.

    Raises ValueError where `most` is no power of two, OverflowError as linear floats do.
    """
    return [_size(replace(setting, magnitude=x), tolerance, power(most)) for x in magnitudes]


def power(n: int) -> int:
    """The number itself, a power of two. Raises ValueError for any other."""
    if n < 1 or n & (n - 1):
        raise ValueError(f"the largest N is a power of two, not {n}")
    return n


def _size(setting: Setting, tolerance: Fraction, most: int) -> Size:
    found, x = thresholds(setting, tolerance, most), setting.magnitude
    first = found["false from"]
    made = None if first is None else answer(replace(setting, n=first))
    if made is not None and made.outcome(tolerance) is not Outcome.REFUTED:
        raise ArithmeticError(f"the input at N = {first} does not exceed the tolerance")
    return Size(
        x, tolerance / x, tolerance / FORMATS[setting.buffer].half_ulp(x), found["true up to"],
        found["undecided from"], first, most, made.attained if made else None, made.witness if made else (),
    )  # fmt: skip


def root_above(d: int, places: int = PLACES) -> Fraction:
    """The least multiple of 1 / places that is no less than the square root. Raises ValueError for negative d."""
    below = root_below(d, places)
    return below if below * below == d else below + Fraction(1, places)


def root_below(d: int, places: int = PLACES) -> Fraction:
    """The largest multiple of 1 / places that is no more than the square root. Raises ValueError for negative d."""
    if d < 0:
        raise ValueError("the root of a negative number")
    return Fraction(isqrt(d * places * places), places)


@dataclass(frozen=True)
class Norm:
    """The Euclidean norm of the error over `elements`, each of which is accumulated as the answer's one.

    Raises ValueError without an element.
    """

    of: Answer
    elements: int

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ValueError("a norm needs at least one element")

    @property
    def bound(self) -> Fraction:
        """No norm of an error is larger."""
        return self.of.bound * root_above(self.elements)

    @property
    def attained(self) -> Fraction:
        """No more than the norm where every element is the witness."""
        return self.of.attained * root_below(self.elements)

    def outcome(self, tolerance: Fraction) -> Outcome:
        """HOLDS where the bound is within the tolerance, REFUTED where the witness is beyond it, else UNKNOWN."""
        if self.bound <= tolerance:
            return Outcome.HOLDS
        return Outcome.REFUTED if self.attained > tolerance else Outcome.UNKNOWN


def relative_bound(setting: Setting) -> tuple[Fraction, Fraction]:
    """c and a with |G - mean| <= c mean |g_i| + a for all inputs of any size that overflow nowhere: KANI-GA-029.

    c is (n - 1) u where n is a power of two, n u where the quotients round, (n - 1) u (1 + 2 u) + 2 u for products with
    fl(1/n); a is what underflow costs. Gradients rounded to `inputs` first pay that as well. Raises ValueError for
    other orders than left to right, for a division afterwards, weights, and inputs wider than the buffer.
    """
    if setting.order != "sequential" or setting.scale not in ("divide", "multiply") or setting.weights:
        raise ValueError("the relative form is for equal weights, scaled before they are added from left to right")
    f, n = FORMATS[setting.buffer], setting.n
    exact = n & (n - 1) == 0
    own, more = (0, 0) if exact else (1, 0) if setting.scale == "divide" else (0, 2)
    lost = (n - 1 + own) * f.u
    low = Fraction(0) if n == 1 else f.tiny / 2
    c, a = lost * (1 + more * f.u) + more * f.u, n * low * (1 + lost)
    if setting.inputs is None:
        return c, a
    given = FORMATS[setting.inputs]
    if given.p > f.p or given.emin < f.emin:
        raise ValueError(f"{given.name} gradients are rounded again by a {f.name} buffer")
    return c + (1 + c) * given.u, a + (1 + c) * given.tiny / 2


def any_size(setting: Setting, pieces: int = 12) -> tuple[Fraction, Fraction]:
    """The error against max |g|, two-sided, whatever that maximum is, as long as nothing under- or overflows.

    Bounds grow with the magnitude: one for each piece of a binade, against the piece's lower end. Every other binade is
    this one times a power of two. Raises ValueError without a piece.
    """
    if pieces < 1:
        raise ValueError("at least one piece of a binade")
    ends = [1 + Fraction(k, pieces) for k in range(pieces + 1)]
    made = [replace(setting, magnitude=x) for x in ends[1:]]
    bound = max(proved(s)[0] / low for s, low in zip(made, ends, strict=False))
    return bound, max(answer(s).attained / s.magnitude for s in made)


def rows(setting: Setting, tolerances: Sequence[Fraction], most: int) -> Iterator[str]:
    """The table of sizes in Markdown, a row for each tolerance and size."""
    yield "| tolerance | max abs(g) | relative | half ulps of max abs(g) | N = 2^k |"
    yield "|---|---|---|---|---|"
    for tolerance in tolerances:
        for s in sizes(setting, tolerance, most=most):
            numbers = (tolerance, s.magnitude, s.relative, s.roundings)
            yield f"| {' | '.join(f'{float(x):.3g}' for x in numbers)} | {s.told()} |"
