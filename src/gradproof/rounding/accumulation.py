"""One question about accumulation: how many gradients, how large, in which formats, scaled how, summed in which order.

G = sum of x_i, x_i = fl(w_i g_i), in the format of the buffer; the error is |G - sum of w_i g_i|, exactly. With
`inputs` the g_i are reals that are rounded to that format once, and that rounding counts; without, they are numbers of
the buffer's format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gradproof.arith import linear
from gradproof.arith.bounds import short
from gradproof.arith.formats import FORMATS, Format
from gradproof.arith.linear import Linear, times
from gradproof.arith.soft import Soft

# -- Orders of summation, written once: the same text runs on software floats, linear floats and NumPy scalars.
Numbers = Sequence[Any]


def sequential(x: Numbers) -> Any:
    """Left to right."""
    total = x[0]
    for term in x[1:]:
        total = total + term
    return total


def pairwise(x: Numbers) -> Any:
    """The sum of the sums of both halves, the first one the shorter where they differ."""
    if len(x) == 1:
        return x[0]
    half = len(x) // 2
    return pairwise(x[:half]) + pairwise(x[half:])


def blocked(x: Numbers, size: int) -> Any:
    """Blocks of `size` left to right, then the blocks' sums left to right."""
    return sequential([sequential(x[i : i + size]) for i in range(0, len(x), size)])


def residual(t: Any, s: Any, y: Any) -> Any:
    """(t - s) - y, the error of t = s + y as a number."""
    return linear.residual(t, s, y) if isinstance(t, Linear) else (t - s) - y


def kahan(x: Numbers) -> Any:
    """Compensated: the error of each addition is taken from the next term."""
    total, late = x[0], None
    for term in x[1:]:
        y = term if late is None else term - late
        t = total + y
        late, total = residual(t, total, y), t
    return total


def neumaier(x: Numbers) -> Any:
    """The errors of the additions are summed beside the sum and taken off at the end."""
    total, late = x[0], None
    for term in x[1:]:
        t = total + term
        error = exact_residual(t, total, term)
        late, total = error if late is None else late + error, t
    return total if late is None else total - late


def exact_residual(t: Any, s: Any, y: Any) -> Any:
    """The error of t = s + y, exactly: of the larger one first."""
    if isinstance(t, Linear):
        return linear.residual(t, s, y, ordered=True)
    return (t - s) - y if abs(s) >= abs(y) else (t - y) - s


def ordered_sum(order: str) -> Callable[[Numbers], Any]:
    """The order called `order`: sequential, pairwise, kahan, neumaier, or blocked:SIZE. Raises ValueError."""
    if order in PLAIN:
        return PLAIN[order]
    name, _, size = order.partition(":")
    if name == "blocked" and size.isdigit() and int(size) > 0:
        return lambda x: blocked(x, int(size))
    raise ValueError(f"no order {order!r}; known: {', '.join(PLAIN)}, blocked:SIZE, any")


PLAIN: dict[str, Callable[[Numbers], Any]] = {
    "sequential": sequential, "pairwise": pairwise, "kahan": kahan, "neumaier": neumaier,
}  # fmt: skip


SCALES = ("divide", "multiply", "after", "none")


@dataclass(frozen=True)
class Setting:
    """`scale`: fl(g / n), fl(g fl(1/n)), the sum divided afterwards, or terms as they are, |x_i| <= magnitude / n.

    `weights` (one a gradient, summing to 1) take the place of 1/n; they are rounded to the buffer's format first.
    Raises ValueError for anything that is no setting.
    """

    n: int
    buffer: str = "fp32"
    inputs: str | None = None
    magnitude: Fraction = Fraction(1)
    scale: str = "divide"
    order: str = "sequential"
    weights: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("a window has at least one micro-batch")
        if self.scale not in SCALES:
            raise ValueError(f"no scale {self.scale!r}; known: {', '.join(SCALES)}")
        if self.magnitude <= 0:
            raise ValueError("the magnitude of a gradient is positive")
        if self.weights and (len(self.weights) != self.n or self.scale != "multiply"):
            raise ValueError(f"{self.n} weights, which multiply")
        for name in (self.buffer, *([self.inputs] if self.inputs else [])):
            if name not in FORMATS:
                raise ValueError(f"no format {name!r}; known: {', '.join(FORMATS)}")
        if self.order != "any":
            ordered_sum(self.order)

    @property
    def reach(self) -> Fraction:
        """The largest |g_i|; of terms that are given as they are, the largest |x_i|."""
        return self.magnitude / self.n if self.scale == "none" else self.magnitude

    def shares(self) -> list[Fraction]:
        """The exact weight of each gradient; terms that are given as they are weigh 1."""
        return list(self.weights) or [Fraction(1, 1 if self.scale == "none" else self.n)] * self.n

    def describe(self) -> str:
        """In words."""
        made = f"reals rounded to {self.inputs}" if self.inputs else f"{self.buffer} gradients"
        return f"N={self.n}, {made}, {self.buffer} buffer, |g| <= {float(self.magnitude):g}, {self.scale}, {self.order}"


