"""Ratio against Fraction, Lattice against the formats and the software floats."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gradproof.arith import constant, round_to, sqrt
from gradproof.arith.formats import FORMATS
from gradproof.arith.soft import Lattice, Ratio, Soft, nearest

NUMS = st.integers(-(10**6), 10**6)
DENS = st.integers(1, 10**4)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
ORDER = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def value(x: Ratio) -> Fraction:
    return Fraction(x.num, x.den)


@pytest.mark.parametrize("op", ARITHMETIC)
@given(a=NUMS, b=DENS, c=NUMS, d=DENS)
def test_arithmetic_is_that_of_fractions(op: Callable[[Any, Any], Any], a: int, b: int, c: int, d: int) -> None:
    if op is operator.truediv and c == 0:
        with pytest.raises(ZeroDivisionError):
            op(Ratio(a, b), Ratio(c, d))
        return
    expected = op(Fraction(a, b), Fraction(c, d))
    assert value(op(Ratio(a, b), Ratio(c, d))) == expected
    assert value(op(Ratio(a, b), Fraction(c, d))) == expected
    assert value(op(Fraction(a, b), Ratio(c, d))) == expected
    assert op(Ratio(a, b), Ratio(c, d)).den > 0


@pytest.mark.parametrize("op", ORDER)
@given(a=NUMS, b=DENS, c=NUMS, d=DENS)
def test_order_is_that_of_fractions(op: Callable[[Any, Any], Any], a: int, b: int, c: int, d: int) -> None:
    expected = op(Fraction(a, b), Fraction(c, d))
    assert op(Ratio(a, b), Ratio(c, d)) == expected
    assert op(Ratio(a, b), Fraction(c, d)) == expected
    assert op(Ratio(a, -b), -Fraction(c, d)) == op(-Fraction(a, b), -Fraction(c, d))


@given(a=NUMS, b=DENS)
def test_unary_operations_and_conversions(a: int, b: int) -> None:
    x, f = Ratio(a, b), Fraction(a, b)
    assert value(-x) == -f
    assert value(abs(x)) == abs(f)
    assert value(+x) == f
    assert bool(x) is bool(f)
    assert hash(x) == hash(Ratio(3 * a, 3 * b)) == hash(f)
    assert {x, f, Ratio(3 * a, 3 * b)} == {f}
    assert (not x) is (not f)
    assert value(sqrt(x * x)) == abs(f)
    assert value(Ratio(a * a, b * b).sqrt()) == abs(f)
    assert round_to(x, "fp16") is x
    assert constant("1e-6", x) == Fraction(1, 10**6)


@pytest.mark.parametrize("op", [*ARITHMETIC, *ORDER])
@given(a=st.integers(-9, 9), b=st.integers(1, 4), c=st.one_of(st.integers(-9, 9), st.booleans(), st.floats(-9, 9)))
def test_other_numbers_stand_on_either_side(op: Callable[[Any, Any], Any], a: int, b: int, c: int | float) -> None:
    x, f, exact = Ratio(a, b), Fraction(a, b), Fraction(c)
    for ours, theirs in (((x, c), (f, exact)), ((c, x), (exact, f))):
        if op is operator.truediv and theirs[1] == 0:
            with pytest.raises(ZeroDivisionError):
                op(*ours)
            continue
        got = op(*ours)
        assert (value(got) if isinstance(got, Ratio) else got) == op(*theirs)


SMALL = st.lists(st.tuples(st.integers(-6, 6), st.integers(1, 4)), min_size=1, max_size=6)


@given(SMALL, st.integers(-6, 6))
def test_builtins_of_sequences_are_those_of_fractions(pairs: Sequence[tuple[int, int]], k: int) -> None:
    ours, theirs = [Ratio(*p) for p in pairs], [Fraction(*p) for p in pairs]
    for x, f in zip((min(ours), max(ours), sum(ours, Ratio(0))), (min(theirs), max(theirs), sum(theirs)), strict=True):
        assert value(x) == f
    assert [value(x) for x in sorted(ours)] == sorted(theirs)
    assert [value(x) for x in sorted(ours, key=abs, reverse=True)] == sorted(theirs, key=abs, reverse=True)
    assert (k in ours, ours.count(k)) == (k in theirs, theirs.count(k))  # type: ignore[arg-type]
    assert (any(ours), all(ours)) == (any(theirs), all(theirs))
    assert [value(x) for x in filter(None, ours)] == [f for f in theirs if f]
    assert (ours == [Ratio(3 * a, 3 * b) for a, b in pairs]) is True
    for x, f in zip(ours, theirs, strict=True):
        assert (x if x else 1) == (f if f else 1)
        assert (x or k, x and k) == (f or k, f and k)


@given(a=NUMS, b=DENS, k=st.integers(-8, 8))
def test_small_powers_are_those_of_fractions(a: int, b: int, k: int) -> None:
    if a == 0 and k < 0:
        with pytest.raises(ZeroDivisionError):
            Ratio(a, b) ** k
        return
    assert value(Ratio(a, b) ** k) == Fraction(a, b) ** k
    assert value(sqrt(Ratio(a, b) ** 2)) == abs(Fraction(a, b))
    half = Lattice(a % 2048, 1, "fp16") / 256
    assert (half**2).num * (half * half).den == (half * half).num * (half**2).den


CONCRETE = [float, int, round, math.floor, math.ceil, math.trunc, math.sqrt, operator.index, complex, range]
NOT_LINEAR = [operator.floordiv, operator.mod, divmod, operator.lshift, operator.and_]


@pytest.mark.parametrize("number", [Ratio(4, 2), Lattice(2)])
def test_what_needs_a_concrete_value_is_refused(number: Ratio) -> None:
    """Never a wrong answer."""
    for ask in (*CONCRETE, lambda x: round(x, 2)):
        with pytest.raises(TypeError):
            ask(number)
    for op in (*NOT_LINEAR, lambda x, y: x**9, lambda x, y: x**0.5, lambda x, y: 2.0**x, lambda x, y: y**x):
        with pytest.raises(TypeError):
            op(number, 2)
    with pytest.raises(TypeError):
        Lattice(2) ** 3


def test_infinity_is_beyond_every_number_and_nan_has_no_order() -> None:
    for x in (Ratio(-5, 3), Lattice(7)):
        assert (x < math.inf, x > -math.inf, x == math.inf, x >= math.inf) == (True, True, False, False)
        assert min(math.inf, x) is x
        assert (x == math.nan) is False
        assert x != math.nan
        with pytest.raises(TypeError):
            x < math.nan  # noqa: B015
        with pytest.raises(TypeError):
            x + math.inf


@pytest.mark.parametrize(
    ("number", "error"), [(Ratio(2), "no exact"), (Ratio(-4), "negative"), (Ratio(1, 3), "no exact")]
)
def test_a_root_that_is_not_exact_is_refused(number: Ratio, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        number.sqrt()


def test_floats_count_by_their_exact_value_and_other_types_are_refused() -> None:
    assert value(Ratio(1) + 0.1) == 1 + Fraction(0.1)
    with pytest.raises(TypeError):
        Ratio(1) + "1"
    with pytest.raises(TypeError):
        Ratio(1) < "1"  # noqa: B015
    assert (Ratio(1) == "1") is False
    with pytest.raises(ZeroDivisionError):
        Ratio(1, 0)
    with pytest.raises(KeyError):
        Ratio(1).round_to("fp12")


@pytest.mark.parametrize(
    ("name", "den"), [("fp16", 1), ("fp16", 4), ("bf16", 1), ("bf16", 3), ("fp16", 3), ("bf16", 2**20)]
)
def test_rounding_agrees_with_the_format_on_a_whole_range(name: str, den: int) -> None:
    fmt = FORMATS[name]
    for num in range(-9000, 9001):
        assert Fraction(*nearest(num, den, fmt)) == fmt.round(Fraction(num, den)), num


@given(st.sampled_from(sorted(FORMATS)), st.integers(-(2**70), 2**70), st.integers(1, 2**40))
def test_rounding_agrees_with_the_format_anywhere(name: str, num: int, den: int) -> None:
    fmt = FORMATS[name]
    try:
        expected = fmt.round(Fraction(num, den))
    except OverflowError:
        with pytest.raises(OverflowError):
            nearest(num, den, fmt)
        return
    assert Fraction(*nearest(num, den, fmt)) == expected


@pytest.mark.parametrize("num", [65519, 65520, -65519, -65520, 131072])
def test_the_edge_of_overflow(num: int) -> None:
    test_rounding_agrees_with_the_format_anywhere.hypothesis.inner_test("fp16", num, 1)


@pytest.mark.parametrize("op", ARITHMETIC)
@given(st.sampled_from(["fp16", "bf16", "fp32"]), st.integers(-200, 200), st.integers(-200, 200), st.integers(0, 6))
def test_a_lattice_operation_is_a_rounded_one(op: Callable[[Any, Any], Any], fmt: str, a: int, b: int, k: int) -> None:
    if op is operator.truediv and b == 0:
        return
    x, y = Lattice(a, 2**k, fmt), Lattice(b, 1, "fp16")
    p, q = Soft(Fraction(a, 2**k), fmt), Soft(b, "fp16")
    got, expected = op(x, y), op(p, q)
    assert (value(got), got.fmt) == (expected.value, expected.fmt)
    third, half = Fraction(1, 3), Fraction(1, 2)
    assert value(op(x, half)) == op(p, half).value
    assert value(op(half, Lattice(3, 1, fmt))) == op(Soft(half, fmt), Soft(3, fmt)).value
    if fmt == "fp32":
        assert value(op(x, third)) == op(p, third).value
        return
    for number in (x, p):
        with pytest.raises(ArithmeticError):
            op(number, third)


def test_a_lattice_constant_is_rounded_first_and_formats_convert() -> None:
    assert value(Lattice(2049, 1, "fp16")) == 2048
    assert value(Lattice(2049, 1, "fp32").round_to("fp16")) == 2048
    x = Lattice(3, 1, "fp16")
    assert x.round_to("fp16") is x
    with pytest.raises(TypeError):
        x.sqrt()
