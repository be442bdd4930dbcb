"""Linear floats, their certificates and the checker; every lie in a certificate is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from gradproof.arith import exact
from gradproof.arith.bounds import accumulation_bound, closed_form, scaling_bound
from gradproof.arith.formats import FORMATS
from gradproof.arith.linear import Linear, NonLinear, residual
from gradproof.arith.soft import Soft
from gradproof.rounding.accumulation import Setting, accumulated, difference, error_of
from gradproof.rounding.bound import any_order_bound
from gradproof.rounding.certificate import certify
from gradproof.rounding.farkas import Refused, check
from gradproof.rounding.witness_sequential import sequential_witness

ONE = Fraction(1)


def text_of(**options: Any) -> dict[str, Any]:
    """A certificate of a setting of 8 gradients."""
    return certify(difference(Setting(8, **options))).text()


@pytest.mark.parametrize("n", [2, 4, 8, 64, 512])
@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp16"])
def test_the_bound_is_the_closed_form_at_powers_of_two(n: int, fmt: str) -> None:
    made = certify(difference(Setting(n, buffer=fmt)))
    assert made.bound == closed_form(fmt, n) + scaling_bound(fmt, n, ONE)
    assert made.bound == accumulation_bound(fmt, n, ONE) + scaling_bound(fmt, n, ONE)
    assert check(made.text()) == made.bound


@pytest.mark.parametrize("n", [2, 8, 64, 256])
def test_the_bound_is_attained_in_fp32(n: int) -> None:
    worst = error_of(Setting(n), sequential_witness(n, "fp32"))
    assert worst == closed_form("fp32", n)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12, 24])
def test_elsewhere_the_witness_is_near(n: int) -> None:
    worst = error_of(Setting(n), sequential_witness(n, "fp32"))
    assert 0 < worst <= certify(difference(Setting(n))).bound <= worst * Fraction(3, 2)


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:3", "kahan", "neumaier"])
@pytest.mark.parametrize("scale", ["divide", "multiply", "after", "none"])
def test_every_order_and_scale_has_a_certificate(order: str, scale: str) -> None:
    made = certify(difference(Setting(7, order=order, scale=scale)))
    assert check(made.text()) == made.bound > 0


def test_compensation_does_not_grow_with_n() -> None:
    small, large = (certify(difference(Setting(n, order="kahan"))).bound for n in (16, 256))
    assert large < small * 2
    assert certify(difference(Setting(256))).bound > 25 * large


def test_the_bound_of_a_16_bit_gradient_counts_its_rounding() -> None:
    made = certify(difference(Setting(4, inputs="fp16"))).bound
    assert made == FORMATS["fp16"].half_ulp(ONE) + certify(difference(Setting(4))).bound - 4 * FORMATS["fp32"].tiny / 2


def test_a_factor_of_zero_and_a_residual_turned_round_have_certificates() -> None:
    s, y = Linear.input("s", "bf16", Fraction(81469, 118)), Linear.input("y", "bf16", Fraction(40347, 14786))
    late = -residual(s + y, s, y)
    for made in (certify(late.exact()), certify((s * 0).exact())):
        assert check(made.text()) == made.bound
    text = text_of()
    for unit in (300.0, True, -1, 10**9):
        with pytest.raises(Refused):
            check(text | {"unit": unit})


def test_a_sum_in_fp64_has_a_certificate() -> None:
    text = certify(difference(Setting(8, buffer="fp64"))).text()
    assert check(text) == closed_form("fp64", 8) + scaling_bound("fp64", 8, ONE)
    text["unit"] = 1000
    with pytest.raises(Refused, match="coarser"):
        check(text)


def test_a_forgotten_scale_is_the_whole_difference() -> None:
    given = [Linear.input(f"g[{i}]", "fp32", ONE) for i in range(4)]
    mean = sum((exact(g) for g in given[1:]), exact(given[0])) / 4
    bound = certify(accumulated(Setting(4, scale="none"), given).exact() - mean).bound
    assert 3 <= bound < Fraction(30001, 10000)


def test_a_constant_is_rounded_before_it_is_added() -> None:
    x, third = Linear.input("x", "fp32", Fraction(1, 2)), Fraction(1, 3)
    bound = certify((x + third).exact() - x.exact()).bound
    assert bound >= max(abs((Soft(v, "fp32") + third).value - v) for v in (Fraction(1, 2), Fraction(0)))
    with pytest.raises(NonLinear):
        Linear.input("x", "fp16", ONE) + third


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x * x,
        bool,
        float,
        lambda x: x < 1,
        lambda x: x.sqrt(),
        lambda x: residual(x, x, x),
        lambda x: x + True,
    ],
)
def test_what_is_not_linear_is_refused(use: Callable[[Linear], object]) -> None:
    with pytest.raises(NonLinear):
        use(Linear.input("x", "fp32", ONE))


def test_what_may_overflow_is_refused() -> None:
    big = Linear.input("x", "fp16", Fraction(65504))
    with pytest.raises(OverflowError):
        big + big


def smaller_error(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "round")
    row[4] = f"{int(row[4], 16) // 2:x}"


def negative_error(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "exact")
    row[4] = "-1"


def smaller_reach(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "round")
    row[3] = f"{int(row[3], 16) // 2:x}"


def smaller_bound(text: dict[str, Any]) -> None:
    text["bound"] = str(Fraction(text["bound"]) * Fraction(999, 1000))


def other_multiplier(text: dict[str, Any]) -> None:
    text["multipliers"][-2] = "2"


def multiplier_of_an_input(text: dict[str, Any]) -> None:
    at = next(k for k, r in enumerate(text["rows"]) if r[0] == "input")
    text["multipliers"][at] = "1"


def multiplier_left_out(text: dict[str, Any]) -> None:
    text["multipliers"].pop()


def rounding_called_exact(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "round")
    row[0], row[4] = "fits", "0"


def rounding_called_a_shift(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "round")
    row[0], row[4] = "shift", "0"


def a_later_row(text: dict[str, Any]) -> None:
    row = next(r for r in text["rows"] if r[0] == "round")
    row[2][0][1] = len(text["rows"]) - 1


def no_number(text: dict[str, Any]) -> None:
    text["rows"][0][3] = "many"


def another_target(text: dict[str, Any]) -> None:
    row = text["rows"][-1]
    row[2][1][0] = "-2"


LIES = (
    smaller_error, negative_error, smaller_reach, smaller_bound, other_multiplier, multiplier_of_an_input,
    multiplier_left_out, rounding_called_exact, rounding_called_a_shift, a_later_row, no_number, another_target,
)  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda f: f.__name__)
def test_a_lie_is_refused(lie: Callable[[dict[str, Any]], None]) -> None:
    text = text_of()
    assert check(copy.deepcopy(text)) == Fraction(text["bound"])
    lie(text)
    with pytest.raises(Refused):
        check(text)


@pytest.mark.parametrize(
    ("kind", "changed"), [("round", ("widen", "fp16")), ("round", ("exact", "")), ("input", ("constant", "fp32"))]
)
def test_a_conversion_that_is_called_something_else_is_refused(kind: str, changed: tuple[str, str]) -> None:
    text = text_of(inputs="fp16")
    row = next(r for r in text["rows"] if r[0] == kind)
    row[0], row[1], row[4] = *changed, "0"
    with pytest.raises(Refused):
        check(text)


def test_a_residual_without_its_error_is_refused() -> None:
    text = text_of(order="kahan")
    row = next(r for r in text["rows"] if r[0] == "residual")
    row[4] = "0"
    with pytest.raises(Refused):
        check(text)


def test_a_residual_of_another_sum_is_refused() -> None:
    text = text_of(order="neumaier")
    row = next(r for r in text["rows"] if r[0] == "ordered")
    row[2][0][1] = 0
    with pytest.raises(Refused):
        check(text)


@pytest.mark.parametrize("n", [2, 8, 256])
def test_every_order_is_bounded_by_the_sequential_one_at_powers_of_two(n: int) -> None:
    assert any_order_bound("fp32", n, Fraction(1, n)) == closed_form("fp32", n)


@pytest.mark.parametrize("order", ["sequential", "pairwise", "blocked:3"])
@pytest.mark.parametrize("n", [3, 7, 24, 100])
def test_the_bound_of_any_order_is_no_smaller(order: str, n: int) -> None:
    own = certify(difference(Setting(n, order=order, scale="none"))).bound
    assert any_order_bound("fp32", n, FORMATS["fp32"].round(Fraction(1, n))) >= own


def test_more_terms_than_the_bound_for_any_order_knows() -> None:
    with pytest.raises(ValueError, match="at most 2\\^8 terms"):
        any_order_bound("bf16", 257, Fraction(1, 257))


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"scale": "twice"}, {"order": "random"}, {"buffer": "fp8"}, {"magnitude": ONE * 0}]
)
def test_what_is_no_setting(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Setting(**{"n": 4, **wrong})
