"""Residues are exact, hashes are functions, and an identity that does not hold is seen."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gradproof.shadow.algebra import Beyond, Snap, Value, function, lift, number, where
from gradproof.shadow.domains import modular as r
from gradproof.shadow.domains.modular import NAN, Field
from gradproof.shadow.tape import Source

P = r.P
EDGES = [0, 1, 2, P - 1, P - 2, 2**60, 2**31 - 1, 2**31, 2**30, 2**60 + 2**31]


def words(*xs: int) -> Any:
    return np.array(xs, dtype=np.uint64)


def pairs() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    some = [*EDGES, *(int(v) for v in rng.integers(0, P, 40))]
    a, b = np.meshgrid(np.array(some, dtype=np.uint64), np.array(some, dtype=np.uint64))
    return a.ravel(), b.ravel()


@pytest.mark.parametrize(
    ("f", "g"), [(r.add, lambda a, b: a + b), (r.sub, lambda a, b: a - b), (r.mul, lambda a, b: a * b)]
)
def test_two_argument_arithmetic_is_exact(f: Any, g: Any) -> None:
    a, b = pairs()
    assert [int(v) for v in f(a, b)] == [g(int(x), int(y)) % P for x, y in zip(a, b, strict=True)]


def test_one_argument_arithmetic_is_exact() -> None:
    a = words(*EDGES)
    assert [int(v) for v in r.neg(a)] == [-x % P for x in EDGES]
    assert [int(v) for v in r.inverse(a)] == [pow(x, -1, P) if x else 0 for x in EDGES]
    assert [int(v) for v in r.power(a, 5)] == [pow(x, 5, P) for x in EDGES]
    assert [int(v) for v in r.rotate(a, 40)] == [x * 2**40 % P for x in EDGES]
    assert [int(v) for v in r.reduce(words(2**64 - 1, P, P + 1))] == [(2**64 - 1) % P, 0, 1]


def test_many_inverses_at_once() -> None:
    a = np.random.default_rng(1).integers(0, P, 3001).astype(np.uint64)
    a[7] = 0
    product = r.mul(a, r.inverse(a))
    assert product[7] == 0
    assert (np.delete(product, 7) == 1).all()


@pytest.mark.parametrize("inner", [1, 7, 2048, 2049, 5000])
def test_matmul_is_exact(inner: int) -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(0, P, (2, inner)).astype(np.uint64)
    b = rng.integers(0, P, (inner, 3)).astype(np.uint64)
    a[0], b[:, 0] = P - 1, P - 1
    expected = (a.astype(object) @ b.astype(object)) % P
    assert (r.matmul(a, b).astype(object) == expected).all()
    assert int(r.total(a, (0, 1))) == sum(int(v) for v in a.ravel()) % P


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_its_dyadic_rational(x: float) -> None:
    assert int(r.of_floats(np.array([x]))[0]) == r.of_fraction(Fraction(x))


@given(st.integers(-(2**30) + 1, 2**30 - 1), st.integers(1, 2**30 - 1))
def test_a_rational_is_found_again(a: int, b: int) -> None:
    assert r.rational(r.of_fraction(Fraction(a, b))) == Fraction(a, b)


def test_a_random_residue_is_no_small_rational() -> None:
    assert r.rational(1234567890123456789, limit=2**20) is None


def leaf(d: Field, name: str, *shape: int, first: int = 0, kind: str = "data") -> Value:
    return Value(d, d.leaf(Source(kind, name, first), shape, np.zeros(shape)))


def residue(x: Value) -> Any:
    return x.parts[0]


def test_leaves_are_matched_by_source_and_place() -> None:
    d = Field(3)
    whole, part = leaf(d, "x", 6), leaf(d, "x", 2, 2, first=2)
    assert (residue(whole)[2:] == residue(part).ravel()).all()
    assert (residue(leaf(d, "x", 6, kind="param")) != residue(whole)).all()
    assert (residue(leaf(Field(4), "x", 6)) != residue(whole)).all()
    assert np.unique(residue(leaf(d, "y", 10000))).size == 10000


def test_identities_hold_and_others_do_not() -> None:
    d = Field(5)
    x, y, z = (leaf(d, n, 4, 4) for n in "xyz")
    assert (residue((x + y) * z) == residue(x * z + y * z)).all()
    assert (residue((x @ y) @ z) == residue(x @ (y @ z))).all()
    assert (residue(x.mean()) == residue(x[:2].mean() / 2 + x[2:].mean() / 2)).all()
    assert (residue(x / y * y) == residue(x)).all()
    assert (residue(x @ y) != residue(y @ x)).all()
    assert (residue(x / 3) != residue(x * (1 / 3))).all()
    assert (residue(x * 0.1) != residue(x / 10)).all()


def test_functions_are_functions() -> None:
    d = Field(6)
    x, y = leaf(d, "x", 5), leaf(d, "y", 5)
    e = residue(function("exp", x + y))
    assert (e == residue(function("exp", y + x))).all()
    assert (e != residue(function("exp", x - y))).all()
    assert (e != residue(function("log", x + y))).all()
    assert (residue(function("pow", x, y)) != residue(function("pow", y, x))).all()
    assert (residue(function("pow", x, lift(d, np.full(5, 3.0)))) == residue(x * x * x)).all()
    assert (residue(function("exp", x - x)) == 1).all()
    half = lift(d, np.full(5, 0.5))
    assert (residue(function("pow", x, half)) == residue(function("sqrt", x))).all()


def test_a_branch_stands_for_both_of_its_sides() -> None:
    """A difference in either branch is seen at every key, not only where a random bit takes that branch."""
    for key in range(20):
        d = Field(key)
        x, y = leaf(d, "x", 3), leaf(d, "y", 3)
        c = x < y
        assert (residue(where(c, x, y)) != residue(where(c, x, y + 1.0))).all()
        assert (residue(where(c, x, y)) != residue(where(c, x + 1.0, y))).all()
        assert (residue(where(~c, x, y)) == residue(where(c, y, x))).all()
        assert (residue(where(c & (x < y), x, y)) == residue(where(c, x, y))).all()
        assert (residue(number(c | ~(x < y))) != 0).all()


def test_comparisons_of_what_is_equal_are_decided() -> None:
    d = Field(8)
    x = leaf(d, "x", 3)
    assert (residue(x < x + 0.0) == 0).all()
    assert (residue(x.same(x)) == 1).all()
    y = leaf(d, "y", 3)
    assert (residue(x.same(y)) == residue(y.same(x))).all()


def test_concrete_masks_select_exactly() -> None:
    d = Field(9)
    x = leaf(d, "x", 3)
    mask = np.array([True, False, True])
    chosen = where(mask, x, -np.inf)
    e = residue(function("exp", chosen))
    assert e[1] == 0
    assert e[0] == residue(function("exp", x))[0]
    assert residue(function("exp", chosen).sum()) == r.add(e[:1], e[2:])[0]


def test_division_by_zero_decides_nothing() -> None:
    d = Field(10)
    x = leaf(d, "x", 3)
    bad = x / (x - x)
    assert (residue(bad) == NAN).all()
    assert (residue(bad * 0.0 + 1.0) == NAN).all()
    assert (residue(where(np.array([False] * 3), bad, x)) == residue(x)).all()
    assert (residue(bad.reshape(1, 3) @ x.reshape(3, 1)) == NAN).all()
    assert (residue(bad.sum()) == NAN).all()
    with pytest.raises(Beyond):
        _ = bad < x


def test_infinities_follow_ieee_where_the_sign_is_known() -> None:
    d = Field(11)
    x, inf = leaf(d, "x", 1), lift(d, np.array([np.inf]))
    minus = lift(d, np.array([-np.inf]))
    assert (residue(-inf) == residue(minus)).all()
    assert (residue(x - inf) == residue(minus)).all()
    assert (residue(minus * 1.0) == residue(minus)).all()
    assert (residue(x / inf) == 0).all()
    assert (residue(inf + minus) == NAN).all()
    assert (residue(x * inf) == NAN).all()
    assert (residue(minus < x) == 1).all()
    assert (residue(x < minus) == 0).all()


def test_snapping_makes_a_third_a_third() -> None:
    snap = Snap()
    d = Field(12, snap=snap)
    x = leaf(d, "x", 4)
    assert (residue(x / 3) == residue(x * (1 / 3))).all()
    assert (residue(x / 3) != residue(x * 0.3333)).all()
    assert (residue(x / 3) != residue(x * (1 / 3.0000001))).all()
    assert (residue(x / 3) != residue(x * 0.25)).all()
    assert snap.changed[1 / 3] == Fraction(1, 3)


def test_the_error_bound_grows_with_what_was_computed() -> None:
    d = Field(13)
    x = leaf(d, "x", 1000)
    assert d.failure_bound() < 2.0**-58
    e = function("exp", x * x)
    before = d.failure_bound()
    assert before < 2.0**-39
    s = e / e.sum()
    function("exp", s * s)
    assert before < d.failure_bound() < 1
    assert d.failure_bound(2) < d.failure_bound() ** 1.5
    assert s.parts[1].max() == 2
    assert s.parts[2].max() == 1


def test_coincidences_are_those_of_the_arguments() -> None:
    def digest(key: int, other: str) -> str:
        d = Field(key)
        function("exp", leaf(d, "x", 4))
        function("exp", leaf(d, other, 4))
        return d.coincidences()

    assert digest(1, "x") == digest(2, "x") != digest(1, "y")
