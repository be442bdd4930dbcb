"""In formats of 5 to 8 bits brute force knows the exact worst case: every bound is at or above it.

The brute force shares nothing with the bounds but the list of a format's numbers: it rounds by distance to neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np
import pytest

from gradproof.arith.bounds import Rounding
from gradproof.arith.formats import FORMATS, Format
from gradproof.rounding import farkas
from gradproof.rounding.accumulation import PLAIN, Setting, difference, error_of
from gradproof.rounding.bound import any_order_bound
from gradproof.rounding.certificate import certify

Ints = np.ndarray[Any, np.dtype[Any]]
Tree = int | tuple[Any, Any]

TINY = {
    "t5": Format("t5", 5, 3, 0, 1), "wide5": Format("wide5", 5, 2, -2, 3), "t6": Format("t6", 6, 3, -2, 3),
    "t7": Format("t7", 7, 4, -2, 3), "e4m3": Format("e4m3", 8, 4, -6, 7), "e5m2": Format("e5m2", 8, 3, -14, 15),
}  # fmt: skip
SIZES = range(2, 7)


@pytest.fixture(autouse=True)
def _formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, f in TINY.items():
        monkeypatch.setitem(FORMATS, name, f)


@lru_cache
def numbers(f: Format) -> tuple[Ints, Ints]:
    """The numbers of a format and twice the midpoints between them, in units of its smallest subnormal."""
    half = [int(x / f.tiny) for x in f.nonnegative()]
    values = np.array([-x for x in half[:0:-1]] + half)
    return values, values[:-1] + values[1:]


def nearest(f: Format, twice: Ints) -> Ints:
    """What half of some integers round to: the neighbour beyond the midpoint, at a midpoint the one of even place."""
    values, middles = numbers(f)
    assert int(np.abs(twice).max()) <= 2 * values[-1], "overflow is excluded"
    k = np.searchsorted(middles, twice)
    tie = (k < len(middles)) & (middles[np.minimum(k, len(middles) - 1)] == twice)
    zero = len(values) // 2
    return values[np.where(tie & ((k - zero) % 2 == 1), k + 1, k)]


def fl(f: Format, z: Ints) -> Ints:
    """What integers round to."""
    return nearest(f, 2 * z)


def near(f: Format, x: Fraction) -> Fraction:
    """What a rational rounds to."""
    below = x / f.tiny * 2
    if below.denominator == 1:
        return int(nearest(f, np.array([int(below)]))[0]) * f.tiny
    values, middles = numbers(f)  # the midpoints are whole multiples of half a unit: x is none
    return int(values[np.searchsorted(middles, below.__floor__(), side="right")]) * f.tiny


@dataclass
class Leaf:
    """What one term can be, in units, and the least exact share for each, in units over `scale`; or every pair."""

    values: Ints
    exact: Ints


def scaled(setting: Setting, g: Fraction, share: Fraction) -> Fraction:
    f = FORMATS[setting.buffer]
    if setting.scale == "divide":
        return near(f, g / near(f, Fraction(setting.n)))
    return near(f, g * near(f, share)) if setting.scale == "multiply" else g


def leaves(setting: Setting) -> tuple[list[Leaf], int]:
    """Every gradient of a setting, scaled, with its exact share of the mean; and the denominator of the shares."""
    f, own = FORMATS[setting.buffer], setting.magnitude
    own = own if setting.scale != "none" else own / setting.n
    pairs = [(x, x) for x in (int(v) * f.tiny for v in numbers(f)[0]) if abs(x) <= own]
    if setting.inputs:
        fine = FORMATS[setting.inputs]
        values = [int(v) * fine.tiny for v in numbers(fine)[0]]
        ends = [(a + b) / 2 for a, b in itertools.pairwise(values)]
        pairs = [(near(f, v), g) for v, lo, hi in zip(values[1:-1], ends, ends[1:], strict=False)
                 for g in (max(lo, -own), min(hi, own)) if lo <= g <= hi and abs(g) <= own]  # fmt: skip
    shares = setting.shares() if setting.scale != "none" else [Fraction(1)] * setting.n
    scale = lcm(*((w * g / f.tiny).denominator for _, g in pairs for w in shares))
    made = []
    for w in shares:
        terms = [int(scaled(setting, x, w) / f.tiny) for x, _ in pairs]
        made.append(Leaf(np.array(terms), np.array([int(w * g / f.tiny * scale) for _, g in pairs])))
    return made, scale


def lowest(state: tuple[Ints, ...], exact: Ints) -> tuple[tuple[Ints, ...], Ints]:
    """Each state once, with the least exact sum."""
    order = np.lexsort((exact, *state))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([np.diff(s[order]) != 0 for s in state], axis=0)
    return tuple(s[order][new] for s in state), exact[order][new]


def plus(f: Format, a: Leaf, b: Leaf) -> Leaf:
    (values,), exact = lowest(
        (fl(f, np.add.outer(a.values, b.values)).ravel(),), np.add.outer(a.exact, b.exact).ravel()
    )
    return Leaf(values, exact)


def kahan(f: Format, x: Sequence[Any]) -> tuple[Any, Any]:
    """A step of the sum: total and what is late, from (total, late) and a term."""
    total, late, term = x
    y = fl(f, term - late)
    t = fl(f, total + y)
    return t, fl(f, fl(f, t - total) - y)


def neumaier(f: Format, x: Sequence[Any]) -> tuple[Any, Any]:
    total, late, term = x
    t = fl(f, total + term)
    large = np.abs(total) >= np.abs(term)
    first, second = np.where(large, total, term), np.where(large, term, total)
    return t, fl(f, late + fl(f, fl(f, t - first) - second))


STEPS: dict[str, Callable[[Format, Sequence[Any]], tuple[Any, Any]]] = {"kahan": kahan, "neumaier": neumaier}


def compensated(f: Format, order: str, made: list[Leaf]) -> Leaf:
    total, late, exact = made[0].values, np.zeros_like(made[0].values), made[0].exact
    for leaf in made[1:]:
        t, s = STEPS[order](f, (total[:, None], late[:, None], leaf.values[None, :]))
        (total, late), exact = lowest((t.ravel(), s.ravel()), np.add.outer(exact, leaf.exact).ravel())
    return Leaf(total if order == "kahan" else fl(f, total - late), exact)


def in_order(order: str, x: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The sum of x in a plain order, with a given addition."""
    if order == "pairwise" and len(x) > 1:
        return add(*(in_order(order, part, add) for part in (x[: len(x) // 2], x[len(x) // 2 :])))
    if order.startswith("tree:"):
        rest = iter(x)
        return grown(eval(order[5:]), lambda: next(rest), add)
    size = int(order[8:]) if order.startswith("blocked") else 1
    total = None
    for k in range(0, len(x), size):
        block = x[k]
        for term in x[k + 1 : k + size]:
            block = add(block, term)
        total = block if total is None else add(total, block)
    return total


def worst_case(setting: Setting) -> Fraction:
    """The largest |G - mean| over every input; the sums at which it is largest are its mirror image."""
    f = FORMATS[setting.buffer]
    made, scale = leaves(setting)
    if setting.order in STEPS:
        total = compensated(f, setting.order, made)
    else:
        total = in_order(setting.order, made, lambda a, b: plus(f, a, b))
    values = total.values
    if setting.scale == "after":
        by = near(f, Fraction(setting.n))
        values = np.array([int(near(f, int(v) * f.tiny / by) / f.tiny) for v in values])
    errors = values * scale - total.exact
    assert errors.max() >= 0
    return Fraction(int(errors.max()), scale) * f.tiny


def enumerated(setting: Setting) -> Fraction:
    """The same, one input after another, with nothing left out."""
    f, n = FORMATS[setting.buffer], setting.n
    made, scale = leaves(setting)
    axes = [tuple(-1 if i == k else 1 for i in range(n)) for k in range(n)]
    x = [leaf.values.reshape(axis) for leaf, axis in zip(made, axes, strict=True)]
    if setting.order in STEPS:
        total, late = x[0], np.zeros_like(x[0])
        for term in x[1:]:
            total, late = STEPS[setting.order](f, (total, late, term))
        total = total if setting.order == "kahan" else fl(f, total - late)
    else:
        total = in_order(setting.order, x, lambda a, b: fl(f, a + b))
    for leaf, axis in zip(made, axes, strict=True):
        total = total * (scale if axis == axes[0] else 1) - leaf.exact.reshape(axis)
    return Fraction(int(np.abs(total).max()), scale) * f.tiny


def trees(n: int, first: int = 0) -> Iterator[Tree]:
    """Every binary tree with n leaves, a + b and b + a once; a leaf is its place."""
    if n == 1:
        yield first
    for k in range(1, n // 2 + 1):
        rights = list(trees(n - k, first + k))
        for i, left in enumerate(trees(k, first)):
            yield from ((left, right) for right in rights[i if 2 * k == n else 0 :])


def grown(tree: Tree, leaf: Callable[[], Any], add: Callable[[Any, Any], Any]) -> Any:
    """The sum that a tree stands for, its leaves taken from left to right."""
    return leaf() if isinstance(tree, int) else add(grown(tree[0], leaf, add), grown(tree[1], leaf, add))


def summed(tree: Tree) -> Callable[[Sequence[Any]], Any]:
    """A tree as an order of summation."""
    return lambda x: grown(tree, iter(x).__next__, lambda a, b: a + b)


def proved(setting: Setting) -> Fraction | None:
    """The bound of a setting, checked by the checker; None where a sum may overflow."""
    try:
        certificate = certify(difference(setting))
    except OverflowError:
        return None
    assert farkas.check(certificate.text()) == certificate.bound
    return certificate.bound


def compared(settings: list[Setting]) -> list[tuple[Setting, Fraction, Fraction]]:
    """Settings with their bound and worst case, none of the bounds below."""
    made = [(s, bound, worst_case(s)) for s in settings if (bound := proved(s)) is not None]
    assert [f"{s.describe()}: {bound} < {worst}" for s, bound, worst in made if bound < worst] == []
    return made


PLAIN_ORDERS = ("sequential", "pairwise", "blocked:2", "blocked:4")
COMPENSATED = ("kahan", "neumaier")
SCALES = ("none", "divide", "multiply", "after")


def whole(fmt: str, n: int, scale: str) -> Fraction:
    """A magnitude that keeps sums in range, and terms in the format."""
    most = Fraction(1) if scale in ("divide", "multiply") or n <= TINY[fmt].largest else Fraction(1, 2)
    return most if scale != "none" else n * most


def settings(fmt: str, scale: str, orders: Sequence[str]) -> list[Setting]:
    return [Setting(n, fmt, magnitude=whole(fmt, n, scale), scale=scale, order=o) for o in orders for n in SIZES]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fmt", TINY)
def test_no_bound_is_below_the_worst_case(fmt: str, scale: str) -> None:
    made = compared(settings(fmt, scale, PLAIN_ORDERS))
    assert any(worst > 0 for _, _, worst in made)
    assert {s.n for s, _, _ in made} >= {2, 3}


@pytest.mark.parametrize("order", COMPENSATED)
@pytest.mark.parametrize("fmt", TINY)
def test_no_compensated_bound_is_below_the_worst_case(fmt: str, order: str) -> None:
    most, scales = (6, SCALES) if TINY[fmt].bits < 8 else (4 if fmt == "e4m3" else 3, SCALES[:2])
    made = compared([s for scale in scales for s in settings(fmt, scale, [order]) if s.n <= most])
    assert any(worst > 0 for _, _, worst in made)


def test_the_suite_is_tight_somewhere() -> None:
    """A brute force that saw only a part of the inputs would seldom meet the bound."""
    made = compared([s for fmt in TINY for s in settings(fmt, "none", PLAIN_ORDERS)])
    attained = [s for s, bound, worst in made if bound == worst > 0]
    assert {s.n for s in attained} >= {2, 4}
    assert {s.buffer for s in attained} >= {"wide5", "t6", "t7", "e4m3", "e5m2"}


@pytest.mark.parametrize("n", SIZES)
def test_every_tree_is_below_its_own_and_the_any_order_bound(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape; the terms are alike, so which term stands at which leaf changes nothing."""
    shapes = list(trees(n))
    assert len(shapes) == {2: 1, 3: 1, 4: 2, 5: 3, 6: 6}[n]
    for tree in shapes:
        monkeypatch.setitem(PLAIN, f"tree:{tree}", summed(tree))
    for fmt in TINY:
        for term in (Fraction(1), Fraction(1, 4), Fraction(5, 8), Fraction(1, n)):
            if n * term > TINY[fmt].largest / 2 or n > 2 ** TINY[fmt].p:
                continue
            sums = [Setting(n, fmt, magnitude=n * term, scale="none", order=f"tree:{tree}") for tree in shapes]
            most = any_order_bound(fmt, n, term)
            for setting in sums:
                worst = worst_case(setting)
                assert worst <= certify(difference(setting)).bound
                assert worst <= most, (fmt, term, setting.order, worst, most)


@pytest.mark.parametrize(
    ("fine", "fmt"), [("e4m3", "t6"), ("t7", "t6"), ("t6", "wide5"), ("e5m2", "e4m3"), ("t6", "t7")]
)
def test_inputs_that_are_rounded_first(fine: str, fmt: str) -> None:
    orders, sizes = ("sequential", "pairwise", "kahan"), range(2, 4 if fine == "e5m2" else 5)
    made = compared(
        [Setting(n, fmt, fine, Fraction(1), scale, order) for scale in SCALES[:3] for order in orders for n in sizes]
    )  # fmt: skip
    assert any(worst > 0 for _, _, worst in made)


def test_weights_and_other_magnitudes() -> None:
    thirds, halves = (Fraction(1, 6), Fraction(1, 3), Fraction(1, 2)), (Fraction(1, 4), Fraction(3, 4))
    made = compared(
        [Setting(len(w), fmt, magnitude=most, scale="multiply", order=order, weights=w)
         for fmt in TINY for w in (thirds, halves) for order in ("sequential", "pairwise", "kahan", "neumaier")
         for most in (Fraction(1), Fraction(3, 2), Fraction(1, 3))]
    )  # fmt: skip
    assert any(worst > 0 for _, _, worst in made)


ALL_AT_ONCE = [
    *(("t5", n, s, o) for n in (2, 3) for s in SCALES[:3] for o in (*PLAIN_ORDERS, *COMPENSATED)),
    *(("wide5", n, s, o) for n in (3, 4) for s in SCALES[:3] for o in ("pairwise", *COMPENSATED)),
    *(("t6", 3, "divide", o) for o in (*PLAIN_ORDERS, *COMPENSATED)), ("e4m3", 2, "divide", "sequential"),
]  # fmt: skip


@pytest.mark.parametrize(("fmt", "n", "scale", "order"), ALL_AT_ONCE)
def test_the_brute_force_leaves_nothing_out(fmt: str, n: int, scale: str, order: str) -> None:
    setting = Setting(n, fmt, magnitude=whole(fmt, n, scale), scale=scale, order=order)
    assert worst_case(setting) == enumerated(setting)


@pytest.mark.parametrize("order", [*PLAIN_ORDERS, *COMPENSATED])
@pytest.mark.parametrize("scale", SCALES)
def test_the_brute_force_means_what_the_settings_mean(scale: str, order: str) -> None:
    setting = Setting(3, "t5", magnitude=whole("t5", 3, scale), scale=scale, order=order)
    own = setting.magnitude if scale != "none" else setting.magnitude / 3
    f = TINY["t5"]
    values = [s * x for x in f.nonnegative() if x <= own for s in (1, -1)]
    assert worst_case(setting) == max(error_of(setting, g) for g in itertools.product(values, repeat=3))


def test_its_rounding_is_the_format_s() -> None:
    for f in TINY.values():
        eighths = [Fraction(k, 8) * f.tiny for k in range(-64, 65)] + [Fraction(k, 48) for k in range(-72, 73)]
        assert [near(f, x) for x in eighths] == [f.round(x) for x in eighths]


def halved(honest: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, bound: honest(self, bound) / 2 if isinstance(bound, Fraction) else honest(self, bound) // 2


def halve(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsound contract: rounding errs by at most half of what it does."""
    for owner in (Format, Rounding):
        for name in ("half_ulp", "worst_error"):
            monkeypatch.setattr(owner, name, halved(getattr(owner, name)))


@pytest.mark.parametrize("order", [*PLAIN_ORDERS, *COMPENSATED])
def test_half_of_the_true_error_is_caught(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract that promises half of what rounding keeps: its bounds fall below the worst case."""
    found = [s for fmt in ("t6", "t7") for s in settings(fmt, "none", [order]) if s.n in (2, 4)]
    assert all(certify(difference(s)).bound >= worst_case(s) for s in found)
    halve(monkeypatch)
    assert any(certify(difference(s)).bound < worst_case(s) for s in found)


def test_half_of_the_true_error_is_caught_for_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(4, "t6", magnitude=Fraction(4), scale="none", order="sequential")
    assert any_order_bound("t6", 4, Fraction(1)) >= worst_case(setting)
    halve(monkeypatch)
    assert any_order_bound("t6", 4, Fraction(1)) < worst_case(setting)


def test_a_certificate_of_half_the_error_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        halve(patched)
        text = certify(difference(Setting(4, "t6"))).text()
    with pytest.raises(farkas.Refused):
        farkas.check(text)


UNSOUND = {
    "quotient_error": lambda honest: lambda self, bound, n: honest(self, bound, n) // 2,
    "sum_error": lambda honest: lambda self, bound, quotient, n: honest(self, bound, quotient, n) * 7 // 8,
    "pair_error": lambda honest: lambda self, bound, quotient, n: honest(self, bound, quotient, n) * 7 // 8,
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_bound_of_quotients_that_is_too_small_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Setting(n, fmt) for fmt in ("t7", "e4m3") for n in (3, 5, 6)]
    worst = [worst_case(s) for s in found]
    assert all(certify(difference(s)).bound >= w for s, w in zip(found, worst, strict=True))
    monkeypatch.setattr(Rounding, name, UNSOUND[name](getattr(Rounding, name)))
    below = [certify(difference(s)).bound < w for s, w in zip(found, worst, strict=True)]
    assert any(below)