def largest(fmt: Format, bound: Fraction) -> Fraction:
    """The largest number of a format that is no larger than a bound. Raises OverflowError beyond the format."""
    fmt.round(bound)
    step = fmt.spacing(bound)
    return bound // step * step


def terms(setting: Setting, made: Sequence[Any]) -> list[Any]:
    """The terms that reach the buffer, of gradients in any number system of the buffer's format."""
    n, fmt = setting.n, FORMATS[setting.buffer]
    if setting.scale == "divide":
        return [g / n for g in made]
    if setting.scale == "multiply":
        return [g * fmt.round(w) for g, w in zip(made, setting.shares(), strict=True)]
    return list(made)


def accumulated(setting: Setting, made: Sequence[Any]) -> Any:
    """The sum that a buffer of the setting holds in the end."""
    total = ordered_sum(setting.order)(terms(setting, made))
    return total / setting.n if setting.scale == "after" else total


def _given(setting: Setting, i: int) -> tuple[Linear, Linear]:
    """A gradient, and what the buffer's format holds of it."""
    g = Linear.input(f"g[{i}]", None if setting.inputs else setting.buffer, setting.reach)
    return g, g.rounded(setting.inputs).rounded(setting.buffer) if setting.inputs else g


def term_difference(setting: Setting) -> tuple[Linear, Linear]:
    """x - w g of one of several equal terms on linear floats, and x."""
    g, made = _given(setting, 0)
    scale = {"divide": lambda: made / setting.n, "multiply": lambda: made * Fraction(1, setting.n)}
    x: Linear = scale[setting.scale]() if setting.scale in scale else made
    w = Fraction(1, 1 if setting.scale == "none" else setting.n)
    return x.exact() - Linear("exact", None, ((w, g),), short(times(g.top, w))), x


def difference(setting: Setting) -> Linear:
    """G - sum of w_i g_i on linear floats."""
    given, made = zip(*(_given(setting, i) for i in range(setting.n)), strict=True)
    shares = [(w, g) for w, g in zip(setting.shares(), given, strict=True) if w]
    mean = Linear("exact", None, shares, short(sum(times(g.top, w) for w, g in shares)))
    got: Linear = accumulated(setting, made).exact() - mean
    return got


def error_of(setting: Setting, gradients: Sequence[Fraction]) -> Fraction:
    """|G - sum of w_i g_i| on given gradients, exactly. Raises ValueError where one is outside the setting."""
    if len(gradients) != setting.n or any(abs(g) > setting.reach for g in gradients):
        raise ValueError(f"{setting.n} gradients of at most {setting.reach}")
    if not setting.inputs and not all(FORMATS[setting.buffer].representable(g) for g in gradients):
        raise ValueError(f"a gradient is no {setting.buffer} number")
    made = [Soft(g, setting.inputs or setting.buffer).value for g in gradients]
    got: Fraction = accumulated(setting, [Soft(g, setting.buffer) for g in made]).value
    return abs(got - exact_mean(setting, gradients))


def exact_mean(setting: Setting, gradients: Sequence[Fraction]) -> Fraction:
    """The sum of w_i g_i; of terms that are given as they are, their sum."""
    return sum((w * g for w, g in zip(setting.shares(), gradients, strict=True)), Fraction(0))
