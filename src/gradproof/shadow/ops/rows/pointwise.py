"""Arithmetic by element. Branches on the sign or size of an element are `where`, so that every path is covered."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gradproof.shadow.algebra import Beyond, Value, where
from gradproof.shadow.ops.rows.common import (
    absolute,
    between,
    constant,
    fn,
    larger,
    power,
    scaled,
    smaller,
    spread,
    truncated,
    truth,
)
from gradproof.shadow.ops.table import Bool, Example, Int, Ops, T, register
from gradproof.shadow.tape import Const

# -- Comparisons: truth values of the domain, or plain ones of integers.
LEFT = T((2, 3))
CASES = (
    Example(LEFT, T((3,)), overload="Tensor"), Example(LEFT, 0.5, overload="Scalar"),
    Example(Int((2, 3), 3), T((2, 3)), overload="Tensor", untracked=(0,)),
)  # fmt: skip


def compared(k: Ops, a: Any, b: Any, f: Callable[[Any, Any], Any]) -> Any:
    """A comparison in the domain when either side is tracked."""
    if isinstance(a, Value) or isinstance(b, Value):
        left, right = k.lift(a), k.lift(b)
        shape = np.broadcast_shapes(left.shape, right.shape)
        result = f(left, right)
        return result if result.shape == shape else result.expand(shape)
    return np.asarray(f(np.asarray(a), np.asarray(b)))


def same(a: Any, b: Any) -> Any:
    """Equality."""
    return a.same(b) if isinstance(a, Value) else a == b


def different(a: Any, b: Any) -> Any:
    """Inequality."""
    return ~same(a, b)


def comparison(name: str, f: Callable[[Any, Any], Any]) -> None:
    """The row of one comparison."""

    @register(f"aten.{name}", examples=CASES)
    def rule(k: Ops, a: Any, b: Any) -> Any:
        return compared(k, a, b, f)


for _name, _f in {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": same, "ne": different,
}.items():  # fmt: skip
    comparison(_name, _f)


@register("aten.isclose", examples=[Example(LEFT, LEFT), Example(LEFT, T((3,)), 0.1, 0.2)])
def isclose(k: Ops, a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """|a - b| <= atol + rtol |b|."""
    left, right = k.lift(a), k.lift(b)
    return absolute(left - right) <= absolute(right) * rtol + atol


X, POS, UNIT = T((2, 3)), T((2, 3), 0.25, 2.0), T((2, 3), 0.1, 0.9)
PAIR = (Example(T((2, 3)), T((3,))), Example(T((2, 1)), T((2, 3))))
AWAY = T((3,), 0.5, 2.0)

Unary = Callable[[Ops, Value], Value]


def sign(k: Ops, x: Value) -> Value:
    """-1, 0 or 1."""
    return where(x < 0.0, constant(k, x.shape, -1.0), where(x > 0.0, constant(k, x.shape, 1.0), 0.0))


def tell(k: Ops, x: Value, ask: Callable[[Value], Value]) -> Value:
    """A question about infinities; a domain of finite numbers only answers no, which is stated as an assumption."""
    try:
        return ask(x)
    except Beyond:
        k.note("every value is finite")
        return constant(k, x.shape, 0.0, truth=True)


def endless(k: Ops, x: Value) -> Value:
    """Whether infinite."""
    return tell(k, x, lambda v: v.same(math.inf) | v.same(-math.inf))


UNARY: Mapping[str, tuple[Unary, T]] = {
    "neg": (lambda k, x: -x, X),
    "abs": (lambda k, x: absolute(x), X),
    "sign": (sign, X),
    "sgn": (sign, X),
    "square": (lambda k, x: x * x, X),
    "sqrt": (lambda k, x: k.fn("sqrt", x), POS),
    "rsqrt": (lambda k, x: 1.0 / k.fn("sqrt", x), POS),
    "reciprocal": (lambda k, x: 1.0 / x, POS),
    "exp": (lambda k, x: k.fn("exp", x), X),
    "exp2": (lambda k, x: k.fn("exp", x * k.fn("log", 2.0)), X),
    "expm1": (lambda k, x: k.fn("expm1", x), X),
    "log": (lambda k, x: k.fn("log", x), POS),
    "log1p": (lambda k, x: k.fn("log1p", x), POS),
    "log2": (lambda k, x: k.fn("log", x) / k.fn("log", 2.0), POS),
    "log10": (lambda k, x: k.fn("log", x) / k.fn("log", 10.0), POS),
    "sin": (lambda k, x: k.fn("sin", x), X),
    "cos": (lambda k, x: k.fn("cos", x), X),
    "tan": (lambda k, x: k.fn("sin", x) / k.fn("cos", x), UNIT),
    "atan": (lambda k, x: k.fn("atan", x), X),
    "sinh": (lambda k, x: (k.fn("exp", x) - k.fn("exp", -x)) / 2.0, X),
    "cosh": (lambda k, x: (k.fn("exp", x) + k.fn("exp", -x)) / 2.0, X),
    "erf": (lambda k, x: k.fn("erf", x), X),
    "erfc": (lambda k, x: 1.0 - k.fn("erf", x), X),
    "erfinv": (lambda k, x: k.fn("erfinv", x), UNIT),
    "floor": (lambda k, x: k.fn("floor", x), X),
    "ceil": (lambda k, x: -k.fn("floor", -x), X),
    "trunc": (truncated, X),
    "frac": (lambda k, x: x - truncated(k, x), X),
    "logical_not": (lambda k, x: ~truth(k, x), X),
    "isnan": (lambda k, x: ~x.same(x), X),
    "isinf": (endless, X),
}  # fmt: skip


def _one(rule: Unary) -> Callable[..., Value]:
    def row(k: Ops, x: Any) -> Value:
        return rule(k, k.lift(x))

    row.__module__ = __name__
    return row


for _name, (_rule, _example) in UNARY.items():
    register(f"aten.{_name}", examples=[Example(_example)])(_one(_rule))


@register("aten.add", examples=[Example(T((2, 3)), T((3,)), alpha=2.0), Example(X, 2.5, overload="Scalar"), *PAIR])
def add(k: Ops, x: Any, y: Any, alpha: Any = 1) -> Value:
    """`x + alpha y`; of truth values, or."""
    a, b = k.lift(x), k.lift(y)
    return a | b if a.truth and b.truth else a + scaled(b, alpha)


@register("aten.sub", examples=[Example(T((2, 3)), T((3,)), alpha=0.5), Example(X, 2.5, overload="Scalar"), *PAIR])
def sub(k: Ops, x: Any, y: Any, alpha: Any = 1) -> Value:
    """`x - alpha y`."""
    return k.lift(x) - scaled(k.lift(y), alpha)


@register("aten.rsub", examples=[Example(X, T((3,)), alpha=2.0), Example(X, 2.5, overload="Scalar")])
def rsub(k: Ops, x: Any, y: Any, alpha: Any = 1) -> Value:
    """`y - alpha x`."""
    return k.lift(y) - scaled(k.lift(x), alpha)


@register("aten.mul", examples=[Example(X, -0.75), *PAIR, Example(X, Bool((3,)))])
def mul(k: Ops, x: Any, y: Any) -> Value:
    """A product; of truth values, and."""
    a, b = k.lift(x), k.lift(y)
    return a & b if a.truth and b.truth else a * b


@register(
    "aten.div",
    examples=[
        Example(X, AWAY),
        Example(X, 3.0),
        Example(X, AWAY, rounding_mode="floor"),
        Example(X, AWAY, rounding_mode="trunc"),
        Example(X, 0.3, rounding_mode=None),
    ],
)
def div(k: Ops, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    """A quotient, or its floor, or its whole part."""
    return quotient(k, x, y, rounding_mode)


def quotient(k: Ops, x: Any, y: Any, rounding_mode: str | None) -> Value:
    """A quotient, rounded as torch names it."""
    exact = k.lift(x) / k.lift(y)
    if rounding_mode is None:
        return exact
    return k.fn("floor", exact) if rounding_mode == "floor" else truncated(k, exact)


@register("aten.floor_divide", examples=[Example(X, AWAY), Example(X, 0.3)])
def floor_divide(k: Ops, x: Any, y: Any) -> Value:
    """The floor of a quotient."""
    return quotient(k, x, y, "floor")


@register("aten.remainder", examples=[Example(X, AWAY), Example(X, 0.3)])
def remainder(k: Ops, x: Any, y: Any) -> Value:
    """What floor division leaves."""
    return k.lift(x) - k.lift(y) * quotient(k, x, y, "floor")


@register("aten.fmod", examples=[Example(X, AWAY), Example(X, 0.3)])
def fmod(k: Ops, x: Any, y: Any) -> Value:
    """What division towards zero leaves."""
    return k.lift(x) - k.lift(y) * quotient(k, x, y, "trunc")


@register("aten.round", examples=[Example(X), Example(X, decimals=1, overload="decimals")])
def round_(k: Ops, x: Any, decimals: int = 0) -> Value:
    """Half to even."""
    shift = 10.0**decimals
    return k.fn("round", scaled(k.lift(x), shift)) / shift if decimals else k.fn("round", x)


def powers(k: Ops, x: Any, exponent: Any, known: Any = None) -> Value:
    """A power; `known` is the exponent where it is a constant tensor."""
    if isinstance(known, Const) and known.value.size and (known.value == known.value.flat[0]).all():
        a, _ = spread(k, x, exponent)
        return power(k, a, float(known.value.flat[0]))
    if isinstance(exponent, int | float):
        return power(k, k.lift(x), float(exponent))
    return fn(k, "pow", x, exponent)


@register(
    "aten.pow",
    examples=[
        *(Example(X, n) for n in (2, 3, 0, 1)),
        *(Example(POS, p) for p in (-1, -2, 0.5, -0.5, 1.5, 0.3)),
        Example(2.0, X),
        Example(POS, T((3,))),
        Example(POS, T((3,)), untracked=[1]),
    ],
)
def pow_(k: Ops, x: Any, exponent: Any) -> Value:
    """A power of two tensors, or of a tensor and a number."""
    return powers(k, x, exponent, k.entry.args[1] if len(k.entry.args) > 1 else None)


@register(
    "aten.clamp",
    examples=[
        Example(X, -0.5, 0.5),
        Example(X, None, 0.25),
        Example(X, 1.0, -1.0),
        Example(X, T((3,)), T((2, 1)), overload="Tensor"),
    ],
)
def clamp(k: Ops, x: Any, min: Any = None, max: Any = None) -> Value:
    """Between two bounds, numbers or tensors."""
    return between(k.lift(x), *(None if b is None else k.lift(b) for b in (min, max)))


@register("aten.clamp_min", examples=[Example(X, 0.25), Example(X, T((3,)))])
def clamp_min(k: Ops, x: Any, min: Any) -> Value:
    """At least a bound."""
    return larger(k.lift(x), k.lift(min))


@register("aten.clamp_max", examples=[Example(X, 0.25), Example(X, T((3,)))])
def clamp_max(k: Ops, x: Any, max: Any) -> Value:
    """At most a bound."""
    return smaller(k.lift(x), k.lift(max))


@register("aten.maximum", "aten.fmax", examples=PAIR)
def maximum(k: Ops, x: Any, y: Any) -> Value:
    """The larger."""
    return larger(k.lift(x), k.lift(y))


@register("aten.minimum", "aten.fmin", examples=PAIR)
def minimum(k: Ops, x: Any, y: Any) -> Value:
    """The smaller."""
    return smaller(k.lift(x), k.lift(y))


@register("aten.lerp", examples=[Example(X, X, 0.25), Example(X, X, T((3,)))])
def lerp(k: Ops, x: Any, y: Any, weight: Any) -> Value:
    """`x + weight (y - x)`."""
    return k.lift(x) + k.lift(weight) * (k.lift(y) - k.lift(x))


@register("aten.addcmul", examples=[Example(X, X, T((3,)), value=0.5), Example(X, X, X)])
def addcmul(k: Ops, x: Any, y: Any, z: Any, value: Any = 1) -> Value:
    """`x + value y z`."""
    return k.lift(x) + scaled(k.lift(y) * k.lift(z), value)


@register("aten.addcdiv", examples=[Example(X, X, AWAY, value=-0.5), Example(X, X, POS)])
def addcdiv(k: Ops, x: Any, y: Any, z: Any, value: Any = 1) -> Value:
    """`x + value y / z`."""
    return k.lift(x) + scaled(k.lift(y), value) / k.lift(z)


@register("aten.xlogy", examples=[Example(X, POS), Example(0.0, POS)])
def xlogy(k: Ops, x: Any, y: Any) -> Value:
    """`x log y`, zero where `x` is."""
    a, b = spread(k, x, y)
    return where(a.same(0.0), constant(k, a.shape), a * k.fn("log", b))
