"""Terms in normal form keep their value, and never fold what is not always true."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gradproof.arith import smt
from gradproof.shadow.algebra import Beyond, Snap, Value, function, lift, simplest, snapped, where
from gradproof.shadow.domains.programs import Compiler, Near, Raw, exact, near
from gradproof.shadow.domains.real import NAN, NINF, Reals
from gradproof.shadow.domains.terms import TermPool
from gradproof.shadow.tape import Source

NAMES = "xyz"
SMALL = st.fractions(min_value=-3, max_value=3, max_denominator=4)
LEAF = st.one_of(
    st.sampled_from([("variable", n) for n in NAMES]),
    st.tuples(st.just("number"), SMALL),
    st.just(("number", Fraction(0))),
)


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.tuples(st.sampled_from(["add", "sub", "mul", "div", "pow"]), children, children)
    one = st.tuples(st.sampled_from(["sqrt", "exp", "floor", "half", "inverse"]), children)
    test = st.tuples(st.sampled_from(["less", "equal", "not", "and", "or"]), children, children)
    return st.one_of(two, one, st.tuples(st.just("ite"), test, children, children))


EXPRESSION = st.recursive(LEAF, _grow, max_leaves=16)


def _hashed(name: str, args: Sequence[Fraction]) -> Fraction:
    """Any function will do that agrees with the folded values."""
    x = args[0]
    if name == "pow":
        return x / 7 + args[1] / 3 + 1
    if name == "floor":
        return Fraction(x.__floor__())
    if name == "sqrt":
        known = {Fraction(a, b) ** 2: Fraction(a, b) for a in range(40) for b in range(1, 20)}
        return known.get(x, x / 5 + 2)
    return Fraction(1) if x == 0 else x / 5 + 2


def _built(pool: Any, e: Any) -> Any:
    op = e[0]
    if op in ("variable", "number"):
        return pool.variable(e[1]) if op == "variable" else pool.number(e[1])
    if op == "ite":
        return pool.ite(_truth(pool, e[1]), _built(pool, e[2]), _built(pool, e[3]))
    args = [_built(pool, a) for a in e[1:]]
    if op in ("add", "sub"):
        return pool.combine(((1, args[0]), (1 if op == "add" else -1, args[1])))
    if op == "half":
        return pool.combine(((Fraction(1, 2), args[0]),))
    if op in ("div", "inverse"):
        top, bottom = args if op == "div" else (pool.one, args[0])
        return pool.zero if bottom.constant == 0 else pool.div(top, bottom)
    if op == "pow":
        return pool.apply("pow", (args[0], pool.number(2)))
    return pool.mul(*args) if op == "mul" else pool.apply(op, args)


def _truth(pool: Any, e: Any) -> Any:
    a, b = _built(pool, e[1]), _built(pool, e[2])
    if e[0] in ("less", "equal"):
        return getattr(pool, e[0])(a, b)
    if e[0] == "not":
        return pool.negate(pool.less(a, b))
    return pool.junction(e[0], (pool.less(a, b), pool.equal(b, a)))


def _meaning(e: Any, at: dict[str, Fraction]) -> Any:
    """What an expression is worth, computed without any of our terms."""
    op = e[0]
    if op in ("variable", "number"):
        return at[e[1]] if op == "variable" else e[1]
    args = [_meaning(a, at) for a in e[1:]]
    table: dict[str, Any] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "half": lambda a: a / 2,
        "div": lambda a, b: a / b if b else Fraction(0), "inverse": lambda a: 1 / a if a else Fraction(0),
        "pow": lambda a, b: a * a, "less": lambda a, b: a < b, "equal": lambda a, b: a == b,
        "not": lambda a, b: not a < b, "and": lambda a, b: a < b and a == b, "or": lambda a, b: a < b or a == b,
        "ite": lambda c, a, b: a if c else b,
    }  # fmt: skip
    return table[op](*args) if op in table else _hashed(op, args)


@settings(max_examples=400, deadline=None)
@given(EXPRESSION, st.tuples(SMALL, SMALL, SMALL))
def test_the_normal_form_keeps_the_value(e: Any, values: tuple[Fraction, ...]) -> None:
    at = dict(zip(NAMES, values, strict=True))
    expected = _meaning(e, at)
    pool = TermPool()
    assert exact(Compiler(pool).compile([_built(pool, e)]), at, _hashed) == [expected]


@settings(max_examples=100, deadline=None)
@given(EXPRESSION, st.tuples(SMALL, SMALL, SMALL))
def test_raw_terms_keep_the_value(e: Any, values: tuple[Fraction, ...]) -> None:
    at = dict(zip(NAMES, values, strict=True))

    def total(name: str, args: Sequence[Fraction]) -> Fraction:
        return args[0] * args[0] if name == "pow" else _hashed(name, args)

    raw = Raw()
    assert exact(Compiler(raw).compile([_built(raw, e)]), at, total) == [_meaning(e, at)]


def variables(domain: Reals, name: str, *shape: int) -> Value:
    value = np.linspace(0.5, 1.5, int(np.prod(shape)))
    return Value(domain, domain.leaf(Source("data", name), shape, value))


def same(a: Value, b: Value) -> bool:
    return all(x is y for x, y in zip(a.parts[0].ravel(), b.parts[0].ravel(), strict=True))


def test_coefficients_come_out_of_products_quotients_and_branches() -> None:
    d = Reals()
    x, y = variables(d, "x", 2), variables(d, "y", 2)
    c = x < y
    assert same((x / 2) / 4, x / 8)
    assert same(((x + y) / 2) * (y / 4), (x + y) * y / 8)
    assert same(x / (2 * y + 2 * x), x / 2 / (x + y))
    assert same(where(c, x / 8, 0.0), where(c, x / 2, 0.0) / 4)
    assert same(x * y, y * x)
    assert same(2 * x < 2 * y, c)
    assert same(function("exp", (x + y) / 2 * 2), function("exp", y + x))


def test_what_may_be_false_is_not_folded() -> None:
    d = Reals()
    x, y = variables(d, "x", 1), variables(d, "y", 1)
    one = lift(d, np.ones(1))
    assert not same(x / x, one)
    assert not same(x * y / y, x)
    assert not same(function("sqrt", x * x), x)
    assert not same(where(x < y, x, y), where(y < x, y, x))
    assert not same((x < y) | (y < x), lift(d, np.ones(1, dtype=bool)))
    assert not same(variables(d, "a", 1), Value(d, d.leaf(Source("param", "a"), (1,), np.ones(1))))


def test_z3_does_not_cancel_a_divisor_that_may_be_zero() -> None:
    raw = Raw()
    x = raw.variable("x")
    program = Compiler(raw).compile([raw.div(x, x), raw.one])
    a, b = program.outputs
    assert smt.prove_equal(program.steps, [(a, b)], [], 5).answer is smt.SolverAnswer.SAT


def test_z3_uses_the_conditions() -> None:
    raw = Raw()
    x = raw.variable("x")
    relu = raw.ite(raw.less(raw.zero, x), x, raw.zero)
    program = Compiler(raw).compile([relu, x, raw.less(raw.zero, x)])
    a, b, c = program.outputs
    assert smt.prove_equal(program.steps, [(a, b)], [], 5).answer is smt.SolverAnswer.SAT
    assert smt.prove_equal(program.steps, [(a, b)], [c], 5).answer is smt.SolverAnswer.UNSAT


def test_products_of_sums_are_not_multiplied_out() -> None:
    d = Reals()
    total = lift(d, np.ones(1))
    for i in range(40):
        total = total * (variables(d, f"a{i}", 1) + variables(d, f"b{i}", 1))
    assert len(total.parts[0][0].terms) == 1


def test_matmul_and_sum_agree_with_scalars() -> None:
    d = Reals()
    x, y = variables(d, "x", 2, 2, 3), variables(d, "y", 3, 2)
    product = x @ y
    expected = (x[1, 0] * y[:, 1]).sum()
    assert product.shape == (2, 2, 2)
    assert product[1, 0, 1].parts[0][()] is expected.parts[0][()]
    assert x.sum((0, 2)).shape == (2,)
    assert lift(d, np.zeros((2, 0))).sum((1,)).parts[0].tolist() == [d.pool.zero] * 2


def test_minus_infinity_passes_a_mask_and_vanishes_under_exp() -> None:
    d = Reals()
    x = variables(d, "x", 2)
    masked = x + lift(d, np.array([0.0, -np.inf]))
    e = function("exp", masked)
    assert e[1].parts[0][()] is d.pool.zero
    assert same(e.sum(), function("exp", x[0]))
    assert (masked - masked)[1].parts[0][()] is NAN
    assert (masked * 0.0)[1].parts[0][()] is NAN
    assert (masked * 2.0)[1].parts[0][()] is NINF
    assert (x / 0.0)[0].parts[0][()] is NAN
    with pytest.raises(Beyond):
        _ = (x / 0.0) < x


def test_the_recorded_values_are_kept_by_name() -> None:
    d = Reals()
    d.leaf(Source("data", "x", 3), (2,), np.array([1.5, 2.5]))
    assert d.recorded == {"data/x[3]": 1.5, "data/x[4]": 2.5}


def test_float_evaluation_bounds_its_error() -> None:
    pool = TermPool()
    x, tiny = pool.variable("x"), pool.number(Fraction(1, 2**60))
    close = pool.combine(((1, x), (1, tiny), (-1, pool.variable("y"))))
    (found,) = near(Compiler(pool).compile([close]), {"x": 1.0, "y": 1.0})
    assert isinstance(found, Near)
    assert abs(found.value - 2.0**-60) <= found.error
    branch = pool.ite(pool.less(pool.zero, close), x, pool.zero)
    assert near(Compiler(pool).compile([branch]), {"x": 1.0, "y": 1.0}) == [None]


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (1 / 3, Fraction(1, 3)),
        (float(np.float32(1 / 3)), Fraction(1, 3)),
        (-1 / 6, Fraction(-1, 6)),
        (1 / 3 / 7, Fraction(1, 21)),
        (0.25, Fraction(1, 4)),
        (0.3333, Fraction(3333, 10000)),
        (1 / 3.0000001, Fraction(1 / 3.0000001)),
        (1e-8, Fraction(1e-8)),
        (2.0**-40, Fraction(1, 2**40)),
        (1 / 3 + 1e-15, Fraction(1 / 3 + 1e-15)),
    ],
)
def test_constants_are_read_as_near_rationals_only(x: float, expected: Fraction) -> None:
    assert snapped(x) == expected


def test_the_simplest_rational_of_an_interval() -> None:
    assert simplest(Fraction(3, 10), Fraction(7, 20)) == Fraction(1, 3)
    assert simplest(Fraction(5, 2), Fraction(7, 2)) == 3


def test_a_snap_lists_what_it_changed() -> None:
    snap = Snap()
    d = Reals(snap=snap)
    lift(d, np.array([0.5, 1 / 3]))
    lift(d, np.arange(100) / 7)
    assert snap.changed == {1 / 3: Fraction(1, 3)}
    assert 0 < snap.bound() < Fraction(1, 2**52)
